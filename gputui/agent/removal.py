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
from gputui.runs.executors import Executors
from gputui.runs.executors.kinds import EXECUTORS
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
    _removed_dir(workspace).mkdir(mode=PRIVATE_DIR_MODE, exist_ok=True)
    return folder.rename(_unused_folder(workspace, run_id))


def _removed_dir(workspace: Workspace) -> Path:
    return workspace.state / "removed"


def _unused_folder(workspace: Workspace, run_id: str) -> Path:
    """The first ``RUN_ID.N`` that does not exist: a removed run may have had the same id."""
    number = 1
    while (folder := _removed_dir(workspace) / f"{run_id}.{number}").exists():
        number += 1
    return folder


def finish_removals(context: AgentContext) -> None:
    """Delete the folders that a former agent left. One whose run still exists is moved back,
    because its removal was not completed, unless a newer run of that id has its own folder."""
    removed = _removed_dir(context.workspace)
    if not removed.is_dir():
        return
    for folder in list(removed.iterdir()):
        run_id = folder.name.rpartition(".")[0]
        origin = context.workspace.run_dir(run_id)
        if get_run(context.connection, run_id) is not None and not origin.exists():
            folder.rename(origin)
        else:
            delete_folder(context, folder)


def delete_folder(context: AgentContext, folder: Path) -> None:
    """Delete a removed folder in a job: large checkpoints take minutes."""
    work = partial(_delete, folder, context.executors)
    context.jobs.start(f"remove {folder.name}", work, deadline_seconds=DEADLINE_SECONDS)


def _delete(folder: Path, executors: Executors) -> None:
    """Delete a run's folder, and its files on its target. If that fails, its records stay, with
    which the next agent tries again."""
    target = None
    try:
        target = read_spec(folder / SPEC_FILE).target
    except SpecError as error:
        log.warning("%s: if it ran on a target, its files there stay: %s", folder.name, error)
    if target is not None and target.get("kind") not in EXECUTORS:
        log.warning("%s: its files on its target stay: there is no target of kind %s", folder.name, target.get("kind"))
    elif target is not None:
        try:
            executors.of(target).clear(folder, target)
        except OSError as error:
            log.warning("%s: its target is not cleared, the next agent tries again: %s", folder.name, error)
            _keep_only_records(folder)
            return
    try:
        shutil.rmtree(folder)
    except OSError as error:
        log.warning("%s is not removed, the next agent tries again: %s", folder.name, error)
        _keep_only_records(folder)


def _keep_only_records(folder: Path) -> None:
    """Delete all files but the JSON records, which are small and contain the address on the
    target."""
    for path in folder.rglob("*"):
        if path.suffix != ".json" and (path.is_symlink() or not path.is_dir()):
            with suppress(OSError):
                path.unlink()
