"""Themes: legible, distinguishable, alive on sixteen colours and without any; and the screen in plain ASCII."""

from __future__ import annotations

import itertools
import math
import re
from pathlib import Path

import pytest
from rich.color import Color

from gputui.core.config import Workspace
from gputui.metrics.draw.glyphs import CELLS, ascii_char, ascii_line, block_char, characters_for, translator
from gputui.ui.tui.settings import Settings
from gputui.ui.tui.theme.colors import THEMES, Theme, styles_of, theme_for
from gputui.ui.views.words import RUN_SIGNS, SEVERITY_GLYPHS
from tests.homes import Home
from tests.stories import overnight
from tests.ui.tui.conftest import still_app
from tests.ui.tui.emulator import Terminal, repaint

PAINTED = [theme for theme in THEMES.values() if theme.background is not None]
SOURCE = Path(__file__).parents[4] / "gputui"

Rgb = tuple[float, float, float]


def rgb(colour: str) -> Rgb:
    truecolor = Color.parse(colour).get_truecolor()
    return truecolor.red / 255, truecolor.green / 255, truecolor.blue / 255


def linear(colour: Rgb) -> Rgb:
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour)
    return red, green, blue


def luminance(colour: str) -> float:
    red, green, blue = linear(rgb(colour))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(first: str, second: str) -> float:
    """WCAG 2.2, "contrast ratio"."""
    light, dark = sorted((luminance(first), luminance(second)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def lab(colour: Rgb) -> Rgb:
    """CIELAB of a linear colour, for the white of sRGB."""
    red, green, blue = (max(0.0, part) for part in colour)
    x = (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.9505
    y = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    z = (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.089
    x, y, z = (part ** (1 / 3) if part > 0.008856 else 7.787 * part + 16 / 116 for part in (x, y, z))
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def without_red(colour: Rgb) -> Rgb:
    """A linear colour as it is seen without the receptors for red (Viénot, Brettel, Mollon 1999)."""
    red, green, blue = colour
    mixed = 0.11238 * red + 0.88762 * green
    return mixed, mixed, 0.00401 * red - 0.00401 * green + blue


def without_green(colour: Rgb) -> Rgb:
    red, green, blue = colour
    mixed = 0.29275 * red + 0.70725 * green
    return mixed, mixed, -0.02234 * red + 0.02234 * green + blue


def test_every_text_can_be_read() -> None:
    """WCAG 2.2, success criterion 1.4.3; frames, tracks and sparklines are no text."""
    for theme in PAINTED:
        for key, style in styles_of(theme.name).items():
            if key.startswith(("rule", "track", "history")):
                continue
            assert style.color is not None, theme
            assert style.bgcolor is not None, theme
            assert not style.dim, key
            assert contrast(style.color.name, style.bgcolor.name) >= 4.5, key


@pytest.mark.parametrize("theme", PAINTED)
def test_any_two_curves_can_be_told_apart_by_their_hues(theme: Theme) -> None:
    series = [linear(rgb(theme.colours[f"series.{number}"])) for number in range(6)]
    for view, least in ((lambda colour: colour, 35), (without_red, 15), (without_green, 15)):
        for first, second in itertools.combinations(series, 2):
            assert math.dist(lab(view(first)), lab(view(second))) > least, (theme.name, first, second)


def test_a_terminal_that_knows_all_colours_gets_the_dark_theme() -> None:
    themes = {
        ("auto", "truecolor", False): "dark",
        ("auto", "24bit", False): "dark",
        ("auto", "", False): "ansi",
        ("ansi", "truecolor", False): "ansi",
        ("light", "", False): "light",
        ("auto", "truecolor", True): "mono",
    }
    assert {row: theme_for(row[0], no_color=row[2], environ={"COLORTERM": row[1]}).name for row in themes} == themes


# --- characters


def test_states_are_told_apart_in_ascii() -> None:
    for signs in ([sign.glyph for sign in RUN_SIGNS.values()], list(SEVERITY_GLYPHS.values())):
        assert len({ascii_char(glyph) for glyph in signs}) == len(signs)


def test_every_character_of_our_own_has_a_likeness_in_ascii() -> None:
    """No character in the sources of the screen and the charts becomes a question mark."""
    used = set()
    for folder in ("ui/tui", "metrics/draw"):
        for file in (SOURCE / folder).rglob("*.py"):
            used |= set(file.read_text("utf-8"))
    used -= {chr(code) for code in range(0x1160, 0xFFFF + 1)} - {chr(code) for code in range(0x2000, 0x2900)}
    assert {char for char in used if char.isprintable() and ascii_char(char) == "?"} == {"?"}


def test_braille_becomes_the_stroke_or_the_block_next_to_it() -> None:
    strokes = {"⠉": "'", "⠤": "-", "⣀": ".", "⡇": "|", "⣿": "|", "⠱": "\\", "⠎": "/", "⠑": "'", "⠒": "-"}
    assert {dots: ascii_char(dots) for dots in strokes} == strokes
    assert block_char("⠉") == "▀"
    assert block_char("⣀") == "▄"
    assert block_char("⡇") == "▌"
    for char in CELLS:
        assert ascii_char(char).isascii(), char
        assert (ascii_char(char) == " ") == (char == " "), char
        assert block_char(char) in " ▝▗▐▘▀▚▜▖▞▄▟▌▛▙█░", char


def test_letters_keep_their_base_and_wide_ones_their_room() -> None:
    turn = translator("ascii")
    assert turn is not None
    assert "".join(turn(["é", "ß", "漢", "", "e\u0301", "🤖", ""])) == "es??e??"
    assert ascii_line("größer → 漢") == "groser > ?"


def test_the_characters_follow_choice_and_locale() -> None:
    for choice, environ, characters in (
        ("auto", {}, "braille"),
        ("auto", {"LANG": "de_DE.UTF-8"}, "braille"),
        ("auto", {"LANG": "en_US.utf8"}, "braille"),
        ("auto", {"LANG": "de_DE.ISO-8859-1"}, "ascii"),
        ("auto", {"LC_ALL": "C", "LANG": "de_DE.UTF-8"}, "ascii"),
        ("auto", {"LC_CTYPE": "C.UTF-8", "LANG": "C"}, "braille"),
        ("auto", {"TERM": "linux", "LANG": "C.UTF-8"}, "ascii"),
        ("blocks", {"LANG": "POSIX"}, "blocks"),
        ("braille", {"GPUTUI_ASCII": "1"}, "ascii"),
        ("auto", {"GPUTUI_ASCII": "0"}, "braille"),
    ):
        assert characters_for(choice, environ) == characters, (choice, environ)


# --- on the screen


async def test_nothing_but_ascii_is_written(home: Home, workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUTUI_ASCII", "1")
    overnight(home)
    home.event("größer 漢字 🤖 ⣿⣿ → ünïcode", subject="vit-b16-1")
    app = still_app(workspace, Settings())
    written: list[str] = []
    async with app.run_test(size=(80, 24)) as pilot:
        app.write_frame = written.append  # type: ignore[method-assign]
        repaint(app)
        for key in ("a", "question_mark", "escape", "comma", "escape", "ctrl+p", "v", "escape", "slash", "ä", "escape",
                    "s", "n", "enter", "1", "2", "3", "4", "5", "escape"):  # fmt: skip
            await pilot.press(key)
            await pilot.pause()
    text = "".join(written)
    assert len(text) > 5000
    assert text.isascii()
    assert re.search(r"ret \S*open", text)


async def test_a_theme_repaints_everything(home: Home, workspace: Workspace) -> None:
    overnight(home)
    app = still_app(workspace, Settings())
    async with app.run_test(size=(100, 30)) as pilot:
        terminal = Terminal(100, 30)
        app.write_frame = terminal.feed  # type: ignore[method-assign]
        repaint(app)
        await pilot.pause()
        text = terminal.text
        themes = []
        for name in ("dark", "light", "colour-blind", "mono", "ansi"):
            app.change(theme=name)
            await pilot.pause()
            await pilot.pause()
            assert not terminal.wrong_cells(app._cell_grid)
            corner = terminal.screen.buffer[20][99]
            themes.append((app.theme_name, corner.bg))
            assert terminal.lines[:10] == text.split("\n")[:10]
        assert [name for name, _ in themes] == ["dark", "light", "colour-blind", "mono", "ansi"]
        assert [ground == "default" for _, ground in themes] == [False, False, False, True, True]
        assert len({ground for _, ground in themes}) == 3
        backgrounds = {terminal.screen.buffer[y][x].bg for y in range(30) for x in range(100)}
        assert backgrounds == {"default"}
