"""Commands about the queue, GPUs and alerts."""

from __future__ import annotations

from typing import Any

from gputui.agent.commands.request import CommandRequest, RefusedError, Result
from gputui.core import units
from gputui.core.redaction import redact_text
from gputui.core.text import clean
from gputui.recovery.watch.rules import RULES
from gputui.store import alerts, queue
from gputui.store.alerts import ANY_SUBJECT, AlertView
from gputui.store.events import NewEvent, add_event
from gputui.store.hardware import clear, quarantine_by, quarantined
from gputui.store.run_states import RunState
from gputui.store.runs import Run, queued_runs


def clear_gpu(request: CommandRequest) -> Result:
    """End the quarantine of a GPU."""
    uuid = str(request.args.get("uuid") or "")
    if not clear(request.connection, uuid):
        raise RefusedError(f"{uuid} is not in quarantine; gputui gpus shows those that are")
    request.context.note("gpu_cleared", f"{uuid} was cleared by {request.actor}", key=uuid)
    return {"uuid": uuid}


def quarantine_gpu(request: CommandRequest) -> Result:
    """Set a GPU aside: runs on it continue, and no other one gets it."""
    uuid = str(request.args["uuid"])
    why = redact_text(clean(str(request.args["why"])))
    if uuid not in request.context.recorder.facts:
        raise RefusedError(f"there is no GPU {uuid}; gputui gpus lists them")
    if (before := quarantined(request.connection).get(uuid)) is not None:
        raise RefusedError(f"{uuid} is in quarantine already: {before.words}")
    quarantine_by(request.connection, uuid, request.actor, reason=why, now=request.context.now())
    text = f"{request.actor} put {uuid} into quarantine: {why}; gputui gpus --clear ends it"
    request.context.note("gpu_quarantined", text, key=uuid, severity="warning")
    return {"uuid": uuid}


def pause_queue(request: CommandRequest) -> Result:
    """Start no new runs until the queue is resumed; running and recovering runs continue."""
    context = request.context
    actor = request.actor
    if queue.pause(request.connection) is None:
        queue.set_pause(request.connection, actor=actor, now=context.now())
        context.note("queue_paused", f"the queue was paused by {actor}", severity="warning")
    return {"paused": True}


def resume_queue(request: CommandRequest) -> Result:
    if queue.pause(request.connection) is not None:
        queue.clear_pause(request.connection)
        request.context.note("queue_resumed", f"the queue was resumed by {request.actor}")
    return {"paused": False}


def move_in_queue(request: CommandRequest) -> Result:
    """Set a run's ``priority``, or move it to ``place``, which may raise the priority of other runs.

    A place is ``first``, ``last``, or one ``up`` or ``down``.
    """
    target = request.run()
    if target.state not in (RunState.QUEUED, RunState.RECOVERING):
        why = "only a run that waits has a place in the queue"
        raise RefusedError(f"{target.run_id} is {target.state}; {why}")
    priorities = _new_priorities(request, target)
    for run_id, new in priorities.items():
        queue.set_priority(request.connection, run_id, new)
        request.context.note("priority_set", f"{request.actor} gave it priority {new}", run_id)
    places = {entry.run_id: entry.position for entry in queue.entries(request.connection)}
    return {
        "id": target.run_id,
        "state": target.state,
        "priority": priorities.get(target.run_id, target.priority),
        "position": places.get(target.run_id),
    }


def _new_priorities(request: CommandRequest, target: Run) -> dict[str, int]:
    """The new priorities by run. Raises RefusedError."""
    place = request.args.get("place")
    priority = request.args.get("priority", target.priority)
    if place in ("up", "down"):
        if target.state is not RunState.QUEUED:
            why = "it continues by itself and is not in the queue"
            raise RefusedError(f"{target.run_id} is {target.state}; {why}")
        offset = -1 if place == "up" else 1
        return queue.priorities_to_move(queue.entries(request.connection), target.run_id, offset)
    others = [run.priority for run in queued_runs(request.connection) if run.run_id != target.run_id]
    if place == "first":
        priority = max([target.priority, *(number + 1 for number in others)])
    elif place == "last":
        priority = min([target.priority, *(number - 1 for number in others)])
    return {target.run_id: int(priority)}


def acknowledge(request: CommandRequest) -> Result:
    """Acknowledge the alerts of ``ids``, or all active ones."""
    now = request.context.now()
    ids = request.args.get("ids")
    actor = request.actor
    if ids is None:
        chosen = [alert for alert in alerts.lasting(request.connection) if alert.acknowledged_at is None]
    else:
        chosen = [_alert(request, alert_id) for alert_id in ids]
    if not chosen:
        return {"ids": [], "text": "no alert is unacknowledged"}
    for alert in chosen:
        alerts.acknowledge(request.connection, alert.alert_id, now=now, actor=actor)
    subject = f"{len(chosen)} alerts"
    if len(chosen) == 1:
        subject = chosen[0].sentence
    runs = {alert.run_id for alert in chosen}
    run_id = chosen[0].run_id if len(runs) == 1 else None
    text = f"{actor} acknowledged {subject}"
    event = NewEvent("alert_acknowledged", text, subject="alert", run_id=run_id)
    add_event(request.connection, event, now=now)
    return {"ids": [alert.alert_id for alert in chosen], "text": f"acknowledged: {subject}"}


def silence(request: CommandRequest) -> Result:
    """Silence a rule for ``seconds``; 0 ends a silence.

    It is silenced for the subject of the alert ``id``, or with ``rule`` for all subjects.
    """
    seconds = float(request.args["seconds"])
    rule = request.args.get("rule")
    if rule is None:
        alert = _alert(request, request.args.get("id"))
        kind = alert.subject_kind
        subject_id = alert.subject_id
        whose = f"for {alert.subject_name}"
        rule = alert.rule
    elif rule in RULES:
        kind = RULES[rule].subject
        subject_id = ANY_SUBJECT
        whose = "everywhere"
    else:
        raise RefusedError(f"there is no rule {rule!r}; gputui alerts rules lists them")
    title = RULES[rule].title
    actor = request.actor
    text = f"{title} {whose} is no longer silenced"
    if seconds:
        text = f"{title} {whose} is silenced for {units.duration(seconds)}"
    ends_at = request.context.now() + seconds
    count = alerts.silence(request.connection, rule, kind, subject_id, ends_at=ends_at, actor=actor)
    request.context.note_about("alert", "alert_silenced", f"{text} by {actor}", severity="info", key=rule)
    return {"rule": rule, "subject": kind, "subject_id": subject_id, "silenced": count, "text": text}


def _alert(request: CommandRequest, alert_id: Any) -> AlertView:
    alert = alerts.one(request.connection, alert_id)
    if alert is None:
        raise RefusedError(f"there is no alert {alert_id}; gputui alerts lists them")
    return alert
