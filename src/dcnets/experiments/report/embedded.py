"""The figures of the page: charts as data that its script draws, images as PNG, and words where something is missing."""

from __future__ import annotations

import base64
import io
import json
from html import escape

from dcnets.experiments.report.charts import Chart, Image, Picture, plain

HOW = """<section class="how"><h2>How the figures are used</h2><p>Point at a chart, tap it, or move over it with the arrow
keys, for its values. Click a name to hide what it stands for. Drag a frame, or press + (also below the chart), to look
closer; double-click, or press 0 or show all, to go back.</p></section>
"""


def figure(of: Picture) -> str:
    """A figure with its charts, or in its place what is missing."""
    small = " small" if (of.charts and of.charts[0].equal and len(of.charts) > 2) or of.images else ""
    inner = "".join(map(chart, of.charts)) + "".join(map(image, of.images))
    plots = f'<div class="plots{small}">{inner}</div>' if inner else ""
    missing = "".join(f'<p class="missing">{escape(text)}</p>' for text in of.missing if text not in of.told)
    return f'<section id="figure-{of.key}"><h2>{escape(of.title)}</h2><p>{escape(of.told)}</p>{plots}{missing}</section>\n'


def chart(of: Chart) -> str:
    """A chart's data; the script draws it."""
    data = json.dumps(plain(of), ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    note = f"<figcaption>{escape(of.note)}</figcaption>" if of.note else ""
    without = f'<p class="missing">{escape(of.alt)}. The drawing needs JavaScript.</p>'
    return (
        f'<figure class="chart"><h3>{escape(of.title)}</h3><div class="place">{without}</div>'
        f'<script type="application/json">{data}</script>{note}</figure>\n'
    )


def image(of: Image) -> str:
    """Pixels as an image inside the page."""
    from PIL import Image as Pillow

    made = Pillow.new("RGBA", (len(of.pixels[0]), len(of.pixels)))
    made.putdata([pixel for row in of.pixels for pixel in row])
    buffer = io.BytesIO()
    made.save(buffer, "PNG", optimize=True)
    data = base64.b64encode(buffer.getvalue()).decode()
    return (
        f'<figure><img class="mosaic" alt="{escape(of.alt)}" src="data:image/png;base64,{data}">'
        f"<figcaption><b>{escape(of.title)}</b> {escape(of.note)}</figcaption></figure>\n"
    )
