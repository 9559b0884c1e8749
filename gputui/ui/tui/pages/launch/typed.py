"""A command line that a person types in place of a profile, and the completion of its paths. Reads folders only."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

YAML_SUFFIXES = (".yaml", ".yml")


def words_of(text: str) -> list[str]:
    """The words of a command line, also while a quote is still open."""
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def command_in(text: str, cwd: Path, *, is_filter: bool) -> tuple[str, ...]:
    """The words of a typed command, a file or a program; none for a profile's path, and for the name
    of a program alone where it is a filter that profiles match."""
    words = words_of(text)
    if not words or words[0].endswith(YAML_SUFFIXES):
        return ()
    is_file = (cwd / words[0]).is_file()
    is_program = (len(words) > 1 or not is_filter) and shutil.which(words[0]) is not None
    if is_file or is_program:
        return tuple(words)
    return ()


def complete(text: str, cwd: Path) -> tuple[str, Sequence[str]]:
    """The text with its last word completed as a path as far as files agree, and their names."""
    last = text.rpartition(" ")[2]
    folder, _, begun = last.rpartition("/")
    base = cwd / Path(f"{folder}/" if folder or last.startswith("/") else ".").expanduser()
    try:
        entries = sorted(base.iterdir())
    except OSError:
        return text, ()
    fit = [
        entry.name + "/" * entry.is_dir()
        for entry in entries
        if entry.name.startswith(begun) and (begun or not entry.name.startswith("."))
    ]
    agreed = len(begun)
    while fit and agreed < len(min(fit, key=len)) and len({name[: agreed + 1] for name in fit}) == 1:
        agreed += 1
    return text[: len(text) - len(begun)] + (fit[0][:agreed] if fit else begun), fit
