"""The step in a checkpoint's name, for checkpoints whose step the metrics do not give. Standard
library only but for `step_words`: also on targets."""

from __future__ import annotations

import re
from pathlib import PurePath

_MOST_DIGITS = 18  # SQLite's integers have 19
# global_step500, step=900, step_2000_fp16, iter_0001000-of-8, iteration-7, checkpoint-40, ckpt_40
_EXPLICIT = re.compile(r"(?:steps?|iter(?:ation)?s?|checkpoint|ckpt)[=_-]?(\d+)(?![\d.]*\d)", re.IGNORECASE)
# A number that is part of a word, a decimal fraction, or after one of these words is no step.
_OTHER = re.compile(r"(?:epochs?|ep|e|val|loss|acc|rank|of|part|shard|seed|best|v|fp|bf|int|lr|bs|x|b)[=_.-]?\d", re.I)
_NUMBER = re.compile(r"\d+")
_SUFFIX = re.compile(r"\.[A-Za-z][A-Za-z0-9]*$")


def step_in_name(path: PurePath, folder: PurePath | None = None) -> int | None:
    """The step in a name, or None.

    It is the number after ``step``, ``iter``, ``checkpoint`` or ``ckpt`` in the name itself or else
    in its nearest folder below ``folder``. Without such a word it is the only number of the nearest
    part that has exactly one and no epoch, loss, rank or version.
    """
    inside = path.relative_to(folder).parts if folder is not None and path.is_relative_to(folder) else (path.name,)
    stems = [_stem(part) for part in reversed(inside)]
    for stem in stems:
        if (step := explicit_step(stem)) is not None:
            return step
    for stem in stems:
        numbers = _NUMBER.findall(stem)
        if len(numbers) == 1 and len(numbers[0]) <= _MOST_DIGITS and not _OTHER.search(stem):
            return int(numbers[0])
    return None


def explicit_step(name: str) -> int | None:
    """The number after a word that means a step, None if there is no such word."""
    numbers = _EXPLICIT.findall(_stem(name))
    if numbers and len(numbers[-1]) <= _MOST_DIGITS:
        return int(numbers[-1])
    return None


def step_words(name: str, step: int) -> str:
    """``step 40``; ``about step 40`` if it was inferred and the name has another one."""
    from gputui.core.units import count

    if tells_step(name, step):
        return f"step {count(step)}"
    return f"about step {count(step)}"


def tells_step(name: str, step: int) -> bool:
    """Return whether a name has a step, as it may be counted from 0 or 1."""
    named_step = step_in_name(PurePath(name))
    return named_step is not None and abs(named_step - step) < 2


def is_step_named(name: str) -> bool:
    return step_in_name(PurePath(name)) is not None


def _stem(name: str) -> str:
    """A name without file suffixes; ``val_loss=0.12.ckpt`` keeps its fraction."""
    while (shorter := _SUFFIX.sub("", name)) != name and shorter:
        name = shorter
    return name
