"""The app: it holds the newest snapshot, hands it to the screen on top, and carries out what was asked for."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from textual.binding import BindingType
from textual.message import Message
from textual.screen import Screen

from gputui.config import Workspace
from gputui.tui.actions import find
from gputui.tui.agent_watchdog import AgentKeeper
from gputui.tui.commanding import Answered, CommandingApp
from gputui.tui.data.feed import Feed
from gputui.tui.data.snapshot import Snapshot
from gputui.tui.layout.chart_settings import ChartMemory, from_kept, to_keep
from gputui.tui.layout.words import OVER
from gputui.tui.pages.overview.page import OverviewScreen
from gputui.tui.settings import Settings, load
from gputui.tui.widgets.page import ActionScreen

FIRST_SNAPSHOT_SECONDS = 0.25
MESSAGE_SECONDS = 12.0


class SnapshotRead(Message):
    """A newer snapshot; it takes the place of one that was not looked at yet."""

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__()
        self.snapshot = snapshot

    def can_replace(self, message: Message) -> bool:
        return isinstance(message, SnapshotRead)


class AgentTold(Message):
    """How it stands with the agent: a sentence, or None when it lives."""

    def __init__(self, text: str | None) -> None:
        super().__init__()
        self.text = text


@dataclass
class Told(Message):
    """A sentence from a thread. ``kind``: info, warning or error."""

    text: str
    kind: str


class GputuiApp(CommandingApp, inherit_bindings=False):
    """The control center's screen. It decides nothing: it shows snapshots and writes commands."""

    ENABLE_COMMAND_PALETTE = False
    CSS_PATH = Path(__file__).with_name("theme") / "base.tcss"
    BINDINGS: ClassVar[list[BindingType]] = []
    TITLE = "gputui"

    def __init__(
        self,
        workspace: Workspace,
        feed: Feed,
        snapshot: Snapshot,
        *,
        readonly: bool = False,
        demo: bool = False,
        host_name: str | None = None,
        settings: Settings | None = None,
        settings_path: Path | None = None,
    ) -> None:
        super().__init__(settings or Settings(), settings_path)
        self.animation_level = "none"
        self.workspace = workspace
        self.feed = feed
        self.snapshot = snapshot
        self.live_runs = snapshot.runs if snapshot.past is None else ()
        self.is_readonly = readonly
        self.is_demo = demo
        self.host_name = host_name or socket.gethostname()
        self.agent_notice: str | None = None
        self.chart_memory = ChartMemory(
            from_kept(self.settings), lambda usual: self.preferences.change(**to_keep(usual))
        )
        self.message: tuple[str, str] = ("", "info")
        self._said_at = 0.0
        self._held_paints = 0

    def get_default_screen(self) -> Screen[Any]:
        return OverviewScreen(is_folded=self.settings.fold, order=self.settings.sort)

    def on_mount(self) -> None:
        self.wear_theme()
        self.heed(self.snapshot)
        self.set_keymap(self.keys.for_textual())
        self.feed.attach(
            lambda snapshot: self.post_message(SnapshotRead(snapshot)),
            lambda answer: self.post_message(Answered(answer)),
        )
        loop = asyncio.get_running_loop()
        for number in (signal.SIGHUP, signal.SIGTERM):
            loop.add_signal_handler(number, self.exit, 0)
        if self.keys.refused:
            self.say(" ".join(self.keys.refused), "warning")

    # --- what arrives

    def on_snapshot_read(self, message: SnapshotRead) -> None:
        if not self.is_headless and not os.isatty(sys.__stdin__.fileno() if sys.__stdin__ else 0):
            # The terminal went away without a hangup signal while nobody read from it.
            self.exit(0)
            return
        # What went wrong stays until a key shows that somebody is there to have read it.
        is_news = self.message[0] and self.message[1] == "info"
        if is_news and time.monotonic() - self._said_at > MESSAGE_SECONDS:
            self.message = ("", "info")
        self.show_snapshot(message.snapshot)

    def on_agent_told(self, message: AgentTold) -> None:
        self.agent_notice = message.text
        self.repaint()

    def on_told(self, message: Told) -> None:
        self.say(message.text, message.kind)

    def repaint(self) -> None:
        """Draw the page that can be seen; those under it are drawn when they are back."""
        for screen in reversed(self.screen_stack):
            if isinstance(screen, ActionScreen) and screen.is_mounted:
                screen.paint()
                return

    @property
    def is_holding_paint(self) -> bool:
        """Whether a page that is to be painted now will be painted soon, with whatever changes until then."""
        return self._held_paints > 0

    @contextmanager
    def one_paint(self) -> Iterator[None]:
        """However often a paint is asked for inside, the page that can be seen is painted once, at the end."""
        self._held_paints += 1
        try:
            yield
        finally:
            self._held_paints -= 1
        if not self._held_paints:
            self.repaint()

    def say(self, text: str, kind: str = "info") -> None:
        """Show a sentence above the footer until the next key; what is only info, for a while at most. ``kind``: info,
        warning or error."""
        self.message = (text, kind)
        self._said_at = time.monotonic()
        self.repaint()

    def tell(self, text: str, kind: str = "info") -> None:
        """The same from another thread."""
        self.post_message(Told(text, kind))

    # --- what is asked for

    def perform(self, name: str, screen: ActionScreen) -> None:
        """Do what an action of the table says, or say why it is not possible now."""
        self.message = ("", "info")
        why_not = find(name).why_not(screen.context())
        if why_not is not None:
            self.say(why_not, "warning")
            return
        method = getattr(screen, f"do_{name}", None) or getattr(self, f"do_{name}")
        with self.one_paint():
            method()

    def do_palette(self) -> None:
        from gputui.tui.dialogs import palette_entries
        from gputui.tui.dialogs.palette import PaletteScreen

        page = self.page
        more = partial(palette_entries.profile_choices, self, page)
        self.push_screen(
            PaletteScreen(palette_entries.choices(self, page), more), lambda choice: choice.do() if choice else None
        )

    def do_leave(self) -> None:
        self.exit(0)


def run(
    workspace: Workspace,
    feed: Feed,
    *,
    readonly: bool = False,
    demo: bool = False,
    settings_path: Path | None = None,
) -> int:
    """Open the screen and return the exit code once it is left. Needs a terminal. ``feed`` was started before and shows
    the moment to begin with; it ends with the screen. ``settings_path``: where the settings are kept, if not in the
    workspace."""
    settings_path = settings_path or workspace.settings
    settings, trouble = load(settings_path)
    app = GputuiApp(workspace, feed, feed.first(FIRST_SNAPSHOT_SECONDS), readonly=readonly, demo=demo,
                    settings=settings, settings_path=settings_path)  # fmt: skip
    app.moment = feed.interest.moment
    if trouble is not None:
        app.message = (trouble, "warning")
    keeper = AgentKeeper(workspace, lambda text: app.post_message(AgentTold(text)))
    keeper.start()
    try:
        # Textual's own way with the mouse reports every motion; ours is in `habits`.
        code = app.run(mouse=False)
    finally:
        keeper.stop()
        feed.stop()
        app.preferences.finish()
    active = sum(row.run.state not in OVER for row in app.live_runs)
    if active and not demo and sys.stdout.isatty():
        words = "1 run goes on" if active == 1 else f"{active} runs go on"
        print(f"gputui: {words} without the screen; gputui shows it again.")  # noqa: T201
    return app.return_code or 0 if code is None else code
