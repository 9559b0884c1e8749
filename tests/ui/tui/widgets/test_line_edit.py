"""A line of text being typed."""

from __future__ import annotations

from gputui.core.text import cell_width
from gputui.ui.tui.widgets.line_edit import LineEdit


def test_editing_keys() -> None:
    edited = {
        "backspace": ("one tw three", 6), "delete": ("one twothree", 7),
        "left": ("one two three", 6), "right": ("one two three", 8), "home": ("one two three", 0),
        "end": ("one two three", 13), "ctrl+u": (" three", 0), "ctrl+k": ("one two", 7),
        "ctrl+w": ("one  three", 4),
    }  # fmt: skip
    assert {key: LineEdit("one two three", 7).press(key) for key in edited} == {
        key: LineEdit(*expected) for key, expected in edited.items()
    }
    empty = LineEdit()
    assert [key for key in edited if empty.press(key) != empty] == []
    assert empty.press("f5") is None


def test_what_is_pasted_is_one_line_of_text() -> None:
    assert LineEdit("ab", 1).insert("x\x1b[31my\nsecond") == LineEdit("ax[31myb", 7)
    assert LineEdit("ab", 1).insert("") == LineEdit("ab", 1)


def test_the_cursor_is_always_seen_in_exactly_the_width() -> None:
    for text in ["a" * 40, "日本" * 20, "short"]:
        for cursor in [0, 5, 20, 40]:
            spans = LineEdit(text, min(cursor, len(text))).spans(10)
            assert sum(cell_width(part) for part, _ in spans) == 10, (text, cursor)
            assert [style for part, style in spans if style == "caret" and part] == ["caret"], (text, cursor)
