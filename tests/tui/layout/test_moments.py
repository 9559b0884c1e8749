"""What is said and drawn while looking back."""

from __future__ import annotations

import pytest

from gputui.charts.cells import cell_width
from gputui.charts.chart import Line
from gputui.store.timeline import Span, Tick, Timeline
from gputui.tui.data.snapshot import Moment, Past, Snapshot
from gputui.tui.layout.moments import past_notices, past_words, right_end, time_line
from tests.texts import mentions
from tests.tui.filling import NOW

HOUR = 3600.0


def text_of(line: Line) -> str:
    return "".join(text for text, _ in line)


def past(
    *ticks: Tick, recorded: tuple[tuple[float, float], ...] = ((NOW - HOUR, NOW),), gap: Span | None = None
) -> Past:
    return Past(Moment(NOW), NOW, Timeline(NOW - HOUR, NOW, NOW - HOUR, recorded, ticks), gap)


@pytest.mark.parametrize(
    ("ago", "words"),
    [
        (0.4, "03:12:43 · just now"),
        (30, "03:12:14 · 30 s ago"),
        (611, "03:02:33 · 10 min ago"),
        (2 * HOUR + 90, "01:11:14 · 2 h 2 min ago"),
        (12 * HOUR, "Fri 20 Nov 2026 15:12:44 · 12 h ago"),
        (49 * HOUR, "Thu 19 Nov 2026 02:12:44 · 2 d 1 h ago"),
    ],
)
def test_the_moment_in_words(ago: float, words: str) -> None:
    assert past_words(NOW - ago, NOW) == words


def test_the_end_of_a_head_line() -> None:
    assert text_of(right_end(NOW, None)) == "03:12:44 "
    assert text_of(right_end(NOW - 30, past())) == "◀ 03:12:14 · 30 s ago · L live "
    assert text_of(right_end(NOW - 30, past(), has_keys=False)) == "◀ 03:12:14 · 30 s ago "


@pytest.mark.parametrize("width", [40, 80, 200])
def test_the_time_line_fills_the_width(width: int) -> None:
    line = time_line(past(Tick(NOW - 600, "incident", "error", "x")), NOW - 1800, width)
    text = text_of(line)
    assert cell_width(text) == width
    assert text.startswith(" 02:12 ") and text.endswith(" now ")
    assert text.index("●") < text.index("✗")
    [here] = [part for part, style in line if style == "selected"]
    assert here == "●"


def test_too_narrow_for_a_time_line() -> None:
    assert text_of(time_line(past(), NOW - 60, 20)).strip() == ""


def test_gaps_are_blank_and_what_is_graver_covers_the_rest() -> None:
    at = NOW - 900
    kinds = ("incident", "event", "checkpoint", "alert")
    ticks = tuple(Tick(at, kind, "info", kind) for kind in kinds)  # type: ignore[arg-type]
    halves = ((NOW - HOUR, NOW - HOUR * 0.7), (NOW - HOUR * 0.4, NOW))
    text = text_of(time_line(past(*ticks, recorded=halves), NOW - 60, 80))
    cells = text[len(" 02:12 ") : -len(" now ")]
    assert cells.startswith("─") and "─     " in cells and "✗" in cells
    assert not {"▲", "◆", "┴"} & set(cells)
    without = text_of(time_line(past(*ticks[1:], recorded=halves), NOW - 60, 80))
    assert "▲" in without and "◆" not in without


def test_on_a_tick_the_tick_stays_seen() -> None:
    line = time_line(past(Tick(NOW - 600, "incident", "error", "x")), NOW - 600, 80)
    assert [part for part, style in line if style == "selected"] == ["✗"]


@pytest.mark.parametrize(
    ("gap", "words"),
    [
        (Span(NOW - 60, NOW - 30), "Nothing was recorded from 03:11:44 to 03:12:14: no recorder ran, or the machine"),
        (Span(NOW - 86_400, NOW - 30), "Nothing was recorded from 20 Nov 03:12:44 to 03:12:14: no recorder ran"),
        (Span(NOW - 60, None), "Nothing was recorded since 03:11:44: no recorder ran, or the machine slept."),
        (Span(None, NOW - 30), "Nothing was recorded before Sat 21 Nov 2026 03:12:14;"),
        (Span(None, None), "Nothing was recorded yet;"),
    ],
)
def test_a_gap_in_words(gap: Span, words: str) -> None:
    [notice] = past_notices(Snapshot(at=NOW - 40, past=past(gap=gap)))
    assert notice.startswith(words)


def test_the_present_needs_no_words() -> None:
    [early] = past_notices(Snapshot(at=NOW + 60, past=past()))
    assert mentions(early, "begins")
    assert past_notices(Snapshot(at=NOW)) == () == past_notices(Snapshot(at=NOW, past=past()))
