"""What crosses the pipes between the agent and its sampler: one JSON object a line, in both directions.

Unknown keys are passed over, so that two versions may talk; anything else that is off is a ValueError naming the place.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Iterable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import partial
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import orjson

from gputui.gpu.model import FastTick, GpuEvent, Inventory, Occupant, ProcessTick, SlowTick
from gputui.store.series import HostSample

Message = Inventory | FastTick | SlowTick | ProcessTick | GpuEvent | HostSample

_KINDS: dict[str, type[Message]] = {
    "inventory": Inventory,
    "fast": FastTick,
    "slow": SlowTick,
    "processes": ProcessTick,
    "event": GpuEvent,
    "host": HostSample,
}


@dataclass(frozen=True, slots=True)
class WireCommand:
    """What the agent tells its sampler; only what is given changes."""

    occupants: tuple[Occupant, ...] | None = None
    interval: float | None = None


def encode(message: Message) -> bytes:
    """One line, with its end. NaN and infinities, which JSON does not have, become null."""
    return orjson.dumps(message, option=orjson.OPT_APPEND_NEWLINE)


def decode(line: bytes) -> Message:
    """The message in one line.

    Raises ValueError.
    """
    value = _object(line)
    kind = value.get("kind")
    cls = _KINDS.get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise ValueError(f"sampler message of unknown kind {kind!r}, expected one of {', '.join(_KINDS)}")
    message: Message = _build(cls, value, str(kind))
    return message


def encode_occupants(occupants: Iterable[Occupant]) -> bytes:
    return orjson.dumps({"occupants": list(occupants)}, option=orjson.OPT_APPEND_NEWLINE)


def encode_interval(seconds: float) -> bytes:
    return orjson.dumps({"interval": seconds}, option=orjson.OPT_APPEND_NEWLINE)


def decode_command(line: bytes) -> WireCommand:
    """The command in one line.

    Raises ValueError.
    """
    command: WireCommand = _build(WireCommand, _object(line), "command")
    if command.interval is not None and not command.interval > 0:
        raise ValueError(f"command.interval is {command.interval}, expected more than 0")
    return command


def _object(line: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"not a line of JSON ({error}): {line[:60]!r}") from None
    if not isinstance(value, dict):
        raise ValueError(f"a JSON object was expected: {line[:60]!r}")
    return value


class _WrongValueError(Exception):
    """``path`` grows from the inside out while the exception rises."""

    def __init__(self, value: object, expected: str) -> None:
        super().__init__(f"{repr(value)[:60]}, expected {expected}")
        self.path: list[str] = []


_Converter = Callable[[Any], Any]
_converters: dict[type, tuple[dict[str, _Converter], frozenset[str]]] = {}


def _build(cls: type, value: dict[str, Any], root: str) -> Any:
    try:
        return _instance(cls, value)
    except _WrongValueError as wrong:
        place = "".join([root, *reversed(wrong.path)])
        raise ValueError(f"{place} is {wrong}") from None


def _instance(cls: type, value: Any) -> Any:
    if not isinstance(value, dict):
        raise _WrongValueError(value, "an object")
    converters, required = _of(cls)
    arguments = {}
    for name, item in value.items():
        convert = converters.get(name)
        if convert is not None:
            try:
                arguments[name] = convert(item)
            except _WrongValueError as wrong:
                wrong.path.append(f".{name}")
                raise
    for name in required:
        if name not in arguments:
            raise _WrongValueError(value, f"to have {name!r}")
    return cls(**arguments)


def _of(cls: type) -> tuple[dict[str, _Converter], frozenset[str]]:
    known = _converters.get(cls)
    if known is None:
        hints = get_type_hints(cls)
        converters = {item.name: _converter(hints[item.name]) for item in fields(cls)}
        required = frozenset(
            item.name for item in fields(cls) if item.default is MISSING and item.default_factory is MISSING
        )
        known = _converters[cls] = (converters, required)
    return known


def _converter(hint: Any) -> _Converter:
    """A function that checks and converts a JSON value to ``hint``, for the kinds of types that messages are made
    of."""
    origin, args = get_origin(hint), get_args(hint)
    if hint is float:
        return _number
    if hint is int:
        return _whole
    if hint is str or hint is bool:
        return _exactly(hint)
    if isinstance(hint, type) and is_dataclass(hint):
        return partial(_instance, hint)
    if origin is Literal:
        return _one_of(args)
    if origin in (Union, types.UnionType) and len(args) == 2 and args[1] is types.NoneType:
        inner = _converter(args[0])
        return lambda value: None if value is None else inner(value)
    if origin is tuple and len(args) == 2 and args[1] is Ellipsis:
        return _tuple_of(_converter(args[0]))
    if origin is dict and args[0] is str:
        return _mapping_to(_converter(args[1]))
    raise TypeError(f"no message may hold {hint!r}")


def _number(value: Any) -> float:
    if type(value) is float and math.isfinite(value):
        return value
    if type(value) is int:
        return float(value)
    raise _WrongValueError(value, "a number")


def _whole(value: Any) -> int:
    if type(value) is int:
        return value
    raise _WrongValueError(value, "a whole number")


def _exactly(kind: type) -> _Converter:
    def convert(value: Any) -> Any:
        if type(value) is kind:
            return value
        raise _WrongValueError(value, "a text" if kind is str else "true or false")

    return convert


def _one_of(choices: tuple[object, ...]) -> _Converter:
    def convert(value: Any) -> Any:
        if value in choices:
            return value
        raise _WrongValueError(value, " or ".join(map(repr, choices)))

    return convert


def _tuple_of(inner: _Converter) -> _Converter:
    def convert(value: Any) -> Any:
        if type(value) is not list:
            raise _WrongValueError(value, "a list")
        items = []
        for index, item in enumerate(value):
            try:
                items.append(inner(item))
            except _WrongValueError as wrong:
                wrong.path.append(f"[{index}]")
                raise
        return tuple(items)

    return convert


def _mapping_to(inner: _Converter) -> _Converter:
    def convert(value: Any) -> Any:
        if type(value) is not dict:
            raise _WrongValueError(value, "an object")
        items = {}
        for name, item in value.items():
            try:
                items[name] = inner(item)
            except _WrongValueError as wrong:
                wrong.path.append(f".{name}")
                raise
        return items

    return convert
