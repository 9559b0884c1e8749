"""`gputui init`: a profile from a script that was never run, which `gputui check` passes and which trains."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from gputui.profiles.init.draft import Draft, draft
from gputui.profiles.init.presets import PRESETS
from gputui.profiles.init.script_survey import SurveyError
from gputui.profiles.init.typed_command import DraftError
from gputui.profiles.profile_file import Profile, read_profile
from tests import forkserver
from tests.tables import table

PROGRAMS = Path(__file__).parent / "programs"


def copied(folder: Path, name: str) -> Path:
    folder.mkdir(exist_ok=True)
    shutil.copytree(PROGRAMS, folder / "programs", ignore=shutil.ignore_patterns("__pycache__"))
    return folder / "programs" / name


def drafted(folder: Path, *arguments: str, preset: str | None = None, gpus: int = 0) -> tuple[Draft, Profile]:
    draft_of_profile = draft(arguments, folder, preset=None if preset is None else PRESETS[preset], gpus=gpus)
    return draft_of_profile, read_profile(draft_of_profile.text, folder / f"{draft_of_profile.name}.yaml")


CASES: dict[str, tuple[str, tuple[str, ...], str | None, dict[str, Any]]] = {
    "nanogpt": (
        "nanogpt", ("train.py",), None,
        {"launcher": "torchrun", "params": {"gradient_accumulation_steps": 40, "batch_size": 12, "learning_rate": 6e-4},
         "metrics": ["auto"], "checkpoints": ("{run_dir}/out", "auto", ["--init_from=resume"])},
    ),
    "timm": (
        "timm_form", ("torchrun", "--nproc-per-node=2", "train.py", "--epochs", "3", "--clip-grad", "1.0"), "timm",
        {"launcher": "torchrun", "nproc": 2,
         "params": {"epochs": 3, "clip_grad": 1.0, "batch_size": 16, "grad_accum_steps": 1,
                    "grad_checkpointing": False, "workers": 0},
         "metrics": ["auto"], "checkpoints": ("{run_dir}/out", "auto", ["--resume", "{checkpoint}"])},
    ),
    "make": (
        "stages", ("make", "train", "EPOCHS=3", "BATCH=16"), None,
        {"launcher": "command", "params": {"EPOCHS": 3, "BATCH": 16}, "roles": {"batch_size": "BATCH"},
         "metrics": ["auto"], "checkpoints": None},
    ),
    "shell": (
        "stages", ("bash", "two.sh", "out", "32"), None,
        {"launcher": "command", "params": {}, "metrics": ["auto"], "checkpoints": None},
    ),
    "positional": (
        "stages", ("torchrun", "--nproc-per-node=2", "multigpu.py", "50", "10"), None,
        {"launcher": "torchrun", "params": {"total_epochs": 50, "save_every": 10, "batch_size": 32},
         "metrics": ["auto"], "checkpoints": None},
    ),
    "hf itself": (
        "hf_real", ("train.py",), None,
        {"launcher": "torchrun", "metrics": ["auto"], "roles": {"batch_size": "per_device_train_batch_size"},
         "checkpoints": ("{run_dir}/out", "auto", ["--resume_from_checkpoint", "{checkpoint}"])},
    ),
    "accelerate itself": (
        "accelerate_real", ("train.py",), None,
        {"launcher": "torchrun", "metrics": ["auto"],
         "checkpoints": ("{run_dir}/out", "auto", ["--resume_from_checkpoint", "{checkpoint}"])},
    ),
    "lightning": (
        "lightning_form", ("train.py",), "lightning",
        {"launcher": "python", "metrics": ["auto"], "checkpoints":
         ("{run_dir}/out", "auto", ["--ckpt_path", "{checkpoint}"])},
    ),
}  # fmt: skip


def gputui(folder: Path, *arguments: str) -> Any:
    return forkserver.run(["gputui", "--home", str(folder / "home"), *arguments], cwd=folder, timeout=60)


@table("case", CASES)
def test_what_is_recognised(tmp_path: Path, case: str) -> None:
    name, arguments, preset, expected = CASES[case]
    form = drafted(copied(tmp_path, name), *arguments, preset=preset)[1].form
    checkpoints = form.checkpoints
    values = {
        "launcher": form.launcher,
        "nproc": form.nproc,
        "params": {param: value.default for param, value in form.params.items()},
        "roles": form.roles,
        "metrics": [source.source for source in form.metrics.sources],
        "checkpoints": None if checkpoints is None else (checkpoints.dir, checkpoints.pattern, checkpoints.resume),
    }
    assert {key: values[key] for key in expected} == expected


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


def test_what_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("def (:\n")
    with pytest.raises(SurveyError):
        draft(["a.py"], tmp_path)
    for arguments in (["python"], ["torchrun", "--nproc-per-node", "2"], [], ["LR=1", "make", "train"]):
        with pytest.raises(DraftError):
            draft(arguments, tmp_path)


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
    assert {name: param.scope for name, param in form.params.items()} == {"batch_size": "global"}


def test_words_keep_their_quotes(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("print(1)\n")
    form = drafted(tmp_path, "python", "-u", "a.py", "--note", "it's a {b}", "--lr", "1e-3", "--seed", "-1", "-v")[
        1
    ].form
    assert form.args == ["--note", "{note}", "--lr", "{lr}", "--seed", "{seed}", "[-v", "{v}]"]
    assert {name: parameter.default for name, parameter in form.params.items()} == {
        "note": "it's a {b}", "lr": 1e-3, "seed": -1, "v": True,
    }  # fmt: skip


OPTIONS = """
import argparse
p = argparse.ArgumentParser()
p.add_argument("data", nargs="?", default="x")
group = p.add_argument_group("training")
group.add_argument("-b", "--batch-size", default=256, type=int)
group.add_argument("--lr", "--learning-rate", dest="rate", default=0.1)
p.add_argument("-j", dest="workers", default=4)
p.add_argument("--loaders", dest="workers")
"""


@table(
    ("typed", "args"),
    [
        ("-b 8", "-j {workers} -b {batch_size}"),
        ("-b8 -j0 data", "-b{batch_size} -j{workers} data"),
        ("--batch=8", "-j {workers} --batch={batch_size}"),
        ("--batch-size 8 --loaders 2", "--batch-size {batch_size} --loaders {workers}"),
        ("--learning-rate 1e-3 -j 2", "--batch-size {batch_size} --learning-rate {rate} -j {workers}"),
        ("-b 8 -j 2 -- x --y", "-b {batch_size} -j {workers} -- x --y"),
        ("-b 8 -j 2 --other 3", "-b {batch_size} -j {workers} --other {other}"),
    ],
)
def test_what_was_typed_is_kept_and_given_once(tmp_path: Path, typed: str, args: str) -> None:
    (tmp_path / "a.py").write_text(OPTIONS)
    form = drafted(tmp_path, "python", "a.py", *typed.split())[1].form
    assert " ".join(form.args or ()) == args
    expected = 8 if "8" in typed else 256
    assert form.params["batch_size"].default == expected


@table(
    ("declared", "typed", "args"),
    [
        ("'--save', default='model.pt'", "", "--save {run_dir}/model.pt"),
        ("'--out', default='runs'", "", "--out {run_dir}/out"),
        ("'--out', default='runs/best.ckpt'", "", "--out {run_dir}/best.ckpt"),
        ("'--save_path'", "", "--save_path {run_dir}/out"),
        ("'--save_path'", "--save_path a/b.pth", "--save_path {save_path}"),
        ("'out'", "", "{run_dir}/out"),
        ("'--out'", "-- x", "--out {run_dir}/out -- x"),
        ("'data', default='x'", "", "{data}"),
    ],
)
def test_a_file_goes_where_a_folder_is(tmp_path: Path, declared: str, typed: str, args: str) -> None:
    (tmp_path / "a.py").write_text(f"import argparse\nargparse.ArgumentParser().add_argument({declared})\n")
    form = drafted(tmp_path, "python", "a.py", *typed.split())[1].form
    assert " ".join(form.args or ()) == args


HF = "from transformers import TrainingArguments, HfArgumentParser\nHfArgumentParser(TrainingArguments)\n"
FILES = {
    "hf.py": HF + "trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)\n",
    "anew.py": HF + "trainer.train()\n",
    "variable.py": "import os\nload(os.environ.get('GPUTUI_CHECKPOINT'))\n",
    "flag.py": "import argparse\np = argparse.ArgumentParser()\np.add_argument('--resume', action='store_true')\n",
    "loads.py": "import os, torch\nif os.path.exists('a.pt'):\n torch.load('a.pt')\n",
    "scripts/base.py": "import argparse\np = argparse.ArgumentParser()\n"
    "p.add_argument('--device-batch-size', type=int, default=32)\n"
    "p.add_argument('--resume-from-step', type=int, default=-1)\n",
}


@table(
    ("command", "expected"),
    [
        ("hf.py", ["--resume_from_checkpoint", "{checkpoint}"]),
        ("anew.py", None),
        ("variable.py", []),
        ("flag.py", ["--resume"]),
        ("loads.py", None),
        ("python -m scripts.base", ["--resume-from-step", "{checkpoint_step}"]),
    ],
)
def test_what_resumes(tmp_path: Path, command: str, expected: list[str] | None) -> None:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    drafted_profile, profile = drafted(tmp_path, *command.split())
    checkpoints = profile.form.checkpoints
    assert (None if checkpoints is None else checkpoints.resume) == expected
    # What only a run can show is said to be open.
    assert len(drafted_profile.open_points) == (1 if expected is not None else 2)


def test_words_of_a_command_that_assign(tmp_path: Path) -> None:
    form = drafted(tmp_path, "yolo", "detect", "train", "batch=8", "epochs=20", "model=a.yaml")[1].form
    assert form.command == ["yolo", "detect", "train"]
    assert form.args == ["batch={batch}", "epochs={epochs}", "model={model}"]
    assert form.roles == {"batch_size": "batch"}


def test_an_old_log_shows_the_metrics(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("print(1)\n")
    (tmp_path / "old.log").write_text("".join(f"step {step} loss 0.{step}5\n" for step in range(1, 9)))
    result = gputui(tmp_path, "init", "a.py", "--log", "old.log")
    text = (tmp_path / "a.yaml").read_text()
    assert "8 of 8" in result.stdout
    assert "(?P<loss>" in text
    assert read_profile(text, tmp_path / "a.yaml").form.metrics.sources[0].source == "auto"
    assert gputui(tmp_path, "check", "./a.yaml", "--log", "old.log").stdout.startswith("old.log: 8 of 8 lines")
