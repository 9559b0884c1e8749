"""The connections between GPUs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from math import comb

from msgspec import Struct

# From near to far, as in nvidia-smi topo -m (NV#, -, PIX, PXB, PHB, NODE, SYS).
PATHS = ("NVLink", "one board", "one PCIe switch", "several PCIe switches", "the host bridge", "one CPU", "two CPUs")
# Without peer access all data goes through the host's memory.
_WITHOUT_P2P = PATHS.index("one CPU")
# An unknown connection counts as the worst.
_UNKNOWN = len(PATHS)
# Two seconds; all choices of 8 GPUs among 16 are fewer.
MAX_GROUPS = 20_000


class GpuPair(Struct, frozen=True):
    """The connection of two GPUs, given by index. ``p2p``: one can read the other's memory;
    ``nvlink``: over NVLink; ``path``: the connection otherwise (of `PATHS`). None is unknown."""

    first: int
    second: int
    p2p: bool | None = None
    nvlink: bool | None = None
    path: str | None = None

    @property
    def best_path(self) -> str | None:
        """The best of `PATHS` between them."""
        if self.nvlink:
            return PATHS[0]
        return self.path

    @property
    def distance(self) -> int:
        """The index of the connection in `PATHS`; 0 is best."""
        if self.best_path not in PATHS:
            return _UNKNOWN
        distance = PATHS.index(self.best_path)
        if self.p2p is False and not self.nvlink:
            return max(distance, _WITHOUT_P2P)
        return distance


def closest_gpus(
    indices: Sequence[int], count: int, pairs: Iterable[GpuPair], fixed: Sequence[int] = ()
) -> tuple[int, ...]:
    """Return the ``count`` GPUs with the smallest largest distance, then the smallest sum of
    distances; ties go to the order of ``indices``. ``fixed``, a subset of ``indices`` with at most
    ``count`` members, is always included. Without known pairs, or with more than MAX_GROUPS
    choices, return the first of ``indices``."""
    distances = {frozenset((pair.first, pair.second)): pair.distance for pair in pairs}
    others = [index for index in indices if index not in fixed]
    if count < 2 or count >= len(indices) or not distances:
        return (*fixed, *others)[:count]
    missing = count - len(fixed)
    if comb(len(others), missing) > MAX_GROUPS:
        return (*fixed, *others)[:count]
    groups = ((*fixed, *more) for more in combinations(others, missing))
    places = {index: place for place, index in enumerate(indices)}
    return min(groups, key=lambda group: (*_spread(group, distances), sum(places[index] for index in group)))


def _spread(group: Sequence[int], distances: Mapping[frozenset[int], int]) -> tuple[int, int]:
    pair_distances = [distances.get(frozenset(two), _UNKNOWN) for two in combinations(group, 2)]
    return max(pair_distances, default=0), sum(pair_distances)
