"""The frameworks that `gputui init` knows: what shows that a script uses one, and how its options are written."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Struct

from gputui.profiles.init.script_options import Option, Style
from gputui.profiles.init.script_survey import Survey

_GPUTUI_CHECKPOINT = 'os.environ.get("GPUTUI_CHECKPOINT")'
# Options that TrainingArguments adds to those of the script, with their defaults.
_TRAINING_ARGUMENTS = {
    "output_dir": None, "num_train_epochs": 3.0, "max_steps": -1, "save_steps": 500, "logging_steps": 500,
    "per_device_train_batch_size": 8, "gradient_accumulation_steps": 1, "learning_rate": 5e-5, "max_grad_norm": 1.0,
}  # fmt: skip
_TRAINER_OPTIONS = ("default_root_dir", "max_epochs", "max_steps")


class Preset(Struct, frozen=True):
    """A framework.

    Attributes:
        title: its name in a sentence.
        takes_ranks: torchrun may start several ranks of its scripts.
        style: its own parser of options, which adds ``options``.
        separator: the text between an option and its value.
        resume: the arguments that resume a script with its parser, if the script contains ``resume_word``.
        advice: a remark where nothing else resumes.
    """

    title: str
    takes_ranks: bool = True
    style: Style | None = None
    options: Mapping[str, Option] = msgspec.field(default_factory=dict)
    separator: str = " "
    resume: tuple[str, ...] = ()
    resume_word: str = ""
    advice: str = ""


PRESETS: Mapping[str, Preset] = {
    "hf": Preset(
        "the Hugging Face Trainer",
        style="hf",
        options={name: Option(f"--{name}", name, default) for name, default in _TRAINING_ARGUMENTS.items()},
        resume=("--resume_from_checkpoint", "{checkpoint}"),
        resume_word="resume_from_checkpoint",
        advice=f"one line makes it resume: trainer.train(resume_from_checkpoint={_GPUTUI_CHECKPOINT})",
    ),
    "lightning": Preset(
        "Lightning",
        takes_ranks=False,
        style="lightning",
        options={name: Option(f"--trainer.{name}", name) for name in _TRAINER_OPTIONS},
        resume=("--ckpt_path", "{checkpoint}"),
        advice=f"one line makes it resume: trainer.fit(model, ckpt_path={_GPUTUI_CHECKPOINT})",
    ),
    "accelerate": Preset("accelerate"),
    "timm": Preset("timm"),
    "nanogpt": Preset(
        "nanoGPT's way",
        separator="=",
        resume=("--init_from=resume",),
        resume_word="init_from",
        advice="the script finds its own ckpt.pt",
    ),
}


def recognised(survey: Survey) -> Preset | None:
    """The framework of a script; None if it shows none."""
    name = None
    if survey.uses("lightning", "pytorch_lightning"):
        name = "lightning"
    elif survey.uses("timm") and (
        "CheckpointSaver" in survey.calls or ("create_model" in survey.calls and "resume" in survey.options)
    ):
        name = "timm"
    elif survey.style == "globals":
        name = "nanogpt"
    elif _has_hf_trainer(survey):
        name = "hf"
    elif survey.uses("accelerate"):
        name = "accelerate"
    return PRESETS.get(name or "")


def _has_hf_trainer(survey: Survey) -> bool:
    """Return whether a script uses the Trainer, or another one with its files and options."""
    packages = ("transformers", "trl", "sentence_transformers", "optimum")
    names = survey.calls | survey.imported_from(*packages)
    if survey.uses(*packages) and any(name.endswith(("Trainer", "TrainingArguments")) for name in names):
        return True
    return "trainer_state.json" in survey.text and "per_device_train_batch_size" in survey.options
