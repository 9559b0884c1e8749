"""Text from outside must not be able to drive the terminal, wherever it is shown."""

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from gputui.core.text import MARKS_PER_CHARACTER, REPLACEMENT, cell_width, clean, clip, fit


def assert_harmless(text: str) -> None:
    marks = MARKS_PER_CHARACTER
    for char in text:
        category = unicodedata.category(char)
        assert category[0] != "C", ascii(char)
        assert category not in ("Zl", "Zp"), ascii(char)
        marks = marks + 1 if category[0] == "M" else 0
        assert marks <= MARKS_PER_CHARACTER


@given(st.text())
def test_any_text_comes_out_harmless_and_cleaning_again_changes_nothing(text: str) -> None:
    cleaned = clean(text)
    assert_harmless(cleaned)
    assert clean(cleaned) == cleaned


def test_what_is_shown() -> None:
    expected = {
        "plain µ Ω 漢字 …": "plain µ Ω 漢字 …",
        "\x1b[1;31merror\x1b[0m\x1b[K done": "error done",
        "\x1b[2Jcleared": "␛cleared",
        "\x1b]0;title\x07text": "␛text",
        "unfinished \x1b]0;title": "unfinished ␛0;title",
        "bell\x07 del\x7f cr\r": "bell␇ del␡ cr␍",
        "a\tb": "a   b",
        "step\xa0\u2003\u3000x": "step\xa0   x",
        "e\u0301": "é",
        "ไทย กำลัง": "ไทย กำลัง",
        "👩🏽\u200d💻 ❤\ufe0f 🇩🇪": "👩💻 ❤ DE",
        "run\u200bname": f"run{REPLACEMENT}name",
        "\u0301": REPLACEMENT,
        "one\r\ntwo\n": "one␍␊two␊",
    }
    assert {text: clean(text) for text in expected} == expected


def test_cell_width() -> None:
    widths = {"": 0, "abc": 3, "漢字": 4, "e\u0301": 1, "👩": 2, "▇⣿→✗": 4, "\xad": 0}
    assert {text: cell_width(text) for text in widths} == widths


@given(st.text(st.sampled_from("abc漢é👩 ")), st.integers(0, 12), st.sampled_from("<>^"))
def test_fit_fills_exactly_and_clip_never_overflows(text: str, width: int, align: str) -> None:
    assert cell_width(fit(text, width, align)) == width
    assert cell_width(clip(text, width)) <= width
    if cell_width(text) <= width:
        assert clip(text, width) == text
        assert fit(text, width, align).strip() == text.strip()
