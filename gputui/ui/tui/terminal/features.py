"""Features of a terminal beside its cells: mouse, title, bell, clipboard."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

from gputui.store.events import EventView
from gputui.ui.tui.settings import Settings
from gputui.ui.tui.terminal import sequences
from gputui.ui.views.snapshot import Snapshot

BELL_SECONDS = 5.0
"""Least time between two bells."""


class TerminalFeatures:
    """Switches and uses the features. ``write`` sends a sequence to the terminal, ``say`` shows a sentence."""

    def __init__(
        self,
        settings: Settings,
        host_name: str,
        write: Callable[[str], object],
        say: Callable[[str, str], object],
    ) -> None:
        self.is_mouse_on = sequences.mouse_wanted(settings.mouse, os.environ)
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
            modes += sequences.MOUSE_ON
        if self._title:
            modes += sequences.TITLE_KEEP + sequences.title_sequence(self._title)
        return modes

    def modes_off(self) -> str:
        """The sequences sent when the screen gives the terminal back."""
        modes = ""
        if self.is_mouse_on:
            modes += sequences.MOUSE_OFF
        if self._title:
            modes += sequences.TITLE_BACK
        return modes

    def change(self, before: Settings, after: Settings, snapshot: Snapshot, *, is_ascii: bool) -> None:
        """Apply changed settings."""
        is_mouse_on = sequences.mouse_wanted(after.mouse, os.environ)
        if after.mouse != before.mouse and is_mouse_on != self.is_mouse_on:
            self.is_mouse_on = is_mouse_on
            mode = sequences.MOUSE_ON if is_mouse_on else sequences.MOUSE_OFF
            self._write(mode)
        self._has_title = after.title
        self._has_bell = after.bell
        if after.title and not before.title:
            self._update_title(snapshot, is_ascii=is_ascii)
        elif not after.title and self._title:
            self._title = ""
            self._write(sequences.TITLE_BACK)

    def copy(self, what: str, text: str) -> None:
        """Copy a text to the person's clipboard, and say so."""
        try:
            self._write(sequences.copy_sequence(text))
        except ValueError as error:
            self._say(f"Not copied: {error}.", "warning")
            return
        self._say(sequences.copied_words(what, text, os.environ), "info")

    def heed(self, snapshot: Snapshot, *, is_ascii: bool) -> None:
        """Update the title, and ring the bell, from a snapshot, if they are switched on."""
        self._update_title(snapshot, is_ascii=is_ascii)
        self._ring(snapshot.events, time.monotonic())

    def _update_title(self, snapshot: Snapshot, *, is_ascii: bool) -> None:
        if not self._has_title:
            return
        title = sequences.title_words(snapshot, self._host_name, is_ascii=is_ascii)
        if title != self._title:
            sequence = sequences.title_sequence(title)
            if not self._title:
                sequence = sequences.TITLE_KEEP + sequence
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
            self._write(sequences.BELL)
