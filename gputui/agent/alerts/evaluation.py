"""Evaluation of alert rules, once a second, on the state in memory. An alert that is raised or cleared becomes a row,
an event, a line in the log, and a notification.

The successor of a killed agent continues: active alerts are rows, and the engine's remaining state is stored with every
change and once a minute.
"""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import cast

from gputui.agent.alerts.alert_rows import AlertTransition, Silences, write_cleared, write_raised
from gputui.agent.alerts.rule_inputs import AlertMoments, Training, known_incidents, parse_state
from gputui.agent.alerts.rule_settings import AlertSettings, RunRules
from gputui.agent.context import AgentContext
from gputui.agent.health.nccl_logs import NcclLogs
from gputui.agent.lifecycle.run_files import alerts_of
from gputui.agent.notify.alert_messages import AlertDelivery, notice_for
from gputui.core.text import clean
from gputui.metrics.report import IngestReport
from gputui.recovery.alerts.engine import Engine, Key
from gputui.recovery.alerts.moments import IDLE, GpuMoment, HostMoment, RunMoment
from gputui.recovery.alerts.overrides import Overrides
from gputui.recovery.alerts.resolved_rules import ResolvedRule, RuleSet
from gputui.recovery.alerts.rules import SubjectKind
from gputui.recovery.policies import NoticeTarget
from gputui.runs.repository import transaction
from gputui.runs.spec import known_spec
from gputui.store import alerts
from gputui.store.attempts import Attempt
from gputui.store.events import add_event
from gputui.store.run_states import RunState
from gputui.store.runs import get_run

log = logging.getLogger(__name__)

# The loop calls once a second, sometimes a little early.
LOOK_SECONDS = 0.9
SAVE_SECONDS = 60.0
# How long alerts are skipped after an unexpected error.
TROUBLE_SECONDS = 60.0


@dataclass(slots=True)
class Alerting:
    """All alerts of one state directory. ``living`` returns the attempts that run."""

    context: AgentContext
    living: Callable[[], Iterable[Attempt]]
    interval_seconds: float = 1.0
    engine: Engine = field(default_factory=Engine)
    ids: dict[Key, int] = field(default_factory=dict)
    unwritten: list[AlertTransition] = field(default_factory=list)
    due: float = float("-inf")
    looked_at: float | None = None
    saved_at: float = float("-inf")
    peaks: dict[tuple[str, int], float | None] = field(default_factory=dict)
    moments: AlertMoments = field(init=False)
    settings: AlertSettings = field(init=False)
    delivery: AlertDelivery = field(init=False)
    nccl_logs: NcclLogs = field(init=False)
    _by_kind: dict[int, tuple[RuleSet, dict[SubjectKind, list[ResolvedRule]]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.moments = AlertMoments(self.context, self.interval_seconds)
        self.settings = AlertSettings(self.context.workspace.alerts, self._complain)
        self.delivery = AlertDelivery(self.context)
        self.nccl_logs = NcclLogs(self.context)

    def notice_target(self) -> NoticeTarget | None:
        """Where alerts are sent, or None."""
        return notice_for(self.settings.delivery)

    # --- what the loop calls

    def begin(self) -> None:
        """Restore the state of a former agent. Raises sqlite3.Error."""
        stored = alerts.engine_state(self.context.connection)
        self.moments.incident_id = known_incidents(self.context.connection)
        if stored is not None:
            at, state = stored[0], parse_state(stored[1])
            self.engine = Engine.from_json(state.get("engine"))
            self.moments.restore(state.get("moments") or {}, self.context.now() - at)
        lasting = alerts.lasting(self.context.connection)
        self.ids = {
            Key(view.rule, cast("SubjectKind", view.subject_kind), view.subject_id): view.alert_id for view in lasting
        }
        self.engine.adopt(self.ids)
        self.saved_at = self.context.monotonic()

    def take(self, report: IngestReport) -> None:
        """Take in newly read metrics."""
        self.moments.take(report)

    def turn(self) -> None:
        """Evaluate the rules if that is due. Raises sqlite3.OperationalError if the database cannot be written; the
        changes are kept for the next turn."""
        now = self.context.monotonic()
        if now < self.due:
            return
        self.due = now + LOOK_SECONDS
        try:
            self.settings.turn(now)
            elapsed = 0.0 if self.looked_at is None else now - self.looked_at
            self.looked_at = now
            self.unwritten += self._changes(elapsed)
            if self.unwritten or now - self.saved_at >= SAVE_SECONDS:
                self._write()
        except sqlite3.Error:
            raise
        except Exception:
            # An unexpected error in an alert must not end the agent.
            log.exception("alerts rest for %.0f s", TROUBLE_SECONDS)
            self.due = now + TROUBLE_SECONDS

    def save(self) -> None:
        """Store the engine's state. Raises sqlite3.Error."""
        state = {"engine": self.engine.to_json(), "moments": self.moments.to_json()}
        alerts.put_engine_state(self.context.connection, json.dumps(state), self.context.now())
        self.saved_at = self.context.monotonic()

    # --- evaluation

    def _changes(self, elapsed: float) -> list[AlertTransition]:
        training = self._training()
        rules = {attempt.record.run_id: self.settings.runs[attempt.record.run_id] for attempt in training}
        followed_runs = {key.subject_id for key in self.engine.states if key.subject == "run"}
        self.settings.keep_only({*rules, *followed_runs})
        transitions: list[AlertTransition] = []
        gpus = self.moments.gpu_moments(training, elapsed)
        for gpu in gpus:
            run_rules = rules.get(gpu.training_run or "")
            transitions += self._judge("gpu", gpu.uuid, f"GPU {gpu.index}", gpu, run_rules, elapsed, gpu.training_run)
        transitions += self._judge("host", "", "the host", self.moments.host_moment(elapsed), None, elapsed, None)
        logged = self.nccl_logs.turn(self.context.monotonic(), [attempt.record for attempt in training])
        runs = self.moments.run_moments(training, followed_runs, elapsed, logged)
        for run in runs:
            run_rules = rules.get(run.run_id) or self._rules_of(run.run_id)
            transitions += self._judge("run", run.run_id, run.run_id, run, run_rules, elapsed, run.run_id)
        self.engine.forget("run", rules)
        inventory = self.context.recorder.inventory
        if inventory is not None and inventory.problem is None:
            transitions += self._clear_gone_gpus({gpu.uuid for gpu in gpus})
        return transitions

    def _clear_gone_gpus(self, present: Collection[str]) -> Iterator[AlertTransition]:
        """Clear alerts of GPUs that the machine no longer has although the driver works."""
        for key in self.engine.raised():
            if key.subject == "gpu" and key.subject_id not in present and key.rule in self.settings.machine:
                rule = self.settings.machine[key.rule]
                change = self.engine.evaluate(rule, key, IDLE, 0.0)
                if change is not None:
                    yield AlertTransition(change, rule, key.subject_id, None, self.context.now())
        self.engine.forget("gpu", present)

    def _judge(
        self,
        kind: SubjectKind,
        subject_id: str,
        name: str,
        moment: GpuMoment | HostMoment | RunMoment,
        run_rules: RunRules | None,
        elapsed: float,
        run_id: str | None,
    ) -> Iterator[AlertTransition]:
        for rule in self._rules(kind, self.settings.machine if run_rules is None else run_rules.rules):
            key = Key(rule.rule.id, kind, subject_id)
            change = self.engine.evaluate(rule, key, rule.rule.measure(moment, rule.limits), elapsed)
            if change is not None:
                yield AlertTransition(change, rule, name, run_id, self.context.now())

    def _rules(self, kind: SubjectKind, rules: RuleSet) -> list[ResolvedRule]:
        """The rules of one kind, cached for each rule set."""
        cached = self._by_kind.get(id(rules))
        if cached is None or cached[0] is not rules:
            if len(self._by_kind) > 64:
                self._by_kind.clear()
            by_kind: dict[SubjectKind, list[ResolvedRule]] = {"gpu": [], "host": [], "run": []}
            for rule in rules.values():
                by_kind[rule.rule.subject].append(rule)
            cached = self._by_kind[id(rules)] = (rules, by_kind)
        return cached[1][kind]

    # --- runs

    def _training(self) -> list[Training]:
        """The live attempts of running runs."""
        living = list(self.living())
        if not living:
            return []
        running = dict(
            self.context.connection.execute(
                "SELECT run_id, attempt FROM runs WHERE state = ?", (RunState.RUNNING,)
            ).fetchall()
        )
        training = []
        for record in living:
            if running.get(record.run_id) == record.number:
                run_rules = self._rules_of(record.run_id)
                patience = run_rules.rules["no_improvement"].limits["steps"]
                training.append(Training(record, run_rules.profile.schedule, self._peak(record), patience))
        return training

    def _rules_of(self, run_id: str) -> RunRules:
        def read() -> Overrides:
            run = get_run(self.context.connection, run_id)
            return Overrides() if run is None else alerts_of(run)

        return self.settings.of_run(run_id, read)

    def _peak(self, record: Attempt) -> float | None:
        """The value of the attempt's learning rate parameter, if it is a number."""
        key = (record.run_id, record.number)
        if key not in self.peaks:
            run = get_run(self.context.connection, record.run_id)
            spec = None if run is None else known_spec(run)
            name = None if spec is None else spec.role("lr", record.params)
            value = None if name is None else record.params.get(name)
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if len(self.peaks) > 256:
                self.peaks.clear()
            self.peaks[key] = float(value) if is_number and value is not None else None
        return self.peaks[key]

    # --- rows

    def _write(self) -> None:
        """Write rows, events, messages and the engine's state in one transaction, then the log."""
        now = self.context.now()
        notified: list[tuple[AlertTransition, alerts.AlertView]] = []
        ids = dict(self.ids)
        with transaction(self.context.connection) as connection:
            silences = alerts.silences(connection, now) if self.unwritten else {}
            for transition in self.unwritten:
                view = self._row(transition, ids, silences)
                if view is not None:
                    notified.append((transition, view))
                    if not view.is_silenced(now):
                        self.delivery.owe(connection, self.settings.delivery, view, now)
            if self.unwritten:
                alerts.forget_old_silences(connection, now)
            self.save()
        self.ids = ids
        self.unwritten = []
        for transition, view in notified:
            log.warning("alert %d %s: %s", view.alert_id, transition.change.kind, clean(view.sentence))

    def _row(self, transition: AlertTransition, ids: dict[Key, int], silences: Silences) -> alerts.AlertView | None:
        key = transition.change.key
        if transition.change.kind == "raised":
            if key in ids:
                return None
            view = write_raised(self.context.connection, transition, silences)
            ids[key] = view.alert_id
            return view
        alert_id = ids.pop(key, None)
        return None if alert_id is None else write_cleared(self.context.connection, transition, alert_id)

    def _complain(self, text: str) -> None:
        add_event(
            self.context.connection,
            "alert_rules_unusable",
            text,
            now=self.context.now(),
            severity="warning",
            subject="alerts",
        )
