"""Files that a sink writes: lines that are appended, or a file that is replaced as a whole."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from gputui.core.files import replaced
from gputui.reports.export.formats import LOCAL_DATABASE
from gputui.reports.export.sink import ExportError, Position, Sink, TargetTakenError
from gputui.reports.export.subject import Subject
from gputui.store.metrics.exported import Item


class LineFile:
    """A file that is appended to, after truncating it to the position of the predecessor. Bytes are
    on the disk when `append` returns. The umask sets the permissions. Raises OSError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IO[bytes] | None = None
        self.size = 0

    def open(self) -> int:
        """Create or open the file. Returns its size in bytes."""
        self.close()
        # Neither truncated nor in append mode: what lies behind `size` is overwritten.
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._file = os.fdopen(descriptor, "r+b", buffering=0)
        self.size = os.fstat(descriptor).st_size
        return self.size

    def starts_with(self, head: bytes) -> bool:
        assert self._file is not None
        return os.pread(self._file.fileno(), len(head), 0) == head

    def cut(self, size: int) -> None:
        """Truncate the file."""
        assert self._file is not None
        os.ftruncate(self._file.fileno(), size)
        self.size = size

    def append(self, data: bytes) -> None:
        """Write behind what was written. Raises ExportError if the path has another file now."""
        assert self._file is not None
        if not self._is_still_there():
            raise ExportError(f"{self.path} was moved or removed")
        remaining = memoryview(data)
        while remaining:
            written = os.pwrite(self._file.fileno(), remaining, self.size)
            self.size += written
            remaining = remaining[written:]
        os.fdatasync(self._file.fileno())

    def _is_still_there(self) -> bool:
        assert self._file is not None
        try:
            return os.path.samestat(os.fstat(self._file.fileno()), self.path.stat())
        except OSError:
            return False

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class WholeFileSink(Sink):
    """A file that is written again and replaced, so that readers always find a complete one.
    Subclasses define `fill`."""

    def __init__(self, subject: Subject, target: str) -> None:
        super().__init__(subject, target)
        self._is_behind = True

    @abstractmethod
    def fill(self, subject: Subject, file: IO[bytes]) -> int:
        """Write the whole run into an empty file. Returns the rows. Raises ExportError or
        OSError."""

    def refuse_taken(self) -> None:
        refuse_full_file(Path(self._target))

    def begin(self, position: Position) -> bool:
        self._is_behind = not position or bool(position.get("is_behind"))
        return self._is_behind or not Path(self._target).exists()

    def write(self, items: Sequence[Item], has_more: bool) -> None:
        self._is_behind = True
        if has_more:
            return
        with replaced(Path(self._target)) as file:
            self.written = self.fill(self._subject, file)
        self._is_behind = False

    def position(self) -> Position:
        return {"is_behind": self._is_behind}


def refuse_other_than_files(path: Path) -> None:
    """Raise ExportError for a folder or a device; replacing one would harm the machine."""
    try:
        is_other = path.exists() and not path.is_file()
    except OSError as error:
        raise cannot_write(path, error) from error
    if is_other:
        what = "a folder" if path.is_dir() else "no file"
        raise ExportError(f"{path} is {what}; choose another place")


def refuse_full_file(path: Path) -> None:
    """Raise ExportError if the file has content."""
    refuse_other_than_files(path)
    if path.exists() and path.stat().st_size > 0:
        raise TargetTakenError(f"{path} exists already; move it away or choose another place")


def refuse_full_folder(target: Path) -> None:
    """Raise ExportError unless a folder is new or empty: TensorBoard and W&B treat a whole folder
    as one run."""
    try:
        if target.is_dir() and any(target.iterdir()):
            raise ExportError(f"{target} is not empty; choose another place")
        if target.exists() and not target.is_dir():
            raise ExportError(f"{target} is a file; choose another place")
    except OSError as error:
        raise cannot_write(target, error) from error


def make_folder(target: str) -> None:
    """Make the folder that an absolute target lies in; an address has one only in a local database.
    Raises ExportError."""
    folder = Path(target.removeprefix(LOCAL_DATABASE)).parent
    if not folder.is_absolute():
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(folder, error) from error


def cannot_write(path: Path, error: OSError) -> ExportError:
    why = error.strerror or error
    return ExportError(f"cannot write {path}: {why}; choose another place or make room")
