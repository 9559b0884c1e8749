"""`gputui init`: a profile from a script that was never run, which `gputui check` passes and which trains."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
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
    folder.mkdir(exist_ok=True)
    shutil.copytree(PROGRAMS, folder / "programs", ignore=shutil.ignore_patterns("__pycache__"))
    return folder / "programs" / name


def drafted(folder: Path, *words: str, preset: Preset | None = None, gpus: int = 0) -> tuple[Draft, Profile]:
    made = draft(words, folder, preset=preset, gpus=gpus)
    return made, read_profile(made.text, folder / f"{made.name}.yaml")


CASES: dict[str, tuple[str, tuple[str, ...], Preset | None, dict[str, Any]]] = {
    "nanogpt": (
        "nanogpt", ("train.py",), None,
        {"launcher": "torchrun", "params": {"batch_size": 12, "gradient_accumulation_steps": 40, "learning_rate": 6e-4,
                                            "max_iters": 300},
         "metrics": ["output"], "checkpoints": ("{run_dir}/out", "ckpt.pt", ["--init_from=resume"])},
    ),
    "timm": (
        "timm_form", ("torchrun", "--nproc-per-node=2", "train.py", "--epochs", "3", "--clip-grad", "1.0"), "timm",
        {"launcher": "torchrun", "nproc": 2,
         "params": {"epochs": 3, "clip_grad": 1.0, "batch_size": 16, "grad_accum_steps": 1, "lr": None,
                    "grad_checkpointing": False, "workers": 0},
         "metrics": ["output"], "checkpoints": ("{run_dir}/out", "**/last.pth.tar", ["--resume", "{checkpoint}"])},
    ),
    "timm in one folder below": (
        "timm_form", ("train.py",), None,
        {"launcher": "torchrun", "metrics": ["output"],
         "checkpoints": ("{run_dir}/out", "**/last.pth.tar", ["--resume", "{checkpoint}"])},
    ),
    "hf": (
        "hf_form", ("train.py",), None,
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
         "metrics": ["output"], "checkpoints": ("{run_dir}/out", "**/snapshot.pt", [])},
    ),
    "shell": (
        "stages", ("bash", "two.sh", "out", "32"), None,
        {"launcher": "command", "params": {"batch_size": 32}, "metrics": ["output"],
         "checkpoints": ("{run_dir}/out", "**/snapshot.pt", [])},
    ),
    "positional": (
        "stages", ("torchrun", "--nproc-per-node=2", "multigpu.py", "50", "10"), None,
        {"launcher": "torchrun", "params": {"total_epochs": 50, "save_every": 10, "batch_size": 32},
         "metrics": ["output"], "checkpoints": ("{run_dir}/out", "snapshot.pt", [])},
    ),
    "mingpt": (
        "mingpt", ("adder.py",), None,
        {"launcher": "python", "params": {"batch_size": 64, "learning_rate": 5e-4, "max_iters": 200},
         "metrics": ["output"], "checkpoints": ("{run_dir}/out", "model.pt", [])},
    ),
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


LENGTHS = {
    "nanogpt": "max_iters", "timm": "epochs", "hf": "max_steps", "accelerate launch": "num_epochs", "make": "EPOCHS",
    "mingpt": "max_iters", "hf itself": "num_train_epochs", "lightning itself": "max_steps",
    "accelerate itself": "num_steps", "lightning": "max_steps", "positional": "total_epochs",
}  # fmt: skip


@pytest.mark.parametrize("case", LENGTHS)
def test_how_long_it_trains_is_a_parameter_that_reaches_the_script(tmp_path: Path, case: str) -> None:
    name, words, preset, _ = CASES[case]
    form = drafted(copied(tmp_path, name), *words, preset=preset)[1].form
    assert LENGTHS[case] in form.params
    assert any(f"{{{LENGTHS[case]}}}" in word for word in form.args or ())


INDIRECT = {
    "a module beside it": ("from parts import build\nbuild().train()", "parts.py", "from transformers import Trainer"),
    "two modules on": ("import a\na.run()", "a.py", "from b import make\nmake()"),
    "a package": ("from lib import build", "lib/build.py", "from .base import Base"),
    "a name of its own": ("from transformers import Trainer as Loop\nLoop().train()", "c.py", ""),
    "one that it builds on": ("import trl\nclass Loop(trl.SFTTrainer): ...\nLoop()", "c.py", "x = 1"),
    "its arguments alone": ("from transformers import TrainingArguments as A\nA()", "c.py", ""),
}


@pytest.mark.parametrize("case", INDIRECT)
def test_the_hugging_face_trainer_is_known_behind_other_modules(tmp_path: Path, case: str) -> None:
    script, other, text = INDIRECT[case]
    (tmp_path / "lib").mkdir()
    (tmp_path / "b.py").write_text("from transformers import Seq2SeqTrainer as make\n")
    (tmp_path / "lib" / "base.py").write_text("import transformers\nclass Base(transformers.Trainer): ...\n")
    (tmp_path / other).write_text(text + "\n")
    (tmp_path / "train.py").write_text(script + "\n")
    form = drafted(tmp_path, "train.py")[1].form
    assert [source.source for source in form.metrics] == ["hf"] and form.launcher == "torchrun"


def test_other_users_of_transformers_are_not_taken_for_it(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("from transformers import AutoModel\nclass Trainer: ...\nt = AutoModel()\n")
    assert drafted(tmp_path, "a.py")[1].form.launcher == "python"


def test_a_place_that_is_only_guessed_is_not_reported_as_found(tmp_path: Path) -> None:
    made, _ = drafted(copied(tmp_path / "a", "timm_form"), "train.py")
    assert any("**/last.pth.tar" in line for line in made.guesses)
    assert not any("checkpoints" in line for line in made.found)
    made, _ = drafted(copied(tmp_path / "b", "nanogpt"), "train.py")
    assert not made.guesses and any("ckpt.pt" in line for line in made.found)


def test_an_option_that_is_no_parameter_is_refused_with_the_words_that_make_it_one(tmp_path: Path) -> None:
    folder = copied(tmp_path, "nanogpt")
    assert gputui(folder, "init", "train.py", "--out", "a.yaml").returncode == 0
    refused = gputui(folder, "run", "./a.yaml", "--set", "eval_interval=7", "--dry-run")
    assert refused.returncode == 2 and len(refused.stderr.splitlines()) == 1
    line, argument = re.findall(r'"([^"]+)"', refused.stderr)
    text = (folder / "a.yaml").read_text()
    text = text.replace("params:\n", f"params:\n  {line}\n").replace("args: >-\n", f"args: >-\n  {argument}\n")
    (folder / "a.yaml").write_text(text)
    done = gputui(folder, "run", "./a.yaml", "--set", "eval_interval=7", "--dry-run")
    assert done.returncode == 0 and "--eval_interval=7" in done.stdout, done.stderr


def test_a_value_that_a_person_must_give_is_asked_for_before_the_launch(tmp_path: Path) -> None:
    folder = copied(tmp_path, "stages")
    assert gputui(folder, "init", "multigpu.py", "--out", "a.yaml").returncode == 0
    checked = gputui(folder, "check", "./a.yaml", "--json")
    (parameters,) = [one for one in json.loads(checked.stdout) if one["name"] == "parameters"]
    assert parameters["status"] == "fail"
    given = ("--set", "total_epochs=3", "--set", "save_every=1")
    assert gputui(folder, "check", "./a.yaml", *given).returncode == 0


def test_arguments_that_a_shell_script_names(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\ntorch.save({}, args.where + '/epoch_1.pt')\n")
    (tmp_path / "go.sh").write_text(
        'OUT="${1:-runs}"\nEPOCHS=${2:-4}\nexport LR=$3\npython train.py --resume --epochs $EPOCHS --where $OUT\n'
    )
    made, profile = drafted(tmp_path, "bash", "go.sh", "here", "9")
    form = profile.form
    assert (form.command, form.args) == (["bash", "go.sh"], ["{run_dir}/out", "{EPOCHS}", "{LR}"])
    assert {name: one.default for name, one in form.params.items()} == {"EPOCHS": 9, "LR": "TODO"}
    assert form.checkpoints is not None and form.checkpoints.dir == "{run_dir}/out"
    # It passes its own option to resume: nothing is left to decide about that.
    assert [line for line in made.open_points if "resume" in line] == []
    assert drafted(tmp_path, "sh", "go.sh", "a", "1", "0.5")[1].form.params["LR"].default == 0.5


def test_variables_of_a_makefile_that_names_no_script(tmp_path: Path) -> None:
    (tmp_path / "Makefile").write_text("BATCH ?= 32\ntrain:\n\tpython -m tool --batch $(BATCH)\n")
    form = drafted(tmp_path, "make", "train")[1].form
    assert (form.args, form.params["BATCH"].default) == (["BATCH={BATCH}"], 32)


def test_the_only_loss_goes_by_the_name_that_is_watched(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("print(f'step {step}: train loss {l:.3f}')\n")
    (source,) = drafted(tmp_path, "a.py")[1].form.metrics
    assert source.patterns is not None and "(?P<loss>" in source.patterns[0]


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
    assert gputui(tmp_path, "init", "--presett", "hf", "a.py").returncode == 2
    assert gputui(tmp_path, "init", "--preset", "foo", "a.py").returncode == 2
    assert sorted(path.name for path in tmp_path.glob("*.yaml")) == ["a.yaml", "b.yaml"]


def test_a_profile_that_cannot_be_written_leaves_no_file(tmp_path: Path) -> None:
    """A disk quota, as a limit on the size of files: zero blocks."""
    (tmp_path / "a.py").write_text("print(1)\n")
    words = [sys.executable, "-m", "gputui", "--home", str(tmp_path / "home"), "init", "a.py"]
    limited = ["sh", "-c", 'ulimit -f 0; exec "$@"', "sh", *words]
    done = subprocess.run(limited, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 3 and "a.yaml" in done.stderr
    assert not (tmp_path / "a.yaml").exists()
    assert gputui(tmp_path, "init", "a.py").returncode == 0


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
    assert scopes["gradient_accumulation_steps"] == "global"
    assert {scope for name, scope in scopes.items() if name != "gradient_accumulation_steps"} == {None}
    (tmp_path / "a.py").write_text(
        "import argparse, torch.distributed as dist\np = argparse.ArgumentParser()\n"
        "p.add_argument('--batch-size', type=int, default=64)\np.add_argument('--epochs', type=int, default=4)\n"
        "args = p.parse_args()\ndist.init_process_group()\n"
        "own = args.batch_size // dist.get_world_size()\nper_rank = args.epochs / dist.get_world_size()\n"
    )
    form = drafted(tmp_path, "a.py")[1].form
    assert {name: param.scope for name, param in form.params.items()} == {"batch_size": "global", "epochs": None}


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


def test_without_gpus_a_comment_shows_how_to_get_several_ranks(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("import os\nworld = int(os.environ['WORLD_SIZE'])\n")
    made, profile = drafted(tmp_path, "a.py")
    assert (profile.form.gpus.count, profile.form.nproc) == (0, "gpus")
    assert read_profile(made.text.replace("# nproc:", "nproc:"), tmp_path / "a.yaml").form.nproc == 2
    assert "nproc" not in drafted(tmp_path, "a.py", gpus=2)[0].text
    assert "# nproc" not in drafted(tmp_path, "torchrun", "--nproc_per_node", "3", "a.py")[0].text


def test_what_uses_timms_saver_is_built_on_timm(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(
        "import timm\nfrom timm.utils import CheckpointSaver\nmodel = timm.create_model('resnet18')\n"
        "saver = CheckpointSaver(model, None, checkpoint_dir='out')\n"
    )
    form = drafted(tmp_path, "a.py")[1].form
    assert form.checkpoints is not None and form.checkpoints.pattern == "**/last.pth.tar"


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


TRAINED = {
    # program: what is typed, how long it trains, and what makes it save within that
    "nanogpt": (("train.py",), ("max_iters=45",)),
    "timm_form": (("train.py",), ("epochs=2",)),
    "hf_form": (("train.py",), ("max_steps=30",)),
    "hf_real": (("train.py",), ("max_steps=12", "save_steps=4", "logging_steps=2")),
    "accelerate_real": (("train.py",), ("num_steps=45",)),
    "lightning_real": (("train.py",), ("max_steps=45",)),
    "mingpt": (("adder.py",), ("max_iters=45",)),
    "stages": (("make", "train"), ("EPOCHS=25",)),
}


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", TRAINED)
def test_what_init_writes_trains_measures_and_saves_as_it_is(
    machine: Machine, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = name.removesuffix("_real") if name.endswith("_real") else None
    if needed is not None and importlib.util.find_spec({"hf": "transformers"}.get(needed, needed)) is None:
        pytest.skip(f"{needed} is not installed")
    monkeypatch.setenv("PYTHON", sys.executable)
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    words, changes = TRAINED[name]
    folder = copied(machine.folder, name)
    done = forkserver.run(["gputui", "init", "--out", "drafted.yaml", "--", *words], cwd=folder, timeout=60)
    assert done.returncode == 0, done.stderr
    set_words = [word for change in changes for word in ("--set", change)]
    machine.gputui("run", str(folder / "drafted.yaml"), "--gpus", "0", "--name", "it", *set_words)
    machine.wait_for("it-1", "succeeded", "failed", timeout=200)
    shown = machine.json("show", "it-1")
    assert shown["state"] == "succeeded", machine.gputui("explain", "it-1")
    assert [one for one in shown["checkpoints"] if one["refused"] is None]
    assert len(machine.rows("SELECT 1 FROM metrics WHERE step IS NOT NULL")) > 2
    assert machine.rows("SELECT message FROM events WHERE kind = 'checkpoints_unmatched'") == []


def test_options_that_keep_their_defaults_are_listed(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import argparse\n"
        "options = argparse.ArgumentParser()\n"
        "options.add_argument('--lr', type=float, default=0.1)\n"
        "options.add_argument('--opt', choices=['sgd', 'adam'], default='sgd')\n"
        "options.add_argument('--amp', action='store_true')\n"
        "options.parse_args()\n"
    )
    made, profile = drafted(tmp_path, "train.py")
    assert set(profile.parameters) == {"lr"}
    [listed] = [line for line in made.text.splitlines() if line.startswith("#") and "--opt" in line]
    assert "--amp" in listed and "--lr" not in listed
