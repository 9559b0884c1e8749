"""What a decision does besides starting again with other parameters: what is known of the machine goes into it; GPUs in
quarantine, gates, variables and messages come out of it."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from gputui.agent.health.gpu_faults import hardware_evidence
from gputui.agent.lifecycle.run_files import ResolvedRun
from gputui.agent.lifecycle.scheduler import GpuAvailability
from gputui.config import Workspace
from gputui.recovery.classify import Incident
from gputui.recovery.evidence import Observation
from gputui.recovery.kinds import KINDS
from gputui.recovery.machine_actions import MachineContext, ranks
from gputui.recovery.policies import NoticeTarget
from gputui.recovery.policy import RecoveryPlan
from gputui.redaction import redact_text
from gputui.runs import next_attempt, notices, repository
from gputui.runs.command import checkpoint_directory
from gputui.runs.notices import Way
from gputui.runs.spec import spec_of
from gputui.store.events import add_event
from gputui.store.hardware import quarantine
from gputui.store.runs import Attempt, Run


def seen_by_driver(
    connection: sqlite3.Connection,
    run: Run,
    attempt: Attempt,
    exit_record: Mapping[str, Any] | None,
    ended_at: float,
) -> tuple[Observation, ...]:
    """What the driver said of the attempt's GPUs while it ran. A lost GPU is why gputui itself asked an attempt to end
    that no person did."""
    nproc = ranks(spec_of(run), len(attempt.gpus))
    found = hardware_evidence(connection, attempt, nproc, ended_at=ended_at)
    was_asked = bool((exit_record or {}).get("stop_requested"))
    return tuple(replace(one, ended_run=True) if was_asked and one.kind == "gpu_lost" else one for one in found)


def surroundings(
    workspace: Workspace, resolved: ResolvedRun, attempt: Attempt, gpus: Sequence[GpuAvailability]
) -> MachineContext:
    """What a decision needs to know of the machine."""
    spec, run_dir = resolved.spec, workspace.run_dir(attempt.run_id)
    folder = checkpoint_directory(spec, run_dir)
    needed = spec.gpus.memory_bytes
    spares = [
        gpu.uuid
        for gpu in gpus
        if gpu.holder is None
        and gpu.blocked_by is None
        and gpu.uuid not in attempt.gpus
        and (needed is None or gpu.free_bytes is None or gpu.free_bytes >= needed)
    ]
    return MachineContext(
        gpus=attempt.gpus,
        # A profile that names its GPUs means those.
        spares=() if spec.gpus.uuids else tuple(spares),
        notifies=resolved.notice is not None,
        no_pruning=None
        if folder is None or folder.is_relative_to(run_dir)
        else "the checkpoints lie outside the run's folder, and may be another's",
    )


def take_effect(
    connection: sqlite3.Connection,
    run: Run,
    attempt: Attempt,
    incident: Incident,
    plan: RecoveryPlan,
    now: float,
) -> None:
    """Write what a plan does to GPUs and to the next attempt. Belongs into the transaction of the decision."""
    effect = plan.effect
    reason = f"{KINDS[incident.kind].title} under {run.run_id}"
    quarantine(connection, effect.quarantine, run_id=run.run_id, attempt=attempt.number, reason=reason, now=now)
    for uuid in effect.quarantine:
        connection.execute("DELETE FROM leases WHERE gpu_uuid = ? AND run_id = ?", (uuid, run.run_id))
        add_event(
            connection,
            "gpu_quarantined",
            f"{uuid} is in quarantine: {reason}; when it is well, gputui gpus --clear {uuid}",
            now=now,
            key=uuid,
            severity="error",
            run_id=run.run_id,
            attempt=attempt.number,
        )
    if plan.verdict == "retry":
        if effect.gpu_count is not None:
            repository.set_gpu_count(connection, run.run_id, effect.gpu_count)
        repository.take_leases(connection, run.run_id, effect.replacements, now)
        next_attempt.put(connection, run.run_id, env=effect.env, gates=[asdict(gate) for gate in effect.gates], now=now)


def owe_notices(
    connection: sqlite3.Connection,
    notice: NoticeTarget | None,
    run: Run,
    kind: str,
    summary: str,
    reason: str,
    *,
    verdict: str,
    now: float,
) -> None:
    """Write what whoever is named is to be told. Belongs into the transaction of what is told."""
    if notice is None:
        return
    does = "goes on" if verdict == "retry" else "stopped"
    reason = redact_text(reason)
    named: dict[Way, object] = {"command": notice.command, "webhook": notice.webhook}
    ways = [way for way, value in named.items() if value]
    message = {
        "text": f"{run.run_id} {does}: {summary}; {reason}",
        "run_id": run.run_id,
        "attempt": run.attempt,
        "kind": kind,
        "summary": summary,
        "verdict": verdict,
        "reason": reason,
        "at": now,
    }
    notices.put(connection, run.run_id, run.attempt, ways, message, now=now)
