"""Population-based training: which members go on from others, and with which parameters. Pure.

A member is a run, a segment of its training an attempt. At a milestone, every ``every`` steps, the values of all
members at that very step are compared; the worst quantile of them goes on from checkpoints of the best quantile, with
parameters drawn again or multiplied (Jaderberg et al. 2017, truncation selection). Members do not wait for each other:
a comparison is made once the last of those that train has passed the milestone.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from gputui.runs.spec import Scalar
from gputui.studies.spec import Dimension, Objective, PbtSpec


class PopulationMember(NamedTuple):
    """A member. ``value`` is the objective at the milestone, NaN where it was no number. ``can_give``: a checkpoint of
    it is known to be whole; ``trains``: it has not ended, and may go on from another."""

    number: int
    params: Mapping[str, Scalar]
    value: float
    can_give: bool
    trains: bool = True


class Exploit(NamedTuple):
    """Member ``number`` goes on from a checkpoint of ``donor`` with ``params``."""

    number: int
    donor: int
    params: Mapping[str, Scalar]


def first_point(space: Sequence[Dimension], seed: int, number: int) -> dict[str, Scalar]:
    """The parameters with which a member begins: a point drawn at random from the space, the same for the same seed."""
    draw = random.Random(f"{seed}/{number}")  # noqa: S311 - a sampler, no secret
    return {one.name: _drawn(one, draw) for one in space}


def due_milestone(values: Collection[Mapping[int, float]], decided: int) -> int | None:
    """The newest milestone behind ``decided`` that every member that trains has passed; None where one has not.
    ``values`` has what each of them had reached at its milestones (from 1)."""
    passed = min((max(one, default=0) for one in values), default=0)
    return passed if passed > decided else None


def is_last(milestone: int, spec: PbtSpec) -> bool:
    """Whether nothing is left to train behind a milestone."""
    return spec.length is not None and milestone * spec.every >= spec.length


def exploits(
    members: Collection[PopulationMember],
    milestone: int,
    spec: PbtSpec,
    space: Sequence[Dimension],
    objective: Objective,
    seed: int,
) -> list[Exploit]:
    """What follows from the values at a milestone; the same for the same seed. A member without a number there counts
    as worst and gives nothing; for one without a whole checkpoint the next best gives."""
    draw = random.Random(f"{seed}/{milestone}/exploit")  # noqa: S311 - a sampler, no secret
    sign = 1.0 if objective.direction == "minimize" else -1.0

    def loss(one: PopulationMember) -> float:
        return math.inf if math.isnan(one.value) else sign * one.value

    ranked = sorted(members, key=lambda one: (loss(one), one.number))
    share = max(1, int(len(ranked) * spec.quantile))
    best = [one for one in ranked if one.can_give and loss(one) < math.inf][:share]
    worst = [one for one in ranked[-share:] if one not in (*ranked[:share], *best) and one.trains]
    found = []
    for one in worst:
        donors = [other for other in best if loss(other) < loss(one)]
        if donors:
            donor = draw.choice(donors)
            found.append(Exploit(one.number, donor.number, explored(donor.params, space, spec, draw)))
    return found


def explored(
    params: Mapping[str, Scalar], space: Sequence[Dimension], spec: PbtSpec, draw: random.Random
) -> dict[str, Scalar]:
    """Other parameters near those of a donor: each drawn again with probability ``resample``, else multiplied by one of
    ``factors`` and kept within its bounds; a choice moves to its neighbour in the list."""
    found: dict[str, Scalar] = {}
    for one in space:
        value = params.get(one.name)
        if value is None or draw.random() < spec.resample:
            found[one.name] = _drawn(one, draw)
        elif one.kind == "choice":
            place = one.choices.index(value) + draw.choice((-1, 1)) if value in one.choices else 0
            found[one.name] = one.choices[min(max(place, 0), len(one.choices) - 1)]
        else:
            found[one.name] = _kept_within(one, float(value) * draw.choice(spec.factors))
    return found


def _drawn(one: Dimension, draw: random.Random) -> Scalar:
    if one.kind == "choice":
        return draw.choice(one.choices)
    assert one.low is not None and one.high is not None
    if one.log:
        return _kept_within(one, math.exp(draw.uniform(math.log(one.low), math.log(one.high))))
    return _kept_within(one, draw.uniform(one.low, one.high))


def _kept_within(one: Dimension, value: float) -> Scalar:
    """The nearest value that the dimension can take."""
    assert one.low is not None and one.high is not None
    value = min(max(value, one.low), one.high)
    step = one.step if one.step is not None else 1.0 if one.kind == "int" else None
    if step is not None:
        steps = min(round((value - one.low) / step), math.floor((one.high - one.low) / step + 1e-9))
        value = one.low + steps * step
    return int(value) if one.kind == "int" else min(max(float(f"{value:.6g}"), one.low), one.high)
