"""Smaller batches with more gradient accumulation, which keep the effective batch. Pure.

A script's batch and accumulation are each per rank, or shared by all ranks (``scope: global``).
"""

from __future__ import annotations

import math
from fractions import Fraction

from msgspec import Struct

from gputui.recovery.effects import (
    ActionContext,
    AppliedAction,
    Change,
    Params,
    Result,
    SkippedAction,
    changed,
    role_parameter,
    show,
    unmapped,
    whole,
)
from gputui.runs.spec import RunSpec

BATCH_FACTOR = Fraction(3, 4)
EFFECTIVE_BATCH_TOLERANCE = Fraction(1, 50)
SHRINK = "shrink_batch"


class Grain(Struct, frozen=True):
    """The numbers of which batch and accumulation must be multiples."""

    batch: int = 1
    accumulation: int = 1


class Pair(Struct, frozen=True):
    """A batch and an accumulation. ``is_near``: their product is within the tolerance."""

    batch: int
    accumulation: int
    is_near: bool = True


def shrink_batch(context: ActionContext) -> Result:
    """Reduce the batch to at most 0.75 of its size, and raise the accumulation to match."""
    spec = context.spec
    name, value = context.role("batch_size")
    if name is None:
        return unmapped(SHRINK, "batch_size")
    batch = whole(value)
    if batch is None or batch < 1:
        return SkippedAction(SHRINK, f"{name} is {show(value)}, not a whole number of at least 1")
    if batch == 1:
        return SkippedAction(SHRINK, f"{name} is 1 already")
    more_name, more_value = context.role("grad_accum")
    accumulation = whole(more_value)
    if more_name is None or accumulation is None or accumulation < 1:
        return _shrink_alone(context, name, batch)
    ranks = spec.ranks_on(len(context.machine.gpus))
    names = (name, more_name)
    pair = shrink(batch, accumulation, grain_of(spec, names, accumulation, ranks, ranks), context.below)
    if pair is None:
        return SkippedAction(SHRINK, f"{name} is {batch}, and no smaller one may be tried")
    if spec.tuned and not pair.is_near:
        why = "no whole pair keeps the effective batch, and trials must stay comparable"
        return SkippedAction(SHRINK, why)
    verb = "raised" if pair.accumulation > accumulation else "set"
    note = (
        f"lowered {name} {batch} → {pair.batch} and {verb} {more_name} {accumulation} → {pair.accumulation}, "
        f"so that {_effective_batch_words(spec, names, ranks, batch * accumulation, pair)}"
    )
    changes = (changed(name, value, pair.batch), changed(more_name, more_value, pair.accumulation))
    return AppliedAction(SHRINK, note, changes)


def _effective_batch_words(spec: RunSpec, names: tuple[str, str], ranks: int, before: int, pair: Pair) -> str:
    """``the effective batch stays 64 per rank``.

    Args:
        names: the parameters of the batch and its accumulation.
        before: their product before.
    """
    factor = Fraction(1)
    whose = " per rank"
    if any(spec.scopes.get(parameter) == "global" for parameter in names):
        factor = share(spec, names, ranks)
        whose = " over all ranks"
    if ranks == 1:
        whose = ""
    why = ""
    if not pair.is_near:
        why = ", as no whole pair that may be used keeps it within 2 %"
    after = pair.batch * pair.accumulation * factor
    return f"the effective batch {_became(before * factor, after)}{whose}{why}"


def _shrink_alone(context: ActionContext, name: str, batch: int) -> Result:
    """Reduce the batch of a profile without gradient accumulation."""
    spec = context.spec
    ranks = context.spec.ranks_on(len(context.machine.gpus))
    if spec.tuned:
        why = "the effective batch would change, and trials must stay comparable"
        return SkippedAction(SHRINK, why)
    step = grain_of(spec, (name, None), 1, ranks, ranks).batch
    largest = math.floor(BATCH_FACTOR * batch)
    if context.below is not None:
        largest = context.below - 1
    smaller = max(1, largest) // step * step
    if smaller < 1 or smaller >= (context.below or batch):
        return SkippedAction(SHRINK, f"{name} is {batch}, and no smaller one may be tried")
    note = (
        f"lowered {name} {batch} → {smaller}; no gradient accumulation is known to make "
        "up for it, so that the effective batch changes"
    )
    return AppliedAction(SHRINK, note, (changed(name, context.params[name], smaller),))


def for_fewer_ranks(spec: RunSpec, params: Params, before: int, after: int) -> tuple[tuple[Change, ...], str]:
    """Changes that keep the effective batch over all ranks, and a phrase about them.

    They are a larger accumulation and, if none fits, also a smaller batch, never a larger one. ``before`` and ``after``
    are numbers of ranks.
    """
    if before == after:
        return (), ""
    name, value = role_parameter(spec, "batch_size", params)
    more_name, more_value = role_parameter(spec, "grad_accum", params)
    batch = whole(value)
    accumulation = whole(more_value)
    smaller = ", so that the effective batch becomes smaller"
    if more_name is None or accumulation is None or accumulation < 1:
        return (), f"{smaller} (no gradient accumulation is known)"
    size = 1
    names = (name or "", more_name)
    if batch is not None:
        size = batch
    batch_before = size * accumulation * share(spec, names, before)
    factor = share(spec, names, after)
    fitted = fit(batch_before / factor, size, grain_of(spec, names, accumulation, before, after))
    if fitted is None:
        return (), f"{smaller} (no multiple is small enough)"
    changes = [changed(more_name, params[more_name], fitted.accumulation)]
    phrase = f", with {more_name} {accumulation} → {fitted.accumulation}"
    if name is None or batch is None:
        return tuple(changes), phrase
    if fitted.batch != batch:
        changes.append(changed(name, params[name], fitted.batch))
        phrase += f" and {name} {batch} → {fitted.batch}"
    batch_after = fitted.batch * fitted.accumulation * factor
    return tuple(changes), f"{phrase}, so that the effective batch {_became(batch_before, batch_after)}"


def _became(before: Fraction, after: Fraction) -> str:
    now = f"{float(after):.15g}"
    if before == after:
        return f"stays {now}"
    return f"becomes {now} instead of {float(before):.15g}"


def grain_of(spec: RunSpec, names: tuple[str, str | None], accumulation: int, before: int, after: int) -> Grain:
    """The grain of the parameters ``names`` (batch, accumulation) for ``after`` ranks.

    It is their ``multiple_of``, times the number of ranks for a global parameter. An accumulation
    without a scope counts as global if it was divisible by ``before`` ranks.
    """

    def multiple(name: str, is_shared: bool) -> int:
        if is_shared:
            return math.lcm(spec.multiples.get(name, 1), after)
        return spec.multiples.get(name, 1)

    batch_name, more_name = names
    batch = multiple(batch_name, spec.scopes.get(batch_name) == "global")
    if more_name is None:
        return Grain(batch)
    scope = spec.scopes.get(more_name)
    is_shared = scope == "global" or (scope is None and accumulation % before == 0)
    return Grain(batch, multiple(more_name, is_shared))


def share(spec: RunSpec, names: tuple[str, str | None], ranks: int) -> Fraction:
    """The factor from batch × accumulation to the samples of all ranks."""
    shared = sum(name is not None and spec.scopes.get(name) == "global" for name in names)
    return Fraction(ranks) ** (1 - shared)


def shrink(batch: int, accumulation: int, grain: Grain, below: int | None = None) -> Pair | None:
    """A batch of at most 0.75 of the old one, and less than ``below``, with an accumulation that
    keeps the product; None if no batch is that small. See `fit`."""
    largest = math.floor(BATCH_FACTOR * batch)
    if below is not None:
        largest = min(largest, below - 1)
    return fit(Fraction(batch * accumulation), largest, grain)


def fit(product: Fraction, largest: int, grain: Grain) -> Pair | None:
    """The pair with a batch of at most ``largest`` whose product is within 2 % of ``product``, else the nearest one.

    The smallest possible accumulation comes first, then the best match.

    Returns:
        None if no batch is small enough.
    """
    step = grain.batch
    largest -= largest % step
    if largest < step or product <= 0:
        return None
    tolerance = EFFECTIVE_BATCH_TOLERANCE * product
    least = math.ceil((product - tolerance) / (largest * grain.accumulation))
    more = max(1, least) * grain.accumulation
    # The accumulation below the range is too small for the tolerance, but may be the nearest.
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
