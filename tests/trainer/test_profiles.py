"""The shipped profiles: their parameters are settings of the trainer, their patterns match what the script prints."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.trainer.running import ROOT
from trainer.config import as_plain, from_arguments

PROFILES = ROOT / "profiles"


def read(name: str) -> dict[str, Any]:
    profile: dict[str, Any] = yaml.safe_load((PROFILES / name).read_text())
    return profile


@pytest.mark.parametrize("name", ["digits-ddp.yaml", "stdlib-lm.yaml"])
def test_every_parameter_is_a_setting_at_the_trainers_own_default(name: str) -> None:
    params = read(name)["params"]
    flags = [word for key, value in params.items() for word in (f"--{key}", str(value))]
    given = as_plain(from_arguments(flags, {})[0])
    default = as_plain(from_arguments(["--task", params["task"]], {})[0])
    differing = {key for key in given if given[key] != default[key]}
    assert differing == {"checkpoint_every", "timeout"}


def test_three_quarters_of_the_batch_keep_the_sum() -> None:
    for name in ("digits-ddp.yaml", "stdlib-lm.yaml"):
        params = read(name)["params"]
        assert params["batch_size"] * params["grad_accum"] == params["batch_size"] * 3 // 4 * (params["grad_accum"] + 1)


def test_the_custom_scripts_output_is_what_its_patterns_expect(tmp_path: Path) -> None:
    profile = read("custom-script.yaml")
    command = [sys.executable, str(PROFILES / profile["script"]), "--out", str(tmp_path), "--save-every", "20"]
    environment = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    first = subprocess.run([*command, "--iters", "30"], capture_output=True, text=True, check=True, env=environment)
    step, accuracy = (re.compile(pattern) for pattern in profile["metrics"]["patterns"])
    shown = first.stdout.splitlines()
    found = [step.match(line) for line in shown]
    assert [int(match["step"]) for match in found if match] == [10, 20, 30]
    assert all(float(match["loss"]) > 0 and float(match["samples_per_s"]) > 0 for match in found if match)
    last = accuracy.match(shown[-1])
    assert last and float(last["val_accuracy"]) > 0.1
    saved = sorted(path.name for path in tmp_path.glob(profile["checkpoints"]["pattern"]))
    assert saved == ["ckpt_20.pt", "ckpt_30.pt"]

    resume = profile["checkpoints"]["resume"].format(checkpoint=tmp_path / "ckpt_20.pt").split()
    again = subprocess.run(
        [*command, "--iters", "30", *resume], capture_output=True, text=True, check=True, env=environment
    )
    assert [line.partition(":")[0] for line in again.stdout.splitlines() if step.match(line)] == ["iter 30"]
