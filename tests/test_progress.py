"""Progress: right figures also after a resume, a bar on a terminal, a few lines in a log, and next to no cost."""

import io
import math
import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from rich.console import Console

from dcnets.experiments import bar
from dcnets.experiments.progress import Progress


class Clock:
    """A clock that a test moves on."""

    def __init__(self):
        self.now = 1000.0

    def perf_counter(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    moved = Clock()
    monkeypatch.setattr(bar, "time", SimpleNamespace(perf_counter=moved.perf_counter))
    return moved


def log():
    """A console that is no terminal."""
    return Console(file=io.StringIO(), force_terminal=False, width=80)


def terminal(width=80):
    return Console(file=io.StringIO(), force_terminal=True, width=width, record=True, legacy_windows=False, _environ={})


def lines(console):
    return console.file.getvalue().splitlines()


def pictured(shown):
    """The bars as they stand on the screen, line by line."""
    console = terminal(shown.console.width)
    console.print(shown.picture())
    return console.export_text().splitlines()


def run(shown, clock, first, last, per_second, **values):
    """So many steps at a steady speed."""
    for step in range(first, last + 1):
        shown.update(step, **values)
        if step < last:
            clock.now += 1 / per_second


@pytest.mark.parametrize("start", [0, 30_000])
def test_speed_and_time_left_count_from_the_first_step_shown(clock, start):
    with Progress("a", 42_500, images_per_step=128, console=terminal()) as shown:
        clock.now += 60  # compilation, say
        run(shown, clock, start, start + 2_000, per_second=500)
        assert shown.bars[0].steps_per_second() == pytest.approx(500)
        left = bar.clock((42_500 - start - 2_000) / 500)
        assert pictured(shown)[0].endswith(f"{left} left")
        assert "64,000 images/s" in pictured(shown)[1]


def test_the_speed_is_that_of_late(clock):
    with Progress("a", 10**6, images_per_step=1, console=terminal()) as shown:
        run(shown, clock, 0, 10_000, per_second=100)
        run(shown, clock, 10_001, 12_000, per_second=50)
        assert shown.bars[0].steps_per_second() == pytest.approx(50, rel=0.05)
        clock.now += 1
        shown.update(12_001)  # one slow step moves it a little only
        assert shown.bars[0].steps_per_second() == pytest.approx(50, rel=0.1)


def test_before_anything_is_measured(clock):
    with Progress("a", 100, images_per_step=2, console=terminal()) as shown:
        assert pictured(shown)[0].endswith("0 %  – left")
        assert pictured(shown)[1].strip() == "step 0/100"
        shown.update(40)
        assert pictured(shown)[0].endswith("40 %  – left")
        assert pictured(shown)[1].strip() == "step 40/100"


def test_the_bar(clock):
    console = terminal()
    with Progress("cifar100-cnn9", 42_500, images_per_step=128, console=console) as shown:
        shown.note("going on from [step-000001300.safetensors]")
        run(shown, clock, 0, 10_000, per_second=500)
        shown.update(10_000, loss=1.23456, accuracy=0.6789, rate=1e-4)
        top, below = pictured(shown)
        assert top.startswith("cifar100-cnn9 ━━━━━━━━")
        assert top.endswith(" 23 %  1:05 left")
        assert (
            below
            == "  step 10,000/42,500  loss 1.2346  accuracy 67.89 %  64,000 images/s  rate 0.0001"[:80].rsplit("  ", 1)[0]
        )
        shown.update(10_001, loss=math.nan)
        assert "loss nan  accuracy 67.89 %" in pictured(shown)[1]
        clock.now += 3.4
        shown.update(42_500)
    left = console.export_text()
    assert left.startswith("going on from [step-000001300.safetensors]\n")
    assert "100 %  in 0:23" in left.splitlines()[-2]
    assert left.splitlines()[-1].strip().startswith("step 42,500/42,500  loss nan")


@pytest.mark.parametrize("width", [120, 80, 60, 40, 25, 10])
def test_every_width_has_two_lines(clock, width):
    with Progress("cifar100-resnet32-tanh-cosine", 42_500, images_per_step=128, console=terminal(width)) as shown:
        run(shown, clock, 20_000, 21_000, 500, loss=12345.6, accuracy=1.0, rate=1e-3)
        picture = pictured(shown)
        assert len(picture) == 2
        assert max(map(len, picture)) <= width
        if width >= 60:
            assert picture[0].startswith("cifar100-resnet32-tanh-cosine ━")
            assert "step 21,000/42,500  loss 1.235e+04" in picture[1]


def test_all_numbers_where_there_is_room(clock):
    with Progress("a", 42_500, images_per_step=128, console=terminal(100)) as shown:
        run(shown, clock, 0, 1000, 500, loss=0.5, accuracy=0.25, rate=3e-5)
        assert pictured(shown)[1].split("  ")[1:] == [
            "step 1,000/42,500", "loss 0.5000", "accuracy 25.00 %", "64,000 images/s", "rate 3e-05",
        ]  # fmt: skip


def test_a_second_bar(clock):
    console = terminal()
    with Progress("training", 100, images_per_step=2, console=console) as shown:
        shown.update(50)
        seen = []
        for item in shown.track("abcd", "testing", 4):
            seen.append(item)
            clock.now += 0.5
            if item == "c":
                picture = pictured(shown)
        assert seen == list("abcd")
        assert [line.split()[0] for line in picture] == ["training", "step", "testing", "batch"]
        assert picture[2].endswith("50 %  0:01 left")
        assert picture[3].strip() == "batch 2/4  2/s"
        assert len(pictured(shown)) == 2
        for _ in shown.track("abcd", "testing", 4):
            break  # given up half way
        assert len(pictured(shown)) == 2
    assert "testing" not in console.export_text().splitlines()[-2]


def test_a_second_bar_goes_with_an_error(clock):
    with Progress("training", 100, console=terminal()) as shown:

        def broken():
            yield 1
            raise OSError("bad image")

        with pytest.raises(OSError, match="bad image"):
            list(shown.track(broken(), "testing", 4))
        assert len(shown.bars) == 1


def test_a_log_has_a_line_every_ten_seconds_and_one_at_the_end(clock):
    console = log()
    with Progress("cifar100-cnn9-segmented-cosine", 42_500, images_per_step=128, console=console) as shown:
        run(shown, clock, 0, 12_800, per_second=512, loss=2.0)  # a power of 2: the clock is exact
        shown.note("[saved]")
    assert lines(console) == [
        "cifar100-cnn9-segmented-cosine: step 5,120/42,500, loss 2.0000, 65,536 images/s, 1:13 left",
        "cifar100-cnn9-segmented-cosine: step 10,240/42,500, loss 2.0000, 65,536 images/s, 1:03 left",
        "[saved]",
        "cifar100-cnn9-segmented-cosine: step 12,800/42,500, loss 2.0000, 65,536 images/s, 0:58 left",
    ]


def test_a_finished_run_ends_in_one_line_with_its_time(clock):
    console = log()
    with Progress("a", 256, images_per_step=10, console=console) as shown:
        run(shown, clock, 0, 256, per_second=64, loss=1.0, accuracy=0.5, rate=0.1)
        assert list(shown.track([1, 2], "testing", 2)) == [1, 2]
    assert lines(console) == ["a: step 256/256, loss 1.0000, accuracy 50.00 %, 640 images/s, rate 0.1, in 0:04"]


def test_the_last_line_is_not_told_twice(clock):
    console = log()
    with Progress("a", 100, console=console) as shown:
        clock.now += 10
        shown.update(100)
        clock.now += 3
    assert lines(console) == ["a: step 100/100, in 0:10"]


def test_quiet_prints_notes_alone(clock):
    for console in (log(), terminal()):
        with Progress("a", 100, images_per_step=10, quiet=True, console=console) as shown:
            run(shown, clock, 0, 100, per_second=1, loss=1.0, accuracy=0.5)
            shown.note("saved")
            assert list(shown.track([1, 2], "testing", 2)) == [1, 2]
        assert console.file.getvalue() == "saved\n"


def test_a_dumb_terminal_gets_lines(clock):
    console = Console(file=io.StringIO(), force_terminal=True, _environ={"TERM": "dumb"})
    with Progress("a", 100, console=console) as shown:
        shown.update(1, accuracy=0.5)
    assert lines(console) == ["a: step 1/100, accuracy 50.00 %, – left"]


@pytest.mark.parametrize("console", [log, terminal])
def test_an_error_goes_through_and_the_terminal_is_given_back(clock, console):
    console = console()

    def interrupted():
        with Progress("a", 100, console=console) as shown:
            shown.update(7)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert "step 7/100" in console.file.getvalue()
    if console.is_terminal:
        assert console.file.getvalue().rindex("\x1b[?25h") > console.file.getvalue().rindex("\x1b[?25l")  # the cursor


def test_no_steps_at_all(clock):
    with Progress("a", 0, console=terminal()) as shown:
        assert pictured(shown)[0].endswith("in 0:00")


@pytest.mark.parametrize(
    ("seconds", "told"), [(0, "0:00"), (59.4, "0:59"), (59.6, "1:00"), (3599.6, "1:00:00"), (90_061, "25:01:01")]
)
def test_times(seconds, told):
    assert bar.clock(seconds) == told


@pytest.mark.parametrize(
    ("value", "told"), [(68_123.4, "68,123"), (100.4, "100"), (99.96, "100"), (12.34, "12.3"), (0.01234, "0.0123")]
)
def test_speeds(value, told):
    assert bar.three_digits(value) == told


REAL = """
import sys, time
from dcnets.experiments.progress import Progress
with Progress("training", 3000, images_per_step=128) as progress:
    for step in range(3001):
        progress.update(step, loss=1.5, rate=0.1)
        time.sleep(0.0002)
        if step == 1000:
            print("printed by another", file=sys.stderr)
    progress.update(3000, accuracy=0.5)
"""


def test_stderr_that_is_a_terminal_and_stderr_that_is_none():
    command = [sys.executable, "-W", "error", "-c", REAL]
    ours, theirs = os.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "90", "LINES": "30"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, env=environment)
    os.close(theirs)
    seen = b""
    while True:
        try:
            seen += os.read(ours, 100_000)
        except OSError:  # the other end is closed
            break
    os.close(ours)
    assert process.communicate()[0] == b""
    assert process.returncode == 0
    seen = seen.decode()
    assert seen.count("training") >= 4  # drawn again and again
    assert "printed by another\r\n" in seen
    assert "accuracy 50.00 %" in seen
    plain = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": "90"})
    assert plain.stdout == ""
    first, last = plain.stderr.splitlines()
    assert first == "printed by another"
    assert last.startswith("training: step 3,000/3,000, loss 1.5000, accuracy 50.00 %, ")


@pytest.mark.parametrize("console", [log, terminal])
def test_an_update_costs_less_than_20_microseconds(console):
    with Progress("a", 10**6, images_per_step=128, console=console()) as shown:
        begin = time.perf_counter()
        for step in range(50_000):
            shown.update(step, loss=1.0)
        assert time.perf_counter() - begin < 50_000 * 20e-6
