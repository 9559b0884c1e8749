"""A smaller batch with a larger accumulation, so that a step of the optimizer sees nearly as many samples. Pure.

How many that are depends on what a script means by its two numbers: each is either of every rank, or of all ranks
together (``scope: global``), which then share it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from gputui.runs.spec import RunSpec

BATCH_FACTOR = Fraction(3, 4)
EFFECTIVE_BATCH_TOLERANCE = Fraction(1, 50)


@dataclass(frozen=True, slots=True)
class Grain:
    """What a batch and an accumulation must be multiples of."""

    batch: int = 1
    accumulation: int = 1


@dataclass(frozen=True, slots=True)
class Pair:
    """A batch and an accumulation; ``is_near``: within the tolerance of what they are to amount to."""

    batch: int
    accumulation: int
    is_near: bool = True


def grain(spec: RunSpec, names: tuple[str, str | None], accumulation: int, before: int, after: int) -> Grain:
    """What the parameters ``names`` (batch, accumulation) must be multiples of for ``after`` ranks.

    That is their ``multiple_of``, and the number of ranks for one that the ranks share. An accumulation of which the
    profile does not say whether they share it stays divisible by them where it was with ``before`` ranks.
    """
    batch_name, accumulation_name = names
    of_batch = math.lcm(spec.multiples.get(batch_name, 1), after if spec.scopes.get(batch_name) == "global" else 1)
    if accumulation_name is None:
        return Grain(of_batch)
    scope = spec.scopes.get(accumulation_name)
    is_shared = scope == "global" or (scope is None and accumulation % before == 0)
    return Grain(of_batch, math.lcm(spec.multiples.get(accumulation_name, 1), after if is_shared else 1))


def share(spec: RunSpec, names: tuple[str, str | None], ranks: int) -> Fraction:
    """What batch × accumulation is multiplied with to give the samples of all ranks together."""
    shared = sum(1 for name in names if name is not None and spec.scopes.get(name) == "global")
    return Fraction(ranks) ** (1 - shared)


def effective(spec: RunSpec, names: tuple[str, str | None], product: int, ranks: int) -> tuple[str, str]:
    """How many samples a step of the optimizer sees, and of whom: of each rank where the ranks share nothing."""
    if not any(name is not None and spec.scopes.get(name) == "global" for name in names):
        return str(product), " per rank" if ranks > 1 else ""
    return f"{float(product * share(spec, names, ranks)):g}", " over all ranks" if ranks > 1 else ""


def shrink(batch: int, accumulation: int, grain: Grain, below: int | None = None) -> Pair | None:
    """A smaller batch and a larger accumulation with nearly the same product, or None if no batch is smaller.

    The new batch is at most 0.75 of the old one, and smaller than ``below``; for the rest see `fit`.
    """
    largest = math.floor(BATCH_FACTOR * batch)
    return fit(Fraction(batch * accumulation), largest if below is None else min(largest, below - 1), grain)


def fit(product: Fraction, largest: int, grain: Grain) -> Pair | None:
    """The pair that amounts to ``product`` within 2 %: with the smallest accumulation that allows it for a batch of at
    most ``largest``, and then as exactly as it goes. Where none does, the nearest pair, of several that with the
    smallest accumulation; None if no batch is small enough."""
    step = grain.batch
    largest -= largest % step
    if largest < step or product <= 0:
        return None
    tolerance = EFFECTIVE_BATCH_TOLERANCE * product
    more = max(1, math.ceil((product - tolerance) / (largest * grain.accumulation))) * grain.accumulation
    # A smaller accumulation is too little with every batch, but may be nearer than anything larger.
    at = max(grain.accumulation, more - grain.accumulation)
    tried: list[tuple[Fraction, int, int]] = []
    while True:
        down = math.floor(product / at / step) * step
        sizes = {min(max(down, step), largest), min(down + step, largest)}
        tried.append(min((abs(size * at - product), at, -size) for size in sizes))
        if (at >= more and tried[-1][0] <= tolerance) or product < at * step:
            break
        at += grain.accumulation
    miss, accumulation, size = min(tried)
    return Pair(-size, accumulation, miss <= tolerance)
