"""Ranks below launchers that gputui did not start itself: the cause is that of the rank, whatever the wrapper says."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path

import pytest

from tests.faults.jobs import SCRIPTS
from tests.machines import Machine

TORCHRUN = f"{sys.executable} -m torch.distributed.run --standalone --nproc-per-node=2 wrapped.py"
STAGES = f"""set -e
{sys.executable} -c 'print("stage 1")'
{TORCHRUN} "$@"
"""


def profile(machine: Machine, name: str, command: str) -> str:
    shutil.copy(SCRIPTS / "wrapped.py", machine.folder)
    (machine.folder / "Makefile").write_text(f"train:\n\t{TORCHRUN} $(FAULT) $(BATCH) $(RESUME)\n")
    (machine.folder / "stages.sh").write_text(STAGES)
    _share = "RESUME=" if name == "make" else ""
    return machine.profile(
        name,
        f"""
        name: {name}
        launcher: command
        command: {command}
        args: ""
        gpus: 0
        params: {{batch_size: 16, grad_accum: 3}}
        metrics: {{source: jsonl, path: "{{run_dir}}/metrics.jsonl"}}
        checkpoints: {{dir: "{{run_dir}}/checkpoints", pattern: "step_*.pt", resume: "RESUME={{checkpoint}}"}}
        recovery: {{policy: standard, backoff: {{base: 0}}}}
        """.replace("RESUME=", _share),
    )


@pytest.mark.long
def test_make_and_a_shell_script_hide_neither_memory_nor_a_kill(machine: Machine) -> None:
    machine.gputui("run", profile(machine, "make", "make train FAULT=oom BATCH={batch_size}"))
    machine.gputui("run", profile(machine, "stages", "bash stages.sh kill {batch_size}"))
    for run_id, kind, batch in (("make-1", "cuda_oom", 12), ("stages-1", "killed", 16)):
        assert machine.wait_for(run_id, "succeeded", "failed") == "succeeded"
        first, second = machine.json("show", run_id)["attempts"]
        assert (first["incident"]["kind"], first["incident"]["rank"]) == (kind, 1)
        assert second["params"]["batch_size"] == batch
        assert machine.steps(run_id)[-1] == (2, 19)
    # What ranks record themselves lies below the attempt's folder, although nobody gave torchrun one.
    ranks = machine.workspace.run_dir("make-1") / "attempts/1/nodes/0/ranks"
    assert list(ranks.glob("*/attempt_0/1/error.json"))


@pytest.mark.long
@pytest.mark.skipif(importlib.util.find_spec("accelerate") is None, reason="accelerate is not installed")
def test_accelerate_launch_hides_no_memory_error(machine: Machine) -> None:
    accelerate = Path(sys.executable).with_name("accelerate")
    command = f"{accelerate} launch --multi_gpu --num_processes 2 --main_process_port 0 wrapped.py oom {{batch_size}}"
    machine.gputui("run", profile(machine, "accelerate", command))
    assert machine.wait_for("accelerate-1", "succeeded", "failed") == "succeeded"
    first, second = machine.json("show", "accelerate-1")["attempts"]
    assert (first["incident"]["kind"], first["incident"]["rank"]) == ("cuda_oom", 1)
    assert "accelerate" not in first["incident"]["summary"]
    assert (second["params"]["batch_size"], second["params"]["grad_accum"]) == (12, 4)
