"""A file of lines that one process appends to, after truncating it to the position of its predecessor."""

from __future__ import annotations

import os
from pathlib import Path

from gputui.reports.export.sink import ExportError, TargetTakenError


class LineFile:
    """Bytes are on the disk when `append` returns. The umask sets the permissions.

    Raises OSError.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = -1
        self.size = 0

    def refuse_taken(self) -> None:
        """Raise ExportError if the file has content."""
        self.refuse_other_than_files()
        if self.path.exists() and self.path.stat().st_size > 0:
            raise TargetTakenError(f"{self.path} exists already; move it away or choose another place")

    def refuse_other_than_files(self) -> None:
        """Raise ExportError for a folder or a device; replacing one would harm the machine."""
        try:
            is_other = self.path.exists() and not self.path.is_file()
        except OSError as error:
            raise cannot_write(self.path, error) from error
        if is_other:
            what = "a folder" if self.path.is_dir() else "no file"
            raise ExportError(f"{self.path} is {what}; choose another place")

    def open(self) -> int:
        """Create or open the file. Returns its size in bytes."""
        self.close()
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self._descriptor = os.open(self.path, flags, 0o666)
        self.size = os.fstat(self._descriptor).st_size
        return self.size

    def starts_with(self, head: bytes) -> bool:
        return os.pread(self._descriptor, len(head), 0) == head

    def cut(self, size: int) -> None:
        """Truncate the file."""
        os.ftruncate(self._descriptor, size)
        self.size = size

    def append(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            written = os.pwrite(self._descriptor, left, self.size)
            self.size += written
            left = left[written:]
        os.fdatasync(self._descriptor)

    def is_still_there(self) -> bool:
        """Whether the path still leads to the open file."""
        try:
            return os.path.samestat(os.fstat(self._descriptor), self.path.stat())
        except OSError:
            return False

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def cannot_write(path: Path, error: OSError) -> ExportError:
    return ExportError(f"cannot write {path}: {error.strerror or error}; choose another place or make room")


def refuse_full_folder(target: Path) -> None:
    """Raise ExportError unless a folder is new or empty: TensorBoard and W&B treat a whole folder as one run."""
    try:
        if target.is_dir() and any(target.iterdir()):
            raise ExportError(f"{target} is not empty; choose another place")
        if target.exists() and not target.is_dir():
            raise ExportError(f"{target} is a file; choose another place")
    except OSError as error:
        raise cannot_write(target, error) from error
