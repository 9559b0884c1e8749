"""Messages to the recipients of ``notify.yaml``: what they are, and their rows in the store."""

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, get_args

import msgspec
from msgspec import Struct

from gputui.store.events import Severity
from gputui.store.rows import insert, records, update

NoticeEvent = Literal[
    "run_failed", "run_succeeded", "run_stopped", "run_recovered", "queue_empty", "study_finished", "gpu_lost", "alert"
]
EVENTS: tuple[NoticeEvent, ...] = get_args(NoticeEvent)
DEFAULT_EVENTS: tuple[NoticeEvent, ...] = ("run_failed", "queue_empty", "gpu_lost", "alert")
SEVERITIES: tuple[Severity, ...] = get_args(Severity)
"""In ascending order."""
NOT_INSTALLED = "apprise is not installed here: pip install 'gputui[notify]'"

_PENDING = "sent_at IS NULL AND gave_up_at IS NULL"


class Message(Struct, frozen=True):
    """A message without secrets.

    Attributes:
        event: what happened, as in settings.
        severity: of the event; recipients may want the severe ones only.
        title: one line that is enough by itself.
        lines: at most ten below the title.
        fields: the facts for commands, by lower-case names; see `gputui.agent.notify.messages`.
        run_id: the run that it is about.
    """

    event: NoticeEvent | Literal["test"]
    severity: Severity
    title: str
    lines: tuple[str, ...] = ()
    fields: Mapping[str, str] = msgspec.field(default_factory=dict)
    run_id: str | None = None

    @property
    def body(self) -> str:
        return "\n".join(self.lines)


class Recipient(Struct, frozen=True):
    """An entry of ``notify.yaml``.

    Attributes:
        to: an address of apprise, or the words of a command.
        events: the events that it is told of.
        min_severity: of alerts.
    """

    to: str | tuple[str, ...]
    events: tuple[NoticeEvent, ...] = DEFAULT_EVENTS
    min_severity: Severity = "error"

    @property
    def digest(self) -> str:
        """Identifies it without its secrets, as long as its address stays the same."""
        return hashlib.sha256(json.dumps(self.to).encode()).hexdigest()[:16]

    @property
    def label(self) -> str:
        """``ntfy`` for ntfy://…, ``mail`` for a command."""
        if isinstance(self.to, str):
            return self.to.partition("://")[0]
        return self.to[0].rpartition("/")[2]

    def wants(self, message: Message) -> bool:
        """Return whether it is to get a message."""
        if message.event == "alert" and SEVERITIES.index(message.severity) < SEVERITIES.index(self.min_severity):
            return False
        return message.event in self.events


def obstacle_to(recipient: Recipient) -> str | None:
    """What keeps every message from being sent, as far as it is known without sending one."""
    if not isinstance(recipient.to, str):
        program = recipient.to[0]
        if shutil.which(program):
            return None
        if Path(program).is_file():
            return f"the command {program} is not executable: chmod +x makes it so"
        hint = "; addresses are such as ntfy://my-topic" if ":" in program or "//" in program else ""
        return f"the command {program} is not found on this machine{hint}"
    try:
        import apprise
    except ImportError:
        return NOT_INSTALLED
    # apprise logs why an address is wrong, with the address.
    with apprise.LogCapture():  # type: ignore[no-untyped-call]
        service = apprise.Apprise.instantiate(recipient.to)
    address = f"this {recipient.label}:// address"
    if service is None:
        return f"apprise cannot use {address}; https://appriseit.com/services/ shows the form of each service"
    if len(service) > 1:
        # If one of them failed, a second try would tell all others again.
        return f"{address} has {len(service)} recipients; notify.yaml takes an entry for each"
    return None


class PendingMessage(Struct, frozen=True):
    """An unsent message, as it is stored.

    Attributes:
        at: when it was made (UTC unix seconds).
        recipient: the digest.
        label: names the recipient for people.
        message: the `Message` as JSON.
        tries: those begun.
        due_at: the next one (UTC unix seconds).
        problem: why the last one failed.
    """

    notice_id: int
    run_id: str | None
    at: float
    recipient: str
    label: str
    message: str
    tries: int
    due_at: float
    problem: str | None

    @property
    def content(self) -> Message:
        """The message. Raises msgspec.MsgspecError for a damaged row."""
        return msgspec.json.decode(self.message, type=Message)


def put(
    connection: sqlite3.Connection,
    recipients: Sequence[Recipient],
    message: Message,
    *,
    now: float,
    active_alert_id: int | None = None,
) -> None:
    """Add a message for each recipient, one for all entries of an address.

    Args:
        now: UTC unix seconds.
        active_alert_id: the alert whose end is to be told to the same recipients.
    """
    text = msgspec.json.encode(message).decode()
    for recipient in {recipient.digest: recipient for recipient in recipients}.values():
        insert(
            connection,
            "notices",
            run_id=message.run_id,
            active_alert_id=active_alert_id,
            at=now,
            recipient=recipient.digest,
            label=recipient.label,
            message=text,
            due_at=now,
        )


def pending(connection: sqlite3.Connection) -> list[PendingMessage]:
    """The unsent messages, oldest first."""
    return records(connection, PendingMessage, f"SELECT * FROM notices WHERE {_PENDING} ORDER BY notice_id")  # noqa: S608


def problem_of(recipient: Recipient, unsent: Sequence[PendingMessage]) -> str | None:
    """What keeps all messages from a recipient, or why the first of those in ``unsent`` was not sent."""
    problems = (message.problem for message in unsent if message.recipient == recipient.digest and message.problem)
    return obstacle_to(recipient) or next(problems, None)


def is_owing(connection: sqlite3.Connection) -> bool:
    return connection.execute(f"SELECT 1 FROM notices WHERE {_PENDING} LIMIT 1").fetchone() is not None  # noqa: S608


def ended_alerts(connection: sqlite3.Connection) -> dict[int, set[str]]:
    """The alerts that are over although recipients were told only of their begin: their digests."""
    rows = connection.execute(
        "SELECT n.active_alert_id, n.recipient FROM notices AS n JOIN alerts AS a ON a.alert_id = n.active_alert_id "
        "WHERE a.cleared_at IS NOT NULL ORDER BY n.active_alert_id"
    )
    digests: dict[int, set[str]] = {}
    for alert_id, recipient in rows:
        digests.setdefault(alert_id, set()).add(recipient)
    return digests


def note_alert_ended(connection: sqlite3.Connection, alert_id: int) -> None:
    connection.execute("UPDATE notices SET active_alert_id = NULL WHERE active_alert_id = ?", (alert_id,))


def note_try(connection: sqlite3.Connection, notice_id: int) -> None:
    connection.execute("UPDATE notices SET tries = tries + 1 WHERE notice_id = ?", (notice_id,))


def note_sent(connection: sqlite3.Connection, notice_id: int, now: float) -> None:
    update(connection, "notices", {"notice_id": notice_id}, sent_at=now, problem=None)


def note_delay(connection: sqlite3.Connection, notice_id: int, due_at: float, problem: str) -> None:
    update(connection, "notices", {"notice_id": notice_id}, due_at=due_at, problem=problem)


def note_given_up(connection: sqlite3.Connection, notice_id: int, now: float, problem: str) -> None:
    update(connection, "notices", {"notice_id": notice_id}, gave_up_at=now, problem=problem)


class Cursor(Struct, frozen=True):
    """The point up to which news were made messages.

    Attributes:
        transition_id: the newest change of a run.
        move_id: the newest change of a study.
        alert_id: the newest alert.
        queue_empty_at: when the queue was last told to be empty (UTC unix seconds).
    """

    transition_id: int
    move_id: int
    alert_id: int
    queue_empty_at: float


def newest_cursor(connection: sqlite3.Connection, queue_empty_at: float) -> Cursor:
    """The cursor behind all that is stored."""
    transition_id, move_id, alert_id = connection.execute(
        "SELECT (SELECT coalesce(max(transition_id), 0) FROM transitions), "
        "(SELECT coalesce(max(move_id), 0) FROM study_moves), (SELECT coalesce(max(alert_id), 0) FROM alerts)"
    ).fetchone()
    return Cursor(transition_id, move_id, alert_id, queue_empty_at)


def read_cursor(connection: sqlite3.Connection) -> Cursor | None:
    """The stored cursor; None before the first agent."""
    return next(iter(records(connection, Cursor, "SELECT * FROM news")), None)


def write_cursor(connection: sqlite3.Connection, cursor: Cursor) -> None:
    values = msgspec.structs.asdict(cursor)
    connection.execute("DELETE FROM news")
    insert(connection, "news", id=1, **values)


def skip_news(connection: sqlite3.Connection, now: float) -> None:
    """Let nobody be told of what is stored; ``now`` is UTC unix seconds."""
    write_cursor(connection, newest_cursor(connection, now))
