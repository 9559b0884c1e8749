"""Text in columns and lines of a screen."""

from __future__ import annotations

from gputui.ui.tui.layout.columns import wrap_at_most
from tests.tables import table


@table("count, lines", [
    (3, ["one two", "three", "four"]),
    (2, ["one two", "three …"]),
    (1, ["one …"]),
])  # fmt: skip
def test_what_does_not_fit_ends_at_a_word_and_says_so(count: int, lines: list[str]) -> None:
    assert wrap_at_most("one two three four", 7, count) == lines
