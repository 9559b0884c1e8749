"""Alerts: evaluates the rules once a second, and writes what is raised and cleared.

In: the current state of GPUs and host in memory, the metrics of live attempts, NCCL's errors. Out:
rows, events and lines in the log. The successor of a killed agent continues the
active alerts, which are rows; it measures durations anew.
"""

from __future__ import annotations

import logging
import math
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, cast

from gputui.agent.context import AgentContext
from gputui.agent.lifecycle.live_attempt import LiveAttempt
from gputui.core import units
from gputui.core.text import clean
from gputui.core.yaml_forms.problems import ProfileError
from gputui.machine.gpu_model import GpuFacts
from gputui.profiles.home_files import SettingsFile, load_alerts
from gputui.recovery.kinds import kind_of
from gputui.recovery.watch.engine import AlertChange, Engine, Key, sentence
from gputui.recovery.watch.learning_rate import RateSchedule
from gputui.recovery.watch.machine import GpuMoment, GpuWatch, HostWatch
from gputui.recovery.watch.metric_history import OLD_SECONDS
from gputui.recovery.watch.overrides import Overrides, of_profile, with_overrides
from gputui.recovery.watch.rules import RULES, Observation, RuleSet, SubjectKind
from gputui.runs.repository import transaction
from gputui.runs.spec import RunSpec
from gputui.runs.stored_spec import spec_of
from gputui.store import alerts
from gputui.store.alerts import AlertView
from gputui.store.attempts import Attempt
from gputui.store.events import EventKind, NewEvent, add_event
from gputui.store.run_states import RunState
from gputui.store.runs import get_run

log = logging.getLogger(__name__)

# An older sample does not count as current: the larger of these seconds and sampling intervals.
SILENT_SECONDS = 5.0
SILENT_INTERVALS = 3.0  # one sample may be late, and one be lost
# Rules about a run's metrics; NCCL's errors also count for a run that has ended.
_METRIC_RULES = [rule.id for rule in RULES.values() if rule.subject == "run" and rule.id != "nccl_errors"]


class RunRules(NamedTuple):
    """The rules for one run and its GPUs, by its profile.

    ``peak`` is the learning rate parameter of ``attempt``.
    """

    rules: RuleSet
    schedule: RateSchedule | None = None
    attempt: int | None = None
    peak: float | None = None


class AlertSubject(NamedTuple):
    """The subject of alerts, with its name for people, the rules for it, and its run if any."""

    kind: SubjectKind
    id: str
    name: str
    rules: RuleSet
    run_id: str | None = None


class Transition(NamedTuple):
    """A change of an alert about a subject at a time (UTC unix seconds)."""

    change: AlertChange
    subject: AlertSubject
    at: float


@dataclass(slots=True)
class AlertEvaluation:
    """All alerts of one state directory.

    Attributes:
        living: returns the attempts that run.
        interval_seconds: that of samples.
        gpus: the watches of GPUs, by UUID.
        incident_id: the newest incident that was looked at.
        ids: the rows of the active alerts.
        unwritten: changes that are not stored yet.
        looked_at: the last evaluation (monotonic).
        elapsed: seconds since the evaluation before.
        machine: the rules as changed by the machine's file.
        runs: the rules for each followed run.
        file: the machine's file.
    """

    context: AgentContext
    living: Callable[[], Iterable[LiveAttempt]]
    interval_seconds: float = 1.0
    engine: Engine = field(default_factory=Engine)
    gpus: dict[str, GpuWatch] = field(default_factory=dict)
    host: HostWatch = field(default_factory=HostWatch)
    incident_id: int = 0
    ids: dict[Key, int] = field(default_factory=dict)
    unwritten: list[Transition] = field(default_factory=list)
    looked_at: float | None = None
    elapsed: float = 0.0
    machine: RuleSet = field(default_factory=lambda: RULES)
    runs: dict[str, RunRules] = field(default_factory=dict)
    file: SettingsFile[Overrides] = field(init=False)

    def __post_init__(self) -> None:
        self.file = SettingsFile(self.context.workspace.alerts, load_alerts)

    def begin(self) -> None:
        """Continue the active alerts of a former agent. Raises sqlite3.Error."""
        connection = self.context.connection
        # Incidents before the first evaluation raise no alert.
        newest = "SELECT coalesce(max(incident_id), 0) FROM incidents"
        (self.incident_id,) = connection.execute(newest).fetchone()
        for view in alerts.lasting(connection):
            key = Key(view.rule, cast("SubjectKind", view.subject_kind), view.subject_id)
            self.ids[key] = view.alert_id
        self.engine.adopt(self.ids)

    def poll(self) -> None:
        """Evaluate the rules; called once a second. Raises sqlite3.OperationalError if the database
        cannot be written; the changes are kept for the next turn."""
        self._follow_file()
        now = self.context.monotonic()
        self.elapsed = 0.0 if self.looked_at is None else now - self.looked_at
        self.looked_at = now
        training = self._training()
        host = self.context.recorder.host
        if host is not None and not self._is_fresh(host.at):
            host = None
        self._judge(AlertSubject("host", "", "the host", self.machine), self.host.observe(host, self.machine))
        self._judge_gpus(training)
        self._judge_runs(training)
        if self.unwritten:
            self._write()

    def _follow_file(self) -> None:
        """Apply the machine's file if it has changed; an invalid one leaves the rules unchanged."""
        version = self.file.newer()
        if version is None:
            return
        if isinstance(version.content, ProfileError):
            text = f"{version.content.problems[0]}; the alert rules stay as they were"
            self.context.note_about("alerts", "alert_rules_unusable", text)
            log.warning("%s", version.content)
        else:
            self.machine = with_overrides(RULES, version.content.rules, self.file.path.name)
            self.runs.clear()
        self.file.follow(version)

    def _rules_of(self, run_id: str, record: Attempt | None = None) -> RunRules:
        number = None if record is None else record.number
        cached = self.runs.get(run_id)
        if cached is not None and cached.attempt == number:
            return cached
        profile = Overrides()
        peak = None
        run = get_run(self.context.connection, run_id)
        if run is not None:
            spec = spec_of(run)
            profile = of_profile(spec.alerts)
            if record is not None:
                peak = _rate_in(record, spec)
        rules = with_overrides(self.machine, profile.rules, "profile")
        self.runs[run_id] = RunRules(rules, profile.schedule, number, peak)
        return self.runs[run_id]

    def _is_fresh(self, at: float) -> bool:
        limit = max(SILENT_SECONDS, SILENT_INTERVALS * self.interval_seconds)
        return self.context.now() - at <= limit

    def _judge(self, subject: AlertSubject, observations: Iterable[Observation]) -> None:
        for observation in observations:
            key = Key(observation.kind, subject.kind, subject.id)
            change = self.engine.evaluate(subject.rules[observation.kind], key, observation, self.elapsed)
            if change is not None:
                self.unwritten.append(Transition(change, subject, self.context.now()))

    def _training(self) -> dict[str, LiveAttempt]:
        """The live attempts of running runs, by run."""
        living = {live.record.run_id: live for live in self.living()}
        if not living:
            return {}
        rows = self.context.connection.execute("SELECT run_id, attempt FROM runs WHERE state = ?", (RunState.RUNNING,))
        running = dict(rows.fetchall())
        return {run_id: live for run_id, live in living.items() if running.get(run_id) == live.record.number}

    def _judge_gpus(self, training: Mapping[str, LiveAttempt]) -> None:
        recorder = self.context.recorder
        xids = self._new_xids()
        claims = {uuid: live.record for live in training.values() for uuid in live.record.gpus}
        for uuid, facts in recorder.facts.items():
            record = claims.get(uuid)
            rules = self.machine
            run_id = None
            if record is not None:
                run_id = record.run_id
                rules = self._rules_of(run_id, record).rules
            moment = self._moment(facts, record, xids.get(uuid, ()))
            observations = self.gpus.setdefault(uuid, GpuWatch()).observe(moment, self.elapsed, rules)
            self._judge(AlertSubject("gpu", uuid, f"GPU {facts.index}", rules, run_id), observations)
        if recorder.inventory is not None and recorder.inventory.problem is None:
            self._end_alerts_of_missing_gpus()

    def _moment(self, facts: GpuFacts, record: Attempt | None, xids: Sequence[int]) -> GpuMoment:
        """What is known of a GPU now, with the attempt that trains on it."""
        recorder = self.context.recorder
        training = None if record is None else (record.run_id, record.number)
        if not self._is_fresh(recorder.fast_at):
            return GpuMoment(facts, training=training, xids=xids)
        sample = recorder.fast.get(facts.uuid)
        holder = None
        if sample is not None and sample.utilization_percent == 0:
            holder = self._holder(facts.uuid)
        slow = recorder.slow.get(facts.uuid)
        return GpuMoment(facts, sample, slow=slow, training=training, holder=holder, xids=xids)

    def _new_xids(self) -> dict[str, list[int]]:
        """The codes of XIDs since the last call, by GPU."""
        xids: dict[str, list[int]] = {}
        while self.context.recorder.reported:
            event = self.context.recorder.reported.popleft()
            if event.event == "xid" and event.code is not None:
                xids.setdefault(event.uuid, []).append(event.code)
        return xids

    def _end_alerts_of_missing_gpus(self) -> None:
        """End the alerts of GPUs that the machine no longer has although the driver works."""
        present = self.context.recorder.facts
        for gone in self.gpus.keys() - present.keys():
            del self.gpus[gone]
        for key in self.engine.raised():
            if key.subject == "gpu" and key.subject_id not in present and key.rule in self.machine:
                subject = AlertSubject("gpu", key.subject_id, key.subject_id, self.machine)
                self._judge(subject, [Observation(key.rule, applies=False)])
        self.engine.forget("gpu", present)

    def _judge_runs(self, training: Mapping[str, LiveAttempt]) -> None:
        followed = {key.subject_id for key in self.engine.states if key.subject == "run"}
        for gone in self.runs.keys() - training.keys() - followed:
            del self.runs[gone]
        errors = self._nccl_errors()
        for run_id in dict.fromkeys([*training, *followed, *errors]):
            live = training.get(run_id)
            texts = errors.get(run_id, [])
            record = None if live is None else live.record
            run_rules = self._rules_of(run_id, record)
            text = texts[-1] if texts else ""
            observations = [Observation("nccl_errors", float(len(texts)), text=text)]
            if live is None or live.watched is None:
                # Nothing is known before its lines were read; nothing applies to a run that does
                # not train.
                observations += [Observation(rule, applies=live is not None) for rule in _METRIC_RULES]
            else:
                watch = live.watched.watch
                is_fresh = self.context.monotonic() - watch.lines_at <= OLD_SECONDS
                observations += watch.metrics.observe(is_fresh, run_rules.rules, run_rules.schedule, run_rules.peak)
            self._judge(AlertSubject("run", run_id, run_id, run_rules.rules, run_id), observations)
        self.engine.forget("run", training)

    def _nccl_errors(self) -> dict[str, list[str]]:
        """New errors of NCCL, by run."""
        errors: dict[str, list[str]] = {}
        rows = self.context.connection.execute(
            "SELECT incident_id, run_id, kind, summary FROM incidents WHERE incident_id > ? ORDER BY incident_id",
            (self.incident_id,),
        ).fetchall()
        for incident_id, run_id, kind, summary in rows:
            self.incident_id = incident_id
            if kind_of(kind).of_nccl:
                errors.setdefault(run_id, []).append(summary)
        return errors

    def _holder(self, uuid: str) -> str | None:
        """Description of the process that holds most of a GPU's memory."""
        recorder = self.context.recorder
        largest = max(recorder.processes.get(uuid) or (), key=lambda process: process.memory_bytes or 0, default=None)
        if largest is None:
            return None
        if (owner := recorder.owner(largest)) is not None:
            if owner.rank is None:
                return owner.run_id
            return f"{owner.run_id} rank {owner.rank}"
        return " · ".join(word for word in (largest.user, largest.command) if word) or f"pid {largest.pid}"

    def _write(self) -> None:
        """Write rows, events and messages in one transaction, then the log."""
        now = self.context.now()
        lines: list[str] = []
        ids = dict(self.ids)
        with transaction(self.context.connection) as connection:
            for transition in self.unwritten:
                kind = transition.change.kind
                if (transition.change.key in ids) is (kind == "raised"):
                    continue
                alert = _write_row(connection, transition, ids)
                # Its row may have been deleted with its run.
                if alert is None:
                    continue
                lines.append(f"alert {alert.alert_id} {kind}: {clean(alert.sentence)}")
                if not alert.is_silenced(now):
                    self._note(transition, alert)
            alerts.forget_old_silences(connection, now)
        self.ids = ids
        self.unwritten = []
        for line in lines:
            log.warning("%s", line)

    def _note(self, transition: Transition, alert: AlertView) -> None:
        """Add the event of an alert, unless its cause is an event already."""
        change = transition.change
        at = transition.at
        rule = transition.subject.rules[change.key.rule]
        if rule.is_reported:
            return
        kind: EventKind = "alert_raised"
        text = alert.sentence
        severity = rule.severity
        if change.kind == "cleared":
            lasted = units.duration(max(0.0, at - alert.raised_at))
            kind = "alert_cleared"
            severity = "info"
            text = f"{rule.title} ({alert.subject_name}): resolved after {lasted}, {change.why}"
        event = NewEvent(kind, text, key=rule.id, severity=severity, subject="alert", run_id=alert.run_id)
        add_event(self.context.connection, event, now=at)


def _rate_in(record: Attempt, spec: RunSpec) -> float | None:
    """The learning rate among an attempt's parameters; None if it has none."""
    rate = record.params.get(spec.role("lr", record.params) or "")
    if isinstance(rate, int | float) and not isinstance(rate, bool):
        return float(rate)
    return None


def _finite(number: float | None) -> float | None:
    """A number, None for an infinity or NaN: a stored one would not be JSON."""
    if number is None or not math.isfinite(number):
        return None
    return number


def _write_row(connection: sqlite3.Connection, transition: Transition, ids: dict[Key, int]) -> AlertView | None:
    """Write a raised or cleared alert; return its row. ``ids`` are those of active alerts."""
    change = transition.change
    subject = transition.subject
    key = change.key
    observation = change.observation
    rule = subject.rules[change.key.rule]
    if change.kind == "cleared":
        alert_id = ids.pop(key)
        alerts.clear_alert(connection, alert_id, now=transition.at, why=change.why)
    else:
        row = {
            "rule": rule.id,
            "severity": rule.severity,
            "subject_kind": subject.kind,
            "subject_id": subject.id,
            "subject_name": subject.name,
            "run_id": subject.run_id,
            "raised_at": transition.at,
            "value": _finite(observation.value),
            "threshold": _finite(observation.limit),
            "unit": rule.unit,
            "sentence": sentence(rule, observation, subject.name),
            "remedy": rule.remedy,
        }
        alert_id = ids[key] = alerts.raise_alert(connection, row)
    return alerts.one(connection, alert_id)
