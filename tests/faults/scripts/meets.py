"""Counts to thirty and saves at 10, 20 and 30; at step 15 it meets the failure that --meet names. No PyTorch.

Just before it fails it writes the moment to the file failed-at in the run's folder."""

import argparse
import ctypes
import json
import os
import pathlib
import resource
import signal
import socket
import subprocess
import sys
import time
import zipfile

parser = argparse.ArgumentParser()
parser.add_argument("--meet")
parser.add_argument("--num-workers", type=int)
parser.add_argument("--batch-size", type=int)
parser.add_argument("--grad-accum", type=int)
parser.add_argument("--resume", default="")
options = parser.parse_args()
run_dir = pathlib.Path(os.environ["GPUTUI_RUN_DIR"])
folder = run_dir / "checkpoints"
folder.mkdir(exist_ok=True)
begin = int(pathlib.Path(options.resume).stem.split("_")[1]) if options.resume else 0
out = os.open(os.environ["GPUTUI_METRICS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def note_failure():
    (run_dir / "failed-at").write_text(repr(time.time()))


def write(step, loss):
    line = {"step": step, "time": time.time(), "loss": loss, "val/unused": float("nan"), "gpu_mem_peak": 1 << 30}
    os.write(out, (json.dumps(line) + "\n").encode())


def taken_port():
    first = socket.socket()
    first.bind(("127.0.0.1", 0))
    socket.socket().bind(first.getsockname())


def memory():
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
    bytearray(8 << 30)


def files():
    resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
    [os.open("/dev/null", os.O_RDONLY) for _ in range(64)]


def disk():
    with pathlib.Path("/dev/full").open("w") as file:
        file.write("x" * 100_000)


def nan():
    raise FloatingPointError("loss is nan at step 15")


def recording():
    """Ends as the recording beside this script tells."""
    recording = json.loads(pathlib.Path(__file__).with_name("recording.json").read_text())
    print(recording["text"], file=sys.stderr, flush=True)
    if recording["code"] < 0:
        os.kill(os.getpid(), -recording["code"])
    os._exit(recording["code"])


def held():
    """Waits, as a rank does whose GPU is gone, until the file "go" tells how to go on."""
    (run_dir / "held").touch()
    while not (run_dir / "go").exists():
        time.sleep(0.01)
    if (run_dir / "go").read_text() == "fail":
        raise RuntimeError("the dog ate the gradients")
    if (run_dir / "go").read_text() == "oom":
        raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")


def written(loss):
    """Goes on for some seconds with a loss that went wrong, after sixty lines on which it was right."""
    for step in range(16, 76):
        write(step, 1.0 + 0.01 * (step % 7))
        time.sleep(0.002)
    note_failure()
    for step in range(76, 476):
        write(step, loss)
        time.sleep(0.02)


def lost_interpreter():
    pathlib.Path(os.environ["INTERPRETER"]).unlink()
    note_failure()
    raise RuntimeError("the dog ate the interpreter")


FAILURES = {
    "user_exception": lambda: {}["tokens"],
    "nonzero_exit": lambda: sys.exit(7),
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "segfault": lambda: ctypes.string_at(0),
    "host_oom": memory,
    "resource_limit": files,
    "disk_full": disk,
    "port_in_use": taken_port,
    "nan_loss": nan,
    "import_error": lambda: __import__("no_such_module_here"),
    "stopped_outside": lambda: (os.kill(os.getppid(), signal.SIGTERM), time.sleep(60)),
    "shim_lost": lambda: (os.kill(os.getppid(), signal.SIGKILL), time.sleep(60)),
    "recording": recording,
    "held": held,
    "written nan": lambda: written(float("nan")),
    "written jump": lambda: written(5.0),
    "lost interpreter": lost_interpreter,
    # Look-alikes of incidents in the output, which are none.
    "quotes": lambda: print("CUDA out of memory. Tried to allocate 2 GiB\nKilled\nSegmentation fault\nloss is nan"),
    "caught": lambda: subprocess.run([sys.executable, "-c", "{}['x']"]),
    "usage": lambda: print(argparse.ArgumentParser(usage="job [--on-error cuda_oom]").format_help()),
    "long step": lambda: time.sleep(2),
}


def meet(step):
    if options.meet == "a bad checkpoint":
        # The checkpoint of step 20 exists when the first attempt fails; the second cannot load it.
        if step == 25 and not begin:
            raise RuntimeError("the dog ate the gradients")
    elif options.meet == "a loop":
        if step == 15:
            if begin:
                note_failure()
            raise RuntimeError("the dog ate the gradients")
    elif step == 15 and not begin:
        if not options.meet.startswith("written"):
            note_failure()
        FAILURES[options.meet]()


if options.meet == "config_error":
    note_failure()
    parser.error("argument --num-workers: must not be more than there are cores")
if options.meet == "a bad checkpoint" and begin == 20:
    note_failure()
    recording()
for step in range(begin, 30):
    write(step, 1 / (step + 1))
    meet(step)
    if (step + 1) % 10 == 0:
        with zipfile.ZipFile(folder / "new.tmp", "w") as archive:
            archive.writestr("step", str(step))
        (folder / "new.tmp").rename(folder / f"step_{step + 1:06d}.pt")
