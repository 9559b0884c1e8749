"""`gputui gpus --recommend`, for scripts that launch by themselves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.machine import Machine


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    yield made
    made.close()


def test_free_gpus_as_a_value_for_other_scripts(machine: Machine) -> None:
    machine.workspace.scenario.write_text("gpus: 4\nmemory: 80GiB\nseed: 31\n")
    found = machine.json("gpus", "--recommend", "2")
    uuids = [gpu["uuid"] for gpu in found["gpus"]]
    assert found["cuda_visible_devices"] == ",".join(uuids) == machine.gputui("gpus", "--recommend", "2").strip()
    assert [gpu["index"] for gpu in found["gpus"]] == [0, 1] and found["gpus"][0]["free_bytes"] > 70 * 2**30
    said = machine.gputui("gpus", "--recommend", "5", code=3)
    assert "4 of 5 GPUs can be had now" in said and len(said.splitlines()) == 1
    said = machine.gputui("gpus", "--recommend", "1", "--memory", "90GiB", code=3)
    assert "0 of 1 GPUs can be had now: GPU 0 has 80 GiB, not 90 GiB" in said
    assert "expected a size such as 16GiB" in machine.gputui("gpus", "--recommend", "1", "--memory", "lots", code=2)
    assert "--memory goes with --recommend" in machine.gputui("gpus", "--memory", "1GiB", code=2)
