"""Each message is sent once, in order, again where it fails, and not for ever."""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import sys
from pathlib import Path

import pytest

from gputui.agent.context import AgentContext
from gputui.agent.notify.outbox import AGAIN_SECONDS, TOO_OLD_SECONDS, Outbox
from gputui.core.config import Workspace
from gputui.runs import notices
from gputui.runs.identity import is_held
from gputui.runs.notices import Message, Recipient
from gputui.store.events import read_events
from tests.conftest import wait_until
from tests.texts import mentions

# Appends the title to a file; fails while there is a file that says so, waits while there is one that says that.
SCRIPT = """
import os, pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
(folder / "begun").touch()
while (folder / "wait").exists():
    time.sleep(0.02)
with (folder / "told").open("a") as file:
    file.write(sys.stdin.readline())
sys.exit("mailbox full" if (folder / "broken").exists() else 0)
"""
STARTED = 1000.0


class Office:
    """An outbox, a store and a folder in which what was told is written."""

    def __init__(self, connection: sqlite3.Connection, workspace: Workspace, folder: Path) -> None:
        self.connection, self.workspace, self.folder = connection, workspace, folder
        self.now = STARTED
        self.recipient = Recipient((sys.executable, "-c", SCRIPT, str(folder)))
        self.recipients = {self.recipient.digest: self.recipient}
        self.outbox = self.another()

    def another(self) -> Outbox:
        """The outbox of the next agent."""
        context = AgentContext.of(self.connection, self.workspace, wake=lambda: None, now=lambda: self.now)
        outbox = Outbox(context)
        outbox.begin()
        return outbox

    def put(self, title: str) -> None:
        message = Message("run_failed", "error", title, ("Cause: x",), {"title": title})
        notices.put(self.connection, [self.recipient], message, now=self.now)

    def turn(self, *, sends: bool) -> None:
        """One turn, and if something is sent another one that sees how it ended."""
        self.outbox.turn(self.recipients)
        assert bool(self.outbox.senders) == sends
        if sends:
            self.settle()

    def settle(self) -> None:
        wait_until(lambda: not any(map(is_held, self.workspace.notices.iterdir())), what="the senders' ends")
        self.outbox.take_results()

    def told(self) -> list[str]:
        path = self.folder / "told"
        return path.read_text().splitlines() if path.exists() else []

    def events(self) -> list[tuple[str | None, str | None]]:
        """Kind and severity of each, oldest first."""
        return [(event.kind, event.severity) for event in read_events(self.connection)]


@pytest.fixture
def office(workspace: Workspace, connection: sqlite3.Connection, tmp_path: Path) -> Office:
    made = Office(connection, workspace, tmp_path)
    made.put("vit-3 failed")
    return made


def test_a_message_is_sent_once_and_that_is_an_event(office: Office) -> None:
    office.turn(sends=True)
    office.turn(sends=False)
    assert office.told() == ["vit-3 failed"] and office.events() == [("notice_sent", "info")]
    assert not notices.is_owing(office.connection) and not list(office.workspace.notices.iterdir())


def test_messages_to_one_recipient_are_sent_in_order(office: Office) -> None:
    office.put("queue empty")
    (office.folder / "broken").touch()
    office.turn(sends=True)
    office.turn(sends=False)
    assert office.told() == ["vit-3 failed"], "the second waits for the first"
    (office.folder / "broken").unlink()
    office.now += AGAIN_SECONDS[0]
    office.turn(sends=True)
    office.turn(sends=True)
    assert office.told() == ["vit-3 failed", "vit-3 failed", "queue empty"]


def test_what_fails_is_tried_later_and_later_and_given_up_after_a_day(office: Office) -> None:
    (office.folder / "broken").touch()
    office.turn(sends=True)
    for seconds in AGAIN_SECONDS:
        office.now += seconds - 1
        office.turn(sends=False)
        office.now += 1
        office.turn(sends=True)
    office.now = STARTED + TOO_OLD_SECONDS
    office.turn(sends=True)
    assert not notices.is_owing(office.connection)
    assert office.events() == [("notice_delayed", "warning"), ("notice_failed", "error")], "a problem is told once"
    assert all("mailbox full" in event.message for event in read_events(office.connection))


def test_what_a_dead_agent_was_sending_is_sent_once(office: Office) -> None:
    (office.folder / "wait").touch()
    office.outbox.turn(office.recipients)
    wait_until((office.folder / "begun").exists, what="the sender")
    office.outbox.close()
    for _ in range(3):
        office.outbox = office.another()
        office.outbox.turn(office.recipients)
    (office.folder / "wait").unlink()
    office.settle()
    office.turn(sends=False)
    assert office.told() == ["vit-3 failed"] and office.events() == [("notice_sent", "info")]


def test_what_a_killed_sender_did_not_send_is_sent_again(office: Office) -> None:
    (office.folder / "wait").touch()
    office.outbox.turn(office.recipients)
    wait_until((office.folder / "begun").exists, what="the command")
    (sender,) = office.outbox.senders.values()
    assert sender is not None
    os.kill(sender.pid, signal.SIGKILL)
    office.settle()
    (office.folder / "wait").unlink()
    assert office.events() == [("notice_delayed", "warning")]
    office.now += AGAIN_SECONDS[0]
    office.turn(sends=True)
    assert office.events()[-1] == ("notice_sent", "info")


def test_a_sender_that_dies_before_it_reads_is_one_that_failed(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    # Longer than a pipe holds, so that the end of the process is met in the middle of it.
    office.put("x" * 200_000)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/bin/false")
        office.turn(sends=True)
        assert office.events() == [("notice_delayed", "warning")] and not office.outbox.senders
    office.now += AGAIN_SECONDS[0]
    office.turn(sends=True)
    assert office.told() == ["vit-3 failed"]


def test_a_service_that_does_not_answer_is_told_once(workspace: Workspace, connection: sqlite3.Connection) -> None:
    office = Office(connection, workspace, workspace.state)
    with socket.create_server(("127.0.0.1", 0)) as server:
        office.recipient = Recipient(f"json://127.0.0.1:{server.getsockname()[1]}/x?rto=0.2")
        office.recipients = {office.recipient.digest: office.recipient}
        office.put("vit-3 failed")
        office.turn(sends=True)
    assert office.events() == [("notice_sent", "warning")] and not notices.is_owing(connection)


def test_a_recipient_that_is_no_longer_named_is_not_told(office: Office) -> None:
    office.outbox.turn({})
    assert office.told() == [] and office.events() == [("notice_failed", "error")]
    assert mentions(read_events(office.connection)[0].message, "notify.yaml")
    assert not notices.is_owing(office.connection)
