"""The subject of a draft: a command, the survey of its script, and the script's framework."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import yaml
from msgspec import Struct

from gputui.core.files import read_regular
from gputui.profiles.init.presets import PRESETS, Preset, recognised
from gputui.profiles.init.script_options import Option
from gputui.profiles.init.script_survey import Survey, survey_script
from gputui.profiles.init.typed_command import TypedCommand, command_options, command_text, script_file

MAX_CONFIGURATION_BYTES = 1 << 20
_DISTRIBUTED = {"init_process_group", "DistributedDataParallel", "DDP", "fully_shard", "FullyShardedDataParallel"}


@dataclass(slots=True)
class DraftNotes:
    """Remarks of a draft for a person: one line for each thing that was seen (``found``), or is left for a
    person to decide or for the first run to show (``open_points``)."""

    found: list[str] = field(default_factory=list)
    open_points: list[str] = field(default_factory=list)


class DraftSubject(Struct, frozen=True):
    """A command with the survey of its script. ``options`` include those that its framework adds;
    ``command_text`` is the Makefile or shell script that the command runs, or ""; ``configured`` are the numbers of a
    typed configuration file."""

    command: TypedCommand
    survey: Survey
    preset: Preset | None
    options: Mapping[str, Option]
    command_text: str
    configured: Mapping[str, int | float] = msgspec.field(default_factory=dict)

    def separator_of(self, option: Option) -> str:
        """The text between an option and its value."""
        if not option.flag.startswith("-"):
            return "="
        return " " if self.preset is None else self.preset.separator

    def option_of(self, flag: str) -> Option | None:
        """The option that a typed word spells: a flag, or the beginning of one as in argparse."""
        spellings = {
            _plain(text): option
            for option in self.options.values()
            for text in (option.flag, *option.others, *option.negatives)
            if text
        }
        plain = _plain(flag)
        if plain in spellings or not flag.startswith("--"):
            return spellings.get(plain)
        begun = {option.name: option for text, option in spellings.items() if text.startswith(plain)}
        return next(iter(begun.values())) if len(begun) == 1 else None

    @property
    def is_distributed(self) -> bool:
        """True if the script trains with several ranks if torchrun starts them."""
        if self.preset is not None and self.preset is not PRESETS["makefile"]:
            return self.preset.takes_ranks
        return (
            bool(self.survey.calls & _DISTRIBUTED)
            or re.search(r"LOCAL_RANK|WORLD_SIZE|['\"]RANK['\"]", self.survey.text) is not None
        )


def examine(command: TypedCommand, folder: Path, preset: Preset | None = None) -> DraftSubject:
    """Survey a command's script. ``preset`` overrides the recognised one. Raises SurveyError."""
    script = script_file(command, folder)
    survey = Survey() if script is None else survey_script(script, *([folder] if command.module else []))
    text = command_text(command, folder)
    if command.launcher.takes_command and command.script is None:
        # The command's arguments go to the Makefile or shell script, not to the Python script.
        survey.options, survey.style = command_options(command, text), None
        survey.text += text
    preset = preset or recognised(survey, command)
    has_own_parser = preset is not None and preset.style is not None and preset.style == survey.style
    added = preset.options if preset is not None and has_own_parser else {}
    return DraftSubject(command, survey, preset, {**added, **survey.options}, text, _configured(command, folder))


def _configured(command: TypedCommand, folder: Path) -> Mapping[str, int | float]:
    """The numbers at the top of the YAML or JSON files that a command names."""
    numbers: dict[str, int | float] = {}
    for word in command.words:
        file = folder / word.rpartition("=")[2]
        if file.suffix in (".yaml", ".yml", ".json"):
            with suppress(OSError, ValueError, yaml.YAMLError):
                content = yaml.safe_load(read_regular(file, MAX_CONFIGURATION_BYTES))
                items = content.items() if isinstance(content, dict) else ()
                numbers |= {str(name): value for name, value in items if type(value) in (int, float)}
    return numbers


def _plain(flag: str) -> str:
    return flag.lstrip("-+").replace("-", "_")
