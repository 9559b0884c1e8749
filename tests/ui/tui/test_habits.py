"""Mouse, clipboard, title, bell and suspension, in the real program on a real pseudo-terminal."""

from __future__ import annotations

import base64
import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from gputui.core.config import Workspace
from gputui.ui.tui.settings import load, save
from gputui.ui.tui.terminal import features
from tests.homes import Home
from tests.stories import overnight, tick
from tests.texts import mentions
from tests.ui.tui.pty_app import PtyApp

MOUSE_ON = b"\x1b[?1000h\x1b[?1006h"
MOUSE_OFF = b"\x1b[?1006l\x1b[?1000l"


@pytest.fixture
def open_screen(home: Home, workspace: Workspace) -> Callable[..., object]:
    """Opens the screen over the overnight story, with settings."""
    overnight(home)

    @contextmanager
    def opened(environment: dict[str, str] | None = None, **settings: object) -> Iterator[PtyApp]:
        if settings:
            save(workspace.settings, settings)
        home = str(workspace.state.parent)
        with PtyApp(["tests.ui.tui.screen_app", home], size=(100, 30), environment=environment) as app:
            app.read_until(lambda: "t time" in app.terminal.text)
            app.read(0.2)
            yield app

    return opened


def leave(app: PtyApp) -> bytes:
    before = len(app.output)
    app.type("q")
    app.read_until(lambda: app.process.poll() is not None)
    app.read(0.2)
    assert app.process.wait(60) == 0
    return bytes(app.output[before:])


def bells(app: PtyApp) -> int:
    """The number of bells; the end of a command to the terminal is no bell."""
    return re.sub(rb"\x1b\][^\x07\x1b]*\x07", b"", bytes(app.output)).count(b"\a")


def click(app: PtyApp, x: int, y: int) -> None:
    """Press and release the left button on a cell, counted from 0."""
    app.type(f"\x1b[<0;{x + 1};{y + 1}M\x1b[<0;{x + 1};{y + 1}m")


def line_with(app: PtyApp, text: str) -> int:
    return next(y for y, line in enumerate(app.terminal.lines) if text in line)


def settled_lines(app: PtyApp) -> list[str]:
    """The lines of the screen without what grows with time: ages, and the GPU-hours that a silent run costs."""
    return [re.sub(r"\b\d+ h \d\d\b|\b[\d.]+ GPU-hours", "…", line) for line in app.terminal.lines]


# --- mouse


def test_the_mouse_is_on_without_motion_and_off_when_left_and_nothing_else_unasked(
    open_screen: Callable, home: Home
) -> None:
    with open_screen() as app:
        assert MOUSE_ON in app.output
        assert b"\x1b[?1003h" not in app.output
        home.event("GPU 3 fell off the bus", severity="error")
        tick(home)
        app.read_until(lambda: "GPU 3 fell" in app.terminal.text)
        assert MOUSE_OFF in leave(app)
        assert b"\x1b]2;" not in app.output
        assert not bells(app)
        assert b"\x1b[22;2t" not in app.output


def test_over_ssh_the_mouse_is_off_until_asked_for(open_screen: Callable, workspace: Workspace) -> None:
    with open_screen({"SSH_CONNECTION": "1.2.3.4 5 6.7.8.9 22"}) as app:
        assert b"?1000h" not in app.output
        app.type(":set mouse: on\r")
        app.read_until(lambda: MOUSE_ON in app.output)
        app.type(":set mouse: off\r")
        app.read_until(lambda: MOUSE_OFF in app.output)
        after = leave(app)
        assert MOUSE_OFF not in after
    assert load(workspace.settings)[0].mouse == "off"


def test_clicks_choose_open_and_press_the_footers_keys_and_the_wheel_turns(open_screen: Callable) -> None:
    with open_screen() as app:
        run = line_with(app, "lr-sweep-3")
        click(app, 5, run)
        app.read_until(lambda: "▸" in app.terminal.lines[line_with(app, "lr-sweep-3")])
        app.type(f"\x1b[<64;6;{run + 1}M")  # the wheel, up
        app.read_until(lambda: "▸" in app.terminal.lines[line_with(app, "vit-b16-1  ")])
        footer = len(app.terminal.lines) - 1
        app.read_until(lambda: "?" in app.terminal.lines[footer])
        click(app, app.terminal.lines[footer].index("?"), footer)
        app.read_until(lambda: "Keys" in app.terminal.text)
        app.type("\x1b")
        app.read_until(lambda: "Keys" not in app.terminal.text)
        run = line_with(app, "gpt2-124m-1  ")
        click(app, 5, run)
        click(app, 5, run)
        app.read_until(lambda: "gpt2-124m-1 ·" in app.terminal.lines[0])
        in_list = [line for line in app.terminal.lines if line.startswith("▸") and "gpt2-124m-1" in line]
        assert not in_list, "the list is behind the run's page"


# --- clipboard


def test_copying_goes_through_the_terminal(open_screen: Callable) -> None:
    with open_screen({"TMUX": ""}) as app:
        app.type("\x19")
        app.read_until(lambda: b"\x1b]52;c;" in app.output)
        match = re.search(rb"\x1b\]52;c;([A-Za-z0-9+/=]*)\x07", bytes(app.output))
        assert match is not None
        assert base64.b64decode(match[1]) == b"vit-b16-1"
        app.read_until(lambda: "Copied the run's id: vit-b16-1." in app.terminal.text)


def test_what_a_terminal_may_refuse_is_told() -> None:
    assert "set-clipboard on" in features.copied_sentence("a line", "x", {"TMUX": "/tmp/tmux-0/default,1,0"})
    assert "GNU screen" in features.copied_sentence("a line", "x", {"STY": "1.pts"})
    assert mentions(features.copied_sentence("the log", "a\nb\n\x1b[31m", {}), "the log", "3 lines")
    assert "\x1b" not in features.copied_sentence("a line", "\x1b]0;x\x07", {})
    with pytest.raises(ValueError, match="60 kB"):
        features.copy_sequence("x" * 60_000)


# --- title and bell


def test_title_and_bell_tell_the_worst_and_are_taken_back(open_screen: Callable, home: Home) -> None:
    with open_screen(title=True, bell=True) as app:
        assert not bells(app)
        titles = re.findall(rb"\x1b\]2;([^\x1b]*)\x1b\\", bytes(app.output))
        assert len(titles) == 1
        assert titles[0].startswith("1 GPU lost · 2 running 1 queued · ".encode())
        assert app.output.count(b"\x1b[22;2t") == 1
        home.connection.execute("UPDATE runs SET state = 'recovering' WHERE run_id = 'vit-b16-1'")
        home.event("CUDA ran out of memory", subject="vit-b16-1", severity="error")
        tick(home)
        app.read_until(lambda: bells(app) > 0)
        app.read_until(lambda: "↻ recovering · 1 GPU lost · 1 running 1 recovering".encode() in app.output)
        home.event("training again", subject="vit-b16-1")
        tick(home)
        app.read_until(lambda: "training again" in app.terminal.text)
        assert bells(app) == 1
        after = leave(app)
        assert after.count(b"\x1b[23;2t") == 1


# --- suspension and its end


def test_ctrl_z_gives_the_terminal_back_and_fg_takes_it_again(open_screen: Callable) -> None:
    with open_screen(title=True) as app:
        before = settled_lines(app)
        mark = len(app.output)
        app.type("\x1a")
        app.read_until(lambda: app.is_stopped)
        app.read(0.2)
        output = bytes(app.output[mark:])
        for end in (MOUSE_OFF, b"\x1b[23;2t", b"\x1b[?1049l"):
            assert end in output
        assert output.index(MOUSE_OFF) < output.index(b"\x1b[?1049l")
        mark = len(app.output)
        app.terminal.fill_with_garbage()
        os.kill(app.process.pid, signal.SIGCONT)
        app.read_until(lambda: settled_lines(app)[1:8] == before[1:8])
        output = bytes(app.output[mark:])
        assert MOUSE_ON in output
        assert b"\x1b[22;2t" in output
        assert b"\x1b]2;" in output


def test_a_signal_ends_it_and_takes_the_modes_back(open_screen: Callable) -> None:
    with open_screen(title=True) as app:
        mark = len(app.output)
        app.process.send_signal(signal.SIGTERM)
        app.read_until(lambda: app.process.poll() is not None)
        app.read(0.2)
        output = bytes(app.output[mark:])
        assert app.process.wait(60) == 0
        assert MOUSE_OFF in output
        assert b"\x1b[23;2t" in output
        assert b"\x1b[?1049l" in output
