"""A run's page: its curves, and beside them what explains them."""

from __future__ import annotations

from typing import ClassVar, Literal

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical

from gputui.charts.chart import Line
from gputui.charts.safe_text import clean
from gputui.store.views import RunView
from gputui.tui.actions import Scope
from gputui.tui.reading import Interest
from gputui.tui.render.charts import curve_lines
from gputui.tui.render.columns import fit_line
from gputui.tui.render.run_page import log_lines, parameter_lines, ranks_lines, run_head, timeline_lines
from gputui.tui.screens.base import ActionScreen, bindings_for
from gputui.tui.snapshot import RunPage
from gputui.tui.widgets.pane import Pane
from gputui.tui.widgets.slow_pane import SlowPane

WIDE = 120
"""From this width on all sections stand side by side."""

Section = Literal["charts", "ranks", "log", "story", "params"]
SECTIONS: tuple[Section, ...] = ("charts", "ranks", "log", "story", "params")
_NAMES: dict[Section, str] = {
    "charts": "charts",
    "ranks": "ranks",
    "log": "log",
    "story": "timeline",
    "params": "parameters",
}


class RunScreen(ActionScreen):
    """The page of one run. Narrow screens show one section at a time, wide ones all."""

    SCOPE: ClassVar[Scope] = "run"
    BINDINGS: ClassVar[list[BindingType]] = bindings_for("run")

    def __init__(self, run_id: str) -> None:
        super().__init__()
        self.run_id = run_id
        self.head = Pane(id="head")
        self.tabs = Pane(id="tabs")
        self.charts = SlowPane(id="charts")
        self.ranks = Pane(id="ranks")
        self.log_pane = Pane(id="log")
        self.story = Pane(id="story")
        self.params = Pane(id="params")
        self.side = Vertical(self.params, self.ranks, self.story, id="side")
        self.middle = Horizontal(self.charts, self.side, id="middle")
        self.section: Section = "charts"
        self.is_log = False
        self.log_label: str | None = None
        self.log_offset = 0
        self._log_rows = 10
        self._was_read = False
        self._newest_line: str | None = None

    def compose(self) -> ComposeResult:
        self.paint()
        yield self.head
        yield self.notice
        yield self.tabs
        yield self.middle
        yield self.log_pane
        yield self.message
        yield self.footer

    @property
    def page(self) -> RunPage | None:
        """What is known of the run; None until it was read, or when it is gone."""
        page = self.snapshot.page
        return page if page is not None and page.run.run_id == self.run_id else None

    @property
    def run_in_question(self) -> RunView | None:
        return self.page.run if self.page else None

    def on_mount(self) -> None:
        self._look()

    def on_unmount(self) -> None:
        self.gputui.feed.look_away(self.run_id)

    def _look(self) -> None:
        self.gputui.feed.look_at(Interest(self.run_id, self.log_label))

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
            return
        self._was_read = True
        self.head.show([run_head(page, snapshot.gpus, snapshot.at, width, snapshot.past)])
        is_wide = width >= WIDE
        self.tabs.show([] if is_wide else [self._tabs_line(width)], height=0 if is_wide else 1)
        body = max(0, height - around - (0 if is_wide else 1))
        self._keep_place(page)
        if is_wide:
            self._draw_wide(page, width, body)
        else:
            self._draw_section(page, width, body)

    def _draw_wide(self, page: RunPage, width: int, height: int) -> None:
        log_height = max(5, height // 4)
        upper = height - log_height
        side = min(96, width * 2 // 5)
        self._place(upper, width - side, side, log_height)
        self._draw_charts(page, width - side - 1, upper)
        params = min(2 + len(page.run.params), max(3, upper // 3))
        ranks = min(2 + max(1, len(page.progress.ranks)), max(3, upper // 4))
        inner = side - 2
        now, gpus = self.snapshot.at, self.snapshot.gpus
        self.params.show(_beside(parameter_lines(page, inner, params, titled=True), params), height=params)
        self.ranks.show(_beside(ranks_lines(page.progress.ranks, now, inner, ranks, titled=True), ranks), height=ranks)
        room = max(0, upper - params - ranks)
        self.story.show(_beside(timeline_lines(page, gpus, now, inner, room, titled=True), room), height=room)
        self._draw_log(page, width, log_height)

    def _draw_section(self, page: RunPage, width: int, height: int) -> None:
        section = self.section
        is_log, is_charts = section == "log", section == "charts"
        self._place(
            0 if is_log else height, width if is_charts else 0, 0 if is_charts else width, height if is_log else 0
        )
        shown = {"params": self.params, "ranks": self.ranks, "story": self.story}
        for name, pane in shown.items():
            pane.show([] if name != section else self._section_lines(page, width, height),
                      height=height if name == section else 0)  # fmt: skip
        if is_charts:
            self._draw_charts(page, width, height)
        if is_log:
            self._draw_log(page, width, height)

    def _draw_charts(self, page: RunPage, width: int, height: int) -> None:
        self.charts.show_when(
            (width, height, self.is_log, len(page.attempts)),
            tuple(page.series.values()),
            lambda: curve_lines(page, width, height, is_log=self.is_log),
            height=height,
        )

    def _section_lines(self, page: RunPage, width: int, height: int) -> list[Line]:
        now, gpus = self.snapshot.at, self.snapshot.gpus
        if self.section == "params":
            return parameter_lines(page, width, height, titled=False)
        if self.section == "ranks":
            return ranks_lines(page.progress.ranks, now, width, height, titled=False)
        return timeline_lines(page, gpus, now, width, height, titled=False)

    def _place(self, upper: int, charts_width: int, side_width: int, log_height: int) -> None:
        """Sizes of the parts; a part without room is not there."""
        self.middle.display = upper > 0
        self.middle.styles.height = upper
        self.charts.display = charts_width > 0
        self.charts.styles.width = charts_width
        self.side.display = side_width > 0
        self.side.styles.width = side_width
        self.log_pane.display = log_height > 0
        self.log_pane.set_height(log_height)

    def _draw_log(self, page: RunPage, width: int, height: int) -> None:
        self._log_rows = max(1, height - 1)
        self.log_offset = min(self.log_offset, max(0, len(page.log.lines) - self._log_rows))
        self.log_pane.show(
            log_lines(page.log, self.log_offset, width, height, following=self.log_offset == 0), height=height
        )

    def _tabs_line(self, width: int) -> Line:
        spans = [(" ", "text")]
        for number, section in enumerate(SECTIONS, 1):
            current = section == self.section
            spans.append((f"{number} {_NAMES[section]}", "tab" if current else "dim"))
            spans.append(("   ", "text"))
        return fit_line(spans, width)

    def _keep_place(self, page: RunPage) -> None:
        """While the log is scrolled back, the lines shown stay where they are though new ones arrive."""
        lines = page.log.lines
        if self.log_offset and self._newest_line is not None and lines:
            arrived = 0
            for line in reversed(lines):
                if line == self._newest_line:
                    break
                arrived += 1
            else:
                arrived = 0
            self.log_offset += arrived
        self._newest_line = lines[-1] if lines else None

    # --- actions

    def do_back(self) -> None:
        self.gputui.pop_screen()

    def _turn_to(self, section: Section) -> None:
        self.section = section
        self.paint()

    def do_section_next(self) -> None:
        self._turn_to(SECTIONS[(SECTIONS.index(self.section) + 1) % len(SECTIONS)])

    def do_section_previous(self) -> None:
        self._turn_to(SECTIONS[(SECTIONS.index(self.section) - 1) % len(SECTIONS)])

    def do_section_charts(self) -> None:
        self._turn_to("charts")

    def do_section_ranks(self) -> None:
        self._turn_to("ranks")

    def do_section_log(self) -> None:
        self._turn_to("log")

    def do_section_story(self) -> None:
        self._turn_to("story")

    def do_section_params(self) -> None:
        self._turn_to("params")

    def do_log_axis(self) -> None:
        self.is_log = not self.is_log
        self.paint()

    def do_log_next(self) -> None:
        self._choose_log(1)

    def do_log_previous(self) -> None:
        self._choose_log(-1)

    def _choose_log(self, by: int) -> None:
        page = self.page
        if page is None or not page.log.labels:
            return
        labels = page.log.labels
        place = labels.index(page.log.label) if page.log.label in labels else -by
        self.log_label = labels[(place + by) % len(labels)]
        self.log_offset = 0
        self._newest_line = None
        self._look()

    def do_follow(self) -> None:
        self._scroll_log(0)

    def do_scroll_up(self) -> None:
        self._scroll_log(self.log_offset + 1)

    def do_scroll_down(self) -> None:
        self._scroll_log(self.log_offset - 1)

    def do_page_up(self) -> None:
        self._scroll_log(self.log_offset + self._log_rows - 1)

    def do_page_down(self) -> None:
        self._scroll_log(self.log_offset - self._log_rows + 1)

    def _scroll_log(self, offset: int) -> None:
        count = len(self.page.log.lines) if self.page else 0
        self.log_offset = min(max(0, offset), max(0, count - self._log_rows))
        self.paint()


def _beside(lines: list[Line], height: int) -> list[Line]:
    """Lines with the edge that parts them from what stands to their left."""
    edge = ("│ ", "rule")
    return [[edge, *(lines[y] if y < len(lines) else [])] for y in range(height)]
