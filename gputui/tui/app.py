"""The app: it holds the newest snapshot, hands it to the screen on top, and carries out what was asked for."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from textual.binding import BindingType
from textual.message import Message
from textual.screen import Screen

from gputui.config import Workspace
from gputui.store.commands import CommandAnswer
from gputui.store.database import StoreError
from gputui.store.views import RunView
from gputui.tui.actions import find
from gputui.tui.chart_settings import ChartMemory, from_kept, to_keep
from gputui.tui.feed import Feed
from gputui.tui.keeper import AgentKeeper
from gputui.tui.render.answers import answer_text
from gputui.tui.render.words import OVER, run_sign
from gputui.tui.screens.base import ActionScreen
from gputui.tui.screens.overview import OverviewScreen
from gputui.tui.settings import Settings, load
from gputui.tui.snapshot import Moment, Snapshot
from gputui.tui.time_travel import TimeTravelApp

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


@dataclass
class Asked(Message):
    """A command was written for the agent, or could not be."""

    words: str
    command_id: int | None
    problem: str | None


@dataclass
class Answered(Message):
    """The agent answered a command."""

    answer: CommandAnswer


class GputuiApp(TimeTravelApp, inherit_bindings=False):
    """The control center's screen. It decides nothing: it shows snapshots and writes commands."""

    ENABLE_COMMAND_PALETTE = False
    CSS_PATH = Path(__file__).with_name("styles") / "base.tcss"
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
        self._asked: dict[int, str] = {}

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
            # The terminal went away without a hangup signal; without this the input thread would spin for ever.
            self.exit(0)
            return
        if self.message[0] and time.monotonic() - self._said_at > MESSAGE_SECONDS:
            self.message = ("", "info")
        self.show_snapshot(message.snapshot)

    def on_agent_told(self, message: AgentTold) -> None:
        self.agent_notice = message.text
        self.repaint()

    def on_told(self, message: Told) -> None:
        self.say(message.text, message.kind)

    def on_asked(self, message: Asked) -> None:
        if message.command_id is None:
            self.say(f"Cannot ask the agent: {message.problem}", "error")
            return
        self._asked[message.command_id] = message.words
        self.feed.watch(message.command_id)
        self.say(f"{message.words}…")

    def on_answered(self, message: Answered) -> None:
        answer = message.answer
        words = self._asked.pop(answer.command_id, "")
        if answer.state == "refused":
            self.say(f"{words}: refused. {answer.reason or ''}", "error")
            return
        result = answer.result or {}
        self.say(answer_text(words, result))
        if words.startswith("Launch") and isinstance(self.screen_stack[0], OverviewScreen):
            self.screen_stack[0].point_at(str(result.get("id", "")))

    def repaint(self) -> None:
        """Draw the page that can be seen; those under it are drawn when they are back."""
        for screen in reversed(self.screen_stack):
            if isinstance(screen, ActionScreen) and screen.is_mounted:
                screen.paint()
                return

    def say(self, text: str, kind: str = "info") -> None:
        """Show a sentence above the footer until the next key or for a while. ``kind``: info, warning or error."""
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
        method()
        self.repaint()

    def ask(self, words: str, verb: str, run_id: str | None, args: Mapping[str, Any]) -> None:
        """Write a command for the agent, in a thread: a locked database must not stop the screen."""
        from gputui.tui import asking

        self.ask_by(words, lambda: asking.ask(self.workspace, verb, run_id, args))

    def ask_by(self, words: str, write: Callable[[], int]) -> None:
        """The same with another way to write it; ``write`` returns the command's id."""

        def work() -> None:
            try:
                self.post_message(Asked(words, write(), None))
            except (StoreError, sqlite3.Error, OSError) as error:
                self.post_message(Asked(words, None, str(error)))

        threading.Thread(target=work, name="asking", daemon=True).start()

    def open_run(self, run_id: str) -> None:
        """Open the page of a run, above whatever is open."""
        from gputui.tui.screens.run_page import RunScreen

        if isinstance(self.screen, RunScreen):
            if self.screen.run_id == run_id:
                return
            self.pop_screen()
        self.push_screen(RunScreen(run_id, self.chart_memory))

    def compare(self, run: RunView | None, marked: Sequence[str] = ()) -> None:
        """Open the comparison of the marked runs; with fewer than two, of ``run`` with the newest of its profile."""
        from gputui.tui.comparing import MOST_RUNS
        from gputui.tui.screens.compare import CompareScreen

        chosen = tuple(marked)
        if len(chosen) < 2 and run is not None:
            alike = [row.run.run_id for row in self.snapshot.runs if row.run.profile == run.profile]
            chosen = tuple(dict.fromkeys([run.run_id, *chosen, *alike]))
        if len(chosen) > MOST_RUNS:
            self.say(f"The first {MOST_RUNS} of {len(chosen)} runs; more curves cannot be told apart.")
        self.push_screen(CompareScreen(chosen[:MOST_RUNS], self.chart_memory.usual))

    def do_compare(self) -> None:
        self.compare(self._run)

    def open_gpu(self, uuid: str) -> None:
        """Open the page of a GPU."""
        from gputui.tui.screens.gpu_page import GpuScreen

        self.push_screen(GpuScreen(uuid))

    def do_processes(self) -> None:
        from gputui.tui.screens.gpu_page import GpuScreen
        from gputui.tui.screens.processes import ProcessesScreen

        gpu = self.screen.gpu_in_question if isinstance(self.screen, GpuScreen) else None
        self.push_screen(ProcessesScreen("gpu" if gpu else "", gpu.index if gpu else None))

    @property
    def _run(self) -> RunView:
        """The run that the action at hand is about; the table of actions has made sure that there is one."""
        run = self.screen.run_in_question if isinstance(self.screen, ActionScreen) else None
        assert run is not None
        return run

    def do_stop(self) -> None:
        run = self._run
        text = f"Stop {run.run_id}? It gets the time to write a checkpoint, then its processes end."
        if run.state in ("queued", "recovering"):
            text = (
                f"Stop {run.run_id}? It is {run_sign(run.state).word} and has no process now; it will not start again."
            )
        self.confirmed("Stop", text, lambda: self.ask(f"Stop {run.run_id}", "stop", run.run_id, {"now": False}))

    def do_restart(self) -> None:
        run = self._run
        now = "" if run.state in OVER else " Its processes are stopped first."
        text = f"Begin {run.run_id} again from the start, with the parameters of its launch?{now}"
        self.confirmed("Restart", text, lambda: self.ask(f"Restart {run.run_id}", "restart", run.run_id, {}))

    def do_resume(self) -> None:
        run = self._run
        self.ask(f"Resume {run.run_id}", "resume", run.run_id, {"set": {}})

    def do_remove(self) -> None:
        run = self._run
        text = f"Remove {run.run_id} with its metrics, logs and checkpoints? This cannot be undone."
        self.confirmed("Remove", text, lambda: self.ask(f"Remove {run.run_id}", "rm", run.run_id, {}))

    def confirmed(self, title: str, text: str, do: Callable[[], object]) -> None:
        """Ask a person first, and do it when they are sure."""

        def decide(is_sure: bool | None) -> None:
            if is_sure:
                do()

        from gputui.tui.screens.confirm import ConfirmScreen

        self.push_screen(ConfirmScreen(title, text), decide)

    def do_launch(self) -> None:
        # The form's modules are only loaded by those who launch.
        from gputui.tui.launch_form import Preset
        from gputui.tui.screens.launch import LaunchScreen

        run = self.screen.run_in_question if isinstance(self.screen, ActionScreen) else None
        self.push_screen(LaunchScreen(Preset(run.profile) if run else None))

    def do_clone(self) -> None:
        from gputui.tui.launch_form import Preset
        from gputui.tui.launching import launched_gpu_count
        from gputui.tui.page_reading import launched_params
        from gputui.tui.screens.launch import LaunchScreen

        run = self._run
        preset = Preset(run.profile, launched_params(run), launched_gpu_count(run), run.run_id)
        self.push_screen(LaunchScreen(preset))

    def do_help(self) -> None:
        if isinstance(self.screen, ActionScreen):
            from gputui.tui.screens.help import HelpScreen

            self.push_screen(HelpScreen(self.screen.context()))

    def do_alerts(self) -> None:
        from gputui.tui.screens.alerts import AlertsScreen

        if any(isinstance(screen, AlertsScreen) for screen in self.screen_stack):
            # It lies below the page of a run that was opened from it.
            while not isinstance(self.screen, AlertsScreen):
                self.pop_screen()
            return
        self.push_screen(AlertsScreen())

    def do_settings(self) -> None:
        from gputui.tui.screens.settings import SettingsScreen

        self.push_screen(SettingsScreen())

    def launch_from(self, profile: str) -> None:
        """Open the launch form with a profile."""
        from gputui.tui.launch_form import Preset
        from gputui.tui.screens.launch import LaunchScreen

        self.push_screen(LaunchScreen(Preset(profile)))

    def do_palette(self) -> None:
        from gputui.tui import finding
        from gputui.tui.screens.palette import PaletteScreen

        screen = self.screen
        if isinstance(screen, ActionScreen):
            more = partial(finding.profile_choices, self, screen)
            palette = PaletteScreen(finding.choices(self, screen), more)
            self.push_screen(palette, lambda choice: choice.do() if choice else None)

    def do_leave(self) -> None:
        self.exit(0)


def run(
    workspace: Workspace,
    *,
    readonly: bool = False,
    demo: bool = False,
    settings_path: Path | None = None,
    moment_at: float | None = None,
) -> int:
    """Open the screen and return the exit code once it is left. Needs a terminal. ``settings_path``: where the settings
    are kept, if not in the workspace. ``moment_at``: the past moment to begin with, in UTC unix seconds."""
    settings_path = settings_path or workspace.settings
    settings, trouble = load(settings_path)
    feed = Feed(workspace)
    moment = None if moment_at is None else Moment(moment_at)
    feed.look_back(moment)
    feed.start()
    app = GputuiApp(workspace, feed, feed.first(FIRST_SNAPSHOT_SECONDS), readonly=readonly, demo=demo,
                    settings=settings, settings_path=settings_path)  # fmt: skip
    app.moment = moment
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
