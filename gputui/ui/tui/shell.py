"""The app as pages and dialogs use it."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from msgspec.structs import replace
from textual import events
from textual.screen import Screen

from gputui.core.config import Workspace
from gputui.core.text import clean
from gputui.core.units import duration
from gputui.metrics.draw.glyphs import characters_for
from gputui.metrics.draw.parts import Line
from gputui.store.commands import AgentVerb
from gputui.store.runs import Run
from gputui.ui.tui.actions.keymap import Keys
from gputui.ui.tui.data.feed import Feed
from gputui.ui.tui.layout.chart_settings import ChartMemory
from gputui.ui.tui.settings import Settings
from gputui.ui.tui.terminal.frame_pace import LAG_SECONDS, FramePace
from gputui.ui.tui.terminal.layer import DisplayLayer
from gputui.ui.tui.theme.colors import theme_for
from gputui.ui.views.snapshot import Moment, Snapshot


class AskAgent(Protocol):
    """`Commands.ask`, by the names of its arguments."""

    def __call__(self, title: str, verb: AgentVerb, run_id: str | None, args: Mapping[str, Any]) -> None: ...


class Shell(DisplayLayer[int], inherit_bindings=False):
    """Sentences, settings and paints of the app. `Commands`, `Navigation` and `GputuiApp` add the rest.

    Attributes:
        feed: the thread that reads the snapshots.
        snapshot: the newest moment read, which is shown.
        unsaved: the settings to write when the screen ends.
        keys: the keys of each action, from the table and the settings.
        is_readonly: whether nothing may be changed.
        is_demo: whether the home is one of simulated GPUs.
        agent_notice: a sentence about what is wrong with the agent; None if it runs.
        message: the sentence above the footer and its kind, one of `SIGNS`.
        perform: carries out an action on the visible page, or says why it is not possible now.
        copy: puts a text into the person's clipboard: what it is, and the text.
    """

    workspace: Workspace
    feed: Feed
    snapshot: Snapshot
    settings: Settings
    unsaved: Mapping[str, Any]
    keys: Keys
    pace: FramePace
    chart_memory: ChartMemory
    is_readonly: bool
    is_demo: bool = False
    host_name: str
    theme_name: str
    agent_notice: str | None = None
    message: tuple[str, str] = ("", "info")

    # Methods of `Commands`.
    ask: AskAgent
    ask_in_order: Callable[[Sequence[tuple[str, Callable[[], int]]]], None]
    # Methods of `Navigation`.
    confirm: Callable[[str, str, Callable[[], object]], None]
    look_back: Callable[[Moment], None]
    do_time_type: Callable[[], None]
    request_data: Callable[[Screen[Any]], None]
    open_run: Callable[[str], None]
    open_study: Callable[[str], None]
    open_gpu: Callable[[str], None]
    launch_from: Callable[[str], None]
    select_run: Callable[[str], None]
    compare: Callable[[Run | None, Sequence[str]], None]
    # Methods of `GputuiApp`.
    perform: Callable[[str], None]
    copy: Callable[[str, str], None]

    _said_at = 0.0
    _held_paints = 0
    _failed_drawings: set[tuple[str, str, int | None]]

    @property
    def lag_words(self) -> str | None:
        """The lag of the terminal in words; None while it keeps up."""
        lag = self.lag_seconds
        if lag <= LAG_SECONDS:
            return None
        if self.pace.is_slowed:
            return f"terminal {duration(lag)} behind, fewer updates"
        return f"terminal {duration(lag)} behind"

    # --- painting

    def repaint(self) -> None:
        """Draw the visible page; pages below it are drawn when they become visible."""
        pages = (screen for screen in reversed(self.screen_stack) if hasattr(screen, "changed") and screen.is_mounted)
        if (page := next(pages, None)) is not None:
            page.changed()

    def draw_footer(self) -> None:
        """Draw the footer of the visible page, perhaps behind a dialog, with the keys of what has the keyboard."""
        next(screen for screen in reversed(self.screen_stack) if hasattr(screen, "draw_footer")).draw_footer()

    @property
    def is_holding_paint(self) -> bool:
        """True if paints are postponed to the end of `one_paint`."""
        return self._held_paints > 0

    @contextmanager
    def one_paint(self) -> Iterator[None]:
        """Postpone all paints inside the block, and paint the visible page once at its end. A screen that
        was opened or returned to there paints itself; the one below it must not delay it."""
        top = self.screen_stack[-1]
        self._held_paints += 1
        try:
            yield
        finally:
            self._held_paints -= 1
        if not self._held_paints and self.screen_stack[-1] is top:
            self.repaint()

    def failure_line(self, place: str, error: Exception) -> Line:
        """Log a drawing that raised, and return the line that is shown instead. The traceback goes to the agent's log,
        once for each ``place`` on the screen and line of code."""
        last = traceback.extract_tb(error.__traceback__)[-1]
        failure = (place, last.filename, last.lineno)
        if failure not in self._failed_drawings:
            self._failed_drawings.add(failure)
            text = "".join(traceback.format_exception(error))
            # Another user's log cannot be written.
            with suppress(OSError), self.workspace.agent_log.open("a", encoding="utf-8") as log:
                log.write(f"the screen could not draw {place}:\n{text}")
        sentence = f" ✗ This could not be drawn: {type(error).__name__} at {Path(last.filename).name}:{last.lineno}."
        return [(sentence, "bad"), (f" {clean(str(self.workspace.agent_log))} has the traceback.", "dim")]

    # --- sentences

    def say(self, text: str, kind: str = "info") -> None:
        """Show a sentence above the footer until the next key; an info or a refusal for some seconds."""
        self.message = (text, kind)
        self._said_at = time.monotonic()
        self.repaint()

    def tell(self, text: str, kind: str = "info") -> None:
        """`say` from another thread."""
        self.call_later(self.say, text, kind)

    # --- settings

    @property
    def is_ascii(self) -> bool:
        """True if only ASCII characters are shown."""
        return self.characters == "ascii"

    def keep(self, **changes: Any) -> None:
        """Keep settings that a page has changed already."""
        self.settings = replace(self.settings, **changes)
        self.unsaved = {**self.unsaved, **changes}

    def change(self, **changes: Any) -> None:
        """Change settings, now and for the next start."""
        before = self.settings
        self.keep(**changes)
        if self.settings.characters != before.characters:
            self.use_characters(characters_for(self.settings.characters, os.environ))
        if (self.settings.theme, self.settings.characters) != (before.theme, before.characters):
            self.apply_theme()
        self.repaint()

    def apply_theme(self) -> None:
        """Paint every pane in the theme of the settings."""
        theme = theme_for(self.settings.theme, no_color=self.no_color, environ=os.environ)
        self.theme_name = theme.name
        self.theme = theme.base
        for screen in self.screen_stack:
            for pane in screen.query("Pane"):
                pane.notify_style_update()
                pane.refresh()


def passed_to_top(screen: Screen[Any], event: events.Key) -> bool:
    """Pass a key on to the top screen, if an earlier key has opened or closed a screen since; so keys
    typed ahead reach the screen they were meant for. Returns whether it was passed."""
    stack = screen.app.screen_stack
    if not stack or stack[-1] is screen:
        return False
    stack[-1]._forward_event(events.Key(event.key, event.character))
    return True
