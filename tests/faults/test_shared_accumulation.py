"""Running out of memory with the defaults of a script whose ranks share the accumulation, as nanoGPT's do."""

from __future__ import annotations

import shutil
import sys

import pytest

from tests.faults.jobs import SCRIPTS
from tests.machine import Machine


@pytest.mark.long
def test_a_smaller_batch_gets_through_and_one_that_the_script_refuses_is_taken_back(machine: Machine) -> None:
    shutil.copy(SCRIPTS / "shares.py", machine.folder)
    profile = machine.profile(
        "shares",
        f"""
        name: shares
        launcher: torchrun
        script: shares.py
        python: {sys.executable}
        gpus: 0
        nproc: 2
        params:
          batch_size: 12
          gradient_accumulation_steps: {{default: 40, scope: global}}
          divisor: 1
        args: >-
          --batch_size {{batch_size}} --divisor {{divisor}}
          --gradient_accumulation_steps {{gradient_accumulation_steps}}
        checkpoints: {{dir: "{{run_dir}}/checkpoints", pattern: "step_*.pt", resume: "--resume {{checkpoint}}"}}
        """,
    )
    machine.gputui("run", profile, "--name", "plain")
    machine.gputui("run", profile, "--name", "picky", "--set", "divisor=4")
    for run_id, batches in (("plain-1", [(12, 40), (9, 54)]), ("picky-1", [(12, 40), (9, 54), (8, 60)])):
        assert machine.wait_for(run_id, "succeeded", "failed") == "succeeded"
        attempts = machine.json("show", run_id)["attempts"]
        params = [attempt["params"] for attempt in attempts]
        assert [(one["batch_size"], one["gradient_accumulation_steps"]) for one in params] == batches
        assert attempts[0]["incident"]["kind"] == "cuda_oom"
        assert attempts[-1]["resumed_from"].endswith("step_000010.pt")
        assert machine.steps(run_id)[-1] == (len(batches), 29)
