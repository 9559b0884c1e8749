"""A run's page: its curves, and beside them what explains them."""

from __future__ import annotations

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical

from gputui.charts.chart import Line
from gputui.charts.safe_text import clean
from gputui.metrics.intake_words import intake_words
from gputui.tui.data.snapshot import Interest, RunPage
from gputui.tui.layout.chart_settings import ChartMemory
from gputui.tui.layout.columns import fit_line
from gputui.tui.pages.run.chart_keys import SECTIONS, WIDE, Section
from gputui.tui.pages.run.head import run_head
from gputui.tui.pages.run.keys import RunKeys, charts_width
from gputui.tui.pages.run.sections import section_lines, side_heights
from gputui.tui.widgets.pane import Pane

_NAMES: dict[Section, str] = {
    "charts": "charts",
    "ranks": "ranks",
    "log": "log",
    "story": "timeline",
    "params": "parameters",
}


class RunScreen(RunKeys):
    """The page of one run. Narrow screens show one section at a time, wide ones all."""

    def __init__(self, run_id: str, memory: ChartMemory) -> None:
        super().__init__(run_id, memory)
        self.head = Pane(id="head")
        self.tabs = Pane(id="tabs")
        self.side = Vertical(self.params, self.ranks, self.story, id="side")
        self.middle = Horizontal(self.charts.pane, self.side, id="middle")
        self._was_read = False

    def compose(self) -> ComposeResult:
        self.paint()
        yield self.head
        yield self.notice
        yield self.tabs
        yield self.middle
        yield self.log_part.pane
        yield self.message
        yield self.footer

    def on_screen_resume(self) -> None:
        """What lay above may have looked at something else; until this run is read again it is not gone."""
        if self.is_mounted and self.page is None:
            self._was_read = False
        super().on_screen_resume()

    def interest(self) -> Interest:
        log = self.log_part
        return Interest(
            self.run_id,
            log.label,
            is_log_deep=log.is_deep,
            checkpoint_to_check=self.checkpoint_to_check,
            charts=self.charts.request,
        )

    def warnings(self) -> Sequence[str]:
        """Why the charts stay empty although the run writes metrics."""
        known = self.page.intake if self.page is not None else None
        text = intake_words(known) if known is not None and not known.taken else None
        return [] if text is None else [text]

    # --- drawing

    def draw(self, width: int, height: int) -> None:
        page, snapshot = self.page, self.snapshot
        around = 1 + self.draw_frame(width)
        if page is None:
            state = "is gone" if self._was_read else "reading…"
            if snapshot.past is not None:
                state = "did not exist yet"
            self.head.show([fit_line([(f" {clean(self.run_id)}", "title"), (f" · {state}", "dim")], width)])
            self._place(0, 0, 0, 0)
            self.charts.prepare(charts_width(width))
            return
        self._was_read = True
        self.head.show([run_head(page, snapshot.gpus, snapshot.at, width, snapshot.past)])
        is_wide = width >= WIDE and not self.is_maximised
        self.tabs.show([] if is_wide else [self._tabs_line(width)], height=0 if is_wide else 1)
        body = max(0, height - around - (0 if is_wide else 1))
        self.charts.is_maximised = self.is_maximised
        if is_wide:
            self._draw_wide(page, width, body)
        else:
            self._draw_section(page, width, body)

    def _draw_wide(self, page: RunPage, width: int, height: int) -> None:
        log_height = max(5, height // 4)
        upper = height - log_height
        left = charts_width(width)
        side = width - left - 1
        self._place(upper, left + 1, side, log_height)
        self.charts.draw(page, self.snapshot.gpus, left, upper, is_focused=self.section == "charts")
        sections = self._sections(page)
        inner = side - 2
        heights = side_heights(sections, inner, upper)
        for name, pane in self._side_panes():
            room = self._rooms[name] = heights[name]
            lines = section_lines(sections, name, inner, room, is_titled=True)
            pane.show(_beside(lines, room), height=room)
        self._draw_log(page, width, log_height)

    def _draw_section(self, page: RunPage, width: int, height: int) -> None:
        section = self.section
        is_log, is_charts = section == "log", section == "charts"
        self._place(
            0 if is_log else height, width if is_charts else 0, 0 if is_charts else width, height if is_log else 0
        )
        self._rooms = {section: height}
        sections = self._sections(page)
        for name, pane in self._side_panes():
            if name == section:
                pane.show(section_lines(sections, name, width, height, is_titled=False), height=height)
            else:
                pane.show([], height=0)
        if is_charts:
            self.charts.draw(page, self.snapshot.gpus, width, height, is_focused=True)
        if is_log:
            self._draw_log(page, width, height)

    def _side_panes(self) -> tuple[tuple[Section, Pane], ...]:
        return ("params", self.params), ("ranks", self.ranks), ("story", self.story)

    def _place(self, upper: int, charts_width: int, side_width: int, log_height: int) -> None:
        """Sizes of the parts; a part without room is not there."""
        self.middle.display = upper > 0
        self.middle.styles.height = upper
        self.charts.pane.display = charts_width > 0
        self.charts.pane.styles.width = charts_width
        self.side.display = side_width > 0
        self.side.styles.width = side_width
        self.log_part.pane.display = log_height > 0
        self.log_part.pane.set_height(log_height)

    def _draw_log(self, page: RunPage, width: int, height: int) -> None:
        self.log_part.draw(page.log, width, height, is_focused=self.section == "log" and width >= WIDE)

    def _tabs_line(self, width: int) -> Line:
        spans = [(" ", "text")]
        for number, section in enumerate(SECTIONS, 1):
            current = section == self.section
            spans.append((f"{number} {_NAMES[section]}", "tab" if current else "dim"))
            spans.append(("   ", "text"))
        return fit_line(spans, width)


def _beside(lines: list[Line], height: int) -> list[Line]:
    """Lines with the edge that parts them from what stands to their left."""
    edge = ("│ ", "rule")
    return [[edge, *(lines[y] if y < len(lines) else [])] for y in range(height)]
