"""Which queued run starts on which GPUs: a pure function of the queue and of how each GPU stands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gputui.runs.repository import RunRecord

# A foreign process below this is a display server or a context that shares a GPU peacefully.
FOREIGN_BUSY_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class GpuStanding:
    """One GPU as the scheduler sees it. ``obstacle`` says why nothing may start on it now, None when it may;
    ``out_of_service`` that waiting does not help; ``holder`` is the run that leases it; ``free_bytes`` is None when the
    driver does not say."""

    uuid: str
    index: int
    holder: str | None = None
    obstacle: str | None = None
    free_bytes: int | None = None
    out_of_service: bool = False


@dataclass(frozen=True, slots=True)
class Start:
    """This run starts now, on these GPUs."""

    run: RunRecord
    uuids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Wait:
    """This run waits, and why."""

    run: RunRecord
    reason: str


PAUSED = "waits for the queue, which is paused; gputui queue resume opens it"


def schedule(
    queue: Sequence[RunRecord], gpus: Sequence[GpuStanding] | None, *, paused: bool = False
) -> list[Start | Wait]:
    """Strictly in the order of ``queue``. A run that must wait holds back later ones from any GPU that it could use
    itself, so that a large run is never starved by small ones; one that the GPUs in service could never satisfy holds
    back nobody. Runs without GPUs start at once.

    ``gpus`` is None while the sampler has not reported yet. While ``paused``, only runs start that go on after an
    incident.
    """
    outcome: list[Start | Wait] = []
    taken: set[str] = set()
    for run in queue:
        if paused and not goes_on(run):
            outcome.append(Wait(run, PAUSED))
            continue
        request = run.spec.gpus
        wanted = len(request.uuids) or request.count
        if not wanted:
            outcome.append(Start(run, ()))
            continue
        if gpus is None:
            outcome.append(Wait(run, "waits for the first look at the GPUs"))
            continue
        own = [gpu for gpu in gpus if gpu.holder == run.run_id]
        candidates = own or [gpu for gpu in gpus if not request.uuids or gpu.uuid in request.uuids]
        fitting = [gpu for gpu in candidates if _fits(gpu, run, taken)]
        if len(fitting) >= (len(own) or wanted):
            chosen = tuple(gpu.uuid for gpu in fitting[: len(own) or wanted])
            taken.update(chosen)
            outcome.append(Start(run, chosen))
        else:
            in_service = [gpu for gpu in candidates if not gpu.out_of_service]
            if own or len(in_service) >= wanted:
                taken.update(gpu.uuid for gpu in candidates)
            outcome.append(Wait(run, _why(candidates, fitting, wanted, run)))
    return outcome


def goes_on(run: RunRecord) -> bool:
    """Whether the run goes on by itself after an incident: only recovery says when the next attempt may start."""
    return run.not_before is not None


def _fits(gpu: GpuStanding, run: RunRecord, taken: set[str]) -> bool:
    if gpu.uuid in taken or gpu.obstacle is not None or gpu.holder not in (None, run.run_id):
        return False
    needed = run.spec.gpus.memory_bytes
    return needed is None or gpu.free_bytes is None or gpu.free_bytes >= needed


def _why(candidates: Sequence[GpuStanding], fitting: Sequence[GpuStanding], wanted: int, run: RunRecord) -> str:
    noun = "GPU" if wanted == 1 else "GPUs"
    obstacles = [f"GPU {gpu.index} {_obstacle(gpu, run)}" for gpu in candidates if gpu not in fitting]
    detail = "; ".join(obstacles[:3]) + ("; …" if len(obstacles) > 3 else "")
    return f"waits for {wanted} {noun} ({len(fitting)} free" + (f"; {detail})" if detail else ")")


def _obstacle(gpu: GpuStanding, run: RunRecord) -> str:
    if gpu.obstacle is not None:
        return gpu.obstacle
    if gpu.holder not in (None, run.run_id):
        return f"is leased to {gpu.holder}"
    needed = run.spec.gpus.memory_bytes
    if needed is not None and gpu.free_bytes is not None and gpu.free_bytes < needed:
        return f"has {gpu.free_bytes / 2**30:.1f} of {needed / 2**30:.1f} GiB free"
    return "is promised to an earlier run"
