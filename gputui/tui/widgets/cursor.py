"""Where the cursor of the overview is: among the GPUs, the runs or the events, and on which of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

Section = Literal["gpus", "runs", "events"]
SECTIONS: tuple[Section, ...] = ("gpus", "runs", "events")

Id = TypeVar("Id")


@dataclass(frozen=True, slots=True)
class Focus:
    """The section that arrow keys move in, and the GPU (UUID) and the event (id) that they stood on last. ``gpu_top``
    is the first GPU shown where not all fit."""

    section: Section = "runs"
    gpu: str | None = None
    gpu_top: int = 0
    event: int | None = None


def next_section(section: Section, by: int, filled: Sequence[Section]) -> Section:
    """The section after this one, or before it, among those that hold anything; itself where there is no other."""
    place = SECTIONS.index(section)
    for step in range(1, len(SECTIONS) + 1):
        found = SECTIONS[(place + by * step) % len(SECTIONS)]
        if found in filled:
            return found
    return section


def moved(ids: Sequence[Id], current: Id | None, by: int, start: int = 0) -> Id | None:
    """What is so many places further, at most at an end; from ``start`` (an index) where nothing is chosen yet."""
    if not ids:
        return None
    place = ids.index(current) + by if current is not None and current in ids else start
    return ids[min(max(place, 0), len(ids) - 1)]


def kept(ids: Sequence[Id], current: Id | None) -> Id | None:
    """The same as long as it is there, else the first."""
    return current if current is not None and current in ids else next(iter(ids), None)
