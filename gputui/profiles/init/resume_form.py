"""How a script is given the checkpoint that a new attempt goes on from."""

from __future__ import annotations

from msgspec import Struct

from gputui.profiles.init.draft_arguments import argument_of, option_words
from gputui.profiles.init.draft_subject import DraftSubject
from gputui.profiles.init.script_options import Option

_STEP_OPTIONS = ("resume_from_step", "resume_step", "resume_iter")
_VARIABLE = "GPUTUI_CHECKPOINT"


class ResumeForm(Struct, frozen=True):
    """The arguments that resume a script, and a remark. ``is_known``: the script can be resumed, if only by a variable
    that it reads."""

    arguments: tuple[str, ...]
    remark: str
    is_known: bool = True


def resume_form(subject: DraftSubject, option: Option | None) -> ResumeForm:
    """How a script resumes, whose option for a checkpoint is given."""
    survey = subject.survey
    preset = subject.preset
    if _VARIABLE in survey.text:
        return ResumeForm((), f"resumed by ${_VARIABLE}, which the script reads")
    has_parser = preset is not None and preset.style in (None, survey.style)
    if preset is not None and preset.resume and has_parser and preset.resume_word in survey.text:
        if preset.style is None:
            return ResumeForm(preset.resume, preset.advice)
        return ResumeForm(preset.resume, "")
    finds_itself = "the script finds its newest checkpoint itself"
    if option is not None and option.is_flag:
        return ResumeForm((option.flag,), finds_itself)
    # argparse has default=False also for an option that takes a path.
    if option is not None and isinstance(option.default, bool) and survey.style != "argparse":
        return ResumeForm(option_words(option.flag, subject.separator_of(option), "true"), finds_itself)
    if option is not None and option.flag:
        return ResumeForm(argument_of(option.flag, subject.separator_of(option), "checkpoint"), "")
    for name in subject.options.keys() & set(_STEP_OPTIONS):
        by_step = subject.options[name]
        return ResumeForm(argument_of(by_step.flag, subject.separator_of(by_step), "checkpoint_step"), "")
    if preset is not None and preset.advice:
        return ResumeForm((), preset.advice, is_known=False)
    advice = f"the script would begin again; where it can, let it load os.environ.get('{_VARIABLE}')"
    return ResumeForm((), advice, is_known=False)
