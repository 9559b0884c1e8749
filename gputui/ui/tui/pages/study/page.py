"""The page of studies: the trials of one study as a table and as charts."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from functools import partial, partialmethod
from typing import ClassVar

from msgspec.structs import replace
from textual import events
from textual.app import ComposeResult

from gputui.core.text import clean
from gputui.core.yaml_forms.document import plain_value
from gputui.runs.command import assignments
from gputui.store.runs import Run
from gputui.studies.analysis import ranked
from gputui.ui.tui.actions import Context, Scope
from gputui.ui.tui.data.snapshot import Interest, StudyPage
from gputui.ui.tui.layout.columns import fit_line, rule
from gputui.ui.tui.pages.study.view import (
    HEAD_LINES,
    SIDE_LEAST,
    StudyTable,
    TrialRow,
    detail_lines,
    picture_lines,
    row_at,
    study_head,
    table_lines,
    trial_rows,
    views_of,
)
from gputui.ui.tui.widgets.line_edit import LineEdit
from gputui.ui.tui.widgets.list_page import ListPage
from gputui.ui.tui.widgets.page import Copyable
from gputui.ui.tui.widgets.pane import Pane

COMPARED = 8
"""Most trials in a comparison, the best ones."""

PICTURE_LEAST = 9
TABLE_LEAST = 7


class StudyScreen(ListPage):
    """The table of trials, charts beside or below it, and details of the trial under the cursor."""

    SCOPE: ClassVar[Scope] = "studies"

    table: StudyTable

    def __init__(self) -> None:
        super().__init__()
        self.head = Pane(id="head")
        self.title_lines = Pane(id="study")
        self.list = Pane(id="trials")
        self.pictures = Pane(id="pictures")
        self.detail = Pane(id="detail")
        self.table = StudyTable()
        self.study_id: str | None = None
        self._shown: list[TrialRow] = []
        self._point_line: LineEdit | None = None

    def compose(self) -> ComposeResult:
        self.paint()
        yield from (self.head, self.notice, self.title_lines, self.list, self.pictures, self.detail, self.message)
        yield self.footer

    def interest(self) -> Interest:
        return Interest(studies=True, study_id=self.study_id)

    # --- what it is about

    @property
    def study(self) -> StudyPage | None:
        """The study that is shown; None while it is being read, or if there is none."""
        page = self.snapshot.study_page
        is_asked = page is not None and self.study_id in (None, page.study.study_id)
        return page if is_asked else None

    @property
    def trial(self) -> TrialRow | None:
        """The trial under the cursor."""
        return next((row for row in self._shown if row.trial.number == self.table.cursor), None)

    @property
    def study_in_question(self) -> str | None:
        return None if self.study is None else self.study.study.study_id

    @property
    def run_in_question(self) -> Run | None:
        return None if self.trial is None else self.snapshot.run_of(self.trial.trial.run_id)

    @property
    def row_ids(self) -> list[int]:
        return [row.trial.number for row in self._shown]

    def context(self) -> Context:
        return replace(super().context(), study=None if self.study is None else self.study.study.state)

    def copyable(self) -> Sequence[Copyable]:
        row = self.trial
        if row is None:
            return []
        words = [word for each in assignments(row.trial.params) for word in ("--set", each)]
        return [Copyable("the trial's parameters", clean(shlex.join(words))), *super().copyable()]

    # --- drawing

    def draw(self, width: int, height: int) -> None:
        snapshot, page = self.snapshot, self.study
        self.head.show([self.machine_head(width)])
        left = height - 1 - self.draw_frame(width)
        if page is None:
            self._draw_empty(width, left)
            return
        progress = {row.run.run_id: row.progress for row in snapshot.runs}
        states = {row.run.run_id: row.run.state for row in snapshot.runs}
        self._shown = trial_rows(page, progress, self.table, states)
        self.keep_cursor()
        head = study_head(page, width)
        detail = detail_lines(self.trial, snapshot.at, width) if left - len(head) >= TABLE_LEAST + 3 else []
        self.title_lines.fit(head)
        if self._point_line is not None:
            spans = self._point_line.spans(max(8, width - 12))
            detail = [
                rule("NEXT TRIAL", width, "↵ adds it · esc cancels"),
                fit_line([(" point ", "title"), *spans], width),
            ]
        left -= len(head) + len(detail)
        self.detail.fit(detail)
        is_beside = width >= SIDE_LEAST
        table_width = width * 3 // 5 if is_beside else width
        wanted = HEAD_LINES + max(1, len(self._shown))
        room = left if is_beside else min(wanted, max(TABLE_LEAST, left - max(PICTURE_LEAST, left // 2)))
        room = left if left - room < PICTURE_LEAST and not is_beside else room
        self.scroll_to_cursor(room - HEAD_LINES)
        self.page_rows = room - HEAD_LINES - 1
        lines = self.with_filter(table_lines(page, self._shown, self.table, table_width, room), table_width)
        if not is_beside:
            self.list.show(lines, height=room)
            self.pictures.show(picture_lines(page, self.table, width, left - room), height=left - room)
            return
        side = picture_lines(page, self.table, width - table_width - 1, room)
        lines += [fit_line([], table_width)] * (room - len(lines))
        joined = [[*line, (" ", "text"), *other] for line, other in zip(lines, side, strict=True)]
        self.list.show(joined, height=room)
        self.pictures.fit([])

    def _draw_empty(self, width: int, height: int) -> None:
        self._shown = []
        words = "No study yet. N starts one from a file; gputui study run PROFILE --grid lr=0.1,0.01 tries a grid."
        if self.snapshot.agent is None or self.study_id is not None:
            words = "reading…"
        self.title_lines.fit([fit_line([(f" {words}", "dim")], width)])
        self.list.show([], height=max(0, height - 1))
        for pane in (self.pictures, self.detail):
            pane.fit([])

    def on_click(self, event: events.Click) -> None:
        """Move the cursor to the clicked trial; a double click opens its run."""
        chosen = row_at(self._shown, self.table, event.y) if event.widget is self.list else None
        if chosen is not None:
            self.point_at(chosen.trial.number)
            self.changed()
            if event.chain == 2 and self.run_in_question is not None:
                self.do_open()

    # --- actions

    def do_back(self) -> None:
        if self.table.filter_text:
            self.set_filter("")
            self.changed()
        else:
            self.app.pop_screen()

    def do_open(self) -> None:
        run = self.run_in_question
        assert run is not None
        self.shell.open_run(run.run_id)

    def _turn(self, by: int) -> None:
        page = self.study
        if page is None or len(page.known) < 2:
            self.shell.say("There is no other study.")
            return
        place_of = page.known.index(page.study.study_id)
        self.turn_to(page.known[(place_of + by) % len(page.known)])

    do_study_next = partialmethod(_turn, 1)
    do_study_previous = partialmethod(_turn, -1)

    def turn_to(self, study_id: str) -> None:
        """Show this study."""
        if study_id != self.study_id:
            self.study_id = study_id
            self.table = StudyTable(order=self.table.order, view=self.table.view)

    def do_study_view(self) -> None:
        page = self.study
        views = ("values",) if page is None else views_of(page)
        place_of = views.index(self.table.view) if self.table.view in views else -1
        self.table = replace(self.table, view=views[(place_of + 1) % len(views)])

    def do_sort(self) -> None:
        self.table = replace(self.table, order="value" if self.table.order == "number" else "number", top=0)

    def _ask(self, words: str, verb: str, **args: object) -> None:
        """Write a command about this study."""
        assert self.study is not None
        self.shell.ask(words, verb, None, {"study": self.study.study.study_id, **args})

    def do_prune(self) -> None:
        assert self.trial is not None
        number = self.trial.trial.number
        text = f"Cut trial {number} short? Its run ends at once, without a checkpoint."
        ask = partial(self._ask, f"Prune trial {number}", "study_prune", trial=number)
        self.shell.confirmed("Prune the trial", text, ask)

    def do_keep(self) -> None:
        assert self.trial is not None
        trial = self.trial.trial
        is_kept = trial.wish == "keep"
        words = f"Leave trial {trial.number} to the pruner" if is_kept else f"Keep trial {trial.number}"
        self._ask(words, "study_keep", trial=trial.number, keep=not is_kept)

    # --- a new trial

    def do_enqueue(self) -> None:
        row = self.trial
        params = {} if row is None else row.trial.params
        self._point_line = LineEdit.at_end(clean(shlex.join(assignments(params))))

    @property
    def line(self) -> LineEdit | None:
        return self._point_line if self._point_line is not None else super().line

    def type_line(self, line: LineEdit | None, text: str) -> None:
        if self._point_line is None:
            super().type_line(line, text)
            return
        self._point_line = line
        page = self.study
        if line is not None or not text.strip() or page is None:
            return
        given: dict[str, object] = {}
        try:
            words = shlex.split(text)
        except ValueError:
            words = [text]  # a quotation mark without its end
        for word in words:
            name, sign, value = word.partition("=")
            if not name or not sign or not value:
                self.shell.say(f"{clean(word)}: write NAME=VALUE, separated by spaces.", "warning")
                return
            given[name] = plain_value(value)
        self._ask("Add a trial", "study_enqueue", set=given)

    def do_compare(self) -> None:
        page, run = self.study, self.run_in_question
        assert page is not None and run is not None
        best = ranked(page.trials, page.spec.objectives)
        runs = [one.run_id for one in best if one.run_id is not None]
        self.shell.compare(run, tuple(dict.fromkeys([run.run_id, *runs]))[:COMPARED])
