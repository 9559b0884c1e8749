"""Each message is sent once, in order, again where it fails, and not for ever."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from gputui.agent.notify.outbox import AGAIN_SECONDS, TOO_OLD_SECONDS, Outbox
from gputui.core.config import Workspace
from gputui.runs import notices
from gputui.runs.identity import is_held
from gputui.runs.notices import Message, Recipient
from gputui.store.events import read_events
from tests.conftest import wait_until
from tests.homes import Home
from tests.texts import mentions

# Appends the title to the file "told"; fails while a file "broken" exists, and waits while a file "wait" exists.
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


class OutboxHome(Home):
    """A home with an outbox, and a folder in which what was told is written."""

    def __init__(self, workspace: Workspace, folder: Path) -> None:
        super().__init__(workspace, STARTED)
        self.folder = folder
        self.recipient = Recipient((sys.executable, "-c", SCRIPT, str(folder)))
        self.recipients = {self.recipient.digest: self.recipient}
        self.outbox = self.another()

    def another(self) -> Outbox:
        """The outbox of the next agent."""
        outbox = Outbox(self.context())
        outbox.begin()
        return outbox

    def put(self, title: str) -> None:
        message = Message("run_failed", "error", title, ("Cause: x",), {"title": title})
        notices.put(self.connection, [self.recipient], message, now=self.now)

    def turn(self, *, sends: bool) -> None:
        """One turn, and if something is sent another one that sees how it ended."""
        self.outbox.poll(self.recipients)
        assert bool(self.outbox.senders) == sends
        if sends:
            self.settle()

    def settle(self) -> None:
        wait_until(lambda: not any(map(is_held, self.workspace.notices.iterdir())), what="the senders' ends")
        self.outbox.take_results()

    def sent_titles(self) -> list[str]:
        path = self.folder / "told"
        return path.read_text().splitlines() if path.exists() else []

    def events(self) -> list[tuple[str | None, str | None]]:
        """Kind and severity of each, oldest first."""
        return [(event.kind, event.severity) for event in read_events(self.connection)]


@pytest.fixture
def home(workspace: Workspace, tmp_path: Path) -> Iterator[OutboxHome]:
    with closing(OutboxHome(workspace, tmp_path)) as home:
        home.put("vit-3 failed")
        yield home


def test_a_message_is_sent_once_and_that_is_an_event(home: OutboxHome) -> None:
    home.turn(sends=True)
    home.turn(sends=False)
    assert home.sent_titles() == ["vit-3 failed"]
    assert home.events() == [("notice_sent", "info")]
    assert not notices.is_owing(home.connection)
    assert not list(home.workspace.notices.iterdir())


def test_messages_to_one_recipient_are_sent_in_order(home: OutboxHome) -> None:
    home.put("queue empty")
    (home.folder / "broken").touch()
    home.turn(sends=True)
    home.turn(sends=False)
    assert home.sent_titles() == ["vit-3 failed"], "the second waits for the first"
    (home.folder / "broken").unlink()
    home.now += AGAIN_SECONDS[0]
    home.turn(sends=True)
    home.turn(sends=True)
    assert home.sent_titles() == ["vit-3 failed", "vit-3 failed", "queue empty"]


def test_what_fails_is_tried_later_and_later_and_given_up_after_a_day(home: OutboxHome) -> None:
    (home.folder / "broken").touch()
    home.turn(sends=True)
    for seconds in AGAIN_SECONDS:
        home.now += seconds - 1
        home.turn(sends=False)
        home.now += 1
        home.turn(sends=True)
    home.now = STARTED + TOO_OLD_SECONDS
    home.turn(sends=True)
    assert not notices.is_owing(home.connection)
    assert home.events() == [("notice_delayed", "warning"), ("notice_failed", "error")], "a problem is told once"
    assert all("mailbox full" in event.message for event in read_events(home.connection))


def test_what_a_dead_agent_was_sending_is_sent_once(home: OutboxHome) -> None:
    (home.folder / "wait").touch()
    home.outbox.poll(home.recipients)
    wait_until((home.folder / "begun").exists, what="the sender")
    home.outbox.close()
    for _ in range(3):
        home.outbox = home.another()
        home.outbox.poll(home.recipients)
    (home.folder / "wait").unlink()
    home.settle()
    home.turn(sends=False)
    assert home.sent_titles() == ["vit-3 failed"]
    assert home.events() == [("notice_sent", "info")]


def test_what_a_killed_sender_did_not_send_is_sent_again(home: OutboxHome) -> None:
    (home.folder / "wait").touch()
    home.outbox.poll(home.recipients)
    wait_until((home.folder / "begun").exists, what="the command")
    (sender,) = home.outbox.senders.values()
    assert sender is not None
    os.kill(sender.pid, signal.SIGKILL)
    home.settle()
    (home.folder / "wait").unlink()
    assert home.events() == [("notice_delayed", "warning")]
    home.now += AGAIN_SECONDS[0]
    home.turn(sends=True)
    assert home.events()[-1] == ("notice_sent", "info")


def test_a_sender_that_dies_before_it_reads_is_one_that_failed(
    home: OutboxHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    # More than a pipe holds, so that the process ends in the middle of the writing.
    home.put("x" * 200_000)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/bin/false")
        home.turn(sends=True)
        assert home.events() == [("notice_delayed", "warning")]
        assert not home.outbox.senders
    home.now += AGAIN_SECONDS[0]
    home.turn(sends=True)
    assert home.sent_titles() == ["vit-3 failed"]


def test_a_service_that_does_not_answer_is_told_once(workspace: Workspace) -> None:
    home = OutboxHome(workspace, workspace.state)
    with socket.create_server(("127.0.0.1", 0)) as server:
        home.recipient = Recipient(f"json://127.0.0.1:{server.getsockname()[1]}/x?rto=0.2")
        home.recipients = {home.recipient.digest: home.recipient}
        home.put("vit-3 failed")
        home.turn(sends=True)
    assert home.events() == [("notice_sent", "warning")]
    assert not notices.is_owing(home.connection)


def test_a_recipient_that_is_no_longer_named_is_not_told(home: OutboxHome) -> None:
    home.outbox.poll({})
    assert home.sent_titles() == []
    assert home.events() == [("notice_failed", "error")]
    assert mentions(read_events(home.connection)[0].message, "notify.yaml")
    assert not notices.is_owing(home.connection)
