"""Texts and drawings of a past moment."""

from __future__ import annotations

from gputui.core.text import cell_width
from gputui.metrics.draw.parts import Line
from gputui.store.timeline import Span, Tick, Timeline
from gputui.ui.tui.layout.moments import past_words, right_end, time_line
from gputui.ui.views.snapshot import Moment, Past
from tests.homes import NOW
from tests.texts import mentions

HOUR = 3600.0


def line_text(line: Line) -> str:
    return "".join(text for text, _ in line)


def past_of(
    *ticks: Tick, recorded: tuple[tuple[float, float], ...] = ((NOW - HOUR, NOW),), gap: Span | None = None
) -> Past:
    return Past(Moment(NOW), NOW, Timeline(NOW - HOUR, NOW, NOW - HOUR, recorded, ticks), gap)


def test_the_moment_in_words() -> None:
    phrases = {
        0.4: "03:12:43 · just now",
        30: "03:12:14 · 30 s ago",
        611: "03:02:33 · 10 min ago",
        2 * HOUR + 90: "01:11:14 · 2 h 2 min ago",
        12 * HOUR: "Fri 20 Nov 2026 15:12:44 · 12 h ago",
        49 * HOUR: "Thu 19 Nov 2026 02:12:44 · 2 d 1 h ago",
    }
    assert {ago: past_words(NOW - ago, NOW) for ago in phrases} == phrases


def test_the_end_of_a_head_line() -> None:
    assert line_text(right_end(NOW, None)) == "03:12:44 "
    assert mentions(line_text(right_end(NOW - 30, past_of(), {"live": "M"})), "◀ 03:12:14 · 30 s ago · M live ")
    assert line_text(right_end(NOW - 30, past_of())) == "◀ 03:12:14 · 30 s ago "


def test_the_time_line_fills_the_width() -> None:
    for width in (40, 80, 200):
        line = time_line(past_of(Tick(NOW - 600, "incident", "error", "x")), NOW - 1800, width)
        text = line_text(line)
        assert cell_width(text) == width
        assert text.startswith(" 02:12:44 "), width
        assert text.endswith(" now "), width
        assert text.index("●") < text.index("✗"), width
        assert [part for part, style in line if style == "selected"] == ["●"], width
    assert line_text(time_line(past_of(), NOW - 60, 20)).strip() == ""
    week = Past(Moment(NOW), NOW, Timeline(NOW - 160 * HOUR, NOW, NOW - 160 * HOUR, (), ()), gap=None)
    assert line_text(time_line(week, NOW - 60, 80)).startswith(" 14 Nov 11:12 ")
    on_a_tick = time_line(past_of(Tick(NOW - 600, "incident", "error", "x")), NOW - 600, 80)
    assert [part for part, style in on_a_tick if style == "selected"] == ["✗"]
