"""A message reaches commands and services, and what goes wrong is said without secrets."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from gputui.agent.notify.sender import Delivery, Receipt, run_command, send
from gputui.runs.identity import identify
from gputui.runs.notices import Message, Recipient, obstacle_to
from gputui.runs.shim_processes import all_pids
from tests.conftest import wait_until
from tests.http_sinks import http_sink
from tests.texts import mentions

MESSAGE = Message("run_failed", "error", "vit-3 failed", ("Cause: x", "Last: y"), {"run": "vit-3", "title": "t"})

# Leaves a process behind that keeps standard error open, and writes its PID to a file.
LEAVES = """
import pathlib, subprocess, sys, time
left = subprocess.Popen(["sleep", "600"])
pathlib.Path(sys.argv[1]).write_text(str(left.pid))
time.sleep(float(sys.argv[2]))
"""


SLACK = "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ"


def problem_of(*command: str, seconds: float = 30.0) -> str | None:
    return run_command(command, MESSAGE, seconds)


def problem_with(recipient: Recipient) -> str:
    """Why a message could not be sent."""
    receipt = send(Delivery(recipient, MESSAGE))
    assert receipt.unsent
    assert receipt.problem is not None
    return receipt.problem


def test_a_command_gets_the_text_and_the_facts(tmp_path: Path) -> None:
    script = (
        "import json, os, sys\n"
        "json.dump([sys.stdin.read(), os.environ['GPUTUI_RUN'], sys.argv[2:]], open(sys.argv[1], 'w'))"
    )
    assert problem_of(sys.executable, "-c", script, str(tmp_path / "got"), "-s", "gputui") is None
    text, run, arguments = json.loads((tmp_path / "got").read_text())
    assert mentions(text, "vit-3 failed", "\n", "Cause: x", "\n", "Last: y")
    assert run == "vit-3"
    assert arguments == ["-s", "gputui"], "as documented for mail: its arguments are its own"


def test_what_a_failing_command_says_last() -> None:
    complain = "import sys; sys.exit('x' * 100000 + chr(10) + 'mailbox full')"
    assert mentions(problem_of(sys.executable, "-c", complain), "code 1", "mailbox full")
    assert mentions(problem_of("/no/such/mail"), "/no/such/mail", "No such file")


def test_processes_that_a_command_leaves_are_not_waited_for(tmp_path: Path) -> None:
    assert problem_of(sys.executable, "-c", LEAVES, str(tmp_path / "pid"), "0") is None


def test_a_command_that_never_ends_is_killed_with_what_it_started(tmp_path: Path) -> None:
    assert mentions(problem_of(sys.executable, "-c", LEAVES, str(tmp_path / "pid"), "60", seconds=2.0), "2 s")
    pid = int((tmp_path / "pid").read_text())
    wait_until(lambda: pid not in all_pids() or identify(pid) is None, what="the end of the process")


def test_secrets_of_a_command_are_not_told() -> None:
    complain = "import sys; sys.exit('mailbox of ' + sys.argv[2] + ' is full')"
    problem = problem_with(Recipient((sys.executable, "-c", complain, "--api-key", "hunter-22")))
    assert mentions(problem, "[redacted]")
    assert "hunter-22" not in problem


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("json://127.0.0.1:{port}/hook", {"title": MESSAGE.title, "message": MESSAGE.body, "type": "failure"}),
        ("ntfy://127.0.0.1:{port}/topic", {"topic": "topic", "title": MESSAGE.title, "message": MESSAGE.body}),
    ],
)
def test_services_get_title_and_body(address: str, expected: dict[str, Any]) -> None:
    with http_sink() as sink:
        assert send(Delivery(Recipient(address.format(port=sink.port)), MESSAGE)) == Receipt()
        (received,) = sink.received
    assert expected.items() <= received.items()


def test_slack_gets_its_own_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    from apprise.plugins.slack import NotifySlack

    with http_sink() as sink:
        monkeypatch.setattr(NotifySlack, "webhook_url", f"http://127.0.0.1:{sink.port}/services")
        assert send(Delivery(Recipient(f"{SLACK}/#runs"), MESSAGE)) == Receipt()
        (received,) = sink.received
    assert received["path"].startswith("/services/T1JJ3T3L2/A1BRTD4JD/")
    assert received["channel"] == "#runs"
    assert MESSAGE.title in json.dumps(received)


def test_a_service_that_is_down_and_an_address_of_none() -> None:
    with http_sink() as sink:
        port = sink.port
    assert "s3cret-pass" not in problem_with(Recipient(f"json://me:s3cret-pass@127.0.0.1:{port}/t0ken"))
    assert mentions(problem_with(Recipient("nosuch://x")), "nosuch://", "appriseit.com")


def test_a_service_that_takes_a_message_and_does_not_answer_is_not_sent_it_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"json://127.0.0.1:{server.getsockname()[1]}/x?rto=0.2"
        receipt = send(Delivery(Recipient(address), MESSAGE))
    assert not receipt.unsent
    assert mentions(receipt.problem, "did not answer")


def test_what_can_be_known_without_sending(tmp_path: Path) -> None:
    program = tmp_path / "tell"
    assert mentions(obstacle_to(Recipient((str(program),))), "not found")
    assert mentions(obstacle_to(Recipient(("ntfy:topic",))), "not found", "://")
    program.touch(0o600)
    assert mentions(obstacle_to(Recipient((str(program),))), "chmod")
    program.chmod(0o700)
    assert obstacle_to(Recipient((str(program),))) is None
    assert mentions(obstacle_to(Recipient("mailto://")), "mailto://", "appriseit.com")
    assert mentions(obstacle_to(Recipient(f"{SLACK}/#runs/#night")), "2 recipients")
    assert obstacle_to(Recipient(f"{SLACK}/#runs")) is None


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "apprise", None)
    assert mentions(problem_with(Recipient("ntfy://topic")), "pip install", "gputui[notify]")
