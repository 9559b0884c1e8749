"""Population-based training: which members continue from others, and with which parameters. Pure.

A member is a run; a segment of its training is an attempt. At a milestone, every ``every`` steps,
the values of all members at that step are compared. The worst quantile continues from checkpoints
of the best quantile, with parameters that are resampled or multiplied (Jaderberg et al. 2017,
truncation selection). Members do not wait for each other: the comparison follows when the last
active member passes the milestone.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from gputui.runs.spec import Scalar
from gputui.studies.spec import Dimension, Objective, PbtSpec


class PopulationMember(NamedTuple):
    """A member at a milestone.

    Attributes:
        number: the number of its trial.
        params: the parameters that it trains with.
        value: the objective at the milestone; NaN if it was not a number.
        can_give: it has a valid checkpoint.
        trains: it is active and may continue from another.
    """

    number: int
    params: Mapping[str, Scalar]
    value: float
    can_give: bool
    trains: bool = True


class Exploit(NamedTuple):
    """A member that is to continue from another.

    Attributes:
        number: the member.
        donor: the member whose checkpoint it continues from.
        params: the parameters that it gets.
    """

    number: int
    donor: int
    params: Mapping[str, Scalar]


def first_point(space: Sequence[Dimension], seed: int, number: int) -> dict[str, Scalar]:
    """A member's initial parameters: a random point of the space, determined by the seed."""
    draw = random.Random(f"{seed}/{number}")  # noqa: S311 - a sampler, no secret
    return {dimension.name: _draw(dimension, draw) for dimension in space}


def due_milestone(values: Collection[Mapping[int, float]], decided: int) -> int | None:
    """The newest milestone after ``decided`` that every active member has passed, or None.
    ``values`` has their values by milestone (from 1)."""
    passed = min((max(value, default=0) for value in values), default=0)
    if passed > decided:
        return passed
    return None


def is_last(milestone: int, spec: PbtSpec) -> bool:
    return spec.length is not None and milestone * spec.every >= spec.length


def choose_exploits(
    members: Collection[PopulationMember],
    milestone: int,
    spec: PbtSpec,
    space: Sequence[Dimension],
    objective: Objective,
    seed: int,
) -> list[Exploit]:
    """Choose which members continue from which at a milestone, determined by the seed.

    A member without a value is among the worst and never a donor; a member without a valid
    checkpoint is replaced by the next best donor.

    Args:
        members: all members at the milestone.
        milestone: its number, from 1.
        spec: the rules of the population.
        space: the tuned parameters.
        objective: what makes a member good.
        seed: the study's seed.
    """
    draw = random.Random(f"{seed}/{milestone}/exploit")  # noqa: S311 - a sampler, no secret

    def loss(member: PopulationMember) -> float:
        if math.isnan(member.value):
            return math.inf
        return objective.sign * member.value

    ranked = sorted(members, key=lambda member: (loss(member), member.number))
    share = max(1, int(len(ranked) * spec.quantile))
    best = [trial for trial in ranked if trial.can_give and loss(trial) < math.inf][:share]
    worst = [trial for trial in ranked[-share:] if trial not in (*ranked[:share], *best) and trial.trains]
    decided = []
    for member in worst:
        donors = [rival for rival in best if loss(rival) < loss(member)]
        if donors:
            donor = draw.choice(donors)
            decided.append(Exploit(member.number, donor.number, perturb(donor.params, space, spec, draw)))
    return decided


def perturb(
    params: Mapping[str, Scalar], space: Sequence[Dimension], spec: PbtSpec, draw: random.Random
) -> dict[str, Scalar]:
    """Parameters near a donor's: each resampled with probability ``resample``, else multiplied by
    one of ``factors`` within its bounds; a choice moves to a neighbour in its list."""
    result: dict[str, Scalar] = {}
    for dimension in space:
        value = params.get(dimension.name)
        if value is None or draw.random() < spec.resample:
            result[dimension.name] = _draw(dimension, draw)
        elif dimension.kind == "choice":
            index = 0
            if value in dimension.choices:
                index = dimension.choices.index(value) + draw.choice((-1, 1))
            result[dimension.name] = dimension.choices[min(max(index, 0), len(dimension.choices) - 1)]
        else:
            result[dimension.name] = _clamp(dimension, float(value) * draw.choice(spec.factors))
    return result


def _draw(dimension: Dimension, draw: random.Random) -> Scalar:
    """A random value of a dimension."""
    if dimension.kind == "choice":
        return draw.choice(dimension.choices)
    assert dimension.low is not None
    assert dimension.high is not None
    if dimension.log:
        return _clamp(dimension, math.exp(draw.uniform(math.log(dimension.low), math.log(dimension.high))))
    return _clamp(dimension, draw.uniform(dimension.low, dimension.high))


def _clamp(dimension: Dimension, value: float) -> Scalar:
    """The nearest value that the dimension can take."""
    assert dimension.low is not None
    assert dimension.high is not None
    value = min(max(value, dimension.low), dimension.high)
    step = dimension.step
    if step is None and dimension.kind == "int":
        step = 1.0
    if step is not None:
        steps = min(round((value - dimension.low) / step), math.floor((dimension.high - dimension.low) / step + 1e-9))
        value = dimension.low + steps * step
    if dimension.kind == "int":
        return int(value)
    return dimension.rounded(value, 6)
