"""`gputui alerts`: the list, acknowledging, silencing, the rules in force, and a message that is tried."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest
from click.testing import CliRunner

from gputui.alerts.rules import RULES
from gputui.cli.main import command as gputui
from gputui.store import alerts
from tests.cli.test_bad_input import refused
from tests.machine import Machine
from tests.stores import open_store
from tests.texts import mentions
from tests.tui.filling import Filler

DISK = {
    "rule": "disk",
    "severity": "error",
    "subject_kind": "host",
    "subject_id": "",
    "subject_name": "the host",
    "run_id": None,
    "raised_at": 1_795_230_000.0,
    "value": 97.0,
    "threshold": 95.0,
    "unit": "%",
    "sentence": "The disk of the state is 97 % full, more than 95 %",
    "remedy": "remove runs",
}
HOT = {
    **DISK,
    "rule": "gpu_hot",
    "severity": "warning",
    "subject_kind": "gpu",
    "subject_id": "GPU-a",
    "subject_name": "GPU 0",
    "unit": "°C",
    "sentence": "GPU 0 is at 88 °C, above 85 °C",
}


def say(machine: Machine, *words: str, code: int = 0) -> str:
    """What the command says, in this process: nothing is started for it."""
    result = CliRunner().invoke(gputui, ["--home", str(machine.folder / "home"), "alerts", *words])
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.output


def listed(machine: Machine) -> dict[int, dict[str, object]]:
    return {one["id"]: one for one in json.loads(say(machine, "--json"))}


def fill(machine: Machine) -> None:
    """Two alerts that an agent finds as they are: the machine keeps to both of their rules."""
    machine.workspace.alerts.write_text("disk: {above_percent: 0, for: 0}\n")
    connection = open_store(machine.workspace.database)
    alerts.raise_alert(connection, DISK)
    alerts.raise_alert(connection, HOT)
    connection.close()


def test_what_lasts_the_severest_first(machine: Machine) -> None:
    assert say(machine) == "no active alerts\n"
    assert json.loads(say(machine, "--json")) == []
    fill(machine)
    listed = json.loads(say(machine, "list", "--json"))
    assert [one["rule"] for one in listed] == ["disk", "gpu_hot"]
    assert listed[0]["state"] == "raised" and listed[0]["value"] == 97.0 and listed[0]["acknowledged_at"] is None
    assert mentions(say(machine), "disk", "97 %")


def test_acknowledging_and_silencing_go_through_the_agent(machine: Machine) -> None:
    fill(machine)
    number = next(key for key, one in listed(machine).items() if one["rule"] == "disk")
    assert mentions(machine.gputui("alerts", "ack", str(number)), "acknowledged: ", "disk")
    seen = listed(machine)[number]
    assert seen["acknowledged_by"] and seen["acknowledged_at"]
    assert mentions(machine.gputui("alerts", "silence", str(number), "--for", "2h"), "disk", "host", "2 h")
    assert listed(machine)[number]["silenced_until"]
    assert machine.json("alerts", "silence", "gpu_hot", "--for", "30min")["silenced"] == 1
    assert mentions(say(machine), "gpu_hot is silenced") and "no agent runs" not in say(machine)
    assert machine.json("alerts", "silence", str(number), "--for", "0")["silenced"] == 1
    assert listed(machine)[number]["silenced_until"] is None
    assert mentions(refused(machine, "alerts", "ack", "999", code=3), "gputui: ", "alert 999", "gputui alerts")
    assert mentions(refused(machine, "alerts", "silence", "gpu_hott", code=3), "'gpu_hott'")
    assert machine.json("alerts", "ack", "--all")["ids"] is not None
    machine.kill_agent()
    assert "no agent runs" in say(machine)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("ack",), "name alerts by their numbers"),
        (("silence", "1", "--for", "soon"), "expected a time such as 30min"),
        (("silence", "1", "--for", "90d"), "of at most 30 days"),
        (("--all", "rules"), "go with gputui alerts alone"),
    ],
)
def test_wrong_words_are_refused_before_anything(machine: Machine, words: tuple[str, ...], said: str) -> None:
    assert said in say(machine, *words, code=2)


def test_the_rules_in_force_and_where_they_come_from(machine: Machine) -> None:
    rules = {one["id"]: one for one in json.loads(say(machine, "rules", "--json"))}
    assert list(rules) == list(RULES) and rules["gpu_hot"]["sources"] == {}
    machine.workspace.alerts.write_text("gpu_hot: {above_celsius: 80, for: 2 min}\nshm: off\n")
    profile = machine.profile(
        "slow", "script: steps.py\ngpus: 0\nalerts: {slow_steps: {above_milliseconds: 900}, data_wait: off}\n"
    )
    said = say(machine, "rules", profile)
    lines = {line.split()[0]: line for line in said.splitlines() if line.strip()}
    assert "2 min" in lines["gpu_hot"] and "above_celsius 80 °C" in lines["gpu_hot"]
    assert lines["gpu_hot"].endswith("alerts.yaml: above_celsius, for")
    assert lines["slow_steps"].endswith("profile: above_milliseconds") and " off " in lines["data_wait"]
    assert lines["shm"].endswith("alerts.yaml: off") and lines["xid"].endswith("standard")
    shape = {one["id"]: one for one in json.loads(say(machine, "rules", "--json"))}
    assert shape["gpu_hot"]["thresholds"][0] == {
        "name": "above_celsius",
        "value": 80.0,
        "unit": "°C",
        "meaning": RULES["gpu_hot"].thresholds[0].help,
        "source": "alerts.yaml",
    }


def test_a_file_with_mistakes_names_them_all(machine: Machine) -> None:
    machine.workspace.alerts.write_text("gpu_hot:\n  above_celsus: 80\ndiskk: off\nnotify: {webhook: ftp://secret}\n")
    said = say(machine, "rules", code=2).splitlines()
    assert len(said) == 3 and "secret" not in "".join(said)
    assert mentions(said[0], "alerts.yaml:2: gpu_hot.above_celsus: ", "above_celsius?")
    assert mentions(said[1], "alerts.yaml:3: diskk: ", "disk?")


@pytest.fixture
def hook() -> Iterator[tuple[str, list[bytes]]]:
    got: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return

    server = HTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/hook", got
    server.shutdown()


def test_a_message_is_tried(machine: Machine, hook: tuple[str, list[bytes]]) -> None:
    assert mentions(say(machine, "test", code=3), "command", "webhook")
    address, got = hook
    machine.workspace.alerts.write_text(f"notify: {{command: [/no/such/mailer], webhook: '{address}'}}\n")
    results = json.loads(say(machine, "test", "--json", code=1))
    assert [(one["way"], one["sent"]) for one in results] == [("command", False), ("webhook", True)]
    assert json.loads(got[0])["kind"] == "test"


def test_the_story_of_a_run_tells_of_its_alerts(machine: Machine) -> None:
    filler = Filler(machine.workspace)
    filler.run("vit-1", "running")
    filler.attempt("vit-1", 1)
    for number in range(10):
        filler.alert(
            "slow_steps", f"vit-1: a step takes {number} s", subject="vit-1", subject_id="vit-1", run_id="vit-1",
            seconds_ago=900 - number, cleared_ago=500 if number < 9 else None,
        )  # fmt: skip
    filler.close()
    result = CliRunner().invoke(gputui, ["--home", str(machine.folder / "home"), "explain", "vit-1"])
    told = " ".join(result.stdout.split())
    assert mentions(told, "8 s (resolved after 6 min 32 s)") and mentions(told, "9 s (active)", "2 earlier")
    assert [one["sentence"] for one in json.loads(say(machine, "--run", "vit-1", "--json"))][-1].endswith("0 s")
