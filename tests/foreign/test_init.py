"""`gputui init`: a profile from a script that was never run, which `gputui check` passes and which trains."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from gputui.profiles.draft import Draft, Preset, draft
from gputui.profiles.loading import Profile, read_profile
from gputui.profiles.script_survey import SurveyError
from gputui.profiles.typed_command import DraftError
from tests import forkserver
from tests.conftest import wait_until
from tests.machine import Machine

PROGRAMS = Path(__file__).parent / "programs"


def copied(folder: Path, name: str) -> Path:
    shutil.copytree(PROGRAMS, folder / "programs", ignore=shutil.ignore_patterns("__pycache__"))
    return folder / "programs" / name


def drafted(folder: Path, *words: str, preset: Preset | None = None, gpus: int = 0) -> tuple[Draft, Profile]:
    made = draft(words, folder, preset=preset, gpus=gpus)
    return made, read_profile(made.text, folder / f"{made.name}.yaml")


CASES: dict[str, tuple[str, tuple[str, ...], Preset | None, dict[str, Any]]] = {
    "nanogpt": (
        "nanogpt", ("train.py",), None,
        {"launcher": "torchrun", "params": {"batch_size": 12, "gradient_accumulation_steps": 40, "learning_rate": 6e-4},
         "metrics": ["output"], "checkpoints": ("{run_dir}/out", "ckpt.pt", ["--init_from=resume"])},
    ),
    "timm": (
        "timm_form", ("torchrun", "--nproc-per-node=2", "train.py", "--epochs", "3", "--clip-grad", "1.0"), "timm",
        {"launcher": "torchrun", "nproc": 2,
         "params": {"epochs": 3, "clip_grad": 1.0, "batch_size": 16, "grad_accum_steps": 1, "lr": None,
                    "grad_checkpointing": False, "workers": 0},
         "metrics": ["output"], "checkpoints": ("{run_dir}/out", "**/*.pth.tar", ["--resume", "{checkpoint}"])},
    ),
    "hf": (
        "hf_form", ("train.py",), "hf",
        {"launcher": "torchrun", "metrics": ["hf"], "roles": {"batch_size": "per_device_train_batch_size"},
         "checkpoints": ("{run_dir}/out", "checkpoint-*", ["--resume_from_checkpoint", "{checkpoint}"])},
    ),
    "accelerate": (
        "accelerate_form", (sys.executable, "launch.py", "complete.py", "--num_epochs", "4"), "accelerate",
        {"launcher": "python", "metrics": []},
    ),
    "accelerate launch": (
        "accelerate_form", ("accelerate", "launch", "complete.py", "--num_epochs", "4"), None,
        {"launcher": "accelerate", "metrics": ["output"], "params":
         {"num_epochs": 4, "batch_size": 16, "gradient_accumulation_steps": 1},
         "checkpoints": ("{run_dir}/out", "step_*", ["--resume_from_checkpoint", "{checkpoint}"])},
    ),
    "make": (
        "stages", ("make", "train", "EPOCHS=3", "PYTHON=python"), None,
        {"launcher": "command", "params": {"EPOCHS": 3, "BATCH": 32}, "roles": {"batch_size": "BATCH"},
         "metrics": ["output"], "checkpoints": None},
    ),
    "shell": ("stages", ("bash", "two.sh", "out", "32"), None, {"launcher": "command", "metrics": ["output"]}),
    "mingpt": ("mingpt", ("adder.py",), None, {"launcher": "python", "metrics": ["output"], "checkpoints": None}),
    "hf itself": (
        "hf_real", ("train.py",), None,
        {"launcher": "torchrun", "metrics": ["hf"], "roles": {"batch_size": "per_device_train_batch_size"},
         "checkpoints": ("{run_dir}/out", "checkpoint-*", ["--resume_from_checkpoint", "{checkpoint}"])},
    ),
    "lightning itself": (
        "lightning_real", ("train.py",), None,
        {"launcher": "python", "metrics": ["csv"], "checkpoints":
         ("{run_dir}/out", "lightning_logs/version_*/checkpoints/*.ckpt", ["--ckpt_path", "{checkpoint}"])},
    ),
    "accelerate itself": (
        "accelerate_real", ("train.py",), None,
        {"launcher": "torchrun", "metrics": ["output"],
         "checkpoints": ("{run_dir}/out", "step_*", ["--resume_from_checkpoint", "{checkpoint}"])},
    ),
    "lightning": (
        "lightning_form", ("train.py",), "lightning",
        {"launcher": "python", "metrics": ["csv"], "checkpoints":
         ("{run_dir}/out", "lightning_logs/version_*/checkpoints/*.ckpt", ["--ckpt_path", "{checkpoint}"])},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_is_recognised(tmp_path: Path, case: str) -> None:
    name, words, preset, expected = CASES[case]
    form = drafted(copied(tmp_path, name), *words, preset=preset)[1].form
    checkpoints = form.checkpoints
    found = {
        "launcher": form.launcher,
        "nproc": form.nproc,
        "params": {param: value.default for param, value in form.params.items()},
        "roles": form.roles,
        "metrics": [source.source for source in form.metrics],
        "checkpoints": None if checkpoints is None else (checkpoints.dir, checkpoints.pattern, checkpoints.resume),
    }
    assert {key: found[key] for key in expected} == expected


@pytest.mark.parametrize("case", [case for case in CASES if case != "accelerate launch"])
def test_its_check_passes(tmp_path: Path, case: str) -> None:
    name, words, preset, _ = CASES[case]
    folder = copied(tmp_path, name)
    chosen = ["--preset", preset] if preset else []
    done = gputui(folder, "init", *chosen, "--out", "drafted.yaml", "--", *words)
    assert done.returncode == 0, done.stderr
    checked = gputui(folder, "check", "./drafted.yaml")
    assert checked.returncode == 0, checked.stdout


def gputui(folder: Path, *words: str) -> Any:
    return forkserver.run(["gputui", "--home", str(folder / "home"), *words], cwd=folder, timeout=60)


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("print(1)\n")
    (tmp_path / "a.yaml").write_text("mine\n")
    assert gputui(tmp_path, "init", "a.py").returncode == 3
    assert (tmp_path / "a.yaml").read_text() == "mine\n"
    assert gputui(tmp_path, "init", "a.py", "--out", "b.yaml").returncode == 0
    assert gputui(tmp_path, "init", "missing.py").returncode == 2
    assert gputui(tmp_path, "init").returncode == 2


def test_what_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("def (:\n")
    with pytest.raises(SurveyError):
        draft(["a.py"], tmp_path)
    for words in (["python"], ["torchrun", "--nproc-per-node", "2"], []):
        with pytest.raises(DraftError):
            draft(words, tmp_path)
    (tmp_path / "b.py").write_text("")
    with pytest.raises(DraftError):
        draft(["b.py"], tmp_path, preset="makefile")


def test_what_the_script_divides_among_its_ranks_is_of_all_of_them(tmp_path: Path) -> None:
    _, profile = drafted(copied(tmp_path, "nanogpt"), "train.py")
    scopes = {name: param.scope for name, param in profile.form.params.items()}
    assert scopes == {"batch_size": None, "gradient_accumulation_steps": "global", "learning_rate": None}
    (tmp_path / "a.py").write_text(
        "import argparse, torch.distributed as dist\np = argparse.ArgumentParser()\n"
        "p.add_argument('--batch-size', type=int, default=64)\np.add_argument('--epochs', type=int, default=4)\n"
        "args = p.parse_args()\ndist.init_process_group()\n"
        "own = args.batch_size // dist.get_world_size()\nper_rank = args.epochs / dist.get_world_size()\n"
    )
    form = drafted(tmp_path, "a.py")[1].form
    assert {name: param.scope for name, param in form.params.items()} == {"batch_size": "global"}


@pytest.mark.parametrize("words", [["/dev/zero"], ["."], ["a.txt"], ["torchrun", "/dev/zero"], ["python", "."]])
def test_what_is_no_script_is_refused_in_one_line(tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "a.txt").write_text("no program\n")
    done = gputui(tmp_path, "init", "--", *words)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1, done.stderr
    assert not list(tmp_path.glob("*.yaml"))


def test_a_script_of_the_contract_needs_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(
        "import os, torch\nout = os.environ['GPUTUI_METRICS']\nlast = os.environ.get('GPUTUI_CHECKPOINT')\n"
        "torch.save({}, os.path.join(os.environ['GPUTUI_RUN_DIR'], 'checkpoints', f'step_{step:06d}.pt'))\n"
    )
    made, profile = drafted(tmp_path, "a.py")
    assert not made.open_points
    assert [source.source for source in profile.form.metrics] == ["jsonl"]
    assert profile.form.checkpoints is not None
    assert (profile.form.checkpoints.dir, profile.form.checkpoints.pattern) == ("{run_dir}/checkpoints", "step_*.pt")


def test_every_gpu_for_ranks_one_for_a_single_process(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("import os\nrank = os.environ['LOCAL_RANK']\n")
    (tmp_path / "b.py").write_text("print(1)\n")
    assert drafted(tmp_path, "a.py", gpus=4)[1].form.gpus.count == 4
    assert drafted(tmp_path, "torchrun", "--nproc_per_node", "2", "a.py", gpus=4)[1].form.gpus.count == 2
    assert drafted(tmp_path, "b.py", gpus=4)[1].form.gpus.count == 1


def test_words_keep_their_quotes(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("print(1)\n")
    form = drafted(tmp_path, "python", "-u", "a.py", "--note", "it's a {b}", "--lr", "1e-3", "--seed", "-1", "-v")[
        1
    ].form
    assert form.args == ["--note", "it's a {b}", "--lr", "{lr}", "--seed", "{seed}", "-v"]
    assert {name: one.default for name, one in form.params.items()} == {"lr": 1e-3, "seed": -1}


def test_a_draft_of_a_printing_script_trains(machine: Machine) -> None:
    folder = copied(machine.folder, "mingpt")
    done = forkserver.run(["gputui", "init", "adder.py"], cwd=folder, timeout=60)
    assert done.returncode == 0, done.stderr
    machine.gputui("run", str(folder / "adder.yaml"), "--gpus", "0")
    wait_until(lambda: len(machine.rows("SELECT 1 FROM metrics WHERE step > 5")) > 2, 60, "metrics")
    machine.gputui("stop", "adder-1", "--now")
