"""The terminal shows what Textual composed: every frame, every cell, after anything that may happen."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

import pytest
from rich.segment import Segment
from rich.text import Text
from textual._compositor import ChopsUpdate
from textual._context import visible_screen_stack
from textual.app import App, ComposeResult
from textual.geometry import Offset
from textual.pilot import Pilot
from textual.strip import Strip
from textual.widgets import Input, Log, RichLog, Static

from tests.tui.display_apps import EMOJI, WORDS, Captured, Dialog, Everything, Other
from tests.tui.emulator import Terminal


class Words(Captured):
    """Two lines of text."""

    CSS = "#text { width: 1fr; height: 2; }"

    def compose(self) -> ComposeResult:
        yield Static("", id="text")
        yield Input(id="input")

    def show(self, text: Text | str) -> None:
        self.query_one("#text", Static).update(text if isinstance(text, Text) else Text(text))


async def test_a_span_below_a_screen_that_became_lower_is_left_out() -> None:
    app = Words()
    async with app.run_test(size=(20, 4)) as pilot:
        strip = Strip([Segment("hello")])
        app._display(app.screen, ChopsUpdate([{0: strip}], [(0, 0, 5), (9, 0, 5)], [[5]]))
        await pilot.pause()
        assert app.is_running and app._exception is None


@contextmanager
def environment(monkeypatch: pytest.MonkeyPatch, **variables: str | None) -> Iterator[None]:
    for name, value in variables.items():
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    yield


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("COLORTERM", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)


def composed_differences(app: Captured) -> list[str]:
    """Where *want* differs from a fresh composition of everything."""
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
    """Let the app work off what happened and paint."""
    await pilot.pause()
    await pilot.pause(0.02)


async def until(pilot: Pilot[None], condition: Callable[[], bool], seconds: float = 5) -> None:
    """Let the app run until something holds; fails if it does not within a few seconds."""
    deadline = monotonic() + seconds
    while not condition():
        assert monotonic() < deadline
        await pilot.pause(0.02)


@pytest.mark.parametrize(
    ("seed", "words"),
    [pytest.param(1, WORDS, id="words", marks=pytest.mark.long), pytest.param(2, [*WORDS, *EMOJI], id="emoji")],
)
async def test_random_operations_end_in_what_was_composed(seed: int, words: list[str]) -> None:
    source = random.Random(seed)
    app = Everything()
    sizes = [(80, 24), (120, 40), (200, 50), (40, 12), (97, 31)]
    themes = ["textual-dark", "textual-light", "ansi-dark", "nord", "gruvbox"]
    async with app.run_test(size=(80, 24)) as pilot:
        app.terminal = Terminal(80, 24)
        app.repaint_terminal()
        for _ in range(60):
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
                app.repaint_terminal()
            else:
                app.change(source, words)
            await settled(pilot)
            assert not app.problems
            # Textual cuts joined emoji wrongly at a widget's edge; its own strips differ then.
            if words is WORDS:
                await until(pilot, lambda: not composed_differences(app))
        app.repaint_terminal()
        assert not app.problems
    assert app.display_counters.frames > 20


async def test_one_changed_cell_takes_few_bytes() -> None:
    app = Everything()
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        app.frames.clear()
        app.query_one("#static", Static).update("statix")
        await settled(pilot)
        assert len("".join(app.frames)) < 60
        assert "x" in app.frames[0]


async def test_nothing_is_written_when_nothing_differs() -> None:
    app = Everything()
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        app.frames.clear()
        app.screen.refresh()
        app.query_one("#static", Static).update("static")
        await settled(pilot)
        assert app.frames == []
        before = app.display_counters.frames
        app.screen.refresh(layout=True)
        await settled(pilot)
        assert app.display_counters.frames == before


async def test_the_cursor_stands_at_the_caret_of_an_input() -> None:
    app = Words()
    async with app.run_test(size=(40, 8)) as pilot:
        app.terminal = Terminal(40, 8)
        app.repaint_terminal()
        app.query_one(Input).focus()
        await pilot.press("a", "b")
        await settled(pilot)
        assert app.cursor_position != Offset(0, 0)
        assert app.terminal.cursor == tuple(app.cursor_position)
        assert not app.problems


HOSTILE = [
    "\x1b[2J\x1b[H gone",
    "\x1b]0;owned\x07title",
    "\x1b]52;c;ZWNobw==\x07",
    "\x1bP1;1|\x1b\\",
    "\x9b2J\x9d0;x\x9c",
    "\x1b[6n\x05",
    "a\rb\bc\x07d\x7f\x00e",
    "\u202eevil\u202c\u2066x\u2069\u200e\u200f\u061c",
    "zero\u200bwidth\ufeff\u2060",
    "\u2028\u2029",
    "lone \udc80 surrogate",
    "e" + "\u0335" * 40,
    "\U000e0041tag\ue000\U0010ffff",
]


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
async def test_no_escape_sequence_inside_of_text_reaches_the_terminal(text: str) -> None:
    app = Everything()
    async with app.run_test(size=(80, 24)) as pilot:
        app.terminal = Terminal(80, 24)
        app.repaint_terminal()
        app.frames.clear()
        screen = app.screen
        screen.query_one("#static", Static).update(Text(text))
        screen.query_one(Log).write_line(text)
        screen.query_one(RichLog).write(Text(text))
        app.query_one("#table").update_cell("0", "0", text)  # type: ignore[attr-defined]
        app.query_one("#table").update_cell("1", "1", Text(text))  # type: ignore[attr-defined]
        app.query_one("#input", Input).value = text
        app.notify(text, markup=False)
        await settled(pilot)
        written = "".join(app.frames)
        assert not app.problems
    for sign in (
        "\x1b]",
        "\x1bP",
        "\x1b[2J",
        "\x1b[6n",
        "\x07",
        "\x7f",
        "\x00",
        "\x05",
        "\x9b",
        "\u202e",
        "\u2066",
        "\u200b",
    ):
        assert sign not in written.replace("\x1b[m\x1b[2J", ""), ascii(sign)
    written.encode()
    assert written.count("\u0335") <= 3 * 7
    assert not any(0x80 <= ord(char) < 0xA0 for char in written)


@pytest.mark.parametrize("text", [*EMOJI, "a漢b", "ไทยกำลัง", "e\u0301x", "\u0301x", "\xadx", "🇩", "\u3000x"], ids=ascii)
async def test_odd_characters_leave_their_neighbours_in_place(text: str) -> None:
    app = Words()
    async with app.run_test(size=(30, 8)) as pilot:
        app.terminal = Terminal(30, 8)
        app.repaint_terminal()
        for shown in (f"<{text}>", f"<<{text}{text}>", "plain text", f"{text}|", "", f"{'x' * 29}{text}"):
            app.show(shown)
            await settled(pilot)
            assert not app.problems
            if shown.endswith(">"):
                assert ">" in app.terminal.lines[0]


async def test_joined_emoji_are_reduced_to_their_first_and_nothing_joins() -> None:
    app = Words()
    async with app.run_test(size=(30, 8)) as pilot:
        app.show("👩\u200d💻|❤\ufe0f|🇩🇪|👍🏽|")
        await settled(pilot)
        text = "".join(cell for cell, _ in app.grid.line(0)).rstrip()
        assert text == "👩|❤ |DE|👍|"


@pytest.mark.parametrize(
    ("variables", "wanted", "unwanted"),
    [
        ({"TERM": "xterm-256color", "COLORTERM": "truecolor"}, "38;2;255;0;0", None),
        ({"TERM": "xterm-256color"}, "38;5;", "38;2;"),
        ({"TERM": "xterm"}, "\x1b[", "38;"),
        ({"TERM": "dumb"}, "\x1b[1m", ";3"),
    ],
)
async def test_colours_are_those_that_the_terminal_has(
    variables: dict[str, str], wanted: str, unwanted: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with environment(monkeypatch, **variables):
        app = Words()
        async with app.run_test(size=(30, 8)) as pilot:
            app.show(Text("alarm", "bold #ff0000"))
            await settled(pilot)
            written = "".join(app.frames)
    assert wanted in written
    assert unwanted is None or unwanted not in written


async def test_no_color_keeps_attributes_and_drops_hues(monkeypatch: pytest.MonkeyPatch) -> None:
    with environment(monkeypatch, NO_COLOR="1", COLORTERM="truecolor"):
        app = Words()
        async with app.run_test(size=(30, 8)) as pilot:
            app.terminal = Terminal(30, 8)
            app.repaint_terminal()
            app.show(Text("alarm", "bold red on blue"))
            await settled(pilot)
            cell = app.terminal.screen.buffer[0][0]
            assert (cell.data, cell.bold, cell.fg, cell.bg) == ("a", True, "default", "default")
            assert not app.problems


async def test_what_is_composed_during_a_batch_is_shown_after_it() -> None:
    app = Words()
    async with app.run_test(size=(30, 8)) as pilot:
        app.terminal = Terminal(30, 8)
        app.repaint_terminal()
        with app.batch_update():
            app.show("in a batch")
            app.screen.refresh(layout=True)
            app.frames.clear()
            await pilot.pause(0.05)
            assert app.frames == []
        await settled(pilot)
        await pilot.pause(0.05)
        assert app.terminal.lines[0].startswith("in a batch")


async def test_updates_of_other_kinds_are_left_to_textual(monkeypatch: pytest.MonkeyPatch) -> None:
    app = Words()
    seen: list[object] = []
    async with app.run_test(size=(30, 8)):
        monkeypatch.setattr(App, "_display", lambda self, screen, renderable: seen.append(renderable))
        app._display(app.screen, Text("not an update"))
    assert [str(each) for each in seen] == ["not an update"]


async def test_a_failure_while_painting_ends_the_app_with_that_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    app = Words()

    def fail(caret: tuple[int, int]) -> str:
        raise RuntimeError("broken grid")

    with pytest.raises(RuntimeError, match="broken grid"):
        async with app.run_test(size=(30, 8)) as pilot:
            monkeypatch.setattr(app.grid, "emit", fail)
            app.show("x")
            await settled(pilot)
