"""Each rank waits at every step until all others have come as far, through files, as ranks do in a collective: no
torch, little start-up."""

import json
import os
import pathlib
import sys
import time
import zipfile
import zlib

from title import set_title

steps = int(sys.argv[1])
fault = sys.argv[2]
seconds = float(sys.argv[3])
resume = sys.argv[4] if len(sys.argv) > 4 else ""
rank = int(os.environ["RANK"])
size = int(os.environ["WORLD_SIZE"])
run_dir = pathlib.Path(os.environ["GPUTUI_RUN_DIR"])
meeting = run_dir / f"meeting-{os.environ['GPUTUI_ATTEMPT']}"
meeting.mkdir(exist_ok=True)
if fault == "titled" or (fault == "half titled" and rank == 1):
    set_title()
begin = int(pathlib.Path(resume).stem.split("_")[1]) if resume else 0


def meet(step):
    (meeting / f"{step}.{rank}").touch()
    while not all((meeting / f"{step}.{rank}").exists() for rank in range(size)):
        time.sleep(0.02)


def work(seconds):
    """Compute about a third of the time: enough to be seen at work, and the other tests get on as well."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pause = time.monotonic() + 0.01
        while time.monotonic() < pause:
            zlib.crc32(bytes(100000))
        time.sleep(0.02)


def read(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with pathlib.Path("/dev/zero").open("rb", buffering=0) as data:
            data.read(1 << 20)
        time.sleep(0.05)


out = os.open(os.environ["GPUTUI_METRICS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
for step in range(begin, steps):
    began = time.monotonic()
    if fault == "compile" and step == begin:
        work(seconds)
    if step == 14 and not resume:
        if fault in ("validate", "titled") or (fault == "half titled" and rank == 1):
            work(seconds)
        if fault == "save" and rank == 0:
            read(seconds)
        if fault == "leave" and rank == 1:
            (run_dir / "failed-at").write_text(repr(time.time()))
            sys.exit(0)
    if fault == "slow" and rank == 1:
        if step == begin:
            (run_dir / "failed-at").write_text(repr(time.time()))
        time.sleep(seconds)
    time.sleep(0.03)
    ready = time.monotonic()
    meet(step)
    done = time.monotonic()
    times = {"step_time": done - began, "comm_time": done - ready}
    if rank:
        os.write(out, (json.dumps({"step": step, "time": time.time(), "rank": rank, **times}) + "\n").encode())
        continue
    loss = float("nan") if fault == "nan" and not resume and step >= 14 else 1 / (step + 1)
    line = {"step": step, "time": time.time(), "rank": 0, "loss": loss, "odd": float("nan"), **times}
    os.write(out, (json.dumps(line) + "\n").encode())
    if (step + 1) % 10 == 0:
        path = run_dir / "checkpoints" / f"step_{step + 1:06d}.pt"
        path.parent.mkdir(exist_ok=True)
        with zipfile.ZipFile(path.with_suffix(".tmp"), "w") as archive:
            archive.writestr("step", str(step + 1))
        path.with_suffix(".tmp").rename(path)
