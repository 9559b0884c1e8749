"""The step that a checkpoint's name tells, for those whose step the metrics do not know."""

from __future__ import annotations

import re
from pathlib import PurePath

from gputui.charts.units import count

_MOST_DIGITS = 18
# global_step500, step=900, step_2000_fp16, iter_0001000-of-8, iteration-7, checkpoint-40, ckpt_40
_EXPLICIT = re.compile(r"(?:steps?|iter(?:ation)?s?|checkpoint|ckpt)[=_-]?(\d+)(?![\d.]*\d)", re.IGNORECASE)
# A number that is part of a word, a decimal fraction, or behind one of these words says something else.
_OTHER = re.compile(r"(?:epochs?|ep|e|val|loss|acc|rank|of|part|shard|seed|best|v|fp|bf|int|lr|bs|x|b)[=_.-]?\d", re.I)
_NUMBER = re.compile(r"\d+")
_SUFFIX = re.compile(r"\.[A-Za-z][A-Za-z0-9]*$")


def step_in_name(path: PurePath, folder: PurePath | None = None) -> int | None:
    """The step in a name: the number behind ``step``, ``iter``, ``checkpoint`` or ``ckpt``, in the name itself or else
    in those of its folders below ``folder``; where none has such a word, the only number of the nearest one that has
    just one, and no epochs, losses, ranks or versions. None if nothing tells."""
    inside = path.relative_to(folder).parts if folder is not None and path.is_relative_to(folder) else (path.name,)
    stems = [_stem(part) for part in reversed(inside)]
    explicit = (explicit_step(stem) for stem in stems)
    lone = (_only_number(stem) for stem in stems)
    return next((step for step in (*explicit, *lone) if step is not None), None)


def explicit_step(name: str) -> int | None:
    """The number behind a word that means a step, None if there is no such word."""
    found = _EXPLICIT.findall(_stem(name))
    return int(found[-1]) if found and len(found[-1]) <= _MOST_DIGITS else None


def step_words(name: str, step: int) -> str:
    """``step 40``, or ``about step 40`` where no name but only the time of its lines tells it, as of a file that is
    written over: what it holds may be a little older or newer."""
    return f"{'' if is_step_named(name) else 'about '}step {count(step)}"


def is_step_named(name: str) -> bool:
    return step_in_name(PurePath(name)) is not None


def _only_number(stem: str) -> int | None:
    numbers = _NUMBER.findall(stem)
    if len(numbers) != 1 or len(numbers[0]) > _MOST_DIGITS or _OTHER.search(stem):
        return None
    return int(numbers[0])


def _stem(name: str) -> str:
    """Without the endings of a file's kind: ``step_4.pt.gz`` is ``step_4``, and ``val_loss=0.12.ckpt`` keeps its
    fraction."""
    while (shorter := _SUFFIX.sub("", name)) != name and shorter:
        name = shorter
    return name
