"""From a typed command to the profile of its run: launcher, GPUs, parameters, roles."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputui.profiles.init.command_profile import command_profile
from gputui.profiles.init.typed_command import DraftError
from gputui.profiles.preflight import quick_checks
from gputui.profiles.resolve import GpuChoice, resolve
from gputui.runs.command import as_typed, build_launch, expand
from gputui.runs.launchers.base import Placement
from gputui.runs.redaction import redact_spec
from tests.tables import table

PARSER = "import argparse\np = argparse.ArgumentParser()\n"
SCRIPTS = {
    "plain.py": "print(1)\n",
    "b.py": PARSER + "p.add_argument('-net', type=str, default='vgg')\n"
    "p.add_argument('-b', type=int, default=128, help='batch size for dataloader')\n"
    "p.add_argument('--global-batch-size', type=int, default=256)\n"
    "p.add_argument('--dropout', type=float, default=0.5)\n"
    "p.add_argument('--save', default='model.pt')\n",
    "whole.py": PARSER + "p.add_argument('--total-batch-size', type=int, default=64)\np.add_argument('--config')\n"
    "p.add_argument('--amp', action=argparse.BooleanOptionalAction, default=True)\n"
    "p.add_argument('--gradient-checkpointing', action='store_true')\n",
    "over.py": PARSER + "p.add_argument('--config')\np.add_argument('--batch_size', type=int)\n"
    "p.add_argument('--lr', type=float, default=0.5)\n",
    "kinds.py": PARSER + "p.add_argument('commit')\np.add_argument('--decay', type=float)\n"
    "p.add_argument('--seed', type=int)\np.add_argument('--tag', type=str, default=0)\np.add_argument('--lr')\n",
    "either.py": PARSER + "g = p.add_argument_group('x')\np.add_argument('--lr', type=float, default=0.5)\n"
    "g = p.add_mutually_exclusive_group()\ng.add_argument('--batch-size', type=int, default=512)\n"
    "g.add_argument('--tokens', type=int)\nself.g = p.add_argument_group().add_mutually_exclusive_group()\n"
    "self.g.add_argument('--timeout', type=int, default=9)\n",
    "size.yaml": "batch_size: 24\nlr: 0.1\n",
    "pkg/train.py": "print(1)\n",
    "train.sh": "python plain.py --lr $1\n",
}

# the command; launcher and what it starts; GPUs; parameters; roles
COMMANDS: list[tuple[str, str, int, dict[str, object], dict[str, str]]] = [
    ("plain.py", "python plain.py", 1, {}, {}),
    ("plain.py --lr 1e-3 --amp --name x", "python plain.py", 1, {"lr": 1e-3, "amp": True, "name": "x"}, {}),
    ("python plain.py lr=0.1 data.batch_size=32", "python plain.py", 1, {"lr": 0.1, "data.batch_size": 32},
     {"batch_size": "data.batch_size"}),
    ("python -u -m pkg.train -b 8", "python pkg.train", 1, {"b": 8}, {}),
    ("python plain.py --flag=True --no-flag", "python plain.py", 1, {"flag": "True", "no_flag": True}, {}),
    ("python plain.py --version 1.10 --id 007", "python plain.py", 1, {"version": "1.10", "id": "007"}, {}),
    ("plain.py --commit 12345e67 --sha 12e4567 --resume 1e3 -n12e4567 --m 1e-05", "python plain.py", 1,
     {"commit": "12345e67", "sha": "12e4567", "resume": "1e3", "n": "12e4567", "m": 1e-05}, {}),
    (f"plain.py --id {'9' * 20} --lr {'9' * 400} --wd -1e999", "python plain.py", 1,
     {"id": "9" * 20, "lr": "9" * 400, "wd": "-1e999"}, {}),
    ("kinds.py 12e4567 --decay 1e-4 --seed 007 --tag 1e3 --lr 1e-4", "python kinds.py", 1,
     {"commit": "12e4567", "decay": 1e-4, "seed": 7, "tag": "1e3", "lr": 1e-4}, {}),
    ("python plain.py --lr 1 +trainer.x=1 model/enc=small", "python plain.py", 1,
     {"lr": 1.0, "trainer.x": 1, "model.enc": "small"}, {}),
    ("b.py", "python b.py", 1, {"b": 128}, {"batch_size": "b"}),
    ("b.py -net vgg16 -b32 --dropout 0", "python b.py", 1, {"net": "vgg16", "b": 32, "dropout": 0.0},
     {"batch_size": "b"}),
    ("b.py --global-batch-size 64", "python b.py", 1, {"global_batch_size": 64}, {"batch_size": "global_batch_size"}),
    ("b.py --save model.pt", "python b.py", 1, {"save": "model.pt", "b": 128}, {"batch_size": "b"}),
    ("b.py --strange 3", "python b.py", 1, {"strange": 3}, {}),
    ("whole.py", "python whole.py", 1, {"total_batch_size": 64, "gradient_checkpointing": False},
     {"batch_size": "total_batch_size"}),
    ("whole.py --no-amp --config a.yaml", "python whole.py", 1, {"no_amp": True, "config": "a.yaml"}, {}),
    ("either.py --tokens 9", "python either.py", 1, {"tokens": 9, "lr": 0.5}, {}),
    ("either.py", "python either.py", 1, {"lr": 0.5}, {}),
    ("over.py --config size.yaml", "python over.py", 1, {"config": "size.yaml", "batch_size": 24}, {}),
    ("over.py --config missing.yaml", "python over.py", 1, {"config": "missing.yaml"}, {}),
    ("torchrun --nproc-per-node=2 b.py -b 8", "torchrun b.py", 2, {"b": 8}, {"batch_size": "b"}),
    ("torchrun --nproc_per_node gpu b.py -b 8", "torchrun b.py", 1, {"b": 8}, {"batch_size": "b"}),
    ("accelerate launch --num_processes 2 plain.py --lr 0.1", "accelerate plain.py", 2, {"lr": 0.1}, {}),
    ("accelerate launch --num_processes 2 --mixed_precision fp16 --use_fsdp plain.py --lr 0.1",
     "command accelerate launch --num_processes 2 --mixed_precision fp16 --use_fsdp plain.py", 2, {"lr": 0.1}, {}),
    ("deepspeed --num_gpus 3 plain.py --deepspeed ds.json", "deepspeed plain.py", 3, {"deepspeed": "ds.json"}, {}),
    ("./train.sh 0.1", "command bash ./train.sh", 1, {}, {}),
    ("train.sh --lr 0.1", "command bash train.sh", 1, {"lr": 0.1}, {}),
    ("uv run --extra gpu b.py -b 8", "command uv run --extra gpu b.py", 1, {"b": 8}, {"batch_size": "b"}),
    ("uv run python -m pkg.train --lr 0.1", "command uv run python -m pkg.train", 1, {"lr": 0.1}, {}),
    ("make -j4 train LR=0.1", "command make -j4 train", 1, {"LR": 0.1}, {"lr": "LR"}),
    ("llamafactory-cli train x.yaml --learning_rate 1e-4", "command llamafactory-cli train x.yaml", 1,
     {"learning_rate": 1e-4}, {}),
    ("tune run lora --config x.yaml batch_size=2", "command tune run lora", 1,
     {"config": "x.yaml", "batch_size": 2}, {}),
    ("litgpt pretrain --train.micro_batch_size 4", "command litgpt pretrain", 1, {"train.micro_batch_size": 4},
     {"batch_size": "train.micro_batch_size"}),
    ("python -X dev plain.py --lr 0.1", "command python -X dev plain.py", 1, {"lr": 0.1}, {}),
    ("python -c 'print(1)' --x 3", "command python -c print(1)", 1, {"x": 3}, {}),
    ("bash -c 'echo $HOME'", "command bash -c echo $HOME", 1, {}, {}),
]  # fmt: skip
ATOMS = (
    "{",
    "}",
    "[",
    "]",
    "-",
    "--",
    "=",
    "a",
    "{lr}",
    "{literal}",
    "{checkpoint}",
    "[--x",
    "amp",
    " ",
    "'",
    "\n",
    "é",
)
TYPED_WORDS = st.lists(st.sampled_from(ATOMS), max_size=4).map("".join) | st.sampled_from(("--lr", "-b3", "--a=x"))


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    for name, text in SCRIPTS.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@table(("typed", "start", "gpus", "params", "roles"), COMMANDS)
def test_the_profile_of_a_command(
    scripts: Path, typed: str, start: str, gpus: int, params: dict[str, object], roles: dict[str, str]
) -> None:
    profile = command_profile(shlex.split(typed), scripts)
    form = profile.form
    assert " ".join([form.launcher, *(form.command or [str(form.script or form.module)])]) == start
    assert (form.gpus.count, form.roles) == (gpus, roles)
    assert {name: param.default for name, param in form.params.items()} == params
    scopes = {name for name, param in form.params.items() if param.scope == "global"}
    assert scopes == {name for name in roles.values() if "global" in name or "total" in name}


EXCLUSIVE = "g = p.add_mutually_exclusive_group()\ng.add_argument('--resume')\ng.add_argument('--fresh', type=int)"
RESUMES = [
    # the options that are declared, the typed words, and what a new attempt is given
    ("p.add_argument('--resume')", "", "--resume {checkpoint}"),
    ("p.add_argument('--resume', default='')", "--resume old.pt", "--resume {checkpoint}"),
    # Options that are declared in a loop, as pytorch-template's.
    ("p.add_argument('--resume')\nfor o in O: p.add_argument(*o.flags)", "--bs 8", "--resume {checkpoint}"),
    ("p.add_argument('-r', '--resume', action='store_true')", "", "--resume"),
    ("p.add_argument('--load', '-f', type=str, default=False, help='Load model from a .pth file')", "",
     "--load {checkpoint}"),
    ("p.add_argument('--checkpoint')\np.add_argument('--resume-from')", "", "--resume-from {checkpoint}"),
    ("p.add_argument('--checkpoint', default='ckpt.pt')", "", ""),
    ("p.add_argument('--ckpt', help='where to save it')", "", ""),
    ("p.add_argument('--resume', type=int, default=0)", "", ""),
    ("p.add_subparsers().add_parser('x').add_argument('--resume')", "", ""),
    ("p.add_argument('--restore', action=argparse.BooleanOptionalAction, default=True)", "", "--restore"),
    ("from absl import flags\nflags.DEFINE_bool('restore', True, 'Go on from the newest.')", "", "--restore"),
    ("import pyrallis\nfrom dataclasses import dataclass\n@dataclass\nclass C:\n    resume: bool = False\n"
     "@pyrallis.wrap()\ndef f(c: C): ...", "", "--resume true"),
    ("p.parse_known_args()", "--resume old.pt", "--resume {checkpoint}"),
    ("p.parse_known_args()", "resume=old.pt", "resume={checkpoint}"),
    ("p.parse_known_args()", "--load old.pt", ""),
    (EXCLUSIVE, "", "--resume {checkpoint}"),
    (EXCLUSIVE, "--fresh", ""),
]  # fmt: skip


@table(("declared", "typed", "resume"), RESUMES)
def test_what_a_new_attempt_is_given(scripts: Path, declared: str, typed: str, resume: str) -> None:
    (scripts / "r.py").write_text(f"{PARSER if 'p.' in declared else ''}{declared}\n")
    checkpoints = command_profile(["r.py", *typed.split()], scripts).form.checkpoints
    assert ("" if checkpoints is None else " ".join(checkpoints.resume)) == resume


EXACT = [
    "plain.py --a 1 --a 2 -b8 -j4 -v -vv --x= --y=1=2 pos 3 -1 --note 'two words' a=b=c https://x/?y=1 -- --z 1",
    "plain.py '{\"lr\": 1}' --json '{\"a\": {\"b\": 1}}' --run '{run}' --list '[1,2]' k='[a,b]' '' --checkpoint x.pt",
    "b.py -b 3 --sizes 1 2 3 --dropout=0.25 extra",
    "plain.py --lr -0.5 -lr 3 --flag -x -1.5 - --é ü ./a=b",
    "plain.py --step 3 '{step}' a{step}b --{step} --name 'a{b}c' -- '{step}' '{checkpoint}' '{run}/{step}'",
    "plain.py --lr 1 --wd 1e-4 --b 3 --epochs 1e1 --seed 007",
    "kinds.py 1 --decay=1 --seed 007 --lr 1e-4",
    "plain.py '[--x]' '[lr=1]' '[-a' '{lr}]' --lr 0.5 --list '[--x]' k='{lr}' 'k{lr}=1' '{literal}'",
]


@table("typed", EXACT)
def test_the_command_line_is_as_it_was_typed(scripts: Path, typed: str) -> None:
    arguments = shlex.split(typed)
    spec = resolve(command_profile(arguments, scripts), GpuChoice(inventory=[]))
    assert spec.typed == tuple(arguments)
    assert spec.profile_path is None
    assert spec.workdir == str(scripts)
    assert list(expand(spec.args or (), as_typed(spec.params, spec.spellings), "/run", "/run/a.pt")) == arguments[1:]
    assert all(
        check.status != "fail" for check in quick_checks(spec, state=scripts, gpus=None) if "place" in check.name
    )


@given(st.lists(TYPED_WORDS, max_size=6))
def test_any_words_reach_the_program(arguments: list[str]) -> None:
    spec = resolve(command_profile(["bash", "-c", *arguments], Path("/")), GpuChoice(inventory=[]), environ={})
    assert [*expand((*spec.program, *(spec.args or ())), spec.params, "/run", "/a.pt")] == ["bash", "-c", *arguments]


@table(
    ("typed", "started"),
    [
        ("bash -c 'echo {lr} {run_dir}' --lr 0.5", "bash -c 'echo {lr} /run' --lr 0.5"),
        ("plain.py --lr 0.5 --out={run_dir}/{lr} '{run_dir}'", "--lr 0.5 --out=/run/{lr} /run"),
        ("kinds.py {run_dir}/a --decay 1", "/run/a --decay 1"),
    ],
)
def test_the_folder_of_the_run_is_the_only_placeholder(scripts: Path, typed: str, started: str) -> None:
    spec = resolve(command_profile(shlex.split(typed), scripts), GpuChoice(inventory=[]))
    program = spec.program if spec.launcher == "command" else ()
    params = as_typed(spec.params, spec.spellings)
    assert [*expand((*program, *(spec.args or ())), params, "/run", checkpoint=None)] == shlex.split(started)


def test_a_number_has_its_typed_text_until_it_changes(scripts: Path) -> None:
    spec = redact_spec(
        resolve(command_profile(["plain.py", "--lr", "1", "--wd", "1e-4"], scripts), GpuChoice(inventory=[]))
    )
    assert spec.params["lr"] == 1.0
    assert spec.spellings == {"lr": "1"}
    for lr, text in ((1.0, "1"), (0.5, "0.5")):
        launch = build_launch(
            spec, run_dir="/run", attempt=1, params={**spec.params, "lr": lr},
            placement=Placement.here((), 1, 0), checkpoint=None,
        )  # fmt: skip
        assert launch.argv[-4:] == ("--lr", text, "--wd", "1e-4")


@table(
    ("typed", "name"),
    [
        ("plain.py", "plain"), ("python -m pkg.train", "pkg-train"), ("python pkg/train.py", "pkg-train"),
        ("bash -c 'echo $HOME; exit'", "here-bash"), ("./train.sh 3", "here-train"),
        ("llamafactory-cli x", "llamafactory-cli"),
    ],
)  # fmt: skip
def test_the_name_of_a_run(scripts: Path, typed: str, name: str) -> None:
    assert command_profile(shlex.split(typed), scripts.rename(scripts.with_name("here"))).name == name


def test_gpus_where_there_are_none(scripts: Path) -> None:
    single, doubled = (
        command_profile(typed.split(), scripts) for typed in ("b.py", "torchrun --nproc-per-node 2 b.py")
    )
    specs = [resolve(profile, GpuChoice(inventory=[])) for profile in (single, doubled)]
    assert [(spec.gpus.count, spec.nproc) for spec in specs] == [(0, 1), (0, 2)]
    assert [(spec.gpus.count, spec.nproc) for spec in map(resolve, (single, doubled))] == [(1, 1), (2, 2)]


@table(
    ("typed", "mentioned"),
    [
        ("", "train.py"), ("b_.py", "b.py"), ("LR=1 make", "before gputui"),
        ("torchrun --nproc-per-node 2", "torchrun"),
        ("python", "no script"), ("pkg/x.ipynb", "x.ipynb"), ("./notes.txt", "chmod"), ("--x 3", "--x is no option"),
        (".", r"\. is a folder"), ("pkg x", "pkg is a folder"), ("''", "train.py"),
        ("'python plain.py | tee log'", "type: -- bash -c 'python plain.py | tee log'"),
        ("'plain.py --lr 1' x", "type: -- bash -c 'plain.py --lr 1' x"),
    ],
)  # fmt: skip
def test_what_is_no_command(scripts: Path, typed: str, mentioned: str) -> None:
    (scripts / "notes.txt").write_text("x")
    with pytest.raises(DraftError, match=mentioned) as caught:
        command_profile(shlex.split(typed), scripts)
    assert "\n" not in str(caught.value)


def test_a_notebook(scripts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (scripts / "n.ipynb").write_text("{}")
    (scripts / "bin").mkdir()
    monkeypatch.setenv("PATH", str(scripts / "bin"))
    with pytest.raises(DraftError, match="papermill"):
        command_profile(["n.ipynb"], scripts)
    for name in ("jupyter-nbconvert", "papermill"):
        (scripts / "bin" / name).write_text("")
        (scripts / "bin" / name).chmod(0o755)
        program = command_profile(["n.ipynb", "-p", "lr", "0.1"], scripts).form.command or []
        assert program[0] == name
        assert "n.ipynb" in program
        assert any("{run_dir}" in word for word in program)


def test_a_typed_secret_is_not_stored(scripts: Path) -> None:
    arguments = ["plain.py", "--api-key", "k3y-of-mine", "--password=hush-hush", "token=t0ken-of-mine", "--lr", "0.1"]
    stored = str(redact_spec(resolve(command_profile(arguments, scripts), GpuChoice(inventory=[]))).to_json())
    assert not any(secret in stored for secret in ("k3y-of-mine", "hush-hush", "t0ken-of-mine")), stored
    assert "--lr" in stored
