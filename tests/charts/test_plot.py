"""The plotext export takes anything a series may hold and stays within its size."""

import math
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputui.charts.envelope import reduce
from gputui.charts.plot import plot_text


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


@pytest.mark.parametrize("log_y", [False, True])
def test_values_at_the_ends_of_what_a_float_can_be(log_y: bool) -> None:
    """Each of these once ended the whole process from inside plotext's library."""
    extremes = [5e-324, 2.2e-308, 1e-300, 1.0, 1e300, 1.7976931348623157e308]
    for first in extremes:
        for second in (*extremes, *(-value for value in extremes)):
            bins = reduce([(0.0, first), (1e-300, second), (1e9, first)], 120)
            assert plot_text([("a", bins)], 60, 12, log_y=log_y)


def test_a_curve_with_its_labels() -> None:
    points = [(float(step), 8 * math.exp(-step / 900) + 1) for step in range(5000)]
    text = plot_text([("loss", reduce(points, 200))], 100, 20, title="run", x_label="step")
    lines = text.split("\n")
    assert lines[0] == "run  loss"
    assert "step" in lines[-1]
    assert sum("⠀" < char <= "⣿" for char in text) > 80
    assert len(lines) == 20


def test_what_cannot_be_drawn_is_counted() -> None:
    one, other = reduce([(0.0, 1.0), (1.0, math.nan)], 9), reduce([(0.0, -1.0), (1.0, 2.0)], 9)
    text = plot_text([("a", one), ("b", other)], 60, 12, log_y=True)
    assert text.split("\n")[0] == "⠿ a (1 left out)  * b (1 left out)"


def test_nothing_to_plot() -> None:
    assert plot_text([("loss", [])], 40, 10) == "loss\nnothing to plot"


def test_plotext_is_loaded_only_to_plot() -> None:
    code = "import gputui.charts.plot, sys; sys.exit('plotext' in sys.modules or 'rich' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
