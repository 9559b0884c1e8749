"""The app as far as a person's habits go: theme, characters, mouse, title, bell, clipboard, the pace of updates."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from textual.driver import Driver
from textual.drivers.linux_driver import LinuxDriver
from textual.message import Message
from textual.reactive import Reactive
from textual.theme import Theme as TextualTheme
from textual.timer import Timer

from gputui.charts.plain import characters_for
from gputui.charts.units import duration
from gputui.store.views import EventView
from gputui.tui.actions import keymap
from gputui.tui.data.snapshot import Snapshot
from gputui.tui.preferences import Preferences
from gputui.tui.settings import CHOICES, LIMITS, Settings
from gputui.tui.terminal import sequences
from gputui.tui.terminal.driver import KeysLost, TerminalDriver, TerminalGone
from gputui.tui.terminal.layer import DisplayLayer
from gputui.tui.terminal.pacing import LAG_SECONDS, Pace
from gputui.tui.theme.colors import ANSI, THEMES, theme_for
from gputui.tui.widgets.pane import Pane

LEAST_REFRESH_SECONDS = LIMITS["refresh_seconds"][0]
BELL_SECONDS = 5.0
"""Two bells are at least so far apart."""


class Said(Message):
    """A sentence from a thread."""

    def __init__(self, text: str, kind: str = "warning") -> None:
        super().__init__()
        self.text = text
        self.kind = kind


class HabitsApp(DisplayLayer[int], inherit_bindings=False):
    """Keeps what a person chose, and does it to the terminal."""

    theme = Reactive(ANSI.base)
    """The usual one from the beginning: another one makes Textual read its style sheets again."""

    snapshot: Snapshot
    host_name: str

    def __init__(self, settings: Settings, path: Path | None) -> None:
        if not os.environ.get("NO_COLOR"):
            # Empty means nothing (no-color.org); Textual asks only whether it is there.
            os.environ.pop("NO_COLOR", None)
        super().__init__()
        self.preferences = Preferences(settings, path, lambda text: self.post_message(Said(text)))
        self.theme_name = theme_for(settings.theme, no_color=self.no_color).name
        self.is_mouse_on = sequences.mouse_wanted(settings.mouse, os.environ)
        self.keys = keymap.resolve(settings.keys)
        self._pace = Pace()
        self._due: Timer | None = None
        self._title = ""
        self._heard_event = 0
        self._rang_at = float("-inf")
        self.use_characters(characters_for(settings.characters, os.environ))
        for theme in THEMES.values():
            if theme.background is not None:
                self.register_theme(
                    TextualTheme(theme.base, primary=theme.colours["accent"], foreground=theme.colours["text"],
                                 background=theme.background, dark=theme.is_dark)
                )  # fmt: skip

    @property
    def settings(self) -> Settings:
        """What a person chose."""
        return self.preferences.settings

    @property
    def is_ascii(self) -> bool:
        """Whether only ASCII is written."""
        return self.characters == "ascii"

    def change(self, **changes: Any) -> None:
        """Change settings: they take effect now and are kept for the next start."""
        before = self.settings
        self.preferences.change(**changes)
        after = self.settings
        if after.theme != before.theme:
            self.wear_theme()
        if after.characters != before.characters:
            self.use_characters(characters_for(after.characters, os.environ))
            self.restyle()
        if after.mouse != before.mouse:
            self.turn_mouse(sequences.mouse_wanted(after.mouse, os.environ))
        if after.title != before.title:
            self._turn_title(after.title)
        self.repaint()

    def repaint(self) -> None:
        """Draw every screen that can be seen."""
        raise NotImplementedError

    def say(self, text: str, kind: str = "info") -> None:
        """Show a sentence."""
        raise NotImplementedError

    def on_said(self, message: Said) -> None:
        self.say(message.text, message.kind)

    def work(self, do: Callable[[], str], failure: str) -> None:
        """Do something that touches the disk in a thread, and say the sentence that it gives; or that it failed."""

        def work() -> None:
            try:
                self.post_message(Said(do(), "info"))
            except OSError as error:
                self.post_message(Said(f"{failure}: {error.strerror or error}.", "error"))

        threading.Thread(target=work, name="work", daemon=True).start()

    # --- looks

    def get_driver_class(self) -> type[Driver]:
        found = super().get_driver_class()
        return TerminalDriver if found is LinuxDriver else found

    def on_keys_lost(self, message: KeysLost) -> None:
        self.say("The terminal sent a key that could not be read; it was left out.", "warning")

    def on_terminal_gone(self, message: TerminalGone) -> None:
        # A hang-up tells its signal only to those whose controlling terminal it was.
        self.exit(0)

    def wear_theme(self) -> None:
        """Use the theme that is set."""
        theme = theme_for(self.settings.theme, no_color=self.no_color)
        self.theme_name = theme.name
        self.theme = theme.base
        self.restyle()

    def restyle(self) -> None:
        """Paint every pane again."""
        for screen in self.screen_stack:
            for pane in screen.query(Pane):
                pane.restyle()

    def do_theme(self) -> None:
        if self.no_color:
            self.say("NO_COLOR is set: there is only the theme without colours.", "warning")
            return
        names = CHOICES["theme"]
        self.change(theme=names[(names.index(self.settings.theme) + 1) % len(names)])
        self.say(f"Theme {self.settings.theme}: {THEMES[self.settings.theme].title}.")

    # --- the terminal

    def modes_on(self) -> str:
        """What a terminal is told when the screen takes it."""
        mouse = sequences.MOUSE_ON if self.is_mouse_on else ""
        title = sequences.TITLE_KEEP + sequences.title_sequence(self._title) if self._title else ""
        return mouse + title

    def modes_off(self) -> str:
        """What a terminal is told when the screen gives it back."""
        mouse = sequences.MOUSE_OFF if self.is_mouse_on else ""
        return mouse + (sequences.TITLE_BACK if self._title else "")

    def turn_mouse(self, is_on: bool) -> None:
        """Ask the terminal to report the mouse, or no longer."""
        if is_on != self.is_mouse_on:
            self.is_mouse_on = is_on
            self.tell_terminal(sequences.MOUSE_ON if is_on else sequences.MOUSE_OFF)

    def do_mouse(self) -> None:
        self.change(mouse="off" if self.is_mouse_on else "on")
        if self.is_mouse_on:
            self.say("The mouse is on: click, double click, wheel; with shift the terminal's own selection.")
        else:
            self.say("The mouse is off; it selects text as the terminal does.")

    def do_suspend(self) -> None:
        self.action_suspend_process()

    def copy(self, what: str, text: str) -> None:
        """Put a text into the person's clipboard and say so."""
        try:
            self.tell_terminal(sequences.copy_sequence(text))
        except ValueError as error:
            self.say(f"Not copied: {error}.", "warning")
            return
        self.say(sequences.copied_words(what, text, os.environ))

    def _turn_title(self, is_on: bool) -> None:
        if is_on:
            self._tell_title(self.snapshot)
        elif self._title:
            self._title = ""
            self.tell_terminal(sequences.TITLE_BACK)

    def heed(self, snapshot: Snapshot) -> None:
        """Tell of a snapshot what is told beside the screen, where that is wanted."""
        self._tell_title(snapshot)
        self._ring(snapshot.events, time.monotonic())

    def _tell_title(self, snapshot: Snapshot) -> None:
        if not self.settings.title:
            return
        words = sequences.title_words(snapshot, self.host_name, is_ascii=self.is_ascii)
        if words != self._title:
            keep = "" if self._title else sequences.TITLE_KEEP
            self._title = words
            self.tell_terminal(keep + sequences.title_sequence(words))

    def _ring(self, events: Sequence[EventView], now: float) -> None:
        newest = max((event.event_id for event in events), default=0)
        is_bad = bool(self._heard_event) and sequences.bad_news(events, self._heard_event)
        # An empty history has nothing to ring for either; what comes next does.
        self._heard_event = newest or self._heard_event or -1
        if is_bad and self.settings.bell and now - self._rang_at >= BELL_SECONDS:
            self._rang_at = now
            self.tell_terminal(sequences.BELL)

    # --- the pace

    @property
    def line_words(self) -> str | None:
        """How it is with the line; None while it keeps up."""
        lag = self.lag_seconds
        slowed = ", fewer updates" if self._pace.is_slowed else ""
        return f"line {duration(lag)} behind{slowed}" if lag > LAG_SECONDS else None

    def show_snapshot(self, snapshot: Snapshot) -> None:
        """Take a newer snapshot; draw it now, or when an update is due again."""
        self.snapshot = snapshot
        now = time.monotonic()
        self._pace.note_lag(self.lag_seconds, now)
        if snapshot.past is None:
            self.heed(snapshot)
        if self._due is not None:
            return
        interval = self._pace.interval(self.settings.refresh_seconds, self.settings.slow_line)
        # The feed keeps its own least distance; what comes at that pace is drawn as it comes.
        wait = self._pace.wait_seconds(interval, now) if interval > LEAST_REFRESH_SECONDS else 0.0
        if wait:
            self._due = self.set_timer(wait, self._draw_due)
        else:
            self._draw_due()

    def _draw_due(self) -> None:
        self._due = None
        self._pace.shown(time.monotonic())
        self.repaint()
