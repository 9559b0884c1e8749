"""Text from outside must not be able to drive the terminal, wherever it is shown."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputui.charts.cells import cell_width, clip, fit
from gputui.charts.safe_text import MARKS_PER_CHARACTER, REPLACEMENT, clean

HOSTILE = [
    "\x1b[2J\x1b[H",
    "\x1b]0;owned\x07",
    "\x1b]52;c;ZWNobyBoaQ==\x1b\\",
    "\x1bP+q544e\x1b\\",
    "\x9b31m\x9d0;t\x9c",
    "\x1b[6n\x1b[c\x05",
    "a\rb\bc\x7f\x00\x0b\x0c",
    "\u202eevil\u202c \u2066x\u2069 \u200eltr\u200f\u061c",
    "a\u200bb\u200cc\u200dd\ufeffe\u2060",
    "\ud800\udfff\ue000\uffff\U000e0041",
    "line\u2028separator\u2029",
    "\u3164\u115fx\uffa0\u034f",
    "z" + "\u0335" * 50,
    "\x1b[",
    "\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\",
    "\x1bc",
    "\x1b" * 40 + "[m",
]


def assert_harmless(text: str) -> None:
    marks = MARKS_PER_CHARACTER
    for char in text:
        category = unicodedata.category(char)
        assert category[0] != "C" and category not in ("Zl", "Zp"), ascii(char)
        marks = marks + 1 if category[0] == "M" else 0
        assert marks <= MARKS_PER_CHARACTER


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_hostile_text_comes_out_harmless_and_not_unnoticed(text: str) -> None:
    shown = clean(text)
    assert_harmless(shown)
    assert any(sign in shown for sign in ("\u241b", REPLACEMENT, "\u240d", "\u0335"))


@given(st.text())
def test_any_text_comes_out_harmless_and_cleaning_again_changes_nothing(text: str) -> None:
    shown = clean(text)
    assert_harmless(shown)
    assert clean(shown) == shown


@given(st.text(st.sampled_from("a\x1b[]mP;0\\\x07\x9b\x9c\n\t\u202e\u0301\u200d\U0001f469\U0001f3fd\ufe0f")))
def test_sequences_in_any_arrangement_come_out_harmless(text: str) -> None:
    assert_harmless(clean(text))
    assert_harmless(clean(text, newlines=True).replace("\n", ""))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain µ Ω 漢字 …", "plain µ Ω 漢字 …"),
        ("\x1b[1;31merror\x1b[0m\x1b[K done", "error done"),
        ("\x1b[2Jcleared", "␛cleared"),
        ("\x1b]0;title\x07text", "␛text"),
        ("unfinished \x1b]0;title", "unfinished ␛0;title"),
        ("bell\x07 del\x7f cr\r", "bell␇ del␡ cr␍"),
        ("a\tb", "a   b"),
        ("step\xa0\u2003\u3000x", "step\xa0   x"),
        ("e\u0301", "é"),
        ("ไทย กำลัง", "ไทย กำลัง"),
        ("👩🏽\u200d💻 ❤\ufe0f 🇩🇪", "👩💻 ❤ DE"),
        ("run\u200bname", f"run{REPLACEMENT}name"),
        ("\u0301", REPLACEMENT),
        ("one\r\ntwo\n", "one␍␊two␊"),
    ],
    ids=ascii,
)
def test_what_is_shown(text: str, shown: str) -> None:
    assert clean(text) == shown


def test_newlines_are_kept_only_when_asked_for() -> None:
    assert clean("one\r\ntwo\nthree\x1b[H", newlines=True) == "one\ntwo\nthree␛"


def test_a_megabyte_of_hostile_text_takes_linear_time() -> None:
    for text in ("\x1b]" * 500_000, "\x1b[" * 500_000, "\x1b[1;" * 250_000, "\x1bP" * 500_000):
        assert_harmless(clean(text)[:100])


@pytest.mark.parametrize(
    ("text", "width"), [("", 0), ("abc", 3), ("漢字", 4), ("e\u0301", 1), ("👩", 2), ("▇⣿→✗", 4), ("\xad", 0)]
)
def test_cell_width(text: str, width: int) -> None:
    assert cell_width(text) == width


@given(st.text(st.sampled_from("abc漢é👩 ")), st.integers(0, 12), st.sampled_from("<>^"))
def test_fit_fills_exactly_and_clip_never_overflows(text: str, width: int, align: str) -> None:
    assert cell_width(fit(text, width, align)) == width
    assert cell_width(clip(text, width)) <= width
    if cell_width(text) <= width:
        assert clip(text, width) == text
        assert fit(text, width, align).strip() == text.strip()


def test_cut_text_shows_that_it_was_cut() -> None:
    assert clip("overview", 5) == "over…"
    assert clip("漢字漢字", 5) == "漢字…"
    assert fit("漢字漢字", 4) == "漢… "
    assert clip("overview", 1) == "o"
