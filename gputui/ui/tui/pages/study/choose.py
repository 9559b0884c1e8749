"""Choosing the study file to start, with what it would start below the list."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from msgspec import Struct

from gputui.core.config import Workspace
from gputui.core.text import clean, clip_middle
from gputui.metrics.draw.parts import Line
from gputui.profiles.situation import situation_of
from gputui.store.database import StoreError, open_reader
from gputui.ui.tui import commands
from gputui.ui.tui.actions import Scope
from gputui.ui.tui.data.snapshot import Snapshot
from gputui.ui.tui.layout.columns import Column, fit_line, rule, wrap
from gputui.ui.tui.pages.file_list import FileListScreen
from gputui.ui.tui.pages.study.view import goal_words

if TYPE_CHECKING:
    # pydantic comes with these; they are imported where they are used, in a thread.
    from gputui.profiles.gpu_checks import GpuSituation
    from gputui.runs.spec import RunSpec
    from gputui.studies.spec import StudySpec

LEAST_ROWS = 4
"""Rows of files that the plan below leaves."""


class StudyFileRow(NamedTuple):
    """One study file; ``problem`` is the first thing wrong with it."""

    path: Path
    name: str
    profile: str
    search: str
    problem: str


class StudyPlan(Struct, frozen=True):
    """What a file would start in words and as specifications, or its ``problems``. ``is_checked``:
    the checks of the first trial that start a process were made."""

    path: Path
    head: str = ""
    details: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    spec: StudySpec | None = None
    base: RunSpec | None = None
    source: str = ""
    is_checked: bool = False


def study_file_rows(workspace: Workspace, cwd: Path) -> list[StudyFileRow]:
    """All study files that have a name. The first call is slow: it imports pydantic."""
    from gputui.core.yaml_forms.problems import ProfileError
    from gputui.studies.study_file import list_study_files, load_study

    rows = []
    for path in list_study_files(workspace, cwd):
        try:
            spec = load_study(path, workspace, cwd).spec
        except ProfileError as error:
            rows.append(StudyFileRow(path, clean(path.stem), "", "", clean(str(error).splitlines()[0])))
            continue
        search = f"{spec.method} over {', '.join(spec.tuned)}"
        rows.append(StudyFileRow(path, clean(path.stem), clean(spec.profile), clean(search), ""))
    return sorted(rows, key=lambda row: bool(row.problem))


def make_plan(
    path: Path, workspace: Workspace, cwd: Path, situation: GpuSituation | None, *, with_process: bool = False
) -> StudyPlan:
    """What the study of a file would start, as ``gputui study check --dry-run``, with the checks of
    its first trial; those that start a process only ``with_process``."""
    from gputui.core.yaml_forms.problems import ProfileError
    from gputui.profiles.resolve import ResolveError
    from gputui.studies import launch
    from gputui.studies.spec import missing_library
    from gputui.studies.study_file import load_study

    try:
        found = load_study(path, workspace, cwd)
        if (missing := missing_library(found.spec)) is not None:
            return StudyPlan(path, problems=(missing,))
        try:
            connection = open_reader(workspace.database)
        except StoreError:
            connection = None
        with nullcontext() if connection is None else closing(connection):
            seconds = launch.usual_seconds(connection, found.spec)
            spec, base = launch.resolve_study(found.spec, found.profile, situation, seconds)
            plan = launch.study_plan(connection, spec)
        checks = launch.check_first_trial(workspace, base, spec, situation, with_process=with_process)
    except (ProfileError, ResolveError) as error:
        return StudyPlan(path, problems=tuple(clean(line) for line in str(error).splitlines()))
    details = [f"{goal_words(spec)} · over {', '.join(spec.tuned)}"]
    details += [f"trial {number}: {launch.point_words(point)}" for number, point in enumerate(plan["first_points"][:4])]
    details.append(launch.plan_cost(plan))
    return StudyPlan(
        path,
        clean(launch.plan_head(plan)),
        tuple(clean(line) for line in details),
        tuple(clean(f"{one.name}: {one.detail}; {one.remedy}") for one in checks if one.status == "fail"),
        spec,
        base,
        found.source,
        with_process,
    )


class ChooseStudyScreen(FileListScreen[StudyFileRow]):
    """The list of study files; the chosen one is started after a question."""

    SCOPE: ClassVar[Scope] = "study_files"
    TITLE = "New study"
    WHAT = "study file"
    VERB = "start"

    def __init__(self) -> None:
        super().__init__()
        self._plans: dict[Path, StudyPlan] = {}
        self._planning: Path | None = None
        self._wanted: Path | None = None
        self._confirmed: Path | None = None

    def on_mount(self) -> None:
        workspace = self.shell.workspace
        self.in_thread(lambda: study_file_rows(workspace, Path.cwd()), self.rows_read)

    @staticmethod
    def searched(row: StudyFileRow) -> str:
        return f"{row.profile} {row.search}"

    def columns(self) -> Sequence[Column[StudyFileRow]]:
        return (
            Column("STUDY FILE", 18, lambda row, width: [(clip_middle(row.name, width), "accent")], grow=1, most=32),
            Column("PROFILE", 14, lambda row, width: [(clip_middle(row.profile, width), "text")], grow=1, most=28),
            Column("SEARCH", 24, lambda row, _: [(row.problem, "warn") if row.problem else (row.search, "text")],
                   grow=3),
        )  # fmt: skip

    # --- the plan

    def _plan_next(self) -> None:
        """Make the plan of the chosen file, unless one is being made."""
        path = self.chosen
        if path is None or path in self._plans or self._planning is not None or not path.is_file():
            return
        self._planning = path
        self._plan(path, with_process=False)

    def _plan(self, path: Path, *, with_process: bool) -> None:
        workspace, situation = self.shell.workspace, _situation(self.snapshot)
        make = partial(make_plan, path, workspace, Path.cwd(), situation, with_process=with_process)
        self.in_thread(make, self._take_plan)

    def _take_plan(self, plan: StudyPlan) -> None:
        self._plans[plan.path] = plan
        if plan.is_checked or plan.problems:
            self._planning = None
        else:
            self._plan(plan.path, with_process=True)
        if self._wanted == plan.path:
            self.take(plan.path)
        if self._confirmed == plan.path:
            self._start(plan.path)
        self.changed()

    def foot(self, width: int, height: int) -> list[Line]:
        """What the chosen file would start."""
        self._plan_next()
        path = self.chosen
        if path is None or path not in self._plans:
            return [] if path is None else [rule("WHAT IT STARTS", width), fit_line([("  checking…", "dim")], width)]
        plan = self._plans[path]
        lines = [rule("WHAT IT STARTS", width)]
        texts = [(" ", "text", plan.head), *(("   ", "dim", detail) for detail in plan.details)]
        texts += [(" ✗ ", "bad", problem) for problem in plan.problems]
        if not plan.problems:
            texts.append((" ✓ ", "good", "checked") if plan.is_checked else ("   ", "dim", "checking…"))
        for lead, style, text in texts:
            for number, part in enumerate(wrap(text, width - 4)):
                shown = "text" if lead == " ✗ " else "dim" if lead == " ✓ " else style
                lines.append(fit_line([(lead if not number else " " * len(lead), style), (part, shown)], width))
        return lines[: max(0, height - LEAST_ROWS - 4)]

    # --- starting

    def take(self, path: Path) -> None:
        """Ask whether to start the study of a file, as soon as its plan is made."""
        plan = self._plans.get(path)
        self._wanted = path if plan is None else None
        if plan is None:
            return
        if plan.problems:
            self.shell.say(plan.problems[0], "warning")
        else:
            self.shell.confirmed("Start the study", f"Start {plan.head}?", lambda: self._start(path))

    def _start(self, path: Path) -> None:
        """Start the study of a file, as soon as its first trial is checked."""
        plan, workspace = self._plans[path], self.shell.workspace
        self._confirmed = None if plan.is_checked or plan.problems else path
        if plan.problems:
            self.shell.say(plan.problems[0], "error")
            return
        if not plan.is_checked:
            self.shell.say("Checking the first trial…")
            return
        spec, base = plan.spec, plan.base
        assert spec is not None and base is not None
        self.pop_until_active()
        self.app.pop_screen()
        self.shell.ask_by(
            f"Start the study {clean(spec.name)}", lambda: commands.start_study(workspace, base, spec, plan.source)
        )


def _situation(snapshot: Snapshot) -> GpuSituation | None:
    return situation_of(snapshot.agent, snapshot.gpus, snapshot.machine.quarantined, snapshot.alerts.last)
