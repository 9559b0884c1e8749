"""The page of one GPU: its values, charts, processes and driver events."""

from __future__ import annotations

from functools import partialmethod
from typing import ClassVar

from msgspec.structs import replace
from textual.app import ComposeResult

from gputui.core.units import duration
from gputui.metrics.draw.parts import Line
from gputui.store.hardware import GpuView
from gputui.store.runs import Run
from gputui.ui.tui.actions import Context, Scope
from gputui.ui.tui.data.snapshot import GPU_SPANS_SECONDS, GpuPage, Interest
from gputui.ui.tui.layout.columns import box, fit_line, is_boxed, rule
from gputui.ui.tui.layout.gpu_words import gpu_row
from gputui.ui.tui.pages.gpu.view import chart_lines, fact_lines, page_head, process_lines, report_lines
from gputui.ui.tui.widgets.page import ActionScreen, Copyable
from gputui.ui.tui.widgets.pane import Pane

FACTS_WIDTH = 64
"""Most cells of a line of facts: longer ones are hard to read."""


class GpuScreen(ActionScreen):
    """Everything about one GPU in lines that scroll; the charts beside them or between them."""

    SCOPE: ClassVar[Scope] = "gpu"

    def __init__(self, uuid: str) -> None:
        super().__init__()
        self.uuid = uuid
        self.span_seconds = GPU_SPANS_SECONDS[0]
        self.top = 0
        self.head = Pane(id="head")
        self.body = Pane(id="body")
        self._charts: tuple[object, list[Line]] = (None, [])

    def compose(self) -> ComposeResult:
        self.paint()
        yield from (self.head, self.notice, self.body, self.message, self.footer)

    def interest(self) -> Interest:
        return Interest(gpu_uuid=self.uuid, gpu_span_seconds=self.span_seconds)

    # --- drawing

    def draw(self, width: int, height: int) -> None:
        gpu = self.gpu_in_question
        room = height - 1 - self.draw_frame(width)
        if gpu is None:
            self.head.show([fit_line([(" GPU", "title")], width)])
            text = "This GPU has not been seen for a day; esc goes back."
            self.body.show([fit_line([("  " + text, "dim")], width)], height=room)
            return
        self.head.show([self.with_trail(lambda room: page_head(self.snapshot, gpu, room), width)])
        draw = self._wide if is_boxed(width, height) else self._narrow
        self.body.show(draw(gpu, width, room), height=room)

    def _narrow(self, gpu: GpuView, width: int, room: int) -> list[Line]:
        row, now, page = gpu_row(self.snapshot, gpu), self.snapshot.at, self._page
        lines = fact_lines(row, page, now, width)
        if page is not None:
            lines += [fit_line([], width), *self._charts_of(gpu, page, width, 14, 2)]
        return self._scrolled([*lines, *process_lines(gpu, width), *report_lines(page, now, width)], width, room)

    def _wide(self, gpu: GpuView, width: int, room: int) -> list[Line]:
        """The facts in frames at the left, the charts at the right."""
        row, now, page = gpu_row(self.snapshot, gpu), self.snapshot.at, self._page
        left_width = min(FACTS_WIDTH, width // 2)
        inner, right_width = left_width - 2, width - left_width - 2
        facts = [rule("DEVICE", inner), *fact_lines(row, page, now, inner)]
        processes, reports = process_lines(gpu, inner), report_lines(page, now, inner)
        # The last panel has the rows that are left.
        blanks = room - len(facts) - len(processes) - len(reports) - 3
        reports += [fit_line([], inner)] * blanks
        left = [line for panel in (facts, processes, reports) for line in box(panel, left_width)]
        left = self._scrolled(left, left_width, room)
        across = 2 if right_width >= 120 or room < 24 else 1
        charts = [] if page is None else self._charts_of(gpu, page, right_width, room - 2, across)
        charts += [fit_line([], right_width)] * (room - 2 - len(charts))
        span = "" if page is None else f"last {duration(page.span_seconds)}"
        right = box([rule("HISTORY", right_width, span), *charts[: room - 2]], width - left_width)
        return [[*a, *b] for a, b in zip(left, right, strict=True)]

    def _charts_of(self, gpu: GpuView, page: GpuPage, width: int, height: int, across: int) -> list[Line]:
        """The charts, cached until the history or their size changes."""
        key = (id(page.history), page.span_seconds, width, height, across, gpu.power_limit_watts)
        if self._charts[0] != key:
            self._charts = (key, chart_lines(gpu, page, width, height, across=across))
        return list(self._charts[1])

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
        gpu = self.gpu_in_question
        return None if gpu is None else self.snapshot.run_of(gpu.run_id)

    def context(self) -> Context:
        held = self.snapshot.machine.quarantined
        return replace(super().context(), gpu=self.gpu_in_question, quarantined=frozenset(held) & {self.uuid})

    def copyable(self) -> list[Copyable]:
        return [Copyable("the GPU's UUID", self.uuid), *super().copyable()]

    # --- actions

    def do_open_run(self) -> None:
        run = self.run_in_question
        if run is not None:
            self.shell.open_run(run.run_id)

    def _turn(self, by: int) -> None:
        uuids = [gpu.uuid for gpu in self.snapshot.gpus]
        if uuids:
            place = uuids.index(self.uuid) if self.uuid in uuids else 0
            self.turn_to(uuids[(place + by) % len(uuids)])

    do_gpu_next = partialmethod(_turn, 1)
    do_gpu_previous = partialmethod(_turn, -1)

    def turn_to(self, uuid: str) -> None:
        """Show another GPU."""
        if uuid != self.uuid:
            self.uuid, self.top = uuid, 0
            self.changed()

    def _step_span(self, by: int) -> None:
        place = GPU_SPANS_SECONDS.index(self.span_seconds) + by
        self.span_seconds = GPU_SPANS_SECONDS[min(max(place, 0), len(GPU_SPANS_SECONDS) - 1)]
        self.changed()

    do_span_longer = partialmethod(_step_span, 1)
    do_span_shorter = partialmethod(_step_span, -1)

    def do_page_up(self) -> None:
        self._scroll(-max(1, self.body.size.height - 2))

    def do_page_down(self) -> None:
        self._scroll(max(1, self.body.size.height - 2))

    def _scroll(self, by: int) -> None:
        self.top += by
        self.changed()

    do_up = partialmethod(_scroll, -1)
    do_down = partialmethod(_scroll, 1)
