"""What a person typed to train, taken apart: the launcher, the script and its options. Nothing is run or imported."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gputui.profiles.script_survey import Option
from gputui.runs.launchers import FOR_COMMAND, FOR_RANKS, FOR_SCRIPT, LAUNCHERS
from gputui.runs.launchers.base import Launcher

SHELLS = ("bash", "sh", "zsh")


class DraftError(Exception):
    """No profile can be drafted; one line that says why and what to do."""


@dataclass(slots=True)
class TypedCommand:
    """What was typed, taken apart. ``words`` follow the program."""

    launcher: Launcher = FOR_RANKS
    python: str | None = None
    script: str | None = None
    module: str | None = None
    program: list[str] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    nproc: int | None = None


def take_apart(words: Sequence[str], folder: Path) -> TypedCommand:
    """What was typed in ``folder``. Raises DraftError."""
    if not words:
        raise DraftError(
            "name a script (gputui init train.py) or a command (gputui init -- torchrun train.py --lr 0.1)"
        )
    first = Path(words[0]).name
    if words[0].startswith("-"):
        raise DraftError(f"no option {words[0]} of gputui init; a command that begins so goes behind --")
    if len(words) == 1 and words[0].endswith(".py"):
        if not (folder / words[0]).is_file():
            raise DraftError(f"{words[0]}: no such file")
        return TypedCommand(script=words[0], python=_python_beside(folder))
    if (launcher := _typed_launcher([first, *words[1:]])) is not None:
        return _behind_launcher(
            words, words[1:], TypedCommand(launcher=launcher, python=_python_beside(folder)), folder
        )
    if re.fullmatch(r"python[\d.]*", first):
        python = words[0] if "/" in words[0] else _python_beside(folder)
        command = TypedCommand(launcher=FOR_SCRIPT, python=python)
        rest = list(words[1:])
        while rest[:1] and rest[0] in ("-u", "-O", "-B"):
            rest.pop(0)
        if rest[:1] == ["-m"] and len(rest) > 1:
            if (launcher := _typed_launcher(rest[1:])) is not None:
                command.launcher = launcher
                return _behind_launcher(words, rest[2:], command, folder)
            command.module, command.words = rest[1], rest[2:]
            return command
        if not rest or rest[0].startswith("-"):
            raise DraftError(f"{' '.join(words)}: no script is named; put it first, its options behind it")
        command.script, command.words = rest[0], rest[1:]
        return command
    return _whole(words, folder)


def _whole(words: Sequence[str], folder: Path) -> TypedCommand:
    """A command as it was typed, its options aside."""
    first = Path(words[0]).name
    if (folder / words[0]).exists() and not _is_program(words[0], folder):
        raise DraftError(f"{words[0]} is neither a Python script nor a program; see gputui init --help")
    script = next((index for index, word in enumerate(words) if word.endswith(".py")), None)
    end = len(words) if script is None else script + 1
    if first in ("make", "bash", "sh", "just"):
        end = next((index for index, word in enumerate(words) if "=" in word), len(words))
        script = None
    if first in SHELLS:
        # What follows the shell script are its arguments.
        end = next((index + 1 for index, word in enumerate(words) if index and not word.startswith("-")), len(words))
    return TypedCommand(
        launcher=FOR_COMMAND,
        script=None if script is None else words[script],
        program=list(words[:end]),
        words=list(words[end:]),
    )


def _is_program(word: str, folder: Path) -> bool:
    path = folder / word
    return shutil.which(word) is not None or (path.is_file() and os.access(path, os.X_OK))


def _typed_launcher(words: Sequence[str]) -> Launcher | None:
    """The launcher that a command line begins with: its program, or its module behind ``python -m``."""
    for launcher in LAUNCHERS.values():
        typed = launcher.typed
        if typed is not None and words[0] in typed.programs and typed.subcommand in (None, *words[1:2]):
            return launcher
    return None


def _behind_launcher(typed: Sequence[str], rest: Sequence[str], command: TypedCommand, folder: Path) -> TypedCommand:
    """The launcher's own options, then the script. ``typed`` is the whole line, which stays the command as it is where
    it has an option that no profile can say."""
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
            return _whole(typed, folder)
        if option in form.flags:
            continue
        value = value if equals else words.pop(0) if words else ""
        if option in form.count and value.isdigit():
            command.nproc = int(value)
    raise DraftError(f"no script is named behind {command.launcher.name}")


def _python_beside(folder: Path) -> str | None:
    return next((name for name in (".venv/bin/python", "venv/bin/python") if (folder / name).exists()), None)


def script_file(command: TypedCommand, folder: Path) -> Path | None:
    """The Python script that trains, where it can be found."""
    if command.script is not None:
        return folder / command.script
    if command.module is None:
        return _script_behind(command, folder)
    path = folder.joinpath(*command.module.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__main__.py") if file.is_file()), None)


def _starting_file(command: TypedCommand, folder: Path) -> Path | None:
    """The shell script or Makefile that a command runs."""
    names = command.program[1:] if Path(command.program[0]).name != "make" else ["Makefile", "makefile", "GNUmakefile"]
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _script_behind(command: TypedCommand, folder: Path) -> Path | None:
    """The first Python script that the shell script or Makefile of a command names."""
    file = _starting_file(command, folder) if command.program else None
    if file is None:
        return None
    names = re.findall(r"[\w./-]+\.py\b", file.read_text("utf-8", "replace"))
    # A variable of the shell in front of a name hides where it lies; beside the file is the best guess.
    candidates = (base / each for name in names for base in (folder, file.parent) for each in (name, Path(name).name))
    return next((path for path in candidates if path.is_file()), None)


def command_options(command: TypedCommand, folder: Path) -> dict[str, Option]:
    """What the Makefile or shell script of a command takes: variables, or arguments that it gives a name."""
    return make_variables(command, folder) or _shell_arguments(command, folder)


def starting_text(command: TypedCommand, folder: Path) -> str:
    """The Makefile or shell script that a command runs, "" for none."""
    file = _starting_file(command, folder) if command.launcher.takes_command and command.program else None
    return "" if file is None else file.read_text("utf-8", "replace")


def _shell_arguments(command: TypedCommand, folder: Path) -> dict[str, Option]:
    """``OUT=${1:-out}`` and ``epochs=$2`` of a shell script, in the order of the arguments, as far as all are named."""
    if Path(command.program[0]).name not in SHELLS and not command.program[0].endswith(".sh"):
        return {}
    pairs = re.findall(
        r"^[ \t]*(?:export |local )?([A-Za-z_]\w*)=\"?\$\{?(\d)(?::?-([^}\s]*))?\}?\"?[ \t]*$",
        starting_text(command, folder),
        re.MULTILINE,
    )
    named = {int(place): (name, default) for name, place, default in reversed(pairs)}
    options: dict[str, Option] = {}
    for place in range(1, len(named) + 1):
        if place not in named:
            break
        name, text = named[place]
        value = text if (number := as_number(text)) is None else number
        options[name] = Option("", name, value, is_required=not text)
    return options


def make_variables(command: TypedCommand, folder: Path) -> dict[str, Option]:
    """``BATCH ?= 32`` of a Makefile."""
    file = _starting_file(command, folder)
    if file is None or Path(command.program[0]).name != "make":
        return {}
    pairs = re.findall(r"^([A-Za-z_]\w*)\s*[?:]?=[ \t]*(\S*)[ \t]*$", file.read_text("utf-8", "replace"), re.MULTILINE)
    return {
        name: Option(name, name, value if (number := as_number(value)) is None else number) for name, value in pairs
    }


def as_number(text: str) -> int | float | None:
    """The number that a word is; None if it is none."""
    if re.fullmatch(r"[-+]?\d+", text):
        return int(text)
    if re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", text):
        return float(text)
    return None
