"""A run's checkpoints for its page: listed, and the newest one checked, in a thread of their own. A folder may lie on
a slow file system, and a check reads all of the file: neither may delay a snapshot."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path

from gputui.charts.safe_text import clean
from gputui.tui.snapshot import Checkpoint, CheckpointList

LIST_SECONDS = 5.0
MOST_LISTED = 50

CHECKED_UNASKED_BYTES = 256 * 1024 * 1024
"""A larger one is read only when somebody asks: the training needs the disk too."""


@dataclass(frozen=True, slots=True)
class _Wish:
    folder: Path
    pattern: str
    to_check: str | None


class CheckpointReader:
    """Follows one run's checkpoints. `read` gives what is known and never waits."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._wish: _Wish | None = None
        self._listed_at = float("-inf")
        self._found: tuple[Hashable, CheckpointList] = (None, CheckpointList())
        self._checked: dict[Hashable, tuple[bool, str]] = {}
        self._thread: threading.Thread | None = None

    def read(self, folder: Path, pattern: str, to_check: str | None = None) -> CheckpointList:
        """The checkpoints, newest first. ``to_check`` names one whose content is to be checked whatever its size."""
        wish = _Wish(folder, pattern, to_check)
        now = self._clock()
        is_busy = self._thread is not None and self._thread.is_alive()
        if not is_busy and (wish != self._wish or now - self._listed_at >= LIST_SECONDS):
            self._wish, self._listed_at = wish, now
            self._thread = threading.Thread(target=self._look, args=(wish,), name="checkpoints", daemon=True)
            self._thread.start()
        found_for, found = self._found
        return found if found_for == (folder, pattern) else CheckpointList()

    def wait(self, seconds: float) -> None:
        """Wait until the look under way is over."""
        if self._thread is not None:
            self._thread.join(seconds)

    # --- the thread

    def _look(self, wish: _Wish) -> None:
        # Its libraries of archives and hashes are no part of what a screen needs to start.
        from gputui.recovery.checkpoints import candidates, validate

        paths = candidates(wish.folder, wish.pattern)
        listed = [self._checkpoint(path, wish.folder) for path in paths[:MOST_LISTED]]
        self._show(wish, listed, len(paths))
        for number, (path, found) in enumerate(zip(paths, listed, strict=False)):
            is_small = found.size_bytes is not None and found.size_bytes <= CHECKED_UNASKED_BYTES
            is_wanted = found.name == wish.to_check or (number == 0 and is_small)
            if is_wanted and found.is_valid is None:
                info = validate(path)
                self._checked[_identity(path, found)] = (info.valid, clean(info.why))
                listed[number] = self._checkpoint(path, wish.folder)
                self._show(wish, listed, len(paths))

    def _checkpoint(self, path: Path, folder: Path) -> Checkpoint:
        from gputui.recovery.checkpoints import step_of

        size, modified = _measure(path)
        bare = Checkpoint(clean(path.name), step_of(path, folder), size, modified)
        valid, why = self._checked.get(_identity(path, bare), (None, ""))
        return Checkpoint(bare.name, bare.step, size, modified, valid, why)

    def _show(self, wish: _Wish, listed: list[Checkpoint], count: int) -> None:
        # One assignment: the feed's thread reads it at any time.
        self._found = ((wish.folder, wish.pattern), CheckpointList(tuple(listed), count, is_known=True))


def _identity(path: Path, found: Checkpoint) -> Hashable:
    """A file that was written again is another one."""
    return (path, found.size_bytes, found.modified_at)


def _measure(path: Path) -> tuple[int | None, float | None]:
    """Size, of a folder that of all its files, and time of the last change; None where it is gone."""
    from gputui.recovery.checkpoint_folders import IncompleteError, files_of

    try:
        status = path.stat()
        if not path.is_dir():
            return status.st_size, status.st_mtime
        return sum(entry.stat().st_size for entry in files_of(path)), status.st_mtime
    except (OSError, IncompleteError):
        return None, None
