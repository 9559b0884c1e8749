"""Against a real driver, with nvidia-smi as the witness."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from gputui.gpu.model import GpuFacts
from tests.gpu.nvml_remote import Remote

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(shutil.which("nvidia-smi") is None, reason="no nvidia-smi on this machine, so no NVIDIA GPU"),
]


@pytest.fixture
def source() -> Iterator[Remote]:
    remote = Remote({})
    yield remote
    remote.tell("close")
    remote.end()


def witness(*fields: str) -> list[list[str]]:
    """What nvidia-smi says of each GPU, in the order of the fields."""
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"nvidia-smi does not work here: {done.stdout.strip()[:200]}")
    return [[value.strip() for value in line.split(",")] for line in done.stdout.splitlines()]


def test_the_same_gpus(source: Remote) -> None:
    def seen(facts: GpuFacts) -> list[str]:
        return [str(facts.index), facts.uuid, facts.name, (facts.pci_bus_id or "").upper()]

    theirs = witness("index", "uuid", "name", "pci.bus_id", "driver_version")
    inventory = source.inventory()
    assert [seen(gpu) for gpu in inventory.gpus] == [[*row[:3], row[3].upper()] for row in theirs]
    assert inventory.driver_version == theirs[0][4]


def test_the_same_values(source: Remote) -> None:
    source.inventory()
    source.fast()
    theirs = witness(
        "uuid", "memory.total", "memory.used", "memory.reserved", "temperature.gpu", "power.draw", "power.limit"
    )
    ours = {sample.uuid: sample for sample in source.fast().gpus}
    assert len(ours) == len(theirs)
    for uuid, total, used, reserved, temperature, power, limit in theirs:
        sample = ours[uuid]
        pairs = [
            (sample.memory_total_bytes, total, 2**20, 1),
            (sample.memory_used_bytes, used, 2**20, 64),
            (sample.memory_reserved_bytes, reserved, 2**20, 64),
            (sample.temperature_celsius, temperature, 1, 5),
            (sample.power_watts, power, 1, 60),
            (sample.power_limit_watts, limit, 1, 1),
        ]
        for mine, told, unit, tolerance in pairs:
            if told.startswith("["):  # "[N/A]", "[Not Supported]"
                assert mine is None
            else:
                assert mine is not None
                assert mine / unit == pytest.approx(float(told), abs=tolerance)


def test_all_tiers_answer_and_nothing_is_out_of_range(source: Remote) -> None:
    uuids = [gpu.uuid for gpu in source.inventory().gpus]
    source.tell("link_step")
    slow = source.slow()
    listed = source.processes()
    assert [sample.uuid for sample in slow.gpus] == uuids
    assert list(listed.processes) == uuids
    for sample in source.fast().gpus:
        assert sample.state == "ok", sample.detail
        assert sample.utilization_percent is None or 0 <= sample.utilization_percent <= 100
    for processes in listed.processes.values():
        assert all(0 < process.pid < 2**22 for process in processes or ())
    assert source.recheck() is None


def test_a_process_of_ours_is_seen_with_its_memory(source: Remote) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this torch has no CUDA")
    uuid = source.inventory().gpus[0].uuid
    index = [gpu.uuid for gpu in source.inventory().gpus].index(uuid)
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    held = torch.empty(2**30, dtype=torch.uint8, device=f"cuda:{index}")
    listed = source.processes().processes[uuid]
    mine = next((process for process in listed or () if process.pid == os.getpid()), None)
    del held
    if mine is None:
        pytest.skip("the driver's PIDs are not those of this PID namespace")
    assert mine.memory_bytes is not None
    assert mine.memory_bytes > 2**30
    assert mine.start_ticks is not None
