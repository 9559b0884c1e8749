"""Stacks of Python threads in dumps by faulthandler: where a process is. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import takewhile
from pathlib import PurePath

from msgspec import Struct

from gputui.recovery.tracebacks import FATAL_LINE, FOREIGN, bare
from gputui.runs.logs import lines_of

# Stacks as Python's faulthandler writes them.
_THREAD = re.compile(r"^(?:Current t|T)hread \S+(?: \[.*\])? \(")
_MAIN_THREAD = re.compile(r"^Current thread ")
_DUMP_FRAME = re.compile(r'^  File "(?P<file>[^"]*)", line (?P<line>\d+) in (?P<function>\S.*)$')
# Where a rank waits for the others, and where for its data.
_COLLECTIVES = ("/torch/distributed/", "/torch/autograd/", "/torch/nn/parallel/", "/torch/cuda/")
_DATA = "/torch/utils/data/"
# Functions of Python that wait without a frame of their own.
_BLOCKS = re.compile(r"\b(?:sleep|acquire|input|flock|lockf|waitpid|pause|select|poll|recv|readline)\(")


class StackFrame(Struct, frozen=True):
    """A frame of a stack dump."""

    file: str
    line: int
    function: str


Stack = tuple[StackFrame, ...]
"""Frames, the innermost first."""


def main_stacks(text: str) -> list[Stack]:
    """The stacks of main threads, or of those that got the signal, in dumps by Python's faulthandler.

    If it names no current thread, because that has released the interpreter's lock, the last one is the main thread.
    """
    stacks: list[list[StackFrame]] = []
    frames: list[StackFrame] = []
    for line in map(bare, lines_of(text)):
        if _THREAD.match(line):
            frames = []
            if _MAIN_THREAD.match(line):
                stacks.append(frames)
        elif (match := _DUMP_FRAME.match(line)) is not None:
            frames.append(StackFrame(match["file"], int(match["line"]), match["function"]))
    return [tuple(stack) for stack in stacks or [frames] if stack]


def is_foreign(frame: StackFrame) -> bool:
    return any(part in frame.file for part in FOREIGN)


def location_of(stack: Stack) -> str:
    """The innermost frame of the user's code, else the innermost frame: ``train.py:28 in main``."""
    frame = next((frame for frame in stack if not is_foreign(frame)), stack[0])
    return f"{PurePath(frame.file).name}:{frame.line} in {frame.function}"


def fatal_where(text: str) -> str | None:
    """The location in Python code when native code crashed, by Python's faulthandler."""
    lines = [bare(line) for line in lines_of(text)]
    starts = [at for at, line in enumerate(lines) if FATAL_LINE.match(line)]
    if not starts:
        return None
    stacks = main_stacks("\n".join(lines[starts[-1] :]))
    if stacks:
        return location_of(stacks[-1])
    return None


def lagging_rank(stacks: Mapping[int, Stack], source: Callable[[str, int], str]) -> tuple[int | None, str] | None:
    """The rank that holds up all others of a hang, as their stacks show it.

    Only one that waits for something else is named: for Python's own input and locks, or for data.
    A line of the script by itself says nothing, since waits for a tensor or a collective operation
    end there, too.

    Args:
        source: gives a line of a file.

    Returns:
        The rank, if one is known, and words for where the ranks are; None if all are at one place.
    """
    lagging = [rank for rank, stack in stacks.items() if _waits_elsewhere(stack, source)]
    locations = {rank: location_of(stack) for rank, stack in stacks.items()}
    if len(lagging) == 1 and len(stacks) > 1:
        others = Counter(location for rank, location in locations.items() if rank != lagging[0])
        most = others.most_common(1)[0][0]
        return lagging[0], f"it was at {locations[lagging[0]]} while the others waited at {most}"
    ranks: dict[str, list[str]] = {}
    for rank, location in sorted(locations.items()):
        ranks.setdefault(location, []).append(str(rank))
    if len(ranks) < 2:
        return None
    sentences = (f"rank {', '.join(numbers)} was at {location}" for location, numbers in ranks.items())
    return None, "; ".join(sentences)


def _waits_elsewhere(stack: Stack, source: Callable[[str, int], str]) -> bool:
    """Return whether the stack of a rank shows that it waits, but not for the other ranks."""
    library = list(takewhile(is_foreign, stack))
    if any(part in frame.file for frame in library for part in _COLLECTIVES):
        return False
    if any(_DATA in frame.file for frame in library):
        return True
    if library:
        return not any(part in library[0].file for part in ("site-packages", "dist-packages"))
    return _BLOCKS.search(source(stack[0].file, stack[0].line)) is not None
