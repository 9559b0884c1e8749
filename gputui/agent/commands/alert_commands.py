"""Commands about alerts: acknowledge alerts, and silence a rule for a while."""

from __future__ import annotations

from gputui.agent.commands.handlers import RefusedError, answer
from gputui.agent.lifecycle.supervisor import Supervisor
from gputui.core import units
from gputui.recovery.watch.engine import MAX_SECONDS
from gputui.recovery.watch.rules import RULES
from gputui.runs.repository import transaction
from gputui.store import alerts
from gputui.store.alerts import ANY_SUBJECT, AlertView
from gputui.store.commands import PendingCommand
from gputui.store.events import add_event


def acknowledge(supervisor: Supervisor, command: PendingCommand) -> None:
    """Acknowledge the alerts of ``ids``, or all active ones."""
    now = supervisor.context.now()
    wanted = _wanted(supervisor, command)
    with transaction(supervisor.context.connection) as connection:
        for alert in wanted:
            alerts.acknowledge(connection, alert.alert_id, now=now, actor=command.actor)
        subject = wanted[0].sentence if len(wanted) == 1 else f"{len(wanted)} alerts"
        if wanted:
            runs = {alert.run_id for alert in wanted}
            run_id = runs.pop() if len(runs) == 1 else None
            message = f"{command.actor} acknowledged {subject}"
            add_event(connection, "alert_acknowledged", message, now=now, subject="alert", run_id=run_id)
        text = f"acknowledged: {subject}" if wanted else "no alert is unacknowledged"
        answer(supervisor, command, {"ids": [alert.alert_id for alert in wanted], "text": text})


def silence(supervisor: Supervisor, command: PendingCommand) -> None:
    """Silence a rule for ``seconds``: for the subject of the alert ``id``, or with ``rule`` for all subjects. 0 ends a
    silence."""
    now = supervisor.context.now()
    seconds = command.args.get("seconds")
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds <= MAX_SECONDS:
        raise RefusedError("say for how long: seconds from 0 to 30 days")
    if command.args.get("rule") is not None:
        name = str(command.args["rule"])
        if name not in RULES:
            raise RefusedError(f"there is no rule {name!r}; gputui alerts rules lists them")
        rule, subject_id, whose = name, ANY_SUBJECT, "everywhere"
        kind: str = RULES[name].subject
    else:
        alert = _one(supervisor, command.args.get("id"))
        rule, kind, subject_id, whose = alert.rule, alert.subject_kind, alert.subject_id, f"for {alert.subject_name}"
    title = RULES[rule].title if rule in RULES else rule
    does = f"silenced for {units.duration(seconds)}" if seconds else "no longer silenced"
    with transaction(supervisor.context.connection) as connection:
        count = alerts.silence(connection, rule, kind, subject_id, until=now + seconds, actor=command.actor)
        text = f"{title} {whose} is {does}"
        add_event(connection, "alert_silenced", f"{text} by {command.actor}", now=now, key=rule, subject="alert")
        result = {"rule": rule, "subject": kind, "subject_id": subject_id, "silenced": count, "text": text}
        answer(supervisor, command, result)


def _wanted(supervisor: Supervisor, command: PendingCommand) -> list[AlertView]:
    ids = command.args.get("ids")
    if ids is None:
        return [alert for alert in alerts.lasting(supervisor.context.connection) if alert.acknowledged_at is None]
    if not isinstance(ids, list):
        raise RefusedError("say which alerts, by their numbers")
    return [_one(supervisor, alert_id) for alert_id in ids]


def _one(supervisor: Supervisor, alert_id: object) -> AlertView:
    is_number = isinstance(alert_id, int) and not isinstance(alert_id, bool)
    alert = alerts.one(supervisor.context.connection, alert_id) if is_number and isinstance(alert_id, int) else None
    if alert is None:
        raise RefusedError(f"there is no alert {alert_id}; gputui alerts lists them")
    return alert
