"""Distances between GPUs."""

from __future__ import annotations

from itertools import combinations

from gputui.machine.topology import PATHS, GpuPair, closest_gpus
from tests.tables import table

EIGHT = tuple(range(8))


def pairs(count: int, nvlinks: tuple[tuple[int, int], ...] = (), of_cpu: int = 4) -> list[GpuPair]:
    """As many GPUs, ``of_cpu`` on each CPU, some of them with NVLink between."""
    return [
        GpuPair(
            first,
            second,
            p2p=True,
            nvlink=(first, second) in nvlinks,
            path="one CPU" if first // of_cpu == second // of_cpu else "two CPUs",
        )
        for first, second in combinations(range(count), 2)
    ]


def test_the_way_between_two() -> None:
    assert GpuPair(0, 1, nvlink=True, path="two CPUs").best_path == "NVLink"
    assert [GpuPair(0, 1, p2p=True, path=path).distance for path in PATHS] == list(range(len(PATHS)))
    assert GpuPair(0, 1).distance > GpuPair(0, 1, p2p=True, path="two CPUs").distance
    assert GpuPair(0, 1, p2p=False, path="one PCIe switch").distance == GpuPair(0, 1, p2p=True, path="one CPU").distance


@table(
    ("count", "indices", "expected"),
    [
        (2, EIGHT, (2, 7)),  # the only two with NVLink
        (3, (1, 3, 4, 5, 6), (4, 5, 6)),  # of one CPU, the first three of it
        (4, EIGHT, (0, 1, 2, 3)),
        (4, (0, 1, 2, 5, 6), (0, 1, 2, 5)),  # across two CPUs in any case
        (1, (5, 3), (5,)),
        (2, (3, 1), (3, 1)),
    ],
)
def test_the_nearest(count: int, indices: tuple[int, ...], expected: tuple[int, ...]) -> None:
    assert closest_gpus(indices, count, pairs(8, nvlinks=((2, 7),))) == expected


def test_nothing_known_changes_nothing() -> None:
    assert closest_gpus((4, 0, 2), 2, []) == (4, 0)
    assert closest_gpus((4, 0, 2), 2, [], fixed=[2]) == (2, 4)


def test_around_those_that_are_fixed() -> None:
    gpu_pairs = pairs(8, nvlinks=((1, 2), (3, 6)))
    assert closest_gpus(EIGHT, 2, gpu_pairs, fixed=[6]) == (6, 3)
    assert sorted(closest_gpus(EIGHT, 3, gpu_pairs, fixed=[5])) == [4, 5, 6]
    assert sorted(closest_gpus(EIGHT, 3, gpu_pairs, fixed=[3, 4])) == [3, 4, 6]
