"""Settings from a command line, files and the environment, and back into texts that others read.

The weakest source first: the task's defaults, files in YAML or JSON, variables such as TRAINER_BATCH_SIZE, flags.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args, get_origin

import yaml
from pydantic import ValidationError

from trainer.config.phases import PhaseError, unfold
from trainer.config.schema import (
    GROUPS,
    RUN_WIDE,
    SWITCHES,
    TASK_DEFAULTS,
    BatchSize,
    OwnCode,
    Settings,
    did_you_mean,
    first,
    flag,
)
from trainer.errors import SettingsError

# Environment variables that set anything; the GPUTUI_ ones of a supervisor only fill in what nothing else gives.
PREFIX = "TRAINER_"

# Settings whose text is YAML, and so JSON; all but the first also key=value,key=value.
_STRUCTURED = ("phases", "model_options", "data_options", "task_options", "lr_shares")
# Words for types in the help text.
_WORDS: Mapping[Any, str] = {
    int: "N",
    float: "X",
    str: "TEXT",
    Path: "PATH",
    Path | None: "PATH",
    BatchSize: "N|auto",
    tuple[str, ...]: "NAME,NAME",
}
Action = Literal["train", "print_config", "json_schema"]
# Two ways to say one thing: the stronger source wins, and one source may give one of them.
_INSTEAD = {"epochs": "steps", "samples_per_step": "grad_accum"}
_RIVALS = _INSTEAD | {usual: length for length, usual in _INSTEAD.items()}
_SHARE = {"type": "string", "pattern": "^x[0-9.]+$", "description": "a share of the run's own value, such as x0.5"}


class _Yaml(yaml.SafeLoader):
    """YAML 1.1, but 010 is ten, 1e-3 a number, and 1:30 and 2024-11-20 are text."""


_Yaml.yaml_implicit_resolvers = {
    first: [(tag, form) for tag, form in forms if tag.rpartition(":")[2] not in ("int", "float", "timestamp")]
    for first, forms in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Yaml.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"[-+]?\d+$"), [*"+-0123456789"])
_Yaml.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?$"), [*"+-.0123456789"]
)
_Yaml.add_constructor("tag:yaml.org,2002:int", lambda loader, node: int(node.value))


class _Sources:
    """The values of settings, and their places by the keys and indices that lead to them, such as a flag or a line."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self._here: set[str] = set()  # settings that the present source has given
        self._places: dict[tuple[str | int, ...], str] = {}

    def next(self) -> None:
        """Begin a stronger source."""
        self._here.clear()

    def add(self, name: str, value: Any, place: str) -> None:
        rival = _RIVALS.get(name, "")
        if rival and value is None:
            return
        if name in _INSTEAD and value in (0, "0"):
            self.values.pop(name, None)
            return
        if rival in self._here:
            raise SettingsError(f"{place} and {self.place(rival)} contradict each other: leave one out")
        self.values.pop(rival, None)
        self._here.add(name)
        self.values[name] = value
        self._places = {keys: text for keys, text in self._places.items() if keys[0] != name} | {(name,): place}

    def add_text(self, name: str, text: Any, place: str) -> None:
        """Add what a flag or variable says."""
        value = text
        if name in _STRUCTURED:
            try:
                value = _structured(name, text)
            except ValueError as error:
                raise SettingsError(f"{place}: {error}") from None
        if value is None:
            value = Settings.model_fields[name].default
        self.add(name, value, place)

    def add_file(self, path: Path) -> None:
        """Add a YAML or JSON file. Raises SettingsError, naming file and line, if it is not made of ``name: value``."""
        try:
            loader = _Yaml(path.read_bytes())
            node = loader.get_single_node()
            values = loader.construct_document(node) if node else {}
            lines = {keys: f"{path}:{line}" for keys, line in _lines(node, path)}
        except OSError as error:
            raise SettingsError(f"--config {path}: {error.strerror}") from None
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            mark = getattr(error, "problem_mark", None)
            line = mark.line + 1 if mark else 1
            raise SettingsError(f"{path}:{line}: {_not_yaml(error)}") from None
        if not isinstance(values, dict):
            raise SettingsError(f"{path}:1: expected settings as name: value, one per line")
        for key, value in values.items():
            place = lines.get((str(key),), f"{path}:1")
            if key not in Settings.model_fields:
                raise SettingsError(f"{place}: unknown setting {key}{did_you_mean(str(key))}")
            self.add(key, value, f"{place}: {key}")
        self._places |= {keys: text for keys, text in lines.items() if len(keys) > 1}

    def place(self, *keys: str | int) -> str:
        """The words for where a value is, or the nearest one around it."""
        while keys not in self._places:
            keys = keys[:-1]
        return self._places[keys]


def from_arguments(arguments: Sequence[str], environment: Mapping[str, str]) -> tuple[Settings, Action]:
    """The settings and the action that are asked for. Raises SettingsError, which names the wrong setting's place."""
    parser = _parser()
    dashed = [re.sub(r"^--[^=]+", lambda name: name[0].replace("_", "-"), argument) for argument in arguments]
    parsed, rest = parser.parse_known_args(dashed)
    if rest:
        name = rest[0].partition("=")[0]
        hint = did_you_mean(name, parser._option_string_actions) if name.startswith("-") else ""
        raise SettingsError(f"unknown argument {name}{hint or ': settings are --name value, and --help lists them'}")
    flags = vars(parsed)
    action: Action = flags.pop("action", "train")

    sources = _Sources()
    for path in flags.pop("config", []):
        sources.next()
        sources.add_file(Path(path))
    sources.next()
    for variable in sorted(variable for variable in environment if variable.startswith(PREFIX)):
        name = variable.removeprefix(PREFIX).lower()
        if name not in Settings.model_fields:
            variables = [PREFIX + setting.upper() for setting in Settings.model_fields]
            raise SettingsError(f"unknown setting {variable}{did_you_mean(variable, variables)}")
        sources.add_text(name, environment[variable], variable)
    sources.next()
    for name, text in flags.items():
        sources.add_text(name, text, flag(name))
    if sources.values.get("phase"):
        raise SettingsError(f"{sources.place('phase')} is set by the trainer; name the phase in phases")
    return _complete(sources, environment), action


def _complete(sources: _Sources, environment: Mapping[str, str]) -> Settings:
    values = sources.values
    task = str(values.get("task", "classify")).rpartition(":")[2]
    output = values.get("output_dir") or environment.get("GPUTUI_RUN_DIR") or f"runs/{task}"
    for name, value in (
        ("output_dir", output),
        ("metrics", environment.get("GPUTUI_METRICS") or f"{output}/metrics.jsonl"),
        ("checkpoint_dir", f"{output}/checkpoints"),
        ("resume", environment.get("GPUTUI_CHECKPOINT") or "none"),
    ):
        if values.get(name) in (None, ""):
            sources.add(name, value, flag(name))
    if "stop_timeout" not in values and (grace := environment.get("GPUTUI_GRACE")):
        try:
            seconds = float(grace)
        except ValueError:
            seconds = math.nan
        if not 0 < seconds < math.inf:
            raise SettingsError(f"GPUTUI_GRACE must be seconds, a number above 0, got {grace!r}")
        sources.add("stop_timeout", seconds * 5 / 6, "GPUTUI_GRACE")  # the rest is for stacks to be written
    try:
        settings = Settings(**values)
    except ValidationError as error:
        name, problem = first(error)
        place = sources.place(name) if name in values else flag(name)
        raise SettingsError(f"{place}{problem}") from None
    try:
        steps = sum(phase.steps for phase in unfold(settings))
    except PhaseError as error:
        raise SettingsError(f"{sources.place('phases', error.index, error.key)}: {error}") from None
    if "steps" in values and settings.steps != steps:
        raise SettingsError(
            f"{sources.place('steps')} is {settings.steps}, but the steps of the phases add up to {steps}: leave it"
            " out, or give every phase a share such as x0.5"
        )
    return settings.model_copy(update={"steps": steps})


def _structured(name: str, text: str) -> Any:
    """A value from YAML or ``key=value,key=value``. Raises ValueError if it is neither."""
    if name != "phases" and "=" in text and not text.lstrip().startswith("{"):
        pairs = [part.partition("=") for part in text.split(",")]
        if not all(equals for _, equals, _ in pairs):
            raise ValueError(f"expected key=value,key=value or a JSON object, got {text!r}")
        return {key.strip(): _structured("phases", value) for key, _, value in pairs}
    try:
        return _Yaml(text).get_single_data()
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(_not_yaml(error)) from None


def _not_yaml(error: Exception) -> str:
    return f"this is not YAML: {getattr(error, 'problem', None) or str(error).splitlines()[0]}"


def _lines(node: yaml.Node | None, path: Path, *keys: str | int) -> Iterator[tuple[tuple[str | int, ...], int]]:
    """The line of every value, by the keys and indices that lead to it."""
    children: list[tuple[str | int, yaml.Node, yaml.Node]] = []
    if isinstance(node, yaml.MappingNode):
        children = [(str(key.value), key, value) for key, value in node.value]
    elif isinstance(node, yaml.SequenceNode):
        children = [(index, value, value) for index, value in enumerate(node.value)]
    for number, (name, marked, value) in enumerate(children):
        line = marked.start_mark.line + 1
        if name in [before for before, *_ in children[:number]]:
            raise SettingsError(f"{path}:{line}: {name} is there twice")
        yield (*keys, name), line
        yield from _lines(value, path, *keys, name)


# --- the command line -------------------------------------------------------------------------------------------------


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
    for name, content in {"print_config": "every setting as JSON", "json_schema": "a JSON schema of the files"}.items():
        parser.add_argument(flag(name), action="store_const", const=name, dest="action", help=f"print {content}")
    for group in GROUPS:
        section = parser.add_argument_group(group.__doc__)
        for name in group.model_fields:
            if name != "phase":
                section.add_argument(flag(name), **_options(name))
    return parser


def _options(name: str) -> dict[str, Any]:
    """Arguments of argparse for a setting. Values stay text: the schema knows what they must be."""
    setting = Settings.model_fields[name]
    options: dict[str, Any] = {"help": ((setting.description or "") + _defaults(name)).replace("%", "%%")}
    choices = "|".join(_choices(setting.annotation))
    if setting.annotation is bool or name in SWITCHES:
        return options | {"nargs": "?", "const": "true", "metavar": choices or "true|false"}
    if name == "inject":
        return options | {"action": "append", "metavar": "FAULT"}
    return options | {"metavar": _WORDS.get(setting.annotation) or choices or "YAML"}


def _choices(annotation: Any) -> Iterator[str]:
    """The words that a setting may be, and what stands for the name of one's own code."""
    for value in get_args(annotation):
        if value is OwnCode:
            yield "MODULE:NAME"
        elif isinstance(value, str):
            yield value
        elif get_origin(value) is Literal:
            yield from get_args(value)


def _defaults(name: str) -> str:
    """The default, with those of tasks that have another: `` (default: 16; lm, mlm: 8)``."""
    default = Settings.model_fields[name].default
    if default in ("", (), {}, None, Path()):
        return ""
    tasks: dict[str, list[str]] = {}
    for task, defaults in TASK_DEFAULTS.items():
        if defaults.get(name, default) != default:
            tasks.setdefault(_plain(defaults[name]), []).append(task)
    others = [f"{', '.join(names)}: {value}" for value, names in tasks.items()]
    return f" (default: {'; '.join([_plain(default), *others])})"


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


# --- for others -------------------------------------------------------------------------------------------------------


def as_file(settings: Settings) -> str:
    """The settings as a JSON file that means the same."""
    values = settings.model_dump(mode="json")
    for name, usual in _INSTEAD.items():
        if values[name]:
            values[usual] = None  # it follows once the data are known
    return json.dumps(values, indent=2)


def json_schema() -> dict[str, Any]:
    """The JSON schema of a settings file, for editors that complete and check YAML."""
    schema = Settings.model_json_schema()
    settings: dict[str, Any] = schema["properties"]
    del settings["phase"]
    for name in SWITCHES:
        settings[name] |= {"type": ["string", "boolean"], "enum": [*settings[name]["enum"], True, False]}
    overrides = {name: _or_share(setting) for name, setting in settings.items() if name not in RUN_WIDE}
    settings["phases"]["items"] = {
        "type": "object",
        "properties": {"name": {"type": "string", "description": "used in metrics and file names"}, **overrides},
        "required": ["name", "steps"],
        "additionalProperties": False,
    }
    dialect = "https://json-schema.org/draft/2020-12/schema"
    return {"$schema": dialect, **schema, "title": "Settings of python -m trainer"}


def _or_share(setting: dict[str, Any]) -> dict[str, Any]:
    """A setting as a phase may give it: numbers also as a share."""
    if not any(kind.get("type") in ("integer", "number") for kind in setting.get("anyOf", [setting])):
        return setting
    return {"description": setting["description"], "anyOf": [setting, _SHARE]}
