"""Charts as text: goldens of their shape, and properties that hold for any series and any size."""

import math
import re
from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gputui.core.text import cell_width
from gputui.metrics.draw.bins import Bin, reduce
from gputui.metrics.draw.chart import Gutters, draw_chart
from gputui.metrics.draw.glyphs import VALUE_TICK, bar, sparkline
from gputui.metrics.draw.parts import Chart, Curve, Line, Marker, XAxis, YAxis

Series = list[tuple[float, float]]
POINTS = st.lists(st.tuples(st.floats(-1e9, 1e9), st.floats()), max_size=60)


def plain_text(lines: Sequence[Line]) -> str:
    """The lines without their styles, without trailing blanks."""
    return "\n".join("".join(text for text, _ in line).rstrip() for line in lines)


def decay() -> Series:
    return [(float(step), 8 * math.exp(-step / 90) + 1) for step in range(810)]


def ramp(points: int = 41) -> Series:
    return [(float(x), float(x)) for x in range(points)]


def chart_text(points: Series, width: int = 40, height: int = 8, kind: str = "linear") -> str:
    bins = reduce(points, 4 * width)
    lines = draw_chart(
        Chart([Curve(bins, label="", value=None)], y_axis=YAxis("log" if kind == "log" else "linear")), width, height
    )
    return plain_text(lines)


@given(
    st.sampled_from(["linear", "log"]),
    st.sampled_from(["number", "time"]),
    POINTS,
    POINTS,
    st.integers(0, 70),
    st.integers(0, 14),
    st.lists(st.floats(-1e9, 1e9), max_size=3),
)
def test_every_line_fills_its_width(
    kind: str, axis_kind: str, first: Series, second: Series, width: int, height: int, marks: list[float]
) -> None:
    lines = draw_chart(
        Chart(
            [
                Curve(reduce(first, 2 * max(1, width)), "series.0", "one", 1.5),
                Curve(reduce(second, 300), "series.1", "two", math.nan),
            ],
            title="a title",
            x_axis=XAxis("step", kind="time" if axis_kind == "time" else "number"),
            y_axis=YAxis("log" if kind == "log" else "linear"),
            markers=[Marker(x, f"↻{number}") for number, x in enumerate(marks)],
        ),
        width,
        height,
    )
    row_count = height if width else 0
    assert [sum(cell_width(text) for text, _ in line) for line in lines] == [width] * row_count
    assert all(text for line in lines for text, _ in line)


def test_golden_of_everything_at_once() -> None:
    points = decay()
    points[400] = (400.0, math.nan)
    points[600] = (600.0, math.inf)
    lines = draw_chart(
        Chart(
            [Curve(reduce(points, 240), label="", value=1.902)],
            title="loss",
            x_axis=XAxis("step"),
            y_axis=YAxis("log"),
            markers=[Marker(431, "↻1"), Marker(700.0, "↻2")],
        ),
        60,
        12,
    )
    assert plain_text(lines).split("\n") == [
        "loss  1.902                              × 2 not finite  log",
        "10 ┤⢄                         ┊          ↑     ┊",
        "   │⠈⠳⡀                       ┊                ┊",
        " 5 ┤  ⠈⢦⡀                     ┊                ┊",
        "   │    ⠘⢦⡀                   ┊                ┊",
        "   │      ⠙⠦⡀                 ┊                ┊",
        "   │        ⠉⠲⣄               ┊                ┊",
        " 2 ┤           ⠙⠦⣄⡀           ┊                ┊",
        "   │              ⠉⠒⠦⢤⣀⡀      ┊                ┊",
        " 1 ┤                   ⠉⠉⠓⠒⠒×⠤⠤⠤⠤⠤⢤⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⡀",
        "   └0────────────────300──────┊─────────600────┊─── step 900",
        "                             ↻1               ↻2",
    ]


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6), st.integers(3, 40), st.sampled_from([None, 0.0]))
def test_value_ticks_stand_at_equal_distances(low: float, span: float, rows: int, fixed: float | None) -> None:
    bins = reduce([(0.0, low), (1.0, low + span)], 10)
    lines = draw_chart(Chart([Curve(bins)], y_axis=YAxis(low=fixed)), 60, rows + 1)
    labelled = [(row, line[0][0]) for row, line in enumerate(lines[:-1]) if line[0][0].endswith(VALUE_TICK)]
    assert len(labelled) >= 2
    assert len({after - before for (before, _), (after, _) in pairwise(labelled)}) == 1
    assert len({label for _, label in labelled}) == len(labelled)


def test_ticks_between_fixed_ends() -> None:
    def labels(height: int) -> list[str]:
        lines = draw_chart(Chart([Curve(reduce(ramp(), 80))], y_axis=YAxis(low=0.0, high=100.0)), 60, height)
        return [line[0][0].split()[0] for line in lines[:-1] if line[0][0].endswith(VALUE_TICK)]

    assert labels(10) == ["100", "75", "50", "25", "0"]
    assert labels(7) == ["100", "0"]
    assert labels(8) == ["100", "50", "0"]


def test_the_end_of_a_curve_and_of_the_axis_are_labelled() -> None:
    curve = Curve(reduce(ramp(), 80), "series.2", "", end="40.0")
    lines = draw_chart(Chart([curve], x_axis=XAxis("step", kind="count")), 60, 8, gutters=Gutters(ends=5))
    assert lines[0][-1] == (" 40.0", "series.2")
    assert plain_text(lines[-1:]).rstrip("─").endswith("step 40")
    beside = draw_chart(Chart([curve], x_axis=XAxis("step", kind="count")), 60, 8, gutters=Gutters(labels=6))
    assert plain_text(beside[-1:]).startswith("  step └0")
    assert plain_text(beside[-1:]).endswith("─40")


def test_the_axis_of_a_constant_ends_at_zero_and_twice_it() -> None:
    for value, highest in ((0.05, "0.10"), (3e-5, "6e-5"), (700.0, "1500")):
        lines = draw_chart(
            Chart([Curve([Bin(0.0, 0.0, value, high=value, first=value, last=value)])], title="learning rate"), 40, 10
        )
        labels = ["".join(piece for piece, _ in line).split(VALUE_TICK)[0].strip() for line in lines]
        texts = [label for label in labels if label[:1].isdigit()]
        assert (texts[0], texts[-1]) == (highest, "0"), (value, labels)


def test_signs_at_the_ends_tell_curves_apart_without_colour() -> None:
    curves = [
        Curve(reduce([(0.0, value), (40.0, value)], 80), f"series.{number}", f"c{number}", shape=shape)
        for number, (value, shape) in enumerate([(10.0, "●"), (20.0, "■"), (20.0, "▲")])
    ]
    title, *rows = plain_text(draw_chart(Chart(curves), 80, 9)).split("\n")
    assert title.split() == ["●", "c0", "■", "c1", "▲", "c2"]
    assert [row[-2:] for row in rows if row[-1] in "●■▲"] == ["▲■", "⣀●"]


def test_noise_is_a_line_and_what_sticks_out_of_it_stays() -> None:
    points = [(float(x), 10.0 + (-1) ** x) for x in range(8000)]
    calm = chart_text(points, height=12)
    assert sum(char > "⠀" for char in calm) <= 40
    spiked = chart_text([*points[:4000], (4000.0, 20.0), *points[4001:]], height=12)
    assert "⡇" in next(row for row in spiked.split("\n") if row.startswith("20.0"))


def test_a_gap_is_not_joined() -> None:
    joined, broken = (reduce([(0.0, 1.0), (10.0, 1.0)], 120) for _ in range(2))
    broken[1].gap_before = True
    for bins, is_joined in ((joined, True), (broken, False)):
        dots = sum(char > "⠀" for char in plain_text(draw_chart(Chart([Curve(bins)]), 30, 6)))
        assert (dots > 20) == is_joined
        assert dots >= 2


def test_bad_values_are_marked_where_they_are_and_never_joined() -> None:
    points: Series = [(0.0, 1.0), (5.0, math.nan), (10.0, 1.0)]
    rows = chart_text(points, width=40, height=8).split("\n")
    assert [row.index("×") for row in rows if "×" in row]
    assert sum(char > "⠀" for row in rows for char in row) == 2
    rows = chart_text([(0.0, 1.0), (5.0, math.inf), (6.0, -math.inf), (10.0, 3.0)], width=40, height=8).split("\n")
    assert "↑" in rows[0]
    assert "↓" in rows[-2]


def test_log_axis_marks_what_it_cannot_hold_and_steps_back_to_linear() -> None:
    points: Series = [(0.0, 10.0), (5.0, -3.0), (10.0, 1000.0)]
    lines = draw_chart(Chart([Curve(reduce(points, 100))], title="x", y_axis=YAxis("log")), 50, 8)
    text = plain_text(lines)
    assert "0 or less" in text
    assert "↓" in text.split("\n")[-2]
    negative = reduce([(0.0, -1.0), (1.0, -2.0)], 10)
    assert "nothing above 0: linear" in plain_text(
        draw_chart(Chart([Curve(negative)], title="x", y_axis=YAxis("log")), 50, 8)
    )


def test_empty_says_so() -> None:
    assert "no data yet" in plain_text(draw_chart(Chart([]), 30, 5))
    assert "waiting" in plain_text(draw_chart(Chart([Curve([])]), 30, 5, empty_text="waiting"))
    assert "×" in chart_text([(0.0, math.nan), (1.0, math.nan)], width=40, height=8)
    assert sum(char > "⠀" for char in chart_text([(7.0, 5.0)])) == 1


def test_bars() -> None:
    bars = {
        None: ("", "    "), -1.0: ("", "────"), 0.0: ("", "────"), 0.001: ("╸", "───"), 0.5: ("━━", "──"),
        0.6: ("━━╸", "─"), 0.999: ("━━━╸", ""), 1.0: ("━━━━", ""), 7.0: ("━━━━", ""),
    }  # fmt: skip
    assert {fraction: bar(fraction, 4) for fraction in bars} == bars
    assert bar(math.nan, 4) == ("", "    ")
    assert bar(0.5, 0) == ("", "")


def test_sparklines() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5], 6) == "▁▂▃▄▅▆"
    assert sparkline([1, None, 3], 5) == "  ▁ ▆"
    assert sparkline([math.nan, math.inf, -math.inf, 1], 4) == "×↑↓▁"
    assert sparkline([5, 5], 2) == "▁▁"
    assert sparkline([50, 150], 2, 0, 100) == "▄▆"
    assert sparkline([1, 2, 3], 2) == "▁▆"
    assert sparkline([], 3) == "   "
    assert sparkline([1], 0) == ""
    assert sparkline([None, None], 2) == "  "


def test_a_note_is_a_notch_in_the_axis_and_a_marker_a_line() -> None:
    curve = Curve(reduce(ramp(), 100))
    markers = [Marker(5.0, "never shown", "good", is_line=False), Marker(25.0, "↻1")]
    lines = draw_chart(Chart([curve], markers=markers), 60, 10)
    text = plain_text(lines)
    assert text.count("┴") == 1
    assert "never shown" not in text
    assert text.count("┊") >= 5
    assert text.split("\n")[-1].strip() == "↻1"


def test_a_logarithmic_x_axis_gives_each_decade_the_same_room() -> None:
    points = [(float(x), float(x)) for x in range(10_001)]
    bins = [Bin(x, x, value, high=value, first=value, last=value, points=1) for x, value in points]
    lines = draw_chart(Chart([Curve(bins)], x_axis=XAxis("step", 1.0, 10_000.0, scale="log")), 88, 8)
    axis = plain_text(lines[-1:])
    assert axis.endswith("step, log 10k")
    centres = [match.start() + len(match[1]) // 2 for match in re.finditer("(10*k?)─", axis)]
    places = [axis.index("└") + 1, *centres[1:]]
    apart = [b - a for a, b in pairwise(places)]
    assert max(apart) - min(apart) <= 1


def test_labels_of_markers_move_beside_each_other_in_order() -> None:
    def labels(*marks: tuple[float, str]) -> list[str]:
        lines = draw_chart(Chart([curve], markers=[Marker(x, label) for x, label in marks]), 60, 8)
        return " ".join(text for text, _ in lines[-1]).split()

    curve = Curve(reduce(ramp(100), 100))
    assert labels((50, "↻1"), (50, "hot")) == ["hot", "↻1"]
    assert labels((50, "hot"), (52, "↻1"), (56, "oom")) == ["hot", "↻1", "oom"]
    assert labels((0, "hot"), (2, "↻1")) == ["↻1"]
    assert labels((97, "hot"), (99, "↻1")) == ["hot", "↻1"]
