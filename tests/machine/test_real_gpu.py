"""Against a real driver, with nvidia-smi as the witness."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator

import pytest

from tests.machine.nvml_remote import Remote

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
    """The output of nvidia-smi for each GPU, in the order of the fields."""
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"nvidia-smi does not work here: {done.stdout.strip()[:200]}")
    return [[value.strip() for value in line.split(",")] for line in done.stdout.splitlines()]


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
        for mine, text, unit, tolerance in pairs:
            if text.startswith("["):  # "[N/A]", "[Not Supported]"
                assert mine is None
            else:
                assert mine is not None
                assert mine / unit == pytest.approx(float(text), abs=tolerance)
