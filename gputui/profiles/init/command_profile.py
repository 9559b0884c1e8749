"""The profile of a command that was typed, made in memory: `gputui run train.py --lr 0.1`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from pydantic import ValidationError

from gputui.profiles.init.draft_arguments import DraftArguments, argument_of
from gputui.profiles.init.draft_subject import DraftSubject, examine
from gputui.profiles.init.resume_form import resume_form
from gputui.profiles.init.script_survey import Survey, SurveyError
from gputui.profiles.init.typed_command import SHELLS, DraftError, TypedCommand, split_command
from gputui.profiles.profile_file import Profile
from gputui.profiles.schema import ProfileForm
from gputui.runs.launchers import FOR_RANKS, FOR_SCRIPT
from gputui.runs.spec import Scalar

_EVERY_PROJECTS = ("train", "main", "run", "__main__", "make", "just", "accelerate", "python", "uv", *SHELLS)
"""Names of scripts and programs that every project has."""


def command_profile(
    command_line: Sequence[str],
    folder: Path,
    *,
    verbs_options: Collection[str] = (),
    programs_options: Collection[str] = (),
) -> Profile:
    """The profile that runs a command as it was typed in ``folder``.

    Typed options are its parameters; the script is read, not run, for what they mean. It asks for as
    many GPUs as the launcher's options say, else for one.

    Raises DraftError, also for an option of gputui, of its verb or before that, behind a script that has no such
    option.
    """
    command = split_command(command_line, folder)
    if command_line[0] == command.script and command.launcher is FOR_RANKS:
        command.launcher = FOR_SCRIPT
    subject = DraftSubject(command, Survey(), preset=None, options={})
    with suppress(SurveyError):  # what is wrong with it, Python says better
        subject = examine(command, folder)
    arguments = DraftArguments(subject)
    survey = subject.survey
    if survey.has_all_options:
        for flag in arguments.undeclared:
            refusal = f"{command.script or command_line[0]} has no option {flag}; gputui's own"
            meant = meant_option(flag, verbs_options)
            if meant is not None:
                raise DraftError(f"{refusal}, {meant}, comes before the script")
            if flag in programs_options:
                raise DraftError(f"{refusal} comes directly behind gputui")
    try:
        form = ProfileForm.model_validate(command_keys(arguments, _processes(command)))
    except ValidationError as error:
        problem = error.errors()[0]
        raise DraftError(f"{problem['msg']}: {problem['input']!s:.80}; write a profile for it") from error
    profile = Profile.of_form(form, run_name(command, folder), path=None, folder=folder, typed=command_line)
    return replace(profile, spellings=arguments.spellings)


def meant_option(flag: str, options: Iterable[str]) -> str | None:
    """The option that an unknown ``flag`` was probably meant for: ``-o`` and ``--output`` for ``--out``."""
    typed = f"--{flag.lstrip('-')}"
    alike = [option for option in options if option.startswith(typed) or typed.startswith(option)]
    if len(alike) == 1:
        return alike[0]
    return None


def command_keys(arguments: DraftArguments, processes: Mapping[str, int]) -> dict[str, Any]:
    """The keys of the profile of a command, in the order of a file; ``processes`` are those for GPUs and ranks."""
    command = arguments.subject.command
    keys: dict[str, Any] = {"launcher": command.launcher.name}
    if command.launcher.takes_command:
        keys["command"] = arguments.program
    elif command.module is not None:
        keys["module"] = command.module
    else:
        keys["script"] = command.script
    if command.python is not None and not command.launcher.takes_command:
        keys["python"] = command.python
    keys |= {"workdir": ".", **processes}
    params: dict[str, Any] = dict(arguments.params)
    for name, scope in arguments.scopes.items():
        params[name] = {"default": params[name], "scope": scope}
    keys |= {"params": params, "args": arguments.args, "roles": arguments.roles}
    form = resume_form(arguments.subject, arguments.resume)
    if form.is_known:
        keys["checkpoints"] = {"resume": list(form.arguments)}
    return keys


def run_name(command: TypedCommand, folder: Path) -> str:
    """A name after the script, module or program; behind that of its folder if it says nothing."""
    place = folder
    if command.module is not None:
        package, _, stem = command.module.rpartition(".")
        place = folder.joinpath(*package.split("."))
    elif command.script is not None:
        stem = Path(command.script).stem
        place = (folder / command.script).parent
    elif Path(command.program[0]).name in SHELLS and "-c" not in command.program:
        stem = Path(command.program[-1]).stem
    else:
        stem = Path(command.program[0]).stem
    if stem in _EVERY_PROJECTS:
        stem = f"{place.resolve().name}-{stem}"
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", stem).strip("-._")[:64] or "training"


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
    argument = " ".join(argument_of(option.flag, subject.separator_of(option), name))
    if option.is_flag or (option.default is None and option.flag):
        argument = f"[{argument}]"
    return option.default, argument


def _processes(command: TypedCommand) -> Mapping[str, int]:
    """The keys for GPUs and ranks."""
    if command.nproc is None:
        return {"gpus": 1}
    if command.launcher.starts_ranks:
        return {"gpus": command.nproc, "nproc": command.nproc}
    return {"gpus": command.nproc}
