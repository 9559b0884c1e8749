"""A run's phases: a name, steps and what differs from the run's settings, unfolded into complete settings.

A number may be a share of the run's own, written ``x0.5``, so that a change to the run carries into its phases.
"""

from __future__ import annotations

import bisect
import itertools
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

from pydantic import ValidationError

from trainer.config.schema import SHAPE_SETTINGS, Settings, did_you_mean, first
from trainer.errors import SettingsError

# What the weights and the order of the data depend on, and what is set up once for all phases.
RUN_WIDE = frozenset(
    (
        *SHAPE_SETTINGS,
        *("weights", "data", "data_dir", "tokenizer", "data_column", "label_column", "image_size", "synthetic_samples"),
        *("phases", "phase", "seed", "deterministic", "device", "timeout", "start_timeout", "stop_timeout"),
        *("expandable_segments", "memory_snapshot", "output_dir", "checkpoint_dir", "resume", "keep", "export"),
        *("best_checkpoint", "best_metric", "inject", "metrics"),
    )
)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")  # file names have it
_SHARE = re.compile(r"x(\d+\.?\d*|\.\d+)")


def unfold(settings: Settings, where: Callable[[int, str], str] = lambda index, key: "") -> tuple[Settings, ...]:
    """The settings of each phase in order, with its name and steps; the settings themselves if there are no phases.

    Raises SettingsError naming the phase, after the place that `where` knows by its index and a key.
    """
    if not settings.phases:
        return (settings,)
    names = [phase.get("name") for phase in settings.phases]

    def wrong(index: int, key: str, text: str) -> SettingsError:
        return SettingsError(f"{where(index, key)}phase {names[index] or index + 1}: {text}")

    for index, name in enumerate(names):
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise wrong(index, "name", "it needs a name of at most 100 letters, digits, dots and dashes")
        if name in names[:index]:
            raise wrong(index, "name", "another phase has this name already")
    unfolded: list[Settings] = []
    for index, steps in enumerate(_lengths(settings, wrong)):
        changes: dict[str, Any] = {"phase": names[index], "phases": (), "steps": steps}
        for key, value in settings.phases[index].items():
            if key not in ("name", "steps"):
                try:
                    changes[key] = _value(settings, key, value)
                except ValueError as error:
                    raise wrong(index, key, str(error)) from None
        try:
            phase_settings = Settings.model_validate(settings.model_dump() | changes)
        except ValidationError as error:
            key, problem = first(error)
            raise wrong(index, key, key + problem) from None
        if unfolded and unfolded[-1].optimizer != phase_settings.optimizer and not phase_settings.reset_optimizer:
            raise wrong(index, "optimizer", "another optimizer than before needs reset_optimizer: true")
        unfolded.append(phase_settings)
    return tuple(unfolded)


def phase_at(phases: Sequence[Settings], step: int) -> tuple[int, int, int]:
    """The index of the phase that a step belongs to, the nearest one if none, and that phase's first and last step."""
    ends = list(itertools.accumulate(phase.steps for phase in phases))
    index = min(bisect.bisect_left(ends, step), len(ends) - 1)
    return index, ends[index] - phases[index].steps + 1, ends[index]


def _lengths(settings: Settings, wrong: Callable[[int, str, str], SettingsError]) -> list[int]:
    """The steps of each phase; of shares, whole numbers whose sum is exactly the run's."""
    steps_of_phases: list[Any] = [phase.get("steps") for phase in settings.phases]
    shares = [share for share in map(_share, steps_of_phases) if share is not None]
    if len(shares) < len(steps_of_phases):
        for index, steps in enumerate(steps_of_phases):
            if type(steps) is not int or steps < 1:
                text = f"steps must be a number of at least 1, or a share such as x0.5 in every phase; got {steps!r}"
                raise wrong(index, "steps", text)
        return steps_of_phases
    total = math.fsum(shares)
    if abs(total - 1) > 1e-3:
        raise wrong(0, "steps", f"the shares of the steps of all phases must add up to 1, got {total:g}")
    ends = [0, *(round(settings.steps * part / total) for part in itertools.accumulate(shares))]
    ends[-1] = settings.steps
    lengths = [end - begin for begin, end in itertools.pairwise(ends)]
    if min(lengths) < 1:
        text = f"there are too few steps for its share, {settings.steps} in all"
        raise wrong(lengths.index(min(lengths)), "steps", text)
    return lengths


def _value(settings: Settings, key: str, value: Any) -> Any:
    """The value of a setting in a phase. Raises ValueError with the rest of the message."""
    if key not in Settings.model_fields:
        raise ValueError(f"unknown setting {key}{did_you_mean(key)}")
    if key in RUN_WIDE:
        raise ValueError(f"{key} is the same for the whole run and cannot be set in a phase")
    share = _share(value)
    of_run = getattr(settings, key)
    if share is None:
        return value
    if isinstance(of_run, bool) or not isinstance(of_run, int | float):
        raise ValueError(f"{key} {value} is a share of a number, but the run's own is {of_run}")
    if isinstance(of_run, float):
        return share * of_run
    # The batch size, which may be a word, has its limit elsewhere.
    limits = [limit.ge for limit in Settings.model_fields[key].metadata if hasattr(limit, "ge")]
    return max(max(limits, default=1), math.floor(share * of_run + 0.5))


def _share(value: Any) -> float | None:
    match = _SHARE.fullmatch(value) if isinstance(value, str) else None
    if match:
        return float(match[1])
    return None
