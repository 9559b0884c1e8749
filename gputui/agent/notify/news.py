"""What has happened since the last look, as messages to those who want them.

Runs, studies and alerts are read by a cursor, which is stored in the transaction of the messages: each change is told
once, whenever an agent dies. Of trials only their study is told.
"""

from __future__ import annotations

import logging
import socket
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec

from msgspec.structs import replace

from gputui.agent.context import AgentContext
from gputui.agent.notify import messages
from gputui.agent.notify.messages import RunNotice
from gputui.agent.notify.outbox import Outbox
from gputui.core.units import metric_value, parameter
from gputui.core.yaml_forms.problems import ProfileError
from gputui.profiles.home_files import SettingsFile, load_recipients
from gputui.recovery.run_history import RunHistory, total_cost
from gputui.runs import notices
from gputui.runs.notices import NOT_INSTALLED, Cursor, Message, Recipient
from gputui.runs.repository import transaction
from gputui.runs.stored_spec import known_spec
from gputui.store import alerts
from gputui.store.metrics import queries
from gputui.store.metrics.roles import LOSS
from gputui.store.run_history import TransitionView, state_before_start, transitions_after
from gputui.store.run_states import RunState
from gputui.store.runs import Run, active_run_count, ended_since, get_run
from gputui.store.studies import StudyRecord, TrialRecord, read_studies, read_trials, studies_moved_after

log = logging.getLogger(__name__)


@dataclass(slots=True)
class News:
    """The news of one state directory and their recipients.

    ``recipients`` is None until their file was valid once: the news wait for that.
    """

    context: AgentContext
    outbox: Outbox
    recipients: tuple[Recipient, ...] | None = None
    host: str = field(default_factory=socket.gethostname)
    file: SettingsFile[tuple[Recipient, ...]] = field(init=False)

    def __post_init__(self) -> None:
        self.file = SettingsFile(self.context.workspace.notify, load_recipients)

    def begin(self) -> None:
        """Continue where the former agent ended. Raises sqlite3.Error and OSError."""
        if notices.read_cursor(self.context.connection) is None:
            notices.skip_news(self.context.connection, self.context.now())
        self.outbox.begin()

    def poll(self) -> None:
        """Make messages of what is new, and send those that are due; called once a second. Raises
        sqlite3.Error."""
        self._follow_file()
        if self.recipients is None:
            return
        connection = self.context.connection
        now = self.context.now()
        cursor = notices.read_cursor(connection)
        assert cursor is not None
        next_cursor = notices.newest_cursor(connection, cursor.queue_empty_at)
        ended_alerts = notices.ended_alerts(connection)
        if next_cursor != cursor or ended_alerts:
            with transaction(connection):
                for alert in alerts.raised_after(connection, cursor.alert_id):
                    if not alert.is_silenced(now):
                        self._put(messages.alert_raised(alert, self.host), now, active_alert_id=alert.alert_id)
                self._put_ended_alerts(ended_alerts, now)
                has_ended_run = self._put_runs(cursor, now)
                has_ended_study = self._put_studies(cursor, now)
                if (has_ended_run or has_ended_study) and not _has_work(connection):
                    ended = ended_since(connection, cursor.queue_empty_at)
                    self._put(messages.queue_empty(ended, self.host), now)
                    next_cursor = replace(next_cursor, queue_empty_at=now)
                notices.write_cursor(connection, next_cursor)
        self.outbox.poll({recipient.digest: recipient for recipient in self.recipients})

    def _follow_file(self) -> None:
        """Take the recipients of the file if it has changed; an invalid one leaves them unchanged."""
        version = self.file.newer()
        if version is None:
            return
        if isinstance(version.content, ProfileError):
            meanwhile = "messages wait" if self.recipients is None else "the recipients of messages stay as they were"
            self._note_unusable(f"{version.content.problems[0]}; {meanwhile} until it is corrected")
        else:
            self.recipients = version.content
            if find_spec("apprise") is None and any(isinstance(recipient.to, str) for recipient in self.recipients):
                self._note_unusable(f"{self.file.path.name}: {NOT_INSTALLED}")
        self.file.follow(version)

    def _note_unusable(self, text: str) -> None:
        self.context.note_about("notify", "notify_unusable", text)
        log.warning("%s", text)

    def _put(
        self, message: Message, now: float, *, is_for_all: bool = False, active_alert_id: int | None = None
    ) -> None:
        """Queue a message for the recipients that want it.

        Args:
            is_for_all: the run asks for messages to all recipients.
            active_alert_id: the alert whose end is to be told to the same recipients.
        """
        recipients = [recipient for recipient in self.recipients or () if is_for_all or recipient.wants(message)]
        notices.put(self.context.connection, recipients, message, now=now, active_alert_id=active_alert_id)

    def _put_ended_alerts(self, ended: Mapping[int, set[str]], now: float) -> None:
        """Queue the ends of alerts for those who were told of the begin."""
        for alert_id, digests in ended.items():
            alert = alerts.one(self.context.connection, alert_id)
            if alert is not None and not alert.is_silenced(now):
                recipients = [recipient for recipient in self.recipients or () if recipient.digest in digests]
                notices.put(self.context.connection, recipients, messages.alert_over(alert, self.host), now=now)
            notices.note_alert_ended(self.context.connection, alert_id)

    def _put_runs(self, cursor: Cursor, now: float) -> bool:
        """Queue messages about runs that ended or recovered; return whether one has ended, also a trial."""
        connection = self.context.connection
        has_ended = False
        # The runs in the order of their newest transitions.
        moves_by_run: dict[str, list[TransitionView]] = {}
        for move in transitions_after(connection, cursor.transition_id):
            moves_by_run[move.run_id] = [*moves_by_run.pop(move.run_id, ()), move]
        for run_id, moves in moves_by_run.items():
            run = get_run(connection, run_id)
            last_move = moves[-1]
            state = RunState(last_move.to_state)
            if run is None:
                continue
            has_ended = has_ended or state.is_over
            if run.study_id is not None:
                continue
            spec = known_spec(run)
            is_for_all = spec is not None and spec.notify
            has_recovered = any(_is_recovery(connection, move) for move in moves)
            if has_recovered and state in (RunState.RUNNING, RunState.SUCCEEDED):
                self._put(messages.run_recovered(self._facts(run, now)), now, is_for_all=is_for_all)
            if state.is_over and state is run.state:
                self._put(messages.run_ended(self._facts(run, now), last_move.cause), now, is_for_all=is_for_all)
        return has_ended

    def _facts(self, run: Run, now: float) -> RunNotice:
        connection = self.context.connection
        run_id = run.run_id
        failures = RunHistory.read(connection, run).failures()
        name = run.roles.loss or LOSS
        value = queries.latest(connection, run_id).get(name)
        loss = None if value is None else (name, value)
        return RunNotice(
            run,
            now,
            self.host,
            failure=next(reversed(failures), None),
            cost=total_cost(failures),
            step=run.last_step,
            loss=loss,
        )

    def _put_studies(self, cursor: Cursor, now: float) -> bool:
        """Queue messages about studies that are over; return whether there is one."""
        connection = self.context.connection
        has_ended = False
        for study in studies_moved_after(connection, cursor.move_id):
            if study.state.is_over:
                has_ended = True
                trials = read_trials(connection, study.study_id)
                states = [str(trial.state) for trial in trials]
                self._put(messages.study_finished(study, states, _best_text(study, trials), self.host), now)
        return has_ended


def _is_recovery(connection: sqlite3.Connection, move: TransitionView) -> bool:
    """Return whether a run is running again after a failure, and not for a person."""
    return move.to_state == RunState.RUNNING and state_before_start(connection, move) == RunState.RECOVERING


def _has_work(connection: sqlite3.Connection) -> bool:
    """Return whether a run or a study is going on or waits."""
    return bool(active_run_count(connection)) or any(study.state.needs_agent for study in read_studies(connection))


def _best_text(study: StudyRecord, trials: Sequence[TrialRecord]) -> str:
    """``trial 14, loss 0.123 (lr 0.1)``; "" without a best one."""
    from gputui.studies.analysis import best_trial
    from gputui.studies.spec import study_spec

    spec = study_spec(study)
    best = best_trial(trials, spec.objectives)
    if best is None or best.value is None:
        return ""
    params = ", ".join(f"{name} {parameter(value)}" for name, value in best.params.items())
    return f"trial {best.number}, {spec.objectives[0].metric} {metric_value(best.value)} ({params})"
