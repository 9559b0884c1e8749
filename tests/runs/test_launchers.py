"""What every launcher keeps to, and that nobody else knows one by its name."""

from __future__ import annotations

from pathlib import Path

import pytest

import gputui
from gputui.runs.launchers import LAUNCHERS
from gputui.runs.launchers.base import OUTPUT, Invocation, Launcher, Node, Placement
from gputui.runs.spec import RunSpec

INVOCATION = Invocation(("train.py", "--lr", "0.1"), "/runs/r-1/attempts/2", "r-1.2")
EVERY = pytest.mark.parametrize("launcher", LAUNCHERS.values(), ids=LAUNCHERS)


def spec(launcher: Launcher) -> RunSpec:
    python = None if launcher.takes_command else "/venv/bin/python"
    return RunSpec(name="a", launcher=launcher.name, program=("train.py",), workdir="/", python=python, nproc=2)


@EVERY
def test_the_program_comes_last_with_its_arguments(launcher: Launcher) -> None:
    for ranks in (1, 2):
        argv = launcher.argv(spec(launcher), Placement.here(("GPU-a", "GPU-b")[:ranks], ranks, 29501), INVOCATION)
        assert argv[-3:] == INVOCATION.words
        assert (argv[0] == "/venv/bin/python") is not launcher.takes_command


@EVERY
def test_a_specification_with_it_survives_being_stored(launcher: Launcher) -> None:
    assert RunSpec.from_json(spec(launcher).to_json()) == spec(launcher)


@EVERY
def test_only_files_that_are_there_hold_what_the_first_rank_printed(launcher: Launcher, tmp_path: Path) -> None:
    assert launcher.log_files(tmp_path, 2) == []
    pattern = launcher.rank_output(2)
    file = tmp_path / pattern.replace("*", "id").replace("{stream}", "stderr")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("x")
    assert launcher.log_files(tmp_path, 2) == [file]
    assert launcher.starts_ranks or pattern == OUTPUT


@EVERY
def test_an_output_always_gives_a_report(launcher: Launcher) -> None:
    assert [report.root for report in launcher.read_report("")] == [None]
    (report,) = launcher.read_report("step 1\n")
    assert (report.root, report.rest) == (None, "step 1\n")


def test_a_world_of_two_machines() -> None:
    placement = Placement((Node("kepler", ("0",), 2), Node("tycho", ("1", "2"), 3)), 29500)
    assert (placement.ranks, placement.endpoint) == (5, "kepler:29500")


def test_a_name_is_written_in_its_launchers_file_alone() -> None:
    root = Path(gputui.__file__).parent
    # What launchers write about an end is data about texts, and a library is named where scripts are looked through.
    others = {root / "runs" / "launchers" / "reports.py", root / "profiles" / "draft.py"}
    others.add(root / "cli" / "init.py")
    for name in (name for name, one in LAUNCHERS.items() if one.starts_ranks):
        own = root / "runs" / "launchers" / f"{name}.py"
        holders = {file for file in root.rglob("*.py") if f'"{name}"' in file.read_text("utf-8")}
        assert holders - others == {own}


def test_accelerate_takes_only_the_gpus_that_it_was_given() -> None:
    accelerate = LAUNCHERS["accelerate"]
    argv = accelerate.argv(spec(accelerate), Placement.here(("GPU-a", "GPU-b"), 2, 29501), INVOCATION)
    assert argv[1:3] == ("-m", "accelerate.commands.launch")
    assert {"--multi_gpu", "--num_processes=2", "--gpu_ids=all", "--main_process_port=29501"} <= set(argv)
    # Fewer than two processes are refused with --multi_gpu.
    assert "--multi_gpu" not in accelerate.argv(spec(accelerate), Placement.here((), 1, 29501), INVOCATION)
    assert (accelerate.rank_output(2) == OUTPUT, accelerate.rank_output(1)) == (False, OUTPUT)
