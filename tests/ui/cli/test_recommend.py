"""`gputui gpus --recommend`, for scripts that launch by themselves."""

from __future__ import annotations

from benchmarks.fakenvml.build import FakeNvml
from tests.machine.conftest import fake_library, fake_nvml  # noqa: F401 - fixtures
from tests.machines import Machine
from tests.texts import mentions


def test_free_gpus_as_a_value_for_other_scripts(machine: Machine) -> None:
    machine.workspace.scenario.write_text("gpus: 4\nmemory: 80GiB\nseed: 31\n")
    found = machine.json("gpus", "--recommend", "2")
    uuids = [gpu["uuid"] for gpu in found["gpus"]]
    assert found["cuda_visible_devices"] == ",".join(uuids) == machine.gputui("gpus", "--recommend", "2").strip()
    assert [gpu["index"] for gpu in found["gpus"]] == [0, 1] and found["gpus"][0]["free_bytes"] > 70 * 2**30
    said = machine.gputui("gpus", "--recommend", "5", code=3)
    assert mentions(said, "4 of 5") and len(said.splitlines()) == 1
    said = machine.gputui("gpus", "--recommend", "1", "--memory", "90GiB", code=3)
    assert mentions(said, "0 of 1", "GPU 0", "80 GiB", "90 GiB")
    assert "16GiB" in machine.gputui("gpus", "--recommend", "1", "--memory", "lots", code=2)
    assert "--memory goes with --recommend" in machine.gputui("gpus", "--memory", "1GiB", code=2)


def test_those_that_reach_each_other_fastest(machine: Machine, fake_nvml: FakeNvml) -> None:  # noqa: F811
    """Four GPUs on two CPUs, asked through the real binding: 0-1 on one PCIe switch, 2-3 with NVLink."""
    lines = ["gpus 4", "load 0", "path 0 1 10", "path 2 3 40", "nvlink 2 3"]
    fake_nvml.configure(lines)
    found = machine.json("gpus", "--recommend", "2")
    assert [gpu["index"] for gpu in found["gpus"]] == [2, 3]
    assert found["links"] == [{"gpus": [2, 3], "path": "NVLink", "p2p": True}]
    assert found["cuda_visible_devices"] == ",".join(gpu["uuid"] for gpu in found["gpus"])
    fake_nvml.configure(lines[:-1])
    found = machine.json("gpus", "--recommend", "2")
    assert [gpu["index"] for gpu in found["gpus"]] == [0, 1] and found["links"][0]["path"] == "one PCIe switch"
    fake_nvml.configure(["gpus 4", "load 0", "unsupported nvmlDeviceGetTopologyCommonAncestor", "no_p2p"])
    found = machine.json("gpus", "--recommend", "2")
    assert [gpu["index"] for gpu in found["gpus"]] == [0, 1]
    assert found["links"] == [{"gpus": [0, 1], "path": None, "p2p": False}]
