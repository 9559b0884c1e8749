"""Keys are answered whatever hangs behind the screen: the driver, the database, the disk, a flood of log lines."""

from __future__ import annotations

import fcntl
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gputui.core.config import Workspace
from tests.faults.jobs import write_scenario
from tests.homes import Home
from tests.machines import Machine
from tests.stories import overnight
from tests.ui.tui.pty_app import PtyApp

pytestmark = [pytest.mark.long, pytest.mark.alone]

PAINT_SECONDS = 0.1
"""A key is answered within this: the median of a round, and the best round, because the machine is shared."""

BLOCKED_SECONDS = 1.0
"""No key ever takes this long, unless something blocks."""

LOCKED_SECONDS = 10.0


# The bytes of the -shm file on which SQLite's readers, writers and checkpointers agree (sqlite.org/walformat.html).
SHM_LOCKS = (120, 8)


def key_seconds(app: PtyApp) -> float:
    """From a key to what it paints: the help opens, and closes again."""
    durations = []
    for key, is_open in (("?", True), ("\x1b", False)):
        started = time.monotonic()
        app.type(key)
        while (" Keys " in app.terminal.text) != is_open:
            app.read(0.004)
            assert time.monotonic() - started < BLOCKED_SECONDS, app.terminal.text
        durations.append(time.monotonic() - started)
    return durations[0]  # the parser waits briefly after an escape, for a sequence may follow


def check_keys(app: PtyApp, busy: Callable[[], bool] = lambda: True) -> int:
    """Press keys in rounds, at least one; returns how many while ``busy``. Fails when they are not answered in time."""
    rounds: list[float] = []
    pressed = 0
    while len(rounds) < 3 and (busy() or not rounds):
        durations = [key_seconds(app) for _ in range(5)]
        pressed += 5 * busy()
        rounds.append(statistics.median(durations))
    assert min(rounds) < PAINT_SECONDS, rounds
    return pressed


@contextmanager
def screen(home: Path) -> Iterator[PtyApp]:
    with PtyApp(["tests.ui.tui.screen_app", str(home)], size=(100, 30)) as app:
        app.read_until(lambda: "t time" in app.terminal.text)
        app.read(0.2)
        yield app


def test_a_locked_database(home: Home, workspace: Workspace) -> None:
    overnight(home)
    with screen(workspace.state.parent) as app:
        with Path(f"{workspace.database}-shm").open("r+b") as shared:
            fcntl.lockf(shared, fcntl.LOCK_EX, SHM_LOCKS[1], SHM_LOCKS[0])
            deadline = time.monotonic() + LOCKED_SECONDS
            app.type("s")
            app.read_until(lambda: "Stop vit-b16-1?" in app.terminal.text)
            app.type("y")
            app.read_until(lambda: "Stop vit-b16-1?" not in app.terminal.text)
            assert check_keys(app, lambda: time.monotonic() < deadline) >= 5
            app.read_until(lambda: "locked" in app.terminal.text or time.monotonic() > deadline)
            assert time.monotonic() < deadline + 1
        # The command that was sent meanwhile is carried out.
        app.read_until(lambda: "Stop vit-b16-1…" in app.terminal.text, 20)
        assert home.connection.execute("SELECT verb FROM commands").fetchall() == [("stop",)]


def test_a_driver_that_hangs(machine: Machine) -> None:
    """The real program with its agent: the sampler hangs in the driver, nothing else does."""
    write_scenario(machine, 2)
    home = str(machine.folder / "home")
    with PtyApp(["gputui", "--home", home], size=(100, 30)) as app:
        app.read_until(lambda: "2 × Simulated GPU" in app.terminal.text)
        write_scenario(machine, 2, "{kind: hang}")
        app.read_until(lambda: "driver silent" in app.terminal.text or "no news" in app.terminal.text, 30)
        check_keys(app)
        app.type("q")
        app.read_until(lambda: app.process.poll() is not None)
        assert app.process.wait(10) == 0
