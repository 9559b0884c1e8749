"""The log of a run as lines: warnings and errors in colour, hits of a search marked."""

from __future__ import annotations

from gputui.core.text import clean
from gputui.core.units import count
from gputui.metrics.draw.parts import Line
from gputui.metrics.draw.raster import Span
from gputui.runs.log_lines import Level, StopReport, stop_report
from gputui.ui.tui.layout.columns import fit_line, without_left
from gputui.ui.tui.pages.run.head import heading
from gputui.ui.tui.pages.run.log_view import LogView
from gputui.ui.tui.widgets.line_edit import LineEdit

_STYLES = {Level.INFO: "text", Level.WARNING: "warn", Level.ERROR: "bad"}


def log_lines(
    view: LogView,
    edit: LineEdit | None,
    width: int,
    height: int,
    *,
    is_focused: bool = False,
    was_stopped: bool = False,
) -> list[Line]:
    """A heading or the search being typed, and the visible lines. If the attempt ``was_stopped``, the traceback by
    which its launcher reports that is not shown as an error."""
    if height < 1:
        return []
    tail = view.tail
    report = stop_report(tail.lines) if was_stopped else None
    if edit is None:
        lines = [heading(f"LOG {tail.label or ''}".rstrip(), width, _note(view, report), is_focused=is_focused)]
    else:
        note = f" {_hits(view)} "
        room = max(8, width - 9 - len(note))
        lines = [fit_line([(" search ", "title"), *edit.spans(room), (note, "dim")], width)]
    if tail.problem is not None or not tail.lines:
        text = tail.problem or "Nothing has been written yet."
        return [*lines, fit_line([("  " + clean(text), "dim")], width)][:height]
    numbers = view.line_numbers
    if not numbers:
        return [*lines, fit_line([("  No warning and no error so far; w shows all lines.", "dim")], width)][:height]
    harmless = range(0) if report is None else range(tail.first + report.first, tail.first + report.last + 1)
    lines += [_line(view, number, width, is_harmless=number in harmless) for number in numbers]
    return lines[:height]


def _note(view: LogView, report: StopReport | None) -> str:
    words = [] if report is None else [f"{report.exception}: how the launcher reports the stop"]
    if view.left:
        words.append(f"from column {count(view.left + 1)}")
    if view.search.text:
        words.append(f"/{clean(view.search.text)}: {_hits(view)}")
    if view.is_grave_only:
        words.append("warnings and errors only")
    if view.is_at_top and not view.tail.is_whole and not view.is_following:
        words.append("older lines: gputui logs")
    if view.tail.past_note:
        words.append(view.tail.past_note)
    words.append("following" if view.is_following else f"{count(view.lines_below)} lines below, f follows")
    return ", ".join(words)


def _hits(view: LogView) -> str:
    if view.search.problem is not None:
        return clean(view.search.problem)
    if not view.search.text:
        return ""
    if not view.hits:
        return "not found"
    place = view.hit_place
    return count(len(view.hits)) if place is None else f"{count(place)} of {count(len(view.hits))}"


def _line(view: LogView, number: int, width: int, *, is_harmless: bool = False) -> Line:
    text, level = view.line(number)
    style = "dim" if is_harmless else _STYLES[level]
    mark: Span = ("▸", "cursor") if number == view.current_hit else (" ", "text")
    if not view.left:
        return fit_line([mark, *_marked(text, view, style)], width)
    rest = without_left(_marked(text, view, style), view.left + 1)
    return fit_line([mark, ("…" if rest else "", "dim"), *rest], width)


def _marked(text: str, view: LogView, style: str) -> list[Span]:
    """The text with the hits of the search marked."""
    pattern = view.search.pattern
    if pattern is None:
        return [(text, style)]
    found: list[Span] = []
    at = 0
    for match in pattern.finditer(text):
        if match.end() > match.start():
            found += [(text[at : match.start()], style), (match.group(), "selected")]
            at = match.end()
    return [*found, (text[at:], style)]
