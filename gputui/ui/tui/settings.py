"""The settings of the screen, kept between starts in a small JSON file.

A view reads the file once and writes only the settings that it changed: those of another view, of a newer gputui or of
an editor survive. A broken file is set aside, never overwritten.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from gputui.core.config import PRIVATE_DIR_MODE, PRIVATE_FILE_MODE
from gputui.core.files import replaced
from gputui.core.text import clean

MOST_BYTES = 1 << 18
"""A larger file is not read."""

CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "theme": ("auto", "ansi", "dark", "light", "colour-blind", "mono"),
    "characters": ("auto", "braille", "blocks", "ascii"),
    "mouse": ("auto", "on", "off"),
    "slow_line": ("auto", "on", "off"),
}
"""Settings with a few possible words."""

END_SECONDS = 2.0
"""How long the end of the screen waits for the settings to be written."""

LIMITS: Final[Mapping[str, tuple[float, float]]] = {"refresh_seconds": (0.25, 60.0)}
"""Least and most of numeric settings."""


class Settings(Struct, frozen=True):
    """All settings. Those of a page (``sort``, ``chart_*``, ``pins``) are checked by the page.

    Attributes:
        theme: auto is dark if the terminal knows all colours, else its own sixteen.
        characters: auto is ASCII if the locale is not UTF-8 or the terminal is the kernel's console, else braille.
        mouse: auto is on, but off over SSH.
        slow_line: auto makes fewer updates while the line does not keep up; on, always.
        refresh_seconds: least time between two updates.
        keys: maps an action, or ``page.action``, to its keys, separated by spaces.
    """

    theme: str = "auto"
    characters: str = "auto"
    mouse: str = "auto"
    slow_line: str = "auto"
    refresh_seconds: float = 0.25
    bell: bool = False
    title: bool = False
    fold: bool = False
    sort: str = ""
    chart_layout: str = ""
    chart_axis: str = ""
    chart_smoothing: str = ""
    pins: tuple[str, ...] = ()
    keys: Mapping[str, str] = msgspec.field(default_factory=dict)


def load(path: Path) -> tuple[Settings, str | None]:
    """The settings of a file, and a sentence about those that cannot be used. A missing file means defaults."""
    try:
        known = _read(path)
    except FileNotFoundError:
        return Settings(), None
    except (OSError, ValueError) as error:
        return Settings(), f"The settings in {path} cannot be read ({_words(error)}); the defaults hold."
    return of_json(known, str(path))


def of_json(known: Mapping[str, Any], where: str) -> tuple[Settings, str | None]:
    """Settings from the content of a file. Invalid ones keep their default and are named in the sentence."""
    found: dict[str, Any] = {}
    wrong: list[str] = []
    for name in Settings.__struct_fields__:
        if name in known:
            value = _checked(name, known[name])
            if value is None:
                wrong.append(clean(f"{name} = {json.dumps(known[name], ensure_ascii=False)[:40]}"))
            else:
                found[name] = value
    problem = f"In {where}, {', '.join(wrong)} cannot be used; the default holds." if wrong else None
    return replace(Settings(), **found), problem


def save(path: Path, changes: Mapping[str, Any]) -> str | None:
    """Merge ``changes`` into the file, atomically. Only its owner can read it.

    Returns a sentence if the old file was broken and was set aside. Raises OSError.
    """

    problem = None
    try:
        known = _read(path)
    except FileNotFoundError:
        known = {}
    except ValueError:
        known = {}
        aside = path.with_name(path.name + ".broken")
        path.replace(aside)
        problem = f"The settings could not be read; they were set aside as {aside}."
    known.update(changes)
    path.parent.mkdir(parents=True, exist_ok=True, mode=PRIVATE_DIR_MODE)
    with replaced(path, PRIVATE_FILE_MODE) as file:
        file.write(json.dumps(known, indent=2, ensure_ascii=False).encode() + b"\n")
    return problem


def _read(path: Path) -> dict[str, Any]:
    """The content of the file. Raises OSError, or ValueError if it is no JSON object."""
    with path.open("rb") as file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise ValueError(f"it is larger than {MOST_BYTES >> 10} KiB")
    known = json.loads(data.decode("utf-8"))
    if not isinstance(known, dict):
        raise ValueError("it is no JSON object")
    return known


def _checked(name: str, value: object) -> object:
    """The value of a setting; None if it is invalid."""
    if name in CHOICES:
        return value if value in CHOICES[name] else None
    if name in LIMITS:
        least, most = LIMITS[name]
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return float(value) if is_number and least <= value <= most else None  # type: ignore[arg-type, operator]
    default = getattr(Settings(), name)
    if isinstance(default, bool):
        return value if isinstance(value, bool) else None
    if isinstance(default, str):
        return value if isinstance(value, str) and len(value) <= 200 else None
    if isinstance(default, tuple):
        is_list = isinstance(value, list) and all(isinstance(each, str) for each in value)
        return tuple(value) if is_list else None  # type: ignore[arg-type]
    is_words = isinstance(value, dict) and all(isinstance(each, str) for each in value.values())
    return value if is_words else None


def _words(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8"
    if isinstance(error, json.JSONDecodeError):
        return f"line {error.lineno}: {error.msg}"
    return str(error)


class Preferences:
    """The settings while the screen is open. A thread writes changes to the file.

    ``tell`` is called from that thread with a sentence if they cannot be written.
    """

    def __init__(self, settings: Settings, path: Path | None, tell: Callable[[str], object]) -> None:
        self.settings = settings
        self._path = path
        self._tell = tell
        self._lock = threading.Lock()
        self._unsaved: dict[str, Any] = {}
        self._writer: threading.Thread | None = None

    def change(self, **changes: Any) -> None:
        """Change settings, for now and for the next start."""
        self.settings = replace(self.settings, **changes)
        if self._path is None:
            return
        with self._lock:
            self._unsaved |= {name: _plain(value) for name, value in changes.items()}
            if self._writer is None:
                self._writer = threading.Thread(target=self._write, args=(self._path,), name="settings", daemon=True)
                self._writer.start()

    def finish(self) -> None:
        """Wait for the writer, at most `END_SECONDS`: the disk may hang."""
        with self._lock:
            writer = self._writer
        if writer is not None:
            writer.join(END_SECONDS)

    def _write(self, path: Path) -> None:
        while True:
            with self._lock:
                changes, self._unsaved = self._unsaved, {}
                if not changes:
                    self._writer = None
                    return
            try:
                problem = save(path, changes)
            except OSError as error:
                problem = f"The settings hold only until the end: {path} cannot be written ({error.strerror})."
            if problem is not None:
                self._tell(problem)


def _plain(value: object) -> object:
    if isinstance(value, tuple):
        return list(value)
    return dict(value) if isinstance(value, Mapping) else value
