"""Themes: legible, distinguishable, alive on sixteen colours and without any; and the screen in plain ASCII."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest
from rich.color import Color, ColorSystem
from rich.style import Style

from gputui.charts.glyphs import CELLS
from gputui.charts.plain import ascii_char, ascii_line, block_char, characters_for, translator
from gputui.config import Workspace
from gputui.tui.app import GputuiApp
from gputui.tui.layout.words import RUN_SIGNS, SEVERITY_GLYPHS
from gputui.tui.settings import CHOICES, Settings
from gputui.tui.terminal.pens import PenCase
from gputui.tui.theme.colors import COLOUR_BLIND, MONO, THEMES, Theme, styles_of, theme_for
from gputui.tui.theme.looks import LOOKS, SELECTED
from tests.tui.conftest import StillFeed
from tests.tui.emulator import Terminal
from tests.tui.filling import Filler

PAINTED = [theme for theme in THEMES.values() if theme.background is not None]
STATES = ("good", "warn", "bad")
SOURCE = Path(__file__).parents[3] / "gputui"

Rgb = tuple[float, float, float]


def rgb(colour: str) -> Rgb:
    found = Color.parse(colour).get_truecolor()
    return found.red / 255, found.green / 255, found.blue / 255


def linear(colour: Rgb) -> Rgb:
    one, two, three = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour)
    return one, two, three


def luminance(colour: str) -> float:
    red, green, blue = linear(rgb(colour))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """WCAG 2.2, "contrast ratio"."""
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def lab(colour: Rgb) -> Rgb:
    """CIE L*a*b*, white point D65, of linear RGB."""
    red, green, blue = colour
    x = (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.95047
    y = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    z = (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.08883
    fx, fy, fz = (max(c, 0.0) ** (1 / 3) if c > 0.008856 else 7.787 * max(c, 0.0) + 16 / 116 for c in (x, y, z))
    return 116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)


# Machado, Oliveira and Fernandes (2009), severity 1.0, on linear RGB.
BLINDNESS = {
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}


def seen(colour: str, kind: str) -> Rgb:
    value = linear(rgb(colour))
    one, two, three = (sum(a * b for a, b in zip(row, value, strict=True)) for row in BLINDNESS[kind])
    return lab((one, two, three))


@pytest.mark.parametrize("theme", PAINTED, ids=lambda theme: theme.name)
def test_every_text_can_be_read(theme: Theme) -> None:
    """WCAG 2.2, success criterion 1.4.3; what lies below a curve is no text."""
    for key, style in styles_of(theme.name).items():
        if key.startswith("area."):
            continue
        assert style.color is not None and style.bgcolor is not None
        assert not style.dim, key
        assert contrast(style.color.name, style.bgcolor.name) >= 4.5, key


@pytest.mark.parametrize("theme", PAINTED, ids=lambda theme: theme.name)
def test_what_lies_below_a_curve_is_seen_but_fainter(theme: Theme) -> None:
    assert theme.background is not None
    for number in range(6):
        area = theme.style(f"area.{number}").color
        assert area is not None
        assert (
            1.3 < contrast(area.name, theme.background) < contrast(theme.colours[f"series.{number}"], theme.background)
        )


@pytest.mark.parametrize(
    ("name", "colorterm", "no_color", "expected"),
    [
        ("auto", "truecolor", False, "dark"),
        ("auto", "24bit", False, "dark"),
        ("auto", "", False, "ansi"),
        ("ansi", "truecolor", False, "ansi"),
        ("light", "", False, "light"),
        ("auto", "truecolor", True, "mono"),
    ],
)
def test_a_terminal_that_knows_all_colours_gets_the_dark_theme(
    name: str, colorterm: str, no_color: bool, expected: str
) -> None:
    assert theme_for(name, no_color=no_color, environ={"COLORTERM": colorterm}).name == expected


@pytest.mark.parametrize("kind", BLINDNESS)
def test_states_differ_for_the_colour_blind(kind: str) -> None:
    for one, other in itertools.combinations(STATES, 2):
        distance = math.dist(seen(COLOUR_BLIND.colours[one], kind), seen(COLOUR_BLIND.colours[other], kind))
        assert distance > 20, (one, other)  # 2.3 is a just noticeable difference


@pytest.mark.parametrize("theme", PAINTED, ids=lambda theme: theme.name)
@pytest.mark.parametrize("system", [ColorSystem.STANDARD, ColorSystem.EIGHT_BIT], ids=["16", "256"])
def test_a_theme_survives_fewer_colours(theme: Theme, system: ColorSystem) -> None:
    pens = PenCase(system)
    looks = {key: pens.for_style(theme.style(key)) for key in LOOKS}
    for key, pen in looks.items():
        assert int(pen.foreground.split(";")[-1]) != int(pen.background.split(";")[-1]) - 10, key
        assert pen.background == looks["text"].background
    told = [looks[key] for key in ("text", *STATES)]
    assert len({(pen.foreground, pen.attributes) for pen in told}) == len(told)


@pytest.mark.parametrize("theme", THEMES.values(), ids=lambda theme: theme.name)
def test_every_theme_has_a_style_for_every_key(theme: Theme) -> None:
    assert set(styles_of(theme.name)) == {*LOOKS, *(key + SELECTED for key in LOOKS)}
    roles = {look.role.replace("area", "series") for look in LOOKS.values()}
    assert roles - {"text", "dim"} <= set(theme.colours) or theme is MONO
    assert all(theme.style(key).reverse for key in ("caret", "selected"))


def test_without_colours_attributes_are_kept() -> None:
    for key, look in LOOKS.items():
        style = MONO.style(key)
        assert style.color is None and style.bgcolor is None
        assert bool(style.underline) >= look.underline and bool(style.reverse) == look.reverse
    assert MONO.style("bad") != MONO.style("warn") != Style()


def test_the_settings_and_the_themes_are_the_same() -> None:
    assert CHOICES["theme"] == ("auto", *THEMES)


# --- characters


def test_states_are_told_apart_in_ascii() -> None:
    for signs in ([sign.glyph for sign in RUN_SIGNS.values()], list(SEVERITY_GLYPHS.values())):
        assert len({ascii_char(glyph) for glyph in signs}) == len(signs)


def test_every_character_of_our_own_has_a_likeness_in_ascii() -> None:
    """What stands in the sources of the screen and the charts must not become a question mark."""
    used = set()
    for folder in ("tui", "charts"):
        for file in (SOURCE / folder).rglob("*.py"):
            used |= set(file.read_text("utf-8"))
    used -= {chr(code) for code in range(0x1160, 0xFFFF + 1)} - {chr(code) for code in range(0x2000, 0x2900)}
    assert {char for char in used if char.isprintable() and ascii_char(char) == "?"} == {"?"}


@pytest.mark.parametrize(
    ("dots", "stroke"),
    [("⠉", "'"), ("⠤", "-"), ("⣀", "."), ("⡇", "|"), ("⣿", "|"), ("⠱", "\\"), ("⠎", "/"), ("⠑", "'"), ("⠒", "-")],
)
def test_braille_becomes_the_stroke_next_to_it(dots: str, stroke: str) -> None:
    assert ascii_char(dots) == stroke


def test_every_braille_cell_becomes_one_character_of_the_set() -> None:
    for char in CELLS:
        assert ascii_char(char).isascii() and (ascii_char(char) == " ") == (char == " ")
        assert block_char(char) in " ▝▗▐▘▀▚▜▖▞▄▟▌▛▙█░" and (block_char(char) == " ") == (char == " ")
    assert block_char("⠉") == "▀" and block_char("⣀") == "▄" and block_char("⡇") == "▌"


def test_letters_keep_their_base_and_wide_ones_their_room() -> None:
    turn = translator("ascii")
    assert turn is not None
    assert "".join(turn(["é", "ß", "漢", "", "e\u0301", "🤖", ""])) == "es??e??"
    assert ascii_line("größer → 漢") == "groser > ?"


@pytest.mark.parametrize(
    ("choice", "environ", "found"),
    [
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
    ],
)
def test_the_characters_follow_choice_and_locale(choice: str, environ: dict[str, str], found: str) -> None:
    assert characters_for(choice, environ) == found


# --- on the screen


def make(workspace: Workspace, settings: Settings) -> GputuiApp:
    feed = StillFeed(workspace)
    return GputuiApp(workspace, feed, feed.read(), settings=settings, host_name="ws-kepler")


@pytest.mark.parametrize("size", [(80, 24), (200, 50)], ids=["80x24", "200x50"])
async def test_nothing_but_ascii_is_written(
    filler: Filler, workspace: Workspace, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUTUI_ASCII", "1")
    filler.overnight()
    filler.event("größer 漢字 🤖 ⣿⣿ → ünïcode", subject="vit-b16-1")
    app = make(workspace, Settings())
    written: list[str] = []
    async with app.run_test(size=size) as pilot:
        app.write_frame = written.append  # type: ignore[method-assign]
        app.repaint_terminal()
        walk = ["a", "question_mark", "escape", "comma", "escape", "ctrl+p", "v", "escape", "slash", "ä", "escape"]
        walk += ["s", "n", "enter", "1", "2", "3", "4", "5", "question_mark", "escape", "escape"]
        for key in walk:
            await pilot.press(key)
            await pilot.pause()
    text = "".join(written)
    assert len(text) > 5000
    assert text.isascii()
    assert "ret open" in text


async def test_the_theme_key_goes_round_and_repaints_everything(filler: Filler, workspace: Workspace) -> None:
    filler.overnight()
    app = make(workspace, Settings())
    async with app.run_test(size=(100, 30)) as pilot:
        terminal = Terminal(100, 30)
        app.write_frame = terminal.feed  # type: ignore[method-assign]
        app.repaint_terminal()
        await pilot.pause()
        text = terminal.text
        seen = []
        for _ in THEMES:
            await pilot.press("T")
            await pilot.pause()
            await pilot.pause()
            assert not terminal.wrong_cells(app._cell_grid)
            corner = terminal.screen.buffer[20][99]
            seen.append((app.theme_name, corner.bg))
            assert terminal.lines[:10] == text.split("\n")[:10]
        assert [name for name, _ in seen] == ["dark", "light", "colour-blind", "mono", "ansi"]
        assert [ground == "default" for _, ground in seen] == [False, False, False, True, True]
        assert len({ground for _, ground in seen}) == 3
        backgrounds = {terminal.screen.buffer[y][x].bg for y in range(30) for x in range(100)}
        assert backgrounds == {"default"}


@pytest.mark.parametrize("theme", [theme.name for theme in PAINTED])
async def test_a_painted_theme_leaves_no_cell_out(filler: Filler, workspace: Workspace, theme: str) -> None:
    filler.overnight()
    app = make(workspace, Settings(theme=theme))
    async with app.run_test(size=(160, 48)) as pilot:
        terminal = Terminal(160, 48)
        app.write_frame = terminal.feed  # type: ignore[method-assign]
        app.repaint_terminal()
        for key in ("a", "question_mark", "escape", "enter", "comma"):
            await pilot.press(key)
            await pilot.pause()
            await pilot.pause()
            buffer = terminal.screen.buffer
            grounds = {buffer[y][x].bg for y in range(48) for x in range(160) if not buffer[y][x].reverse}
            # Beside the theme's own there is only that of the row under the cursor.
            others = {buffer[y][x].bg for y in range(48) if "▸" not in terminal.lines[y] for x in range(160)}
            assert len(others) == 1 and len(grounds) <= 2 and "default" not in grounds, key


def test_an_empty_no_color_means_nothing(filler: Filler, workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "")
    filler.overnight()
    app = make(workspace, Settings(theme="dark"))
    assert not app.no_color and app.theme_name == "dark"


async def test_no_color_means_no_colours_but_attributes(
    filler: Filler, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    filler.overnight()
    app = make(workspace, Settings(theme="dark"))
    async with app.run_test(size=(120, 36)) as pilot:
        terminal = Terminal(120, 36)
        app.write_frame = terminal.feed  # type: ignore[method-assign]
        app.repaint_terminal()
        await pilot.press("s")
        await pilot.pause()
        await pilot.press("escape", "slash", "v")
        await pilot.pause()
        cells = [terminal.screen.buffer[y][x] for y in range(36) for x in range(120)]
        assert {(cell.fg, cell.bg) for cell in cells} == {("default", "default")}
        assert any(cell.bold for cell in cells)
        assert any(cell.reverse for cell in cells)
        assert any(cell.underscore for cell in cells)
        await pilot.press("escape", "T")
        await pilot.pause()
        assert "NO_COLOR is set" in app.screen.query_one("#message").text
