"""Shared parts of the screen's tests: a fixed place and time, and a feed that reads when it is told
to."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from gputui.core.config import Workspace
from gputui.metrics.draw.parts import Line
from gputui.runs.processes import ProcessReader
from gputui.store import commands
from gputui.store.database import open_reader
from gputui.ui.tui.app import GputuiApp
from gputui.ui.tui.data.feed import Feed
from gputui.ui.tui.data.reader import SnapshotReader
from gputui.ui.tui.settings import Settings
from gputui.ui.tui.shell import Shell
from gputui.ui.views.snapshot import Interest, Snapshot
from tests.homes import NOW, Home
from tests.stories import overnight

IDLE_TURNS = 3

DRAWING_FAILED = Shell.failure_line
"""The method that each test replaces."""


@pytest.fixture(autouse=True)
def same_everywhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Local time is UTC and nothing of the developer's terminal counts."""
    for name in ("NO_COLOR", "COLORTERM", "SSH_CONNECTION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


async def until_idle(*_seconds: float) -> None:
    """Wait until the event loop has nothing to run but timers and this."""
    loop = asyncio.get_running_loop()
    turns = 0
    while turns < IDLE_TURNS:
        await asyncio.sleep(0)
        turns = 0 if loop._ready else turns + 1  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def pilots_wait_for_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """Textual's pilot sleeps twice after each key, until the whole process is idle: long on a busy machine."""
    monkeypatch.setattr("textual.app.wait_for_idle", until_idle)
    monkeypatch.setattr("textual.pilot.wait_for_idle", until_idle)


@pytest.fixture(autouse=True)
def no_handler_of_children() -> Iterator[None]:
    """A loader's workers leave a handler of SIGCHLD behind in this process. While a screen's event loop closes, Python
    writes of each handled signal to a descriptor that is closed already, and a warning fails the test."""
    former = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGCHLD, former)


@pytest.fixture(autouse=True)
def a_failed_drawing_fails_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """The screen goes on without a pane that cannot be drawn; a test must not."""

    def fail(_shell: Shell, _place: str, error: Exception) -> Line:
        raise error

    monkeypatch.setattr(Shell, "failure_line", fail)


class StillFeed(Feed):
    """A feed without a thread and without a clock: it reads when something is asked of it."""

    def __init__(self, workspace: Workspace, now: float = NOW) -> None:
        super().__init__(workspace, wall=lambda: now)
        self.now = now
        self._still_reader = SnapshotReader(workspace)
        self.watched: set[int] = set()

    def read(self) -> Snapshot:
        with closing(open_reader(self._workspace.database)) as connection:
            return self._still_reader.read(connection, self.now, self.interest)

    def refresh(self) -> None:
        """Read the store and hand out what is there, answers too."""
        if self._show is not None:
            self._show(self.read())
        with closing(open_reader(self._workspace.database)) as connection:
            for command_id in tuple(self.watched):
                answer = commands.answer(connection, command_id)
                if answer is not None and self._tell is not None:
                    self.watched.discard(command_id)
                    self._tell(answer)

    def _set_interest(self, interest: Interest) -> None:
        if interest != self.interest:
            self.interest = interest
            self.refresh()

    def use_processes(self, reader: ProcessReader) -> None:
        """Read processes from something else than the machine."""
        self._still_reader.processes = reader

    def wait_for_checkpoints(self) -> None:
        self._still_reader.run_page.checkpoints.wait(60.0)

    def watch(self, command_id: int) -> None:
        self.watched.add(command_id)

    def stop(self) -> None:
        pass


MakeApp = Callable[..., GputuiApp]


def still_app(workspace: Workspace, settings: Settings) -> GputuiApp:
    feed = StillFeed(workspace)
    return GputuiApp(workspace, feed, feed.read(), settings=settings, host_name="ws-kepler")


@pytest.fixture
def make_app(workspace: Workspace) -> MakeApp:
    """An app on the workspace as it is filled now."""

    def make(*, readonly: bool = False, demo: bool = False) -> GputuiApp:
        feed = StillFeed(workspace)
        app = GputuiApp(workspace, feed, feed.read(), readonly=readonly, host_name="ws-kepler")
        app.is_demo = demo
        return app

    return make


@pytest.fixture
def app(home: Home, make_app: MakeApp) -> GputuiApp:
    overnight(home)
    return make_app()


PROFILE = """\
name: tiny
description: A tiny script for tests.
launcher: python
script: tiny.py
python: {python}
gpus: 0
params:
  steps: {{default: 10, min: 1, max: 100, help: how many steps}}
  lr: 0.5
metrics: off
"""


@pytest.fixture
def profile(workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "here" / "profiles"
    folder.mkdir(parents=True)
    (folder / "tiny.py").write_text("print('hello')\n")
    path = folder / "tiny.yaml"
    path.write_text(PROFILE.format(python=sys.executable))
    monkeypatch.chdir(folder.parent)
    monkeypatch.setattr("gputui.profiles.profile_file.shipped_profiles", lambda: tmp_path / "none")
    return path
