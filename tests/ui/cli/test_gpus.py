"""`gputui gpus`: its JSON beyond the samples, and the GPUs that it recommends."""

from __future__ import annotations

import json

import pytest

from benchmarks.fakenvml.build import FakeNvml
from gputui.store.agent import read_agent
from gputui.store.hardware import quarantined, read_gpus
from gputui.ui.cli.gpus import has_samples, stored_shapes
from tests.homes import NOW, Home
from tests.machine.conftest import fake_library, fake_nvml  # noqa: F401 - fixtures
from tests.machines import Machine
from tests.stories import overnight
from tests.tables import table
from tests.texts import mentions


@pytest.fixture
def home(home: Home) -> Home:
    overnight(home)
    return home


def test_gpus_tell_how_their_rank_does(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gputui.ui.cli.gpus.time.time", lambda: NOW)
    home.quarantine(4, "XID 48: double bit ECC error")
    home.xid(4, 48, "double bit ECC error")
    connection = home.connection
    shapes = stored_shapes(connection, read_gpus(connection, NOW), quarantined(connection))
    slow = shapes[2]
    assert slow["rank"] == 2
    assert slow["run_name"] == "gpt2-124m"
    assert slow["step_seconds"] == pytest.approx(0.45)
    assert slow["data_wait_fraction"] == pytest.approx(0.12 / 0.45)
    assert (slow["pcie_generation"], slow["pcie_width"], slow["memory_utilization_percent"]) == (5, 16, 6.0)
    free = shapes[4]
    assert free["step_seconds"] is None
    assert free["xids_last_day"] == 1
    assert free["quarantine"]["attempt"] == 2
    assert free["last_event"] == {"at": "2026-11-21T03:11:04.000Z", "code": 48, "text": "double bit ECC error"}
    json.dumps(shapes, allow_nan=False)


@table(
    ("state", "source", "started_before", "expected"),
    [
        ("ok", "nvml", 0.0, True),
        ("ok", "nvml", 3600.0, True),
        ("ok", "nvml", -3600.0, False),  # the samples are older than this agent
        ("starting", "nvml", -3600.0, False),
        ("dead", "nvml", -3600.0, True),  # an agent that is dead writes no newer ones
        ("starting", None, 3600.0, False),
    ],
)
def test_samples_of_an_earlier_agent_do_not_count(
    home: Home, state: str, source: str | None, started_before: float, expected: bool
) -> None:
    connection = home.connection
    gpus = read_gpus(connection, NOW)
    newest = max(gpu.at for gpu in gpus if gpu.at is not None)
    connection.execute(
        "UPDATE agent SET sampler_state = ?, source = ?, started_at = ?", (state, source, newest - started_before)
    )
    assert has_samples(read_agent(connection), gpus) is expected


def test_free_gpus_as_a_value_for_other_scripts(machine: Machine) -> None:
    machine.workspace.scenario.write_text("gpus: 4\nmemory: 80GiB\nseed: 31\n")
    recommendation = machine.json("gpus", "--recommend", "2")
    uuids = [gpu["uuid"] for gpu in recommendation["gpus"]]
    assert (
        recommendation["cuda_visible_devices"] == ",".join(uuids) == machine.gputui("gpus", "--recommend", "2").strip()
    )
    assert [gpu["index"] for gpu in recommendation["gpus"]] == [0, 1]
    assert recommendation["gpus"][0]["free_bytes"] > 70 * 2**30
    said = machine.gputui("gpus", "--recommend", "5", code=3)
    assert mentions(said, "4 of 5")
    assert len(said.splitlines()) == 1
    said = machine.gputui("gpus", "--recommend", "1", "--memory", "90GiB", code=3)
    assert mentions(said, "0 of 1", "GPU 0", "80 GiB", "90 GiB")
    assert "16GiB" in machine.gputui("gpus", "--recommend", "1", "--memory", "lots", code=2)


def test_gpus_that_the_home_leaves_to_others(machine: Machine) -> None:
    machine.workspace.scenario.write_text("gpus: 4\nmemory: 80GiB\n")
    machine.workspace.gpus.write_text("use: [0, 2]\n")
    # The first answer of a new agent knows of the file.
    assert [gpu["excluded"] for gpu in machine.json("gpus")] == [False, True, False, True]
    assert [gpu["index"] for gpu in machine.json("gpus", "--recommend", "2")["gpus"]] == [0, 2]
    machine.workspace.gpus.write_text("usee: [0, 2]\n")
    assert mentions(machine.gputui("gpus"), "gpus.yaml:1", "use")
    machine.workspace.gpus.write_text("use: [0, 2]\n")
    profile = machine.profile()
    said = machine.gputui("run", profile, "--gpus", "3,", code=3)
    assert mentions(said, "GPU 3", "gpus.yaml", "--gpus 0,2")
    assert len(said.splitlines()) == 1
    machine.gputui("run", profile, "--gpus", "all", "--set", "steps=1", "--wait")
    uuids = {gpu["uuid"]: gpu["index"] for gpu in machine.json("gpus")}
    assert [uuids[uuid] for uuid in machine.json("show", "steps-1")["gpus"]] == [0, 2]


def test_those_that_reach_each_other_fastest(machine: Machine, fake_nvml: FakeNvml) -> None:  # noqa: F811
    """Four GPUs on two CPUs, asked through the real binding: 0-1 on one PCIe switch, 2-3 with NVLink."""
    lines = ["gpus 4", "load 0", "path 0 1 10", "path 2 3 40", "nvlink 2 3"]
    fake_nvml.configure(lines)
    recommendation = machine.json("gpus", "--recommend", "2")
    assert [gpu["index"] for gpu in recommendation["gpus"]] == [2, 3]
    assert recommendation["links"] == [{"gpus": [2, 3], "path": "NVLink", "p2p": True}]
    assert recommendation["cuda_visible_devices"] == ",".join(gpu["uuid"] for gpu in recommendation["gpus"])
    fake_nvml.configure(lines[:-1])
    recommendation = machine.json("gpus", "--recommend", "2")
    assert [gpu["index"] for gpu in recommendation["gpus"]] == [0, 1]
    assert recommendation["links"][0]["path"] == "one PCIe switch"
    fake_nvml.configure(["gpus 4", "load 0", "unsupported nvmlDeviceGetTopologyCommonAncestor", "no_p2p"])
    recommendation = machine.json("gpus", "--recommend", "2")
    assert [gpu["index"] for gpu in recommendation["gpus"]] == [0, 1]
    assert recommendation["links"] == [{"gpus": [0, 1], "path": None, "p2p": False}]
