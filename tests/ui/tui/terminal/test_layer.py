"""The terminal shows what Textual composed: every frame, every cell, after anything that may happen."""

import random
from collections.abc import Callable
from time import monotonic

import pytest
from rich.text import Text
from textual._context import visible_screen_stack
from textual.app import ComposeResult
from textual.pilot import Pilot
from textual.widgets import Input, Static

from tests.ui.tui.display_apps import WORDS, Captured, Dialog, Everything, Other
from tests.ui.tui.emulator import Terminal, repaint


class Words(Captured):
    CSS = "#text { width: 1fr; height: 2; }"

    def compose(self) -> ComposeResult:
        yield Static("", id="text")
        yield Input(id="input")

    def show(self, text: Text | str) -> None:
        self.query_one("#text", Static).update(text if isinstance(text, Text) else Text(text))


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("COLORTERM", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)


def composed_differences(app: Captured) -> list[str]:
    """The cells where *want* differs from a fresh composition of everything."""
    visible_screen_stack.set(app._background_screens)
    differences = []
    fresh = type(app.grid)(app.grid._pens)
    fresh.resize(app.grid.width, app.grid.height)
    for y, strip in enumerate(app.screen._compositor.render_strips()):
        fresh.feed(y, 0, fresh.width, strip)
        if fresh.line(y) != app.grid.line(y):
            differences.append(f"line {y}: {fresh.line(y)} instead of {app.grid.line(y)}")
    return differences


async def settled(pilot: Pilot[None]) -> None:
    await pilot.pause()
    await pilot.pause(0.02)


async def wait_for(pilot: Pilot[None], condition: Callable[[], bool], seconds: float = 60) -> None:
    """Let the app run until something holds; fails if it does not in time."""
    deadline = monotonic() + seconds
    while not condition():
        assert monotonic() < deadline
        await pilot.pause(0.02)


async def test_random_operations_end_in_what_was_composed() -> None:
    source = random.Random(1)
    app = Everything()
    sizes = [(80, 24), (120, 40), (200, 50), (40, 12), (97, 31)]
    themes = ["textual-dark", "textual-light", "ansi-dark", "nord", "gruvbox"]
    async with app.run_test(size=(80, 24)) as pilot:
        app.terminal = Terminal(80, 24)
        repaint(app)
        for _ in range(40):
            what = source.randrange(24)
            if what == 0:
                size = source.choice(sizes)
                app.terminal.resize(*size)
                await pilot.resize_terminal(*size)
            elif what == 1:
                app.theme = source.choice(themes)
            elif what == 2 and len(app.screen_stack) < 4:
                await app.push_screen(source.choice([Dialog, Other])())
            elif what in (3, 4) and len(app.screen_stack) > 1:
                app.pop_screen()
            elif what in (5, 6):
                await pilot.press(source.choice(["tab", "down", "x", "left", "backspace", "end"]))
            elif what == 7:
                app.terminal.fill_with_garbage()
                repaint(app)
            else:
                app.change(source, WORDS)
            await settled(pilot)
            assert not app.problems
            await wait_for(pilot, lambda: not composed_differences(app))
        repaint(app)
        assert not app.problems
    assert len(app.frames) > 20


async def test_nothing_is_written_when_nothing_differs() -> None:
    app = Everything()
    async with app.run_test(size=(80, 24)) as pilot:
        await wait_for(pilot, lambda: "palette" in "".join(app.frames))
        await settled(pilot)
        app.frames.clear()
        app.screen.refresh()
        app.query_one("#static", Static).update("static")
        await settled(pilot)
        assert app.frames == []
        before = len(app.frames)
        app.screen.refresh(layout=True)
        await settled(pilot)
        assert len(app.frames) == before


async def test_colours_are_those_that_the_terminal_has(monkeypatch: pytest.MonkeyPatch) -> None:
    for variables, expected, unwanted in (
        ({"TERM": "xterm-256color", "COLORTERM": "truecolor"}, "38;2;255;0;0", None),
        ({"TERM": "xterm-256color"}, "38;5;", "38;2;"),
        ({"TERM": "xterm"}, "\x1b[", "38;"),
        ({"TERM": "dumb"}, "\x1b[1m", ";3"),
    ):
        monkeypatch.delenv("COLORTERM", raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        app = Words()
        async with app.run_test(size=(30, 8)) as pilot:
            app.show(Text("alarm", "bold #ff0000"))
            await wait_for(pilot, lambda app=app: "alarm" in "".join(app.frames))
            written = "".join(app.frames)
        assert expected in written, variables
        assert unwanted is None or unwanted not in written, variables


async def test_a_failure_while_painting_ends_the_app_with_that_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    app = Words()

    def fail(caret: tuple[int, int]) -> str:
        raise RuntimeError("broken grid")

    with pytest.raises(RuntimeError, match="broken grid"):
        async with app.run_test(size=(30, 8)) as pilot:
            monkeypatch.setattr(app.grid, "emit", fail)
            app.show("x")
            await settled(pilot)
