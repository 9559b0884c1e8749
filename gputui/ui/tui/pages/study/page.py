"""The page of studies: the trials of one study as a list and as charts."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from functools import partial, partialmethod
from typing import ClassVar

from msgspec.structs import replace

from gputui.core.text import clean
from gputui.core.yaml_forms.document import plain_value
from gputui.metrics.draw.parts import Line
from gputui.metrics.draw.raster import Span
from gputui.runs.command import assignments, format_value
from gputui.studies.analysis import ranked
from gputui.ui.tui.actions import Context, Scope
from gputui.ui.tui.dialogs.questions import FormScreen
from gputui.ui.tui.layout.columns import beside
from gputui.ui.tui.layout.lists import Listing, after
from gputui.ui.tui.pages.study import view
from gputui.ui.tui.widgets.list_page import ListingPage
from gputui.ui.tui.widgets.page import Copyable
from gputui.ui.views.snapshot import Interest, RunRow, StudyPage

COMPARED = 8
"""Most trials in a comparison, the best ones."""

SIDE_LEAST = 110
"""Least width of a page with the charts beside the list."""

PICTURE_LEAST, LIST_LEAST = 9, 7

STUDIES_MOST, STUDIES_HEIGHT = 5, 30
"""Most studies in their list, and the least height of a page with that."""


class StudyScreen(ListingPage[view.TrialRow]):
    """The list of trials, charts beside or below it, and details of the trial under the cursor."""

    SCOPE: ClassVar[Scope] = "studies"
    ORDERS = view.ORDERS

    table: view.TrialList

    def __init__(self) -> None:
        super().__init__(view.TrialList())
        self.study_id: str | None = None

    def interest(self) -> Interest:
        return Interest(studies=True, study_id=self.study_id)

    # --- what it is about

    @property
    def study(self) -> StudyPage | None:
        """The study that is shown; None while it is being read, or if there is none."""
        page = self.snapshot.study_page
        if page is not None and self.study_id in (None, page.study.study_id):
            return page
        return None

    @property
    def runs(self) -> dict[str, RunRow]:
        """The runs of the snapshot by their ids."""
        return {row.run.run_id: row for row in self.snapshot.runs}

    @property
    def study_in_question(self) -> str | None:
        if self.study is None:
            return None
        return self.study.study.study_id

    def run_id_of(self, row: view.TrialRow) -> str | None:
        return row.trial.run_id

    def context(self) -> Context:
        state = None if self.study is None else self.study.study.state
        return replace(super().context(), study=state)

    def copyable(self) -> Sequence[Copyable]:
        if self.current is None:
            return []
        given = assignments(self.current.trial.params)
        words = [word for each in given for word in ("--set", each)]
        return [Copyable("the trial's parameters", clean(shlex.join(words))), *super().copyable()]

    def make_listing(self) -> Listing[view.TrialRow]:
        if self.study is None:
            words = "No study yet. N starts one from a file; gputui study run PROFILE --grid lr=0.1,0.01 tries a grid."
            is_reading = self.snapshot.agent is None or self.study_id is not None
            words = "reading…" if is_reading else words
            return Listing("TRIALS", (), {}, lambda row: row.trial.number, empty=words)
        return view.trial_listing(self.study, view.trial_rows(self.study, self.table, self.runs))

    # --- drawing

    def summary(self) -> list[Span]:
        if self.study is None:
            return []
        return view.study_title(self.study)

    def draw(self, width: int, height: int) -> None:
        page, inner = self.study, self.inner_width(width)
        if page is None:
            super().draw(width, height)
            return
        if not self.table.order:
            self.table = replace(self.table, order=view.first_order(page))
        left = height - 1 - self.draw_frame(width)
        self.keep_cursor()
        self.show_head(width)
        top = view.result_lines(page, self.runs, width)
        if height >= STUDIES_HEIGHT and len(page.studies) > 1:
            top += self.framed(view.study_lines(page, inner, STUDIES_MOST), width)
        detail = self.framed(view.detail_lines(self.current, self.snapshot.at, inner), width)
        detail = detail if left - len(top) >= LIST_LEAST + 3 else []
        left -= len(detail)
        self.list_top = len(top)
        self.list.draw(lambda: [*top, *self._body(page, width, left - len(top))], height=left)
        self.detail.show(detail)

    def _body(self, page: StudyPage, width: int, height: int) -> list[Line]:
        if width >= SIDE_LEAST:
            across = width * 3 // 5
            charts = self._pictures(page, width - across, height)
            return beside(self.list_lines(across, height), charts)
        wanted = len(self.listing.items) + self.listing.head_lines
        room = min(wanted, max(LIST_LEAST, height - PICTURE_LEAST))
        room = height if height - room < PICTURE_LEAST else room
        return [*self.list_lines(width, room), *self._pictures(page, width, height - room)]

    def _pictures(self, page: StudyPage, width: int, height: int) -> list[Line]:
        inner = self.inner_width(width)
        lines = view.picture_lines(page, self.table, inner, height - (inner < width))
        return self.framed(lines, width)

    # --- actions

    def _turn(self, by: int) -> None:
        ids = [row.study_id for row in self.study.studies] if self.study is not None else []
        if len(ids) < 2:
            self.shell.say("There is no other study.")
        else:
            self.turn_to(after(ids, self.study_in_question, by))

    do_study_next, do_study_previous = partialmethod(_turn, 1), partialmethod(_turn, -1)

    def turn_to(self, study_id: str) -> None:
        if study_id != self.study_id:
            self.study_id = study_id
            self.table = view.TrialList(view=self.table.view)

    def do_study_view(self) -> None:
        if self.study is not None:
            self.table = replace(self.table, view=after(view.views_of(self.study), self.table.view))

    def _ask(self, words: str, verb: str, **args: object) -> None:
        self.shell.ask(words, verb, None, {"study": self.study_in_question, **args})

    def do_prune(self) -> None:
        assert self.current is not None
        number = self.current.trial.number
        text = f"Cut trial {number} short? Its run ends at once, without a checkpoint."
        ask = partial(self._ask, f"Prune trial {number}", "study_prune", trial=number)
        self.shell.confirm("Prune the trial", text, ask)

    def do_keep(self) -> None:
        assert self.current is not None
        trial = self.current.trial
        is_kept = trial.request == "keep"
        words = f"Leave trial {trial.number} to the pruner" if is_kept else f"Keep trial {trial.number}"
        self._ask(words, "study_keep", trial=trial.number, keep=not is_kept)

    def do_enqueue(self) -> None:
        """Ask for the point of a new trial, beginning with that of the trial under the cursor."""
        assert self.study is not None
        known = {} if self.current is None else self.current.trial.params
        point = {name: format_value(known[name]) if name in known else "" for name in self.study.spec.tuned}

        def check(form: FormScreen[dict[str, object]]) -> tuple[dict[str, object] | None, str]:
            typed = zip(point, form.typed, strict=True)
            given: dict[str, object] = {name: plain_value(text) for name, text in typed if text}
            return given or None, "It is the next trial; what is left empty is as in the best one."

        def add(given: dict[str, object]) -> None:
            self._ask("Add a trial", "study_enqueue", set=given)

        self.app.push_screen(FormScreen("Add a trial", "add", point, check, add))

    def do_compare(self) -> None:
        page, run = self.study, self.run_in_question
        assert page is not None and run is not None
        best = [one.run_id for one in ranked(page.trials, page.spec.objectives) if one.run_id is not None]
        self.shell.compare(run, tuple(dict.fromkeys([run.run_id, *best]))[:COMPARED])
