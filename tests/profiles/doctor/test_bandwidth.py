"""Which GPUs are measured, and what is said of the figures."""

from __future__ import annotations

import os
import sys

import pytest
from msgspec.structs import replace

from gputui.machine.gpu_model import GpuFacts
from gputui.machine.topology import GpuPair
from gputui.profiles.doctor.bandwidth import Bandwidth, check_bandwidth, free_gpus, measure
from gputui.profiles.doctor.gpus import GpuReading
from gputui.store.series import GpuSample
from tests.texts import mentions

FACTS = tuple(GpuFacts(f"GPU-{n}", n, "H100", pcie_generation_max=5, pcie_width_max=16) for n in (0, 1))
FREE = GpuReading(
    "nvml",
    facts=FACTS,
    samples={gpu.uuid: GpuSample(gpu.uuid, utilization_percent=0.0, memory_used_bytes=2**20) for gpu in FACTS},
    pairs=(GpuPair(0, 1, p2p=True, nvlink=True),),
)
FAST = Bandwidth("nccl", 2, ((55e9, 54e9), (55e9, 54e9)), 360e9, 25e-6)


def test_only_free_gpus_are_measured() -> None:
    for changes, leased, free in [
        ({}, [], (0, 1)),
        ({}, ["GPU-0"], (1,)),
        ({"memory_used_bytes": 2**34}, [], (1,)),
        ({"memory_used_bytes": None}, [], (1,)),
        ({"utilization_percent": 40.0}, [], (1,)),
        ({"state": "lost"}, [], (1,)),
    ]:
        reading = replace(FREE, samples={**FREE.samples, "GPU-0": replace(FREE.samples["GPU-0"], **changes)})
        assert free_gpus(reading, leased) == free, (changes, leased, free)
        assert free_gpus(replace(FREE, facts=()), []) is None, (changes, leased, free)
        assert free_gpus(replace(FREE, source="simulated"), []) is None, (changes, leased, free)


def test_figures_of_a_fit_machine() -> None:
    copies, reduced = check_bandwidth(FAST, FREE, (0, 1))
    assert (copies.status, reduced.status) == ("pass", "pass")
    assert mentions(copies.detail, "GPU 1", "55.0 GB/s", "54.0")
    assert mentions(reduced.detail, "360.0 GB/s", "25 µs", "2 GPUs", "nccl")


def test_slow_copies_and_an_unused_nvlink() -> None:
    slow = replace(FAST, copies=((55e9, 54e9), (12e9, 12e9)), bus_bytes_per_second=9e9)
    copies, reduced = check_bandwidth(slow, FREE, (0, 1))
    assert copies.status == "warn" and mentions(copies.detail, "GPU 1", "63 GB/s")
    assert reduced.status == "warn" and "slower than PCIe" in reduced.detail and "NVLink" in (reduced.remedy or "")
    without = replace(FREE, pairs=(GpuPair(0, 1, p2p=True, nvlink=False),))
    assert check_bandwidth(slow, without, (0, 1))[1].status == "pass"


@pytest.mark.long
def test_two_real_processes_on_the_cpu() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    found = measure(sys.executable, os.environ, None)
    assert isinstance(found, Bandwidth), found
    assert (found.backend, found.world, found.copies) == ("gloo", 2, ())
    assert found.bus_bytes_per_second is not None and found.bus_bytes_per_second > 1e6
    assert found.latency_seconds is not None and 0 < found.latency_seconds < 1
