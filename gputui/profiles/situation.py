"""The state of the machine's GPUs for the launch checks, from the database."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from gputui.core.text import clean
from gputui.machine.gpu_model import GpuFacts, unseen_use
from gputui.profiles.gpu_checks import GpuSituation
from gputui.recovery.watch.rules import RULES
from gputui.runs.executors import Executors
from gputui.runs.scheduler import GpuAvailability, Start, Wait, schedule
from gputui.runs.spec import RunSpec, spec_of
from gputui.store.agent import AgentView
from gputui.store.alerts import AlertView
from gputui.store.hardware import GpuView, Quarantined
from gputui.store.run_states import RunState
from gputui.store.runs import Run
from gputui.store.series import GpuSample, GpuSlowSample


def situation_of(
    agent: AgentView | None,
    gpus: Sequence[GpuView],
    quarantined: Mapping[str, Quarantined],
    alerts: Iterable[AlertView],
) -> GpuSituation | None:
    """The state of the GPUs; None if no agent has read it yet. ``alerts`` are the active ones."""
    if agent is None or (agent.source is None and agent.gpu_problem is None):
        return None
    facts, samples, slow, in_use = [], {}, {}, {}
    for gpu in gpus:
        facts.append(msgspec.convert({**gpu.facts, "uuid": gpu.uuid, "index": gpu.index, "name": gpu.name}, GpuFacts))
        samples[gpu.uuid] = GpuSample(
            gpu.uuid,
            state="lost" if gpu.state == "lost" else "error" if gpu.state == "error" else "ok",
            memory_used_bytes=gpu.memory_used_bytes,
            memory_total_bytes=gpu.memory_total_bytes,
        )
        slow[gpu.uuid] = msgspec.convert({**gpu.slow, "uuid": gpu.uuid}, GpuSlowSample)
        holder = holder_of(gpu)
        use = unseen_use(gpu.own_used_bytes, gpu.utilization_percent) if holder is None else f"is used by {holder}"
        if use is not None:
            in_use[gpu.uuid] = use
    reasons = {uuid: clean(out.reason) for uuid, out in quarantined.items()}
    titles = {alert.subject_id: RULES[alert.rule].title for alert in alerts if alert.rule in RULES}
    return GpuSituation(facts, samples, slow, in_use, reasons, titles)


def decision(
    spec: RunSpec, queued: Sequence[Run], gpus: Sequence[GpuView], situation: GpuSituation, *, paused: bool
) -> Start | Wait:
    """The scheduler's decision if a run joined the queue now. ``gpus`` are those of the situation.
    Raises SpecError for a damaged run in the queue."""
    stored = json.dumps(spec.to_json())
    run = Run("", sys.maxsize, spec.name, spec.name, RunState.QUEUED, 0, spec.params, stored, math.inf)
    ahead = [each for each in queued if each.priority >= spec.priority]
    available = []
    for fact, gpu in zip(situation.facts, gpus, strict=True):
        broken, total, used = situation.unusable_reason(fact, None), gpu.memory_total_bytes, gpu.memory_used_bytes
        available.append(
            GpuAvailability(
                gpu.uuid,
                gpu.index,
                gpu.run_ids,
                broken or (None if gpu.run_ids else situation.in_use.get(gpu.uuid)),
                free_bytes=None if total is None or used is None else total - used,
                out_of_service=broken is not None,
                total_bytes=total,
            )
        )
    executors = Executors()

    def predecessor(each: Run) -> str | None:
        words = each.waiting_for or ""
        return next((words for name in spec_of(each).after if words.startswith(f"waits for {name}")), None)

    outcomes = schedule(
        [*ahead, run, *queued[len(ahead) :]],
        available,
        paused=paused,
        places_gpus=lambda each: executors.of(spec_of(each).target).places_gpus,
        predecessor=predecessor,
    )
    return next(each for each in outcomes if each.run is run)


def holder_of(gpu: GpuView) -> str | None:
    """The user of a GPU in a few words; None if it is free."""
    if gpu.run_id is not None:
        return ", ".join(clean(run_id) for run_id in gpu.run_ids)
    if gpu.processes:
        process = max(gpu.processes, key=lambda each: each.memory_bytes or 0)
        return f"a process of {clean(process.user)}" if process.user else f"process {process.pid}"
    return None
