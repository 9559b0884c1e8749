"""How many trials share a GPU: the pure policy."""

from __future__ import annotations

from gputui.studies.sharing import trials_on_gpu
from tests.tables import table

GIB = 1 << 30


@table(
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
