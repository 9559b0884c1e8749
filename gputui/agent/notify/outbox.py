"""Sends the messages that are due, each once, in processes that outlive the agent."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from gputui.agent.context import AgentContext
from gputui.agent.notify.sender import Delivery, Receipt
from gputui.core.config import PRIVATE_DIR_MODE, PRIVATE_FILE_MODE
from gputui.core.units import duration
from gputui.runs import notices
from gputui.runs.identity import is_held
from gputui.runs.notices import PendingMessage, Recipient
from gputui.runs.repository import transaction
from gputui.store.events import EventKind, Severity

# Delays after failures; the last one is repeated until the message is too old.
AGAIN_SECONDS = (10.0, 60.0, 300.0, 900.0, 3600.0)
TOO_OLD_SECONDS = 86_400.0  # yesterday's news only hides today's
KILLED = "the process that was to send it has ended"


@dataclass(slots=True)
class Outbox:
    """The messages of one state directory.

    A message that is being sent has a file named after its id, which the sender locks. The receipt
    that the sender writes there counts even if the agent that started it is gone.

    Attributes:
        senders: the processes by message; None for one that a former agent started.
    """

    context: AgentContext
    senders: dict[int, subprocess.Popen[bytes] | None] = field(default_factory=dict)

    def begin(self) -> None:
        """Continue with the messages that a former agent was sending. Raises OSError."""
        self.context.workspace.notices.mkdir(PRIVATE_DIR_MODE, exist_ok=True)
        names = [path.name for path in self.context.workspace.notices.iterdir() if path.name.isdigit()]
        self.senders.update(dict.fromkeys(map(int, names)))

    def poll(self, recipients: Mapping[str, Recipient]) -> None:
        """Store results, and start to send what is due. ``recipients`` are by digest. Raises
        sqlite3.Error."""
        self.take_results()
        now = self.context.now()
        # Only the oldest message to each recipient is sent: they are told in order, and one that
        # cannot be reached is not tried with all that waits.
        first_messages: dict[str, PendingMessage] = {}
        for message in notices.pending(self.context.connection):
            first_messages.setdefault(message.recipient, message)
        for message in first_messages.values():
            if message.due_at <= now and message.notice_id not in self.senders:
                self._send(message, recipients.get(message.recipient))

    def take_results(self) -> None:
        """Store the results of senders that have ended. Raises sqlite3.Error."""
        if not self.senders:
            return
        pending = {message.notice_id: message for message in notices.pending(self.context.connection)}
        for notice_id, sender in list(self.senders.items()):
            path = self._file(notice_id)
            if is_held(path):
                continue
            if sender is not None:
                sender.wait()
            if notice_id in pending:
                self._store_receipt(pending[notice_id], _read_receipt(path))
            path.unlink(missing_ok=True)
            del self.senders[notice_id]

    def close(self) -> None:
        """Release the senders, which go on."""
        for sender in self.senders.values():
            if sender is not None and sender.poll() is None:
                # Otherwise Popen warns about a child that is still running.
                sender.returncode = 0

    def _file(self, notice_id: int) -> Path:
        return self.context.workspace.notices / str(notice_id)

    def _send(self, message: PendingMessage, recipient: Recipient | None) -> None:
        if recipient is None:
            self._give_up(message, f"{self.context.workspace.notify.name} no longer names this recipient")
            return
        try:
            content = message.content
            self.senders[message.notice_id] = self._start(message.notice_id, Delivery(recipient, content))
        except msgspec.MsgspecError:
            self._give_up(message, "its row in the database is damaged")
        except OSError as error:
            problem = f"no process can be started for it: {error.strerror or error}"
            self._store_receipt(message, Receipt(problem, unsent=True))

    def _start(self, notice_id: int, delivery: Delivery) -> subprocess.Popen[bytes]:
        """Start a sender, which inherits the lock on the file of its message. Raises OSError."""
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        descriptor = os.open(self._file(notice_id), flags, PRIVATE_FILE_MODE)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            notices.note_try(self.context.connection, notice_id)
            sender = subprocess.Popen(
                [sys.executable, "-m", "gputui.agent.notify.sender", str(descriptor)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                cwd="/",
                pass_fds=(descriptor,),
            )
        finally:
            os.close(descriptor)
        assert sender.stdin is not None
        # A sender that has died already leaves no receipt, which is seen like any other failure.
        with suppress(BrokenPipeError), sender.stdin as stdin:
            stdin.write(msgspec.json.encode(delivery))
        return sender

    def _store_receipt(self, message: PendingMessage, receipt: Receipt) -> None:
        connection = self.context.connection
        now = self.context.now()
        problem = receipt.problem
        if problem is None:
            with transaction(connection):
                notices.note_sent(connection, message.notice_id, now)
                self._note("notice_sent", f"told {message.label}: {message.content.title}", message)
        elif not receipt.unsent:
            with transaction(connection):
                notices.note_sent(connection, message.notice_id, now)
                text = f"told {message.label}: {message.content.title}; {problem}"
                self._note("notice_sent", text, message, "warning")
        elif now - message.at >= TOO_OLD_SECONDS:
            self._give_up(message, problem)
        else:
            self._delay(message, problem)

    def _delay(self, message: PendingMessage, problem: str) -> None:
        # The try that failed is counted already, unless no process could be started.
        seconds = AGAIN_SECONDS[min(max(0, message.tries - 1), len(AGAIN_SECONDS) - 1)]
        with transaction(self.context.connection) as connection:
            notices.note_delay(connection, message.notice_id, self.context.now() + seconds, problem)
            if message.problem != problem:
                text = f"{message.label} was not told: {problem}; trying again in {duration(seconds)}"
                self._note("notice_delayed", text, message, "warning")

    def _give_up(self, message: PendingMessage, problem: str) -> None:
        with transaction(self.context.connection) as connection:
            notices.note_given_up(connection, message.notice_id, self.context.now(), problem)
            self._note("notice_failed", f"{message.label} was not told: {problem}; given up", message, "error")

    def _note(self, kind: EventKind, text: str, message: PendingMessage, severity: Severity = "info") -> None:
        self.context.note(kind, text, message.run_id, key=message.label, severity=severity)


def _read_receipt(path: Path) -> Receipt:
    """The receipt of a sender that has ended."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Receipt)
    except (OSError, msgspec.MsgspecError):
        return Receipt(KILLED, unsent=True)
