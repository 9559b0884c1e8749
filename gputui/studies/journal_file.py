"""The file of Optuna's journal of a study, which any process of the user may write to, and be killed
meanwhile."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from pathlib import Path
from typing import Any

from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock
from optuna.storages.journal._storage import JournalStorageReplayResult

from gputui.studies.rows import JOURNAL_FILE

LOCK_SECONDS = 5
"""A lock that one process holds for so long belongs to one that was killed: an append takes
milliseconds."""


def open_storage(folder: Path, report: Callable[[str], None] = lambda _: None) -> JournalStorage:
    """The storage in a study's folder. ``report`` takes a sentence about each line that Optuna cannot
    read, and that was moved to another file."""
    file = folder / JOURNAL_FILE
    lock = _JournalLock(str(file), grace_period=LOCK_SECONDS)
    # Optuna checks nothing: a line may raise any error.
    with suppress(Exception):
        backend = _JournalFile(str(file), lock)
        storage = JournalStorage(backend)
        if backend.is_read_to_its_end:
            return storage
    for sentence in _move_broken_lines(file, lock):
        report(sentence)
    return JournalStorage(_JournalFile(str(file), lock))


def _move_broken_lines(file: Path, lock: _JournalLock) -> list[str]:
    """Move lines that Optuna cannot read, such as one that was cut and appended to, to another file;
    returns a sentence about each. No process could read on behind it."""
    whole_lines: list[bytes] = []
    broken: dict[int, bytes] = {}
    beside = file.with_suffix(".broken")
    whole = file.with_suffix(".new")
    lock.acquire()
    try:
        with file.open("rb") as lines:
            replay = JournalStorageReplayResult("")
            for number, line in enumerate(lines, 1):
                try:
                    replay.apply_logs([json.loads(line)])
                    whole_lines.append(line)
                except Exception:
                    broken[number] = line
        if broken:
            with beside.open("ab") as moved:
                moved.writelines(broken.values())
            whole.write_bytes(b"".join(whole_lines))
            whole.replace(file)
    finally:
        lock.release()
    return [f"{file}, line {number} is no entry of a journal; it was moved to {beside.name}" for number in broken]


class _JournalLock(JournalFileSymlinkLock):
    """Optuna's lock, also where a process that was killed has locked by a relative path: its link
    leads nowhere from here, and Optuna would try for ever without a pause."""

    def acquire(self) -> bool:
        while Path(self._lock_file).is_symlink() and not Path(self._lock_file).exists():
            with suppress(OSError):
                if time.time() - os.lstat(self._lock_file).st_mtime > LOCK_SECONDS:
                    Path(self._lock_file).unlink()
            time.sleep(0.01)
        return super().acquire()


class _JournalFile(JournalFileBackend):
    """A journal that is as safe as the database: kills lose nothing, and a power failure the newest
    lines, which `gputui.studies.view` adds again."""

    def __init__(self, file: str, lock: _JournalLock) -> None:
        super().__init__(file, lock)
        self._file = Path(file)
        self._own_lock = lock

    @property
    def is_read_to_its_end(self) -> bool:
        return self._file.stat().st_size == max(self._log_number_offset.values())

    def read_logs(self, log_number_from: int) -> Generator[dict[str, Any], None, None]:
        # Optuna asks for the trials dozens of times for each point; mostly nothing is new.
        size = self._file.stat().st_size
        read = self._log_number_offset.get(log_number_from)
        if read is not None and size < read:
            raise OSError(f"{self._file} was cut by another process")
        if size != read:
            yield from super().read_logs(log_number_from)

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        lines = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in logs)
        self._own_lock.acquire()
        try:
            self._remove_torn_tail()
            with self._file.open("ab") as file:
                file.write(lines.encode())
        finally:
            self._own_lock.release()

    def _remove_torn_tail(self) -> None:
        """Remove a last line that a full disk or a kill cut: what follows it would be lost."""
        with self._file.open("r+b") as file:
            size = file.seek(0, os.SEEK_END)
            if size == 0:
                return
            file.seek(size - 1)
            if file.read(1) != b"\n":
                file.seek(0)
                file.truncate(file.read().rfind(b"\n") + 1)
