"""The text of a YAML file that a person wrote, with a sentence where it cannot be had."""

from __future__ import annotations

import stat
from pathlib import Path

from gputui.profiles.problems import Problem, ProfileError, shown_path
from gputui.profiles.yamldoc import MAX_BYTES


def read_text(path: Path, what: str = "profile") -> str:
    """The file's text; ``what`` is what it should be. Only a regular file is opened: a pipe could block for ever.

    Raises ProfileError.
    """
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise whole_file(path, f"is a folder; a {what} is a YAML file")
        if not stat.S_ISREG(status.st_mode):
            raise whole_file(path, "is not a regular file")
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise whole_file(path, f"cannot be read: {error.strerror or error}".lower()) from error
    except ValueError as error:
        raise whole_file(path, "is no file's name") from error
    if len(content) > MAX_BYTES:
        raise whole_file(path, f"is larger than {MAX_BYTES >> 20} MiB, which no {what} is")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        text = "not UTF-8; save it in that encoding"
        raise ProfileError([Problem(shown_path(path), line, None, "", text)]) from error


def whole_file(path: Path, text: str) -> ProfileError:
    """An error about the file as a whole."""
    return ProfileError([Problem(shown_path(path), None, None, "", text)])
