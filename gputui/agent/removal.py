"""The folders of removed runs.

A run's row is deleted in the transaction of the command's answer, its metrics lines by the janitor,
and its folder, once it lies in ``removed``, by a job. The successor of a killed agent finds there
what is left to delete.
"""

from __future__ import annotations

import logging
import shutil
from contextlib import suppress
from functools import partial
from pathlib import Path

from gputui.agent.context import AgentContext
from gputui.core.config import PRIVATE_DIR_MODE, Workspace
from gputui.runs.executors import EXECUTORS, Executors
from gputui.runs.spec import SpecError
from gputui.runs.submission import SPEC_FILE, read_spec
from gputui.store.runs import get_run

log = logging.getLogger(__name__)

# Large checkpoints take minutes.
DEADLINE_SECONDS = 3600.0


def move_to_removed(workspace: Workspace, run_id: str) -> Path | None:
    """Move a run's folder to ``removed``; None if there is none. Raises OSError with nothing
    changed."""
    folder = workspace.run_dir(run_id)
    if not folder.exists():
        return None
    removed = workspace.state / "removed"
    removed.mkdir(mode=PRIVATE_DIR_MODE, exist_ok=True)
    number = 1
    while (target := removed / f"{run_id}.{number}").exists():
        number += 1
    return folder.rename(target)


def finish_removals(context: AgentContext) -> None:
    """Delete the folders that a former agent left. One whose run still exists is moved back,
    because its removal was not completed."""
    removed = context.workspace.state / "removed"
    for path in list(removed.iterdir()) if removed.is_dir() else []:
        origin = context.workspace.run_dir(path.name.rpartition(".")[0])
        if get_run(context.connection, origin.name) is not None and not origin.exists():
            path.rename(origin)
        else:
            delete_folder(context, path)


def delete_folder(context: AgentContext, folder: Path) -> None:
    """Delete a removed folder in a job: large checkpoints take minutes."""
    work = partial(_delete, folder, context.executors)
    context.jobs.start(f"remove {folder.name}", work, deadline_seconds=DEADLINE_SECONDS)


def _delete(folder: Path, executors: Executors) -> None:
    """Delete a run's folder, and its files on its target. If the target cannot be reached, the
    records with its address stay here."""
    target = None
    with suppress(SpecError):
        target = read_spec(folder / SPEC_FILE).target
    try:
        if target is not None and target.get("kind") in EXECUTORS:
            executors.of(target).clear(folder, target)
        shutil.rmtree(folder)
    except OSError as error:
        log.warning("%s is not removed, the next agent tries again: %s", folder.name, error)
        for path in folder.rglob("*"):
            if path.suffix != ".json" and (path.is_symlink() or not path.is_dir()):
                with suppress(OSError):
                    path.unlink()
