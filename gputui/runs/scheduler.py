"""The scheduler: which queued run starts on which GPUs, as a pure function of queue and GPUs.

Only `read_waiting_runs` reads the store.
"""

from __future__ import annotations

import re
import sqlite3
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec
from msgspec import Struct

from gputui.core.units import count_of, index_ranges
from gputui.runs.stored_spec import known_spec, spec_of
from gputui.store import queue
from gputui.store.run_states import RunState
from gputui.store.runs import Run, get_run, queued_runs

PAUSED = "waits for the queue, which is paused"

# Parts such as a third do not add up to exactly 1.
_ROUNDING = 1e-6


class WaitingRuns(NamedTuple):
    """The queued runs.

    Attributes:
        runs: in the order of the queue.
        not_yet: why a run waits for another one or for a time, by its id.
        is_paused: the queue is paused.
    """

    runs: tuple[Run, ...] = ()
    not_yet: Mapping[str, str] = {}
    is_paused: bool = False


def read_waiting_runs(connection: sqlite3.Connection, now: float) -> WaitingRuns:
    """Read the queue at ``now``, without runs whose specification is damaged. Raises sqlite3.Error."""
    runs = tuple(run for run in queued_runs(connection) if known_spec(run) is not None)
    reasons = {run.run_id: why for run in runs if (why := why_not_yet(connection, run, now)) is not None}
    return WaitingRuns(runs, reasons, queue.pause(connection) is not None)


def why_not_yet(connection: sqlite3.Connection, run: Run, now: float) -> str | None:
    """The reason why a run does not start yet that follows others or begins at a time. Raises sqlite3.Error.

    Returns:
        None once all of them succeeded, or ended, and the time has come, or if it has started before.
    """
    if run.attempt:
        return None
    spec = spec_of(run)
    for run_id in (*spec.after, *spec.after_any):
        predecessor = get_run(connection, run_id)
        must_end = run_id in spec.after_any
        must_succeed = run_id in spec.after
        reason = _wait_for_predecessor(run_id, predecessor, must_end=must_end, must_succeed=must_succeed)
        if reason is not None:
            return reason
    if spec.begin_at is None or now >= spec.begin_at:
        return None
    return _wait_until(spec.begin_at, now)


def _wait_for_predecessor(run_id: str, predecessor: Run | None, *, must_end: bool, must_succeed: bool) -> str | None:
    """The reason why a run waits for the run ``run_id``, which is None if it was removed; None if it does not."""
    is_over = predecessor is None or predecessor.state.is_over
    if must_end and not is_over:
        return f"waits for {run_id} to end"
    if must_succeed and not is_over:
        return f"waits for {run_id} to succeed"
    state = "was removed" if predecessor is None else predecessor.state
    if must_succeed and state is not RunState.SUCCEEDED:
        return f"waits for {run_id}, which {state}; stop it to end the wait"
    return None


def _wait_until(begin_at: float, now: float) -> str:
    """``begins at 14:30``, with the day unless it is today."""
    begin = time.localtime(begin_at)
    today = time.localtime(now)
    if (begin.tm_year, begin.tm_yday) == (today.tm_year, today.tm_yday):
        return time.strftime("begins at %H:%M", begin)
    return time.strftime("begins on %d %b at %H:%M", begin)


class GpuAvailability(Struct, frozen=True):
    """One GPU that the driver lists or a run leases.

    Attributes:
        index: None if the driver does not list it.
        holders: the runs that lease it.
        blocked_by: why nothing may start on it now; None if it is usable.
        free_bytes: free GPU memory; None if the driver does not report it.
        out_of_service: blocked until a person or the driver brings it back.
        is_settling: blocked for a few seconds only.
        total_bytes: the whole GPU memory; None if the driver does not report it.
        shared_by: the study whose trials share it, "" for runs of none; None if nobody shares it.
        shares: the part of it that each run takes that shares it.
        desktop: why only a run that accepts a desktop may start on it.
        preference: among free ones the smallest is taken first.
    """

    uuid: str
    index: int | None
    holders: tuple[str, ...] = ()
    blocked_by: str | None = None
    free_bytes: int | None = None
    out_of_service: bool = False
    is_settling: bool = False
    total_bytes: int | None = None
    shared_by: str | None = None
    shares: Mapping[str, float] = msgspec.field(default_factory=dict)
    desktop: str | None = None
    preference: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        if self.index is None:
            return self.uuid
        return f"GPU {self.index}"


class Start(NamedTuple):
    """The run starts now on these GPUs; ``replaced`` has the reason for each that it loses."""

    run: Run
    uuids: tuple[str, ...]
    replaced: tuple[str, ...] = ()


class Wait(NamedTuple):
    """The run waits.

    Attributes:
        in_service: the number of usable GPUs if a recovering run waits while some that it held are out of service;
            else None.
        promised: the GPUs that no later run gets before it.
    """

    run: Run
    reason: str
    in_service: int | None = None
    promised: frozenset[str] = frozenset()


def gpus_wanted(run: Run) -> int:
    """Number of GPUs of the run's next attempt: as specified, unless exclude_gpu reduced it."""
    request = spec_of(run).gpus
    return run.gpu_count or len(request.uuids) or request.count


def is_recovering(run: Run) -> bool:
    """Return whether the run continues after an incident: only recovery sets the next attempt's
    time."""
    return run.not_before is not None


ShareOf = Callable[[Run, GpuAvailability], int]
"""Number of runs that may use a GPU at a time, where their parts leave room; 1: exclusive use."""


def shares_by_fraction(run: Run, _gpu: GpuAvailability) -> int:
    """The rule for runs of no study: as many as their parts leave room for."""
    spec = spec_of(run)
    if spec.study_id is None and spec.gpus.share < 1:
        return sys.maxsize
    return 1


def schedule(
    waiting: WaitingRuns,
    gpus: Sequence[GpuAvailability] | None,
    *,
    cpu_limit: int = sys.maxsize,
    cpu_running: int = 0,
    places_gpus: Callable[[Run], bool] = lambda _: True,
    share_of: ShareOf = shares_by_fraction,
) -> list[Start | Wait]:
    """Decide for each run of the queue, in order, whether it starts now.

    - Runs that still lease GPUs come first: no other run can have those GPUs.
    - A waiting run is promised every GPU that it could use, so that small runs never starve a large
      one. A run that the GPUs in service can never satisfy is promised none.
    - A recovering run returns to the GPUs that it leases. Those that are lost, in quarantine or
      used by others are replaced.
    - A run that takes a part of a GPU shares it with others while the parts leave room, a trial only
      with trials of its study, up to ``share_of``, and not if an earlier run waits for it.
    - Runs without GPUs start while there is room for their ranks; one that waits holds back later
      ones, and one with more ranks than the limit starts when no other runs.
    - While the queue is paused, only recovering runs start. A run that waits for another one, or for a time, is
      promised nothing.

    Args:
        gpus: None before the sampler's first report.
        cpu_limit: the ranks of runs without GPUs that this machine takes at a time.
        cpu_running: those that run.
        places_gpus: False for a run on another machine, which waits for nothing here.
        share_of: the number of runs that may use a GPU at a time.
    """
    outcomes: list[Start | Wait] = []
    pool = _GpuPool(gpus or (), share_of)
    promised_to: dict[str, str] = {}  # by GPU, the first run that gets it or waits for it
    for run in sorted(waiting.runs, key=lambda run: not pool.has_lease_of(run)):
        outcome = _decide_beforehand(run, waiting, places_gpus=places_gpus, are_gpus_known=gpus is not None)
        if outcome is None and gpus_wanted(run):
            outcome = _place_on_gpus(run, pool, promised_to)
            for uuid in _uuids_of(outcome):
                promised_to.setdefault(uuid, run.run_id)
        elif outcome is None:
            outcome = _place_on_cpu(run, cpu_limit, cpu_running)
            if isinstance(outcome, Start):
                cpu_running += spec_of(run).nproc
            else:
                cpu_running = cpu_limit  # it holds back later ones
        outcomes.append(outcome)
    return outcomes


def _decide_beforehand(
    run: Run, waiting: WaitingRuns, *, places_gpus: Callable[[Run], bool], are_gpus_known: bool
) -> Start | Wait | None:
    """Decide for a run whatever is free on this machine; None if that matters.

    Args:
        places_gpus: as for `schedule`.
        are_gpus_known: the sampler has reported.
    """
    if waiting.is_paused and not is_recovering(run):
        return Wait(run, PAUSED)
    if run.run_id in waiting.not_yet:
        return Wait(run, waiting.not_yet[run.run_id])
    if not places_gpus(run):
        return Start(run, ())
    if gpus_wanted(run) and not are_gpus_known:
        return Wait(run, "waits for the first look at the GPUs")
    return None


def _place_on_cpu(run: Run, cpu_limit: int, cpu_running: int) -> Start | Wait:
    """Decide for one run without GPUs; the numbers are of ranks, as for `schedule`."""
    if not cpu_running or cpu_running + spec_of(run).nproc <= cpu_limit:
        return Start(run, ())
    return Wait(run, f"waits: {cpu_limit} ranks of runs without GPUs run at a time on this machine")


def _uuids_of(outcome: Start | Wait) -> Iterable[str]:
    """The GPUs that a run gets now or is promised."""
    if isinstance(outcome, Start):
        return outcome.uuids
    return outcome.promised


class _GpuPool(NamedTuple):
    """The GPUs, and the rule for sharing them."""

    gpus: Sequence[GpuAvailability]
    share_of: ShareOf

    def others_on(self, gpu: GpuAvailability, run: Run) -> list[str]:
        """The runs whose leases keep this one from the GPU; none if it may share it."""
        others = [holder for holder in gpu.holders if holder != run.run_id]
        spec = spec_of(run)
        is_of_group = gpu.shared_by is not None and gpu.shared_by == (spec.study_id or "")
        if not others or not is_of_group or len(others) >= self.share_of(run, gpu):
            return others
        used_share = sum(gpu.shares.get(holder, 1.0) for holder in others)
        if used_share + spec.gpus.share > 1 + _ROUNDING:
            return others
        return []

    def has_lease_of(self, run: Run) -> bool:
        return any(not self.others_on(gpu, run) for gpu in self.held_by(run))

    def held_by(self, run: Run) -> list[GpuAvailability]:
        return [gpu for gpu in self.gpus if run.run_id in gpu.holders]

    def blocked_by(self, gpu: GpuAvailability, run: Run) -> str | None:
        """The reason why the run cannot start on a GPU now; None if it can."""
        if gpu.blocked_by is not None:
            return gpu.blocked_by
        others = self.others_on(gpu, run)
        if len(others) == 1:
            return f"is used by {others[0]}"
        if others:
            noun = "trials" if gpu.shared_by else "runs"
            return f"is shared by {len(others)} {noun}"
        request = spec_of(run).gpus
        if gpu.desktop is not None and not request.beside_desktop:
            return gpu.desktop
        needed = request.memory_bytes
        if needed is not None and gpu.free_bytes is not None and gpu.free_bytes < needed:
            return f"has {gpu.free_bytes / 2**30:.1f} of {needed / 2**30:.1f} GiB free"
        return None


def _place_on_gpus(run: Run, pool: _GpuPool, promised_to: Mapping[str, str]) -> Start | Wait:
    """Decide for one run that needs GPUs.

    ``promised_to`` has the run that each promised GPU is promised to, by UUID.
    """
    gpu_count = gpus_wanted(run)
    held_gpus = pool.held_by(run)
    candidates = held_gpus + _eligible_others(run, pool, held_gpus)
    blocks = _blocks(run, candidates, pool, promised_to)
    free = [gpu for gpu in candidates if blocks[gpu.uuid] is None]
    # Its own GPUs are free within seconds: it waits for them instead of moving to others.
    free_own = [gpu for gpu in held_gpus if gpu in free]
    free_soon = [gpu for gpu in held_gpus if gpu in free or gpu.is_settling]
    if len(free_own) < gpu_count <= len(free_soon):
        return Wait(run, _wait_reason(held_gpus, blocks, gpu_count))
    if len(free) >= gpu_count:
        free.sort(key=lambda gpu: _preference(run, gpu))
        chosen = {gpu.uuid for gpu in free[:gpu_count]}
        lost = tuple(f"{gpu.name} {blocks[gpu.uuid]}" for gpu in held_gpus if blocks[gpu.uuid] is not None)
        uuids = tuple(gpu.uuid for gpu in pool.gpus if gpu.uuid in chosen)
        return Start(run, uuids, replaced=lost)
    lacks_own = is_recovering(run) and any(gpu.out_of_service for gpu in held_gpus)
    return _wait_for_gpus(run, candidates, _wait_reason(candidates, blocks, gpu_count), lacks_own=lacks_own)


def _eligible_others(run: Run, pool: _GpuPool, held_gpus: Sequence[GpuAvailability]) -> list[GpuAvailability]:
    """The GPUs that the run does not hold and that its specification allows."""
    listed_uuids = spec_of(run).gpus.uuids
    others = [gpu for gpu in pool.gpus if gpu not in held_gpus]
    if not listed_uuids:
        return others
    return [gpu for gpu in others if gpu.uuid in listed_uuids]


def _blocks(
    run: Run, candidates: Sequence[GpuAvailability], pool: _GpuPool, promised_to: Mapping[str, str]
) -> dict[str, str | None]:
    """The reason why the run cannot start now on each of the GPUs, by UUID; None for those that are free."""
    blocks = {}
    for gpu in candidates:
        reason = pool.blocked_by(gpu, run)
        if reason is None and gpu.uuid in promised_to:
            reason = f"is promised to {promised_to[gpu.uuid]}"
        blocks[gpu.uuid] = reason
    return blocks


def _preference(run: Run, gpu: GpuAvailability) -> tuple[int, ...]:
    """A sort key of the free GPUs of a run; the first ones are taken.

    Its own come first, then unused ones, those that few share, and cool and healthy ones. For a part of one, those
    with more free memory precede, in GiB, since a run that has just started holds none yet.
    """
    spec = spec_of(run)
    free_gibibytes = 0
    if spec.gpus.share < 1 and spec.study_id is None:
        free_gibibytes = (gpu.free_bytes or 0) >> 30
    return (run.run_id not in gpu.holders, -free_gibibytes, len(gpu.holders), *gpu.preference)


def _wait_for_gpus(run: Run, candidates: Sequence[GpuAvailability], reason: str, *, lacks_own: bool) -> Wait:
    """Let a run wait. If enough large GPUs are in service, it is promised all of those.

    Args:
        lacks_own: it recovers, and GPUs that it leases are out of service.
    """
    needed_bytes = spec_of(run).gpus.memory_bytes or 0
    large = [gpu for gpu in candidates if gpu.total_bytes is None or gpu.total_bytes >= needed_bytes]
    in_service = sum(not gpu.out_of_service for gpu in large)
    promised: frozenset[str] = frozenset()
    if in_service >= gpus_wanted(run):
        promised = frozenset(gpu.uuid for gpu in large)
    remaining = in_service if lacks_own else None
    return Wait(run, reason, remaining, promised)


def _wait_reason(candidates: Sequence[GpuAvailability], blocks: Mapping[str, str | None], gpu_count: int) -> str:
    """``1 of 2 GPUs free · GPUs 0–3 used by vit-1; GPU 4 lost``: what is missing first, as lists cut the end.

    ``blocks`` has the reason for each blocked GPU, by UUID.
    """
    by_reason: dict[str, list[GpuAvailability]] = {}
    for gpu in candidates:
        if (reason := blocks[gpu.uuid]) is not None:
            by_reason.setdefault(reason, []).append(gpu)
    parts: list[str] = []
    for reason, gpus in by_reason.items():
        parts += _blocked_words(gpus, reason.removeprefix("is "))
    free = sum(blocks[gpu.uuid] is None for gpu in candidates)
    reasons = "; ".join(parts)
    return " · ".join(filter(None, (f"{free} of {count_of(gpu_count, 'GPU')} free", reasons)))


def _blocked_words(gpus: Sequence[GpuAvailability], why: str) -> list[str]:
    """``GPUs 0–3 used by vit-1``: what blocks some GPUs; those without an index each by itself."""
    indices = sorted(gpu.index for gpu in gpus if gpu.index is not None)
    if len(indices) < 2:
        return [f"{gpu.name} {why}" for gpu in gpus]
    together = f"GPUs {index_ranges(indices)} {re.sub('^has ', 'have ', why)}"
    return [together, *(f"{gpu.name} {why}" for gpu in gpus if gpu.index is None)]
