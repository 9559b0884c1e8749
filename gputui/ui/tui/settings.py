"""The settings of the screen, kept between starts in a small JSON file.

A view reads the file once and writes only the settings that it changed: those of another view or of
an editor survive. A broken file is set aside, never overwritten.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from gputui.core.config import PRIVATE_DIR_MODE, PRIVATE_FILE_MODE
from gputui.core.files import replaced
from gputui.core.text import clean
from gputui.metrics.curves.model import Axis

LEAST_REFRESH_SECONDS = 0.25

Layout = Literal["grid", "two", "one"]


class Settings(Struct, frozen=True):
    """All settings. The pages check ``sort`` and ``pins``, whose names they know.

    Attributes:
        theme: auto is dark if the terminal knows all colours, else its own sixteen.
        characters: auto is ASCII without UTF-8 and on the kernel's console, else braille.
        mouse: auto is on, but off over SSH.
        slow_line: auto makes fewer updates while the line does not keep up; on, always.
        refresh_seconds: least time between two updates.
        keys: maps an action, or ``page.action``, to its keys, separated by spaces.
    """

    theme: Literal["auto", "ansi", "dark", "light", "colour-blind", "mono"] = "auto"
    characters: Literal["auto", "braille", "blocks", "ascii"] = "auto"
    mouse: Literal["auto", "on", "off"] = "auto"
    slow_line: Literal["auto", "on", "off"] = "auto"
    refresh_seconds: Annotated[float, Meta(ge=LEAST_REFRESH_SECONDS, le=60.0)] = LEAST_REFRESH_SECONDS
    bell: bool = False
    title: bool = False
    fold: bool = False
    sort: Annotated[str, Meta(max_length=200)] = ""
    chart_layout: Layout = "grid"
    chart_axis: Axis = "step"
    chart_smoothing: Annotated[float, Meta(ge=0.0, lt=1.0)] = 0.0
    pins: tuple[str, ...] = ()
    keys: dict[str, str] = msgspec.field(default_factory=dict)


TYPES: Mapping[str, Any] = get_type_hints(Settings, include_extras=True)


def values_of(name: str) -> tuple[Any, ...]:
    """The possible values of a setting with a few."""
    if TYPES[name] is bool:
        return (False, True)
    return get_args(TYPES[name])


def load(path: Path) -> tuple[Settings, str | None]:
    """The settings of a file, and a sentence about those that cannot be used. Missing ones are defaults."""
    try:
        stored = _read(path)
    except FileNotFoundError:
        return Settings(), None
    except (OSError, msgspec.MsgspecError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        return Settings(), f"The settings in {path} cannot be read ({reason}); the defaults hold."
    values: dict[str, Any] = {}
    wrong: list[str] = []
    for name in stored.keys() & TYPES.keys():
        try:
            values[name] = msgspec.convert(stored[name], TYPES[name])
        except msgspec.ValidationError:
            wrong.append(clean(f"{name} = {json.dumps(stored[name], ensure_ascii=False)[:40]}"))
    settings = replace(Settings(), **values)
    if wrong:
        return settings, f"In {path}, {', '.join(sorted(wrong))} cannot be used; the default holds."
    return settings, None


def save(path: Path, changes: Mapping[str, Any]) -> str | None:
    """Merge ``changes`` into the file, atomically. Only its owner can read it.

    Returns a sentence if the old file was broken and was set aside. Raises OSError.
    """
    stored = {}
    problem = None
    try:
        stored = _read(path)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True, mode=PRIVATE_DIR_MODE)
    except msgspec.MsgspecError:
        aside = path.with_name(path.name + ".broken")
        path.replace(aside)
        problem = f"The settings could not be read; they were set aside as {aside}."
    with replaced(path, PRIVATE_FILE_MODE) as file:
        file.write(json.dumps({**stored, **changes}, indent=2, ensure_ascii=False).encode() + b"\n")
    return problem


def _read(path: Path) -> dict[str, Any]:
    return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
