"""What a new attempt of a script is given, so that it goes on from a checkpoint."""

from __future__ import annotations

from msgspec import Struct

from gputui.profiles.init.draft_arguments import DraftArguments, argument_of
from gputui.profiles.init.draft_subject import DraftSubject

_RESUME_STEPS = ("resume_from_step", "resume_step", "resume_iter")


class Resumption(Struct, frozen=True):
    """The arguments that resume, none if the script has no option for it, and a comment for a person.
    ``is_own``: the script looks for a checkpoint by itself."""

    words: tuple[str, ...] = ()
    comment: str = ""
    is_own: bool = False


def resumption_of(subject: DraftSubject, arguments: DraftArguments) -> Resumption:
    """How the script of a command resumes, as far as its parser or its framework says."""
    survey, preset, option = subject.survey, subject.preset, arguments.resume
    if "GPUTUI_CHECKPOINT" in survey.text:
        return Resumption((), "resumed by $GPUTUI_CHECKPOINT, which the script reads", is_own=True)
    is_of_framework = preset is not None and preset.style in (None, survey.style)
    if preset is not None and preset.resume is not None and is_of_framework and preset.resume_word in survey.text:
        return Resumption(tuple(preset.resume.split()), "" if preset.style else preset.advice)
    if option is not None and option.is_flag:
        return Resumption((option.flag,), "the script finds its newest checkpoint itself")
    if option is not None:
        return Resumption(argument_of(option.flag, subject.separator_of(option), "checkpoint"))
    for name in subject.options.keys() & set(_RESUME_STEPS):
        step = subject.options[name]
        return Resumption(argument_of(step.flag, subject.separator_of(step), "checkpoint_step"))
    return Resumption((), "" if preset is None else preset.advice)
