"""Which queued run starts on which GPUs: a pure function of the queue and the availability of each GPU."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from gputui.charts.units import index_ranges
from gputui.runs.spec import spec_of
from gputui.store.runs import Run

# A foreign process below this is a display server or a context that shares a GPU peacefully.
FOREIGN_BUSY_BYTES = 1 << 30
LEAST_CPU_RANKS = 16
_PLURALS = {"is": "are", "has": "have", "still holds": "still hold"}


@dataclass(frozen=True, slots=True)
class GpuAvailability:
    """One GPU as the scheduler sees it: one that the driver lists, or one that it does not list although a run leases
    it, which has no ``index``. ``blocked_by`` says why nothing may start on it now, None when it may;
    ``out_of_service`` that waiting does not help; ``is_settling`` that it ends by itself within seconds; ``holders``
    are the runs that lease it, trials of the study ``shared_by`` where they share it; ``free_bytes`` and
    ``total_bytes`` are None when the driver does not say."""

    uuid: str
    index: int | None
    holders: tuple[str, ...] = ()
    blocked_by: str | None = None
    free_bytes: int | None = None
    out_of_service: bool = False
    is_settling: bool = False
    total_bytes: int | None = None
    shared_by: str | None = None

    @property
    def name(self) -> str:
        return self.uuid if self.index is None else f"GPU {self.index}"


@dataclass(frozen=True, slots=True)
class Start:
    """This run starts now, on these GPUs. ``replaced`` says of each GPU that it held and does not get again why;
    ``taken_from`` names the runs whose leases on some of them end, each with a GPU."""

    run: Run
    uuids: tuple[str, ...]
    replaced: tuple[str, ...] = ()
    taken_from: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Wait:
    """This run waits, and why. ``in_service`` is set where a run continues after an incident and GPUs that it held are
    out of service, so that fewer than it needs are left: so many."""

    run: Run
    reason: str
    in_service: int | None = None


PAUSED = "waits for the queue, which is paused; gputui queue resume opens it"


def gpus_wanted(run: Run) -> int:
    """How many GPUs the run's next attempt has: what its specification asks for, unless exclude_gpu left fewer."""
    request = spec_of(run).gpus
    return run.gpu_count or len(request.uuids) or request.count


@dataclass(frozen=True, slots=True)
class CpuRoom:
    """How many ranks of runs without GPUs may run at a time, and how many do."""

    limit: int
    running: int = 0

    @classmethod
    def of(cls, cores: int, running: int) -> CpuRoom:
        """A rank for each core; on small machines more, for such runs may as well wait for a disk or a network."""
        return cls(max(cores, LEAST_CPU_RANKS), running)


ShareOf = Callable[[Run, GpuAvailability], int]
"""How many trials of the run's study may be on a GPU at a time, the run included; 1: it has the GPU alone."""


def schedule(
    queue: Sequence[Run],
    gpus: Sequence[GpuAvailability] | None,
    *,
    paused: bool = False,
    cpu: CpuRoom | None = None,
    places_gpus: Callable[[Run], bool] = lambda _: True,
    predecessor: Callable[[Run], str | None] = lambda _: None,
    share_of: ShareOf = lambda _run, _gpu: 1,
) -> list[Start | Wait]:
    """Strictly in the order of ``queue``, but that runs which still lease GPUs come first: no other run can have those,
    and they are given back only after another attempt. A run that must wait holds back later ones from any GPU that it
    could use itself, so that a large run is never starved by small ones; one that the GPUs in service could never
    satisfy blocks no other. A run that continues after an incident returns to the GPUs that it leases, and gets others
    for those that are lost, in quarantine or in use by others. Of runs that wait for GPUs which they lease from each
    other, so that none would ever start, the first gets what it needs. A trial shares a GPU only with others of its
    study, where ``share_of`` says so, and not with those of a GPU that an earlier run waits for. Runs without GPUs
    start while there is room for their ranks; one that waits for that holds back later ones without GPUs.

    ``places_gpus`` says of a run whether it runs here; where it does not, nothing of this machine is waited for.
    ``predecessor`` gives the reason why a run waits for another to succeed first; such a run blocks no other.
    ``gpus`` is None while the sampler has not reported yet. While ``paused``, only runs start that go on after an
    incident.
    """
    outcome: list[Start | Wait] = []
    taken: set[str] = set()
    ranks = 0 if cpu is None else cpu.running
    places = _Places(gpus or (), share_of)
    for run in sorted(queue, key=lambda run: not places.is_kept_for(run)):
        if paused and not goes_on(run):
            outcome.append(Wait(run, PAUSED))
        elif (why := predecessor(run)) is not None:
            outcome.append(Wait(run, why))
        elif not places_gpus(run):
            outcome.append(Start(run, ()))
        elif not gpus_wanted(run):
            # More ranks than there is ever room for have it to themselves.
            if cpu is None or not ranks or ranks + spec_of(run).nproc <= cpu.limit:
                ranks += spec_of(run).nproc
                outcome.append(Start(run, ()))
            else:
                ranks = cpu.limit
                outcome.append(
                    Wait(run, f"waits: {cpu.limit} ranks of runs without GPUs run at a time on this machine")
                )
        elif gpus is None:
            outcome.append(Wait(run, "waits for the first look at the GPUs"))
        else:
            outcome.append(_place(run, places, taken))
    return outcome if gpus is None else _without_deadlock(outcome, places)


@dataclass(frozen=True, slots=True)
class _Places:
    """The GPUs, and who may share one."""

    gpus: Sequence[GpuAvailability]
    share_of: ShareOf

    def is_open(self, gpu: GpuAvailability, run: Run) -> bool:
        """Whether its leases let the run have the GPU, alone or with others."""
        others = [holder for holder in gpu.holders if holder != run.run_id]
        if not others:
            return True
        is_fellow = gpu.shared_by is not None and gpu.shared_by == spec_of(run).study_id
        return is_fellow and len(others) < self.share_of(run, gpu)

    def is_kept_for(self, run: Run) -> bool:
        """Whether the run leases a GPU to which it may return."""
        return any(run.run_id in gpu.holders and self.is_open(gpu, run) for gpu in self.gpus)


def _without_deadlock(outcomes: list[Start | Wait], places: _Places) -> list[Start | Wait]:
    """The same, but that one run of those that wait for each other starts where it can: with all GPUs that they lease
    and no other run gets now."""
    gpus = places.gpus
    stuck = _deadlocked(outcomes, gpus)
    started = {uuid for outcome in outcomes if isinstance(outcome, Start) for uuid in outcome.uuids}
    holders = {gpu.uuid: gpu.holders for gpu in gpus}
    for run in stuck:
        others = {other.run_id for other in stuck} - {run.run_id}
        left = [replace(gpu, holders=tuple(one for one in gpu.holders if one not in others)) for gpu in gpus]
        placed = _place(run, replace(places, gpus=left), set(started))
        if isinstance(placed, Start):
            taken = tuple((holder, uuid) for uuid in placed.uuids for holder in holders[uuid] if holder in others)
            start = replace(placed, taken_from=taken)
            return [start if outcome.run is run else outcome for outcome in outcomes]
    return outcomes


def _deadlocked(outcomes: Sequence[Start | Wait], gpus: Sequence[GpuAvailability]) -> list[Run]:
    """The runs that go on after an incident and would wait for ever, were each to keep what it leases: what is in
    service and not leased by them will be free one day, and is not enough."""
    runs = [outcome.run for outcome in outcomes if isinstance(outcome, Wait) and goes_on(outcome.run)]
    stuck = [run for run in runs if any(run.run_id in gpu.holders for gpu in gpus)]
    while True:
        names = {run.run_id for run in stuck}
        left = [
            run
            for run in stuck
            if gpus_wanted(run)
            > sum(
                not gpu.out_of_service and (run.run_id in gpu.holders or names.isdisjoint(gpu.holders))
                for gpu in gpus
                if run.run_id in gpu.holders or not spec_of(run).gpus.uuids or gpu.uuid in spec_of(run).gpus.uuids
            )
        ]
        if len(left) == len(stuck):
            return stuck
        stuck = left


def _place(run: Run, places: _Places, taken: set[str]) -> Start | Wait:
    """What becomes of one run; adds to ``taken`` what later ones cannot have."""
    request, wanted, gpus = spec_of(run).gpus, gpus_wanted(run), places.gpus
    own = [gpu for gpu in gpus if run.run_id in gpu.holders]
    pool = own + [gpu for gpu in gpus if gpu not in own and (not request.uuids or gpu.uuid in request.uuids)]
    fitting = [gpu for gpu in pool if gpu.uuid not in taken and _fits(gpu, run, places)]
    # What nobody has is better than what is shared, and what few share better than what many do.
    fitting.sort(key=lambda gpu: (gpu not in own, len(gpu.holders)))
    fitting_own = [gpu for gpu in own if gpu in fitting]
    # Its own GPUs are as good as free: it waits for them rather than move to others.
    soon = [gpu for gpu in own if gpu in fitting or gpu.is_settling]
    if len(soon) >= wanted > len(fitting_own):
        return Wait(run, _why(own, fitting_own, wanted, run, places))
    if len(fitting) >= wanted:
        chosen = {gpu.uuid for gpu in fitting[:wanted]}
        taken.update(chosen)
        left = [f"{gpu.name} {_obstacle(gpu, run, places)}" for gpu in own if gpu not in fitting]
        return Start(run, tuple(gpu.uuid for gpu in gpus if gpu.uuid in chosen), tuple(left))
    in_service = [gpu for gpu in pool if not gpu.out_of_service and _is_large_enough(gpu, run)]
    if len(in_service) >= wanted:
        taken.update(gpu.uuid for gpu in pool)
    is_short = goes_on(run) and len(in_service) < wanted and any(gpu.out_of_service for gpu in own)
    return Wait(run, _why(pool, fitting, wanted, run, places), len(in_service) if is_short else None)


def goes_on(run: Run) -> bool:
    """Whether the run continues by itself after an incident: only recovery says when the next attempt may start."""
    return run.not_before is not None


def _fits(gpu: GpuAvailability, run: Run, places: _Places) -> bool:
    if gpu.blocked_by is not None or not places.is_open(gpu, run):
        return False
    needed = spec_of(run).gpus.memory_bytes
    return needed is None or gpu.free_bytes is None or gpu.free_bytes >= needed


def _is_large_enough(gpu: GpuAvailability, run: Run) -> bool:
    """Whether the run's memory could ever be free on the GPU."""
    needed = spec_of(run).gpus.memory_bytes
    return needed is None or gpu.total_bytes is None or gpu.total_bytes >= needed


def _why(
    candidates: Sequence[GpuAvailability], fitting: Sequence[GpuAvailability], wanted: int, run: Run, places: _Places
) -> str:
    noun = "GPU" if wanted == 1 else "GPUs"
    alike: dict[str, list[GpuAvailability]] = {}
    for gpu in candidates:
        if gpu not in fitting:
            alike.setdefault(_obstacle(gpu, run, places), []).append(gpu)
    obstacles = [words for obstacle, held in alike.items() for words in _held_words(held, obstacle)]
    detail = "; ".join(obstacles[:3]) + ("; …" if len(obstacles) > 3 else "")
    return f"waits for {wanted} {noun} ({len(fitting)} free" + (f"; {detail})" if detail else ")")


def _held_words(gpus: Sequence[GpuAvailability], obstacle: str) -> list[str]:
    """``GPU 0 is lost``, ``GPUs 0–3 are leased to vit-1``; GPUs without an index one by one."""
    indices = sorted(gpu.index for gpu in gpus if gpu.index is not None)
    words = [f"{gpu.name} {obstacle}" for gpu in gpus if gpu.index is None or len(indices) == 1]
    if len(indices) < 2:
        return words
    plural = re.sub(r"^(is|has|still holds)\b", lambda verb: _PLURALS[verb[0]], obstacle)
    return [f"GPUs {index_ranges(indices)} {plural}", *words]


def _obstacle(gpu: GpuAvailability, run: Run, places: _Places) -> str:
    if gpu.blocked_by is not None:
        return gpu.blocked_by
    if not places.is_open(gpu, run):
        others = [holder for holder in gpu.holders if holder != run.run_id]
        return f"is leased to {others[0]}" if len(others) == 1 else f"is shared by {len(others)} trials"
    needed = spec_of(run).gpus.memory_bytes
    if needed is not None and gpu.free_bytes is not None and gpu.free_bytes < needed:
        return f"has {gpu.free_bytes / 2**30:.1f} of {needed / 2**30:.1f} GiB free"
    return "is promised to an earlier run"
