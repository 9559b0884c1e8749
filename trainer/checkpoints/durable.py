"""Files that are whole or not there."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from trainer.checkpoints import names


def replace(path: Path, content: bytes) -> None:
    """Gives a small file its content in one go. Raises OSError; the file is then as it was."""
    temporary = names.temporary_file(path)
    with removed_on_failure(temporary):
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)


@contextlib.contextmanager
def removed_on_failure(temporary: Path) -> Iterator[None]:
    """Deletes an unfinished file if anything is raised."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
