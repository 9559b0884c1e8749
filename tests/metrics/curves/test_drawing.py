"""Curves as drawings for files."""

from __future__ import annotations

from gputui.metrics.curves.drawing import drawing
from gputui.metrics.curves.model import ChartData, ChartRequest
from gputui.metrics.draw.export import csv_text, export

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
