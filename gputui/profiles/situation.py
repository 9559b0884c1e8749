"""The state of the machine's GPUs for the launch checks, from the database."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from gputui.core.text import clean
from gputui.machine.gpu_model import GpuFacts, unseen_use
from gputui.profiles.gpu_checks import GpuSituation
from gputui.recovery.watch.rules import RULES
from gputui.store.agent import AgentView
from gputui.store.alerts import AlertView
from gputui.store.hardware import GpuView, Quarantined
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


def holder_of(gpu: GpuView) -> str | None:
    """The user of a GPU in a few words; None if it is free."""
    if gpu.run_id is not None:
        return ", ".join(clean(run_id) for run_id in gpu.run_ids)
    if gpu.processes:
        process = max(gpu.processes, key=lambda each: each.memory_bytes or 0)
        return f"a process of {clean(process.user)}" if process.user else f"process {process.pid}"
    return None
