"use strict";
// Draws every chart of the page from the JSON beside it: hover, taps and arrow keys tell values, names hide curves, a drag
// or + zooms.
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const DASHES = ["", "7 3", "2 3", "9 3 2 3", "14 3"]; // five, so that like colours of the ten differ
  const make = (tag, attributes = {}, parent = null, text = null) => {
    const element = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    if (text !== null) element.textContent = text;
    if (parent) parent.append(element);
    return element;
  };
  const shown = (value) => (value === null ? "–" : Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(4))).replace("-", "−"));
  const colour = (series) => `var(--c${series.colour % 10})`;
  const LETTER = 6.6; // pixels of a letter in a chart, about
  const dash = (series) => DASHES[series.colour % 5];

  function ticks(low, high, log, count) {
    const found = [];
    if (log) {
      const wide = Math.log10(high / low) > 1.5;
      for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++)
        for (const part of wide ? [1] : [1, 2, 5]) {
          const value = part * 10 ** power;
          if (value >= low && value <= high) found.push([value, shown(value)]);
        }
      if (found.length > 1) return found;
      found.length = 0;
    }
    const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((part) => part * power).find((each) => each >= rough);
    for (let at = Math.ceil(low / step); at * step <= high + step * 1e-9; at++) {
      const value = Number((at * step).toPrecision(12));
      found.push([value, shown(value)]);
    }
    return found;
  }

  function extent(chart, axis, at, hidden) {
    if (chart[axis].reach) return [...chart[axis].reach];
    const values = [];
    chart.series.forEach((series, number) => {
      if (hidden.has(number)) return;
      for (const point of series.points) if (point[at] !== null) values.push(point[at]);
      if (at === 1) for (const pair of series.band) for (const value of pair) if (value !== null) values.push(value);
    });
    if (!values.length) return [0, 1];
    let low = values.reduce((a, b) => Math.min(a, b)), high = values.reduce((a, b) => Math.max(a, b));
    if (chart[axis].log) return [low / 1.1, high * 1.1];
    const room = at === 1 ? (high - low || Math.abs(high) || 1) * 0.05 : high === low ? 0.5 : 0;
    return [low - room, high + room];
  }

  function start(figure) {
    const chart = JSON.parse(figure.querySelector("script").textContent);
    const square = chart.equal;
    const margin = square ? { left: 6, right: 6, top: 6, bottom: 6 } : { left: 58, right: 14, top: 10, bottom: 44 };
    const inner = {};
    let width, height, slanted;
    const hidden = new Set(), id = `clip-${Math.random().toString(36).slice(2)}`;
    let window_ = null, cursor = null, drag = null;

    const svg = make("svg", { role: "img", tabindex: "0", "aria-label": `${chart.alt}. Arrow keys tell values, + and − zoom, 0 shows all.` });
    const told = document.createElement("output");
    told.className = "told";
    told.setAttribute("aria-live", "polite");
    const legend = document.createElement("div");
    legend.className = "legend";
    const place = figure.querySelector(".place");
    place.replaceChildren(svg, told, legend);

    function fit() {
      const room = place.clientWidth || 520;
      width = square ? Math.min(420, Math.max(190, room)) : Math.min(560, Math.max(300, room));
      inner.width = width - margin.left - margin.right;
      slanted = !square && collide(chart.x.ticks);
      if (!square) margin.bottom = slanted ? 76 : 44;
      height = square ? width : Math.round(Math.max(230, width * 0.62)) + margin.bottom - 44;
      inner.height = height - margin.top - margin.bottom;
      svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    }
    function collide(named) {
      const [low, high] = whole().x;
      return named.some(([value, label], at) => at > 0 && ((value - named[at - 1][0]) / (high - low)) * inner.width < (LETTER * (label.length + named[at - 1][1].length)) / 2 + 6);
    }
    const whole = () => ({ x: extent(chart, "x", 0, hidden), y: extent(chart, "y", 1, hidden) });
    const view = () => window_ || whole();
    const scale = (axis, [low, high]) => (chart[axis].log ? (value) => Math.log(value / low) / Math.log(high / low) : (value) => (value - low) / (high - low));
    const back = (axis, [low, high], share) => (chart[axis].log ? low * (high / low) ** share : low + share * (high - low));

    function draw() {
      const now = view(), sx = scale("x", now.x), sy = scale("y", now.y);
      const px = (value) => margin.left + sx(value) * inner.width, py = (value) => margin.top + (1 - sy(value)) * inner.height;
      svg.replaceChildren();
      const clip = make("clipPath", { id }, make("defs", {}, svg));
      make("rect", { x: margin.left, y: margin.top, width: inner.width, height: inner.height }, clip);
      if (!square) axes(now, px, py);
      else make("rect", { class: "frame", x: margin.left, y: margin.top, width: inner.width, height: inner.height, rx: 8, "stroke-opacity": 0.4 }, svg);
      const plot = make("g", { "clip-path": `url(#${id})` }, svg);
      chart.series.forEach((series, number) => {
        const group = make("g", { "data-series": series.name, display: hidden.has(number) ? "none" : "inline" }, plot);
        if (series.kind === "dots") {
          for (const [x, y] of series.points) make("circle", { cx: px(x).toFixed(1), cy: py(y).toFixed(1), r: series.points.length < 30 ? 3.6 : width < 240 ? 1.9 : 2.6, style: `fill:${colour(series)}`, "fill-opacity": 0.75 }, group);
        } else if (series.kind === "rings") {
          for (const [x, y] of series.points) make("circle", { cx: px(x).toFixed(1), cy: py(y).toFixed(1), r: 4.6, fill: "none", "stroke-width": 1.4, style: `stroke:${colour(series)}` }, group);
        } else if (series.kind === "arrows") {
          for (let at = 0; at + 1 < series.points.length; at += 2) {
            const [[a, b], [c, d]] = [series.points[at], series.points[at + 1]];
            make("line", { x1: px(a).toFixed(1), y1: py(b).toFixed(1), x2: px(c).toFixed(1), y2: py(d).toFixed(1), style: `stroke:${colour(series)}`, "stroke-opacity": 0.6 }, group);
          }
        } else {
          if (series.band.length) {
            const ahead = series.points.map(([x], at) => [px(x), py(series.band[at][1])]), behind = series.points.map(([x], at) => [px(x), py(series.band[at][0])]).reverse();
            make("path", { d: path([...ahead, ...behind]) + "Z", style: `fill:${colour(series)}`, "fill-opacity": 0.15 }, group);
          }
          const line = series.points.map(([x, y]) => (y === null ? null : [px(x), py(y)]));
          make("path", { d: path(line), fill: "none", "stroke-width": series.kind === "circle" ? 1.2 : 2, "stroke-linejoin": "round", style: `stroke:${colour(series)}`, "stroke-dasharray": series.kind === "circle" ? "" : dash(series) }, group);
          if (series.points.length < 30 && series.kind === "line") for (const [x, y] of series.points) if (y !== null) make("circle", { cx: px(x), cy: py(y), r: 3, style: `fill:${colour(series)}` }, group);
        }
      });
      for (const [number, series] of chart.series.entries())
        if (series.sign && series.points.length && !hidden.has(number)) {
          const middle = [0, 1].map((at) => series.points.reduce((sum, point) => sum + point[at], 0) / series.points.length);
          const [x, y, size] = [px(middle[0]), py(middle[1]), width < 240 ? 10 : 15];
          make("circle", { class: "ring", cx: x, cy: y, r: 0.75 * size, style: `stroke:${colour(series)}` }, plot);
          make("text", { class: "sign", "font-size": size, x, y: y + 0.36 * size, "text-anchor": "middle" }, plot, series.sign);
        }
      if (cursor) point(px, py);
      if (drag && drag.to) {
        const [x1, x2] = [drag.from[0], drag.to[0]].sort((a, b) => a - b), [y1, y2] = [drag.from[1], drag.to[1]].sort((a, b) => a - b);
        make("rect", { class: "zoom", x: x1, y: y1, width: x2 - x1, height: y2 - y1 }, svg);
      }
      reset.hidden = less.hidden = window_ === null;
      figure.dataset.zoomed = window_ ? "yes" : "no";
      figure.dataset.view = [...now.x, ...now.y].map((value) => Number(value.toPrecision(5))).join(" ");
    }

    function axes(now, px, py) {
      const marks = (axis, range) => (chart[axis].ticks.length && !window_ ? chart[axis].ticks : ticks(...range, chart[axis].log, Math.max(2, axis === "x" ? inner.width / 85 : inner.height / 50)));
      for (const [value, label] of marks("y", now.y)) {
        make("line", { class: "grid", x1: margin.left, x2: width - margin.right, y1: py(value), y2: py(value) }, svg);
        make("text", { x: margin.left - 7, y: py(value) + 4, "text-anchor": "end" }, svg, label);
      }
      for (const [value, label] of marks("x", now.x)) {
        make("line", { class: "frame", x1: px(value), x2: px(value), y1: height - margin.bottom, y2: height - margin.bottom + 4 }, svg);
        const below = height - margin.bottom + (slanted ? 14 : 18), turn = slanted && !window_ ? { "text-anchor": "end", transform: `rotate(-35 ${px(value)} ${below})` } : { "text-anchor": px(value) > width - 30 ? "end" : "middle" };
        make("text", { class: "tick", x: px(value), y: below, ...turn }, svg, label);
      }
      make("line", { class: "frame", x1: margin.left, x2: width - margin.right, y1: height - margin.bottom, y2: height - margin.bottom }, svg);
      make("text", { x: margin.left + inner.width / 2, y: height - 6, "text-anchor": "middle" }, svg, chart.x.label);
      make("text", { transform: `translate(13 ${margin.top + inner.height / 2}) rotate(-90)`, "text-anchor": "middle" }, svg, chart.y.label);
    }

    const path = (points) => {
      let open = false, text = "";
      for (const each of points) {
        if (each) text += `${open ? "L" : "M"}${each[0].toFixed(1)} ${each[1].toFixed(1)}`;
        open = each !== null;
      }
      return text;
    };

    function point(px, py) {
      const lines = chart.series.map((series, number) => [series, number]).filter(([series, number]) => !hidden.has(number) && ["line", "dots", "rings"].includes(series.kind));
      if (square) {
        let best = null;
        for (const [series] of lines) for (const [x, y] of series.points) {
          const far = (px(x) - cursor[0]) ** 2 + (py(y) - cursor[1]) ** 2;
          if (!best || far < best.far) best = { far, series, x, y };
        }
        if (!best) return;
        make("circle", { class: "frame", cx: px(best.x), cy: py(best.y), r: 6, "stroke-width": 2 }, svg);
        const angle = (Math.atan2(best.y, best.x) * 180) / Math.PI;
        told.textContent = `${best.series.name}: norm ${shown(Math.hypot(best.x, best.y))}, angle ${shown(Math.round(angle * 10) / 10)}°`;
        return;
      }
      const now = view(), at = back("x", now.x, (cursor[0] - margin.left) / inner.width);
      const all = lines.flatMap(([series]) => series.points.map(([x]) => x));
      if (!all.length) return;
      const near = all.reduce((a, b) => (Math.abs(b - at) < Math.abs(a - at) ? b : a));
      make("line", { class: "cursor", x1: px(near), x2: px(near), y1: margin.top, y2: height - margin.bottom }, svg);
      const values = [];
      for (const [series] of lines) {
        const own = series.points.filter(([x, y]) => x === near && y !== null);
        for (const [, y] of own) make("circle", { cx: px(near), cy: py(y), r: 4, style: `fill:${colour(series)}` }, svg);
        if (own.length) values.push(`${series.name} ${own.map(([, y]) => shown(y)).join(", ")}`);
      }
      const tick = chart.x.ticks.find(([value]) => value === near);
      told.textContent = `${chart.x.label} ${tick ? tick[1] : shown(near)}: ${values.join(" · ")}`;
    }

    const control = (text, title, act) => {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "reset";
      button.textContent = text;
      button.setAttribute("aria-label", `${title}: ${chart.title}`);
      button.addEventListener("click", () => { act(); draw(); });
      return button;
    };
    const more = control("+", "look closer", closer), less = control("−", "look wider", wider), reset = control("show all", "show all", () => { window_ = null; svg.focus(); });
    chart.series.forEach((series, number) => {
      if (series.kind === "arrows" || series.kind === "circle") return;
      const button = document.createElement("button");
      button.type = "button";
      button.setAttribute("aria-pressed", "true");
      const key = make("svg", { viewBox: "0 0 26 10", "aria-hidden": "true" });
      if (series.kind === "dots") make("circle", { cx: 13, cy: 5, r: 4, style: `fill:${colour(series)}` }, key);
      else if (series.kind === "rings") make("circle", { cx: 13, cy: 5, r: 3.6, fill: "none", "stroke-width": 1.5, style: `stroke:${colour(series)}` }, key);
      else make("line", { x1: 0, x2: 26, y1: 5, y2: 5, "stroke-width": 2.4, style: `stroke:${colour(series)}`, "stroke-dasharray": dash(series) }, key);
      button.append(key, document.createTextNode(series.name));
      button.addEventListener("click", () => {
        if (hidden.has(number)) hidden.delete(number); else hidden.add(number);
        button.setAttribute("aria-pressed", String(!hidden.has(number)));
        draw();
      });
      legend.append(button);
    });
    legend.append(more, less, reset);

    const where = (event) => {
      const box = svg.getBoundingClientRect();
      const clamp = (value, low, high) => Math.min(high, Math.max(low, value));
      return [clamp(((event.clientX - box.left) / box.width) * width, margin.left, width - margin.right), clamp(((event.clientY - box.top) / box.height) * height, margin.top, height - margin.bottom)];
    };
    function zoom([x1, y1], [x2, y2]) {
      const now = view(), share = (value) => (value - margin.left) / inner.width, rise = (value) => 1 - (value - margin.top) / inner.height;
      let xs = [x1, x2].sort((a, b) => a - b), ys = [y2, y1].sort((a, b) => b - a);
      if (square) {
        const side = Math.max(xs[1] - xs[0], ys[0] - ys[1]);
        xs = [xs[0], xs[0] + side];
        ys = [ys[1] + side, ys[1]];
      }
      window_ = { x: xs.map((value) => back("x", now.x, share(value))), y: ys.map((value) => back("y", now.y, rise(value))) };
    }
    function closer() {
      const at = cursor || [margin.left + inner.width / 2, margin.top + inner.height / 2];
      const x = Math.min(Math.max(margin.left, at[0] - inner.width / 4), width - margin.right - inner.width / 2);
      const y = Math.min(Math.max(margin.top, at[1] - inner.height / 4), height - margin.bottom - inner.height / 2);
      zoom([x, y], [x + inner.width / 2, y + inner.height / 2]);
    }
    function wider() {
      const now = view(), all = whole(), twice = (axis) => [back(axis, now[axis], -0.5), back(axis, now[axis], 1.5)];
      window_ = { x: twice("x"), y: twice("y") };
      const span = (axis, [low, high]) => (chart[axis].log ? Math.log(high / low) : high - low);
      if (["x", "y"].every((axis) => span(axis, window_[axis]) > 0.99 * span(axis, all[axis]))) window_ = null;
    }
    svg.addEventListener("pointerdown", (event) => {
      if (event.pointerType === "mouse" && event.button === 0) { drag = { from: where(event), to: null }; try { svg.setPointerCapture(event.pointerId); } catch { /* a pointer that is gone */ } }
      else { cursor = where(event); draw(); }
    });
    svg.addEventListener("pointermove", (event) => {
      cursor = where(event);
      if (drag) drag.to = cursor;
      draw();
    });
    svg.addEventListener("pointerup", () => {
      if (drag && drag.to && Math.abs(drag.to[0] - drag.from[0]) > 8 && Math.abs(drag.to[1] - drag.from[1]) > 8) zoom(drag.from, drag.to);
      drag = null;
      draw();
    });
    svg.addEventListener("pointerleave", (event) => { if (!drag && event.pointerType !== "touch") { cursor = null; told.textContent = ""; draw(); } });
    svg.addEventListener("dblclick", () => { window_ = null; draw(); });
    svg.addEventListener("keydown", (event) => {
      const middle = [margin.left + inner.width / 2, margin.top + inner.height / 2];
      const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
      if (steps[event.key]) {
        const size = Math.max(inner.width / 100, 3), from = cursor || middle;
        cursor = [Math.min(width - margin.right, Math.max(margin.left, from[0] + steps[event.key][0] * size)), Math.min(height - margin.bottom, Math.max(margin.top, from[1] + steps[event.key][1] * size))];
      } else if (event.key === "+" || event.key === "=") closer();
      else if (event.key === "-") wider();
      else if (event.key === "0" || event.key === "Escape") window_ = null;
      else return;
      event.preventDefault();
      draw();
    });
    fit();
    draw();
    addEventListener("resize", () => { fit(); cursor = null; draw(); });
  }
  function begin(figure) { // each on its own: one that fails does not stop the others
    try {
      start(figure);
    } catch (error) {
      const told = document.createElement("p");
      told.className = "missing";
      told.textContent = `This chart cannot be drawn: ${error.message}`;
      figure.querySelector(".place").replaceChildren(told);
    }
  }
  document.querySelectorAll("figure.chart").forEach(begin);
  addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((each) => { each.open = true; }));
})();
