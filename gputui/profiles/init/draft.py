"""Draft a commented profile for a script or command that already trains. Reads its files; runs and
imports nothing. ``gputui init train.py`` may give, without its comments:

    name: project-train
    launcher: torchrun
    script: train.py
    gpus: 2
    params:
      lr: 0.1
    args: >-
      --lr {lr} --out {run_dir}/out
    metrics: auto
    checkpoints: {dir: "{run_dir}/out", resume: --resume {checkpoint}}
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from gputui.metrics.log_trial import Trial
from gputui.profiles.init.draft_arguments import DraftArguments, argument_of, quoted
from gputui.profiles.init.draft_outputs import checkpoint_lines, metrics_lines, yaml_text
from gputui.profiles.init.draft_subject import DraftNotes, DraftSubject, examine
from gputui.profiles.init.presets import PRESETS, Preset
from gputui.profiles.init.script_survey import SurveyError
from gputui.profiles.init.typed_command import SHELLS, DraftError, TypedCommand, split_command
from gputui.runs.command import format_value
from gputui.runs.launchers import FOR_SCRIPT
from gputui.runs.spec import Scalar

_SAYS_NOTHING = ("train", "main", "run", "__main__", "make", "just", "accelerate", "python", "uv", *SHELLS)
"""Names of scripts and programs that every project has."""

MAX_LEFT = 12
"""Options that a draft lists as left at the script's defaults."""


class Draft(Struct, frozen=True):
    """A drafted profile."""

    name: str
    text: str
    notes: DraftNotes


def draft(
    words: Sequence[str], folder: Path, *, preset: Preset | None = None, gpus: int = 0, trial: Trial | None = None
) -> Draft:
    """Draft a profile.

    Args:
        words: a script's path alone, or the command that trains.
        folder: where the profile will lie, and where relative paths of the command begin.
        preset: the script's framework, if it cannot be recognised.
        gpus: the number of GPUs of the machine.
        trial: what was learned of an old log.

    Raises DraftError, and SurveyError if the script cannot be read.
    """
    command = split_command(words, folder)
    subject = examine(command, folder, preset)
    if subject.preset is PRESETS["makefile"] and not command.launcher.takes_command:
        raise DraftError("preset makefile goes with a command: gputui init --preset makefile -- make train")
    if words[0] == command.script and not subject.is_distributed:
        command.launcher = FOR_SCRIPT
    notes = DraftNotes()
    survey = subject.survey
    if subject.preset is not None:
        notes.found.append(f"built on {subject.preset.title}" + ("" if preset is None else ", as given"))
    if survey.style is not None and survey.options:
        notes.found.append(f"{len(survey.options)} options ({survey.style})")
    arguments = DraftArguments(subject, notes)
    arguments.read()
    name = run_name(command, folder)
    lines = [
        f"# {name}, drafted by gputui init. gputui check shows what it would start; docs/recipes.md has more.",
        f"name: {name}",
        *_program_lines(command, folder),
        *_gpu_lines(subject, gpus),
        *_argument_lines(subject, arguments),
        *metrics_lines(subject, notes, trial),
        *checkpoint_lines(subject, arguments, notes),
    ]
    return Draft(name, "\n".join(lines) + "\n", notes)


def script_option(command: TypedCommand, folder: Path, name: str) -> tuple[Scalar, str] | None:
    """The default and the argument, such as ``--steps {steps}``, of a parameter for the script's
    option ``name``; None if the script has no such option."""
    try:
        subject = examine(command, folder)
    except SurveyError:
        return None
    option = subject.options.get(name.replace("-", "_"))
    if option is None:
        return None
    is_optional = option.is_flag or (option.default is None and option.flag)
    word = " ".join(argument_of(option.flag, subject.separator_of(option), name))
    return option.default, f"[{word}]" if is_optional else word


def run_name(command: TypedCommand, folder: Path) -> str:
    """A name after the script, module or program; behind that of its folder if it says nothing."""
    place = folder
    if command.module is not None:
        package, _, stem = command.module.rpartition(".")
        place = folder.joinpath(*package.split("."))
    elif command.script is not None:
        stem, place = Path(command.script).stem, (folder / command.script).parent
    else:
        program = command.program
        is_script = Path(program[0]).name in SHELLS and "-c" not in program
        stem = Path(program[-1 if is_script else 0]).stem
    if stem in _SAYS_NOTHING:
        stem = f"{place.resolve().name}-{stem}"
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", stem).strip("-._")[:64] or "training"


def _program_lines(command: TypedCommand, folder: Path) -> list[str]:
    """``launcher``, what it starts, and ``workdir``."""
    lines = [f"launcher: {command.launcher.name}"]
    if command.launcher.takes_command:
        lines.append(f"command: {yaml_text(quoted(command.program))}")
    else:
        lines.append(
            f"module: {command.module}" if command.module is not None else f"script: {yaml_text(str(command.script))}"
        )
        beside = (name for name in (".venv/bin/python", "venv/bin/python") if (folder / name).exists())
        python = command.python or next(beside, None)
        lines.append(
            f"python: {yaml_text(python)}"
            if python is not None
            else "# python: .venv/bin/python      # the training environment's; else the active one"
        )
    if command.module is not None or command.launcher.takes_command or command.script is None or "/" in command.script:
        lines.append("workdir: .")
    return lines


def _gpu_lines(subject: DraftSubject, gpus: int) -> list[str]:
    """``gpus`` and ``nproc``, on a machine with so many GPUs."""
    command = subject.command
    wanted = min(gpus, (command.nproc or gpus) if command.launcher.starts_ranks else 1)
    if wanted:
        return [f"gpus: {wanted}"]
    lines = ["gpus: 0                         # 0: processes on the CPU"]
    if command.launcher.starts_ranks and command.nproc:
        lines.append(f"nproc: {command.nproc}")
    elif command.launcher.starts_ranks:
        needed = ", which train one model only with --use_cpu" if subject.preset is PRESETS["hf"] else ""
        lines.append(f"# nproc: 2                    # ranks on the CPU{needed}; one without this line")
    return lines


def _argument_lines(subject: DraftSubject, arguments: DraftArguments) -> list[str]:
    """``params``, ``args`` and ``roles``."""
    lines: list[str] = []
    scopes = arguments.scopes
    if arguments.params:
        lines.append("params:")
    for name, value in arguments.params.items():
        if name in scopes:
            lines.append(f"  {name}: {{default: {_yaml_value(value)}, scope: global}}    # of all ranks together")
        else:
            lines.append(f"  {name}: {_yaml_value(value)}")
    if arguments.args:
        lines += ["args: >-", *(f"  {row}" for row in _wrapped([quoted(words) for words in arguments.args]))]
    elif not subject.command.launcher.takes_command:
        lines.append('args: ""')
    flags = {option.flag for option in subject.survey.options.values()}
    if own := [flag for flag in arguments.left if flag in flags]:
        shown = " ".join(own[:MAX_LEFT]) + (f" and {len(own) - MAX_LEFT} more" if len(own) > MAX_LEFT else "")
        lines.append(f"# with the script's own defaults: {shown}")
    if roles := arguments.roles:
        lines.append("roles: {" + ", ".join(f"{role}: {param}" for role, param in roles.items()) + "}")
    elif not any(meaning.role == "batch_size" for meaning in arguments.meanings.values()):
        lines.append("# no batch size was found that recovery could lower: roles: {batch_size: its_name}")
    return lines


def _yaml_value(value: Scalar) -> str:
    """A parameter's default in YAML."""
    if value is None:
        return "null"
    return json.dumps(value) if isinstance(value, str) else format_value(value)


def _wrapped(args: Sequence[str]) -> list[str]:
    rows = [""]
    for word in args:
        if rows[-1] and len(rows[-1]) + len(word) > 96:
            rows.append("")
        rows[-1] = f"{rows[-1]} {word}".strip()
    return rows
