"""Checks of the GPUs that a run asks for: existence, health, use and memory. Pure."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from gputui.core.text import clean
from gputui.core.units import bytes_text, count_of, index_ranges
from gputui.machine.gpu_model import GpuFacts
from gputui.runs.checks import CheckResult, graded
from gputui.runs.executors import Executors
from gputui.runs.gpu_conditions import GpuCondition
from gputui.runs.scheduler import Start, Wait, WaitingRuns, schedule
from gputui.runs.spec import GpuRequest, RunSpec
from gputui.runs.stored_spec import spec_of
from gputui.store.gpu_use import PastPeak
from gputui.store.run_states import RunState
from gputui.store.runs import Run

MARGIN = 0.95
"""The usable share of a GPU's memory; the CUDA context and fragmentation take the rest."""

_LENGTH_WORDS = {"step", "steps", "epoch", "epochs", "seed", "every", "interval", "warmup", "log"}

_PLURALS = {"is": "are", "has": "have", "waits": "wait", "answers": "answer"}


class GpuSituation(Struct, frozen=True):
    """The condition of this machine's GPUs, and its queue. ``promised`` says which queued run has a
    GPU next, by UUID."""

    conditions: Sequence[GpuCondition]
    waiting: WaitingRuns = WaitingRuns()
    promised: Mapping[str, str] = msgspec.field(default_factory=dict)

    @property
    def facts(self) -> list[GpuFacts]:
        return [gpu.facts for gpu in self.conditions]

    @property
    def excluded(self) -> set[str]:
        """The UUIDs of the GPUs that this home does not use."""
        return {gpu.facts.uuid for gpu in self.conditions if gpu.is_excluded}

    def condition(self, uuid: str) -> GpuCondition:
        return next(gpu for gpu in self.conditions if gpu.facts.uuid == uuid)

    def unusable_reason(self, gpu: GpuCondition, memory_bytes: int | None) -> str | None:
        """The reason why nothing can run on this GPU until somebody repairs or replaces it, or
        None."""
        if gpu.quarantine is not None:
            return f"{gpu.broken}; gputui gpus --clear {gpu.facts.index} ends it"
        total_bytes = gpu.facts.memory_total_bytes
        if gpu.broken is None and memory_bytes is not None and total_bytes is not None and total_bytes < memory_bytes:
            return "has {}, not {}".format(*_sizes(total_bytes, memory_bytes))
        return gpu.broken

    def busy_reason(self, gpu: GpuCondition, memory_bytes: int | None) -> str | None:
        """The reason why a run cannot start on this GPU now, or None."""
        if gpu.holders:
            return f"is used by {', '.join(map(clean, gpu.holders))}"
        if (reason := gpu.occupied or gpu.desktop) is not None:
            return reason
        if gpu.facts.uuid in self.promised:
            return f"is promised to {self.promised[gpu.facts.uuid]}"
        if memory_bytes is not None and gpu.free_bytes is not None and gpu.free_bytes < memory_bytes:
            return "has {} of {} free".format(*_sizes(gpu.free_bytes, memory_bytes))
        return None

    def is_free(self, gpu: GpuCondition, memory_bytes: int | None) -> bool:
        return self.unusable_reason(gpu, memory_bytes) is None and self.busy_reason(gpu, memory_bytes) is None

    def decision(self, spec: RunSpec) -> Start | Wait:
        """The scheduler's decision if a run joined the queue now."""
        stored = json.dumps(spec.to_json())
        run = Run(
            "",
            sys.maxsize,
            spec.name,
            profile=spec.name,
            state=RunState.QUEUED,
            attempt=0,
            params=spec.params,
            spec_json=stored,
            created_at=math.inf,
        )
        ahead = sum(earlier.priority >= spec.priority for earlier in self.waiting.runs)
        outcomes = self.schedule([*self.waiting.runs[:ahead], run, *self.waiting.runs[ahead:]])
        return next(outcome for outcome in outcomes if outcome.run is run)

    def schedule(self, queue: Sequence[Run]) -> list[Start | Wait]:
        """The scheduler's decisions for a queue on these GPUs."""
        executors = Executors()
        return schedule(
            self.waiting._replace(runs=tuple(queue)),
            [gpu.availability() for gpu in self.conditions],
            places_gpus=lambda run: executors.of(spec_of(run).target).places_gpus,
        )

    def promises(self) -> dict[str, str]:
        """The run that each GPU is promised to, by UUID."""
        promised: dict[str, str] = {}
        for outcome in self.schedule(self.waiting.runs):
            uuids = outcome.uuids if isinstance(outcome, Start) else outcome.promised
            promised |= {uuid: outcome.run.run_id for uuid in uuids if uuid not in promised}
        return promised


def _sizes(first_bytes: int, second_bytes: int) -> tuple[str, str]:
    """Two sizes, with more digits if they look the same: a GPU of 24 GB has 23.99 GiB."""
    sizes = bytes_text(first_bytes), bytes_text(second_bytes)
    if sizes[0] != sizes[1]:
        return sizes
    return (f"{first_bytes / 2**30:.2f} GiB", f"{second_bytes / 2**30:.2f} GiB")


def likely_gpus(spec: RunSpec, situation: GpuSituation) -> tuple[GpuFacts, ...]:
    """The GPUs that the run would get if it joined the queue now; none if it would wait."""
    outcome = situation.decision(spec)
    uuids = outcome.uuids if isinstance(outcome, Start) else ()
    return tuple(gpu for gpu in situation.facts if gpu.uuid in uuids)


def check_gpus(spec: RunSpec, situation: GpuSituation | None) -> CheckResult:
    """Check that the requested GPUs exist, work and are free."""
    result = _check_gpus(spec, situation)
    return replace(result, detail=result.detail + spec.gpus.origin_words)


def _check_gpus(spec: RunSpec, situation: GpuSituation | None) -> CheckResult:
    request = spec.gpus
    if not request.count:
        return CheckResult("gpus", "skip", "a CPU run, no GPU is asked for")
    if situation is None:
        return CheckResult("gpus", "skip", "which GPUs there are is not known", "see gputui doctor")
    candidates = _candidates(request, situation)
    missing = set(request.uuids) - {gpu.facts.uuid for gpu in candidates}
    if missing:
        return CheckResult("gpus", "fail", f"{', '.join(sorted(missing))} does not exist", "choose others with --gpus")
    reasons = {gpu.facts.index: situation.unusable_reason(gpu, request.memory_bytes) for gpu in candidates}
    broken = {index: reason for index, reason in reasons.items() if reason is not None}
    usable = len(candidates) - len(broken)
    if usable < request.count:
        counted = f"{usable} of {request.count} GPUs can be used"
        return CheckResult("gpus", "fail", _sentence(counted, broken), "ask for others with --gpus")
    outcome = situation.decision(spec)
    if isinstance(outcome, Wait):
        return CheckResult("gpus", "warn", outcome.reason, "it joins the queue, or choose other GPUs")
    return _check_start(spec, [gpu for gpu in situation.conditions if gpu.facts.uuid in outcome.uuids])


def _check_start(spec: RunSpec, chosen: Sequence[GpuCondition]) -> CheckResult:
    """Check a start on these GPUs now."""
    starts = f"starts now on GPU{'s' * (len(chosen) > 1)} {index_ranges(sorted(gpu.facts.index for gpu in chosen))}"
    if spec.nproc > spec.gpus.count:
        detail = f"{starts} with {spec.nproc} processes; NCCL refuses two on one GPU"
        return CheckResult("gpus", "warn", detail, "write nproc: gpus, or use a backend other than NCCL")
    warnings = {gpu.facts.index: gpu.warning for gpu in chosen if gpu.warning is not None}
    if warnings:
        remedy = "gputui doctor and gputui alerts say what to do"
        return CheckResult("gpus", "warn", _sentence(starts, warnings), remedy)
    return CheckResult("gpus", "pass", starts)


def _candidates(request: GpuRequest, situation: GpuSituation) -> list[GpuCondition]:
    """The GPUs that the request allows, in the requested order, else by index."""
    by_uuid = {gpu.facts.uuid: gpu for gpu in situation.conditions}
    if request.uuids:
        return [by_uuid[uuid] for uuid in request.uuids if uuid in by_uuid]
    return sorted(situation.conditions, key=lambda gpu: gpu.facts.index)


def _sentence(first: str, by_index: Mapping[int, str]) -> str:
    """``1 of 2 GPUs can be used; GPUs 0–3 are in MIG mode; GPU 5 has 20 GiB, not 60 GiB``."""
    indices: dict[str, list[int]] = {}
    for index, why in by_index.items():
        indices.setdefault(why, []).append(index)
    parts = [first]
    for why, alike in indices.items():
        verb, _, rest = why.partition(" ")
        if len(alike) > 1:
            parts.append(f"GPUs {index_ranges(sorted(alike))} {_PLURALS.get(verb, verb)} {rest}")
        else:
            parts.append(f"GPU {alike[0]} {why}")
    return "; ".join(parts)


class Expectation(Struct, frozen=True):
    """The expected peak per GPU in bytes, the number of runs behind it, and whether it was
    extrapolated from other batch sizes."""

    peak_bytes: int
    run_count: int
    is_scaled: bool


def check_memory(past: Sequence[PastPeak], spec: RunSpec, situation: GpuSituation | None) -> CheckResult:
    """Check whether the run fits into its smallest GPU, by what earlier runs of its profile took."""
    if not spec.gpus.count:
        return CheckResult("memory", "skip", "a CPU run takes no GPU memory")
    batch_name, batch = _batch_of(spec)
    for peak in past:
        size = _batch(peak.params.get(batch_name))
        if peak.ran_out and batch and size and size <= batch and _is_like(peak, spec, batch_name):
            message = f"{peak.run_id} ran out of GPU memory with {batch_name} {size}"
            return CheckResult("memory", "warn", message, f"lower {batch_name}, or leave it to recovery")
    expected = expect(past, spec)
    if expected is None:
        return CheckResult("memory", "skip", "unknown: no earlier run of this profile measured its GPU memory")
    runs = count_of(expected.run_count, "earlier run")
    how = f"expected from {runs}"
    if expected.is_scaled:
        how += " with another batch size"
    total_bytes = None if situation is None else _smallest_bytes(spec, situation)
    if total_bytes is None:
        return CheckResult("memory", "skip", f"{bytes_text(expected.peak_bytes)} per GPU {how}")
    detail = f"{bytes_text(expected.peak_bytes)} of {bytes_text(total_bytes)} per GPU {how}"
    remedy = f"lower {batch_name}" if batch_name else "choose GPUs with more memory"
    return graded("memory", detail, remedy, warns=expected.peak_bytes > total_bytes * MARGIN)


def expect(past: Sequence[PastPeak], spec: RunSpec) -> Expectation | None:
    """Predict this run's peak from attempts that differ at most in the batch size and in parameters
    that do not matter.

    With the same batch size it is the largest peak. Otherwise memory is assumed to be linear in the
    batch size: through the two nearest sizes, or proportional to the only one, which overestimates
    a larger batch. None without such attempts.
    """
    batch_name, batch = _batch_of(spec)
    alike = [
        (attempt, attempt.peak_bytes)
        for attempt in past
        if attempt.peak_bytes is not None and not attempt.ran_out and _is_like(attempt, spec, batch_name)
    ]
    if not alike:
        return None
    runs = len({attempt.run_id for attempt, _ in alike})
    if batch is None:
        return Expectation(max(peak_bytes for _, peak_bytes in alike), runs, is_scaled=False)
    peaks: dict[int, int] = {}
    for attempt, peak_bytes in alike:
        size = _batch(attempt.params.get(batch_name))
        if size is not None:
            peaks[size] = max(peaks.get(size, 0), peak_bytes)
    if batch in peaks:
        return Expectation(peaks[batch], runs, is_scaled=False)
    if not peaks:
        return None
    return Expectation(max(0, round(_peak_at(batch, peaks))), runs, is_scaled=True)


def _peak_at(batch: int, peaks: Mapping[int, int]) -> float:
    """The peak at a batch size, from those at the two nearest sizes, or at the only one."""
    near = sorted(peaks, key=lambda size: abs(size - batch))[:2]
    if len(near) == 1:
        (size,) = near
        return peaks[size] * max(1.0, batch / size)
    low, high = sorted(near)
    slope = max(0.0, (peaks[high] - peaks[low]) / (high - low))
    return peaks[low] + slope * (batch - low)


def _smallest_bytes(spec: RunSpec, situation: GpuSituation) -> int | None:
    """The memory of the smallest GPU that the run would get, of any GPU if none is free."""
    gpus = likely_gpus(spec, situation) or situation.facts
    return min((gpu.memory_total_bytes for gpu in gpus if gpu.memory_total_bytes is not None), default=None)


def _is_like(past: PastPeak, spec: RunSpec, batch_name: str) -> bool:
    """Return whether an earlier attempt is comparable: its integers and texts are the same.
    Fractions such as rates, and lengths such as numbers of steps, do not change the memory."""
    changed_by_recovery = {batch_name, spec.role("grad_accum", spec.params), spec.role("num_workers", spec.params)}
    for name, value in spec.params.items():
        if name in changed_by_recovery or isinstance(value, float) or name not in past.params:
            continue
        name_parts = set(name.lower().replace("-", "_").split("_"))
        if isinstance(value, int) and not isinstance(value, bool) and name_parts & _LENGTH_WORDS:
            continue
        if past.params[name] != value:
            return False
    return True


def _batch_of(spec: RunSpec) -> tuple[str, int | None]:
    """The name and the value of the run's batch size, "" and None without one."""
    name = spec.role("batch_size", spec.params) or ""
    return name, _batch(spec.params.get(name))


def _batch(value: object) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    return None
