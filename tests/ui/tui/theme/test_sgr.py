"""Lines as text: with the terminal's own colours, or without any."""

from __future__ import annotations

from gputui.metrics.draw.parts import Line
from gputui.ui.once import as_text
from gputui.ui.tui.theme.colors import ANSI
from gputui.ui.tui.theme.looks import LOOKS

LINE: Line = [(" gputui", "title"), (" ● fine", "good"), (" plain ", "text"), ("   ", "bad")]


def test_without_colours_there_is_no_escape_code_and_no_blank_at_the_end() -> None:
    assert as_text([LINE, [("   ", "text")]]) == " gputui ● fine plain\n\n"


def test_colours_are_the_terminals_own_and_end_where_they_should() -> None:
    assert as_text([LINE], is_coloured=True) == "\x1b[1m gputui\x1b[0m\x1b[32m ● fine\x1b[0m plain\n"


def test_ascii_and_blocks() -> None:
    assert as_text([LINE], characters="ascii") == " gputui * fine plain\n"
    assert as_text([[("⣿", "text")]], characters="blocks") == "█\n"


def test_every_key_that_a_theme_colours_has_a_colour_here() -> None:
    for key, look in LOOKS.items():
        text = as_text([[("x", key)]], is_coloured=True)
        assert (look.role in ANSI.colours) <= ("\x1b[" in text), key
