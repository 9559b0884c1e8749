"""The endpoint of a real recorder, read by HTTP."""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import wait_until
from tests.machines import Machine

# Debian's package prometheus has both programs.
needs_prometheus = pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not installed")


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path)
    machine.workspace.scenario.write_text("gpus: 2\nmemory: 80GiB\nseed: 71\n")
    yield machine
    machine.close()


@pytest.fixture
def endpoint(machine: Machine) -> Iterator[str]:
    """The address that a recorder of simulated GPUs listens on."""
    recorder = machine.start("--record", "--interval", "0.2", "--prometheus", "127.0.0.1:0")
    try:
        assert recorder.stderr is not None
        line = recorder.stderr.readline()
        match = re.fullmatch(r"gputui: metrics for Prometheus on (http://127\.0\.0\.1:\d+/metrics)\n", line)
        assert match, line
        wait_until(lambda: "gputui_gpu_power_watts{" in read(match.group(1)), what="the first sample")
        yield match.group(1)
    finally:
        recorder.send_signal(signal.SIGTERM)
        recorder.communicate(timeout=60)


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return str(answer.read().decode())


def test_it_listens_on_loopback_and_tells_what_is_recorded(machine: Machine, endpoint: str) -> None:
    text = read(endpoint)
    assert 'gputui_gpu_up{gpu="0"' in text
    assert "gputui_store_readable 1.0" in text
    port = urllib.parse.urlsplit(endpoint).port
    listening = Path("/proc/net/tcp").read_text()
    assert f"0100007F:{port:04X}" in listening
    assert f"00000000:{port:04X}" not in listening
    machine.gputui("run", machine.profile(), "--set", "steps=400")
    machine.wait_for("steps-1", "running")
    wait_until(lambda: 'gputui_run_step{name="steps",rank="' in read(endpoint), what="the run's steps")
    machine.gputui("stop", "steps-1")
    machine.wait_for("steps-1", "stopped")
    wait_until(lambda: 'gputui_runs{state="stopped"} 1.0' in read(endpoint), what="the run's end")


def test_what_cannot_be_listened_on_is_said(machine: Machine) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        said = machine.gputui("--record", "--prometheus", f"127.0.0.1:{listener.getsockname()[1]}", code=3)
    assert "cannot listen on 127.0.0.1" in said
    assert "choose another port" in said


@pytest.mark.long
@needs_prometheus
def test_a_real_prometheus_scrapes_it_and_evaluates_the_rules(machine: Machine, endpoint: str, tmp_path: Path) -> None:
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=read(endpoint), capture_output=True, text=True, timeout=60, check=False
    )
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")
    rules = tmp_path / "rules.yml"
    rules.write_text(machine.gputui("agent", "prometheus", "rules"))
    subprocess.run(["promtool", "check", "rules", str(rules)], check=True, timeout=60, stdout=subprocess.DEVNULL)
    settings = tmp_path / "prometheus.yml"
    jobs = [{"job_name": "gputui", "static_configs": [{"targets": [urllib.parse.urlsplit(endpoint).netloc]}]}]
    often = dict.fromkeys(("scrape_interval", "scrape_timeout", "evaluation_interval"), "200ms")
    settings.write_text(json.dumps({"global": often, "rule_files": [str(rules)], "scrape_configs": jobs}))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with (tmp_path / "prometheus.log").open("w") as log:
        server = subprocess.Popen(
            ["prometheus", f"--config.file={settings}", f"--storage.tsdb.path={tmp_path / 'tsdb'}",
             f"--web.listen-address={address}"],
            stdout=log, stderr=log,
        )  # fmt: skip
    try:

        def ask(path: str) -> Any:
            try:
                return json.loads(read(f"http://{address}/api/v1/{path}"))["data"]
            except OSError:
                return None

        def value(expression: str) -> str | None:
            data = ask(f"query?query={urllib.parse.quote(expression)}")
            return data["result"][0]["value"][1] if data and data["result"] else None

        wait_until(lambda: value("sum(gputui_gpu_up)") == "2", what="the scrape")
        assert value('up{job="gputui"}') == "1"
        # A GPU that is lost is noticed from outside; the alert fires at once.
        machine.workspace.scenario.write_text(
            "gpus: 2\nmemory: 80GiB\nseed: 71\nfaults: [{at: 1, gpu: 1, kind: lost}]\n"
        )

        def states() -> dict[str, str]:
            data = ask("rules")
            return {
                rule["name"]: f"{rule['health']} {rule['state']}"
                for group in (data or {}).get("groups", ())
                for rule in group["rules"]
            }

        wait_until(lambda: states().get("GpuLost") == "ok firing", what="the alert on a lost GPU")
        outcomes = states()
        assert len(outcomes) >= 20, outcomes
        assert all(state.startswith("ok ") for state in outcomes.values()), outcomes
        assert outcomes["GputuiGone"] == "ok inactive"
    finally:
        server.terminate()
        server.wait(60)
