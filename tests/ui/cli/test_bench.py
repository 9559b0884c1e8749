"""`gputui bench scaling`, with real runs through the normal path."""

from __future__ import annotations

import json
import sys

import pytest

from tests.machines import Machine
from tests.ui.cli.program import error_of

SCRIPT = """
import json, os, time
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
with open(os.environ["GPUTUI_METRICS"], "a") as file:
    for step in range(20):
        line = {"step": step, "time": time.time(), "rank": rank, "loss": 1.0, "step_time": 0.01 * size,
                "comm_time": 0.01 * (size - 1), "data_time": 0.0, "samples_per_s": 100.0}
        file.write(json.dumps(line) + "\\n")
"""


def profile(machine: Machine, launcher: str = "torchrun") -> str:
    (machine.folder / "scale.py").write_text(SCRIPT)
    return machine.profile(
        "scale",
        f"""
        name: scale
        launcher: {launcher}
        script: scale.py
        python: {sys.executable}
        gpus: 0
        metrics: {{source: jsonl, path: "{{run_dir}}/metrics.jsonl"}}
        """,
    )


@pytest.mark.long
def test_ordinary_runs_one_after_the_other(machine: Machine) -> None:
    rows = json.loads(machine.gputui("bench", "scaling", profile(machine), "--processes", "2,1", "--json"))
    assert [(row["ranks"], row["speed_up"], row["efficiency"]) for row in rows] == [(1, 1.0, 1.0), (2, 1.0, 0.5)]
    assert rows[1]["comm_share"] == pytest.approx(0.5)
    assert rows[1]["extra_comm_seconds"] == pytest.approx(0.01)
    assert {run["id"]: run["state"] for run in machine.json("ps")} == {
        "scale-x1-1": "succeeded", "scale-x2-1": "succeeded",
    }  # fmt: skip


def test_what_cannot_be_compared_is_said(machine: Machine) -> None:
    path = profile(machine, "python")
    for options, mentioned in (
        (("--processes", "1,2"), "one process only"),
        (("--gpus", "2"), "two"),
        ((), "--gpus 1,2,4"),
    ):
        assert mentioned in error_of(machine.workspace, "bench", "scaling", path, *options, code=2), options
