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
    first, *rest = command_line
    name = Path(first).name
    if name.endswith(".py"):
        return TypedCommand(script=first, arguments=rest)
    launcher = _typed_launcher([name, *rest])
    if launcher is not None:
        return _after_launcher(command_line, rest, TypedCommand(launcher=launcher))
    if _PYTHON.fullmatch(name):
        return _python_command(command_line)
    if name.endswith(".ipynb"):
        return _notebook(first, rest)
    return _other_command(command_line, folder)


def _check_first_word(command_line: Sequence[str], folder: Path) -> None:
    """Raise DraftError if a command cannot begin so."""
    first, *_ = command_line
    path = folder / first
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
    interpreter, *rest = command_line
    command = TypedCommand(launcher=FOR_SCRIPT)
    if interpreter != "python":
        command.python = interpreter
    while rest[:1] == ["-u"]:  # gputui sets PYTHONUNBUFFERED
        rest.pop(0)
    match rest:
        case []:
            raise DraftError(f"{' '.join(command_line)}: no script is named; put it first, its options behind it")
        case ["-m", module, *arguments]:
            launcher = _typed_launcher([module, *arguments])
            if launcher is not None:
                command.launcher = launcher
                return _after_launcher(command_line, arguments, command)
            command.module = module
            command.arguments = arguments
        case [option, *_] if option.startswith("-"):
            return _unchanged(command_line)
        case [script, *arguments]:
            command.script = script
            command.arguments = arguments
    return command


def _notebook(notebook: str, arguments: Sequence[str]) -> TypedCommand:
    """A notebook, executed into the run's folder by papermill, which prints what its cells do, or by
    nbconvert."""
    if shutil.which("papermill") is not None:
        program = ["papermill", "--log-output", notebook, f"{{run_dir}}/{Path(notebook).name}"]
    elif shutil.which("jupyter-nbconvert") is not None:
        program = ["jupyter-nbconvert", "--to", "notebook", "--execute", notebook, "--output-dir", "{run_dir}"]
    else:
        raise DraftError(f"{notebook}: a notebook runs by papermill or jupyter nbconvert, and neither is on PATH")
    return TypedCommand(launcher=FOR_COMMAND, program=program, arguments=list(arguments))


def _other_command(command_line: Sequence[str], folder: Path) -> TypedCommand:
    """A command that is no script of Python; a file of this folder is named as the shell needs it."""
    first, *rest = command_line
    file = folder / first
    is_path = "/" in first
    is_program_on_path = not is_path and shutil.which(first) is not None
    if is_program_on_path or not file.is_file():
        return _unchanged(command_line)
    if not os.access(file, os.X_OK):
        if first.endswith(".sh"):
            return _unchanged(["bash", first, *rest])
        raise DraftError(f"{first} is neither a Python script nor a program; chmod +x makes it one")
    if is_path:
        return _unchanged(command_line)
    return _unchanged([f"./{first}", *rest])


def _unchanged(command_line: Sequence[str]) -> TypedCommand:
    """A command that stays as it was typed, apart from its options. These begin behind the script of
    Python or of the shell, or with the first option or ``NAME=VALUE``."""
    script = None
    if _program_name(command_line) not in (*SHELLS, *_MAKERS):
        script = next((word for word in command_line if word.endswith(".py")), None)
    end = _program_length(command_line, script)
    return TypedCommand(
        launcher=FOR_COMMAND, script=script, program=list(command_line[:end]), arguments=list(command_line[end:])
    )


def _program_length(command_line: Sequence[str], script: str | None) -> int:
    """The number of words before a command's options."""
    if script is not None:
        return command_line.index(script) + 1
    program = _program_name(command_line)
    if program.endswith(".sh"):
        return 1
    numbered = list(enumerate(command_line))[1:]
    if program in SHELLS:
        ends = [place + 1 for place, word in numbered if not word.startswith("-")]
    elif program in _MAKERS:
        ends = [place for place, word in numbered if _ASSIGNMENT.match(word)]
    else:
        ends = [place + 2 for place, _ in numbered if _is_python_option(command_line, place)]
        ends += [place for place, word in numbered if word.startswith("-") or _ASSIGNMENT.match(word)]
    return min([*ends[:1], len(command_line)])


def _is_python_option(command_line: Sequence[str], place: int) -> bool:
    """Return whether a word belongs to the interpreter, with the next one: python -m package.train, python -c CODE."""
    return command_line[place] in ("-m", "-c") and _PYTHON.fullmatch(Path(command_line[place - 1]).name) is not None


def _program_name(command_line: Sequence[str]) -> str:
    program, *_ = command_line
    return Path(program).name


def _typed_launcher(command_line: Sequence[str]) -> Launcher | None:
    """The launcher that a command begins with: its program, or its module behind ``python -m``."""
    program, *rest = command_line
    for launcher in LAUNCHERS.values():
        form = launcher.typed
        if form is None or program not in form.programs:
            continue
        if form.subcommand is None or rest[:1] == [form.subcommand]:
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
        takes_value = not equals and option not in form.flags
        if takes_value and arguments and _may_be_value(arguments[0]):
            arguments.pop(0)
    if command.script is None and command.module is None:
        raise DraftError(f"no script is named behind {command.launcher.name}")
    return command


def _may_be_value(word: str) -> bool:
    """Return whether the word behind a launcher's option may be its value: no option, and no script."""
    return not word.startswith("-") and not word.endswith(".py")


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
