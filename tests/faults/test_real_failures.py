"""Failures made real by cheap scripts without PyTorch: each run meets one in its first attempt, at step 15, and is
brought back from its checkpoint of step 10, or is given up at once where trying again would fail the same way."""

from __future__ import annotations

import sys

import pytest

from tests.machine import Machine

SCRIPT = '''
"""Counts to thirty; in an attempt that begins at 0 it meets the failure that --meet names."""
import argparse, ctypes, json, os, pathlib, resource, signal, socket, subprocess, sys, time, zipfile, zlib

options = argparse.ArgumentParser()
options.add_argument("--meet")
options.add_argument("--num-workers", type=int)
options.add_argument("--resume", default="")
options = options.parse_args()
folder = pathlib.Path(os.environ["GPUTUI_RUN_DIR"]) / "checkpoints"
begin = int(pathlib.Path(options.resume).stem.split("_")[1]) if options.resume else 0

def taken_port():
    first = socket.socket()
    first.bind(("127.0.0.1", 0))
    socket.socket().bind(first.getsockname())

def memory():
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
    bytearray(8 << 30)

def files():
    resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
    kept = [open("/dev/null") for _ in range(64)]

def disk():
    with open("/dev/full", "w") as file:
        file.write("x" * 100_000)

def tell(text, code=1):
    print(text, file=sys.stderr)
    sys.exit(code)

FAILURES = {
    "user_exception": lambda: {}["tokens"],
    "nonzero_exit": lambda: sys.exit(7),
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "segfault": lambda: ctypes.string_at(0),
    "host_oom": memory,
    "resource_limit": files,
    "disk_full": disk,
    "port_in_use": taken_port,
    "nan_loss": lambda: exec("raise FloatingPointError('loss is nan at step 15')"),
    "import_error": lambda: __import__("no_such_module_here"),
    "stopped_outside": lambda: (os.kill(os.getppid(), signal.SIGTERM), time.sleep(60)),
    "shim_lost": lambda: (os.kill(os.getppid(), signal.SIGKILL), time.sleep(60)),
    # Look-alikes: said, logged, measured, and no incident at all.
    "quotes": lambda: print("CUDA out of memory. Tried to allocate 2 GiB\\nKilled\\nSegmentation fault\\nloss is nan"),
    "caught": lambda: subprocess.run([sys.executable, "-c", "{}['x']"]),
    "usage": lambda: print(argparse.ArgumentParser(usage="job [--on-error cuda_oom]").format_help()),
    "long step": lambda: time.sleep(2),
}
out = os.open(os.environ["GPUTUI_METRICS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
for step in range(begin, 30):
    line = {"step": step, "time": time.time(), "loss": 1 / (step + 1), "val/unused": float("nan")}
    os.write(out, (json.dumps(line) + "\\n").encode())
    if step == 15 and not begin:
        FAILURES[options.meet]()
    if (step + 1) % 10 == 0:
        with zipfile.ZipFile(folder / "new.tmp", "w") as archive:
            archive.writestr("step", str(step))
        (folder / "new.tmp").rename(folder / f"step_{step + 1:06d}.pt")
'''
PROFILE = f"""
name: job
launcher: python
script: meets.py
python: {sys.executable}
gpus: 0
params: {{meet: none, num_workers: 4}}
metrics: {{source: jsonl, path: "{{run_dir}}/metrics.jsonl"}}
checkpoints: {{pattern: "step_*.pt", resume: "--resume {{checkpoint}}"}}
recovery:
  policy: standard
  backoff: {{base: 0.1, max: 0.2}}
  ladders: {{disk_full: [restart]}}
"""

# kind → what its evidence says, and the data loader workers of the next attempt.
RECOVERED = {
    "user_exception": ("KeyError: 'tokens'", 4),
    "nonzero_exit": ("ended with code 7", 4),
    "killed": ("SIGKILL", 4),
    "segfault": ("SIGSEGV", 4),
    "host_oom": ("MemoryError", 2),
    "resource_limit": ("Too many open files", 2),
    "disk_full": ("No space left on device", 4),
    "port_in_use": ("Address already in use", 4),
    "nan_loss": ("loss is nan", 4),
    "shim_lost": ("no exit record", 4),
}
GIVEN_UP = {"import_error": ("no_such_module_here", "failed"), "stopped_outside": ("asked to stop", "stopped")}
LOOK_ALIKES = ("quotes", "caught", "usage", "long step")


@pytest.mark.slow
def test_real_failures_are_told_apart_and_recovered(machine: Machine) -> None:
    (machine.folder / "meets.py").write_text(SCRIPT)
    profile = machine.profile("job", PROFILE)
    for kind in (*RECOVERED, *GIVEN_UP, *LOOK_ALIKES):
        machine.gputui("run", profile, "--set", f"meet={kind}", "--name", kind.replace(" ", "-"))
    for kind, (evidence, workers) in RECOVERED.items():
        state = machine.wait_for(f"{kind}-1", "succeeded", "failed", "stopped")
        first, second = machine.json("show", f"{kind}-1")["attempts"]
        assert first["incident"]["kind"] == kind
        assert evidence in " ".join([first["incident"]["summary"], *first["incident"]["evidence"]])
        assert first["decision"]["reason"]
        assert second["resumed_from"].endswith("step_000010.pt")
        assert second["params"] == {"meet": kind, "num_workers": workers}
        assert (state, second["state"]) == ("succeeded", "succeeded")
        assert machine.steps(f"{kind}-1") == [(1, step) for step in range(16)] + [(2, step) for step in range(10, 30)]
    for kind, (evidence, expected) in GIVEN_UP.items():
        assert machine.wait_for(f"{kind}-1", "succeeded", "failed", "stopped") == expected
        (attempt,) = machine.json("show", f"{kind}-1")["attempts"]
        assert attempt["incident"]["kind"] == kind
        assert evidence in " ".join([attempt["incident"]["summary"], *attempt["incident"]["evidence"]])
    for name in LOOK_ALIKES:
        run_id = f"{name.replace(' ', '-')}-1"
        assert machine.wait_for(run_id, "succeeded", "failed", "stopped") == "succeeded"
        (attempt,) = machine.json("show", run_id)["attempts"]
        assert attempt["incident"] is None
        assert machine.rows("SELECT count(*) FROM incidents WHERE run_id = ?", run_id) == [(0,)]
    assert machine.rows("SELECT * FROM leases") == []
