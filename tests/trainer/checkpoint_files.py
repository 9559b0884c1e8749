"""Small checkpoints for tests, and ways to spoil them."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainer.checkpoints import files, streams
from trainer.errors import CheckpointError


def write(content: object, path: Path) -> None:
    """Write a file of a checkpoint with its hash."""
    with files.unfinished(path) as temporary:
        sha256, _ = streams.write(content, temporary)
        files.publish(temporary, path, sha256, {})
    files.settle(path, sha256, {})


def is_valid(path: Path) -> bool:
    try:
        files.verify(path)
    except CheckpointError:
        return False
    return True


def save(directory: Path, step: int, **values: object) -> Path:
    """A real checkpoint of a few values."""
    path = files.step_file(directory, step)
    write({"format": files.FORMAT, "step": step, **values}, path)
    return path


def pretend(path: Path, *, valid: bool = True) -> Path:
    """A file with its hash that rotation takes for a checkpoint, made without torch."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(path.name.encode())
    digest = hashlib.sha256(path.name.encode() if valid else b"something else").hexdigest()
    files.hash_file(path).write_text(f"{digest}  {path.name}\n")
    return path


def listing(directory: Path) -> list[str]:
    """All files below a directory, relative to it."""
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())


def contents(directory: Path) -> dict[str, bytes]:
    return {name: (directory / name).read_bytes() for name in listing(directory)}


def flip_a_byte(path: Path, position: int | None = None) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2 if position is None else position] ^= 0x10
    path.write_bytes(content)


class BadDisk:
    """A disk at whose operation of a number, counted from 0, it fails: once, from then on, or the process is killed."""

    def __init__(self, patch: pytest.MonkeyPatch, operation: int, how: str) -> None:
        self.failures = 0
        self._left = operation
        self._how = how
        for owner, name in ((Path, "replace"), (Path, "hardlink_to"), (os, "fsync")):
            patch.setattr(owner, name, self._bad(getattr(owner, name)))
        if how == "killed":
            for owner, name in ((Path, "unlink"), (shutil, "rmtree")):
                patch.setattr(owner, name, self._bad(getattr(owner, name)))

    def _bad(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self._left -= 1
            if self._left == -1 or (self._left < 0 and self._how == "lasting"):
                if self._how == "killed":
                    os._exit(9)
                self.failures += 1
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return function(*args, **kwargs)

        return call


def in_a_child(function: Callable[[], None]) -> int:
    """The exit code of a forked process that calls `function`; 9 where it was ended on the way."""
    child = os.fork()
    if child == 0:
        try:
            function()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
