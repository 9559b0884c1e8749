"""Programs that start the training and repeat that it ended: what they print is no cause."""

from __future__ import annotations

from pathlib import Path

from gputui.recovery.classify import classify
from gputui.recovery.tracebacks import without_commands, wrapped_code
from tests.recovery.attempts import process_ended, traceback
from tests.tables import table

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
COMMAND = "['/v/bin/python', 'train.py', '--lr', '0.1', '--name', 'a long one']"
RETURNED = f"subprocess.CalledProcessError: Command '{COMMAND}' returned non-zero exit status {{code}}."
DIED = f"subprocess.CalledProcessError: Command '{COMMAND}' died with <Signals.SIGKILL: 9>."
OBSERVER = (
    "[rank: 1] Child process with PID 77 terminated with code {code}. Forcefully terminating all other processes to "
    "avoid zombies 🧟\n"
)


@table("launcher, output, record, kind, rank, told", [
    ("command", traceback("wandb.errors.UsageError: No API key") + traceback(RETURNED.format(code=1)), {"code": 1},
     "user_exception", None, "UsageError: No API key, train.py:88 in main"),
    ("python", traceback(RETURNED.format(code=3)), {"code": 1}, "nonzero_exit", None, "code 3"),
    ("python", traceback(DIED), {"code": 1}, "killed", None, "SIGKILL"),
    ("python", "step 1\nboom: x too large\n", {"code": 1}, "nonzero_exit", None, "(code 1: boom: x too large)"),
    ("command", "make: *** [Makefile:2: train] Error 7\n", {"code": 2}, "nonzero_exit", None, "code 7"),
    ("command", "make: *** [Makefile:2: train] Error 137\n", {"code": 2}, "killed", None, "SIGKILL"),
    ("command", "make: *** [Makefile:2: train] Killed\n", {"code": 2}, "killed", None, "SIGKILL"),
    ("command", "make[1]: *** [train] Segmentation fault (core dumped)\nmake: *** [all] Error 2\n", {"code": 2},
     "segfault", None, "SIGSEGV"),
    ("command", traceback(OOM) + "".join(f"epoch {n}\n" for n in range(30)) + "make: *** [t] Error 3\n", {"code": 2},
     "nonzero_exit", None, "code 3"),
    ("python", OBSERVER.format(code=-9), {"signal": 9}, "killed", 1, "SIGKILL"),
    ("python", traceback(OOM, rank=1) + OBSERVER.format(code=1), {"signal": 9}, "cuda_oom", 1, "2.00 GiB"),
    ("command", traceback("KeyError: 'a'", rank=1), {"code": 1}, "user_exception", 1, "KeyError: 'a'"),
    ("command", traceback(RETURNED.format(code=128), rank=0), {"code": 1}, "user_exception", 0,
     "subprocess.CalledProcessError: python ended with code 128"),
])  # fmt: skip
def test_the_cause_is_what_the_wrapper_started(
    launcher: str, output: str, record: dict[str, object], kind: str, rank: int | None, told: str, tmp_path: Path
) -> None:
    incident = classify(process_ended(tmp_path, output, record, launcher=launcher))
    assert (incident.kind, incident.rank) == (kind, rank)
    assert told in incident.summary and "--lr" not in incident.summary


def test_the_innermost_wrapper_says_how_it_ended() -> None:
    assert wrapped_code(f"{RETURNED.format(code=7)}\nmake: *** [t] Error 1\n") == 7
    assert wrapped_code("step 1\n") is None
    assert without_commands(DIED) == "subprocess.CalledProcessError: python ended by signal 9"
    assert without_commands("CUDA out of memory") == "CUDA out of memory"
