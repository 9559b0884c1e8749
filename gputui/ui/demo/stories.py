"""What happened in the demo's past: its runs and their attempts, and the profiles and the script that they were started
with, which are in a git checkout."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from gputui.core.config import Workspace
from gputui.runs.code_version import run_git
from gputui.ui.demo import simulated_trainer
from gputui.ui.demo.simulated_trainer import KEPT_CHECKPOINTS, OOM, VALIDATION_STEPS

STUDY = "vit-lr"
STUDY_FILE = """\
# Which learning rate, weight decay and batch size for the vision transformer? gputui study run vit-lr
name: vit-lr
description: Learning rate, weight decay and batch size of ViT-B/16 (simulated)
profile: vit-b16
params: {steps: 1200}
space:
  lr: {type: float, min: 1.0e-5, max: 1.0e-2, log: true}
  weight_decay: {type: float, min: 0.0, max: 0.3}
  batch_size: [128, 256, 384]
objective: {metric: val/loss}
sampler: random
pruner: {kind: median, length: steps, rungs: 12, startup: 5, warmup: 2}
budget: {trials: 24}
parallel: 4
seed: 6
"""

HOUR = 3600.0
DAY = 24 * HOUR

STUDY_AGO = 3.2 * DAY
"""How long ago the study began."""

CHANGED_AGO = 26 * HOUR
"""How long ago the script began to validate as often as now."""

MAX_LINES = 400
"""About how many steps an attempt writes; a line for each step would only take time."""

KEY_ERROR = """\
Traceback (most recent call last):
  File "/srv/train/train.py", line 41, in <module>
    batch = collate(next(iter(loader)))
  File "/srv/train/data.py", line 17, in collate
    return {"labels": torch.stack([row["labels"] for row in rows])}
KeyError: 'labels'
"""
BUS_ERROR = """\
[rank3]: Traceback (most recent call last):
[rank3]:   File "/srv/train/train.py", line 88, in <module>
[rank3]:     loss.backward()
[rank3]: torch.AcceleratorError: CUDA error: unspecified launch failure
"""
FAULT = BUS_ERROR.replace("rank3", "rank1")

# What each profile trains: GPUs, steps.
TRAININGS = {
    "gpt2-124m": ("GPT-2 124M on FineWeb", 4, 120_000),
    "resnet50": ("ResNet-50 on ImageNet-1k", 4, 90_000),
    "vit-b16": ("Vision transformer B/16, ImageNet-1k", 2, 90_000),
    "bert-mlm": ("BERT base, masked words", 2, 90_000),
}

PROFILE = """\
name: {name}
description: {description} (simulated)
launcher: python
script: train.py
gpus: {gpus}
min_gpus: 2
params:
  batch_size: {{default: {batch_size}, min: 1, help: samples per step and rank}}
  grad_accum: {{default: 1, min: 1}}
  steps: {steps}
  lr: {{default: 0.0006, min: 0, help: peak learning rate}}
  weight_decay: {{default: 0.1, min: 0}}
args: --out {{run_dir}} --model {name} --steps {{steps}} --batch-size {{batch_size}} --grad-accum {{grad_accum}} \
--lr {{lr}} --weight-decay {{weight_decay}}
metrics: {{source: jsonl, path: "{{run_dir}}/metrics.jsonl"}}
checkpoints: {{dir: "{{run_dir}}/checkpoints", pattern: "step_*.safetensors", resume: "--resume {{checkpoint}}"}}
"""


class Act(Struct, frozen=True):
    """One attempt.

    Attributes:
        log: the end of its output.
        code: its exit code.
        xid: what the driver reported of its last GPU; None if nothing.
        is_stopped: a person or a study stopped it.
        pruned: why its study pruned it.
        max_lines: about how many steps it writes.
        checkpoints: how many it leaves.
        is_live: it trains on when the demo begins.
        fails_after: of a live one: after how many steps it runs out of memory; None if it does not.
        batch_size: with what its run was resumed after a stop.
        start_seconds: the time before its first step.
        step_seconds: None for that of its model.
    """

    last_step: int
    log: str = ""
    code: int = 0
    xid: int | None = None
    is_stopped: bool = False
    pruned: str | None = None
    max_lines: int = MAX_LINES
    checkpoints: int = KEPT_CHECKPOINTS
    is_live: bool = False
    fails_after: int | None = None
    batch_size: int | None = None
    start_seconds: float = 18.0
    step_seconds: float | None = None


class Story(Struct, frozen=True):
    """One run.

    Attributes:
        began_ago: seconds from its launch to now.
        gpus: their indices.
        acts: its attempts; one without any is queued.
        actor: who launched it.
        lr: None for the learning rate of its profile.
    """

    profile: str
    began_ago: float
    gpus: tuple[int, ...]
    acts: tuple[Act, ...]
    actor: str = "ada"
    lr: float | None = None


STORIES = (
    Story("resnet50", 6.2 * DAY, (0, 1, 2, 3), (Act(90_000),)),
    Story("vit-b16", 4.1 * DAY, (4, 5), (Act(34_150, OOM, 1, checkpoints=1), Act(90_000))),
    Story("gpt2-124m", 2.3 * DAY, (4, 5, 6, 7), (Act(46_950, BUS_ERROR, 1, xid=79, checkpoints=1), Act(120_000))),
    Story("bert-mlm", 1.2 * DAY, (0, 1), (Act(0, KEY_ERROR, 1),), "bob"),
    Story("vit-b16", 22 * HOUR, (4, 6), (Act(90_000),), lr=0.0015),
    Story(
        "vit-b16",
        7.5 * HOUR,
        (4, 6),
        (Act(4_150, OOM, 1, checkpoints=1), Act(52_910, FAULT, 1), Act(0, is_live=True)),
        lr=0.00025,
    ),
    Story(
        "gpt2-124m",
        5.51 * HOUR,
        (0, 1, 2, 3),
        (
            Act(49_320, is_stopped=True),
            Act(0, is_live=True, batch_size=128, fails_after=24, start_seconds=8.0),
        ),
    ),
    Story("resnet50", 55.0, (), (), "bob"),
)


def write_profiles(workspace: Workspace, at: float) -> None:
    """Write the profiles, the script that they start, and the file of a study, committed at a time (UTC)."""
    folder = workspace.profiles
    for name, (description, gpus, steps) in TRAININGS.items():
        batch_size = simulated_trainer.MODELS[name].usual_samples
        text = PROFILE.format(name=name, description=description, gpus=gpus, steps=steps, batch_size=batch_size)
        (folder / f"{name}.yaml").write_text(text, "utf-8")
    workspace.study_files.mkdir(exist_ok=True)
    (workspace.study_files / f"{STUDY}.yaml").write_text(STUDY_FILE, "utf-8")
    _write_script(folder, 5 * VALIDATION_STEPS)
    _commit(folder, "Train the four models", at)


def change_script(folder: Path, at: float) -> Iterator[float]:
    """Let the script validate as often as now, which compare shows as a difference of the code; nothing of it is left
    for later."""
    _write_script(folder, VALIDATION_STEPS)
    _commit(folder, f"Validate every {VALIDATION_STEPS} steps", at)
    yield from ()


def _write_script(folder: Path, validation_steps: int) -> None:
    script = Path(simulated_trainer.__file__).read_text("utf-8")
    setting = f"VALIDATION_STEPS = {validation_steps}"
    changed = re.sub(rf"^VALIDATION_STEPS = {VALIDATION_STEPS}\b", setting, script, flags=re.MULTILINE)
    (folder / "train.py").write_text(changed, "utf-8")


def _commit(folder: Path, subject: str, at: float) -> None:
    """Commit all files, so that runs have a version of their code; without git they have none."""
    environment = {"GIT_CONFIG_GLOBAL": os.devnull}
    for who in ("AUTHOR", "COMMITTER"):
        environment |= {f"GIT_{who}_NAME": "ada", f"GIT_{who}_EMAIL": "ada@example.org"}
        environment[f"GIT_{who}_DATE"] = f"{at:.0f} +0000"
    head = "symbolic-ref", "HEAD", "refs/heads/main"
    for argv in (("init",), head, ("add", "--all"), ("commit", "--message", subject)):
        run_git(folder, *argv, environment=environment)
