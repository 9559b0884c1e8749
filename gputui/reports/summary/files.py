"""The files of a report, written all or none."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path


class ReportError(Exception):
    """The report cannot be written. The text has the reason and a remedy."""


def write_files(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write files into a folder, which is created if necessary. All of them are on the disk under other names before
    the first is renamed. Raises ReportError."""
    beside = {name: folder / f".{name}.{os.getpid()}.new" for name in contents}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            with beside[name].open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        taken = next((folder / name for name in contents if (folder / name).is_dir()), None)
        if taken is not None:
            raise IsADirectoryError(None, f"{taken.name} is a folder")
        for name, path in beside.items():
            path.replace(folder / name)
    except OSError as error:
        raise ReportError(
            f"cannot write into {folder}: {error.strerror or error}; choose another folder with --out"
        ) from error
    finally:
        for path in beside.values():
            with contextlib.suppress(OSError):
                path.unlink()
