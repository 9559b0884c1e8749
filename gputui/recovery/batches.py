"""Smaller batches with more gradient accumulation that keep the effective batch. Pure.

A script's batch and accumulation are each per rank, or global and shared by all ranks (``scope: global``).
"""

from __future__ import annotations

import math
from fractions import Fraction

from msgspec import Struct

from gputui.runs.spec import RunSpec

BATCH_FACTOR = Fraction(3, 4)
EFFECTIVE_BATCH_TOLERANCE = Fraction(1, 50)


class Grain(Struct, frozen=True):
    """The numbers of which batch and accumulation must be multiples."""

    batch: int = 1
    accumulation: int = 1


class Pair(Struct, frozen=True):
    """A batch and an accumulation. ``is_near``: their product is within the tolerance."""

    batch: int
    accumulation: int
    is_near: bool = True


def grain(spec: RunSpec, names: tuple[str, str | None], accumulation: int, before: int, after: int) -> Grain:
    """The grain of the parameters ``names`` (batch, accumulation) for ``after`` ranks.

    It is their ``multiple_of``, times the number of ranks for a global parameter. An accumulation without a scope in
    the profile counts as global if it was divisible by ``before`` ranks.
    """
    batch_name, accumulation_name = names
    of_batch = math.lcm(spec.multiples.get(batch_name, 1), after if spec.scopes.get(batch_name) == "global" else 1)
    if accumulation_name is None:
        return Grain(of_batch)
    scope = spec.scopes.get(accumulation_name)
    is_shared = scope == "global" or (scope is None and accumulation % before == 0)
    return Grain(of_batch, math.lcm(spec.multiples.get(accumulation_name, 1), after if is_shared else 1))


def share(spec: RunSpec, names: tuple[str, str | None], ranks: int) -> Fraction:
    """The factor from batch × accumulation to the samples of all ranks."""
    shared = sum(1 for name in names if name is not None and spec.scopes.get(name) == "global")
    return Fraction(ranks) ** (1 - shared)


def effective(spec: RunSpec, names: tuple[str, str | None], product: int, ranks: int) -> tuple[str, str]:
    """The effective batch, and its qualifier: per rank if no parameter is global, else over all ranks."""
    if not any(name is not None and spec.scopes.get(name) == "global" for name in names):
        return str(product), " per rank" if ranks > 1 else ""
    return f"{float(product * share(spec, names, ranks)):g}", " over all ranks" if ranks > 1 else ""


def shrink(batch: int, accumulation: int, grain: Grain, below: int | None = None) -> Pair | None:
    """A batch of at most 0.75 of the old one, and less than ``below``, with an accumulation that keeps the product;
    None if no batch is that small. See `fit`."""
    largest = math.floor(BATCH_FACTOR * batch)
    return fit(Fraction(batch * accumulation), largest if below is None else min(largest, below - 1), grain)


def fit(product: Fraction, largest: int, grain: Grain) -> Pair | None:
    """The pair with a batch of at most ``largest`` whose product is within 2 % of ``product``: the smallest possible
    accumulation, then the best match. Without such a pair, the nearest one; None if no batch is small enough."""
    step = grain.batch
    largest -= largest % step
    if largest < step or product <= 0:
        return None
    tolerance = EFFECTIVE_BATCH_TOLERANCE * product
    more = max(1, math.ceil((product - tolerance) / (largest * grain.accumulation))) * grain.accumulation
    # The accumulation below the range is too small for the tolerance, but may be the nearest of all.
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
