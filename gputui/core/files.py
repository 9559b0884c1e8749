"""Files that are replaced as a whole: a reader finds the old content or the new, also after a crash."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO


@contextmanager
def replaced(path: Path, mode: int = 0o666) -> Iterator[IO[bytes]]:
    """A file that takes the place of ``path`` at the end, when it is on the disk; after an error
    nothing is left of it. The umask limits ``mode``. Raises OSError."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_native_id()}.new")
    try:
        with open(beside, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        with suppress(OSError):
            beside.unlink()
