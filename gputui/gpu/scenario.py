"""What happens to simulated GPUs: a small YAML file, which may be rewritten while they are watched.

    gpus: 8                       # how many; these four only count at the start
    memory: 80GiB                 # of each
    name: Simulated GPU
    seed: 1
    foreign:                      # processes of other people
      - {gpu: 7, memory: 20GiB, user: bob, command: python serve.py, load: 40}
    faults:
      - {kind: lost, gpu: 3, at: 20, for: 60}
      - {kind: hang, at: 5, for: 10}

``at`` counts in seconds from the moment the file was written, or the simulation began if that was later; without it a
fault begins at once. ``for`` is how long it lasts; without it, until the file changes. Without ``gpu`` all GPUs are
meant.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, cast, get_args

from gputui.gpu.model import GpuSample, GpuSlowSample

FaultKind = Literal["lost", "hang", "stale", "xid", "hot", "throttle", "memory_leak", "no_value", "busy"]

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
_HIDEABLE = {item.name for cls in (GpuSample, GpuSlowSample) for item in fields(cls)} - {"uuid", "state", "detail"}


@dataclass(frozen=True, slots=True)
class Foreign:
    """A process of somebody else."""

    gpu: int | None = 0
    memory_bytes: int = 8 * 2**30
    user: str = "somebody"
    command: str = "python other.py"
    load_percent: float = 50.0


@dataclass(frozen=True, slots=True)
class Fault:
    """One planned fault; which of the last fields matter depends on the kind."""

    kind: FaultKind
    gpu: int | None = None
    at_seconds: float = 0.0
    for_seconds: float | None = None
    code: int = 31
    celsius: float = 96.0
    reason: str = "hardware slowdown"
    field: str = "temperature_celsius"
    bytes_per_second: int = 2**30
    process: Foreign = Foreign()

    def hits(self, gpu: int) -> bool:
        return self.gpu is None or self.gpu == gpu

    def active(self, elapsed_seconds: float) -> bool:
        return self.at_seconds <= elapsed_seconds and (
            self.for_seconds is None or elapsed_seconds < self.at_seconds + self.for_seconds
        )


@dataclass(frozen=True, slots=True)
class Scenario:
    """The whole file."""

    gpus: int = 8
    memory_bytes: int = 80 * 2**30
    name: str = "Simulated GPU"
    seed: int = 1
    foreign: tuple[Foreign, ...] = ()
    faults: tuple[Fault, ...] = ()


def load_scenario(path: Path) -> Scenario:
    """The scenario in a file.

    Raises OSError, and ValueError that names the place.
    """
    import yaml

    try:
        value = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    try:
        return parse_scenario({} if value is None else value)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def parse_scenario(value: object) -> Scenario:
    """The scenario in what a YAML file holds.

    Raises ValueError.
    """
    given = _mapping(value, "", {"gpus", "memory", "name", "seed", "foreign", "faults"})
    default = Scenario()
    return Scenario(
        gpus=int(_number(given, "gpus", "", default.gpus, 0, 256)),
        memory_bytes=_bytes(given, "memory", "", default.memory_bytes),
        name=_text(given, "name", "", default.name),
        seed=int(_number(given, "seed", "", default.seed, 0, 2**31)),
        foreign=_each(given, "foreign", _foreign),
        faults=_each(given, "faults", _fault),
    )


_FOREIGN_KEYS = {"gpu", "memory", "user", "command", "load"}


def _foreign(value: object, where: str) -> Foreign:
    return _process(_mapping(value, where, _FOREIGN_KEYS), where)


def _process(given: Mapping[str, Any], where: str) -> Foreign:
    default = Foreign()
    return Foreign(
        gpu=_gpu(given, where),
        memory_bytes=_bytes(given, "memory", where, default.memory_bytes),
        user=_text(given, "user", where, default.user),
        command=_text(given, "command", where, default.command),
        load_percent=_number(given, "load", where, default.load_percent, 0, 100),
    )


def _fault(value: object, where: str) -> Fault:
    own = {"kind", "at", "for", "code", "celsius", "reason", "field", "rate"}
    given = _mapping(value, where, own | _FOREIGN_KEYS)
    kind = given.get("kind")
    if kind not in get_args(FaultKind):
        raise ValueError(f"{where}.kind is {kind!r}, expected one of {', '.join(get_args(FaultKind))}")
    default = Fault("lost")
    field = _text(given, "field", where, default.field)
    if field not in _HIDEABLE:
        raise ValueError(f"{where}.field is {field!r}, expected one of {', '.join(sorted(_HIDEABLE))}")
    return Fault(
        kind=cast(FaultKind, kind),
        gpu=_gpu(given, where),
        at_seconds=_number(given, "at", where, 0.0, 0, 1e9),
        for_seconds=_number(given, "for", where, 0.0, 0, 1e9) if given.get("for") is not None else None,
        code=int(_number(given, "code", where, default.code, 1, 10_000)),
        celsius=_number(given, "celsius", where, default.celsius, 0, 200),
        reason=_text(given, "reason", where, default.reason),
        field=field,
        bytes_per_second=_bytes(given, "rate", where, default.bytes_per_second),
        process=_process(given, where),
    )


def _each(given: Mapping[str, Any], key: str, build: Callable[[object, str], Any]) -> tuple[Any, ...]:
    items = given.get(key)
    if items is None:
        return ()
    if not isinstance(items, list):
        raise ValueError(f"{key} is {items!r}, expected a list")
    return tuple(build(item, f"{key}[{index}]") for index, item in enumerate(items))


def _mapping(value: object, where: str, known: set[str]) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{where or 'the scenario'} is {value!r}, expected keys and values")
    for key in value:
        if key not in known:
            raise ValueError(f"{where + '.' if where else ''}{key} is not known here, only {', '.join(sorted(known))}")
    return value


def _gpu(given: Mapping[str, Any], where: str) -> int | None:
    return int(_number(given, "gpu", where, 0, 0, 255)) if given.get("gpu") is not None else None


def _number(given: Mapping[str, Any], key: str, where: str, default: float, low: float, high: float) -> float:
    value = given.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise ValueError(f"{_place(where, key)} is {value!r}, expected a number from {low:g} to {high:g}")
    return value


def _text(given: Mapping[str, Any], key: str, where: str, default: str) -> str:
    value = given.get(key, default)
    if not isinstance(value, str):
        raise ValueError(f"{_place(where, key)} is {value!r}, expected a text")
    return value


def _bytes(given: Mapping[str, Any], key: str, where: str, default: int) -> int:
    value = given.get(key, default)
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)", str(value).strip())
    factor = _UNITS.get(match[2].upper()) if match else None
    if match is None or factor is None:
        raise ValueError(f"{_place(where, key)} is {value!r}, expected a size such as 16GiB")
    return int(float(match[1]) * factor)


def _place(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key
