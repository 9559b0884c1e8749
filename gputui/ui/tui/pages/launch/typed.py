"""A command line that a person types in place of a profile, and the completion of its paths. Reads folders only."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Sequence
from os.path import commonprefix
from pathlib import Path

YAML_SUFFIXES = (".yaml", ".yml")


def split_words(text: str) -> list[str]:
    """The words of a command line, also while a quote is still open."""
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def command_of(text: str, cwd: Path, *, is_filter: bool) -> tuple[str, ...]:
    """The words of a typed command, a file or a program; none for a profile's path, and for the name
    of a program alone where it is a filter that profiles match."""
    argv = split_words(text)
    if not argv or argv[0].endswith(YAML_SUFFIXES):
        return ()
    is_file = (cwd / argv[0]).is_file()
    is_program = (len(argv) > 1 or not is_filter) and shutil.which(argv[0]) is not None
    if is_file or is_program:
        return tuple(argv)
    return ()


def complete(text: str, cwd: Path) -> tuple[str, Sequence[str]]:
    """The text with its last word completed as a path as far as files agree, and their names."""
    last = text.rpartition(" ")[2]
    folder, slash, begun = last.rpartition("/")
    base = cwd / Path(folder + slash).expanduser()
    try:
        entries = sorted(base.iterdir())
    except OSError:
        return text, ()
    names = [
        entry.name + "/" * entry.is_dir()
        for entry in entries
        if entry.name.startswith(begun) and (begun or not entry.name.startswith("."))
    ]
    if not names:
        return text, names
    # As far as the names agree; they are no paths.
    agreed = commonprefix(names)  # noqa: RUF071
    return text[: len(text) - len(begun)] + agreed, names
