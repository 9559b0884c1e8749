"""Removing a run's folder: it is out of the way at once, and deleted in a thread, for that may take minutes where
checkpoints are large."""

from __future__ import annotations

import logging
import shutil
import threading
from pathlib import Path

from gputui.config import PRIVATE_DIR_MODE, Workspace

log = logging.getLogger(__name__)


def put_away(workspace: Workspace, run_id: str) -> threading.Thread | None:
    """Take a run's folder out of the runs and begin to delete it; None where there is none. Raises OSError with nothing
    changed."""
    folder = workspace.run_dir(run_id)
    if not folder.exists():
        return None
    kept = workspace.state / "removed"
    kept.mkdir(mode=PRIVATE_DIR_MODE, exist_ok=True)
    number = 1
    while (target := kept / f"{run_id}.{number}").exists():
        number += 1
    folder.rename(target)
    return _delete([target])


def go_on(workspace: Workspace) -> threading.Thread | None:
    """Delete what a former agent did not get to; None where there is nothing."""
    kept = workspace.state / "removed"
    left = list(kept.iterdir()) if kept.is_dir() else []
    return _delete(left) if left else None


def _delete(folders: list[Path]) -> threading.Thread:
    def work() -> None:
        for folder in folders:
            try:
                shutil.rmtree(folder)
            except OSError as error:
                log.warning("%s cannot be deleted, the next agent tries again: %s", folder, error)

    thread = threading.Thread(target=work, name="remove", daemon=True)
    thread.start()
    return thread
