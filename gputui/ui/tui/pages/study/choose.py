"""Choosing the study file to start, with what it would start below the list."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from msgspec import Struct
from msgspec.structs import replace

from gputui.core.config import Workspace
from gputui.core.text import clean
from gputui.metrics.draw.parts import Line, Span
from gputui.store.database import StoreError, empty_store, open_reader
from gputui.ui.tui import commands
from gputui.ui.tui.actions import Scope
from gputui.ui.tui.layout.columns import Column, fit_line, paragraph, rule
from gputui.ui.tui.pages.file_list import FileListScreen, FileRow, name_cell
from gputui.ui.tui.pages.study.view import goal_words

if TYPE_CHECKING:
    # pydantic comes with these; they are imported where they are used, in a thread.
    from gputui.profiles.gpu_checks import GpuSituation
    from gputui.runs.spec import RunSpec
    from gputui.studies.spec import StudySpec

LEAST_ROWS = 4
"""Rows of files that the plan below leaves."""

MOST_POINTS = 4
"""Points of first trials in a plan."""


class StudyFileRow(FileRow, frozen=True):
    """One study file.

    Attributes:
        search: its method and the parameters that it tunes, in words.
        problem: the first thing wrong with it; "" if it is valid.
    """

    profile: str = ""
    search: str = ""
    problem: str = ""

    @property
    def searched(self) -> str:
        return f"{self.profile} {self.search}"


class StudyPlan(Struct, frozen=True):
    """What a study file would start.

    Attributes:
        head: the plan in one line.
        details: the plan's other lines.
        problems: why it cannot start; none if it can.
        spec: the study; None with problems in the file.
        base: the specification of the study's runs; None with problems in the file.
        source: the text of the file.
    """

    path: Path
    head: str = ""
    details: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    spec: StudySpec | None = None
    base: RunSpec | None = None
    source: str = ""


def study_file_rows(workspace: Workspace, cwd: Path) -> list[StudyFileRow]:
    """All study files that have a name. The first call is slow: it imports pydantic."""
    from gputui.core.yaml_forms.problems import ProfileError
    from gputui.studies.study_file import list_study_files, load_study

    rows = []
    for path in list_study_files(workspace, cwd):
        row = StudyFileRow(path, clean(path.stem))
        try:
            spec = load_study(path, workspace, cwd).spec
            search = f"{spec.method} over {', '.join(spec.tuned)}"
            rows.append(replace(row, profile=clean(spec.profile), search=clean(search)))
        except ProfileError as error:
            rows.append(replace(row, problem=clean(str(error).splitlines()[0])))
    return sorted(rows, key=lambda row: bool(row.problem))


def make_plan(
    path: Path, workspace: Workspace, cwd: Path, situation: GpuSituation | None, *, with_process: bool = False
) -> StudyPlan:
    """Make the plan of a study file, with its first trial's checks.

    Args:
        cwd: where relative paths begin.
        situation: the GPUs; None if no agent has read them.
        with_process: whether to make the slow checks too, which start a process.
    """
    from gputui.core.yaml_forms.problems import ProfileError
    from gputui.profiles.resolve import ResolveError
    from gputui.studies import launch
    from gputui.studies.spec import missing_library
    from gputui.studies.study_file import load_study

    try:
        file = load_study(path, workspace, cwd)
        if (missing := missing_library(file.spec)) is not None:
            return StudyPlan(path, problems=(missing,))
        try:
            connection = open_reader(workspace.database)
        except StoreError:
            connection = empty_store()
        with closing(connection):
            seconds = launch.usual_seconds(connection, file.spec)
            spec, base = launch.resolve_study(file.spec, file.profile, situation, seconds)
            plan = launch.study_plan(connection, spec)
        checks = launch.check_first_trial(workspace, base, spec, situation, with_process=with_process)
    except (ProfileError, ResolveError) as error:
        return StudyPlan(path, problems=tuple(clean(line) for line in str(error).splitlines()))
    failed = [check for check in checks if check.status == "fail"]
    details = [f"{goal_words(spec)} · over {', '.join(spec.tuned)}"]
    for number, point in enumerate(plan["first_points"][:MOST_POINTS]):
        details.append(f"trial {number}: {launch.point_words(point)}")
    details.append(launch.plan_cost(plan))
    if (remark := launch.ignored_shell_gpus(file.spec, file.profile, os.environ)) is not None:
        details.append(remark)
    return StudyPlan(
        path,
        clean(launch.plan_head(plan)),
        tuple(clean(detail) for detail in details),
        problems=tuple(clean(f"{check.name}: {check.detail}; {check.remedy}") for check in failed),
        spec=spec,
        base=base,
        source=file.source,
    )


class ChooseStudyScreen(FileListScreen[StudyFileRow]):
    """The list of study files; the chosen one is started after a question."""

    SCOPE: ClassVar[Scope] = "study_files"
    TITLE = "New study"
    WHAT = "study file"
    VERB = "start"

    def __init__(self) -> None:
        super().__init__()
        self._plans: dict[Path, StudyPlan | None] = {}
        """What was planned; None while it is."""

    def on_mount(self) -> None:
        workspace = self.shell.workspace
        self.in_thread(lambda: study_file_rows(workspace, Path.cwd()), self.rows_read)

    def row_of_file(self, path: Path) -> StudyFileRow:
        return StudyFileRow(path, clean(path.name))

    def columns(self) -> Sequence[Column[StudyFileRow]]:
        def search(row: StudyFileRow, width: int) -> list[Span]:
            if row.problem:
                return [(row.problem, "warn")]
            return [(row.search, "text")]

        return (
            Column("STUDY FILE", 18, name_cell, grow=1, most=32),
            Column("PROFILE", 14, lambda row, _: [(row.profile, "text")], grow=1, most=28),
            Column("SEARCH", 24, search, grow=3),
        )

    # --- the plan

    def _plan(self, path: Path, take: Callable[[StudyPlan], None], *, with_process: bool) -> None:
        workspace = self.shell.workspace
        situation = self.snapshot.situation
        make = partial(make_plan, path, workspace, Path.cwd(), situation, with_process=with_process)
        self.in_thread(make, take)

    def _take_plan(self, plan: StudyPlan) -> None:
        self._plans[plan.path] = plan
        self.changed()

    def foot(self, width: int, height: int) -> list[Line]:
        path = self.chosen
        if path is None or not path.is_file():
            return []
        if path not in self._plans and None not in self._plans.values():
            self._plans[path] = None
            self._plan(path, self._take_plan, with_process=False)
        plan = self._plans.get(path)
        lines = [rule("WHAT IT STARTS", width)]
        if plan is None:
            return [*lines, fit_line([("  checking…", "dim")], width)]
        lines += paragraph((" ", "text"), plan.head, "text", width)
        for detail in plan.details:
            lines += paragraph(("   ", "dim"), detail, "dim", width)
        for problem in plan.problems:
            lines += paragraph((" ✗ ", "bad"), problem, "text", width)
        if not plan.problems:
            lines += paragraph((" ✓ ", "good"), "checked", "dim", width)
        return lines[: max(0, height - LEAST_ROWS - 4)]

    # --- starting

    def take(self, path: Path) -> None:
        """Ask whether to start the study of a file."""
        plan = self._plans.get(path)
        row = self.current
        if row is not None and row.problem:
            self.shell.say(row.problem, "warning")
        elif plan is None:
            self.shell.say("Still checking; a moment.")
        elif plan.problems:
            self.shell.say(plan.problems[0], "warning")
        else:
            self.shell.confirm("Start the study", f"Start {plan.head}?", lambda: self._check(path))

    def _check(self, path: Path) -> None:
        """Make the checks that start a process, then start the study."""
        self.shell.say("Checking the first trial…")
        self._plan(path, self._start, with_process=True)

    def _start(self, plan: StudyPlan) -> None:
        workspace = self.shell.workspace
        spec = plan.spec
        base = plan.base
        if plan.problems or spec is None or base is None:
            self.shell.say(next(iter(plan.problems), ""), "error")
            return
        self.pop_until_active()
        self.app.pop_screen()
        title = f"Start the study {clean(spec.name)}"
        self.shell.ask_in_order([(title, lambda: commands.start_study(workspace, base, spec, plan.source))])
