"""`gputui alerts`: the list, acknowledging, silencing, the rules in force, and a message that is tried."""

from __future__ import annotations

import json

from gputui.recovery.watch.rules import RULES
from tests.homes import Home
from tests.machines import Machine
from tests.texts import mentions
from tests.ui.cli.program import error_of, output_of


def alerts(machine: Machine, *arguments: str, code: int = 0) -> str:
    return output_of(machine.workspace, "alerts", *arguments, code=code)


def alerts_by_id(machine: Machine) -> dict[int, dict[str, object]]:
    return {alert["id"]: alert for alert in json.loads(alerts(machine, "--json"))}


def fill(machine: Machine) -> None:
    """Two alerts that an agent finds as they are: the machine keeps to both of their rules."""
    machine.workspace.alerts.write_text("disk: {above_percent: 0, for: 0}\n")
    home = Home(machine.workspace)
    home.alert("disk", "State disk 97 % full (limit 95 %)", value=97.0, threshold=95.0)
    home.alert("gpu_hot", "GPU 0 is at 88 °C, above 85 °C", subject="GPU 0", subject_id="GPU-a")
    home.close()


def test_what_lasts_the_severest_first(machine: Machine) -> None:
    assert alerts(machine) == "no active alerts\n"
    assert json.loads(alerts(machine, "--json")) == []
    fill(machine)
    listed = json.loads(alerts(machine, "--json"))
    assert [alert["rule"] for alert in listed] == ["disk", "gpu_hot"]
    assert listed[0]["state"] == "raised"
    assert listed[0]["value"] == 97.0
    assert listed[0]["acknowledged_at"] is None
    assert mentions(alerts(machine), "disk", "97 %", f"disk: {RULES['disk'].remedy}")


def test_acknowledging_and_silencing_go_through_the_agent(machine: Machine) -> None:
    fill(machine)
    number = next(key for key, alert in alerts_by_id(machine).items() if alert["rule"] == "disk")
    assert mentions(machine.gputui("alerts", "ack", str(number)), "acknowledged: ", "disk")
    alert = alerts_by_id(machine)[number]
    assert alert["acknowledged_by"]
    assert alert["acknowledged_at"]
    assert mentions(machine.gputui("alerts", "silence", str(number), "--for", "2h"), "disk", "host", "2 h")
    assert alerts_by_id(machine)[number]["silenced_until"]
    assert machine.json("alerts", "silence", "gpu_hot", "--for", "30min")["silenced"] == 1
    assert mentions(alerts(machine), "gpu_hot is silenced")
    assert "no agent runs" not in alerts(machine)
    assert machine.json("alerts", "silence", str(number), "--for", "0")["silenced"] == 1
    assert alerts_by_id(machine)[number]["silenced_until"] is None
    assert mentions(error_of(machine.workspace, "alerts", "ack", "999", code=3), "alert 999", "gputui alerts")
    assert "'gpu_hott'" in error_of(machine.workspace, "alerts", "silence", "gpu_hott", code=3)
    assert machine.json("alerts", "ack", "--all")["ids"] is not None
    machine.kill_agent()
    assert "no agent runs" in alerts(machine)


def test_the_rules_in_force_and_where_they_come_from(machine: Machine) -> None:
    rules = {rule["id"]: rule for rule in json.loads(alerts(machine, "rules", "--json"))}
    assert list(rules) == list(RULES)
    assert rules["gpu_hot"]["sources"] == {}
    machine.workspace.alerts.write_text("gpu_hot: {above_celsius: 80, for: 2 min}\nshm: off\n")
    profile = machine.profile(
        "slow", "script: steps.py\ngpus: 0\nalerts: {slow_steps: {above_milliseconds: 900}, data_wait: off}\n"
    )
    lines = {line.split()[0]: line for line in alerts(machine, "rules", profile).splitlines() if line.strip()}
    assert "2 min" in lines["gpu_hot"]
    assert "above_celsius 80 °C" in lines["gpu_hot"]
    assert mentions(lines["gpu_hot"], RULES["gpu_hot"].thresholds[0].help, "alerts.yaml: above_celsius, for")
    assert "profile: above_milliseconds" in lines["slow_steps"]
    assert " off " in lines["data_wait"]
    assert "alerts.yaml: off" in lines["shm"]
    assert lines["xid"].endswith("standard")
    shape = {rule["id"]: rule for rule in json.loads(alerts(machine, "rules", "--json"))}
    assert shape["gpu_hot"]["thresholds"][0] == {
        "name": "above_celsius", "value": 80.0, "unit": "°C", "meaning": RULES["gpu_hot"].thresholds[0].help,
        "source": "alerts.yaml",
    }  # fmt: skip
