"""Whether a run that says nothing hangs: silence alone never decides, what its ranks do does. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from gputui.charts import units
from gputui.recovery.watch.activity import Doing
from gputui.recovery.watch.progress import ProgressSilence

# One rank that works while all others wait for it may validate or save alone; it is believed for so long.
LONE_WORKER_SECONDS = 1800.0
LONE_WORKER_FACTOR = 10.0
# For so long a rank must be seen stopped.
STOPPED_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a silence is. ``hang`` and ``rank_left_early`` call for an end; ``slow`` and ``paused`` are only reported.
    ``for_seconds``: for so long it must be seen, where history explains the silence so far."""

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
    """What an attempt's silence is, or None while it is explained.

    ``ranks`` is what each rank does; a run that is one process has the rank None. ``launcher_stopped``: whoever
    started the ranks is stopped too. ``meets``: the run has written metrics before, or its ranks wait for each other,
    so that doing nothing is known to be wrong; a program that may be meant to wait is only reported. ``alone_seconds``:
    since several ranks were last seen at work in this silence, if ever. ``is_closed``: no rank has a connection beyond
    this machine that it could wait for. ``is_patient``: ranks that wait get all the time that history explains.
    """
    if not ranks:
        return None
    stopped = [rank for rank, what in ranks.items() if what is Doing.STOPPED]
    if not silence.is_overdue:
        if silence.evident_seconds is None or len(ranks) < 2 or launcher_stopped:
            return None
        verdict = _evident(silence, ranks, stopped, silence.evident_seconds, is_closed)
        return None if verdict is not None and verdict.rank is None and is_patient else verdict
    quiet = _quiet(silence)
    if len(stopped) == len(ranks) and (launcher_stopped or None in ranks):
        return Verdict("paused", None, f"all of it is stopped by a signal, {quiet}")
    busy = [rank for rank, what in ranks.items() if not what.is_stuck]
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
    """The verdict from the ranks alone: one that is stopped while its launcher is not, or ranks of which each waits for
    another one, as nothing else is left that could wake them."""
    quiet = f"nothing new for {units.duration(silence.seconds)}"
    if stopped and len(stopped) < len(ranks):
        return replace(_hang(ranks, stopped, quiet), for_seconds=STOPPED_SECONDS)
    is_spinning = all(what in (Doing.SPINNING, Doing.GONE) for what in ranks.values())
    if all(what.is_stuck for what in ranks.values()) and not stopped and (is_closed or is_spinning):
        return replace(_hang(ranks, stopped, quiet), for_seconds=for_seconds)
    return None


def _hang(ranks: Mapping[int | None, Doing], stopped: list[int | None], quiet: str) -> Verdict:
    if stopped:
        return Verdict("hang", stopped[0], f"stopped by a signal (SIGSTOP), {quiet}")
    gone = [rank for rank, what in ranks.items() if what is Doing.GONE]
    if gone and len(gone) < len(ranks):
        return Verdict("rank_left_early", gone[0], f"the others wait for it, {quiet}")
    if len(ranks) == 1:
        return Verdict("hang", None, f"it neither computes nor reads or writes, {quiet}")
    return Verdict("hang", None, f"no rank computes, reads or writes, {quiet}")


def _quiet(silence: ProgressSilence) -> str:
    what = "no first step" if silence.phase == "start" else "nothing new"
    explained = units.duration(silence.allowed_seconds)
    return f"{what} for {units.duration(silence.seconds)} where its history explains {explained}"
