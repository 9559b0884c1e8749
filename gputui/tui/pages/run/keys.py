"""What keys and the mouse do on a run's page: they act on the section in focus."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import ClassVar

from textual import events
from textual.binding import BindingType
from textual.widget import Widget

from gputui.store.runs import Run
from gputui.tui.actions import Scope
from gputui.tui.data.snapshot import RunPage
from gputui.tui.layout.chart_settings import ChartMemory
from gputui.tui.pages.run.chart_keys import SECTIONS, WIDE, RunChartKeys, Section
from gputui.tui.pages.run.log_pane import RunLog
from gputui.tui.pages.run.sections import Sections
from gputui.tui.widgets.line_edit import LineEdit
from gputui.tui.widgets.page import Choice, Copyable, bindings_for
from gputui.tui.widgets.pane import Pane


class RunKeys(RunChartKeys):
    """The page of one run as far as keys change it."""

    SCOPE: ClassVar[Scope] = "run"
    BINDINGS: ClassVar[list[BindingType]] = bindings_for("run")

    def __init__(self, run_id: str, memory: ChartMemory) -> None:
        super().__init__(run_id, memory)
        self.log_part = RunLog()
        self.ranks = Pane(id="ranks")
        self.story = Pane(id="story")
        self.params = Pane(id="params")
        self.is_maximised = False
        self.checkpoint_to_check: str | None = None
        self._scrolled: dict[str, int] = dict.fromkeys(SECTIONS, 0)
        self._rooms: dict[Section, int] = {}

    @property
    def page(self) -> RunPage | None:
        """What is known of the run; None until it was read, or when it is gone."""
        page = self.snapshot.page
        return page if page is not None and page.run.run_id == self.run_id else None

    @property
    def rank_count(self) -> int:
        return len(self.page.progress.ranks) if self.page else 0

    @property
    def run_in_question(self) -> Run | None:
        return self.page.run if self.page else None

    def _sections(self, page: RunPage) -> Sections:
        return Sections(page, self.snapshot.gpus, self.snapshot.at, self.section, dict(self._scrolled))

    # --- typing

    def on_key(self, event: events.Key) -> None:
        """While a filter or a search is typed, keys are text."""
        edit = self._edit
        if edit is None:
            return
        if event.key in ("enter", "escape"):
            self._type(None, edit.text if event.key == "enter" else "")
        elif (pressed := edit.press(event.key)) is not None:
            self._type(pressed, pressed.text)
        elif event.character is not None and event.is_printable:
            inserted = edit.insert(event.character)
            self._type(inserted, inserted.text)
        else:
            return
        event.stop()
        event.prevent_default()
        self.changed()

    def on_paste(self, event: events.Paste) -> None:
        if self._edit is not None:
            inserted = self._edit.insert(event.text)
            self._type(inserted, inserted.text)
            event.stop()
            self.changed()

    @property
    def _edit(self) -> LineEdit | None:
        return self.charts.edit or self.log_part.edit

    def _type(self, edit: LineEdit | None, text: str) -> None:
        if self.charts.edit is not None:
            self.charts.filter_to(edit, text)
            self._keep_charts()
        else:
            self.log_part.search(edit, text)

    # --- the mouse

    def _section_of(self, pane: Widget | None) -> Section | None:
        panes: dict[Widget | None, Section] = {
            self.charts.pane: "charts", self.log_part.pane: "log", self.ranks: "ranks", self.story: "story",
            self.params: "params",
        }  # fmt: skip
        return panes.get(pane)

    def wheel(self, pane: Widget | None, by: int) -> None:
        """The section under the pointer scrolls, whichever is in focus; the charts zoom."""
        section = self._section_of(pane)
        if section == "charts":
            self.charts.zoom(-by)
        elif section is not None:
            self._scroll(by, section)
        self.changed()

    def on_click(self, event: events.Click) -> None:
        """A click chooses the section, in the charts the chart and the moment."""
        section = self._section_of(event.widget)
        if section is not None:
            self.section = section
            if section == "charts":
                self.charts.click(event.x, event.y)
            self.changed()

    def copyable(self) -> Sequence[Copyable]:
        own: list[Copyable] = []
        if self.section == "log" and self.log_part.text:
            own.append(Copyable("the log", self.log_part.text))
        elif self.section == "charts" and self.charts.cursor is not None:
            own.append(Copyable("what is at the crosshair", self.charts.head_text))
        return [*own, *super().copyable()]

    def choices(self) -> Sequence[Choice]:
        page = self.page
        if page is None:
            return []
        charts = [Choice(f"Chart {name}", "metric", partial(self._show_metric, name)) for name in page.metric_names]
        return [*charts, *(Choice(f"Log {name}", "log", partial(self._show_log, name)) for name in page.log.labels)]

    def _show_log(self, label: str) -> None:
        self.section = "log"
        self.log_part.show(label)
        self.changed()

    def _show_metric(self, name: str) -> None:
        self.section = "charts"
        self.charts.filter_to(None, name)
        self._keep_charts()
        self.changed()

    # --- actions: the page

    def do_back(self) -> None:
        """What was opened last goes first: the whole-page view, the crosshair, a search, a filter; then the page."""
        if self.is_maximised:
            self.is_maximised = False
        elif self.section == "charts" and self.charts.cursor is not None:
            self.charts.cursor = None
        elif self.section == "log" and self.log_part.view.search.text:
            self.log_part.search(None, "")
        elif self.section == "charts" and self.charts.settings.filter_text:
            self.charts.filter_to(None, "")
            self._keep_charts()
        else:
            self.app.pop_screen()

    def do_section_next(self) -> None:
        self.section = SECTIONS[(SECTIONS.index(self.section) + 1) % len(SECTIONS)]

    def do_section_previous(self) -> None:
        self.section = SECTIONS[(SECTIONS.index(self.section) - 1) % len(SECTIONS)]

    def do_section_charts(self) -> None:
        self.section = "charts"

    def do_section_ranks(self) -> None:
        self.section = "ranks"

    def do_section_log(self) -> None:
        self.section = "log"

    def do_section_story(self) -> None:
        self.section = "story"

    def do_section_params(self) -> None:
        self.section = "params"

    def do_maximise(self) -> None:
        self.is_maximised = not self.is_maximised

    def do_find(self) -> None:
        if self.section == "log":
            self.log_part.edit = LineEdit.at_end(self.log_part.view.search.text)
        else:
            self.section = "charts"
            self.charts.edit = LineEdit.at_end(self.charts.settings.filter_text)

    def do_scroll_up(self) -> None:
        self._scroll(-1)

    def do_scroll_down(self) -> None:
        self._scroll(1)

    def do_page_up(self) -> None:
        self._scroll_page(-1)

    def do_page_down(self) -> None:
        self._scroll_page(1)

    def _scroll(self, by: int, section: Section | None = None) -> None:
        """The section in focus, or another, by so many lines."""
        section = section or self.section
        if section == "charts":
            self.charts.move_focus(by)
        elif section == "log":
            self.log_part.scroll(by)
        elif self.page is not None:
            most = self._sections(self.page).most_offset(section, self._inner_width, self._rooms.get(section, 1))
            # The timeline is read from its end.
            moved = self._scrolled[section] + (-by if section == "story" else by)
            self._scrolled[section] = min(max(0, moved), most)

    @property
    def _inner_width(self) -> int:
        width = self.app.size.width
        return width - charts_width(width) - 3 if width >= WIDE and not self.is_maximised else width

    def _scroll_page(self, by: int) -> None:
        if self.section == "charts":
            self.charts.turn_page(by)
        elif self.section == "log":
            self.log_part.scroll(by * max(1, self.log_part.view.height - 1))
        else:
            self._scroll(by * max(1, self._rooms.get(self.section, 1) - 2))

    def do_beginning(self) -> None:
        if self.section == "charts":
            self.charts.move_to_end(of_data=False)
        elif self.section == "log":
            self.log_part.to_top()
        else:
            self._scroll(-(1 << 20))

    def do_follow(self) -> None:
        if self.section == "charts":
            self.charts.move_to_end(of_data=True)
        elif self.section == "log":
            self.log_part.view.follow()
        else:
            self._scroll(1 << 20)

    # --- actions: the log and the checkpoints

    def do_cursor_left(self) -> None:
        if self.section == "log":
            self.log_part.sideways(-1)
        else:
            super().do_cursor_left()

    def do_cursor_right(self) -> None:
        if self.section == "log":
            self.log_part.sideways(1)
        else:
            super().do_cursor_right()

    def do_log_next(self) -> None:
        self._choose_log(1)

    def do_log_previous(self) -> None:
        self._choose_log(-1)

    def _choose_log(self, by: int) -> None:
        if not self.log_part.choose(by):
            self.shell.say("No other log holds anything yet.", "warning")

    def do_hit_next(self) -> None:
        self._go_to_hit(1)

    def do_hit_previous(self) -> None:
        self._go_to_hit(-1)

    def _go_to_hit(self, by: int) -> None:
        view = self.log_part.view
        if not view.search.text:
            self.shell.say("Nothing is searched for yet: go to the log with 3, then /.", "warning")
        view.next_hit(by)

    def do_grave_only(self) -> None:
        self.log_part.view.only_grave()

    def do_check(self) -> None:
        page = self.page
        if page is not None and page.checkpoints is not None and page.checkpoints.newest:
            self.checkpoint_to_check = page.checkpoints.newest[0].name
            self.section = "params"


def charts_width(width: int) -> int:
    """Cells of the charts in a screen of this width; beside them one stays free."""
    return width if width < WIDE else width - min(96, width * 2 // 5) - 1
