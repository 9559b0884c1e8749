"""Where settings come from. The weakest first: the task's defaults, YAML, the environment, flags."""

from __future__ import annotations

import argparse
import enum
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, get_args

from pydantic import ValidationError

from trainer.config import files
from trainer.config.phases import Where, unfold
from trainer.config.problems import first, flag, nearest
from trainer.config.schema import GROUPS, SWITCHES, BatchSize, Settings
from trainer.errors import SettingsError

# Environment variables that set anything; the GPUTUI_ ones of a supervisor only fill in paths that nothing else gives.
PREFIX = "TRAINER_"

# Settings whose text is JSON or YAML.
_STRUCTURED = ("phases", "model_options", "lr_shares")

# Words for types in the help text.
_WORDS: Mapping[Any, str] = {int: "N", float: "X", str: "TEXT", Path: "PATH", Path | None: "PATH", BatchSize: "N|auto"}


class RunMode(enum.Enum):
    """What a command line asks for."""

    TRAIN = "train"
    PRINT_CONFIG = "print every setting as JSON and leave"
    JSON_SCHEMA = "print the JSON schema of settings files, for editors, and leave"


class _Given(NamedTuple):
    """A value and the words for where it was given: a flag, a variable, or a file's line and key."""

    value: Any
    where: str


def from_arguments(arguments: Sequence[str], environment: Mapping[str, str]) -> tuple[Settings, RunMode]:
    """The settings that a command line, the files it names and an environment describe, and what to do with them.

    Raises SettingsError with one line saying where which setting is wrong, and the nearest valid one where it is
    unknown.
    """
    parsed, rest = _parser().parse_known_args([_dashed(argument) for argument in arguments])
    if rest:
        raise SettingsError(_unknown_argument(rest[0]))
    flags = vars(parsed)
    requested = [mode for mode in (RunMode.PRINT_CONFIG, RunMode.JSON_SCHEMA) if flags.pop(mode.name, False)]
    action = requested[0] if requested else RunMode.TRAIN

    given: dict[str, _Given] = {}
    file_with_phases: files.SettingsFile | None = None
    for path in flags.pop("config", []):
        file = files.read(Path(path))
        for name, value in file.values.items():
            if name not in Settings.model_fields:
                raise SettingsError(f"{file.where(name)}: unknown setting {name}{_hint(nearest(name))}")
            given[name] = _Given(value, f"{file.where(name)}: {name}")
        if "phases" in file.values:
            file_with_phases = file
    from_text = _from_environment(environment) | {name: _Given(text, flag(name)) for name, text in flags.items()}
    for name, value in from_text.items():
        given[name] = _structured(name, value) if name in _STRUCTURED else value
    if "phases" in from_text:
        file_with_phases = None
    if "phase" in given and given["phase"].value:
        raise SettingsError(f"{given['phase'].where} is set by the trainer; name the phase in phases")
    return _complete(given, environment, _phases_place(given, file_with_phases)), action


def _complete(given: Mapping[str, _Given], environment: Mapping[str, str], where: Where) -> Settings:
    try:
        settings = Settings(**{name: setting.value for name, setting in given.items()})
    except ValidationError as error:
        problem = first(error)
        origin = given[problem.name].where if problem.name in given else flag(problem.name)
        raise SettingsError(f"{origin}{problem.text}") from None
    steps = sum(phase.steps for phase in unfold(settings, where))
    if "steps" in given and settings.steps != steps:
        raise SettingsError(
            f"{given['steps'].where} is {settings.steps}, but the steps of the phases add up to {steps}: leave it out,"
            " or give every phase a share such as x0.5"
        )
    update = {"steps": steps, **_paths(settings, given, environment)}
    if "stop_timeout" not in given and (grace := environment.get("GPUTUI_GRACE")):
        update["stop_timeout"] = _within(grace)
    return settings.model_copy(update=update)


def _within(grace: str) -> float:
    """The --stop-timeout that leaves a sixth of a supervisor's grace, in seconds, for stacks to be written."""
    try:
        seconds = float(grace)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < math.inf:
        raise SettingsError(f"GPUTUI_GRACE is {grace!r}, not a number of seconds above 0")
    return seconds * 5 / 6


def _phases_place(given: Mapping[str, _Given], file: files.SettingsFile | None) -> Where:
    """The words for where a phase is written."""

    def where(index: int, key: str) -> str:
        return f"{file.where('phases', index, key) if file else given['phases'].where}: "

    return where


def _paths(settings: Settings, given: Mapping[str, _Given], environment: Mapping[str, str]) -> dict[str, Any]:
    """The paths that were not given, from the environment of a supervisor or from the defaults."""
    chosen = {name for name, setting in given.items() if setting.value}
    output = settings.output_dir
    if "output_dir" not in chosen:
        output = Path(environment.get("GPUTUI_RUN_DIR") or Path("runs") / settings.task)
    paths: dict[str, Any] = {
        "output_dir": output,
        "metrics": Path(environment.get("GPUTUI_METRICS") or output / "metrics.jsonl"),
        "checkpoint_dir": output / "checkpoints",
        "resume": environment.get("GPUTUI_CHECKPOINT") or "none",
    }
    return {name: path for name, path in paths.items() if name not in chosen}


def _from_environment(environment: Mapping[str, str]) -> dict[str, _Given]:
    given: dict[str, _Given] = {}
    for variable in sorted(variable for variable in environment if variable.startswith(PREFIX)):
        name = variable.removeprefix(PREFIX).lower()
        if name not in Settings.model_fields:
            near = nearest(name)
            raise SettingsError(f"unknown setting {variable}{_hint(near and PREFIX + near.upper())}")
        given[name] = _Given(environment[variable], variable)
    return given


def _structured(name: str, given: _Given) -> _Given:
    """A list or dictionary from text: JSON, YAML, or ``key=value,key=value``."""
    text = "--" if given.value == [] else given.value.strip()  # argparse makes an empty list of --name=--
    try:
        if name in ("model_options", "lr_shares") and "=" in text and not text.startswith("{"):
            pairs = [part.partition("=") for part in text.split(",") if part.strip()]
            if any(not key.strip() or not equals for key, equals, _ in pairs):
                raise ValueError(f"expected key=value,key=value or a JSON object, got {text!r}")
            return given._replace(value={key.strip(): files.from_text(value.strip()) for key, _, value in pairs})
        return given._replace(value=files.from_text(text) if text else Settings.model_fields[name].default)
    except ValueError as error:
        raise SettingsError(f"{given.where}: {error}") from None


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise SettingsError(message.removeprefix("argument "))


def _parser() -> _Parser:
    parser = _Parser(
        prog="python -m trainer",
        usage="python -m trainer [--config FILE]... [--SETTING VALUE]...\n"
        "       python -m trainer prepare|export|sample ...; each has a --help of its own",
        description="Trains under torchrun (one process per GPU, or CPU ranks) or as a single process. Every setting"
        " can be a flag, a key in a YAML file, or an environment variable such as TRAINER_BATCH_SIZE.",
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    parser.add_argument("--config", action="append", metavar="FILE", help="settings in YAML; of several the last wins")
    for action in (RunMode.PRINT_CONFIG, RunMode.JSON_SCHEMA):
        parser.add_argument(flag(action.name.lower()), action="store_true", dest=action.name, help=action.value)
    for group in GROUPS:
        section = parser.add_argument_group(group.__doc__)
        for name in group.model_fields:
            if name != "phase":
                section.add_argument(flag(name), **_options(name))
    return parser


def _options(name: str) -> dict[str, Any]:
    """What argparse shows of a setting. Values stay text: the schema knows what they must be."""
    setting = Settings.model_fields[name]
    default = str(setting.default).lower() if setting.annotation is bool else setting.default
    shown = "" if default in ("", (), {}, None, Path()) else f" (default: {default})"
    options: dict[str, Any] = {"help": ((setting.description or "") + shown).replace("%", "%%")}
    choices = "|".join(value for value in get_args(setting.annotation) if isinstance(value, str))
    if setting.annotation is bool or name in SWITCHES:
        return options | {"nargs": "?", "const": "true", "metavar": choices or "true|false"}
    if name == "inject":
        return options | {"action": "append", "metavar": "FAULT"}
    return options | {"metavar": choices or _WORDS.get(setting.annotation, "YAML")}


def _dashed(argument: str) -> str:
    """``--batch_size=3`` as ``--batch-size=3``; anything that is not a flag stays as it is."""
    if not argument.startswith("--"):
        return argument
    name, equals, value = argument.partition("=")
    return name.replace("_", "-") + equals + value


def _unknown_argument(argument: str) -> str:
    if not argument.startswith("-"):
        return f"unexpected argument {argument!r}: every setting is given as --name value"
    name = argument.partition("=")[0]
    return f"unknown setting {name}{_hint(nearest(name, _known_flags())) or '; --help lists them'}"


def _known_flags() -> Iterable[str]:
    yield from (flag(name) for name in Settings.model_fields if name != "phase")
    yield from ("--config", "--print-config", "--json-schema", "--help")


def _hint(near: str) -> str:
    return f"; did you mean {near}?" if near else ""
