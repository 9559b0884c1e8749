"""Choosing the profile to launch: a list to filter, the last used first; a typed path opens any file."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from textual.message import Message

from gputui.core.config import Workspace
from gputui.core.text import clean, clip_middle
from gputui.core.units import ago
from gputui.metrics.draw.parts import Line
from gputui.metrics.draw.raster import Span
from gputui.store.runs import Run
from gputui.ui.tui.actions import Scope
from gputui.ui.tui.dialogs.palette import ranked
from gputui.ui.tui.layout.columns import Column, head_line, place, row_line
from gputui.ui.tui.pages.launch.form import Prefill
from gputui.ui.tui.pages.launch.page import LaunchScreen
from gputui.ui.tui.pages.launch.plan import is_same_file, profile_path, read_profiles
from gputui.ui.tui.widgets.file_list import FileListScreen

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


class RowsRead(Message):
    """The profiles were read."""

    def __init__(self, rows: Sequence[ProfileRow]) -> None:
        super().__init__()
        self.rows = tuple(rows)


def profile_rows(
    workspace: Workspace, cwd: Path, runs: Sequence[Run], gpu_count: int, environ: Mapping[str, str]
) -> list[ProfileRow]:
    """All named profiles and all profile files of runs: the last used first, then those that can be launched here. The
    first call is slow: it imports pydantic."""
    used: dict[str, float] = {}
    for run in runs:
        path = profile_path(run)
        key = path or run.profile
        used[key] = max(used.get(key, 0.0), run.created_at)
    entries = list(read_profiles(workspace, cwd, tuple(path for path in used if path.startswith("/"))))
    rows = [_row(entry, used, gpu_count, environ) for entry in entries]
    return sorted(rows, key=lambda row: (-(row.used_at or 0.0), bool(row.missing)))


def _row(entry: ProfileEntry, used: Mapping[str, float], gpu_count: int, environ: Mapping[str, str]) -> ProfileRow:
    at = max((used[key] for key in (str(entry.path.resolve()), entry.name) if key in used), default=None)
    profile = entry.profile
    if profile is None:
        problem = str(entry.error).splitlines()[0] if str(entry.error) else "cannot be read"
        return ProfileRow(entry.path, clean(entry.name), "", "", at, clean(f"broken: {problem}"))
    wanted = profile.form.gpus
    count = 1 if wanted.is_all else wanted.count or len(wanted.devices)
    gpus = "all GPUs" if wanted.is_all else "CPU" if not count else "1 GPU" if count == 1 else f"{count} GPUs"
    missing = f"needs {gpus}, this machine has {gpu_count}" if count > gpu_count else ""
    if not missing:
        missing = _missing_data(entry, environ)
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

    def __init__(self, near: str | None = None) -> None:
        """``near``: the path of the profile that the cursor starts on."""
        super().__init__("profiles")
        self._near = near

    def on_mount(self) -> None:
        workspace, snapshot = self.shell.workspace, self.snapshot
        runs, gpu_count = [row.run for row in snapshot.runs], len(snapshot.gpus)

        def work() -> None:
            self.post_message(RowsRead(profile_rows(workspace, Path.cwd(), runs, gpu_count, os.environ)))

        threading.Thread(target=work, name="profiles", daemon=True).start()

    def on_rows_read(self, message: RowsRead) -> None:
        if self._near is not None:
            near = self._near
            self.place = next((n for n, row in enumerate(message.rows) if is_same_file(row.path, near)), 0)
        self.rows_read(message.rows)

    @property
    def found(self) -> Sequence[ProfileRow]:
        return ranked(self.rows or (), self.edit.text, lambda row: (row.name, f"{row.description} {row.path}", True))

    def draw(self, width: int, height: int) -> None:
        height -= self.draw_frame(width)
        placed = place(_COLUMNS, width - 2)
        rows: list[Line] = [
            [("  ", "text"), *row_line(placed, (row, self.snapshot.at), width - 2)] for row in self.found
        ]
        head: Line = [("  ", "text"), *head_line(placed, width - 2)]
        note = "type to filter · ↵ choose · a path opens a file"
        lines = self.list_lines("Launch", note, head, rows, self._nothing(), width, height)
        self.pane.show(lines, height=height)

    def _nothing(self) -> str:
        if self.rows is None:
            return "Reading profiles…"
        if not self.rows:
            return "There is no profile; docs/profiles.md says how to write one."
        return "↵ opens this file." if self.is_path else "No profile matches."

    def take(self, chosen: ProfileRow | Path) -> None:
        path = chosen if isinstance(chosen, Path) else chosen.path
        self.app.push_screen(LaunchScreen(Prefill(path.stem, path=str(path))))


_Row = tuple[ProfileRow, float]


def _state(item: _Row, width: int) -> list[Span]:
    row, now = item
    if row.missing:
        return [(row.missing, "warn")]
    return [(f"used {ago(now - row.used_at)}" if row.used_at is not None else "", "dim")]


_COLUMNS: tuple[Column[_Row], ...] = (
    Column("PROFILE", 18, lambda item, width: [(clip_middle(item[0].name, width), "accent")], grow=1, most=32),
    Column("", 20, lambda item, width: [(item[0].description, "text")], importance=1, grow=3),
    Column("GPUS", 8, lambda item, width: [(item[0].gpus, "text")]),
    Column("LAST USED", 24, _state, grow=2, most=60),
)
