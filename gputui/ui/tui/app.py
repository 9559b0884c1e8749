"""The app: holds the newest snapshot, shows it on the visible page, and carries out actions.

It consists of `Shell` (what pages see of it), `Commands` (the agent) and `Navigation` (pages, dialogs and the moment
shown), and has `TerminalFeatures` (mouse, title, bell, clipboard).
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from textual.binding import BindingType
from textual.driver import Driver
from textual.drivers.linux_driver import LinuxDriver
from textual.message import Message
from textual.reactive import Reactive
from textual.screen import Screen
from textual.theme import Theme as TextualTheme
from textual.timer import Timer

from gputui.core.config import Workspace
from gputui.core.text import clean
from gputui.metrics.draw.glyphs import characters_for
from gputui.runs.agent_process import (
    AgentStoppedError,
    AgentUnreachableError,
    ensure_agent,
    read_identity,
    view_presence,
)
from gputui.runs.identity import is_stopped
from gputui.ui.tui.actions import find
from gputui.ui.tui.actions.keymap import resolve_keys
from gputui.ui.tui.actions.marked import BULK_ACTIONS
from gputui.ui.tui.data.feed import Feed
from gputui.ui.tui.layout.chart_settings import ChartMemory, from_settings, to_settings
from gputui.ui.tui.navigation import Navigation
from gputui.ui.tui.pages.overview.page import OverviewScreen
from gputui.ui.tui.settings import LEAST_REFRESH_SECONDS, Settings, load, save
from gputui.ui.tui.terminal.driver import KeysLost, TerminalDriver, TerminalGone
from gputui.ui.tui.terminal.features import TerminalFeatures
from gputui.ui.tui.terminal.frame_pace import FramePace
from gputui.ui.tui.theme.colors import ANSI, THEMES, theme_for
from gputui.ui.views.snapshot import Snapshot

FIRST_SNAPSHOT_SECONDS = 0.25  # a longer wait for the first frame would be felt
MESSAGE_SECONDS = 5.0  # enough to read a sentence

LOOK_SECONDS = 2.0
"""How often the agent is looked for. The kernel would report only its end, and not SIGSTOP."""

FIRST_PAUSE_SECONDS = 1.0  # a lock of an agent that ends is free by then
LONGEST_PAUSE_SECONDS = 30.0  # a repaired disk or home is noticed soon enough

STARTING = "Starting the agent…"
GONE = "The agent is gone; starting it again…"
NOT_STARTED = "No agent runs, and a read-only screen starts none: nothing is recorded."


class SnapshotRead(Message):
    """A newer snapshot; it replaces one that still waits in the queue."""

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__()
        self.snapshot = snapshot

    def can_replace(self, message: Message) -> bool:
        return isinstance(message, SnapshotRead)


class GputuiApp(Navigation, inherit_bindings=False):
    """The screen. It makes no decisions: it shows snapshots and writes commands."""

    ENABLE_COMMAND_PALETTE = False
    CSS_PATH = Path(__file__).with_name("theme") / "base.tcss"
    BINDINGS: ClassVar[list[BindingType]] = []
    TITLE = "gputui"

    theme = Reactive(ANSI.base)
    """Set here because a change makes Textual read its style sheets again."""

    def __init__(
        self,
        workspace: Workspace,
        feed: Feed,
        snapshot: Snapshot,
        *,
        readonly: bool = False,
        host_name: str | None = None,
        settings: Settings | None = None,
    ) -> None:
        if not os.environ.get("NO_COLOR"):
            # An empty value means nothing (no-color.org); Textual tests whether the variable exists.
            os.environ.pop("NO_COLOR", None)
        super().__init__()
        settings = settings or Settings()
        self.animation_level = "none"
        self.workspace = workspace
        self.feed = feed
        self.snapshot = snapshot
        self.moment = feed.interest.moment
        self.is_readonly = readonly
        self.host_name = host_name or socket.gethostname()
        self.settings = settings
        self.unsaved = {}
        self.keys = resolve_keys(settings.keys)
        self.pace = FramePace()
        self._failed_drawings = set()
        self._due: Timer | None = None
        self.chart_memory = ChartMemory(from_settings(settings), lambda usual: self.keep(**to_settings(usual)))
        self.terminal_features = TerminalFeatures(settings, self.host_name, self.write_sequence, self.say)
        self.copy = self.terminal_features.copy
        self.theme_name = theme_for(settings.theme, no_color=self.no_color, environ=os.environ).name
        self.use_characters(characters_for(settings.characters, os.environ))
        for theme in THEMES.values():
            if theme.background is not None:
                self.register_theme(
                    TextualTheme(theme.base, primary=theme.colours["accent"], foreground=theme.colours["text"],
                                 background=theme.background, dark=theme.is_dark)
                )  # fmt: skip

    def get_default_screen(self) -> Screen[Any]:
        return OverviewScreen(is_folded=self.settings.fold, order=self.settings.sort)

    def get_driver_class(self) -> type[Driver]:
        driver = super().get_driver_class()
        if driver is LinuxDriver:
            return TerminalDriver
        return driver

    def on_mount(self) -> None:
        self.apply_theme()
        self.terminal_features.update(self.snapshot, is_ascii=self.is_ascii)
        self.feed.attach(
            lambda snapshot: self.post_message(SnapshotRead(snapshot)),
            lambda answer: self.call_later(self.take_answer, answer),
        )
        loop = asyncio.get_running_loop()
        for number in (signal.SIGHUP, signal.SIGTERM):
            # Under nohup, SIGHUP is ignored and must stay so.
            if signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, self.exit, 0)
        if self.keys.refused:
            self.say(" ".join(self.keys.refused), "warning")

    # --- what arrives

    def on_snapshot_read(self, message: SnapshotRead) -> None:
        stdin = sys.__stdin__.fileno() if sys.__stdin__ else 0
        if not self.is_headless and not os.isatty(stdin):
            # The terminal is gone without a hang-up signal.
            self.exit(0)
            return
        # Warnings and errors stay until a key is pressed.
        is_brief = self.message[0] and self.message[1] in ("info", "refusal")
        if is_brief and time.monotonic() - self._said_at > MESSAGE_SECONDS:
            self.message = ("", "info")
        if self.accepts(message.snapshot):
            self._show(message.snapshot)

    def show_agent_notice(self, notice: str | None) -> None:
        """Show what is wrong with the agent; None if it runs."""
        self.agent_notice = notice
        self.repaint()

    def on_keys_lost(self, message: KeysLost) -> None:
        self.say("The terminal sent a key that could not be read; it was left out.", "warning")

    def on_terminal_gone(self, message: TerminalGone) -> None:
        # The signal of a hang-up only reaches processes with this controlling terminal.
        self.exit(0)

    # --- painting

    def _show(self, snapshot: Snapshot) -> None:
        """Take a newer snapshot, and draw it when the next update is due."""
        self.snapshot = snapshot
        self.drop_outdated_answer()
        now = time.monotonic()
        self.pace.note_lag(self.lag_seconds, now)
        if snapshot.past is None:
            self.terminal_features.update(snapshot, is_ascii=self.is_ascii)
        if self._due is not None:
            return
        interval = self.pace.interval(self.settings.refresh_seconds, self.settings.slow_line)
        # The feed limits its own rate; snapshots at that rate are drawn at once.
        wait = 0.0
        if interval > LEAST_REFRESH_SECONDS:
            wait = self.pace.wait_seconds(interval, now)
        if wait:
            self._due = self.set_timer(wait, self._draw_due)
        else:
            self._draw_due()

    def _draw_due(self) -> None:
        self._due = None
        self.pace.note_update(time.monotonic())
        self.repaint()

    def change(self, **changes: Any) -> None:
        before = self.settings
        super().change(**changes)
        self.terminal_features.change(before, self.settings, self.snapshot, is_ascii=self.is_ascii)

    def save_settings(self) -> str | None:
        """Write the changed settings, unless the screen is read-only; returns a sentence about what is wrong with the
        file."""
        path = self.workspace.settings
        if self.is_readonly or not self.unsaved:
            return None
        try:
            return save(path, self.unsaved)
        except OSError as error:
            return f"The settings are lost: {path} cannot be written ({error.strerror})."

    # --- actions

    def perform(self, name: str) -> None:
        self.message = ("", "info")
        page = self.page
        action = find(name, page.SCOPE)
        context = page.context()
        why_not = action.why_not(context)
        if why_not is not None:
            self.say(why_not, "warning")
            return
        with self.one_paint():
            if action.is_of_marked(context) and name in BULK_ACTIONS and BULK_ACTIONS[name].effect:
                self.ask_marked(name)
                return
            owners = (page, *page.parts, self)
            do = next(method for owner in owners if (method := getattr(owner, f"do_{name}", None)))
            do()

    def do_suspend(self) -> None:
        self.action_suspend_process()

    def do_leave(self) -> None:
        self.exit(0)


def keep_agent(
    workspace: Workspace, tell: Callable[[str | None], object], stop: threading.Event, *, is_readonly: bool = False
) -> None:
    """Start an agent when none runs, with growing pauses between failures; the agent ends by itself.

    Args:
        tell: called with each sentence to show, None if all is well.
        stop: set when the screen ends.
        is_readonly: whether to start none and only tell.
    """
    newest_text: str | None = None

    def say(text: str | None) -> None:
        nonlocal newest_text
        if text != newest_text and not stop.is_set():
            newest_text = text
            tell(text)

    def keep() -> None:
        pause = FIRST_PAUSE_SECONDS
        sentence = STARTING
        while not stop.is_set():
            identity = read_identity(workspace)
            if identity is not None and identity.ready:
                pause = FIRST_PAUSE_SECONDS
                sentence = GONE
                if is_stopped(identity.process):
                    say(AgentStoppedError(identity.process.pid).sentence)
                else:
                    say(None)
                stop.wait(LOOK_SECONDS)
                continue
            if is_readonly:
                say(NOT_STARTED)
                stop.wait(LOOK_SECONDS)
                continue
            say(sentence)
            try:
                ensure_agent(workspace, report=lambda doing: say(f"The agent is {doing} …"))
            except AgentStoppedError as error:
                say(error.sentence)
            except AgentUnreachableError as error:
                say(f"The agent does not start: {str(error).rstrip('.')}. Trying again in {pause:.0f} s.")
                stop.wait(pause)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    if is_readonly:
        keep()
        return
    try:
        workspace.create()
        with view_presence(workspace):
            keep()
    except OSError as error:
        say(f"Cannot use {workspace.state}: {error.strerror}; choose another --home.")


def run(workspace: Workspace, feed: Feed, *, readonly: bool = False, demo: bool = False) -> int:
    """Show the screen until it is left; returns the exit code. The running ``feed`` is stopped then."""
    settings, problem = load(workspace.settings)
    app = GputuiApp(workspace, feed, feed.first(FIRST_SNAPSHOT_SECONDS), readonly=readonly, settings=settings)
    app.is_demo = demo
    if problem is not None:
        app.message = (problem, "warning")
    stop = threading.Event()
    arguments = workspace, lambda text: app.call_later(app.show_agent_notice, text), stop
    options = {"is_readonly": readonly and not demo}
    threading.Thread(target=keep_agent, args=arguments, kwargs=options, name="agent keeper", daemon=True).start()
    try:
        # Textual's mouse support reports every motion; `terminal.features` has ours.
        code = app.run(mouse=False)
    finally:
        stop.set()
        feed.stop()
        problem = app.save_settings()
    if problem is not None:
        print(f"gputui: {clean(problem)}", file=sys.stderr)  # noqa: T201
    if sys.stdout.isatty():
        _say_goodbye(app)
    if code is None:
        return app.return_code or 0
    return code


def _say_goodbye(app: GputuiApp) -> None:
    """Print what goes on without the screen, and what does not."""
    for title in app.unanswered.values():
        # The agent drops commands of processes that have ended.
        print(f"gputui: {clean(title)}: not done yet, and dropped with the screen.")  # noqa: T201
    active = sum(not row.run.state.is_over for row in app.snapshot.runs)
    if active and not app.is_demo:
        runs = "1 run continues" if active == 1 else f"{active} runs continue"
        print(f"gputui: {runs} without the screen; gputui shows it again.")  # noqa: T201
