"""The page of studies: the trials of one study as a list and as charts."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from functools import partial, partialmethod
from typing import ClassVar

from msgspec.structs import replace

from gputui.core.text import clean
from gputui.core.yaml_forms.document import plain_value
from gputui.metrics.draw.parts import Line, Span
from gputui.runs.command import assignments, format_value
from gputui.store.commands import AgentVerb
from gputui.studies.analysis import rank_trials
from gputui.studies.results import StudyResults
from gputui.ui.tui.actions import Context, Scope
from gputui.ui.tui.dialogs.questions import FormScreen
from gputui.ui.tui.layout.columns import join_blocks
from gputui.ui.tui.layout.lists import Listing, next_choice
from gputui.ui.tui.pages.study import view
from gputui.ui.tui.widgets.list_page import ListingPage
from gputui.ui.tui.widgets.page import Copyable
from gputui.ui.views.snapshot import Interest, RunRow

COMPARED = 8
"""Most trials in a comparison, the best ones."""

SIDE_LEAST = 110
"""Least width of a page with the charts beside the list."""

PICTURE_LEAST = 9
LIST_LEAST = 7

STUDIES_MOST = 5
STUDIES_HEIGHT = 30
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
    def study(self) -> StudyResults | None:
        """The study that is shown; None while it is being read, or if there is none."""
        study = self.snapshot.study_page
        if study is not None and self.study_id in (None, study.study.study_id):
            return study
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
        options: list[str] = []
        for assignment in assignments(self.current.trial.params):
            options += ["--set", assignment]
        return [Copyable("the trial's parameters", clean(shlex.join(options))), *super().copyable()]

    def make_listing(self) -> Listing[view.TrialRow]:
        if self.study is None:
            empty = "No study yet. N starts one from a file; gputui study run PROFILE --grid lr=0.1,0.01 tries a grid."
            if self.snapshot.agent is None or self.study_id is not None:
                empty = "reading…"
            return Listing("TRIALS", (), {}, lambda row: row.trial.number, empty=empty)
        return view.trial_listing(self.study, view.trial_rows(self.study, self.table, self.runs))

    # --- drawing

    def summary(self) -> list[Span]:
        if self.study is None:
            return []
        return view.study_title(self.study)

    def draw(self, width: int, height: int) -> None:
        study = self.study
        inner = self.inner_width(width)
        if study is None:
            super().draw(width, height)
            return
        if not self.table.order:
            self.table = replace(self.table, order=view.first_order(study))
        room = height - 1 - self.draw_frame(width)
        self.keep_cursor()
        self.show_head(width)
        study_rows = self.snapshot.all_studies
        top = view.result_lines(study, study_rows, self.runs, width)
        if height >= STUDIES_HEIGHT and len(study_rows) > 1:
            top += self.framed(view.study_lines(study_rows, study.study.study_id, inner, STUDIES_MOST), width)
        detail = self.framed(view.detail_lines(self.current, self.snapshot.at, inner), width)
        if room - len(top) < LIST_LEAST + 3:
            detail = []
        rows = room - len(detail)
        self.list_top = len(top)
        self.list.draw(lambda: [*top, *self._body(study, width, rows - len(top))], height=rows)
        self.detail.show(detail)

    def _body(self, study: StudyResults, width: int, height: int) -> list[Line]:
        if width >= SIDE_LEAST:
            across = width * 3 // 5
            charts = self._pictures(study, width - across, height)
            return join_blocks(self.list_lines(across, height), charts)
        rows = min(len(self.listing.items) + self.listing.head_lines, max(LIST_LEAST, height - PICTURE_LEAST))
        if height - rows < PICTURE_LEAST:
            rows = height
        return [*self.list_lines(width, rows), *self._pictures(study, width, height - rows)]

    def _pictures(self, study: StudyResults, width: int, height: int) -> list[Line]:
        inner = self.inner_width(width)
        lines = view.picture_lines(study, self.table, inner, height - (inner < width))
        return self.framed(lines, width)

    # --- actions

    def _step_study(self, by: int) -> None:
        ids = [row.study_id for row in self.snapshot.all_studies]
        if self.study is None or len(ids) < 2:
            self.shell.say("There is no other study.")
            return
        self.show_study(next_choice(ids, self.study_in_question, by))

    do_study_next = partialmethod(_step_study, 1)
    do_study_previous = partialmethod(_step_study, -1)

    def show_study(self, study_id: str) -> None:
        """Show another study."""
        if study_id != self.study_id:
            self.study_id = study_id
            self.table = view.TrialList(view=self.table.view)

    def do_study_view(self) -> None:
        if self.study is not None:
            self.table = replace(self.table, view=next_choice(view.views_of(self.study), self.table.view))

    def _ask(self, title: str, verb: AgentVerb, **args: object) -> None:
        self.shell.ask(title, verb, run_id=None, args={"study": self.study_in_question, **args})

    def do_prune(self) -> None:
        assert self.current is not None
        number = self.current.trial.number
        text = f"Cut trial {number} short? Its run ends at once, without a checkpoint."
        ask = partial(self._ask, f"Prune trial {number}", "study_prune", trial=number)
        self.shell.confirm("Prune the trial", text, ask)

    def do_keep(self) -> None:
        assert self.current is not None
        trial = self.current.trial
        if trial.request == "keep":
            self._ask(f"Leave trial {trial.number} to the pruner", "study_keep", trial=trial.number, keep=False)
        else:
            self._ask(f"Keep trial {trial.number}", "study_keep", trial=trial.number, keep=True)

    def do_enqueue(self) -> None:
        """Ask for the point of a new trial, beginning with that of the trial under the cursor."""
        assert self.study is not None
        fields = dict.fromkeys(self.study.spec.tuned, "")
        if self.current is not None:
            params = self.current.trial.params
            fields |= {name: format_value(params[name]) for name in fields if name in params}

        def check(form: FormScreen[dict[str, object]]) -> tuple[dict[str, object] | None, str]:
            typed = zip(fields, form.typed, strict=True)
            point: dict[str, object] = {name: plain_value(text) for name, text in typed if text}
            return point or None, "It is the next trial; what is left empty is as in the best one."

        def add(point: dict[str, object]) -> None:
            self._ask("Add a trial", "study_enqueue", set=point)

        self.app.push_screen(FormScreen("Add a trial", "add", fields, check, add))

    def do_compare(self) -> None:
        study = self.study
        run = self.run_in_question
        assert study is not None
        assert run is not None
        best = [trial.run_id for trial in rank_trials(study.trials, study.spec.objectives) if trial.run_id is not None]
        self.shell.compare(run, tuple(dict.fromkeys([run.run_id, *best]))[:COMPARED])
