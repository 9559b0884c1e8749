"""How many trials share a GPU: the pure policy."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputui.studies.sharing import HEADROOM, trials_on_gpu

GIB = 1 << 30


@pytest.mark.parametrize(
    ("most", "total", "foreign", "peak", "count"),
    [
        (4, 80 * GIB, 0, 10 * GIB, 4),
        (9, 80 * GIB, 0, 10 * GIB, 7),
        (9, 80 * GIB, 30 * GIB, 10 * GIB, 4),
        (4, 80 * GIB, 0, 40 * GIB, 1),
        (4, 80 * GIB, 79 * GIB, 10 * GIB, 1),
        (1, 80 * GIB, 0, GIB, 1),
        (4, 80 * GIB, 0, None, 1),
        (4, 80 * GIB, None, GIB, 1),
        (4, None, 0, GIB, 1),
        (4, 80 * GIB, 0, 0, 1),
    ],
)
def test_as_many_share_as_fit(most: int, total: int | None, foreign: int | None, peak: int | None, count: int) -> None:
    assert trials_on_gpu(most, total, foreign, peak) == count


@given(st.integers(1, 64), st.integers(0, 1 << 40), st.integers(0, 1 << 40), st.integers(0, 1 << 40))
def test_those_that_share_fit_together(most: int, total: int, foreign: int, peak: int) -> None:
    count = trials_on_gpu(most, total, foreign, peak)
    assert 1 <= count <= most
    assert count == 1 or count * peak * HEADROOM <= (total - foreign) * (1 + 1e-9)
