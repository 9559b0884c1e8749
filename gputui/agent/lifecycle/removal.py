"""Removal of a run. Its row is deleted in the transaction of the command's answer, its metrics lines, which may be
millions, by the janitor, and its folder by a job.

What is left to delete is known from the store and the folder ``removed`` alone (sources of metrics without a run, and
folders whose run is gone), so that the successor of a killed agent continues.
"""

from __future__ import annotations

import logging
import shutil
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from msgspec import Struct

from gputui.agent.context import AgentContext
from gputui.core.config import PRIVATE_DIR_MODE, Workspace
from gputui.runs.executors import EXECUTORS, Executors
from gputui.runs.spec import SpecError
from gputui.runs.submission import SPEC_FILE, read_spec

log = logging.getLogger(__name__)

FOLDER_SECONDS = 3600.0


class RemovedFolder(Struct, frozen=True):
    """A run's folder that was moved from ``origin`` to ``path``, where it is deleted."""

    origin: Path
    path: Path

    def restore(self) -> None:
        """Move it back, because its run was not removed."""
        try:
            self.path.rename(self.origin)
        except OSError as error:
            log.warning("%s cannot be put back, the next agent tries again: %s", self.path, error)


def move_to_removed(workspace: Workspace, run_id: str) -> RemovedFolder | None:
    """Move a run's folder to ``removed``; None if there is none. Raises OSError with nothing changed."""
    folder = workspace.run_dir(run_id)
    if not folder.exists():
        return None
    removed = workspace.state / "removed"
    removed.mkdir(mode=PRIVATE_DIR_MODE, exist_ok=True)
    number = 1
    while (target := removed / f"{run_id}.{number}").exists():
        number += 1
    folder.rename(target)
    return RemovedFolder(folder, target)


@dataclass(slots=True)
class Removal:
    """All removals of one state directory."""

    context: AgentContext

    def begin(self) -> None:
        """Delete the folders that a former agent left. One whose run still exists is restored, because its removal was
        not completed."""
        removed = self.context.workspace.state / "removed"
        for path in list(removed.iterdir()) if removed.is_dir() else []:
            origin = self.context.workspace.run_dir(path.name.rpartition(".")[0])
            known = self.context.connection.execute("SELECT 1 FROM runs WHERE run_id = ?", (origin.name,)).fetchone()
            folder = RemovedFolder(origin, path)
            if known is not None and not origin.exists():
                folder.restore()
            else:
                self.delete_folder(folder)

    def delete_folder(self, folder: RemovedFolder) -> None:
        """Delete a folder in a job: large checkpoints take minutes."""
        self.context.jobs.start(
            f"remove {folder.origin.name}",
            partial(_delete, folder.path, self.context.executors),
            deadline_seconds=FOLDER_SECONDS,
        )


def _delete(folder: Path, executors: Executors) -> None:
    """Delete a run's folder, and its files on its target. If the target cannot be reached, the records with its address
    stay here. A link, or a file in the folder's place, is unlinked."""
    if folder.is_symlink() or not folder.is_dir():
        try:
            folder.unlink(missing_ok=True)
        except OSError as error:
            log.warning("%s cannot be deleted, the next agent tries again: %s", folder, error)
        return
    try:
        target = read_spec(folder / SPEC_FILE).target
    except SpecError:
        target = None
    try:
        if target is not None and target.get("kind") in EXECUTORS:
            executors.of(target).clear(folder, target)
    except OSError as error:
        log.warning("%s is not removed where it ran, the next agent tries again: %s", folder.name, error)
        for path in folder.rglob("*"):
            if path.suffix != ".json" and (path.is_symlink() or not path.is_dir()):
                with suppress(OSError):
                    path.unlink()
        return
    except Exception:
        log.exception("%s: the records of what is elsewhere are damaged; remove that by hand", folder.name)
    try:
        shutil.rmtree(folder)
    except OSError as error:
        log.warning("%s cannot be deleted, the next agent tries again: %s", folder, error)
