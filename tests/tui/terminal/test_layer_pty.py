"""The display layer on a real pseudo-terminal: resizing, suspending, and a terminal that stops reading."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import wait_until
from tests.tui.emulator import GARBAGE
from tests.tui.pty_app import PtyApp

APP = "tests.tui.display_apps"


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    return tmp_path / "notes"


def noted(notes: Path) -> list[list[int]]:
    """Ticks, frames put off and bytes written, as the app noted them tick by tick."""
    text = notes.read_text() if notes.exists() else ""
    return [[int(number) for number in line.split()] for line in text.splitlines() if line.count(" ") == 2]


@pytest.fixture
def still(notes: Path) -> Iterator[PtyApp]:
    """An app that changes nothing after its first moments."""
    with PtyApp([APP, str(notes), "still"]) as app:
        app.read_until(lambda: len(noted(notes)) > 10)
        app.read(0.2)
        assert shows_rows(app)
        yield app


def shows_rows(app: PtyApp) -> bool:
    lines = app.terminal.lines
    return GARBAGE * 3 not in app.terminal.text and all(f"row {y:3}" in lines[y] for y in range(len(lines) - 4))


def test_nothing_is_written_while_nothing_changes(still: PtyApp) -> None:
    assert still.read(0.5) == b""


def test_a_resize_to_and_fro_leaves_nothing_of_what_the_terminal_made_of_it(still: PtyApp) -> None:
    before = still.terminal.lines
    still.resize(100, 30)
    still.resize(80, 24)
    still.read_until(lambda: shows_rows(still))
    still.read(0.2)
    assert still.terminal.lines == before


def test_a_new_size_is_filled(still: PtyApp) -> None:
    still.resize(120, 40)
    still.read_until(lambda: shows_rows(still))
    assert "row  35" in still.terminal.lines[35]
    still.resize(40, 12)
    still.read_until(lambda: shows_rows(still))


def test_the_screen_is_back_after_a_suspension(still: PtyApp) -> None:
    before = still.terminal.lines
    os.kill(still.process.pid, signal.SIGTSTP)
    still.read_until(lambda: still.is_stopped)
    still.read(0.1)
    assert b"\x1b[?1049l" in still.output
    still.terminal.fill_with_garbage()
    os.kill(still.process.pid, signal.SIGCONT)
    still.read_until(lambda: shows_rows(still))
    assert still.terminal.lines == before


def test_the_screen_is_back_after_another_program_had_the_terminal(still: PtyApp) -> None:
    before = still.terminal.lines
    still.type("\x1bOQ")  # F2
    still.read_until(lambda: b"another program was here" in still.output)
    still.read_until(lambda: still.terminal.lines == before)
    assert not still.is_stopped


def test_a_terminal_that_does_not_read_stops_nothing(notes: Path) -> None:
    with PtyApp([APP, str(notes)], size=(200, 50)) as app:
        app.read_until(lambda: len(noted(notes)) > 5)
        ticks_before = noted(notes)[-1][0]
        # The terminal's turn to be slow: nothing is read, and the program goes on.
        wait_until(lambda: noted(notes)[-1][0] > ticks_before + 20 and noted(notes)[-1][1] > 10, what="ticks put off")
        ticks, put_off, written = noted(notes)[-1]
        app.read_until(lambda: f"{noted(notes)[-1][0]}" != str(ticks))
        # What piled up is one or two frames, not three seconds of them; then the newest is shown.
        app.read_until(lambda: noted(notes)[-1][2] > written and shows_rows(app))
        assert noted(notes)[-1][1] >= put_off


def test_large_frames_are_synchronized_where_the_terminal_can(notes: Path) -> None:
    with PtyApp([APP, str(notes)], sync=True) as app:
        app.read_until(lambda: app.output.count(b"\x1b[?2026h") > 2)
        app.read(0.2)
        begins, ends = app.output.count(b"\x1b[?2026h"), app.output.count(b"\x1b[?2026l")
        assert abs(begins - ends) <= 1
        for frame in bytes(app.output).split(b"\x1b[?2026h")[1:-1]:
            assert len(frame.partition(b"\x1b[?2026l")[0]) >= 1000
    with PtyApp([APP, str(notes)]) as app:
        app.read_until(lambda: shows_rows(app))
        assert b"\x1b[?2026h" not in app.output


def test_leaving_restores_the_terminal(still: PtyApp) -> None:
    still.type("\x11")  # ctrl+q
    still.read_until(lambda: b"\x1b[?1049l" in still.output)
    assert still.process.wait(10) == 0
