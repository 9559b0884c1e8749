"""Curves as characters: pieces of a row, areas and the signs of shapes."""

from __future__ import annotations

from itertools import pairwise

import pytest

from gputui.charts.axes import LinearScale
from gputui.charts.envelope import reduce
from gputui.charts.glyphs import AREA
from gputui.charts.raster import Canvas, Span, spans


@pytest.mark.parametrize(
    ("chars", "styles", "pieces"),
    [
        ("axb", ["a", "", "b"], [("a", "a"), ("x", ""), ("b", "b")]),
        ("xb", ["", "b"], [("x", ""), ("b", "b")]),
        ("  a b", ["", "", "a", "", "a"], [("  a b", "a")]),
        ("a b", ["a", "", "b"], [("a ", "a"), ("b", "b")]),
        ("  ", ["", ""], [("  ", "")]),
        ("", [], []),
    ],
)
def test_a_piece_has_the_style_of_its_visible_characters(chars: str, styles: list[str], pieces: list[Span]) -> None:
    assert spans(chars, styles) == pieces


def drawn(x: float, *, area: str = "", shape: str = "") -> list[list[Span]]:
    """A single dot at `x` of ten columns, in the middle of five rows."""
    canvas = Canvas(10, 5)
    bins = reduce([(x, 0.5)], 9)
    canvas.draw(bins, LinearScale(0.0, 10.0), LinearScale(0.0, 1.0), "curve", area=area, shape=shape)
    return canvas.lines()


@pytest.mark.parametrize("x", [3.1, 3.9], ids=["left half", "right half"])
def test_a_dot_in_either_half_of_a_cell_has_its_area_and_its_shape(x: float) -> None:
    texts = ["".join(text for text, _ in line) for line in drawn(x, area="area")]
    assert [text[3] for text in texts[3:]] == [AREA] * 2
    texts = ["".join(text for text, _ in line) for line in drawn(x, shape="o")]
    assert texts[2] == "   o      "


def test_signs_of_successive_shapes_are_apart() -> None:
    canvas = Canvas(60, 1)
    bins = reduce([(0.0, 0.5), (60.0, 0.5)], 200)
    for shape in "abc":
        canvas.draw(bins, LinearScale(0.0, 60.0), LinearScale(0.0, 1.0), "curve", shape=shape)
    text = "".join(text for text, _ in canvas.lines()[0])
    places = sorted(column for column, char in enumerate(text) if char in "abc")
    assert {later - earlier for earlier, later in pairwise(places)} == {8}
