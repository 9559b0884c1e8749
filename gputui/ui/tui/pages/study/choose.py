"""Choosing the study file to start: a list to filter, and below it what the chosen one would start."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from msgspec import Struct
from textual.message import Message

from gputui.core.config import Workspace
from gputui.core.text import clean, clip_middle
from gputui.metrics.draw.parts import Line
from gputui.metrics.draw.raster import Span
from gputui.profiles.situation import situation_of
from gputui.store.database import StoreError, open_reader
from gputui.ui.tui import commands
from gputui.ui.tui.actions import Scope
from gputui.ui.tui.data.snapshot import Snapshot
from gputui.ui.tui.dialogs.palette import ranked
from gputui.ui.tui.layout.columns import Column, fit_line, head_line, place, row_line, rule, wrap
from gputui.ui.tui.widgets.file_list import FileListScreen

if TYPE_CHECKING:
    # pydantic comes with these; they are imported where they are used, in a thread.
    from gputui.profiles.gpu_checks import GpuSituation
    from gputui.runs.spec import RunSpec
    from gputui.studies.spec import StudySpec

POINTS_SHOWN = 4
LEAST_ROWS = 4
"""Rows of files that the plan below leaves, if there are so many."""


class StudyFileRow(NamedTuple):
    """One study file; ``problem`` is the first thing wrong with it."""

    path: Path
    name: str
    profile: str
    search: str
    problem: str


class StudyPlan(Struct, frozen=True):
    """What a file would start: ``head`` and ``details`` in words, and the specifications; or its ``problems``."""

    path: Path
    head: str = ""
    details: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    spec: StudySpec | None = None
    base: RunSpec | None = None
    source: str = ""


class FilesRead(Message):
    """The study files were read."""

    def __init__(self, rows: Sequence[StudyFileRow]) -> None:
        super().__init__()
        self.rows = tuple(rows)


class StudyPlanned(Message):
    """The plan of a file was made."""

    def __init__(self, plan: StudyPlan) -> None:
        super().__init__()
        self.plan = plan


class FirstTrialChecked(Message):
    """All checks of a plan's first trial were made; ``problems`` are those that failed."""

    def __init__(self, plan: StudyPlan, problems: Sequence[str]) -> None:
        super().__init__()
        self.plan = plan
        self.problems = tuple(problems)


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
        kind = "pbt" if spec.pbt is not None else str(spec.sampler.kind)
        search = f"{kind} over {', '.join(spec.tuned)}"
        rows.append(StudyFileRow(path, clean(path.stem), clean(spec.profile), clean(search), ""))
    return sorted(rows, key=lambda row: bool(row.problem))


def make_plan(path: Path, workspace: Workspace, cwd: Path, situation: GpuSituation | None) -> StudyPlan:
    """What the study of a file would start here, as ``gputui study check --dry-run``, with the checks of its first
    trial that start no process."""
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
        checks = launch.check_first_trial(workspace, base, spec, situation, with_process=False)
    except (ProfileError, ResolveError) as error:
        return StudyPlan(path, problems=tuple(clean(line) for line in str(error).splitlines()))
    goal = " and ".join(f"{one.direction} {one.metric}" for one in spec.objectives)
    pruner = "" if spec.pruner.kind == "none" else f" · {spec.pruner.kind} pruner"
    points = plan["first_points"]
    details = [f"{goal} · {'pbt' if spec.pbt is not None else spec.sampler.kind} over {', '.join(spec.tuned)}{pruner}"]
    details += [f"trial {number}: {launch.point_words(point)}" for number, point in enumerate(points[:POINTS_SHOWN])]
    if len(points) > POINTS_SHOWN:
        details.append("…")
    details.append(launch.plan_cost(plan))
    return StudyPlan(
        path,
        clean(launch.plan_head(plan)),
        tuple(clean(line) for line in details),
        tuple(clean(f"{one.name}: {one.detail}; {one.remedy}") for one in checks if one.status == "fail"),
        spec,
        base,
        found.source,
    )


class ChooseStudyScreen(FileListScreen[StudyFileRow]):
    """The list of study files; the chosen one is started after a question."""

    SCOPE: ClassVar[Scope] = "study_files"

    def __init__(self) -> None:
        super().__init__("study_files")
        self._plans: dict[Path, StudyPlan] = {}
        self._planning: Path | None = None
        self._chosen: Path | None = None
        self._is_checking = False

    def on_mount(self) -> None:
        workspace = self.shell.workspace
        self._in_thread(lambda: self.post_message(FilesRead(study_file_rows(workspace, Path.cwd()))))

    def on_files_read(self, message: FilesRead) -> None:
        self.rows_read(message.rows)

    @property
    def found(self) -> Sequence[StudyFileRow]:
        return ranked(
            self.rows or (), self.edit.text, lambda row: (row.name, f"{row.profile} {row.search} {row.path}", True)
        )

    # --- the plan

    @property
    def _path(self) -> Path | None:
        """The file whose plan is shown: that of the typed path, or of the row under the cursor."""
        if self.current is not None:
            return self.current.path
        path = Path(self.edit.text.strip()).expanduser().absolute()
        return path if self.is_path and path.is_file() else None

    def _plan_next(self) -> None:
        """Make the plan of the file under the cursor, unless one is being made."""
        path = self._path
        if path is None or path in self._plans or self._planning is not None:
            return
        self._planning = path
        workspace, situation = self.shell.workspace, _situation(self.snapshot)
        self._in_thread(lambda: self.post_message(StudyPlanned(make_plan(path, workspace, Path.cwd(), situation))))

    def on_study_planned(self, message: StudyPlanned) -> None:
        self._planning = None
        self._plans[message.plan.path] = message.plan
        if self._chosen == message.plan.path:
            self._ask(message.plan)
        self.changed()

    @staticmethod
    def _in_thread(work: Callable[[], object]) -> None:
        threading.Thread(target=work, name="study files", daemon=True).start()

    # --- drawing

    def draw(self, width: int, height: int) -> None:
        self._plan_next()
        height -= self.draw_frame(width)
        placed = place(_COLUMNS, width - 2)
        rows: list[Line] = [[("  ", "text"), *row_line(placed, row, width - 2)] for row in self.found]
        head: Line = [("  ", "text"), *head_line(placed, width - 2)]
        foot = self._plan_lines(width)[: max(0, height - 2 - min(len(rows), LEAST_ROWS))]
        note = "type to filter · ↵ start · a path opens a file"
        lines = self.list_lines("New study", note, head, rows, self._nothing(), width, height - len(foot))
        blanks = [fit_line([], width)] * (height - len(lines) - len(foot))
        self.pane.show([*lines, *blanks[:1], *foot, *blanks[1:]], height=height)

    def _nothing(self) -> str:
        if self.rows is None:
            return "Reading study files…"
        if not self.rows:
            return "There is no study file; docs/studies.md says how to write one."
        return "↵ starts this file." if self._path is not None else "No study file matches."

    def _plan_lines(self, width: int) -> list[Line]:
        path = self._path
        if path is None:
            return []
        plan = self._plans.get(path)
        lines = [rule("WHAT IT STARTS", width)]
        if plan is None:
            return [*lines, fit_line([("  checking…", "dim")], width)]
        if plan.head:
            lines += [fit_line([(f" {part}", "text")], width) for part in wrap(plan.head, width - 2)]
        for detail in plan.details:
            lines += [fit_line([(f"   {part}", "dim")], width) for part in wrap(detail, width - 4)]
        for problem in plan.problems:
            for number, part in enumerate(wrap(problem, width - 4)):
                lines.append(fit_line([(" ✗ " if not number else "   ", "bad"), (part, "text")], width))
        if not plan.problems:
            lines.append(fit_line([(" ✓ ", "good"), ("checked", "dim")], width))
        return lines

    # --- starting

    def take(self, chosen: StudyFileRow | Path) -> None:
        path = chosen if isinstance(chosen, Path) else chosen.path
        plan = self._plans.get(path)
        if plan is None:
            # Asked as soon as the plan is made.
            self._chosen = path
            return
        self._ask(plan)

    def _ask(self, plan: StudyPlan) -> None:
        """Ask whether to start a plan, or say why it cannot be."""
        self._chosen = None
        if plan.problems:
            self.shell.say(plan.problems[0], "warning")
        elif not self._is_checking:
            self.shell.confirmed("Start the study", f"Start {plan.head}?", lambda: self._check(plan))

    def _check(self, plan: StudyPlan) -> None:
        """Make the checks that start a process, then start the study."""
        from gputui.studies.launch import check_first_trial

        self._is_checking = True
        self.shell.say("Checking the first trial…")
        workspace, situation = self.shell.workspace, _situation(self.snapshot)
        spec, base = plan.spec, plan.base
        assert spec is not None and base is not None

        def work() -> None:
            checks = check_first_trial(workspace, base, spec, situation)
            failed = [clean(f"{one.name}: {one.detail}; {one.remedy}") for one in checks if one.status == "fail"]
            self.post_message(FirstTrialChecked(plan, failed))

        self._in_thread(work)

    def on_first_trial_checked(self, message: FirstTrialChecked) -> None:
        self._is_checking = False
        plan, workspace = message.plan, self.shell.workspace
        if message.problems:
            self.shell.say(message.problems[0], "error")
            return
        spec, base = plan.spec, plan.base
        assert spec is not None and base is not None
        if self in self.app.screen_stack:
            self.pop_until_active()
            self.app.pop_screen()
        self.shell.ask_by(
            f"Start the study {clean(spec.name)}", lambda: commands.start_study(workspace, base, spec, plan.source)
        )


def _situation(snapshot: Snapshot) -> GpuSituation | None:
    return situation_of(snapshot.agent, snapshot.gpus, snapshot.machine.quarantined, snapshot.alerts.last)


def _searched(row: StudyFileRow, width: int) -> list[Span]:
    return [(row.problem, "warn")] if row.problem else [(row.search, "text")]


_COLUMNS: tuple[Column[StudyFileRow], ...] = (
    Column("STUDY FILE", 18, lambda row, width: [(clip_middle(row.name, width), "accent")], grow=1, most=32),
    Column("PROFILE", 14, lambda row, width: [(clip_middle(row.profile, width), "text")], grow=1, most=28),
    Column("SEARCH", 24, _searched, grow=3),
)
