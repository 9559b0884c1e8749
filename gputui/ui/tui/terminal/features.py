"""Features of a terminal beside its cells, with their escape sequences: mouse, title, bell, clipboard."""

from __future__ import annotations

import base64
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from gputui.core.text import clean, clip
from gputui.core.units import count_of
from gputui.metrics.draw.glyphs import ascii_line
from gputui.store.events import EventView
from gputui.ui.tui.settings import Settings
from gputui.ui.views.snapshot import Snapshot
from gputui.ui.views.words import RUN_SIGNS

# Presses, releases and the wheel, with coordinates as numbers (xterm: modes 1000 and 1006). Motion is not reported: it
# would cost a packet for every cell that the pointer crosses, and a killed program would leave it on.
MOUSE_ON = "\x1b[?1000h\x1b[?1006h"
MOUSE_OFF = "\x1b[?1006l\x1b[?1000l"

# xterm keeps a stack of titles (window operations 22 and 23); terminals without one ignore both.
TITLE_KEEP = "\x1b[22;2t"
TITLE_BACK = "\x1b[23;2t"

BELL = "\a"
LONGEST_TITLE = 80  # window managers cut longer ones

MOST_COPIED_BYTES = 50_000
"""xterm takes 74 994 bytes of base64 and drops what is longer."""

# States that a title names first.
_WORST = ("failed", "recovering", "stopping")
_COUNTED = ("running", "starting", "ending", "recovering", "queued", "stopping")
FAILED_SECONDS = 3600.0
"""How long after its end a failed run counts as the worst state."""

BELL_SECONDS = 5.0
"""Least time between two bells."""


class TerminalFeatures:
    """Switches and uses the features.

    Args:
        settings: which of them are on.
        host_name: this machine's, for the title.
        write: sends a sequence to the terminal.
        say: shows a sentence of a kind, one of `SIGNS`.
    """

    def __init__(
        self,
        settings: Settings,
        host_name: str,
        write: Callable[[str], object],
        say: Callable[[str, str], object],
    ) -> None:
        self.is_mouse_on = is_mouse_wanted(settings.mouse, os.environ)
        self._has_title = settings.title
        self._has_bell = settings.bell
        self._host_name = host_name
        self._write = write
        self._say = say
        self._title = ""
        self._heard_event = 0
        self._rang_at = float("-inf")

    def modes_on(self) -> str:
        """The sequences sent when the screen takes the terminal."""
        modes = ""
        if self.is_mouse_on:
            modes += MOUSE_ON
        if self._title:
            modes += TITLE_KEEP + title_sequence(self._title)
        return modes

    def modes_off(self) -> str:
        """The sequences sent when the screen gives the terminal back."""
        modes = ""
        if self.is_mouse_on:
            modes += MOUSE_OFF
        if self._title:
            modes += TITLE_BACK
        return modes

    def change(self, before: Settings, after: Settings, snapshot: Snapshot, *, is_ascii: bool) -> None:
        """Apply changed settings."""
        is_mouse_on = is_mouse_wanted(after.mouse, os.environ)
        if after.mouse != before.mouse and is_mouse_on != self.is_mouse_on:
            self.is_mouse_on = is_mouse_on
            mode = MOUSE_ON if is_mouse_on else MOUSE_OFF
            self._write(mode)
        self._has_title = after.title
        self._has_bell = after.bell
        if after.title and not before.title:
            self._update_title(snapshot, is_ascii=is_ascii)
        elif not after.title and self._title:
            self._title = ""
            self._write(TITLE_BACK)

    def copy(self, what: str, text: str) -> None:
        """Copy a text to the person's clipboard, and say so."""
        try:
            self._write(copy_sequence(text))
        except ValueError as error:
            self._say(f"Not copied: {error}.", "warning")
            return
        self._say(copied_sentence(what, text, os.environ), "info")

    def update(self, snapshot: Snapshot, *, is_ascii: bool) -> None:
        """Update the title, and ring the bell, from a snapshot, if they are switched on."""
        self._update_title(snapshot, is_ascii=is_ascii)
        self._ring(snapshot.events, time.monotonic())

    def _update_title(self, snapshot: Snapshot, *, is_ascii: bool) -> None:
        if not self._has_title:
            return
        title = title_words(snapshot, self._host_name, is_ascii=is_ascii)
        if title != self._title:
            sequence = title_sequence(title)
            if not self._title:
                sequence = TITLE_KEEP + sequence
            self._title = title
            self._write(sequence)

    def _ring(self, events: Sequence[EventView], now: float) -> None:
        newest = max((event.event_id for event in events), default=0)
        unheard = [event for event in events if self._heard_event and event.event_id > self._heard_event]
        is_bad = any(event.severity in ("warning", "error") for event in unheard)
        # The first snapshot never rings, an empty one neither; events after it do.
        self._heard_event = newest or self._heard_event or -1
        if is_bad and self._has_bell and now - self._rang_at >= BELL_SECONDS:
            self._rang_at = now
            self._write(BELL)


def title_sequence(text: str) -> str:
    """The sequence that sets the title to ``text``, made harmless."""
    return f"\x1b]2;{clip(clean(text), LONGEST_TITLE)}\x1b\\"


def title_words(snapshot: Snapshot, host_name: str, *, is_ascii: bool) -> str:
    """Counts of runs and the worst state: ``▲ recovering · 2 running 1 queued · gputui ws-kepler``."""
    counts = Counter(row.run.shown_state for row in snapshot.runs)
    failed_at = max((row.run.ended_at or 0.0 for row in snapshot.runs if row.run.state == "failed"), default=0.0)
    has_failed = snapshot.at - failed_at < FAILED_SECONDS
    worst = next((state for state in _WORST if counts[state] and (state != "failed" or has_failed)), None)
    lost = sum(gpu.state == "lost" for gpu in snapshot.gpus)
    parts = []
    if worst is not None:
        parts.append(f"{RUN_SIGNS[worst].glyph} {RUN_SIGNS[worst].word}")
    if lost:
        parts.append(f"{count_of(lost, 'GPU')} lost")
    counted = " ".join(f"{counts[state]} {RUN_SIGNS[state].word}" for state in _COUNTED if counts[state])
    parts += [counted or "no runs", f"gputui {host_name}"]
    text = " · ".join(parts)
    if is_ascii:
        return ascii_line(text)
    return text


def copy_sequence(text: str) -> str:
    """The sequence that copies a text to the clipboard of the person's own machine, also through ssh (OSC 52). Raises
    ValueError if the text is longer than terminals take."""
    data = text.encode("utf-8", "replace")
    if len(data) > MOST_COPIED_BYTES:
        raise ValueError(f"{len(data) // 1000} kB are more than terminals take ({MOST_COPIED_BYTES // 1000} kB)")
    return f"\x1b]52;c;{base64.b64encode(data).decode('ascii')}\a"


def copied_sentence(what: str, text: str, environ: Mapping[str, str]) -> str:
    """A sentence about a copied text, with what the terminal may need for it."""
    count = len(text.splitlines())
    summary = f"{count} lines"
    if count <= 1:
        summary = clip(clean(text.strip()), 40)
    needs = ""
    if environ.get("TMUX"):
        needs = " In tmux this needs: set -g set-clipboard on."
    elif environ.get("STY"):
        needs = " GNU screen does not pass it on; hold shift and select with the mouse."
    return f"Copied {what}: {summary}.{needs}"


def is_mouse_wanted(choice: str, environ: Mapping[str, str]) -> bool:
    """Return whether the mouse is on: over SSH only on request, because a dropped line would leave
    it on."""
    return choice == "on" or (choice == "auto" and not environ.get("SSH_CONNECTION"))
