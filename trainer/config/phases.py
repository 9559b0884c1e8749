"""A run's phases: a name, steps and what differs from the run's settings, unfolded into complete settings.

A number may be a share of the run's own, written ``x0.5``, so that a change to the run carries into its phases.
"""

from __future__ import annotations

import bisect
import itertools
import math
import re
from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from trainer.config.schema import RUN_WIDE, Settings, did_you_mean, first
from trainer.errors import SettingsError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")  # file names have it
_SHARE = re.compile(r"x(\d+\.?\d*|\.\d+)")
_SUM_TOLERANCE = 1e-3  # thirds as x0.333 add up to 0.999


class PhaseError(SettingsError):
    """A phase that cannot be used; the message names it.

    Attributes:
        index: Index of the phase.
        key: The phase's key that is wrong.
    """

    def __init__(self, settings: Settings, index: int, key: str, problem: str) -> None:
        name = settings.phases[index].get("name") or index + 1
        super().__init__(f"phase {name}: {problem}")
        self.index = index
        self.key = key


def unfold(settings: Settings) -> tuple[Settings, ...]:
    """The settings of each phase in order, with its name and steps; the settings themselves if there are no phases.

    Raises PhaseError for the first phase that is wrong.
    """
    if not settings.phases:
        return (settings,)
    _check_names(settings)
    phases: list[Settings] = []
    for index, steps in enumerate(_lengths(settings)):
        phase = _phase_settings(settings, index, steps)
        if phases and phase.optimizer != phases[-1].optimizer and not phase.reset_optimizer:
            problem = "another optimizer than before needs reset_optimizer: true"
            raise PhaseError(settings, index, "optimizer", problem)
        phases.append(phase)
    return tuple(phases)


def phase_at(phases: Sequence[Settings], step: int) -> tuple[int, int, int]:
    """The index of the phase that a step belongs to, the nearest one if none, and that phase's first and last step."""
    ends = list(itertools.accumulate(phase.steps for phase in phases))
    index = min(bisect.bisect_left(ends, step), len(ends) - 1)
    return index, ends[index] - phases[index].steps + 1, ends[index]


def _check_names(settings: Settings) -> None:
    names = [phase.get("name") for phase in settings.phases]
    for index, name in enumerate(names):
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            problem = "it needs a name of at most 100 letters, digits, dots and dashes"
            raise PhaseError(settings, index, "name", problem)
        if name in names[:index]:
            raise PhaseError(settings, index, "name", "another phase has this name already")


def _lengths(settings: Settings) -> Sequence[int]:
    """The steps of each phase: numbers in all of them, or shares of the run's in all of them."""
    steps_of_phases: list[Any] = [phase.get("steps") for phase in settings.phases]
    shares = [share for share in map(_share, steps_of_phases) if share is not None]
    if len(shares) == len(steps_of_phases):
        return _lengths_of_shares(settings, shares)
    for index, steps in enumerate(steps_of_phases):
        if type(steps) is not int or steps < 1:
            problem = f"steps must be a number of at least 1, or a share such as x0.5 in every phase; got {steps!r}"
            raise PhaseError(settings, index, "steps", problem)
    return steps_of_phases


def _lengths_of_shares(settings: Settings, shares: Sequence[float]) -> Sequence[int]:
    """Whole numbers whose sum is exactly the run's steps: the ends of phases are rounded, not their lengths."""
    total = math.fsum(shares)
    if abs(total - 1) > _SUM_TOLERANCE:
        problem = f"the shares of the steps of all phases must add up to 1, got {total:g}"
        raise PhaseError(settings, 0, "steps", problem)
    inner_ends = [round(settings.steps * part / total) for part in itertools.accumulate(shares[:-1])]
    lengths = [end - begin for begin, end in itertools.pairwise([0, *inner_ends, settings.steps])]
    shortest = min(lengths)
    if shortest < 1:
        problem = f"there are too few steps for its share, {settings.steps} in all"
        raise PhaseError(settings, lengths.index(shortest), "steps", problem)
    return lengths


def _phase_settings(settings: Settings, index: int, steps: int) -> Settings:
    """The complete settings of a phase."""
    phase = settings.phases[index]
    overrides = {key: _override(settings, index, key) for key in phase if key not in ("name", "steps")}
    changes = {"phase": phase["name"], "phases": (), "steps": steps, **overrides}
    try:
        return Settings.model_validate(settings.model_dump() | changes)
    except ValidationError as error:
        key, problem = first(error)
        raise PhaseError(settings, index, key, key + problem) from None


def _override(settings: Settings, index: int, key: str) -> Any:
    """A phase's value of a setting; of a share the number that it stands for."""
    if key not in Settings.model_fields:
        raise PhaseError(settings, index, key, f"unknown setting {key}{did_you_mean(key)}")
    if key in RUN_WIDE:
        problem = f"{key} is the same for the whole run and cannot be set in a phase"
        raise PhaseError(settings, index, key, problem)
    if key == "grad_accum" and settings.samples_per_step:
        problem = f"grad_accum follows from the run's {settings.samples_per_step} samples per step: leave it out"
        raise PhaseError(settings, index, key, problem)
    value = settings.phases[index][key]
    share = _share(value)
    if share is None:
        return value
    run_value = getattr(settings, key)
    if isinstance(run_value, bool) or not isinstance(run_value, int | float):
        problem = f"{key} {value} is a share of a number, but the run's own is {run_value}"
        raise PhaseError(settings, index, key, problem)
    if isinstance(run_value, float):
        return share * run_value
    # The schema has no limit of `batch_size` here, as it may also be a word.
    least = next((int(limit.ge) for limit in Settings.model_fields[key].metadata if hasattr(limit, "ge")), 1)
    return max(least, math.floor(share * run_value + 0.5))


def _share(value: Any) -> float | None:
    """The number of a share such as ``x0.5``; None for any other value."""
    match = _SHARE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return None
    return float(match[1])
