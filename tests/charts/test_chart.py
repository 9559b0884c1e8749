"""Charts as text: goldens of their shape, and properties that hold for any series and any size."""

import math
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputui.charts.bars import bar, sparkline
from gputui.charts.cells import cell_width
from gputui.charts.chart import Curve, Line, Marker, XAxis, YAxis, chart
from gputui.charts.envelope import Bin, reduce
from gputui.charts.glyphs import BAR, VALUE_TICK, X_TICK


def plain_text(lines: Sequence[Line]) -> str:
    """The lines without their styles, without trailing blanks."""
    return "\n".join("".join(text for text, _ in line).rstrip() for line in lines)


Series = list[tuple[float, float | None]]
POINTS = st.lists(st.tuples(st.floats(-1e9, 1e9), st.one_of(st.none(), st.floats())), max_size=60)


def decay() -> Series:
    return [(float(step), 8 * math.exp(-step / 90) + 1) for step in range(810)]


def ramp(points: int = 41) -> Series:
    return [(float(x), float(x)) for x in range(points)]


def drawn(points: Series, width: int = 40, height: int = 8, kind: str = "linear") -> str:
    bins = reduce(points, 4 * width)
    lines = chart(
        [Curve(bins, label="", value=None)],
        width=width,
        height=height,
        y_axis=YAxis("log" if kind == "log" else "linear"),
    )
    return plain_text(lines)


@pytest.mark.parametrize("kind", ["linear", "log"])
@pytest.mark.parametrize("axis_kind", ["number", "time"])
@given(POINTS, POINTS, st.integers(1, 70), st.integers(1, 14), st.lists(st.floats(-1e9, 1e9), max_size=3))
def test_every_line_fills_its_width(
    kind: str,
    axis_kind: str,
    one: Series,
    two: Series,
    width: int,
    height: int,
    marks: list[float],
) -> None:
    lines = chart(
        [Curve(reduce(one, 2 * width), "series.0", "one", 1.5), Curve(reduce(two, 300), "series.1", "two", math.nan)],
        width=width,
        height=height,
        title="a title",
        x_axis=XAxis("step", kind="time" if axis_kind == "time" else "number"),
        y_axis=YAxis("log" if kind == "log" else "linear"),
        markers=[Marker(x, f"↻{number}") for number, x in enumerate(marks)],
    )
    assert len(lines) == height
    assert [sum(cell_width(text) for text, _ in line) for line in lines] == [width] * height
    assert all(text for line in lines for text, _ in line)


def test_no_room_no_lines() -> None:
    assert chart([], width=0, height=5) == []
    assert chart([], width=5, height=0) == []


def test_golden_of_everything_at_once() -> None:
    points = decay()
    points[400] = (400.0, math.nan)
    points[600] = (600.0, math.inf)
    lines = chart(
        [Curve(reduce(points, 240), label="", value=1.902)],
        width=60,
        height=12,
        title="loss",
        x_axis=XAxis("step"),
        y_axis=YAxis("log"),
        markers=[Marker(431, "↻1"), Marker(700.0, "↻2")],
    )
    assert plain_text(lines).split("\n") == [
        "loss  1.902                              × 2 not finite  log",
        "10 ┤⣄                       ┊        ↑     ┊",
        "   │⠈⢣⡀                     ┊              ┊",
        " 5 ┤  ⠙⢦                    ┊              ┊",
        "   │   ⠈⠳⣄                  ┊              ┊",
        "   │     ⠈⠣⣄                ┊              ┊",
        "   │       ⠈⠳⣄              ┊              ┊",
        " 2 ┤         ⠈⠓⢦⣀           ┊              ┊",
        "   │            ⠈⠙⠲⢤⣀⡀      ┊              ┊",
        " 1 ┤                 ⠉⠉⠓⠒⠒×⠤⠤⠤⠤⢄⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⡀",
        "   └┬0────────────┬250──────┊───┬500───────┊──┬750───── step",
        "                           ↻1             ↻2",
    ]


def test_keys_of_styles() -> None:
    lines = chart(
        [Curve(reduce([(0.0, 1.0), (5.0, math.nan), (9.0, 2.0)], 40), "series.3", "raw", 2.0)],
        width=30,
        height=8,
        title="x",
        markers=[Marker(2.0, "m")],
    )
    assert {style for line in lines for _, style in line} == {"title", "series.3", "bad", "dim", "axis", "marker"}


def test_a_ramp_rises() -> None:
    rows = drawn(ramp(), 30, 6).split("\n")
    starts = [len(row) - len(row[5:].lstrip()) for row in rows[:5] if row[5:].strip()]
    assert starts == sorted(starts, reverse=True)
    assert len(set(starts)) >= 4


def test_golden_of_a_ramp() -> None:
    assert drawn(ramp(), 26, 5).split("\n") == [
        "40 ┤                 ⣀⡠⠔⠒⠉",
        "   │           ⢀⡠⠤⠒⠊⠉",
        "   │     ⢀⣀⠤⠒⠊⠉⠁",
        " 0 ┤⣀⠤⠔⠊⠉⠁",
        "   └┬0───────────┬25──────",
    ]


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6), st.integers(3, 40), st.sampled_from([None, 0.0]))
def test_value_ticks_stand_at_equal_distances(low: float, span: float, rows: int, fixed: float | None) -> None:
    bins = reduce([(0.0, low), (1.0, low + span)], 10)
    lines = chart([Curve(bins)], width=60, height=rows + 1, y_axis=YAxis(low=fixed))
    labelled = [(row, line[0][0]) for row, line in enumerate(lines[:-1]) if line[0][0].endswith(VALUE_TICK)]
    assert len(labelled) >= 2
    assert len({after - before for (before, _), (after, _) in pairwise(labelled)}) == 1
    assert len({label for _, label in labelled}) == len(labelled)


@pytest.mark.parametrize(
    ("height", "labels"), [(10, ["100", "75", "50", "25", "0"]), (7, ["100", "0"]), (8, ["100", "50", "0"])]
)
def test_ticks_between_fixed_ends(height: int, labels: list[str]) -> None:
    lines = chart([Curve(reduce(ramp(), 80))], width=60, height=height, y_axis=YAxis(low=0.0, high=100.0))
    assert [line[0][0].split()[0] for line in lines[:-1] if line[0][0].endswith("┤")] == labels


def test_the_newest_place_and_value_are_labelled() -> None:
    curve = Curve(reduce(ramp(), 80), "series.2", "", end="40.0")
    lines = chart([curve], width=60, height=8, x_axis=XAxis("step", kind="count", newest=40.0), end_gutter=5)
    assert lines[0][-1] == (" 40.0", "series.2")
    assert plain_text(lines[-1:]).rstrip("─").endswith("step 40┬")
    beside = chart([curve], width=60, height=8, x_axis=XAxis("step", kind="count", newest=40.0), least_gutter=6)
    assert plain_text(beside[-1:]).startswith("  step └┬0")


def test_ends_that_meet_stand_below_each_other() -> None:
    curves = [Curve(reduce(ramp(), 80), f"series.{number}", end=f"run-{number}") for number in range(3)]
    lines = chart(curves, width=60, height=8, end_gutter=7)
    rows = [line[-1] for line in lines[:-1] if line[-1][0].strip().startswith("run-")]
    assert sorted(text.strip() for text, _ in rows) == ["run-0", "run-1", "run-2"]
    assert [style for _, style in rows] == ["series.0", "series.1", "series.2"]


def test_an_area_lies_below_its_curve_and_behind_others() -> None:
    high = Curve(reduce([(0.0, 75.0), (40.0, 75.0)], 80), "series.0", area="area.0")
    low = Curve(reduce([(0.0, 25.0), (40.0, 25.0)], 80), "series.1")
    rows = chart([high, low], width=40, height=9, y_axis=YAxis(low=0.0, high=100.0))[:-1]
    styles = [{style for text, style in row[1:] if text.strip()} for row in rows]
    assert styles[0] == set()
    assert {"area.0"} in styles
    assert {"series.1"} in styles
    assert styles[-1] == {"area.0"}


def test_shapes_tell_curves_apart_without_colour() -> None:
    curves = [
        Curve(reduce([(0.0, value), (40.0, value)], 80), f"series.{number}", f"c{number}", shape=shape)
        for number, (value, shape) in enumerate([(10.0, "●"), (20.0, "■"), (30.0, "▲")])
    ]
    text = plain_text(chart(curves, width=80, height=9))
    title, *rows = text.split("\n")
    assert title.split() == ["●", "c0", "■", "c1", "▲", "c2"]
    assert [next(row for row in rows if shape in row).count(shape) for shape in "●■▲"] == [4, 3, 3]


def test_a_strong_curve_is_two_dots_thick() -> None:
    bins = reduce([(0.0, 10.0), (40.0, 10.0)], 80)
    text = plain_text(chart([Curve(bins, is_strong=True)], width=40, height=8))
    assert {char for char in text if char > "⠀"} & set("⠶⠛⣤") != set()


def test_a_spike_among_many_points_survives() -> None:
    points: Series = [(float(x), 100.0 if x == 54_321 else 1.0) for x in range(100_000)]
    top_row = drawn(points, 60, 10).split("\n")[0]
    assert top_row[5:].strip()


def test_none_leaves_a_gap_and_numbers_are_joined() -> None:
    joined = drawn([(0.0, 1.0), (10.0, 1.0)], width=30, height=6)
    broken = drawn([(0.0, 1.0), (5.0, None), (10.0, 1.0)], width=30, height=6)
    assert sum(char > "⠀" for char in joined) > 20
    assert sum(char > "⠀" for char in broken) == 2


def test_bad_values_are_marked_where_they_are_and_never_joined() -> None:
    points: Series = [(0.0, 1.0), (5.0, math.nan), (10.0, 1.0)]
    rows = drawn(points, width=40, height=8).split("\n")
    assert [row.index("×") for row in rows if "×" in row]
    assert sum(char > "⠀" for row in rows for char in row) == 2
    rows = drawn([(0.0, 1.0), (5.0, math.inf), (6.0, -math.inf), (10.0, 3.0)], width=40, height=8).split("\n")
    assert "↑" in rows[0]
    assert "↓" in rows[-2]


def test_only_bad_values() -> None:
    text = drawn([(0.0, math.nan), (1.0, math.nan)], width=40, height=8)
    assert "×" in text


def test_log_axis_marks_what_it_cannot_hold_and_steps_back_to_linear() -> None:
    points: Series = [(0.0, 10.0), (5.0, -3.0), (10.0, 1000.0)]
    lines = chart([Curve(reduce(points, 100))], width=50, height=8, title="x", y_axis=YAxis("log"))
    text = plain_text(lines)
    assert "0 or less" in text
    assert "↓" in text.split("\n")[-2]
    negative = reduce([(0.0, -1.0), (1.0, -2.0)], 10)
    assert "nothing above 0: linear" in plain_text(
        chart([Curve(negative)], width=50, height=8, title="x", y_axis=YAxis("log"))
    )


def test_a_constant_and_a_single_point_are_drawn() -> None:
    assert "⠉⠉⠉" in drawn([(float(x), 5.0) for x in range(50)]).replace("⠒", "⠉").replace("⠤", "⠉").replace("⣀", "⠉")
    assert sum(char > "⠀" for char in drawn([(7.0, 5.0)])) == 1


def test_empty_says_so() -> None:
    assert "no data yet" in plain_text(chart([], width=30, height=5))
    assert "waiting" in plain_text(chart([Curve([])], width=30, height=5, empty_text="waiting"))


def test_fixed_ends_of_an_axis_cut_what_lies_beyond() -> None:
    bins = reduce(ramp(), 200)
    lines = chart([Curve(bins)], width=40, height=8, y_axis=YAxis(low=10, high=20), x_axis=XAxis(start=0, end=20))
    text = plain_text(lines)
    assert "20 ┤" in text
    assert "10 ┤" in text
    beyond = chart([Curve(bins)], width=40, height=8, y_axis=YAxis(low=100))
    assert not any(char > "⠀" for char in plain_text(beyond))


def test_marker_labels_do_not_touch() -> None:
    markers = [Marker(float(x), f"↻{x}") for x in (10, 11, 30)]
    labels = plain_text(chart([Curve(reduce(ramp(), 100))], width=40, height=8, markers=markers)).split("\n")[-1]
    assert labels.split() == ["↻11", "↻30"]  # of two in one cell the last


@pytest.mark.parametrize(
    ("fraction", "text"),
    [
        (None, "    "),
        (math.nan, "    "),
        (0.0, "    "),
        (-1.0, "    "),
        (0.001, "▏   "),
        (0.5, "██  "),
        (0.53, "██▏ "),
        (0.999, "███▉"),
        (1.0, "████"),
        (7.0, "████"),
    ],
)
def test_bars(fraction: float | None, text: str) -> None:
    assert bar(fraction, 4) == text


def test_a_bar_without_room() -> None:
    assert bar(0.5, 0) == ""


@given(st.floats(0, 1), st.floats(0, 1), st.integers(1, 30))
def test_a_longer_bar_means_more(one: float, other: float, width: int) -> None:
    low, high = sorted((one, other))
    order = " " + BAR
    assert len(bar(low, width)) == width
    assert sum(map(order.index, bar(low, width))) <= sum(map(order.index, bar(high, width)))


def test_sparklines() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([1, None, 3], 5) == "  ▁ █"
    assert sparkline([math.nan, math.inf, -math.inf, 1], 4) == "×↑↓▁"
    assert sparkline([5, 5], 2) == "▁▁"
    assert sparkline([50, 150], 2, 0, 100) == "▅█"
    assert sparkline([1, 2, 3], 2) == "▁█"
    assert sparkline([], 3) == "   "
    assert sparkline([1], 0) == ""
    assert sparkline([None, None], 2) == "  "


def test_a_crosshair_stands_over_the_whole_height_and_does_not_hide_the_curve() -> None:
    lines = chart([Curve(reduce(ramp(), 100))], width=40, height=8, cursor=18.0)
    column = plain_text(lines).split("\n")[0].index("│", 7)
    cells = ["".join(text for text, _ in line)[column] for line in lines]
    assert cells.count("│") >= 6 and any(0x2800 < ord(cell) < 0x2900 for cell in cells)
    assert sum(style == "cursor" for line in lines for _, style in line) >= 7
    outside = chart([Curve(reduce(ramp(), 100))], width=40, height=8, cursor=1e6)
    assert not any(style == "cursor" for line in outside for _, style in line)


def test_a_shadow_is_drawn_only_where_no_other_curve_is() -> None:
    flat = [(float(x), 50.0) for x in range(100)]
    noise = [(float(x), 50.0 + 49 * (x % 2)) for x in range(100)]
    lines = chart(
        [Curve(reduce(flat, 80), "series.1"), Curve(reduce(noise, 80), "shadow", is_shadow=True)],
        width=48, height=10, y_axis=YAxis(low=0.0, high=100.0),
    )  # fmt: skip
    alone = chart([Curve(reduce(flat, 80), "series.1")], width=48, height=10, y_axis=YAxis(low=0.0, high=100.0))

    def drawn(found: list[Line], style: str) -> str:
        return "".join(text for line in found for text, own in line if own == style).strip()

    assert drawn(lines, "series.1") == drawn(alone, "series.1")  # its own dots, none of the shadow's
    assert drawn(lines, "shadow")


def test_a_note_is_a_notch_in_the_axis_and_a_marker_a_line() -> None:
    curve = Curve(reduce(ramp(), 100))
    markers = [Marker(5.0, "never shown", "good", is_line=False), Marker(25.0, "↻1")]
    lines = chart([curve], width=60, height=10, markers=markers)
    text = plain_text(lines)
    assert text.count("┴") == 1 and "never shown" not in text
    assert text.count("┊") >= 5 and text.split("\n")[-1].strip() == "↻1"


def test_of_labels_that_would_touch_the_later_one_has_the_room() -> None:
    curve = Curve(reduce(ramp(), 100))
    markers = [Marker(20.0, "restart"), Marker(21.0, "out of memory", "bad")]
    assert plain_text(chart([curve], width=60, height=10, markers=markers)).split("\n")[-1].strip() == "out of memory"


def test_charts_below_each_other_have_the_same_place_for_the_same_x() -> None:
    small = chart([Curve(reduce([(0.0, 1.0), (9.0, 2.0)], 10))], width=60, height=8, least_gutter=6)
    large = chart([Curve(reduce([(0.0, 1e5), (9.0, 2e5)], 10))], width=60, height=8, least_gutter=6)
    edges = {line.index("└") for lines in (small, large) for line in plain_text(lines).split("\n") if "└" in line}
    assert edges == {7}


def test_a_long_title_is_cut_in_its_middle_and_leaves_room_for_the_value() -> None:
    title = "layers.12.attention.query_projection.weight.gradient_norm"
    curve = Curve(reduce(ramp(), 80), value=40.0)
    [head, *_] = plain_text(chart([curve], width=40, height=8, title=title)).splitlines()
    assert head == "layers.12.attentio…ght.gradient_norm  40"


@pytest.mark.parametrize("width", [28, 30, 36, 40])
@pytest.mark.parametrize("start", [625e3, 0.0, 999e3])
def test_a_narrow_axis_has_two_labels(width: int, start: float) -> None:
    points: Series = [(x, x) for x in range(int(start), 1_000_000, 1000)] or [(start, 1.0)]
    lines = chart([Curve(reduce(points, 60))], width=width, height=6, x_axis=XAxis("step", start, 1e6))
    assert plain_text(lines[-1:]).count(X_TICK) >= 2


def test_a_logarithmic_x_axis_gives_each_decade_the_same_room() -> None:
    points = [(float(x), float(x)) for x in range(10_001)]
    bins = [Bin(x, x, value, value, value, value, 1) for x, value in points]
    lines = chart([Curve(bins)], width=88, height=8, x_axis=XAxis("step", 1.0, 10_000.0, scale="log"))
    axis = plain_text(lines[-1:])
    assert axis.endswith("step, log")
    places = [axis.index(f"┬{label}") for label in ("1", "10", "100", "1k")]
    apart = [b - a for a, b in pairwise(places)]
    assert max(apart) - min(apart) <= 1


def test_without_anything_above_zero_the_x_axis_is_linear_and_says_so() -> None:
    bins = [Bin(0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1)]
    lines = chart([Curve(bins)], width=80, height=6, x_axis=XAxis("step", 0.0, 0.0, scale="log"))
    assert plain_text(lines[-1:]).endswith("step, linear: nothing above 0")
    assert any("⠀" < char <= "⣿" for char in plain_text(lines[:-1]))


@pytest.mark.parametrize("rows", [3, 4, 5, 8])
@pytest.mark.parametrize("reach", [1.0, 5.0, 21.0, 33.0, 70.0])
def test_a_low_chart_around_zero_has_two_value_labels(rows: int, reach: float) -> None:
    points: Series = [(float(x), reach * math.sin(x / 5)) for x in range(100)]
    lines = chart([Curve(reduce(points, 60))], width=40, height=rows + 1, x_axis=XAxis("step"))
    labelled = [line for line in plain_text(lines[:-1]).splitlines() if VALUE_TICK in line[:8]]
    assert len(labelled) >= 2
