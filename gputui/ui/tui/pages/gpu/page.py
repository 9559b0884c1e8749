"""The page of one GPU."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partialmethod
from typing import ClassVar

from msgspec.structs import replace

from gputui.core.text import clean
from gputui.core.units import duration
from gputui.metrics.draw.parts import Line, Span
from gputui.store.hardware import GpuView
from gputui.store.runs import Run
from gputui.ui.tui.actions import Context, Scope
from gputui.ui.tui.layout.columns import box, fill_height, fit_line, is_boxed, join_blocks, justify, rule
from gputui.ui.tui.layout.gpu_words import gpu_row
from gputui.ui.tui.layout.lists import next_choice
from gputui.ui.tui.layout.moments import right_end
from gputui.ui.tui.pages.gpu.view import STATES, chart_lines, fact_lines, report_lines
from gputui.ui.tui.pages.processes.view import process_panel
from gputui.ui.tui.widgets.page import ActionScreen, Copyable
from gputui.ui.tui.widgets.pane import Pane
from gputui.ui.views.snapshot import GPU_SPANS_SECONDS, GpuPage, Interest

FACTS_WIDTH = 64
"""Most cells of a line of facts: longer ones are hard to read."""

CHARTS_HEIGHT = 14
"""Lines of the charts between facts."""

# Of the charts beside facts: two are side by side from this width on, or below this height.
WIDTH_OF_TWO = 120
HEIGHT_OF_FOUR = 24


class GpuScreen(ActionScreen):
    """Everything about one GPU in lines that scroll; the charts beside them or between them."""

    SCOPE: ClassVar[Scope] = "gpu"

    def __init__(self, uuid: str) -> None:
        super().__init__()
        self.uuid = uuid
        self.span_seconds = GPU_SPANS_SECONDS[0]
        self.top = 0
        self.lines = Pane(id="body")
        self.body = (self.lines,)

    def interest(self) -> Interest:
        return Interest(gpu_uuid=self.uuid, gpu_span_seconds=self.span_seconds)

    # --- drawing

    def draw(self, width: int, height: int) -> None:
        gpu = self.gpu_in_question
        snapshot = self.snapshot
        room = height - 1 - self.draw_frame(width)
        title: list[Span] = [(" GPU", "title")]
        if gpu is None:
            lines = [fit_line([("  This GPU has not been seen for a day; esc goes back.", "dim")], width)]
        else:
            state = STATES.get(gpu.state, ("✗ unreadable", "bad"))
            title = [(f" GPU {gpu.index}", "title"), (f" · {clean(gpu.name)} · ", "text"), state]
            arrange = self._wide_lines if is_boxed(width, height) else self._narrow_lines
            lines = arrange(gpu, width, room)
        end = right_end(snapshot.at, snapshot.past, self.key_words)
        self.head.show([self.with_trail(lambda cells: justify(title, end, cells), width)])
        self.lines.show(lines, height=room)

    def _narrow_lines(self, gpu: GpuView, width: int, room: int) -> list[Line]:
        row = gpu_row(self.snapshot, gpu)
        now = self.snapshot.at
        page = self._page
        charts: Sequence[Line] = ()
        if page is not None:
            charts = chart_lines(gpu, page, width, CHARTS_HEIGHT, across=2)
        facts = fact_lines(row, page, now, width, charts, keys=self.shell.keys)
        reports = report_lines(page, now, width)
        return self._visible_lines([*facts, *self._processes(gpu, width), *reports], width, room)

    def _wide_lines(self, gpu: GpuView, width: int, room: int) -> list[Line]:
        """The facts in frames at the left, the charts at the right."""
        facts_width = min(FACTS_WIDTH, width * 8 // 15)
        panels = self._panels(gpu, facts_width, room)
        history = self._history(gpu, width - facts_width, room)
        return join_blocks(self._visible_lines(panels, facts_width, room), history)

    def _panels(self, gpu: GpuView, width: int, room: int) -> list[Line]:
        """The device, its processes and its driver events, each in a frame."""
        row = gpu_row(self.snapshot, gpu)
        now = self.snapshot.at
        page = self._page
        inner = width - 2
        device = [rule("DEVICE", inner), *fact_lines(row, page, now, inner, keys=self.shell.keys)]
        processes = self._processes(gpu, inner)
        reports = report_lines(page, now, inner)
        # The last panel has the rows that are left; each of the three has a line of frame below it.
        rest = room - len(device) - len(processes) - 3
        reports = fill_height(reports, inner, max(len(reports), rest))
        return [*box(device, width), *box(processes, width), *box(reports, width)]

    def _history(self, gpu: GpuView, width: int, room: int) -> list[Line]:
        """The charts in a frame."""
        inner = width - 2
        charts: Sequence[Line] = ()
        if (page := self._page) is not None:
            across = 2 if inner >= WIDTH_OF_TWO or room < HEIGHT_OF_FOUR else 1
            charts = chart_lines(gpu, page, inner, room - 2, across=across)
        title = rule("HISTORY", inner, f"last {duration(self.span_seconds)}")
        return box([title, *fill_height(charts, inner, room - 2)], width)

    def _processes(self, gpu: GpuView, width: int) -> list[Line]:
        only = replace(self.snapshot, gpus=(gpu,), processes=None)
        return process_panel(only, width, max(3, 2 + len(gpu.processes or ())))

    def _visible_lines(self, lines: list[Line], width: int, room: int) -> list[Line]:
        self.top = min(max(0, self.top), max(0, len(lines) - room))
        below = len(lines) - self.top - room
        visible = lines[self.top : self.top + room]
        if below > 0:
            key = self.shell.keys.word("down", "gpu")
            visible[-1] = fit_line([(f"  … {below + 1} more lines below, {key} scrolls", "dim")], width)
        return visible

    # --- what it is about

    @property
    def _page(self) -> GpuPage | None:
        page = self.snapshot.gpu_page
        if page is not None and page.uuid == self.uuid:
            return page
        return None

    @property
    def gpu_in_question(self) -> GpuView | None:
        return next((gpu for gpu in self.snapshot.gpus if gpu.uuid == self.uuid), None)

    @property
    def run_in_question(self) -> Run | None:
        if (gpu := self.gpu_in_question) is None:
            return None
        return self.snapshot.run_of(gpu.run_id)

    def context(self) -> Context:
        quarantined = frozenset(self.snapshot.machine.quarantined) & {self.uuid}
        return replace(super().context(), gpu=self.gpu_in_question, quarantined=quarantined)

    def copyable(self) -> list[Copyable]:
        return [Copyable("the GPU's UUID", self.uuid), *super().copyable()]

    # --- actions

    def do_open_run(self) -> None:
        if (run := self.run_in_question) is not None:
            self.shell.open_run(run.run_id)

    def _step_gpu(self, by: int) -> None:
        uuids = [gpu.uuid for gpu in self.snapshot.gpus]
        if uuids:
            self.show_gpu(next_choice(uuids, self.uuid, by))

    do_gpu_next = partialmethod(_step_gpu, 1)
    do_gpu_previous = partialmethod(_step_gpu, -1)

    def show_gpu(self, uuid: str) -> None:
        """Show another GPU."""
        if uuid != self.uuid:
            self.uuid = uuid
            self.top = 0
            self.changed()

    def _step_span(self, by: int) -> None:
        index = GPU_SPANS_SECONDS.index(self.span_seconds) + by
        self.span_seconds = GPU_SPANS_SECONDS[min(max(index, 0), len(GPU_SPANS_SECONDS) - 1)]
        self.changed()

    do_span_longer = partialmethod(_step_span, 1)
    do_span_shorter = partialmethod(_step_span, -1)

    def _scroll(self, lines: int = 0, pages: int = 0) -> None:
        self.top += lines + pages * max(1, self.lines.size.height - 2)
        self.changed()

    do_up = partialmethod(_scroll, -1)
    do_down = partialmethod(_scroll, 1)
    do_page_up = partialmethod(_scroll, pages=-1)
    do_page_down = partialmethod(_scroll, pages=1)
