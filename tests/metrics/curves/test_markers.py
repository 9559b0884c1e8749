"""Markers of a run on each of its axes."""

from __future__ import annotations

import pytest

from gputui.metrics.curves.model import ChartRequest

from .conftest import BEGAN_AT, RUN, CurvesHome


@pytest.fixture
def eventful(home: CurvesHome) -> CurvesHome:
    home.begin_at(1, 0)
    home.write({"step": 0, "time": BEGAN_AT, "event": "start"})
    home.steps_at(0, 100, 10.0, epoch=0)
    home.write({"step": 80, "time": BEGAN_AT + 95, "rank": 0, "event": "checkpoint", "path": "c/step_80.pt"})
    home.write({"step": 90, "time": BEGAN_AT + 96, "rank": 1, "event": "sample_skipped"})
    home.incident(RUN, 1, "cuda_oom", "out of \x1b[31mmemory", step=99, seconds_ago=-110)
    home.connection.execute("UPDATE attempts SET last_step = 99, ended_at = ?", (BEGAN_AT + 112,))
    home.begin_at(2, 120, first_step=81)
    home.connection.execute("UPDATE attempts SET resumed_step = 80 WHERE number = 2")
    home.steps_at(81, 200, 130.0, epoch=1)
    home.alert("gpu_hot", "It is hot.", subject="GPU 0", subject_id="GPU-a", run_id=RUN, seconds_ago=-140)
    return home


def test_places(eventful: CurvesHome) -> None:
    for axis, expected in [
        ("step", [("start", 0), ("checkpoint", 80), ("restart", 80), ("alert", 91), ("incident", 99)]),
        ("time", [("start", 0), ("checkpoint", 95), ("incident", 110), ("restart", 120), ("alert", 140)]),
        ("trained", [("start", 0), ("checkpoint", 95), ("incident", 110), ("restart", 115), ("alert", 135)]),
    ]:
        markers = eventful.ask(ChartRequest(axis=axis)).markers
        assert [(marker.kind, marker.x) for marker in markers] == [
            (kind, pytest.approx(x, abs=0.6)) for kind, x in expected
        ], (axis, expected)


def test_words(eventful: CurvesHome) -> None:
    texts = {marker.kind: (marker.word, marker.text, marker.attempt) for marker in eventful.ask(ChartRequest()).markers}
    assert texts["restart"] == ("↻1", "attempt 2 from step 80", 2)
    assert texts["checkpoint"] == ("ckpt", "checkpoint step_80.pt", 1)
    assert texts["alert"] == ("gpu hot", "It is hot.", 2)
    kind, text, _ = texts["incident"]
    assert kind == "cuda oom"
    assert "\x1b" not in text
