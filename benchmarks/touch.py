"""Delays of keys and pages, and a screen whose terminal stops reading."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from benchmarks.percentiles import percentile
from benchmarks.terminal import KEY_DOWN, KEY_UP, Terminal

CURSOR = "▸"
PAUSE_SECONDS = 0.037
"""Between two keys; no fraction of the second, so that they meet updates at every moment of theirs."""

LONGEST_SECONDS = 10.0
ENTER = b"\r"
ESCAPE = b"\x1b"
HELP = b"?"
FIND = b"\x10"
DIALOGS = {HELP: " Keys ", FIND: " Find "}
"""Keys that open a dialog, and a part of its title."""

BRAILLE = frozenset(map(chr, range(0x2801, 0x2900)))
CURVE_CELLS = 60
"""So many cells with dots in them are a curve."""


def key_to_paint(terminal: Terminal, count: int) -> dict[str, float | int]:
    """Percentiles from a key that moves the cursor to the output that shows it moved. There must be a cursor with a
    line below its own."""
    durations = []
    for number in range(count):
        terminal.take_shown()
        before = _cursor(terminal.shown)
        pressed_at = time.monotonic()
        terminal.press(KEY_UP if number % 2 else KEY_DOWN)
        durations.append(terminal.wait(_moved_from(before), LONGEST_SECONDS) - pressed_at)
        time.sleep(PAUSE_SECONDS)
    return _percentiles(durations)


def dialog_to_paint(terminal: Terminal, times: int) -> dict[str, float | int]:
    """Percentiles from a key that opens or closes a dialog to the output that shows it open or closed."""
    durations = []
    for _ in range(times):
        for key, title in DIALOGS.items():
            for pressed, is_open in ((key, True), (ESCAPE, False)):
                terminal.take_shown()
                at = time.monotonic()
                terminal.press(pressed)
                durations.append(terminal.wait(_has(title, is_open), LONGEST_SECONDS) - at)
                time.sleep(3 * PAUSE_SECONDS)
    return _percentiles(durations)


def open_page(terminal: Terminal, run_id: str, times: int) -> dict[str, float]:
    """From Enter on a run's line of the overview to its page with a curve on it, and from Escape back again. The first
    opening, which reads what later ones have, counts by itself."""
    opened = []
    closed = []
    for _ in range(times):
        terminal.take_shown()
        at = time.monotonic()
        terminal.press(ENTER)
        opened.append(terminal.wait(lambda lines: _is_page(lines, run_id), LONGEST_SECONDS) - at)
        time.sleep(0.5)
        terminal.take_shown()
        at = time.monotonic()
        terminal.press(ESCAPE)
        closed.append(terminal.wait(lambda lines: any("RUNS" in line for line in lines), LONGEST_SECONDS) - at)
        time.sleep(0.5)
    return {
        "first_seconds": opened[0],
        "median_seconds": percentile(opened, 50),
        "back_seconds": percentile(closed, 50),
    }


def stall(terminal: Terminal, seconds: float) -> dict[str, Any]:
    """The terminal reads nothing for some time, while keys are pressed. ``caught_up_seconds``: from the moment it reads
    again to the answer to a key pressed then. ``bytes_after``: what had piled up, and that answer."""
    terminal.take_shown()
    terminal.pause()
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        terminal.press(KEY_DOWN)
        terminal.press(KEY_UP)
        time.sleep(0.25)
    before = terminal.bytes_written
    at = time.monotonic()
    terminal.resume()
    terminal.press(HELP)
    answered = terminal.wait(lambda lines: any(DIALOGS[HELP] in line for line in lines), 2 * LONGEST_SECONDS) - at
    figures = {"caught_up_seconds": answered, "bytes_after": terminal.bytes_written - before}
    terminal.press(ESCAPE)
    terminal.wait(lambda lines: not any(" Keys " in line for line in lines), LONGEST_SECONDS)
    return figures


def _percentiles(durations: list[float]) -> dict[str, float | int]:
    return {
        "count": len(durations),
        "p50_seconds": percentile(durations, 50),
        "p99_seconds": percentile(durations, 99),
        "worst_seconds": max(durations),
    }


def _has(text: str, is_so: bool) -> Callable[[list[str]], bool]:
    return lambda lines: any(text in line for line in lines) == is_so


def _cursor(lines: list[str]) -> tuple[int, ...]:
    return tuple(y for y, line in enumerate(lines) if CURSOR in line)


def _moved_from(before: tuple[int, ...]) -> Callable[[list[str]], bool]:
    return lambda lines: _cursor(lines) != before


def _is_page(lines: list[str], run_id: str) -> bool:
    dots = sum(char in BRAILLE for line in lines for char in line)
    return run_id in lines[0] and dots >= CURVE_CELLS
