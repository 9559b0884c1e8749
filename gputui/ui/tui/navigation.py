"""Navigation: opening pages and dialogs, and the moment that is shown.

A page is on the stack once: opening one that lies below others returns to it. The modules of pages and dialogs
are imported when they are opened first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial, partialmethod
from typing import Any, TypeVar

from msgspec.structs import replace
from textual.screen import Screen

from gputui.core.text import clean
from gputui.core.units import count, duration
from gputui.runs.stored_spec import known_spec
from gputui.store.runs import Run
from gputui.ui.tui.actions import find
from gputui.ui.tui.actions.checks import needs_resumable_study
from gputui.ui.tui.commands import Commands
from gputui.ui.tui.layout.moments import day_and_clock
from gputui.ui.tui.pages.overview.page import OverviewScreen
from gputui.ui.tui.widgets.page import ActionScreen
from gputui.ui.views.snapshot import Moment, Snapshot
from gputui.ui.views.words import dated_clock

STEP_SECONDS = 10.0
"""One step in time: a bucket of the short histories."""

FAR_STEPS = 10  # ten keys less

KEYS_OF_RERUN = {"resume": "r", "clone": "c", "restart": "0"}

P = TypeVar("P", bound=ActionScreen)


class Navigation(Commands):
    """The part of the app that opens pages and dialogs, and requests the visible page's data from the feed."""

    def request_data(self, page: Screen[Any]) -> None:
        """Request the data of ``page`` from the feed, if it is the visible page."""
        if page is not self.page:
            return
        pages = (screen for screen in self.screen_stack if isinstance(screen, ActionScreen))
        interests = [interest for screen in pages if (interest := screen.interest()) is not None]
        # The page of alerts below others keeps its data: its cursor may be on a resolved alert.
        self.feed.look_at(replace(interests[-1], alerts=any(interest.alerts for interest in interests)))

    def go_to(
        self, kind: type[P], make: Callable[[], P] | None = None, fits: Callable[[P], bool] = lambda page: True
    ) -> P:
        """Go to a page: return to the one that is open, or open a new one.

        Args:
            kind: the class of the page.
            make: makes a new one; None if it needs no arguments.
            fits: whether an open page of this kind is meant.
        """
        for screen in self.screen_stack:
            if isinstance(screen, kind) and fits(screen):
                screen.pop_until_active()
                return screen
        page = (make or kind)()
        self.push_screen(page)
        return page

    # --- the pages

    def open_run(self, run_id: str) -> None:
        """Go to the page of a run; it replaces the visible page of another run."""
        from gputui.ui.tui.pages.run.page import RunScreen

        is_known = any(isinstance(screen, RunScreen) and screen.run_id == run_id for screen in self.screen_stack)
        if isinstance(self.page, RunScreen) and not is_known:
            self.pop_screen()
        self.go_to(RunScreen, lambda: RunScreen(run_id, self.chart_memory), lambda page: page.run_id == run_id)

    def open_gpu(self, uuid: str) -> None:
        """Go to the page of a GPU."""
        from gputui.ui.tui.pages.gpu.page import GpuScreen

        self.go_to(GpuScreen, lambda: GpuScreen(uuid)).show_gpu(uuid)

    def do_processes(self) -> None:
        from gputui.ui.tui.pages.processes.page import ProcessesScreen

        before = self.page
        page = self.go_to(ProcessesScreen)
        if before.SCOPE == "gpu" and before.gpu_in_question is not None:
            page.show_gpu(before.gpu_in_question.index)

    def do_alerts(self) -> None:
        from gputui.ui.tui.pages.alerts.page import AlertsScreen

        self.go_to(AlertsScreen)

    def do_studies(self) -> None:
        from gputui.ui.tui.pages.study.page import StudyScreen

        self.go_to(StudyScreen)

    def do_study_new(self) -> None:
        from gputui.ui.tui.pages.study.choose import ChooseStudyScreen

        self.push_screen(ChooseStudyScreen())

    def open_study(self, study_id: str) -> None:
        """Go to the page of studies, and show this one."""
        from gputui.ui.tui.pages.study.page import StudyScreen

        self.go_to(StudyScreen).show_study(study_id)

    def compare(self, run: Run | None, marked: Sequence[str] = ()) -> None:
        """Go to the comparison of some runs.

        Args:
            run: the run under the cursor, which the cursor of the comparison is on; None for the first one.
            marked: the ids of the marked runs. With fewer than two, the comparison has the marked one, ``run`` and the
                newest of the profile (for a trial also of the study) of the first.
        """
        from gputui.ui.tui.pages.compare.comparison import MOST_CURVES, MOST_RUNS
        from gputui.ui.tui.pages.compare.page import CompareScreen

        chosen = [*marked]
        if len(chosen) < 2:
            if run is not None:
                chosen.append(run.run_id)
            first = self.snapshot.run_of(next(iter(chosen), None))
            if first is not None:
                kin = (first.profile, first.study_id)
                chosen += [row.run.run_id for row in self.snapshot.runs if (row.run.profile, row.run.study_id) == kin]
            chosen = list(dict.fromkeys(chosen))[:MOST_CURVES]
        if len(chosen) > MOST_RUNS:
            self.say(f"The first {MOST_RUNS} of {len(chosen)} runs.")
        chosen = chosen[:MOST_RUNS]
        cursor = next(iter(chosen), None)
        if run is not None and run.run_id in chosen:
            cursor = run.run_id
        page = self.go_to(CompareScreen, lambda: CompareScreen(chosen, self.chart_memory.usual))
        page.show_runs(chosen, cursor)

    def do_compare(self) -> None:
        self.compare(self.page.run_in_question)

    def select_run(self, run_id: str) -> None:
        """Move the overview's cursor to a run as soon as it appears."""
        overview = self.screen_stack[0]
        if isinstance(overview, OverviewScreen):
            overview.select_run(run_id)

    # --- launching

    def do_launch(self) -> None:
        from gputui.ui.tui.pages.launch.page import ChooseProfileScreen
        from gputui.ui.tui.pages.launch.plan import profile_path

        profile = None
        if self.page.SCOPE == "run" and (run := self.page.run_in_question) is not None:
            profile = profile_path(run)
        self.push_screen(ChooseProfileScreen(profile))

    def launch_from(self, profile: str) -> None:
        """Open the launch form with a profile."""
        from gputui.ui.tui.pages.launch.form import Prefill
        from gputui.ui.tui.pages.launch.page import LaunchScreen

        self.push_screen(LaunchScreen(Prefill(profile)))

    def do_clone(self) -> None:
        from gputui.ui.tui.data.run_details import launched_params
        from gputui.ui.tui.pages.launch.form import Prefill
        from gputui.ui.tui.pages.launch.page import LaunchScreen
        from gputui.ui.tui.pages.launch.plan import profile_path

        run = self.chosen_run
        gpu_count = None
        if (spec := known_spec(run)) is not None:
            gpu_count = spec.gpus.count * spec.gpus.share
        prefill = Prefill(
            run.profile, launched_params(run), gpu_count, path=profile_path(run), run_id=run.run_id, target=run.target
        )
        self.push_screen(LaunchScreen(prefill))

    # --- dialogs

    def confirm(self, title: str, text: str, do: Callable[[], object]) -> None:
        """Call ``do`` if the person confirms it."""
        from gputui.ui.tui.dialogs.questions import ConfirmScreen

        self.push_screen(ConfirmScreen(title, text, do))

    def do_rerun(self) -> None:
        """Ask how the run is trained again, or how the study continues."""
        from gputui.ui.tui.dialogs.questions import MenuItem, MenuScreen

        context = self.page.context()
        study_id = self.page.study_in_question
        run = self.page.run_in_question
        if study_id is not None and not context.marked:
            resume = partial(self.ask, f"Resume {study_id}", "study_resume", run_id=None, args={"study": study_id})
            why_not = needs_resumable_study(context)
            items = [
                MenuItem("r", "resume", "continue with its next trials", resume, why_not),
                MenuItem("e", "extend", "add trials", partial(self._extend, study_id)),
            ]
            self.push_screen(MenuScreen(clean(study_id), items))
            return
        # What changes nothing of the run comes before what discards its steps.
        effects = {"resume": "from their newest valid checkpoints", "restart": "from step 0"}
        title = f"{len(context.marked)} marked runs"
        if run is not None and not context.marked:
            newest = run.checkpoint_step
            title = run.run_id
            begin = "its newest valid checkpoint" if newest is None else f"step {count(newest)}"
            effects = {"resume": f"from {begin}", "clone": "with changes", "restart": "from step 0"}
        items = []
        for name, effect in effects.items():
            action = find(name, "run")
            perform = partial(self.perform, name)
            items.append(MenuItem(KEYS_OF_RERUN[name], action.label, effect, perform, action.why_not(context)))
        self.push_screen(MenuScreen(clean(title), items))

    def _extend(self, study_id: str) -> None:
        from gputui.ui.tui.dialogs.questions import FormScreen

        def check(form: FormScreen[int]) -> tuple[int | None, str]:
            hint = f"{study_id} gets that many more trials."
            if not form.typed[0].isdecimal() or not 0 < int(form.typed[0]) < 100_000:
                return None, hint
            return int(form.typed[0]), hint

        def extend(trials: int) -> None:
            self.ask(f"Extend {study_id}", "study_extend", run_id=None, args={"study": study_id, "trials": trials})

        self.push_screen(FormScreen("Extend the study", "extend", {"trials": ""}, check, extend))

    def do_label(self) -> None:
        from gputui.ui.tui.dialogs.questions import LabelChanges, labels_form, tags_form

        if marked := self.page.marked_runs:
            self.push_screen(tags_form(marked, lambda changes: self.ask_marked("label", changes)))
            return
        run = self.chosen_run

        def save(changes: LabelChanges) -> None:
            if changes:
                self.ask(f"Label {run.run_id}", "label", run.run_id, changes)

        self.push_screen(labels_form(run, save))

    def do_quarantine_gpu(self) -> None:
        from gputui.ui.tui.dialogs.questions import FormScreen

        gpu = self.page.gpu_in_question
        assert gpu is not None

        def check(form: FormScreen[str]) -> tuple[str | None, str]:
            return form.typed[0] or None, "No new run gets it until it is cleared."

        def quarantine(why: str) -> None:
            self.ask(f"Quarantine GPU {gpu.index}", "quarantine_gpu", run_id=None, args={"uuid": gpu.uuid, "why": why})

        title = f"Quarantine GPU {gpu.index}"
        self.push_screen(FormScreen(title, "quarantine", {"why": ""}, check, quarantine))

    def do_help(self) -> None:
        from gputui.ui.tui.dialogs.sheet import HelpScreen
        from gputui.ui.tui.pages.signs import PAGE_SIGNS

        self.push_screen(HelpScreen(self.page.context(), PAGE_SIGNS.get(self.page.SCOPE, ())))

    def do_settings(self) -> None:
        from gputui.ui.tui.dialogs.settings import SettingsScreen

        self.push_screen(SettingsScreen())

    def do_palette(self) -> None:
        from gputui.ui.tui.dialogs.palette import PaletteScreen

        self.push_screen(PaletteScreen(self.page))

    def do_time_type(self) -> None:
        """Ask for the moment to show."""
        from gputui.core.typed_time import EXAMPLES, TypedTimeError, parse_moment
        from gputui.ui.tui.dialogs.questions import FormScreen

        def check(form: FormScreen[float]) -> tuple[float | None, str]:
            if not form.typed[0]:
                return None, f"for example {EXAMPLES}"
            try:
                at = parse_moment(form.typed[0], self._present)
            except TypedTimeError as error:
                return None, str(error)
            return at, f"{day_and_clock(at)}, {duration(self._present - at)} ago"

        self.push_screen(FormScreen("Go to time", "go", {"time": ""}, check, lambda at: self.look_back(Moment(at))))

    # --- time travel

    moment: Moment | None = None
    """The requested moment and, once read, the actual one; None for the present."""

    def accepts(self, snapshot: Snapshot) -> bool:
        """Take note of a newer snapshot; False if it is not of the requested moment."""
        past = snapshot.past
        if past is None and self.moment is not None and snapshot.problem is None:
            # The feed has not read the moment yet; the present must not flash up in between.
            return False
        if past is not None and self.moment is None:
            return False
        if past is not None and past.request == self.moment:
            self._arrive(past.request, snapshot)
        return True

    def _arrive(self, request: Moment, snapshot: Snapshot) -> None:
        """Take the actual moment of a request, and say where it differs."""
        at = snapshot.at
        past = snapshot.past
        assert past is not None
        self.moment = Moment(at)
        if request.ticks and at == request.at:
            where = "before" if request.ticks < 0 else "after"
            self.say(f"Nothing happened {where} this.")
        elif not request.ticks and request.at < at and request.direction <= 0:
            self.say(f"The record begins here, at {dated_clock(at, past.now)}.")
        elif at >= past.now:
            self.do_live()

    def look_back(self, moment: Moment) -> None:
        """Show a past moment; a future one shows the present."""
        if moment.at >= self._present and not moment.ticks:
            if self.moment is not None:
                self.do_live()
            return
        self.moment = moment
        self.feed.look_back(moment)
        if self.snapshot.past is not None and self.snapshot.past.request == moment:
            self._arrive(moment, self.snapshot)

    @property
    def _present(self) -> float:
        past = self.snapshot.past
        if past is None:
            return self.snapshot.at
        return past.now

    def _step(self, steps: int) -> None:
        here = self.moment or Moment(float(math.floor(self._present)))
        direction = -1 if steps < 0 else 1
        self.look_back(Moment(here.at + steps * STEP_SECONDS, direction=direction))

    do_time_back = partialmethod(_step, -1)
    do_time_forth = partialmethod(_step, 1)
    do_time_back_far = partialmethod(_step, -FAR_STEPS)
    do_time_forth_far = partialmethod(_step, FAR_STEPS)

    def _tick(self, by: int) -> None:
        # Added to a request that was not read yet, so that two keys go two ticks.
        here = self.moment or Moment(self._present)
        self.look_back(replace(here, ticks=here.ticks + by, direction=0))

    do_tick_previous = partialmethod(_tick, -1)
    do_tick_next = partialmethod(_tick, 1)

    def do_live(self) -> None:
        self.moment = None
        self.feed.look_back(None)
