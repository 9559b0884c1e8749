"""Split a typed training command into launcher, script and options. Runs and imports nothing."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gputui.profiles.init.script_survey import Option
from gputui.runs.launchers import FOR_COMMAND, FOR_RANKS, FOR_SCRIPT, LAUNCHERS
from gputui.runs.launchers.base import Launcher

SHELLS = ("bash", "sh", "zsh")
_ASSIGNMENT = re.compile(r"[A-Za-z_][\w.]*=")


class DraftError(Exception):
    """No profile can be drafted. One line that says why and what to do."""


@dataclass(slots=True)
class TypedCommand:
    """A typed command: ``torchrun --nproc-per-node=2 train.py --lr 0.1`` has the launcher torchrun,
    ``nproc`` 2, the script train.py and the words ``--lr 0.1``. ``program`` begins a command
    without a launcher, as in ``make train``.
    """

    launcher: Launcher = FOR_RANKS
    python: str | None = None
    script: str | None = None
    module: str | None = None
    program: list[str] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    nproc: int | None = None


def split_command(words: Sequence[str], folder: Path) -> TypedCommand:
    """Split a command that was typed in ``folder``. Raises DraftError."""
    if not words:
        raise DraftError(
            "name a script (gputui init train.py) or a command (gputui init -- torchrun train.py --lr 0.1)"
        )
    first = Path(words[0]).name
    if words[0].startswith("-"):
        raise DraftError(f"no option {words[0]} of gputui init; a command that begins so goes behind --")
    if _ASSIGNMENT.match(words[0]):
        raise DraftError(f"{words[0]}: write variables as env: in the profile, and here only the command behind them")
    if len(words) == 1 and words[0].endswith(".py"):
        if not (folder / words[0]).is_file():
            raise DraftError(f"{words[0]}: no such file")
        return TypedCommand(script=words[0], python=_python_beside(folder))
    if (launcher := _typed_launcher([first, *words[1:]])) is not None:
        return _after_launcher(words, words[1:], TypedCommand(launcher=launcher, python=_python_beside(folder)), folder)
    if re.fullmatch(r"python[\d.]*", first):
        return _python_command(words, folder)
    return _other_command(words, folder)


def _python_command(words: Sequence[str], folder: Path) -> TypedCommand:
    """``python -u train.py --lr 0.1``, or ``python -m`` with a module or a launcher's module."""
    python = words[0] if "/" in words[0] else _python_beside(folder)
    command = TypedCommand(launcher=FOR_SCRIPT, python=python)
    rest = list(words[1:])
    while rest[:1] and rest[0] in ("-u", "-O", "-B"):
        rest.pop(0)
    if rest[:1] == ["-m"] and len(rest) > 1:
        if (launcher := _typed_launcher(rest[1:])) is not None:
            command.launcher = launcher
            return _after_launcher(words, rest[2:], command, folder)
        command.module, command.words = rest[1], rest[2:]
        return command
    if not rest or rest[0].startswith("-"):
        raise DraftError(f"{' '.join(words)}: no script is named; put it first, its options behind it")
    command.script, command.words = rest[0], rest[1:]
    return command


def _other_command(words: Sequence[str], folder: Path) -> TypedCommand:
    """A command that stays as it was typed, apart from its options. These begin behind the Python
    script or the shell script, or with the first ``NAME=VALUE``."""
    first = Path(words[0]).name
    file = folder / words[0]
    if file.exists() and shutil.which(words[0]) is None and not (file.is_file() and os.access(file, os.X_OK)):
        raise DraftError(f"{words[0]} is neither a Python script nor a program; see gputui init --help")
    script = None
    if first in SHELLS:
        ends = (index + 1 for index, word in enumerate(words) if index and not word.startswith("-"))
    elif first not in ("make", "just") and (script := next((word for word in words if word.endswith(".py")), None)):
        ends = (index + 1 for index, word in enumerate(words) if word == script)
    else:
        ends = (index for index, word in enumerate(words) if _ASSIGNMENT.match(word))
    end = next(ends, len(words))
    return TypedCommand(launcher=FOR_COMMAND, script=script, program=list(words[:end]), words=list(words[end:]))


def _typed_launcher(words: Sequence[str]) -> Launcher | None:
    """The launcher that a command begins with: its program, or its module behind ``python -m``."""
    for launcher in LAUNCHERS.values():
        typed = launcher.typed
        if typed is not None and words[0] in typed.programs and typed.subcommand in (None, *words[1:2]):
            return launcher
    return None


def _after_launcher(typed: Sequence[str], rest: Sequence[str], command: TypedCommand, folder: Path) -> TypedCommand:
    """Read the launcher's options and the script from ``rest``. A line with an option that a
    profile cannot express stays as it was ``typed``."""
    form, words = command.launcher.typed, list(rest)
    assert form is not None
    if form.subcommand is not None:
        words.pop(0)
    while words:
        word = words.pop(0)
        option, equals, value = word.partition("=")
        if option in ("-m", "--module"):
            command.module, command.words = words[0] if words else None, words[1:]
            return command
        if not word.startswith("-"):
            command.script, command.words = word, words
            return command
        if form.replaced is not None and option not in (*form.replaced, *form.count, *form.flags):
            return _other_command(typed, folder)
        if option in form.flags:
            continue
        value = value if equals else words.pop(0) if words else ""
        if option in form.count and value.isdigit():
            command.nproc = int(value)
    raise DraftError(f"no script is named behind {command.launcher.name}")


def _python_beside(folder: Path) -> str | None:
    return next((name for name in (".venv/bin/python", "venv/bin/python") if (folder / name).exists()), None)


def script_file(command: TypedCommand, folder: Path) -> Path | None:
    """The Python script that trains; None if it cannot be found."""
    if command.script is not None:
        return folder / command.script
    if command.module is None:
        return _script_named_by(command, folder)
    path = folder.joinpath(*command.module.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__main__.py") if file.is_file()), None)


def _script_named_by(command: TypedCommand, folder: Path) -> Path | None:
    """The first Python script that the shell script or Makefile of a command names."""
    file = _command_file(command, folder)
    if file is None:
        return None
    names = re.findall(r"[\w./-]+\.py\b", file.read_text("utf-8", "replace"))
    # A shell variable before the name hides its folder; the file's own folder is the best guess.
    candidates = (base / each for name in names for base in (folder, file.parent) for each in (name, Path(name).name))
    return next((path for path in candidates if path.is_file()), None)


def command_text(command: TypedCommand, folder: Path) -> str:
    """The Makefile or shell script that a command runs, "" for none."""
    file = _command_file(command, folder)
    return "" if file is None else file.read_text("utf-8", "replace")


def _command_file(command: TypedCommand, folder: Path) -> Path | None:
    if not command.program:
        return None
    first, *names = command.program
    if Path(first).name == "make":
        names = ["Makefile", "makefile", "GNUmakefile"]
    return next((folder / name for name in names if (folder / name).is_file()), None)


def command_options(command: TypedCommand, text: str) -> dict[str, Option]:
    """The variables of a command's Makefile, or the named arguments of its shell script."""
    first = Path(command.program[0]).name
    if first == "make":
        return _make_variables(text)
    return _shell_arguments(text) if first in SHELLS or first.endswith(".sh") else {}


def _make_variables(text: str) -> dict[str, Option]:
    """``BATCH ?= 32`` of a Makefile."""
    pairs = re.findall(r"^([A-Za-z_]\w*)\s*[?:]?=[ \t]*(\S*)[ \t]*$", text, re.MULTILINE)
    return {name: Option(name, name, number_or_text(value)) for name, value in pairs}


def _shell_arguments(text: str) -> dict[str, Option]:
    """``OUT=${1:-out}`` and ``epochs=$2`` of a shell script, up to an argument without a name."""
    pairs = re.findall(
        r"^[ \t]*(?:export |local )?([A-Za-z_]\w*)=\"?\$\{?(\d)(?::?-([^}\s]*))?\}?\"?[ \t]*$", text, re.MULTILINE
    )
    named = {int(place): (name, default) for name, place, default in reversed(pairs)}
    options: dict[str, Option] = {}
    for place in range(1, len(named) + 1):
        if place not in named:
            break
        name, default = named[place]
        options[name] = Option("", name, number_or_text(default), is_required=not default)
    return options


def as_number(text: str) -> int | float | None:
    """The number that a word spells, or None."""
    value = number_or_text(text)
    return None if isinstance(value, str) else value


def number_or_text(text: str) -> int | float | str:
    if re.fullmatch(r"[-+]?\d+", text):
        return int(text)
    return float(text) if re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", text) else text
