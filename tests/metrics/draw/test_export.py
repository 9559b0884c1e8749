"""Charts as files, and as text by plotext, which takes anything a series may hold."""

from __future__ import annotations

import csv
import io
import math
import sys
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputui.metrics.draw.bins import reduce
from gputui.metrics.draw.export import (
    CSV_COLUMNS,
    ChartExportError,
    csv_text,
    export,
    kind_of,
    png_bytes,
    svg_text,
)
from gputui.metrics.draw.parts import Chart, Curve, Marker, XAxis, YAxis
from gputui.metrics.draw.picture import Label, Path, picture
from gputui.metrics.draw.plot_text import plot_text

POINTS = [(float(step), 8 * math.exp(-step / 900) + 1) for step in range(5000)]
DRAWING = Chart(
    [Curve(reduce(POINTS, 400), "series.0", "loss", 1.03)], "vit <b>&", XAxis("step"), markers=[Marker(2500.0, "↻1")]
)


def test_csv_holds_every_bin_exactly_and_leaves_empty_what_is_unknown() -> None:
    rows = list(csv.reader(io.StringIO(csv_text(DRAWING.curves))))
    assert tuple(rows[0]) == CSV_COLUMNS
    assert [float(row[6]) for row in rows[1:]] == [one_bin.high for one_bin in DRAWING.curves[0].bins]
    assert sum(int(row[7]) for row in rows[1:]) == len(POINTS)
    unknown = csv_text([Curve(reduce([(1.0, math.nan)], 9), label="a,b")])
    assert unknown.splitlines()[1] == '"a,b",1.0,1.0,,,,,1,1'


def test_svg_is_a_document_with_the_words_in_it() -> None:
    root = ElementTree.fromstring(svg_text(picture(DRAWING)))
    texts = {element.text for element in root.iter() if element.tag.endswith("text")}
    assert {"vit <b>&", "loss 1.030", "step", "↻1", "5k", "0"} <= texts
    lines = [element for element in root.iter() if element.tag.endswith("polyline")]
    assert max(len((line.get("points") or "").split()) for line in lines) > 390


def test_a_gap_parts_the_curve_and_what_is_not_finite_is_marked() -> None:
    points = [(0.0, 1.0), (1.0, 2.0), (2.0, math.nan), (3.0, 1.0), (4.0, 1.5)]
    sheet = picture(Chart([Curve(reduce(points, 9), "series.3")]))
    colours = [shape.colour for shape in sheet.shapes if isinstance(shape, Path) and not shape.is_area]
    assert colours.count("#cc79a7") == 2
    assert colours.count("#c00000") == 1
    assert any(isinstance(shape, Label) and shape.text == "1 not finite" for shape in sheet.shapes)


@given(
    st.lists(st.tuples(st.floats(-1e300, 1e300), st.floats()), max_size=12),
    st.sampled_from(["linear", "log"]),
    st.sampled_from(["number", "time"]),
    st.integers(0, 3000),
)
def test_any_series_makes_a_sheet(points: list[tuple[float, float]], kind: str, axis: str, width: int) -> None:
    drawing = Chart(
        [Curve(reduce(points, 50), "series.1", "x", value=None)],
        x_axis=XAxis("t", kind="time" if axis == "time" else "number"),
        y_axis=YAxis("log" if kind == "log" else "linear"),
    )
    root = ElementTree.fromstring(svg_text(picture(drawing, width, width)))
    for element in root.iter():
        assert "nan" not in (element.get("points") or "")
        assert "inf" not in (element.get("points") or "")


def test_text_that_no_document_may_hold() -> None:
    root = ElementTree.fromstring(svg_text(picture(Chart([], "a\x00\x1b[31m\ud800b"))))
    text = "".join(root.itertext())
    assert "\x1b" not in text
    assert "\x00" not in text
    assert "\ud800" not in text


def test_png() -> None:
    from PIL import Image

    image = Image.open(io.BytesIO(png_bytes(picture(DRAWING), scale=1)))
    assert image.size == (1200, 600)
    colours = {colour for _, colour in image.convert("RGB").getcolors(1 << 20)}
    assert (0x00, 0x72, 0xB2) in colours
    assert (255, 255, 255) in colours


def test_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (kind_of("a.SVG"), kind_of("x.y.csv")) == ("svg", "csv")
    with pytest.raises(ChartExportError, match=r"\.csv, \.svg or \.png"):
        kind_of("loss.pdf")
    assert export("csv", DRAWING).startswith(b"name,x_first")
    assert export("svg", DRAWING).startswith(b"<svg")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ChartExportError, match="needs pillow"):
        export("png", DRAWING)


@given(
    st.lists(st.tuples(st.floats(-1e9, 1e9), st.floats()), max_size=30),
    st.integers(20, 150),
    st.integers(8, 40),
    st.booleans(),
)
def test_any_series_fits(points: list[tuple[float, float]], width: int, height: int, log_y: bool) -> None:
    text = plot_text(
        [("loss", reduce(points, 2 * width)), ("val", reduce(points[:3], 9))], width, height, title="run", log_y=log_y
    )
    lines = text.split("\n")
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    assert "\x1b" not in text


def test_values_at_the_ends_of_what_a_float_can_be() -> None:
    """Each of these once ended the whole process from inside plotext's library."""
    extremes = [5e-324, 2.2e-308, 1e-300, 1.0, 1e300, 1.7976931348623157e308]
    for first in extremes:
        for second in (*extremes, *(-value for value in extremes)):
            bins = reduce([(0.0, first), (1e-300, second), (1e9, first)], 120)
            assert all(plot_text([("a", bins)], 60, 12, log_y=log_y) for log_y in (False, True)), (first, second)
