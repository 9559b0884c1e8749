"""The page of one GPU: its values, charts, processes and driver events."""

from __future__ import annotations

from functools import partialmethod
from typing import ClassVar

from msgspec.structs import replace
from textual.app import ComposeResult

from gputui.core.text import clean
from gputui.core.units import duration
from gputui.metrics.draw.parts import Line
from gputui.metrics.draw.raster import Span
from gputui.store.hardware import GpuView
from gputui.store.runs import Run
from gputui.ui.tui.actions import Context, Scope
from gputui.ui.tui.data.snapshot import GPU_SPANS_SECONDS, GpuPage, Interest
from gputui.ui.tui.layout.columns import beside, between, box, filled, fit_line, is_boxed, rule
from gputui.ui.tui.layout.gpu_words import gpu_row
from gputui.ui.tui.layout.moments import right_end
from gputui.ui.tui.pages.gpu.view import chart_lines, fact_lines, process_lines, report_lines
from gputui.ui.tui.widgets.page import ActionScreen, Copyable
from gputui.ui.tui.widgets.pane import Pane

FACTS_WIDTH = 64
"""Most cells of a line of facts: longer ones are hard to read."""

STATES = {"ok": ("● responding", "good"), "stale": ("○ silent", "dim"), "lost": ("✗ lost", "bad")}


class GpuScreen(ActionScreen):
    """Everything about one GPU in lines that scroll; the charts beside them or between them."""

    SCOPE: ClassVar[Scope] = "gpu"

    def __init__(self, uuid: str) -> None:
        super().__init__()
        self.uuid = uuid
        self.span_seconds = GPU_SPANS_SECONDS[0]
        self.top = 0
        self.head, self.body = Pane(id="head"), Pane(id="body")

    def compose(self) -> ComposeResult:
        self.paint()
        yield from (self.head, self.notice, self.body, self.message, self.footer)

    def interest(self) -> Interest:
        return Interest(gpu_uuid=self.uuid, gpu_span_seconds=self.span_seconds)

    # --- drawing

    def draw(self, width: int, height: int) -> None:
        gpu, snapshot = self.gpu_in_question, self.snapshot
        room = height - 1 - self.draw_frame(width)
        words: list[Span] = [(" GPU", "title")]
        lines = [fit_line([("  This GPU has not been seen for a day; esc goes back.", "dim")], width)]
        if gpu is not None:
            state = STATES.get(gpu.state, ("✗ unreadable", "bad"))
            words = [(f" GPU {gpu.index}", "title"), (f" · {clean(gpu.name)} · ", "text"), state]
            lines = (self._wide if is_boxed(width, height) else self._narrow)(gpu, width, room)
        end = right_end(snapshot.at, snapshot.past)
        self.head.show([self.with_trail(lambda cells: between(words, end, cells), width)])
        self.body.show(lines, height=room)

    def _narrow(self, gpu: GpuView, width: int, room: int) -> list[Line]:
        row, now, page = gpu_row(self.snapshot, gpu), self.snapshot.at, self._page
        charts = [] if page is None else [fit_line([], width), *chart_lines(gpu, page, width, 14, across=2)]
        facts = fact_lines(row, page, now, width)
        return self._scrolled(
            [*facts, *charts, *process_lines(gpu, width), *report_lines(page, now, width)], width, room
        )

    def _wide(self, gpu: GpuView, width: int, room: int) -> list[Line]:
        """The facts in frames at the left, the charts at the right."""
        row, now, page = gpu_row(self.snapshot, gpu), self.snapshot.at, self._page
        left_width = min(FACTS_WIDTH, width // 2)
        inner, right_width = left_width - 2, width - left_width - 2
        facts = [rule("DEVICE", inner), *fact_lines(row, page, now, inner)]
        processes, reports = process_lines(gpu, inner), report_lines(page, now, inner)
        # The last panel has the rows that are left.
        reports = filled(reports, inner, max(len(reports), room - len(facts) - len(processes) - 3))
        left = [line for panel in (facts, processes, reports) for line in box(panel, left_width)]
        across = 2 if right_width >= 120 or room < 24 else 1
        charts = [] if page is None else chart_lines(gpu, page, right_width, room - 2, across=across)
        title = rule("HISTORY", right_width, "" if page is None else f"last {duration(page.span_seconds)}")
        right = box([title, *filled(charts, right_width, room - 2)], width - left_width)
        return beside(self._scrolled(left, left_width, room), right)

    def _scrolled(self, lines: list[Line], width: int, room: int) -> list[Line]:
        self.top = min(max(0, self.top), max(0, len(lines) - room))
        below = len(lines) - self.top - room
        shown = lines[self.top : self.top + room]
        if below > 0:
            shown[-1] = fit_line([(f"  … {below + 1} more lines below", "dim")], width)
        return shown

    # --- what it is about

    @property
    def _page(self) -> GpuPage | None:
        page = self.snapshot.gpu_page
        return page if page is not None and page.uuid == self.uuid else None

    @property
    def gpu_in_question(self) -> GpuView | None:
        return next((gpu for gpu in self.snapshot.gpus if gpu.uuid == self.uuid), None)

    @property
    def run_in_question(self) -> Run | None:
        return None if (gpu := self.gpu_in_question) is None else self.snapshot.run_of(gpu.run_id)

    def context(self) -> Context:
        held = self.snapshot.machine.quarantined
        return replace(super().context(), gpu=self.gpu_in_question, quarantined=frozenset(held) & {self.uuid})

    def copyable(self) -> list[Copyable]:
        return [Copyable("the GPU's UUID", self.uuid), *super().copyable()]

    # --- actions

    def do_open_run(self) -> None:
        if (run := self.run_in_question) is not None:
            self.shell.open_run(run.run_id)

    def _turn(self, by: int) -> None:
        uuids = [gpu.uuid for gpu in self.snapshot.gpus]
        if uuids:
            place = uuids.index(self.uuid) if self.uuid in uuids else 0
            self.turn_to(uuids[(place + by) % len(uuids)])

    do_gpu_next, do_gpu_previous = partialmethod(_turn, 1), partialmethod(_turn, -1)

    def turn_to(self, uuid: str) -> None:
        """Show another GPU."""
        if uuid != self.uuid:
            self.uuid, self.top = uuid, 0
            self.changed()

    def _step_span(self, by: int) -> None:
        place = GPU_SPANS_SECONDS.index(self.span_seconds) + by
        self.span_seconds = GPU_SPANS_SECONDS[min(max(place, 0), len(GPU_SPANS_SECONDS) - 1)]
        self.changed()

    do_span_longer, do_span_shorter = partialmethod(_step_span, 1), partialmethod(_step_span, -1)

    def _scroll(self, lines: int = 0, pages: int = 0) -> None:
        self.top += lines + pages * max(1, self.body.size.height - 2)
        self.changed()

    do_up, do_down = partialmethod(_scroll, -1), partialmethod(_scroll, 1)
    do_page_up, do_page_down = partialmethod(_scroll, pages=-1), partialmethod(_scroll, pages=1)
