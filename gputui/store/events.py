"""Events: a kind and a key for programs, which never query ``message``, a sentence for people."""

from __future__ import annotations

import sqlite3
from typing import Literal, get_args

from msgspec import Struct
from msgspec.structs import asdict

from gputui.core.redaction import redact_text
from gputui.store.rows import insert, records
from gputui.store.run_history import HistoryRow, appended

# The meaning of ``key`` is in brackets; without brackets it is NULL.
EventKind = Literal[
    # the life of a run
    "launched",
    "attempt_started",
    "stop_requested",
    "stopped",
    "succeeded",
    "failed",  # without an attempt of its own
    "requeued",  # [restart, resume]
    "labelled",  # [name, tags, note]
    "placed",  # [state at the run's target]
    "incident",  # [kind of incident]
    "decision",  # [retry, stop]
    "runs_again",  # after a retry
    "observation",  # [kind of observation]
    "wait_timed_out",  # [kind of precondition]
    "process_unkillable",
    "orphan",  # [pid]
    "orphan_killed",  # [pid]
    "orphan_unkillable",  # [pid]
    "log_trimmed",  # [path]
    "log_unbounded",  # [path]
    # its metrics and checkpoints
    "metrics_found",  # [path]
    "metrics_unreadable",  # [what the system says]
    "metrics_unanswered",  # [path]
    "metrics_doubtful",  # [path]
    "steps_restarted",
    "steps_converted",
    "times_unknown",
    "loss_unknown",
    "loss_named",  # [metric]
    "sink_failed",  # [name of the sink]
    "sink_incomplete",  # [name of the sink]
    "sink_recovered",  # [name of the sink]
    "exporter_failed",
    "checkpoints_unmatched",  # [pattern]
    "checkpoints_unreadable",  # [folder]
    "checkpoint_replaced",  # [path]
    "no_checkpoint_there",
    "checkpoints_pruned",  # [keep, if the profile says so]
    "checkpoints_not_pruned",  # [keep, if the profile says so]
    # GPUs and the queue
    "gpus_released",
    "gpus_reduced",
    "gpus_replaced",
    "gpu_lock_unusable",
    "gpu_unresponsive",
    "gpu_quarantined",  # [UUID]
    "gpu_cleared",  # [UUID]
    "used_gpus_unusable",
    "gpu_xid",  # [UUID]
    "gpu_lost",  # [UUID]
    "gpu_returned",  # [UUID]
    "queue_paused",
    "queue_resumed",
    "priority_set",
    # studies, which are the subject
    "study_moved",  # [state]
    "trial_ended",  # [state of the trial]
    "study_process_failed",
    "study_journal_repaired",
    # alerts and notices
    "alert_raised",  # [rule]
    "alert_cleared",  # [rule]
    "alert_acknowledged",
    "alert_silenced",  # [rule]
    "alert_rules_unusable",
    "notify_unusable",
    "notice_sent",  # [label of the recipient]
    "notice_delayed",  # [label of the recipient]
    "notice_failed",  # [label of the recipient]
    # the agent and its record
    "agent_error",  # [run or part of the loop]
    "recording_interrupted",
    "retention_unusable",
    "database_full",
    "database_replaced",
    "runs_rebuilt",
    "logout_ends_agent",
    "home_not_shared",
]
Severity = Literal["info", "warning", "error"]
KINDS: frozenset[str] = frozenset(get_args(EventKind))
SINK_KINDS: tuple[EventKind, ...] = ("sink_failed", "sink_incomplete", "sink_recovered")
DATA_KINDS: tuple[EventKind, ...] = (
    *SINK_KINDS, "steps_restarted", "steps_converted", "times_unknown", "metrics_unanswered", "metrics_doubtful",
    "checkpoints_unmatched", "checkpoints_unreadable", "no_checkpoint_there",
)  # fmt: skip
"""Lasting conditions of a run's metrics, checkpoints and sinks, and their ends."""

TRIAL_KINDS: tuple[EventKind, ...] = (
    "launched", "attempt_started", "stop_requested", "stopped", "succeeded", "failed", "requeued", "placed", "incident",
    "decision", "runs_again", "observation", "wait_timed_out", "gpus_released", "gpus_reduced", "gpus_replaced",
    "no_checkpoint_there", "checkpoints_pruned", "checkpoints_not_pruned",
)  # fmt: skip
"""What a trial's run tells its own timeline alone: its study has one event of its end."""


class EventView(HistoryRow, frozen=True):
    """One event.

    Attributes:
        at: UTC unix seconds.
        subject: What it is of, if that is no run: a study, a GPU.
        run_id: None for an event that is of no run.
        attempt: None for an event that is of no attempt.
        kind: For programs, see `EventKind`.
        key: Tells events of one kind apart, for programs; see `EventKind`.
        message: A sentence for people.
    """

    table = "events"

    event_id: int
    at: float
    severity: Severity
    subject: str | None
    run_id: str | None
    attempt: int | None
    kind: str | None
    key: str | None
    message: str


class NewEvent(Struct, frozen=True):
    """An event to be stored, with the fields of `EventView`.

    Attributes:
        message: May hold secrets.
    """

    kind: EventKind
    message: str
    key: str | None = None
    severity: Severity = "info"
    subject: str | None = None
    run_id: str | None = None
    attempt: int | None = None


def add_event(connection: sqlite3.Connection, event: NewEvent, *, now: float) -> None:
    """Insert an event, redacted, at ``now`` (UTC unix seconds)."""
    texts = {"key": _storable(event.key), "message": _storable(event.message)}
    insert(connection, "events", at=now, **{**asdict(event), **texts})


def has_event(
    connection: sqlite3.Connection, kind: EventKind, *, run_id: str | None = None, key: str | None = None
) -> bool:
    row = connection.execute(
        "SELECT 1 FROM events WHERE run_id IS ? AND kind = ? AND key IS ?",
        (run_id, kind, _storable(key)),
    ).fetchone()
    return row is not None


def last_kind(
    connection: sqlite3.Connection, run_id: str, among: tuple[EventKind, ...], key: str | None = None
) -> tuple[str, float] | None:
    """Kind and time of a run's newest event ``among`` these kinds, with the key if one is given."""
    marks = ", ".join("?" for _ in among)
    row: tuple[str, float] | None = connection.execute(
        f"SELECT kind, at FROM events WHERE run_id = ? AND kind IN ({marks}) AND (? IS NULL OR key = ?) "  # noqa: S608
        "ORDER BY event_id DESC LIMIT 1",
        (run_id, *among, key, key),
    ).fetchone()
    return row


def read_events(
    connection: sqlite3.Connection, run_id: str | None = None, at: float | None = None, *, limit: int | None = None,
    after_id: int = 0,
) -> list[EventView]:  # fmt: skip
    """Events, selected like `run_history.read_incidents`. Raises sqlite3.Error."""
    return appended(connection, EventView, run_id, at=at, limit=limit, after_id=after_id)


def read_news(connection: sqlite3.Connection, at: float | None = None, *, limit: int) -> list[EventView]:
    """The machine's newest events in the order of their times. Raises sqlite3.Error.

    A trial's of `TRIAL_KINDS` are not among them, nor a start that a resume, restart or retry has announced, nor what
    was seen of an attempt before it ended for that: its incident tells the cause.
    """
    order = "event_id"
    if at is not None:
        order = "at DESC, event_id"
    kinds = ", ".join(f"'{kind}'" for kind in TRIAL_KINDS)
    query = (
        f"SELECT * FROM events AS e WHERE (?1 IS NULL OR at <= ?1) AND NOT (kind IN ({kinds}) AND EXISTS "  # noqa: S608
        "(SELECT 1 FROM runs AS r WHERE r.run_id = e.run_id AND r.study_id IS NOT NULL)) "
        "AND NOT (kind = 'attempt_started' AND coalesce((SELECT kind FROM events AS p "
        "WHERE p.run_id = e.run_id AND p.event_id < e.event_id "
        "AND kind IN ('requeued', 'decision', 'stopped', 'attempt_started') "
        "ORDER BY p.event_id DESC LIMIT 1), '') IN ('requeued', 'decision')) "
        "AND NOT (kind = 'observation' AND severity = 'error' AND EXISTS (SELECT 1 FROM events AS p "
        "WHERE p.run_id = e.run_id AND p.attempt = e.attempt AND p.kind = 'incident' AND (?1 IS NULL OR p.at <= ?1))) "
        f"ORDER BY {order} DESC LIMIT ?2"
    )
    return sorted(records(connection, EventView, query, at, limit), key=lambda event: (event.at, event.event_id))


def read_data_events(
    connection: sqlite3.Connection, run_id: str, at: float | None = None, *, after_id: int = 0
) -> list[EventView]:
    events = read_events(connection, run_id, at, after_id=after_id)
    return [event for event in events if event.kind in DATA_KINDS]


def _storable(text: str | None) -> str | None:
    """The text without secrets and lone surrogates, which SQLite does not store."""
    if text is None:
        return None
    return redact_text(text).encode("utf-8", "replace").decode("utf-8")
