"""The subject of a draft: a command, the survey of its script, and the framework that the script is built on."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from msgspec import Struct

from gputui.profiles.script_survey import Option, Survey, survey_script
from gputui.profiles.typed_command import TypedCommand, command_options, command_text, script_file
from gputui.runs.spec import Scalar

Preset = Literal["hf", "lightning", "accelerate", "timm", "nanogpt", "makefile"]
PRESETS: tuple[Preset, ...] = get_args(Preset)
TITLES: Mapping[Preset, str] = {
    "hf": "the Hugging Face Trainer",
    "lightning": "Lightning",
    "accelerate": "accelerate",
    "timm": "timm",
    "nanogpt": "nanoGPT's way",
    "makefile": "make",
}

# Options that TrainingArguments adds to those of the script.
_HF_OPTIONS: Mapping[str, Scalar] = {
    "output_dir": None, "num_train_epochs": 3.0, "max_steps": -1, "save_steps": 500, "logging_steps": 500,
    "per_device_train_batch_size": 8, "gradient_accumulation_steps": 1, "learning_rate": 5e-5, "max_grad_norm": 1.0,
}  # fmt: skip
_DISTRIBUTED = {"init_process_group", "DistributedDataParallel", "DDP", "fully_shard", "FullyShardedDataParallel"}


@dataclass(slots=True)
class DraftNotes:
    """Remarks of a draft for a person, one line each; the lists are those of `gputui.profiles.draft.Draft`."""

    found: list[str] = field(default_factory=list)
    guesses: list[str] = field(default_factory=list)
    open_points: list[str] = field(default_factory=list)


class DraftSubject(Struct, frozen=True):
    """A command with the survey of its script. ``options`` include those that its framework adds; ``command_text`` is
    the Makefile or shell script that the command runs, or ""."""

    command: TypedCommand
    survey: Survey
    preset: Preset | None
    options: Mapping[str, Option]
    command_text: str

    @property
    def separator(self) -> str:
        """The text between an option and its value."""
        return "=" if self.survey.style == "globals" or self.preset == "makefile" else " "

    def option_of(self, flag: str) -> Option | None:
        """The option that a typed word spells: by one of its flags, or by the beginning of one, as argparse allows."""
        spelled = {_plain(each): one for one in self.options.values() for each in (one.flag, *one.others) if each}
        plain = _plain(flag)
        if plain in spelled or not flag.startswith("--"):
            return spelled.get(plain)
        begun = {one.name: one for each, one in spelled.items() if each.startswith(plain)}
        return next(iter(begun.values())) if len(begun) == 1 else None

    @property
    def is_distributed(self) -> bool:
        """Whether the script trains with several ranks if torchrun starts them."""
        if self.preset in ("hf", "accelerate", "timm", "nanogpt"):
            return True
        return self.preset != "lightning" and (
            bool(self.survey.calls & _DISTRIBUTED)
            or re.search(r"LOCAL_RANK|WORLD_SIZE|['\"]RANK['\"]", self.survey.text) is not None
        )


def examine(command: TypedCommand, folder: Path, preset: Preset | None = None) -> DraftSubject:
    """Survey the script of a command. ``preset`` overrides the recognised one. Raises SurveyError."""
    script = script_file(command, folder)
    survey = Survey() if script is None else survey_script(script, *([folder] if command.module else []))
    text = command_text(command, folder)
    if command.launcher.takes_command and command.script is None:
        # The command's arguments go to the Makefile or shell script, not to the Python script.
        survey.options, survey.style = command_options(command, folder), None
        survey.text += text
    preset = preset or _recognised_preset(survey, command)
    options = dict(survey.options)
    if preset == "hf" and survey.style == "hf":
        for name, default in _HF_OPTIONS.items():
            options.setdefault(name, Option(f"--{name}", name, default))
    if preset == "lightning" and survey.style == "lightning":
        for name in ("default_root_dir", "max_epochs", "max_steps"):
            options[name] = Option(f"--trainer.{name}", name)
    return DraftSubject(command, survey, preset, options, text)


def _plain(flag: str) -> str:
    return flag.lstrip("-+").replace("-", "_")


def _recognised_preset(survey: Survey, command: TypedCommand) -> Preset | None:
    if command.program and Path(command.program[0]).name == "make":
        return "makefile"
    if survey.uses("lightning", "pytorch_lightning"):
        return "lightning"
    if survey.uses("timm") and (
        "CheckpointSaver" in survey.calls or ("create_model" in survey.calls and "resume" in survey.options)
    ):
        return "timm"
    if survey.style == "globals":
        return "nanogpt"
    if _has_hf_trainer(survey):
        return "hf"
    return "accelerate" if survey.uses("accelerate") else None


def _has_hf_trainer(survey: Survey) -> bool:
    """Whether a script uses the Trainer, a class derived from it, or another trainer with its files and options."""
    packages = ("transformers", "trl", "sentence_transformers", "optimum")
    names = survey.calls | survey.imported_from(*packages)
    if survey.uses(*packages) and any(name.endswith(("Trainer", "TrainingArguments")) for name in names):
        return True
    return "trainer_state.json" in survey.text and "per_device_train_batch_size" in survey.options
