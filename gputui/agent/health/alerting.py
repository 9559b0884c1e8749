"""Alerts: evaluates the rules once a second, and writes what is raised and cleared.

In: the current state of GPUs and host in memory, the courses of live attempts (`feed`), NCCL's
errors. Out: rows, events, lines in the log, and notifications. The successor of a killed agent
continues: active alerts are rows, and the remaining state is stored with every change and once a
minute.
"""

from __future__ import annotations

import json
import logging
import math
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import cast

import msgspec
from msgspec import Struct

from gputui.agent.context import AgentContext
from gputui.agent.health.feed import StoredCourse
from gputui.agent.health.stack_dump import NcclLogs
from gputui.agent.lifecycle.active_run import LiveAttempt
from gputui.agent.lifecycle.run_files import alerts_of
from gputui.agent.notify.outbox import AlertDelivery, notice_for
from gputui.core import units
from gputui.core.config import file_identity
from gputui.core.text import clean
from gputui.recovery.policies import NoticeTarget
from gputui.recovery.watch.course import OLD_SECONDS, RateSchedule
from gputui.recovery.watch.engine import (
    AlertChange,
    Delivery,
    Engine,
    Key,
    Overrides,
    RuleState,
    sentence,
    with_overrides,
)
from gputui.recovery.watch.machine import GpuWatch, HostWatch
from gputui.recovery.watch.rules import RULES, Observation, Rule, RuleSet, SubjectKind
from gputui.runs.repository import transaction
from gputui.runs.spec import known_spec
from gputui.store import alerts
from gputui.store.alerts import AlertView
from gputui.store.attempts import Attempt
from gputui.store.events import EventKind, add_event
from gputui.store.run_states import RunState
from gputui.store.runs import get_run

log = logging.getLogger(__name__)

# The loop calls once a second, sometimes a little early.
LOOK_SECONDS = 0.9
SAVE_SECONDS = 60.0
SETTINGS_SECONDS = 5.0
# An older sample does not count as current: the larger of these seconds and sampling intervals.
SILENT_SECONDS = 5.0
SILENT_INTERVALS = 3.0
NCCL_KINDS = ("nccl_error", "nccl_timeout")
_RUN_RULES = tuple(rule.id for rule in RULES.values() if rule.subject == "run" and rule.id != "nccl_errors")


class SavedState(Struct):
    """What the next agent continues, beside the alerts' rows."""

    engine: list[tuple[Key, RuleState]] = msgspec.field(default_factory=list)
    gpus: dict[str, GpuWatch] = msgspec.field(default_factory=dict)
    host: HostWatch = msgspec.field(default_factory=HostWatch)
    courses: dict[str, StoredCourse] = msgspec.field(default_factory=dict)
    incident_id: int = 0


def parse_state(text: str) -> SavedState | None:
    """The stored state, None if it is unreadable."""
    try:
        # The JSON of msgspec has neither NaN nor infinities.
        return msgspec.convert(json.loads(text), SavedState, strict=False)
    except (ValueError, msgspec.ValidationError) as error:
        log.warning("the alerts' stored state is unreadable (%s); they start without it", error)
        return None


class RunRules(Struct, frozen=True):
    """The rules for one run and its GPUs, by its profile. ``peak`` is the learning rate parameter
    of ``attempt``."""

    rules: RuleSet
    schedule: RateSchedule | None = None
    attempt: int | None = None
    peak: float | None = None


class Transition(Struct, frozen=True):
    """A change of an alert, with its rule, the name of its subject, its run if any, and the time
    (UTC unix seconds)."""

    change: AlertChange
    rule: Rule
    subject: str
    run_id: str | None
    at: float


@dataclass(slots=True)
class Alerting:
    """All alerts of one state directory. ``living`` returns the attempts that run."""

    context: AgentContext
    living: Callable[[], Iterable[LiveAttempt]]
    interval_seconds: float = 1.0
    engine: Engine = field(default_factory=Engine)
    state: SavedState = field(default_factory=SavedState)
    ids: dict[Key, int] = field(default_factory=dict)
    unwritten: list[Transition] = field(default_factory=list)
    due: float = float("-inf")
    looked_at: float | None = None
    saved_at: float = float("-inf")
    # The rules as changed by the machine's file, which is read again when it changes, and for each
    # followed run.
    machine: RuleSet = field(default_factory=lambda: RULES)
    machine_delivery: Delivery | None = None
    runs: dict[str, RunRules] = field(default_factory=dict)
    file_due: float = float("-inf")
    file_read: tuple[int, int, int] | None = None
    delivery: AlertDelivery = field(init=False)
    nccl_logs: NcclLogs = field(init=False)

    def __post_init__(self) -> None:
        self.delivery = AlertDelivery(self.context)
        self.nccl_logs = NcclLogs(self.context)

    def notice_target(self) -> NoticeTarget | None:
        """Where alerts are sent, or None."""
        return notice_for(self.machine_delivery)

    def stored_course(self, run_id: str) -> StoredCourse | None:
        """The course of a run's metrics that a former agent stored, or None."""
        return self.state.courses.get(run_id)

    # --- what the loop calls ------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Restore the state of a former agent. Raises sqlite3.Error."""
        connection = self.context.connection
        text = alerts.engine_state(connection)
        stored = None if text is None else parse_state(text)
        if stored is None:
            # Incidents before the first evaluation raise no alert.
            newest = connection.execute("SELECT coalesce(max(incident_id), 0) FROM incidents").fetchone()[0]
            stored = SavedState(incident_id=newest)
        self.state = stored
        self.ids = {
            Key(view.rule, cast("SubjectKind", view.subject_kind), view.subject_id): view.alert_id
            for view in alerts.lasting(connection)
        }
        self.engine.adopt(stored.engine, self.ids.keys())
        self.saved_at = self.context.monotonic()

    def turn(self) -> None:
        """Evaluate the rules if that is due. Raises sqlite3.OperationalError if the database cannot
        be written; the changes are kept for the next turn."""
        now = self.context.monotonic()
        if now < self.due:
            return
        self.due = now + LOOK_SECONDS
        if now >= self.file_due:
            self.file_due = now + SETTINGS_SECONDS
            self._reload()
        elapsed = 0.0 if self.looked_at is None else now - self.looked_at
        self.looked_at = now
        self.unwritten += self._changes(elapsed)
        if self.unwritten or now - self.saved_at >= SAVE_SECONDS:
            self._write()

    def save(self) -> None:
        """Store the state for the next agent. Raises sqlite3.Error."""
        courses: dict[str, StoredCourse] = {}
        for live in self.living():
            run_id = live.record.run_id
            if live.watched is not None:
                # The watch continues what a former agent stored.
                self.state.courses.pop(run_id, None)
                courses[run_id] = live.watched.stored
            elif run_id in self.state.courses:
                courses[run_id] = self.state.courses[run_id]
        state = msgspec.structs.replace(self.state, engine=list(self.engine.states.items()), courses=courses)
        text = json.dumps(msgspec.to_builtins(state))
        alerts.put_engine_state(self.context.connection, text, self.context.now())
        self.saved_at = self.context.monotonic()

    # --- rules --------------------------------------------------------------------------------------------------------

    def _reload(self) -> None:
        """Read the machine's file if it has changed; an invalid one leaves the rules unchanged."""
        path = self.context.workspace.alerts
        found = file_identity(path)
        if found == self.file_read:
            return
        # A machine without the file needs no YAML parser.
        from gputui.core.yaml_forms.problems import ProfileError
        from gputui.profiles.home_files import load_alerts

        try:
            overrides = load_alerts(path)
        except ProfileError as error:
            text = f"{error.problems[0]}; the alert rules stay as they were"
            now = self.context.now()
            add_event(
                self.context.connection, "alert_rules_unusable", text, now=now, severity="warning", subject="alerts"
            )
            log.warning("%s", error)
        else:
            self.machine = with_overrides(RULES, overrides.rules, path.name)
            self.machine_delivery = overrides.delivery
            self.runs.clear()
        self.file_read = found

    def _rules_of(self, run_id: str, record: Attempt | None = None) -> RunRules:
        cached = self.runs.get(run_id)
        attempt = None if record is None else record.number
        if cached is None or cached.attempt != attempt:
            run = get_run(self.context.connection, run_id)
            profile = Overrides() if run is None else alerts_of(run)
            spec = None if run is None else known_spec(run)
            name = None if spec is None or record is None else spec.role("lr", record.params)
            value = None if name is None or record is None else record.params.get(name)
            peak = float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
            rules = with_overrides(self.machine, profile.rules, "profile")
            cached = self.runs[run_id] = RunRules(rules, profile.schedule, attempt, peak)
        return cached

    # --- evaluation ---------------------------------------------------------------------------------------------------

    def _changes(self, elapsed: float) -> list[Transition]:
        training = self._training()
        host = self.context.recorder.host
        seen = self.state.host.observe(host if host is not None and self._is_fresh(host.at) else None, self.machine)
        return [
            *self._gpu_changes(training, elapsed),
            *self._judge(("host", ""), "the host", seen, elapsed),
            *self._run_changes(training, elapsed),
        ]

    def _is_fresh(self, at: float) -> bool:
        return self.context.now() - at <= max(SILENT_SECONDS, SILENT_INTERVALS * self.interval_seconds)

    def _judge(
        self,
        subject: tuple[SubjectKind, str],
        name: str,
        observations: Iterable[Observation],
        elapsed: float,
        rules: RuleSet | None = None,
        run_id: str | None = None,
    ) -> Iterator[Transition]:
        for seen in observations:
            rule = (rules or self.machine)[seen.kind]
            change = self.engine.evaluate(rule, Key(seen.kind, *subject), seen, elapsed)
            if change is not None:
                yield Transition(change, rule, name, run_id, self.context.now())

    def _training(self) -> dict[str, LiveAttempt]:
        """The live attempts of running runs, by run."""
        living = list(self.living())
        if not living:
            return {}
        rows = self.context.connection.execute("SELECT run_id, attempt FROM runs WHERE state = ?", (RunState.RUNNING,))
        running = dict(rows.fetchall())
        return {live.record.run_id: live for live in living if running.get(live.record.run_id) == live.record.number}

    def _gpu_changes(self, training: Mapping[str, LiveAttempt], elapsed: float) -> Iterator[Transition]:
        recorder, gpus = self.context.recorder, self.state.gpus
        is_fresh = self._is_fresh(recorder.fast_at)
        claims = {uuid: live.record for live in training.values() for uuid in live.record.gpus}
        xids: dict[str, list[int]] = {}
        while recorder.reported:
            event = recorder.reported.popleft()
            if event.event == "xid" and event.code is not None:
                xids.setdefault(event.uuid, []).append(event.code)
        for uuid, facts in recorder.facts.items():
            watch = gpus.get(uuid)
            if watch is None:
                watch = gpus[uuid] = GpuWatch()
            record = claims.get(uuid)
            run_id = None if record is None else record.run_id
            rules = self.machine if record is None else self._rules_of(record.run_id, record).rules
            sample = recorder.fast.get(uuid) if is_fresh else None
            is_idle = sample is not None and sample.utilization_percent == 0
            observations = watch.observe(
                facts,
                sample,
                elapsed,
                rules,
                training=None if record is None else (record.run_id, record.number),
                holder=self._holder(uuid) if is_idle else None,
                xids=xids.get(uuid, ()),
                slow=recorder.slow.get(uuid) if is_fresh else None,
            )
            yield from self._judge(("gpu", uuid), f"GPU {facts.index}", observations, elapsed, rules, run_id)
        for gone in gpus.keys() - recorder.facts.keys():
            del gpus[gone]
        if recorder.inventory is not None and recorder.inventory.problem is None:
            # The machine no longer has these GPUs although the driver works.
            for key in self.engine.raised():
                if key.subject == "gpu" and key.subject_id not in recorder.facts and key.rule in self.machine:
                    seen = [Observation(key.rule, applies=False)]
                    yield from self._judge(("gpu", key.subject_id), key.subject_id, seen, 0.0)
            self.engine.forget("gpu", recorder.facts)

    def _run_changes(self, training: Mapping[str, LiveAttempt], elapsed: float) -> Iterator[Transition]:
        followed = {key.subject_id for key in self.engine.states if key.subject == "run"}
        for gone in self.runs.keys() - training.keys() - followed:
            del self.runs[gone]
        errors = self._nccl_errors([live.record for live in training.values()])
        for run_id in dict.fromkeys([*training, *followed, *errors]):
            live, texts = training.get(run_id), errors.get(run_id, [])
            own = self._rules_of(run_id, None if live is None else live.record)
            observations = [Observation("nccl_errors", float(len(texts)), text=texts[-1] if texts else "")]
            if live is None or live.watched is None:
                # Nothing is known before its lines were read; nothing applies to a run that does
                # not train.
                observations += [Observation(rule_id, applies=live is not None) for rule_id in _RUN_RULES]
            else:
                watch = live.watched.watch
                is_fresh = self.context.monotonic() - watch.lines_at <= OLD_SECONDS
                observations += watch.metrics.observe(is_fresh, own.rules, own.schedule, own.peak)
            yield from self._judge(("run", run_id), run_id, observations, elapsed, own.rules, run_id)
        self.engine.forget("run", training)

    def _nccl_errors(self, records: list[Attempt]) -> dict[str, list[str]]:
        """New errors of incidents and in logs, by run."""
        errors: dict[str, list[str]] = {}
        rows = self.context.connection.execute(
            "SELECT incident_id, run_id, kind, summary FROM incidents WHERE incident_id > ? ORDER BY incident_id",
            (self.state.incident_id,),
        ).fetchall()
        for incident_id, run_id, kind, summary in rows:
            self.state.incident_id = incident_id
            if kind in NCCL_KINDS:
                errors.setdefault(run_id, []).append(summary)
        for run_id, lines in self.nccl_logs.turn(self.context.monotonic(), records).items():
            errors.setdefault(run_id, []).extend(lines)
        return errors

    def _holder(self, uuid: str) -> str | None:
        """Description of the process that holds most of a GPU's memory."""
        processes = self.context.recorder.processes.get(uuid)
        if not processes:
            return None
        most = max(processes, key=lambda process: process.memory_bytes or 0)
        owner = self.context.recorder.owner(most)
        if owner is not None:
            return owner[0] if owner[1] is None else f"{owner[0]} rank {owner[1]}"
        words = [word for word in (most.user, most.command) if word]
        return " · ".join(words) if words else f"pid {most.pid}"

    # --- rows ---------------------------------------------------------------------------------------------------------

    def _write(self) -> None:
        """Write rows, events, messages and the state in one transaction, then the log."""
        now = self.context.now()
        notified: list[tuple[Transition, AlertView]] = []
        ids = dict(self.ids)
        with transaction(self.context.connection) as connection:
            for transition in self.unwritten:
                view = _write_row(connection, transition, ids)
                if view is not None:
                    notified.append((transition, view))
                    if not view.is_silenced(now):
                        self.delivery.owe(connection, self.machine_delivery, view, now)
            if self.unwritten:
                alerts.forget_old_silences(connection, now)
            self.save()
        self.ids = ids
        self.unwritten = []
        for transition, view in notified:
            log.warning("alert %d %s: %s", view.alert_id, transition.change.kind, clean(view.sentence))


def _write_row(connection: sqlite3.Connection, transition: Transition, ids: dict[Key, int]) -> AlertView | None:
    """Write a raised or cleared alert, and its event unless it is silenced or reported by other
    means; None if there is nothing to write. ``ids`` are those of active alerts."""
    change, rule, now = transition.change, transition.rule, transition.at
    key, seen = change.key, change.seen
    if change.kind == "raised":
        if key in ids:
            return None
        alert_id = ids[key] = alerts.raise_alert(
            connection,
            {
                "rule": key.rule,
                "severity": rule.severity,
                "subject_kind": key.subject,
                "subject_id": key.subject_id,
                "subject_name": transition.subject,
                "run_id": transition.run_id,
                "raised_at": now,
                "value": seen.value if seen.value is not None and math.isfinite(seen.value) else None,
                "threshold": seen.limit if math.isfinite(seen.limit) else None,
                "unit": rule.unit,
                "sentence": sentence(rule, seen, transition.subject),
                "remedy": rule.remedy,
            },
        )
    elif key in ids:
        alert_id = ids.pop(key)
        alerts.clear_alert(connection, alert_id, now=now, why=change.why)
    else:
        return None
    view = alerts.one(connection, alert_id)
    # Its row may have been deleted with its run.
    if view is None or view.is_silenced(now) or rule.is_reported:
        return view
    kind: EventKind = "alert_raised"
    text, severity = view.sentence, rule.severity
    if change.kind == "cleared":
        lasted = units.duration(max(0.0, now - view.raised_at))
        kind, severity = "alert_cleared", "info"
        text = f"{rule.title} ({view.subject_name}): resolved after {lasted}, {change.why}"
    add_event(connection, kind, text, now=now, key=key.rule, severity=severity, subject="alert", run_id=view.run_id)
    return view
