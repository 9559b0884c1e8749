"""Programs that start the training and repeat that it ended: what they print is no cause."""

from __future__ import annotations

from pathlib import Path

import pytest

from gputui.recovery.classify import classify
from gputui.recovery.wrappers import without_commands, wrapped_code
from tests.faults.drills import WATCHDOG
from tests.recovery.attempts import lay_out, process_ended, report, traceback
from tests.recovery.test_classify import error_file

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
COMMAND = "['/v/bin/python', 'train.py', '--lr', '0.1', '--name', 'a long one']"
RETURNED = f"subprocess.CalledProcessError: Command '{COMMAND}' returned non-zero exit status {{code}}."
DIED = f"subprocess.CalledProcessError: Command '{COMMAND}' died with <Signals.SIGKILL: 9>."
OBSERVER = (
    "[rank: 1] Child process with PID 77 terminated with code {code}. Forcefully terminating all other processes to "
    "avoid zombies 🧟\n"
)


@pytest.mark.parametrize(
    ("launcher", "output", "record", "kind", "rank", "told"),
    [
        (
            "command",
            traceback("wandb.errors.UsageError: No API key") + traceback(RETURNED.format(code=1)),
            {"code": 1},
            "user_exception",
            None,
            "UsageError: No API key, train.py:88 in main",
        ),
        ("python", traceback(RETURNED.format(code=3)), {"code": 1}, "nonzero_exit", None, "code 3"),
        ("python", traceback(DIED), {"code": 1}, "killed", None, "SIGKILL"),
        ("command", "make: *** [Makefile:2: train] Error 7\n", {"code": 2}, "nonzero_exit", None, "code 7"),
        ("command", "make: *** [Makefile:2: train] Error 137\n", {"code": 2}, "killed", None, "SIGKILL"),
        ("command", "make: *** [Makefile:2: train] Killed\n", {"code": 2}, "killed", None, "SIGKILL"),
        (
            "command",
            "make[1]: *** [train] Segmentation fault (core dumped)\nmake: *** [all] Error 2\n",
            {"code": 2},
            "segfault",
            None,
            "SIGSEGV",
        ),
        (
            "command",
            traceback(OOM) + "".join(f"epoch {n}\n" for n in range(30)) + "make: *** [t] Error 3\n",
            {"code": 2},
            "nonzero_exit",
            None,
            "code 3",
        ),
        ("python", OBSERVER.format(code=-9), {"signal": 9}, "killed", 1, "SIGKILL"),
        ("python", traceback(OOM, rank=1) + OBSERVER.format(code=1), {"signal": 9}, "cuda_oom", 1, "2.00 GiB"),
        ("command", traceback("KeyError: 'a'", rank=1), {"code": 1}, "user_exception", 1, "KeyError: 'a'"),
        (
            "command",
            traceback(RETURNED.format(code=128), rank=0),
            {"code": 1},
            "user_exception",
            0,
            "subprocess.CalledProcessError: python ended with code 128",
        ),
    ],
)
def test_the_cause_is_what_the_wrapper_started(
    launcher: str, output: str, record: dict[str, object], kind: str, rank: int | None, told: str, tmp_path: Path
) -> None:
    incident = classify(process_ended(tmp_path, output, record, launcher=launcher))
    assert (incident.kind, incident.rank) == (kind, rank)
    assert told in incident.summary and "--lr" not in incident.summary


def test_arguments_that_make_does_not_know_are_told_as_before(tmp_path: Path) -> None:
    text = "make: *** No rule to make target 'trian'.  Stop.\n"
    incident = classify(process_ended(tmp_path, text, {"code": 2}, launcher="command", last_step=None))
    assert incident.kind == "config_error" and "No rule to make target" in incident.summary


def test_a_refused_argument_is_found_in_front_of_torchruns_words(tmp_path: Path) -> None:
    text = "train.py: error: unrecognized arguments: --x\n" + report({0: 2, 1: 2}, root=0) + "make: *** [t] Error 1\n"
    incident = classify(process_ended(tmp_path, text, {"code": 2}, launcher="command", last_step=None))
    assert incident.kind == "config_error" and "unrecognized arguments: --x" in incident.summary


def test_a_rank_that_printed_nothing_of_its_own_has_what_its_launcher_printed(tmp_path: Path) -> None:
    text = traceback(OOM) + report({0: -15, 1: 1}, root=1, asked=(0,))
    incident = classify(process_ended(tmp_path, text, {"code": 1}, launcher="command"))
    assert (incident.kind, incident.rank) == ("cuda_oom", 1)


def test_error_files_of_a_nested_torchrun_are_read(tmp_path: Path) -> None:
    message = "OutOfMemoryError: CUDA out of memory. Tried to allocate 3.00 GiB"
    lay_out(tmp_path, {"ranks/1/error.json": error_file(message, 5)})
    text = report({0: -15, 1: 1}, root=1, asked=(0,))
    incident = classify(process_ended(tmp_path, text, {"code": 1}, launcher="command"))
    assert (incident.kind, incident.rank) == ("cuda_oom", 1)


def test_of_two_stages_that_failed_the_first_is_the_cause(tmp_path: Path) -> None:
    text = (
        traceback(OOM, rank=1)
        + report({0: -15, 1: 1}, root=1, asked=(0,))
        + traceback("FileNotFoundError: stage1.pt", rank=0)
        + report({0: 1, 1: -15}, root=0, asked=(1,), time="2026-11-20_17:42:30")
    )
    incident = classify(process_ended(tmp_path, text, {"code": 1}, launcher="command"))
    assert (incident.kind, incident.rank) == ("cuda_oom", 1)


def test_the_innermost_wrapper_says_how_it_ended() -> None:
    assert wrapped_code(f"{RETURNED.format(code=7)}\nmake: *** [t] Error 1\n") == 7
    assert wrapped_code("step 1\n") is None
    assert without_commands(DIED) == "subprocess.CalledProcessError: python ended by signal 9"
    assert without_commands("CUDA out of memory") == "CUDA out of memory"


@pytest.mark.parametrize("launcher", ["python", "command"])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_watchdog_that_aborts_its_process_is_no_crash(tmp_path: Path, launcher: str, rank: int) -> None:
    """Its words have the prefix of its rank, its end is that of the command."""
    text = WATCHDOG.replace("rank1", f"rank{rank}")
    assert classify(process_ended(tmp_path, text, {"signal": 6}, launcher=launcher)).kind == "nccl_timeout"
    assert classify(process_ended(tmp_path, text, {"signal": 11}, launcher=launcher)).kind == "segfault"
