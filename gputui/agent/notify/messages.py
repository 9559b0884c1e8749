"""The wording of messages, with the facts for commands. Pure.

A command finds the facts in its environment: ``GPUTUI_`` and the name of a field in capitals. Names and texts come
from outside, so every message is harmless text without secrets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from msgspec import Struct

from gputui.core import units
from gputui.core.redaction import redact_text
from gputui.core.text import clean, clip
from gputui.recovery.costs import Cost, in_words
from gputui.recovery.kinds import KINDS
from gputui.recovery.run_history import Failure
from gputui.recovery.story import causes_of
from gputui.runs.notices import Message, NoticeEvent
from gputui.store.alerts import AlertView
from gputui.store.events import Severity
from gputui.store.run_states import RunState
from gputui.store.runs import Run
from gputui.store.studies import StudyRecord

LINE_CELLS = 400  # a few lines of a phone
MOST_LINES = 10  # more is read in gputui itself
# More failed runs of an emptied queue are not named.
MOST_NAMED = 5

_EVENT_OF_STATE: dict[RunState, NoticeEvent] = {
    RunState.FAILED: "run_failed",
    RunState.SUCCEEDED: "run_succeeded",
    RunState.STOPPED: "run_stopped",
}


class RunNotice(Struct, frozen=True):
    """What a message says of a run.

    Attributes:
        at: UTC unix seconds.
        failure: the newest one.
        cost: that of all its failures.
        step: the last one.
        loss: its name and its newest value.
    """

    run: Run
    at: float
    host: str
    failure: Failure | None = None
    cost: Cost | None = None
    step: int | None = None
    loss: tuple[str, float] | None = None

    @property
    def name(self) -> str:
        """Its id, with the name that a person gave it."""
        if self.run.is_renamed:
            return f"{self.run.run_id} ({self.run.name})"
        return self.run.run_id

    @property
    def is_of_newest_attempt(self) -> bool:
        return self.failure is not None and self.failure.incident.attempt == self.run.attempt

    def last_words(self) -> str:
        """``step 1 200, loss 0.43``; "" if nothing is known."""
        parts = []
        if self.step is not None:
            parts.append(f"step {units.count(self.step)}")
        if self.loss is not None:
            name, loss = self.loss
            parts.append(f"{name} {units.metric_value(loss)}")
        return ", ".join(parts)

    def fields(self) -> dict[str, str]:
        """The facts of the run for commands."""
        run = self.run
        fields = {
            "run": run.run_id,
            "name": run.name,
            "profile": run.profile,
            "state": str(run.state),
            "incident": "",
            "step": "",
            "loss": "",
        }
        if self.failure is not None:
            fields["incident"] = self.failure.incident.kind
        if self.step is not None:
            fields["step"] = str(self.step)
        if self.loss is not None:
            _, loss = self.loss
            fields["loss"] = repr(loss)
        return fields


def run_ended(facts: RunNotice, cause: str) -> Message:
    """A run is over; ``cause`` is that of its last transition."""
    run = facts.run
    seconds = facts.run.trained_seconds(facts.at)
    event = _EVENT_OF_STATE[run.state]
    severity: Severity = "error" if event == "run_failed" else "info"
    title = f"{facts.name} {run.state}"
    if seconds is not None:
        title += f" after {units.duration(seconds)}"
    lines = [f"Cause: {cause}"]
    decision = None
    if facts.failure is not None and facts.is_of_newest_attempt:
        decision = facts.failure.decision
    if decision is not None:
        lines = [f"Cause: {causes_of(cause, decision)}", f"Recovery: {decision.reason}"]
    verb = "explain"
    if event == "run_succeeded":
        lines = [f"Outcome: {cause}"]
        verb = "show"
    more = f"gputui {verb} {run.run_id}"
    return _of_run(event, severity, title, lines=lines, facts=facts, more=more)


def run_recovered(facts: RunNotice) -> Message:
    """A run is running again after it failed."""
    assert facts.failure is not None
    incident = facts.failure.incident
    lines = [f"Cause: {incident.summary}"]
    if facts.failure.decision is not None:
        lines.append(f"Recovery: {facts.failure.decision.reason}")
    title = f"{facts.name} runs again ({KINDS[incident.kind].title})"
    return _of_run(
        "run_recovered", "warning", title, lines=lines, facts=facts, more=f"gputui explain {facts.run.run_id}"
    )


def _of_run(
    event: NoticeEvent, severity: Severity, title: str, lines: Sequence[str], facts: RunNotice, more: str
) -> Message:
    lines = [*lines]
    if facts.cost is not None and (cost := in_words(facts.cost)):
        lines.append(f"Cost of its failures: {cost}")
    if last := facts.last_words():
        lines.append(f"Last: {last}")
    fields = {"host": facts.host, "more": more, **facts.fields()}
    return _message(event, severity, title, lines, fields, run_id=facts.run.run_id)


def queue_empty(ended: Sequence[Run], host: str) -> Message:
    """No run is left that runs or waits; ``ended`` are those that ended since it was so before."""
    counts = Counter(str(run.state) for run in ended)
    summary = ", ".join(f"{count} {state}" for state, count in counts.most_common())
    failed = [run for run in ended if run.state is RunState.FAILED]
    lines = [f"{run.run_id}: {run.reason}" for run in failed[:MOST_NAMED]]
    if len(failed) > MOST_NAMED:
        lines.append(f"and {len(failed) - MOST_NAMED} more")
    fields = {"host": host, "more": "gputui ps", "ended": str(len(ended))}
    fields |= {str(state): str(counts[str(state)]) for state in _EVENT_OF_STATE}
    severity: Severity = "warning" if failed else "info"
    title = "The queue is empty"
    if summary:
        title += f": {summary}"
    return _message("queue_empty", severity, title, lines, fields)


def study_finished(study: StudyRecord, trials: Sequence[str], best: str, host: str) -> Message:
    """A study is over. ``trials`` are the states of its trials, ``best`` describes the best one."""
    counts = ", ".join(f"{count} {state}" for state, count in Counter(trials).most_common())
    facts = (("Outcome", study.reason), ("Trials", counts), ("Best", best))
    lines = [f"{name}: {text}" for name, text in facts if text]
    severities: dict[str, Severity] = {"failed": "error"}
    more = f"gputui study show {study.study_id}"
    fields = {"host": host, "more": more, "study": study.study_id, "state": str(study.state), "best": best}
    title = f"Study {study.study_id} {study.state}"
    return _message("study_finished", severities.get(study.state, "info"), title, lines, fields)


def alert_raised(alert: AlertView, host: str) -> Message:
    """An alert was raised."""
    return _of_alert(alert, alert.sentence, [f"What to do: {alert.remedy}"], host)


def alert_over(alert: AlertView, host: str) -> Message:
    """An alert is over."""
    lasted = units.duration(max(0.0, (alert.cleared_at or alert.raised_at) - alert.raised_at))
    parts = [f"It lasted {lasted}"]
    if alert.cleared_because:
        parts.append(alert.cleared_because)
    return _of_alert(alert, f"Over: {alert.sentence}", ["; ".join(parts)], host)


def _of_alert(alert: AlertView, title: str, lines: Sequence[str], host: str) -> Message:
    event: NoticeEvent = "gpu_lost" if alert.rule == "gpu_lost" else "alert"
    state = "raised" if alert.lasts else "over"
    fields = {
        "host": host,
        "more": "gputui alerts",
        "rule": alert.rule,
        "state": state,
        "subject": alert.subject_name,
        "run": alert.run_id or "",
    }
    return _message(event, alert.severity, title, lines, fields, run_id=alert.run_id)


def trial_message(host: str) -> Message:
    """The message of ``gputui notify test``."""
    title = f"gputui on {host}: this is a test"
    return Message("test", "info", title, ("All is well.",), {"event": "test", "title": title, "host": host})


def _message(
    event: NoticeEvent,
    severity: Severity,
    title: str,
    lines: Sequence[str],
    fields: dict[str, str],
    run_id: str | None = None,
) -> Message:
    """A message of bounded length; ``fields`` contain the ``host`` and the command that says ``more``."""
    title = _line(title)
    last_line = f"More on {fields['host']}: {fields['more']}"
    facts = {"event": event, "severity": severity, "title": title, **fields}
    return Message(
        event,
        severity,
        title,
        lines=(*map(_line, lines[: MOST_LINES - 1]), last_line),
        fields={name: _line(fact) for name, fact in facts.items()},
        run_id=run_id,
    )


def _line(text: str) -> str:
    return clip(clean(redact_text(text)), LINE_CELLS)
