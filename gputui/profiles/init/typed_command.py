"""Split a typed training command into launcher, script and options. Runs and imports nothing."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from gputui.core.errors import ExplainedError
from gputui.core.yaml_forms.problems import nearest_file
from gputui.runs.launchers import FOR_COMMAND, FOR_RANKS, FOR_SCRIPT, LAUNCHERS
from gputui.runs.launchers.base import Launcher

SHELLS = ("bash", "sh", "zsh")
_MAKERS = ("make", "just")
_PYTHON = re.compile(r"python[\d.]*")
_ASSIGNMENT = re.compile(r"[+~]{0,2}[A-Za-z_][\w./@-]*=")


class DraftError(ExplainedError):
    """No profile can be made of the command. One line that says why and what to do."""


@dataclass(slots=True)
class TypedCommand:
    """A typed command: ``torchrun --nproc-per-node=2 train.py --lr 0.1`` has the launcher torchrun, ``nproc`` 2, the
    script train.py and the arguments ``--lr 0.1``.

    Attributes:
        python: A typed interpreter but ``python`` itself, which is that of the shell.
        program: The beginning of a command that stays as it was typed, as in ``make train``.
        nproc: None if it was not typed.
    """

    launcher: Launcher = FOR_RANKS
    python: str | None = None
    script: str | None = None
    module: str | None = None
    program: list[str] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)
    nproc: int | None = None


def split_command(command_line: Sequence[str], folder: Path) -> TypedCommand:
    """Split a command that was typed in ``folder``. Raises DraftError."""
    if not command_line or not command_line[0]:
        raise DraftError("name a script (train.py) or a command (-- torchrun train.py --lr 0.1)")
    _check_first_word(command_line, folder)
    first = Path(command_line[0]).name
    if first.endswith(".py"):
        return TypedCommand(script=command_line[0], arguments=list(command_line[1:]))
    launcher = _typed_launcher([first, *command_line[1:]])
    if launcher is not None:
        return _after_launcher(command_line, command_line[1:], TypedCommand(launcher=launcher))
    if _PYTHON.fullmatch(first):
        return _python_command(command_line)
    if first.endswith(".ipynb"):
        return _notebook(command_line, folder)
    return _other_command(command_line, folder)


def _check_first_word(command_line: Sequence[str], folder: Path) -> None:
    """Raise DraftError if a command cannot begin so."""
    first = command_line[0]
    path = folder / command_line[0]
    if first.startswith("-"):
        raise DraftError(
            f"{first} is no option of gputui here, and a command begins with its script or program: train.py {first}"
        )
    if path.is_dir():
        raise DraftError(f"{first} is a folder; name a script in it, or type: -- python -m PACKAGE")
    if re.search(r"\s", first) and shutil.which(first) is None and not path.exists():
        line = shlex.join(["bash", "-c", *command_line])
        raise DraftError(f"{first!r} is one word; for a line of the shell type: -- {line}")
    if _ASSIGNMENT.match(first):
        raise DraftError(f"{first}: set variables before gputui, and name here only the command behind them")
    if path.suffix in (".py", ".ipynb", ".sh") and not path.is_file():
        meant = None
        if path.parent.is_dir():
            meant = nearest_file(path.name, [file.name for file in path.parent.iterdir()])
        if meant is None:
            raise DraftError(f"{first}: no such file")
        raise DraftError(f"{first}: no such file; did you mean {meant}?")


def _python_command(command_line: Sequence[str]) -> TypedCommand:
    """``python -u train.py --lr 0.1``, or ``python -m`` with a module or a launcher's module. With
    other options of the interpreter the line stays as it was typed."""
    command = TypedCommand(launcher=FOR_SCRIPT)
    if command_line[0] != "python":
        command.python = command_line[0]
    rest = list(command_line[1:])
    while rest[:1] == ["-u"]:  # gputui sets PYTHONUNBUFFERED
        rest.pop(0)
    if rest[:1] == ["-m"] and len(rest) > 1:
        launcher = _typed_launcher(rest[1:])
        if launcher is not None:
            command.launcher = launcher
            return _after_launcher(command_line, rest[2:], command)
        command.module = rest[1]
        command.arguments = rest[2:]
        return command
    if not rest:
        raise DraftError(f"{' '.join(command_line)}: no script is named; put it first, its options behind it")
    if rest[0].startswith("-"):
        return _unchanged(command_line)
    command.script = rest[0]
    command.arguments = rest[1:]
    return command


def _notebook(command_line: Sequence[str], folder: Path) -> TypedCommand:
    """A notebook, executed into the run's folder by papermill, which prints what its cells do, or by
    nbconvert."""
    if shutil.which("papermill") is not None:
        program = ["papermill", "--log-output", command_line[0], f"{{run_dir}}/{Path(command_line[0]).name}"]
    elif shutil.which("jupyter-nbconvert") is not None:
        program = ["jupyter-nbconvert", "--to", "notebook", "--execute", command_line[0], "--output-dir", "{run_dir}"]
    else:
        raise DraftError(
            f"{command_line[0]}: a notebook runs by papermill or jupyter nbconvert, and neither is on PATH"
        )
    return TypedCommand(launcher=FOR_COMMAND, program=program, arguments=list(command_line[1:]))


def _other_command(command_line: Sequence[str], folder: Path) -> TypedCommand:
    """A command that is no script of Python; a file of this folder is named as the shell needs it."""
    first = command_line[0]
    program = list(command_line[:1])
    file = folder / first
    if file.is_file() and ("/" in first or shutil.which(first) is None):
        if first.endswith(".sh") and not os.access(file, os.X_OK):
            program = ["bash", first]
        elif not os.access(file, os.X_OK):
            raise DraftError(f"{first} is neither a Python script nor a program; chmod +x makes it one")
        elif "/" not in first:
            program = [f"./{first}"]
    return _unchanged([*program, *command_line[1:]])


def _unchanged(command_line: Sequence[str]) -> TypedCommand:
    """A command that stays as it was typed, apart from its options. These begin behind the script of
    Python or of the shell, or with the first option or ``NAME=VALUE``."""
    script = None
    if Path(command_line[0]).name not in (*SHELLS, *_MAKERS):
        script = next((word for word in command_line if word.endswith(".py")), None)
    end = _program_length(command_line, script)
    return TypedCommand(
        launcher=FOR_COMMAND, script=script, program=list(command_line[:end]), arguments=list(command_line[end:])
    )


def _program_length(command_line: Sequence[str], script: str | None) -> int:
    """The number of words before a command's options."""
    first = Path(command_line[0]).name
    if script is not None:
        return command_line.index(script) + 1
    if first.endswith(".sh"):
        return 1
    places = range(1, len(command_line))
    if first in SHELLS:
        ends = [place + 1 for place in places if not command_line[place].startswith("-")]
    elif first in _MAKERS:
        ends = [place for place in places if _ASSIGNMENT.match(command_line[place])]
    else:
        # python -m package.train, or python -c CODE
        ends = [
            place + 2
            for place in places
            if command_line[place] in ("-m", "-c") and _PYTHON.fullmatch(Path(command_line[place - 1]).name)
        ]
        ends += [place for place in places if command_line[place][:1] == "-" or _ASSIGNMENT.match(command_line[place])]
    return min([*ends[:1], len(command_line)])


def _typed_launcher(command_line: Sequence[str]) -> Launcher | None:
    """The launcher that a command begins with: its program, or its module behind ``python -m``."""
    for launcher in LAUNCHERS.values():
        typed = launcher.typed
        if typed is not None and command_line[0] in typed.programs and typed.subcommand in (None, *command_line[1:2]):
            return launcher
    return None


def _after_launcher(typed: Sequence[str], rest: Sequence[str], command: TypedCommand) -> TypedCommand:
    """Read the launcher's options and the script from ``rest``. A line with an option that a
    profile cannot express stays as it was ``typed``."""
    form = command.launcher.typed
    arguments = list(rest)
    assert form is not None
    command.nproc = _typed_count(rest, form.count)
    if form.subcommand is not None:
        arguments.pop(0)
    while arguments:
        word = arguments.pop(0)
        option, equals, _ = word.partition("=")
        if option in ("-m", "--module"):
            command.module = next(iter(arguments), None)
            command.arguments = arguments[1:]
            break
        if not word.startswith("-"):
            command.script = word
            command.arguments = arguments
            break
        if form.replaced is not None and option not in (*form.replaced, *form.count, *form.flags):
            return replace(_unchanged(typed), nproc=command.nproc)
        is_value_next = bool(arguments) and not arguments[0].startswith("-") and not arguments[0].endswith(".py")
        if not equals and option not in form.flags and is_value_next:
            arguments.pop(0)
    if command.script is None and command.module is None:
        raise DraftError(f"no script is named behind {command.launcher.name}")
    return command


def _typed_count(arguments: Sequence[str], names: Sequence[str]) -> int | None:
    """The number of processes that a launcher's options ask for; None without one, or for a word
    such as ``gpu``."""
    for index, word in enumerate(arguments):
        option, equals, value = word.partition("=")
        if option in names:
            if not equals:
                value = "".join(arguments[index + 1 : index + 2])
            if value.isdigit():
                return int(value)
            return None
    return None


def script_file(command: TypedCommand, folder: Path) -> Path | None:
    """The Python script that trains; None if it cannot be found."""
    if command.script is not None:
        return folder / command.script
    if command.module is None:
        return None
    path = folder.joinpath(*command.module.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__main__.py") if file.is_file()), None)


def number_or_text(text: str) -> int | float | str:
    """The number that a word spells, else the word."""
    if re.fullmatch(r"[-+]?\d+", text):
        return int(text)
    if re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", text):
        return float(text)
    return text
