"""Facts in a frame: labels stay in their column, whatever is beside them."""

from __future__ import annotations

from gputui.tui.dialogs.sheet import SheetScreen


def shown(*texts: str, width: int = 40) -> list[str]:
    return ["".join(text for text, _ in line).rstrip() for line in SheetScreen("x", texts).lines(width)]


def test_values_stand_in_a_column_and_wrap_in_it() -> None:
    assert shown("PID          31710", "command      python train.py --lr 0.1 --steps 5", f"{'':13}A=1") == [
        "PID          31710",
        "command      python train.py --lr 0.1",
        "             --steps 5",
        "             A=1",
    ]


def test_sentences_wrap_over_the_whole_width() -> None:
    assert shown("No label here, only words that need two lines.", "") == [
        "No label here, only words that need two",
        "lines.",
        "",
    ]
