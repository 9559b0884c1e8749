"""The verdict on a silent run: whether it hangs. Silence alone never decides; the activity of its ranks does. Pure."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import takewhile
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from gputui.core import units
from gputui.recovery.tracebacks import Stack, is_foreign, place
from gputui.recovery.watch.activity import Doing
from gputui.recovery.watch.progress import ProgressSilence

# How long a single rank may work while all others wait for it, for example to validate or save.
LONE_WORKER_SECONDS = 1800.0
LONE_WORKER_FACTOR = 10.0
# How long a rank must be stopped before it counts as a hang.
STOPPED_SECONDS = 10.0
# Where a rank waits for the others, and where for its data.
_COLLECTIVES = ("/torch/distributed/", "/torch/autograd/", "/torch/nn/parallel/", "/torch/cuda/")
_DATA = "/torch/utils/data/"
# Functions of Python that wait without a frame of their own.
_BLOCKS = re.compile(r"\b(?:sleep|acquire|input|flock|lockf|waitpid|pause|select|poll|recv|readline)\(")


class Verdict(Struct, frozen=True):
    """The verdict on a silence. ``hang`` and ``rank_left_early`` may end the attempt; ``slow`` and ``paused`` are only
    reported. ``for_seconds``: how long it must be observed if history still explains the silence."""

    kind: Literal["hang", "rank_left_early", "slow", "paused"]
    rank: int | None
    text: str
    for_seconds: float = 0.0

    @property
    def is_stuck(self) -> bool:
        return self.kind in ("hang", "rank_left_early")


def judge(
    silence: ProgressSilence,
    ranks: Mapping[int | None, Doing],
    *,
    launcher_stopped: bool = False,
    meets: bool = True,
    alone_seconds: float = math.inf,
    is_closed: bool = False,
    is_patient: bool = False,
) -> Verdict | None:
    """The verdict on an attempt's silence, or None while it is explained.

    ``ranks`` is the activity of each rank; a single process has the rank None. ``launcher_stopped``: the ranks'
    launcher is stopped too. ``meets``: the run has written metrics or has several ranks, so that idleness is wrong;
    another program may be meant to wait, and is only reported. ``alone_seconds``: time since several ranks were last at
    work in this silence. ``is_closed``: no rank has a connection beyond the attempt. ``is_patient``: waiting ranks get
    all the time that history explains.
    """
    if not ranks:
        return None
    stopped = [rank for rank, doing in ranks.items() if doing is Doing.STOPPED]
    if not silence.is_overdue:
        if silence.evident_seconds is None or len(ranks) < 2 or launcher_stopped:
            return None
        verdict = _evident(silence, ranks, stopped, silence.evident_seconds, is_closed)
        return None if verdict is not None and verdict.rank is None and is_patient else verdict
    missing = "no first step" if silence.phase == "start" else "nothing new"
    explained = units.duration(silence.allowed_seconds)
    quiet = f"{missing} for {units.duration(silence.seconds)} where its history explains {explained}"
    if len(stopped) == len(ranks) and (launcher_stopped or None in ranks):
        return Verdict("paused", None, f"all of it is stopped by a signal, {quiet}")
    busy = [rank for rank, doing in ranks.items() if not doing.is_stuck]
    if not busy:
        if not meets:
            return Verdict("slow", None, f"it neither computes nor reads or writes, {quiet}")
        return _hang(ranks, stopped, quiet)
    if len(busy) == 1 and len(ranks) > 1 and ranks[busy[0]] is Doing.COMPUTING:
        longest = max(LONE_WORKER_SECONDS, LONE_WORKER_FACTOR * silence.allowed_seconds)
        if min(silence.seconds, alone_seconds) > longest:
            return Verdict("hang", busy[0], f"it computes while all others wait for it, {quiet}")
    name = "it" if busy[0] is None else f"rank {busy[0]}"
    return Verdict("slow", busy[0] if len(busy) == 1 else None, f"{quiet}; {name} {ranks[busy[0]]}")


def _evident(
    silence: ProgressSilence,
    ranks: Mapping[int | None, Doing],
    stopped: list[int | None],
    for_seconds: float,
    is_closed: bool,
) -> Verdict | None:
    """The verdict from the ranks' activity alone: some are stopped although the launcher is not, or all wait for each
    other, with nothing that could wake them."""
    quiet = f"nothing new for {units.duration(silence.seconds)}"
    if stopped and len(stopped) < len(ranks):
        return replace(_hang(ranks, stopped, quiet), for_seconds=STOPPED_SECONDS)
    is_spinning = all(doing in (Doing.SPINNING, Doing.GONE) for doing in ranks.values())
    if all(doing.is_stuck for doing in ranks.values()) and not stopped and (is_closed or is_spinning):
        return replace(_hang(ranks, stopped, quiet), for_seconds=for_seconds)
    return None


def _hang(ranks: Mapping[int | None, Doing], stopped: list[int | None], quiet: str) -> Verdict:
    if stopped:
        return Verdict("hang", stopped[0], f"stopped by a signal (SIGSTOP), {quiet}")
    gone_ranks = [rank for rank, doing in ranks.items() if doing is Doing.GONE]
    if gone_ranks and len(gone_ranks) < len(ranks):
        return Verdict("rank_left_early", gone_ranks[0], f"the others wait for it, {quiet}")
    if len(ranks) == 1:
        return Verdict("hang", None, f"it neither computes nor reads or writes, {quiet}")
    return Verdict("hang", None, f"no rank computes, reads or writes, {quiet}")


def lagging_rank(stacks: Mapping[int, Stack], source: Callable[[str, int], str]) -> tuple[int | None, str] | None:
    """The rank that holds up all others of a hang, as their stacks show it, and words for where they are.

    Only one that waits for something else is named: for Python's own input and locks, or for data. A line of the script
    by itself says nothing, since waits for a tensor or a collective operation end there, too. Without such a rank the
    words say where the ranks are; None if all are at one place. ``source`` gives a line of a file.
    """
    lagging = [rank for rank, stack in stacks.items() if _waits_elsewhere(stack, source)]
    places = {rank: place(stack) for rank, stack in stacks.items()}
    if len(lagging) == 1 and len(stacks) > 1:
        others = Counter(words for rank, words in places.items() if rank != lagging[0])
        return lagging[0], f"it was at {places[lagging[0]]} while the others waited at {others.most_common(1)[0][0]}"
    ranks: dict[str, list[str]] = {}
    for rank, words in sorted(places.items()):
        ranks.setdefault(words, []).append(str(rank))
    if len(ranks) < 2:
        return None
    return None, "; ".join(f"rank {', '.join(each)} was at {words}" for words, each in ranks.items())


def _waits_elsewhere(stack: Stack, source: Callable[[str, int], str]) -> bool:
    """Whether the stack of a rank shows that it waits, but not for the other ranks."""
    library = list(takewhile(is_foreign, stack))
    if any(part in frame.file for frame in library for part in _COLLECTIVES):
        return False
    if any(_DATA in frame.file for frame in library):
        return True
    if library:
        return not any(part in library[0].file for part in ("site-packages", "dist-packages"))
    return _BLOCKS.search(source(stack[0].file, stack[0].line)) is not None
