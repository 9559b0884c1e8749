"""The plotext export takes anything a series may hold and stays within its size."""

from hypothesis import given
from hypothesis import strategies as st

from gputui.metrics.draw.envelope import reduce
from gputui.metrics.draw.export import plot_text


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
