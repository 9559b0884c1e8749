"""Keys are answered whatever hangs behind the screen: the driver, the database, the disk, a flood of log lines."""

from __future__ import annotations

import fcntl
import os
import shutil
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gputui.config import Workspace, locate
from tests.faults.jobs import write_scenario
from tests.machine import Machine
from tests.tui.filling import Filler
from tests.tui.pty_app import PtyApp

PAINT_SECONDS = 0.1
"""A key is answered within this: the median of a round, and the best round, because the machine is shared."""

BLOCKED_SECONDS = 1.0
"""No key ever takes this long, unless something blocks."""

LOCKED_SECONDS = 10.0

FLOOD_LINES = 100_000

# The bytes of the -shm file on which SQLite's readers, writers and checkpointers agree (sqlite.org/walformat.html).
SHM_LOCKS = (120, 8)


def key_seconds(app: PtyApp) -> float:
    """From a key to what it paints: the help opens, and closes again."""
    taken = []
    for key, is_open in (("?", True), ("\x1b", False)):
        started = time.monotonic()
        app.type(key)
        while (" Keys " in app.terminal.text) != is_open:
            app.read(0.004)
            assert time.monotonic() - started < BLOCKED_SECONDS, app.terminal.text
        taken.append(time.monotonic() - started)
    return taken[0]  # the parser waits a moment whether more follows an escape


def check_keys(app: PtyApp, busy: Callable[[], bool] = lambda: True) -> int:
    """Press keys in rounds, at least one; returns how many while ``busy``. Fails when they are not answered in time."""
    rounds: list[float] = []
    pressed = 0
    while len(rounds) < 3 and (busy() or not rounds):
        taken = [key_seconds(app) for _ in range(5)]
        pressed += 5 * busy()
        rounds.append(statistics.median(taken))
    assert min(rounds) < PAINT_SECONDS, rounds
    return pressed


@contextmanager
def screen(home: Path) -> Iterator[PtyApp]:
    with PtyApp(["tests.tui.screen_app", str(home)], size=(100, 30)) as app:
        app.read_until(lambda: "quit" in app.terminal.text)
        app.read(0.2)
        yield app


@pytest.fixture
def filler(workspace: Workspace) -> Iterator[Filler]:
    made = Filler(workspace)
    yield made
    made.close()


def test_a_locked_database(filler: Filler, workspace: Workspace) -> None:
    filler.overnight()
    with screen(workspace.state.parent) as app:
        with Path(f"{workspace.database}-shm").open("r+b") as shared:
            fcntl.lockf(shared, fcntl.LOCK_EX, SHM_LOCKS[1], SHM_LOCKS[0])
            until = time.monotonic() + LOCKED_SECONDS
            app.type("s")
            app.read_until(lambda: "Stop vit-b16-1?" in app.terminal.text)
            app.type("y")
            app.read_until(lambda: "Stop vit-b16-1?" not in app.terminal.text)
            assert check_keys(app, lambda: time.monotonic() < until) >= 5
            app.read_until(lambda: "locked" in app.terminal.text or time.monotonic() > until)
            assert time.monotonic() < until + 1
        # What was asked for meanwhile was not lost.
        app.read_until(lambda: "Stop vit-b16-1…" in app.terminal.text, 20)
        assert filler.connection.execute("SELECT verb FROM commands").fetchall() == [("stop",)]


def test_a_flood_of_log_lines(filler: Filler, workspace: Workspace) -> None:
    filler.overnight()
    log = workspace.run_dir("vit-b16-1") / "attempts" / "3" / "ranks" / "x" / "attempt_0" / "0" / "stdout.log"
    log.parent.mkdir(parents=True)
    log.write_text("begin\n")

    def pour() -> None:
        with log.open("a") as file:
            for number in range(FLOOD_LINES):
                file.write(f"line {number} of what a rank says when it says too much \x1b[31mred\x1b[0m {number * 7}\n")
                if number % 500 == 0:
                    file.flush()
                    time.sleep(0.01)
            file.write("the very last line\n")

    with screen(workspace.state.parent) as app:
        app.type("\r")
        app.read_until(lambda: "vit-b16-1 ·" in app.terminal.lines[0])
        app.type("3")
        app.read_until(lambda: "begin" in app.terminal.text)
        pouring = threading.Thread(target=pour)
        written = len(app.output)
        pouring.start()
        assert check_keys(app, pouring.is_alive) >= 5
        pouring.join()
        app.read_until(lambda: "the very last line" in app.terminal.text)
        # Lines are shown a few times a second at most, not each: 100 000 of them would be 7 MB.
        assert len(app.output) - written < 300_000


@pytest.mark.skipif(os.getuid() != 0 or shutil.which("mount") is None, reason="mounting a small tmpfs needs root")
def test_a_full_disk(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(small)], check=False).returncode:
        pytest.skip("no file system can be mounted here")
    filler = None
    try:
        workspace = locate(small / "home", {})
        workspace.create()
        filler = Filler(workspace)
        filler.overnight()
        with screen(small / "home") as app:
            with (small / "ballast").open("wb") as ballast, pytest.raises(OSError, match="space"):
                while True:
                    ballast.write(bytes(1 << 16))
                    ballast.flush()
            check_keys(app)
            app.type("T")
            app.read_until(lambda: "only until the end" in app.terminal.text)
            assert app.terminal.screen.buffer[15][50].bg != "default"
            app.type("s")
            app.read_until(lambda: "Stop vit-b16-1?" in app.terminal.text)
            app.type("y")
            app.read_until(lambda: "Cannot ask" in app.terminal.text or "Stop vit-b16-1…" in app.terminal.text)
            check_keys(app)
            (small / "ballast").unlink()
            app.type("q")
            app.read_until(lambda: app.process.poll() is not None)
            assert app.process.wait(10) == 0
    finally:
        if filler is not None:
            filler.close()
        subprocess.run(["umount", str(small)], check=False)


def test_a_driver_that_hangs(machine: Machine) -> None:
    """The real program with its agent: the sampler hangs in the driver, nothing else does."""
    write_scenario(machine, 2)
    home = str(machine.folder / "home")
    with PtyApp(["gputui", "--home", home], size=(100, 30)) as app:
        app.read_until(lambda: "2 GPUs" in app.terminal.text)
        write_scenario(machine, 2, "{kind: hang}")
        app.read_until(lambda: "driver silent" in app.terminal.text or "no news" in app.terminal.text, 30)
        check_keys(app)
        app.type("q")
        app.read_until(lambda: app.process.poll() is not None)
        assert app.process.wait(10) == 0
