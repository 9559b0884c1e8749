"""A home that a group may read: its state folder, its database, and the folders and logs of its runs.

Specifications, environments and everything else stay private. New folders get the group from the
one above; the agent gives them its permissions, and the logs in them, as runs begin.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from gputui.agent.context import AgentContext
from gputui.core.config import PRIVATE_DIR_MODE, SHARED_DIR_MODE, SHARED_FILE_MODE, Workspace
from gputui.core.yaml_forms.problems import ProfileError
from gputui.profiles.home_files import SettingsFile, load_group


@dataclass(slots=True)
class GroupAccess:
    """The group of ``record.yaml``, and up to when attempts were shared (UTC unix seconds)."""

    context: AgentContext
    group: int | None = None
    shared_until: float = 0.0
    file: SettingsFile[int | None] = field(init=False)

    def __post_init__(self) -> None:
        self.file = SettingsFile(self.context.workspace.record, load_group)

    def poll(self) -> None:
        """Follow the file, and share what is new: all folders of the attempts that live, which may have got others.

        A mistake in the file changes nothing. If something cannot be shared, nothing is, until the file changes.
        Raises sqlite3.Error.
        """
        try:
            self._follow_file()
            if self.group is not None:
                self._share_new(self.group)
        except OSError as error:
            text = f"the access of the group of record.yaml to {error.filename} cannot be changed: {error.strerror}"
            self.context.note("home_not_shared", f"{text}; are you in it?", severity="warning")
            self.group = None
            with suppress(OSError):
                close(self.context.workspace)

    def _follow_file(self) -> None:
        """Take over what the file says, and close a home that is no longer shared. Raises OSError."""
        version = self.file.newer()
        if version is None:
            return
        self.file.follow(version)
        # The janitor, which reads the rest of the file, reports a mistake in it.
        if isinstance(version.content, ProfileError):
            return
        self.group = version.content
        self.shared_until = 0.0
        if self.group is None:
            close(self.context.workspace)

    def _share_new(self, group: int) -> None:
        """Share the home, and the attempts that have lived since the last time. Raises OSError."""
        workspace = self.context.workspace
        now = self.context.now()
        rows = self.context.connection.execute(
            "SELECT run_id, number FROM attempts WHERE coalesce(ended_at, 9e999) >= ?", (self.shared_until,)
        )
        attempts = [workspace.run_dir(run_id) / "attempts" / str(number) for run_id, number in rows.fetchall()]
        share(workspace, group, attempts)
        self.shared_until = now


def share(workspace: Workspace, group: int, attempts: Iterable[Path]) -> None:
    """Let a group read a home and the folders of these attempts. Raises OSError."""
    database = workspace.database
    database_files = [database.with_name(database.name + suffix) for suffix in ("", "-wal", "-shm")]
    paths = [workspace.state, *database_files, workspace.agent_lock, workspace.runs]
    for attempt in attempts:
        run = attempt.parent.parent
        paths += [run, run / "metrics.jsonl", attempt.parent, attempt, *_shared_below(attempt)]
    for path in paths:
        with suppress(FileNotFoundError):
            _let_read(path, group)


def _let_read(path: Path, group: int) -> None:
    """Give a group the right to read a file or list a folder. Raises OSError."""
    status = path.stat()
    mode = SHARED_DIR_MODE if stat.S_ISDIR(status.st_mode) else SHARED_FILE_MODE
    if status.st_gid != group:
        os.chown(path, -1, group)
    # A new owner takes away a folder's mark that what is made in it gets its group.
    if status.st_gid != group or stat.S_IMODE(status.st_mode) != mode:
        path.chmod(mode)


def _shared_below(folder: Path) -> Iterator[Path]:
    """The folders of an attempt, and its logs."""
    for root, folders, files in os.walk(folder):
        yield from (Path(root, name) for name in folders)
        yield from (Path(root, name) for name in files if name.endswith(".log"))


def close(workspace: Workspace) -> None:
    """Keep everybody else out again. Raises OSError."""
    for folder in (workspace.state, workspace.runs):
        folder.chmod(PRIVATE_DIR_MODE)
