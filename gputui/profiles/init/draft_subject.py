"""The subject of a draft: a command, the survey of its script, and the script's framework."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec
import yaml
from msgspec import Struct

from gputui.core.files import read_regular
from gputui.profiles.init.presets import Preset, recognised
from gputui.profiles.init.script_options import Option
from gputui.profiles.init.script_survey import Survey, survey_script
from gputui.profiles.init.typed_command import TypedCommand, script_file

MAX_CONFIGURATION_BYTES = 1 << 20  # a configuration of a training has kilobytes; more is data
_DISTRIBUTED = {"init_process_group", "DistributedDataParallel", "DDP", "fully_shard", "FullyShardedDataParallel"}


class DraftSubject(Struct, frozen=True):
    """A command with the survey of its script. ``options`` include those that its framework adds; ``configured`` are
    the numbers of a typed configuration file."""

    command: TypedCommand
    survey: Survey
    preset: Preset | None
    options: Mapping[str, Option]
    configured: Mapping[str, int | float] = msgspec.field(default_factory=dict)

    def separator_of(self, option: Option) -> str:
        """The text between an option and its value."""
        if not option.flag.startswith("-"):
            return "="
        if self.preset is None:
            return " "
        return self.preset.separator

    def option_of(self, flag: str) -> Option | None:
        """The option that a typed word spells: a flag, or the beginning of one as in argparse."""
        spellings = {_plain(text): option for option in self.options.values() for text in option.flags}
        plain = _plain(flag)
        if plain in spellings or not flag.startswith("--"):
            return spellings.get(plain)
        begun = {option.name: option for text, option in spellings.items() if text.startswith(plain)}
        if len(begun) != 1:
            return None
        return next(iter(begun.values()))

    @property
    def is_distributed(self) -> bool:
        """True if the script trains with several ranks if torchrun starts them."""
        if self.preset is not None:
            return self.preset.takes_ranks
        return (
            bool(self.survey.calls & _DISTRIBUTED)
            or re.search(r"LOCAL_RANK|WORLD_SIZE|['\"]RANK['\"]", self.survey.text) is not None
        )


def examine(command: TypedCommand, folder: Path, preset: Preset | None = None) -> DraftSubject:
    """Survey a command's script. ``preset`` overrides the recognised one. Raises SurveyError."""
    script = script_file(command, folder)
    survey = Survey()
    if script is not None:
        roots = [folder] if command.module is not None else []
        survey = survey_script(script, *roots)
    preset = preset or recognised(survey)
    options = survey.options
    if preset is not None and preset.style is not None and preset.style == survey.style:
        options = {**preset.options, **options}
    return DraftSubject(command, survey, preset, options, _configured(command, folder))


def _configured(command: TypedCommand, folder: Path) -> Mapping[str, int | float]:
    """The numbers at the top of the YAML or JSON files that a command names."""
    numbers: dict[str, int | float] = {}
    for word in command.arguments:
        file = folder / word.rpartition("=")[2]
        if file.suffix in (".yaml", ".yml", ".json"):
            with suppress(OSError, ValueError, yaml.YAMLError):
                content = yaml.safe_load(read_regular(file, MAX_CONFIGURATION_BYTES))
                if isinstance(content, dict):
                    numbers |= {str(name): value for name, value in content.items() if type(value) in (int, float)}
    return numbers


def _plain(flag: str) -> str:
    return flag.lstrip("-+").replace("-", "_")
