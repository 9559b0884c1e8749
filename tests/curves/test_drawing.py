"""Curves as drawings for files."""

from __future__ import annotations

from gputui.charts.export import csv_text, export
from gputui.curves.drawing import drawing, hardware_drawing
from gputui.curves.model import ChartData, ChartRequest, HardwareCurve

from .conftest import BEGAN_AT, Story


def asked(story: Story, request: ChartRequest) -> ChartData:
    story.attempt(1, 0)
    story.steps(0, 300, 0.0, lr=0.1)
    story.write({"step": 100, "time": BEGAN_AT + 100, "event": "checkpoint"})
    story.attempt(2, 400, first_step=200)
    story.steps(200, 400, 400.0, lr=0.1)
    return story.ask(request)


def test_a_curve_stands_before_its_shadows(story: Story) -> None:
    data = asked(story, ChartRequest(("loss", "lr"), smoothing=0.9))
    made = drawing(data, "run-1")
    shown = [(curve.label, curve.style, curve.is_shadow) for curve in made.curves]
    assert shown == [
        ("loss (redone)", "series.0", True), ("loss (measured)", "series.0", True), ("loss", "series.0", False),
        ("lr (redone)", "series.1", True), ("lr", "series.1", False),
    ]  # fmt: skip
    assert [(marker.x, marker.label, marker.is_line) for marker in made.markers] == [
        (100.0, "ckpt", False), (200.0, "↻1", True),
    ]  # fmt: skip
    assert "lr (redone),200.0" in csv_text(made.curves)
    for kind in ("csv", "svg"):
        assert export(kind, made)  # type: ignore[arg-type]


def test_one_of_them_in_a_window(story: Story) -> None:
    data = asked(story, ChartRequest(("loss", "lr"), axis="time", window=(10.0, 60.0)))
    made = drawing(data, "run-1", ["lr"], is_log=True)
    assert [curve.label for curve in made.curves] == ["lr"]
    assert (made.x_axis.start, made.x_axis.end, made.x_axis.kind, made.y_axis.kind) == (10.0, 60.0, "time", "log")


def test_hardware(story: Story) -> None:
    data = asked(story, ChartRequest(("loss",)))
    bins = data.curves["loss"].bins
    curves = [HardwareCurve("power", "GPU-a", bins, 3.0), HardwareCurve("power", "GPU-b", bins, 4.0)]
    made = hardware_drawing(data, "run-1 power", curves, ["GPU 0", "GPU 1"])
    assert [(curve.label, curve.style, curve.value) for curve in made.curves] == [
        ("GPU 0", "series.0", 3.0), ("GPU 1", "series.1", 4.0),
    ]  # fmt: skip
