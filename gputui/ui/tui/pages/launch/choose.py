"""Choosing the profile to launch: a list to filter, the last used first; a typed path opens any file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from gputui.core.config import Workspace
from gputui.core.text import clean, clip_middle
from gputui.core.units import ago
from gputui.metrics.draw.raster import Span
from gputui.store.runs import Run
from gputui.ui.tui.actions import Scope
from gputui.ui.tui.layout.columns import Column
from gputui.ui.tui.pages.file_list import FileListScreen
from gputui.ui.tui.pages.launch.form import Prefill
from gputui.ui.tui.pages.launch.page import LaunchScreen
from gputui.ui.tui.pages.launch.plan import profile_path, read_profiles

if TYPE_CHECKING:
    from gputui.profiles.profile_file import ProfileEntry


class ProfileRow(NamedTuple):
    """One profile of the list. ``missing`` names what it lacks on this machine; ``used_at`` is UTC unix seconds."""

    path: Path
    name: str
    description: str
    gpus: str
    used_at: float | None
    missing: str


def profile_rows(
    workspace: Workspace, cwd: Path, runs: Sequence[Run], gpu_count: int, environ: Mapping[str, str]
) -> list[ProfileRow]:
    """All named profiles and all profile files of runs: the last used first, then those that can be launched here. The
    first call is slow: it imports pydantic."""
    used: dict[str, float] = {}
    for run in runs:
        key = profile_path(run) or run.profile
        used[key] = max(used.get(key, 0.0), run.created_at)
    entries = read_profiles(workspace, cwd, tuple(path for path in used if path.startswith("/")))
    rows = [_row(entry, used, gpu_count, environ) for entry in entries]
    return sorted(rows, key=lambda row: (-(row.used_at or 0.0), bool(row.missing)))


def _row(entry: ProfileEntry, used: Mapping[str, float], gpu_count: int, environ: Mapping[str, str]) -> ProfileRow:
    at = max((used[key] for key in (str(entry.path.resolve()), entry.name) if key in used), default=None)
    profile = entry.profile
    if profile is None:
        problem = (str(entry.error).splitlines() or ["cannot be read"])[0]
        return ProfileRow(entry.path, clean(entry.name), "", "", at, clean(f"broken: {problem}"))
    wanted = profile.form.gpus
    count = 1 if wanted.is_all else wanted.count or len(wanted.devices)
    gpus = "all GPUs" if wanted.is_all else "CPU" if not count else "1 GPU" if count == 1 else f"{count} GPUs"
    missing = f"needs {gpus}, this machine has {gpu_count}" if count > gpu_count else _missing_data(entry, environ)
    return ProfileRow(entry.path, clean(entry.name), clean(profile.description), gpus, at, missing)


def _missing_data(entry: ProfileEntry, environ: Mapping[str, str]) -> str:
    from gputui.profiles.preflight import missing_data
    from gputui.profiles.resolve import ResolveError, working_directory

    assert entry.profile is not None
    try:
        workdir = working_directory(entry.profile, environ)
    except ResolveError:
        return ""
    params = {name: parameter.default for name, parameter in entry.profile.parameters.items()}
    return ", ".join(f"needs {name} ({clean(str(params[name]))})" for name, _ in missing_data(params, workdir, environ))


class ChooseProfileScreen(FileListScreen[ProfileRow]):
    """The list of profiles; the chosen one opens the launch form."""

    SCOPE: ClassVar[Scope] = "profiles"
    TITLE = "Launch"
    WHAT = "profile"
    VERB = "choose"

    def __init__(self, near: str | None = None) -> None:
        """``near``: the path of the profile that the cursor starts on."""
        super().__init__()
        self._near = near

    def on_mount(self) -> None:
        workspace, snapshot = self.shell.workspace, self.snapshot
        runs, gpu_count = [row.run for row in snapshot.runs], len(snapshot.gpus)

        def take(rows: Sequence[ProfileRow]) -> None:
            near = None if self._near is None else Path(self._near).resolve()
            self.rows_read(rows, next((row.path for row in rows if row.path.resolve() == near), None))

        self.in_thread(lambda: profile_rows(workspace, Path.cwd(), runs, gpu_count, os.environ), take)

    @staticmethod
    def searched(row: ProfileRow) -> str:
        return row.description

    def columns(self) -> Sequence[Column[ProfileRow]]:
        now = self.snapshot.at

        def state(row: ProfileRow, width: int) -> list[Span]:
            used = "" if row.used_at is None else f"used {ago(now - row.used_at)}"
            return [(row.missing, "warn") if row.missing else (used, "dim")]

        return (
            Column("PROFILE", 18, lambda row, width: [(clip_middle(row.name, width), "accent")], grow=1, most=32),
            Column("", 20, lambda row, _: [(row.description, "text")], importance=1, grow=3),
            Column("GPUS", 8, lambda row, _: [(row.gpus, "text")]),
            Column("LAST USED", 24, state, grow=2, most=60),
        )

    def take(self, path: Path) -> None:
        self.app.push_screen(LaunchScreen(Prefill(path.stem, path=str(path))))
