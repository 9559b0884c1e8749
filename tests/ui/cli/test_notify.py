"""`gputui notify`: who is told of what, a message that is tried, and a run that asks for it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest

from gputui.core.config import Workspace
from gputui.profiles.home_files import load_recipients
from gputui.runs import notices
from gputui.runs.notices import Message
from gputui.ui.cli.alert_rules import machine_overrides
from gputui.ui.cli.context import Session
from gputui.ui.cli.notify import recipients_of
from tests.conftest import wait_until
from tests.homes import open_store
from tests.http_sinks import http_sink
from tests.machines import Machine
from tests.texts import mentions
from tests.ui.cli.program import error_of, output_of


def test_nobody_is_told_before_the_file_is_there(machine: Machine) -> None:
    for arguments in (("notify",), ("notify", "test"), ("run", machine.profile(), "--notify")):
        assert mentions(error_of(machine.workspace, *arguments, code=3), "notify.yaml", "- to: ")
    machine.workspace.notify.write_text("- {to: tell, event: [alert]}\n")
    assert mentions(error_of(machine.workspace, "notify", code=2), "notify.yaml:1", "events")


@pytest.mark.parametrize("settings", [recipients_of, machine_overrides])
def test_settings_of_another_user_are_not_looked_for(
    workspace: Workspace, settings: Callable[[Session], object], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        settings(Session(workspace, is_readonly=True, is_anothers=True))
    assert ended.value.code == 3
    assert "owner" in capsys.readouterr().err


def test_a_message_is_tried(machine: Machine) -> None:
    with http_sink() as sink:
        machine.workspace.notify.write_text(f"- to: json://127.0.0.1:{sink.port}/x\n- to: 'false'\n")
        results = json.loads(output_of(machine.workspace, "notify", "test", "--json", code=1))
        assert [(result["to"], result["sent"]) for result in results] == [("json", True), ("false", False)]
        assert "gputui" in sink.texts()[0]


def test_who_is_told_of_what_and_what_is_unsent(machine: Machine) -> None:
    machine.workspace.notify.write_text("- {to: cat me, events: [run_failed, alert]}\n")
    connection = open_store(machine.workspace.database)
    (recipient,) = load_recipients(machine.workspace.notify)
    notices.put(connection, [recipient], Message("run_failed", "error", "x failed"), now=time.time())
    (pending,) = notices.pending(connection)
    notices.note_delay(connection, pending.notice_id, time.time() + 1e6, "mailbox full")
    connection.close()
    assert mentions(output_of(machine.workspace, "notify"), "cat", "1", "run_failed", "alert (error)", "mailbox full")
    (listed,) = json.loads(output_of(machine.workspace, "notify", "--json"))
    assert (listed["to"], listed["unsent"], listed["problem"]) == ("cat", 1, "mailbox full")
    machine.workspace.notify.write_text("- to: nosuch-program\n- to: nosuch://x\n")
    problems = [entry["problem"] for entry in json.loads(output_of(machine.workspace, "notify", "--json"))]
    assert mentions(problems[0], "nosuch-program")
    assert mentions(problems[1], "nosuch://")
    assert "mailbox full" in output_of(machine.workspace, "--once")


def test_a_failed_run_is_told_once_through_dying_agents(machine: Machine) -> None:
    with http_sink() as sink:
        port = sink.port
    message_file = machine.folder / "told"
    machine.workspace.notify.write_text(
        f"- {{to: 'json://127.0.0.1:{port}/t0ken-of-mine'}}\n"
        f"- {{to: [sh, -c, 'cat >> {message_file}'], events: [run_succeeded]}}\n"
    )
    machine.gputui("run", machine.profile(), "--set", "steps=3", "--notify", "--wait")
    machine.gputui("run", machine.profile(), "--set", "fail_at=1", "--set", "steps=3", "--wait", code=None)
    # The service is down: an event says so, and the message is sent again.
    delayed = "SELECT 1 FROM events WHERE kind = 'notice_delayed' AND key = 'json'"
    wait_until(lambda: machine.rows(delayed), what="the failure")
    machine.kill_agent()
    with http_sink(port) as sink:
        machine.gputui("agent", "start")
        wait_until(lambda: not machine.rows("SELECT 1 FROM notices WHERE sent_at IS NULL"), what="the messages")
        machine.kill_agent()
        machine.gputui("agent", "start")
    titles = sink.texts()
    assert len(titles) == len(set(titles))
    assert any("failed" in title for title in titles)
    assert message_file.read_text().count("succeeded after") == 1
    machine.gputui("agent", "stop")
    stored = b"".join(path.read_bytes() for path in machine.workspace.state.glob("gputui.db*"))
    assert b"t0ken-of-mine" not in stored
