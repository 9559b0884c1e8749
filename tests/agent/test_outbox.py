"""Messages are sent at least once, again where it fails, and not for ever; each try ends in time."""

from __future__ import annotations

import queue
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from gputui.agent.context import AgentContext
from gputui.agent.outbox import AGAIN_SECONDS, Outbox, describe, run_command
from gputui.core.config import Workspace
from gputui.recovery.policies import NoticeTarget
from gputui.runs import notices
from gputui.runs.identity import identify
from gputui.runs.shim import all_pids
from gputui.runs.submission import SPEC_FILE, write_spec
from gputui.store import alerts
from gputui.store.events import read_events
from tests.agent.conftest import SPEC, add_run
from tests.conftest import wait_until
from tests.texts import mentions

# Appends its last argument to a file; fails while there is a file that says so.
SCRIPT = """
import pathlib, sys
folder = pathlib.Path(sys.argv[1])
with (folder / "told").open("a") as file:
    file.write(sys.argv[-1] + "\\n")
sys.exit("mailbox full" if (folder / "broken").exists() else 0)
"""


class Office:
    """An outbox, a store and a folder in which what was told is written."""

    def __init__(self, connection: sqlite3.Connection, workspace: Workspace, folder: Path) -> None:
        self.connection, self.workspace, self.folder = connection, workspace, folder
        self.now = 1000.0
        self.woken: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.outbox = self.another()

    def another(self) -> Outbox:
        return Outbox(
            AgentContext.of(self.connection, self.workspace, wake=lambda: self.woken.put(None), now=lambda: self.now)
        )

    def turn(self, *, sends: bool) -> None:
        """One turn, and where something is sent another one that sees how it ended."""
        self.outbox.turn()
        assert bool(self.outbox.under_way) == sends
        if sends:
            self.woken.get(timeout=60)
            self.outbox.turn()

    def told(self) -> list[str]:
        path = self.folder / "told"
        return path.read_text().splitlines() if path.exists() else []

    def events(self) -> list[tuple[str | None, str | None]]:
        """Kind and key of each, oldest first."""
        return [(event.kind, event.key) for event in read_events(self.connection)]


@pytest.fixture
def office(workspace: Workspace, connection: sqlite3.Connection, tmp_path: Path) -> Office:
    command = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    add_run(connection, "r", spec=replace(SPEC, recovery={"notify": {"command": command}}), workspace=workspace)
    notices.put(connection, "r", 1, ["command"], {"text": "r stopped"}, now=1000.0)
    return Office(connection, workspace, tmp_path)


def test_a_message_is_sent_once_and_that_is_an_event(office: Office) -> None:
    office.turn(sends=True)
    office.turn(sends=False)
    assert office.told() == ["r stopped"] and office.events() == [("notice_sent", "command")]
    assert not notices.is_owing(office.connection)


def test_what_fails_is_tried_again_later_and_later_and_then_given_up(office: Office) -> None:
    (office.folder / "broken").touch()
    office.turn(sends=True)
    for seconds in AGAIN_SECONDS:
        office.now += seconds - 1
        office.turn(sends=False)
        office.now += 1
        office.turn(sends=True)
    office.now += 1e6
    office.turn(sends=False)
    assert len(office.told()) == 1 + len(AGAIN_SECONDS) and not notices.is_owing(office.connection)
    assert office.events() == [("notice_delayed", "command"), ("notice_failed", "command")]
    assert all("mailbox full" in event.message for event in read_events(office.connection))


def test_what_a_failing_command_says_is_told_without_its_secrets(office: Office) -> None:
    complain = "import sys; sys.exit('mailbox of ' + sys.argv[2] + ' is full')"
    command = [sys.executable, "-c", complain, "--api-key", "hunter-22"]
    spec = replace(SPEC, recovery={"notify": {"command": command}})
    write_spec(office.workspace.run_dir("r") / SPEC_FILE, spec)
    office.turn(sends=True)
    [event] = read_events(office.connection)
    assert "[redacted]" in event.message and "hunter-22" not in event.message


def test_agents_that_die_while_they_send_are_followed_by_a_bounded_number_of_others(office: Office) -> None:
    for _ in range(1 + len(AGAIN_SECONDS)):
        office.outbox = office.another()
        office.outbox.turn()
        office.woken.get(timeout=60)
    office.outbox = office.another()
    office.turn(sends=False)
    assert len(office.told()) == 1 + len(AGAIN_SECONDS)
    assert office.events() == [("notice_failed", "command")]


def test_alerts_are_told_as_the_machine_says_now(office: Office) -> None:
    alert = {
        "rule": "disk", "severity": "error", "subject_kind": "host", "subject_id": "", "subject_name": "the host",
        "raised_at": 1000.0, "unit": "%", "sentence": "The disk is full", "remedy": "remove runs",
    }  # fmt: skip
    office.connection.execute("DELETE FROM notices")
    first = alerts.raise_alert(office.connection, alert)
    notices.put_of_alert(office.connection, first, ["command"], {"text": "The disk is full"}, now=1000.0)
    office.outbox.alerts_by = lambda: NoticeTarget((sys.executable, "-c", SCRIPT, str(office.folder)))
    office.turn(sends=True)
    assert office.told() == ["The disk is full"] and not notices.is_owing(office.connection)
    assert office.events() == [], "the alert is an event of its own"
    notices.put_of_alert(office.connection, first, ["webhook"], {"text": "again"}, now=1000.0)
    office.turn(sends=False)
    assert office.events() == [("notice_failed", "webhook")]


MESSAGE = {"text": "it is over", "run_id": "r-1"}

# Leaves a process behind that holds its standard error, and says where.
LEAVES = """
import pathlib, subprocess, sys, time
left = subprocess.Popen(["sleep", "600"])
pathlib.Path(sys.argv[1]).write_text(str(left.pid))
time.sleep(float(sys.argv[2]))
"""


def notice(*command: str) -> NoticeTarget:
    return NoticeTarget(command=command, webhook=None)


def test_a_command_that_never_ends_is_killed_with_what_it_started(tmp_path: Path) -> None:
    command = notice(sys.executable, "-c", LEAVES, str(tmp_path / "pid"), "60")
    with pytest.raises(subprocess.TimeoutExpired) as caught:
        run_command(command, MESSAGE, seconds=2.0)
    assert mentions(describe(caught.value), "2 s")
    left = int((tmp_path / "pid").read_text())
    wait_until(lambda: left not in all_pids() or identify(left) is None, what="the end of the process")


def test_what_a_command_gets_and_what_it_says_last() -> None:
    echo = "import json, sys; sys.exit(json.load(sys.stdin)['run_id'] + sys.argv[-1] + 'x' * 100000 + chr(10) + 'full')"
    with pytest.raises(subprocess.CalledProcessError) as caught:
        run_command(notice(sys.executable, "-c", echo), MESSAGE)
    assert mentions(describe(caught.value), "code 1", "full")
