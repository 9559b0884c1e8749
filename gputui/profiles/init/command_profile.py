"""The profile of a command that was typed, made in memory: `gputui run train.py --lr 0.1`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gputui.profiles.init.draft import run_name
from gputui.profiles.init.draft_arguments import DraftArguments
from gputui.profiles.init.draft_subject import DraftNotes, DraftSubject, examine
from gputui.profiles.init.resuming import resume_form
from gputui.profiles.init.script_survey import Survey, SurveyError
from gputui.profiles.init.typed_command import DraftError, TypedCommand, split_command
from gputui.profiles.profile_file import Profile
from gputui.profiles.schema import ProfileForm
from gputui.runs.launchers import FOR_RANKS, FOR_SCRIPT

_ADD_OPTIONS = ("hydra", "hf", "lightning")
"""Styles of parsers with more options than a script declares."""


def command_profile(words: Sequence[str], folder: Path, *, callers_options: Collection[str] = ()) -> Profile:
    """The profile that runs a command as it was typed in ``folder``.

    Typed options are its parameters; the script is read, not run, for what they mean. It asks for as
    many GPUs as the launcher's options say, else for one.

    Raises DraftError, also for one of the ``callers_options`` behind a script that has no such option.
    """
    command = split_command(words, folder)
    if words[0] == command.script and command.launcher is FOR_RANKS:
        command.launcher = FOR_SCRIPT
    subject = DraftSubject(command, Survey(), None, {}, "")
    with suppress(SurveyError):  # what is wrong with it, Python says better
        subject = examine(command, folder)
    arguments = DraftArguments(subject, DraftNotes(), is_verbatim=True)
    arguments.read()
    survey = subject.survey
    if (
        survey.is_certain
        and survey.style not in _ADD_OPTIONS
        and (lost := {*arguments.undeclared} & {*callers_options})
    ):
        raise DraftError(f"{command.script or words[0]} has no option {min(lost)}; gputui's own come before the script")
    scopes = arguments.scopes
    data = {
        **_program(command),
        "workdir": ".",
        **_processes(command),
        "params": {
            name: {"default": value, **({"scope": scopes[name]} if name in scopes else {})}
            for name, value in arguments.params.items()
        },
        "args": [word for group in arguments.args for word in group],
        "roles": arguments.roles,
        **_checkpoints(arguments),
    }
    try:
        form = ProfileForm.model_validate(data)
    except ValidationError as error:
        problem = error.errors()[0]
        raise DraftError(f"{problem['msg']}: {problem['input']!s:.80}; write a profile for it") from error
    return Profile.of_form(form, run_name(command, folder), None, folder, words)


def _checkpoints(arguments: DraftArguments) -> Mapping[str, Any]:
    """The key that says how the script is given a checkpoint, if it can be given one."""
    form = resume_form(arguments.subject, arguments.resume)
    return {"checkpoints": {"resume": list(form.arguments)}} if form.is_known else {}


def _program(command: TypedCommand) -> Mapping[str, Any]:
    """The keys of a profile that say what is started."""
    launcher = {"launcher": command.launcher.name}
    if command.launcher.takes_command:
        return {**launcher, "command": command.program}
    python = {} if command.python is None else {"python": command.python}
    if command.module is not None:
        return {**launcher, **python, "module": command.module}
    return {**launcher, **python, "script": command.script}


def _processes(command: TypedCommand) -> Mapping[str, int]:
    """The keys for GPUs and processes."""
    if command.nproc is None:
        return {"gpus": 1}
    return {"gpus": command.nproc, **({"nproc": command.nproc} if command.launcher.starts_ranks else {})}
