"""Which GPUs are measured, and what is said of the figures."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gputui.config import Workspace
from gputui.doctor import examine
from gputui.doctor.bandwidth import Bandwidth, decode, free_gpus, judge_bandwidth, measure, pcie_bytes_per_second
from gputui.doctor.examine import Interpreter
from gputui.doctor.gpu_probe import GpuPair, GpuReading
from gputui.gpu.model import GpuFacts, GpuSample
from gputui.profiles.probe import InterpreterAnswer
from tests.texts import mentions

FACTS = tuple(GpuFacts(f"GPU-{n}", n, "H100", pcie_generation_max=5, pcie_width_max=16) for n in (0, 1))
FREE = GpuReading(
    "nvml",
    facts=FACTS,
    samples={gpu.uuid: GpuSample(gpu.uuid, utilization_percent=0.0, memory_used_bytes=2**20) for gpu in FACTS},
    pairs=(GpuPair(0, 1, p2p=True, nvlink=True),),
)
FAST = Bandwidth("nccl", 2, ((55e9, 54e9), (55e9, 54e9)), 360e9, 25e-6)


@pytest.mark.parametrize(
    ("changes", "leased", "free"),
    [
        ({}, [], (0, 1)),
        ({}, ["GPU-0"], (1,)),
        ({"memory_used_bytes": 2**34}, [], (1,)),
        ({"memory_used_bytes": None}, [], (1,)),
        ({"utilization_percent": 40.0}, [], (1,)),
        ({"state": "lost"}, [], (1,)),
    ],
)
def test_only_free_gpus_are_measured(changes: dict[str, Any], leased: list[str], free: tuple[int, ...]) -> None:
    reading = replace(FREE, samples={**FREE.samples, "GPU-0": replace(FREE.samples["GPU-0"], **changes)})
    assert free_gpus(reading, leased) == free
    assert free_gpus(replace(FREE, facts=()), []) is None
    assert free_gpus(replace(FREE, source="simulated"), []) is None


def test_figures_of_a_fit_machine() -> None:
    copies, reduced = judge_bandwidth(FAST, FREE, (0, 1))
    assert (copies.status, reduced.status) == ("pass", "pass")
    assert mentions(copies.detail, "GPU 1", "55.0 GB/s", "54.0")
    assert mentions(reduced.detail, "360.0 GB/s", "25 µs", "2 GPUs", "nccl")


def test_slow_copies_and_an_unused_nvlink() -> None:
    slow = replace(FAST, copies=((55e9, 54e9), (12e9, 12e9)), bus_bytes_per_second=9e9)
    copies, reduced = judge_bandwidth(slow, FREE, (0, 1))
    assert copies.status == "warn" and mentions(copies.detail, "GPU 1", "63 GB/s")
    assert reduced.status == "warn" and "slower than PCIe" in reduced.detail and "NVLink" in (reduced.remedy or "")
    without = replace(FREE, pairs=(GpuPair(0, 1, p2p=True, nvlink=False),))
    assert judge_bandwidth(slow, without, (0, 1))[1].status == "pass"


def test_one_gpu_and_none() -> None:
    single = judge_bandwidth(Bandwidth("nccl", 1, ((55e9, 54e9),)), FREE, (1,))
    assert [result.status for result in single] == ["pass", "skip"] and single[0].detail.startswith("GPU 1 ")
    cpu = judge_bandwidth(Bandwidth("gloo", 2, (), 1e9, 2e-4), GpuReading("nvml"), None)
    assert [result.status for result in cpu] == ["skip", "pass"] and mentions(cpu[1].detail, "CPU", "gloo")
    (failed,) = judge_bandwidth("did not answer within 120 s", FREE, (0,))
    assert failed.status == "fail" and failed.remedy


def test_links() -> None:
    assert pcie_bytes_per_second(4, 16) == pytest.approx(31.5e9, rel=0.001)
    assert pcie_bytes_per_second(None, 16) is None and pcie_bytes_per_second(5, None) is None


def test_an_interpreter_that_cannot_measure(tmp_path: Path) -> None:
    """A Python stand-in that complains as torchrun does, and one that hangs."""
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho 'RuntimeError: no NCCL here' >&2\necho '=====' >&2\nexit 1\n")
    hung = tmp_path / "hung"
    hung.write_text("#!/bin/sh\nexec sleep 60\n")
    for script in (broken, hung):
        script.chmod(0o700)
    assert mentions(measure(str(broken), os.environ, None), "RuntimeError: no NCCL here")
    assert mentions(measure(str(hung), os.environ, None, deadline_seconds=0.2), "0.2 s")


def test_what_cannot_be_measured_is_skipped_and_says_why(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interpreter = Interpreter("/env/python", {}, str(tmp_path))
    answer = InterpreterAnswer("3.11.7", None, None, None, None, False, ())
    busy = replace(FREE, samples={gpu.uuid: GpuSample(gpu.uuid, utilization_percent=90.0) for gpu in FACTS})
    monkeypatch.setattr(examine, "read_gpus", lambda _scenario: busy)
    for python, words in ((answer, "has no torch"), (replace(answer, torch="2.9.0"), "no GPU is free")):
        monkeypatch.setattr(examine, "ask_interpreter", lambda *_, needed, python=python: python)
        last = examine.examine(workspace, interpreter, 0.0, bandwidth=True)[-1]
        assert (last.name, last.status) == ("bandwidth", "skip") and words in last.detail


@pytest.mark.long
def test_two_real_processes_on_the_cpu() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    found = measure(sys.executable, os.environ, None)
    assert isinstance(found, Bandwidth), found
    assert (found.backend, found.world, found.copies) == ("gloo", 2, ())
    assert found.bus_bytes_per_second is not None and found.bus_bytes_per_second > 1e6
    assert found.latency_seconds is not None and 0 < found.latency_seconds < 1


def test_what_the_script_prints_is_understood() -> None:
    each = '{"to_gpu_bytes_per_second": 2.0, "from_gpu_bytes_per_second": 1.0}'
    figures = '"bus_bytes_per_second": null, "latency_seconds": null'
    text = f'{{"backend": "nccl", "world": 1, "copies": [{each}], {figures}}}'
    assert decode(json.loads(text)) == Bandwidth("nccl", 1, ((2.0, 1.0),))
