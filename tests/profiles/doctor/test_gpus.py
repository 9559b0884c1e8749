"""Checks of the driver, its GPUs and their links."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest
from msgspec.structs import replace

from benchmarks.fakenvml.build import FakeNvml
from gputui.core.config import Workspace
from gputui.machine.gpu_model import GpuFacts
from gputui.machine.topology import GpuPair
from gputui.profiles.doctor.bandwidth import Bandwidth, check_bandwidth, free_gpus, measure
from gputui.profiles.doctor.examine import check_interpreter, held_gpus
from gputui.profiles.doctor.gpus import (
    GpuReading,
    NotedGpus,
    check_driver,
    check_gpus,
    check_health,
    check_pcie,
    check_topology,
    read_gpus,
)
from gputui.profiles.probe import InterpreterAnswer
from gputui.runs.gpu_locks import GpuLocks
from gputui.store.series import GpuSample, GpuSlowSample
from tests.machine.conftest import fake_library, fake_nvml  # noqa: F401 - fixtures
from tests.texts import mentions

FACTS = tuple(
    GpuFacts(f"GPU-{n}", n, "H100", pcie_generation_max=5, pcie_width_max=16, persistence_mode=True, mig_mode=False)
    for n in (0, 1)
)
FIT = GpuReading(
    "nvml",
    driver_version="570.1",
    cuda=(12, 8),
    facts=FACTS,
    samples={gpu.uuid: GpuSample(gpu.uuid, utilization_percent=90.0) for gpu in FACTS},
    slow={gpu.uuid: GpuSlowSample(gpu.uuid, pcie_generation=5, pcie_width=16) for gpu in FACTS},
    pairs=(GpuPair(0, 1, p2p=True, nvlink=True),),
    nvlinks={0: 18, 1: 18},
)
ANSWER = InterpreterAnswer("3.12.1", "2.8.0", "12.8", "2.27.3", module=None, runnable=False, missing=())
FREE = replace(
    FIT,
    samples={gpu.uuid: GpuSample(gpu.uuid, utilization_percent=0.0, memory_used_bytes=2**20) for gpu in FACTS},
)
FAST = Bandwidth("nccl", 2, ((55e9, 54e9), (55e9, 54e9)), 360e9, 25e-6)


def slow_changed(reading: GpuReading, **changes: Any) -> GpuReading:
    return replace(reading, slow={**reading.slow, "GPU-0": replace(reading.slow["GPU-0"], **changes)})


def test_a_fit_machine_passes_everything() -> None:
    for result in check_gpus(FIT, NotedGpus(), has_hardware=True):
        assert result.status == "pass", result
    assert mentions(check_topology(FIT).detail, "1 of 1 pairs", "NVLink", "18 links", "all pairs")


def test_no_driver_fails_only_where_there_is_a_gpu() -> None:
    nothing = GpuReading("nvml", problem="No NVIDIA driver found")
    assert check_driver(nothing, has_hardware=True).status == "fail"
    assert check_driver(nothing, has_hardware=False).status == "warn"
    assert check_driver(GpuReading("simulated"), has_hardware=False).status == "skip"
    missing = check_driver(replace(FIT, problem="GPU 2 does not answer"), has_hardware=True)
    assert missing.status == "fail"
    assert "GPU 2" in missing.detail


def test_unhealthy_gpus() -> None:
    for reading, quarantined, status, phrase in [
        (replace(FIT, samples={"GPU-0": GpuSample("GPU-0", state="lost")}), {}, "fail", "GPU 0 is lost"),
        (slow_changed(FIT, row_remap_failed=True), {}, "fail", "could not be remapped"),
        (FIT, {"GPU-1": "XID 79"}, "fail", "GPU 1 is in quarantine (XID 79)"),
        (slow_changed(FIT, row_remap_pending=True), {}, "warn", "waits for a reset"),
        (slow_changed(FIT, ecc_uncorrected=3), {}, "warn", "3 uncorrectable"),
        (replace(FIT, facts=(replace(FACTS[0], mig_mode=True), FACTS[1])), {}, "warn", "MIG"),
        (GpuReading("nvml"), {}, "skip", "no GPUs"),
    ]:
        result = check_health(reading, NotedGpus(quarantined))
        assert result.status == status, (reading, quarantined, status, phrase)
        assert phrase in result.detail, (reading, quarantined, status, phrase)


def test_a_gpu_that_is_left_to_others_is_named_and_no_fault() -> None:
    result = check_health(FIT, NotedGpus(excluded={"GPU-1"}))
    assert result.status == "pass"
    assert mentions(result.detail, "healthy", "GPU 1", "gpus.yaml")


def test_a_narrow_link_counts_under_load_only() -> None:
    narrow = slow_changed(FIT, pcie_width=8)
    loaded = check_pcie(narrow)
    assert loaded.status == "warn"
    assert mentions(loaded.detail, "GPU 0", "5 ×8 of 5 ×16")
    idle = check_pcie(
        replace(narrow, samples={uuid: replace(s, utilization_percent=0.0) for uuid, s in FIT.samples.items()})
    )
    assert idle.status == "skip"
    assert "idle" in idle.detail
    assert check_pcie(replace(FIT, slow={})).status == "skip"


def test_topologies() -> None:
    apart = check_topology(replace(FIT, pairs=(GpuPair(0, 1, p2p=False, nvlink=False, path="two CPUs"),), nvlinks={}))
    assert apart.status == "warn"
    assert mentions(apart.detail, "0-1", "two CPUs")
    uneven = check_topology(replace(FIT, nvlinks={0: 18, 1: 17}))
    assert uneven.status == "warn"
    assert "GPU 1: 17" in uneven.detail
    assert check_topology(replace(FIT, pairs=(GpuPair(0, 1),))).status == "skip"
    assert check_topology(replace(FIT, facts=FIT.facts[:1])).detail == "fewer than two GPUs"


def test_torch_and_the_driver() -> None:
    for changes, reading, status, phrase in [
        ({}, FIT, "pass", "the driver supports up to 12.8"),
        ({"cuda": "13.0"}, FIT, "fail", "built for CUDA 13.0, the driver supports up to 12.8"),
        ({"cuda": "12.9"}, FIT, "warn", "of the same major"),
        ({"cuda": "11.8"}, FIT, "pass", "11.8"),
        ({"cuda": None}, FIT, "fail", "without CUDA"),
        ({"cuda": None}, GpuReading("nvml"), "pass", "no GPU"),
        ({"torch": None}, FIT, "warn", "has no torch"),
    ]:
        torch = check_interpreter("/env/python", replace(ANSWER, **changes), reading)[1]
        assert (torch.name, torch.status) == ("torch", status), changes
        assert phrase in torch.detail, changes


def test_the_driver_is_read_by_the_child(fake_nvml: FakeNvml) -> None:  # noqa: F811
    fake_nvml.configure(["gpus 2"])
    reading = read_gpus(None)
    assert reading.source == "nvml"
    assert reading.problem is None
    assert reading.driver_version
    assert [gpu.index for gpu in reading.facts] == [0, 1]
    assert {sample.state for sample in reading.samples.values()} == {"ok"}
    for gpu in reading.facts:
        assert reading.slow[gpu.uuid].pcie_generation is not None
        assert reading.slow[gpu.uuid].pcie_width is not None
    assert [(pair.first, pair.second) for pair in reading.pairs] == [(0, 1)]


# --- bandwidth


def test_only_free_gpus_are_measured() -> None:
    for changes, leased, free in [
        ({}, [], (0, 1)), ({}, ["GPU-0"], (1,)), ({"memory_used_bytes": 2**34}, [], (1,)),
        ({"memory_used_bytes": None}, [], (1,)), ({"utilization_percent": 40.0}, [], (1,)),
        ({"state": "lost"}, [], (1,)),
    ]:  # fmt: skip
        reading = replace(FREE, samples={**FREE.samples, "GPU-0": replace(FREE.samples["GPU-0"], **changes)})
        assert free_gpus(reading, leased) == free, (changes, leased)
    for reading in (replace(FREE, facts=()), replace(FREE, source="simulated")):
        assert free_gpus(reading, []) is None


def test_a_gpu_is_held_by_a_lease_here_or_by_a_lock_of_anybody(workspace: Workspace) -> None:
    # Simulated GPUs: their locks are in this home.
    workspace.scenario.touch()
    assert held_gpus(workspace, FREE, []) == []
    assert held_gpus(workspace, FREE, ["GPU-1"]) == ["GPU-1"]
    locks = GpuLocks.of(workspace).take(["GPU-0"])
    assert held_gpus(workspace, FREE, []) == ["GPU-0"]
    locks.close()


def test_figures_of_a_fit_machine() -> None:
    copies, reduced = check_bandwidth(FAST, FREE, (0, 1))
    assert (copies.status, reduced.status) == ("pass", "pass")
    assert mentions(copies.detail, "GPU 1", "55.0 GB/s", "54.0")
    assert mentions(reduced.detail, "360.0 GB/s", "25 µs", "2 GPUs", "nccl")


def test_slow_copies_and_an_unused_nvlink() -> None:
    slow = replace(FAST, copies=((55e9, 54e9), (12e9, 12e9)), bus_bytes_per_second=9e9)
    copies, reduced = check_bandwidth(slow, FREE, (0, 1))
    assert copies.status == "warn"
    assert mentions(copies.detail, "GPU 1", "63 GB/s")
    assert reduced.status == "warn"
    assert "slower than PCIe" in reduced.detail
    assert "NVLink" in (reduced.remedy or "")
    without = replace(FREE, pairs=(GpuPair(0, 1, p2p=True, nvlink=False),))
    assert check_bandwidth(slow, without, (0, 1))[1].status == "pass"


@pytest.mark.long
def test_two_real_processes_on_the_cpu() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    bandwidth = measure(sys.executable, os.environ, uuids=None)
    assert isinstance(bandwidth, Bandwidth), bandwidth
    assert (bandwidth.backend, bandwidth.world, bandwidth.copies) == ("gloo", 2, ())
    assert bandwidth.bus_bytes_per_second is not None
    assert bandwidth.bus_bytes_per_second > 1e6
    assert bandwidth.latency_seconds is not None
    assert 0 < bandwidth.latency_seconds < 1
