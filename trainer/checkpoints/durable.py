"""Atomic writes of small files."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from trainer.checkpoints import names


def replace(path: Path, content: bytes) -> None:
    """Replace the content of a file atomically. Raises OSError; the file is unchanged then."""
    temporary = names.temporary_file(path)
    with removed_on_failure(temporary):
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)


@contextlib.contextmanager
def removed_on_failure(temporary: Path) -> Iterator[None]:
    """Delete an unfinished file if anything is raised inside."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
