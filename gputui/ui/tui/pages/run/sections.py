"""The sections beside the charts, each cut to its height."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct

from gputui.metrics.draw.parts import Line
from gputui.store.hardware import GpuView
from gputui.ui.tui.data.snapshot import RunPage
from gputui.ui.tui.layout.columns import fit_line
from gputui.ui.tui.pages.run.checkpoints import checkpoint_lines, checkpoint_note
from gputui.ui.tui.pages.run.head import from_top, heading, most_offset
from gputui.ui.tui.pages.run.parameters import parameter_lines
from gputui.ui.tui.pages.run.ranks import ranks_lines
from gputui.ui.tui.pages.run.timeline import begins_entry, cost_lines, day_of, timeline_lines

CHECKPOINTS_BESIDE = 3
"""Rows of checkpoints shown beside other sections."""


class Sections(Struct, frozen=True):
    """What the sections show. ``offsets`` are the lines that each is scrolled by: the timeline from its end, the others
    from their beginning."""

    page: RunPage
    gpus: Sequence[GpuView]
    now: float
    focus: str
    offsets: Mapping[str, int] = msgspec.field(default_factory=dict)

    def most_offset(self, name: str, width: int, height: int) -> int:
        """How far a section can be scrolled."""
        if name == "params":
            lines = [*parameter_lines(self.page, self.now, width), *checkpoint_lines(self.page, self.now, width)]
            return most_offset(len(lines) + 2, height)
        return 0 if name == "ranks" else most_offset(len(self.story(width)) + 2, height)

    def story(self, width: int, *, with_evidence: bool = True) -> list[Line]:
        return timeline_lines(self.page, self.gpus, self.now, width, with_evidence=with_evidence)


def side_heights(sections: Sections, width: int, height: int) -> dict[str, int]:
    """Share ``height`` lines among the sections; the focused one comes first."""
    page = sections.page
    checkpoints = len(checkpoint_lines(page, sections.now, width))
    wanted = {
        "params": 3 + len(parameter_lines(page, sections.now, width)) + min(CHECKPOINTS_BESIDE, checkpoints),
        "ranks": 2 + max(1, len(page.progress.ranks)),
        "story": 1 + len(sections.story(width, with_evidence=False)) + len(cost_lines(page, width)),
    }
    least = {
        "params": min(wanted["params"], max(6, height * 2 // 5)),
        "ranks": min(wanted["ranks"], max(3, height // 5)),
    }
    if sections.focus in least:
        least[sections.focus] = min(wanted[sections.focus], height * 3 // 5)
    params = least["params"]
    ranks = min(least["ranks"], max(0, height - params - 3))
    found = {"params": params, "ranks": ranks, "story": max(0, height - params - ranks)}
    spare = found["story"] - wanted["story"]
    if spare > 0 and (missing := wanted["ranks"] - ranks) > 0:
        found["ranks"] += min(spare, missing)
        ranks, spare = found["ranks"], spare - min(spare, missing)
    if spare > 0:
        found["params"] += spare if (more := wanted["params"] - params) > spare else max(0, more)
        found["story"] = height - found["params"] - found["ranks"]
    return found


def section_lines(sections: Sections, name: str, width: int, height: int, *, is_titled: bool) -> list[Line]:
    """One section in ``height`` lines, with a title if it is one of several (``is_titled``)."""
    is_focused = is_titled and sections.focus == name
    offset = sections.offsets.get(name, 0)
    if name == "params":
        return _parameters(sections, width, height, offset, is_focused=is_focused, is_titled=is_titled)
    title = "RANKS" if name == "ranks" else "TIMELINE"
    lines = [heading(title, width, is_focused=is_focused)] if is_titled else []
    room = height - len(lines)
    if name == "ranks":
        lines += ranks_lines(sections.page.progress.ranks, width, room)
    else:
        lines += _story(sections, width, room, offset, with_evidence=not is_titled or is_focused)
    return lines[: max(0, height)]


def _parameters(
    sections: Sections, width: int, height: int, offset: int, *, is_focused: bool, is_titled: bool
) -> list[Line]:
    page = sections.page
    parameters = parameter_lines(page, sections.now, width)
    checkpoints = checkpoint_lines(page, sections.now, width)
    note = checkpoint_note(page.checkpoints, sections.now)
    if offset == 0 and is_titled:
        # Beside other sections, both parts keep their most important lines.
        below = 1 + min(len(checkpoints), CHECKPOINTS_BESIDE if len(parameters) + 3 > height else height)
        below = min(below, max(2, height - 1 - len(parameters)))
        above = max(0, height - below - 1)
        lines = [heading("PARAMETERS", width, is_focused=is_focused), *from_top(parameters, 0, width, above)]
        return [*lines, heading("CHECKPOINTS", width, note), *from_top(checkpoints, 0, width, below - 1)][:height]
    every = [*parameters, fit_line([], width), heading("CHECKPOINTS", width, note), *checkpoints]
    if is_titled:
        return [heading("PARAMETERS", width, is_focused=is_focused), *from_top(every, offset, width, height - 1)]
    return from_top(every, offset, width, height)


def _story(sections: Sections, width: int, height: int, offset: int, *, with_evidence: bool) -> list[Line]:
    """The end of the timeline, then the costs; left-out lines are counted."""
    cost = cost_lines(sections.page, width)[: max(0, height - 1)]
    lines = sections.story(width, with_evidence=with_evidence)
    room = max(0, height - len(cost))
    end = len(lines) - min(offset, most_offset(len(lines), room))
    shown = lines[max(0, end - room) : end]
    hidden = end - len(shown)
    if hidden > 0 and shown:
        # The lines begin with an entry, not inside one, unless there is only one.
        begin = next((place for place, line in enumerate(shown) if place and begins_entry(line)), 1)
        day = day_of(lines, hidden + begin)
        before = [(f"  … {hidden + begin} lines before", "dim"), (f" · {day}" if day else "", "label")]
        shown = [fit_line(before, width), *shown[begin:]]
    if end < len(lines) and shown:
        shown[-1] = fit_line([(f"  … {len(lines) - end + 1} lines below", "dim")], width)
    return [*shown, *cost]
