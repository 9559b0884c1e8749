"""From a specification to the exact command."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gputui.runs.command import Launch, PieceError, build_launch, find_pieces
from gputui.runs.launchers.base import Placement
from gputui.runs.spec import CheckpointSpec, GpuRequest, MetricsSpec, RunSpec, Scalar
from tests.tables import table

SPEC = RunSpec(
    name="demo",
    launcher="torchrun",
    program=("-m", "trainer"),
    python="/venv/bin/python",
    workdir="/work dir",
    nproc=2,
    params={"batch_size": 16, "lr": 0.1, "resume_everything": True, "note": None},
    metrics=(MetricsSpec("jsonl", "{run_dir}/metrics.jsonl"),),
    checkpoints=CheckpointSpec("{run_dir}/checkpoints", "step_*.pt", ("--resume", "{checkpoint}")),
)


def launch(spec: RunSpec = SPEC, **changes: object) -> Launch:
    arguments: dict[str, object] = {
        "run_dir": "/state/runs/demo-1",
        "attempt": 3,
        "params": spec.params,
        "placement": Placement.here(("GPU-a", "GPU-b"), 2, 29501),
        "checkpoint": None,
        **changes,
    }
    return build_launch(spec, **arguments)  # type: ignore[arg-type]


def test_torchrun_restarts_nothing_and_meets_on_a_port_of_its_own() -> None:
    argv = launch().argv
    assert argv[:3] == ("/venv/bin/python", "-m", "torch.distributed.run")
    assert "--max-restarts=0" in argv
    assert "--nproc-per-node=2" in argv
    assert "--rdzv-endpoint=127.0.0.1:29501" in argv
    assert "--log-dir=/state/runs/demo-1/attempts/3/nodes/0/ranks" in argv
    assert argv[-8:] == ("-m", "trainer", "--batch-size", "16", "--lr", "0.1", "--resume-everything", "true")


def test_the_environment_of_an_attempt() -> None:
    command = launch(checkpoint="/c/step_40.pt")
    assert command.env["CUDA_VISIBLE_DEVICES"] == "GPU-a,GPU-b"
    assert command.env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert command.env["GPUTUI_RUN_ID"] == "demo-1"
    assert command.env["GPUTUI_ATTEMPT"] == "3"
    assert command.env["GPUTUI_GRACE"] == "30"
    assert command.env["GPUTUI_METRICS"] == "/state/runs/demo-1/metrics.jsonl"
    assert command.env["GPUTUI_CHECKPOINT"] == "/c/step_40.pt"
    assert command.argv[-2:] == ("--resume", "/c/step_40.pt")
    assert command.env["TORCHELASTIC_ERROR_FILE"] == "/state/runs/demo-1/attempts/3/nodes/0/error.json"
    assert command.env["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] == "30"
    assert "GPUTUI_CHECKPOINT" not in launch().env


def test_a_script_that_resumes_by_a_step() -> None:
    checkpoints = CheckpointSpec("/c", "model_*.pt", ("--resume-from-step", "{checkpoint_step}"))
    spec = replace(SPEC, checkpoints=checkpoints, args=("[--skip", "{checkpoint_step}]"))
    assert launch(spec, checkpoint="/c/model_000420.pt").argv[-4:] == ("--skip", "420", "--resume-from-step", "420")
    assert launch(spec).argv[-1] == "trainer"
    with pytest.raises(ValueError, match=r"last\.pt"):
        launch(spec, checkpoint="/c/last.pt")


def test_a_value_never_becomes_two_arguments_or_a_placeholder() -> None:
    spec = replace(SPEC, args=("--text={note}", "--dir", "{run_dir}", "{unknown}", "{}"))
    note = "a b; rm -rf $HOME {run_dir} '\""
    command = launch(spec, params={"note": note})
    assert command.argv[-5:] == (f"--text={note}", "--dir", "/state/runs/demo-1", "{unknown}", "{}")


@table("args, params, expected", [
    ("--lr {lr} [--clip-grad {clip}]", {"lr": 0.1, "clip": 1.0}, "--lr 0.1 --clip-grad 1.0"),
    ("--lr {lr} [--clip-grad {clip}]", {"lr": 0.1, "clip": None}, "--lr 0.1"),
    ("[--clip-grad {clip}] --lr {lr}", {"lr": 0.1, "clip": 0}, "--clip-grad 0 --lr 0.1"),
    ("[--amp {amp}] end", {"amp": True}, "--amp end"), ("[--amp {amp}] end", {"amp": False}, "end"),
    ("[--amp={amp}]", {"amp": True}, "--amp=true"),
    ("[--ema {ema} --decay {decay}]", {"ema": True, "decay": 0.9}, "--ema --decay 0.9"),
    ("[--ema {ema} --decay {decay}]", {"ema": True, "decay": None}, ""),
    ("[+trainer.clip={clip}] [-v {v}]", {"clip": None, "v": True}, "-v"), ("[CLIP={clip}]", {"clip": 2}, "CLIP=2"),
    ("[--sizes [{a},{b}]] x", {"a": 1, "b": 2}, "--sizes [1,2] x"),
    ("--betas [0.9,0.99] [{a},{b}] [x] [", {"a": 1, "b": 2}, "--betas [0.9,0.99] [1,2] [x] ["),
    ("--range [-1,1] [-{a},{b}]", {"a": 1, "b": 2}, "--range [-1,1] [-1,2]"),
    ("[--from {checkpoint}] [--out {run_dir}]", {}, "--out /state/runs/demo-1"),
    ("[--text {text}]", {"text": "a] [--b {c}"}, "--text|a] [--b {c}"),
])  # fmt: skip
def test_optional_pieces(args: str, params: dict[str, Scalar], expected: str) -> None:
    spec = replace(SPEC, launcher="python", program=("a.py",), args=tuple(args.split()), params=params)
    arguments = expected.split("|") if "|" in expected else expected.split()
    assert launch(spec).argv[2:] == tuple(arguments)
    command = replace(spec, launcher="command", program=("make", *spec.args), args=(), python=None)
    assert launch(command).argv == ("make", *arguments)


@table(
    "piece",
    ["[--clip {clip}", "[--a {a} [--b {b}]]", "[--verbose]", "[--a {a}] [lr={lr} [--b", "[-x 1 ]", "[--lr {lr}]x"],
)
def test_pieces_that_cannot_be_understood(piece: str) -> None:
    with pytest.raises(PieceError):
        find_pieces(piece.split())


def test_other_launchers() -> None:
    script = replace(SPEC, launcher="python", program=("train.py",), params={"lr": 1e-5})
    assert launch(script, params=script.params).argv == ("/venv/bin/python", "train.py", "--lr", "1e-05")
    bare = replace(SPEC, launcher="command", program=("bash", "-c", "echo {lr}"), args=(), python=None)
    assert launch(bare).argv == ("bash", "-c", "echo 0.1")


def test_a_launch_and_a_specification_survive_storage() -> None:
    command = launch()
    assert Launch.from_json(command.to_json()) == command
    spec = replace(SPEC, gpus=GpuRequest(2, ("GPU-a", "GPU-b"), 10 << 30), args=("--x", "{lr}"))
    assert RunSpec.from_json(spec.to_json()) == spec
