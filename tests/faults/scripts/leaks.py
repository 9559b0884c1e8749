"""Counts steps and keeps something of each, in an attempt that begins at 0; saves when it is asked to end.

One that keeps all goes on until it is asked, or `enough` lies in its folder: it must leak for as long as the agent
needs to look often enough. It ends by itself only to spare the machine.
"""

import argparse
import json
import mmap
import os
import pathlib
import signal
import sys
import time
import zipfile

parser = argparse.ArgumentParser()
parser.add_argument("--keep")
parser.add_argument("--num-workers", type=int)
parser.add_argument("--resume", default="")
options = parser.parse_args()
run_dir = pathlib.Path(os.environ["GPUTUI_RUN_DIR"])
folder = run_dir / "checkpoints"
folder.mkdir(exist_ok=True)
begin = int(pathlib.Path(options.resume).stem.split("_")[1]) if options.resume else 0
stops = []
signal.signal(signal.SIGTERM, lambda *_: stops.append(1))
blocks = []
done = begin
emptied = time.monotonic()
if options.keep == "the page cache":
    big = run_dir / "data"
    big.write_bytes(bytes(480 << 20))
    view = mmap.mmap(os.open(big, os.O_RDONLY), 0, access=mmap.ACCESS_READ)
out = os.open(os.environ["GPUTUI_METRICS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
if not begin:
    (run_dir / "failed-at").write_text(repr(time.time()))
leaks = options.keep == "all" and not begin
end = begin + 20 if begin else 1500 if leaks else 240
while done < end and not stops and not (leaks and (run_dir / "enough").exists()):
    if leaks:
        blocks.append(b"x" * (2 << 20))
    elif options.keep == "the page cache":
        sum(view[done * (2 << 20) : (done + 1) * (2 << 20) : 4096])
    elif options.keep == "a cache for a while":
        # By the clock, as the agent looks: on a crowded machine steps take longer.
        if time.monotonic() - emptied > 0.4:
            blocks = []
            emptied = time.monotonic()
        blocks.append(b"x" * (3 << 20))
    time.sleep(0.02)
    os.write(out, (json.dumps({"step": done, "time": time.time(), "loss": 1.0}) + "\n").encode())
    done += 1
if stops:
    with zipfile.ZipFile(folder / "new.tmp", "w") as archive:
        archive.writestr("step", str(done))
    (folder / "new.tmp").rename(folder / f"step_{done:06d}.pt")
    sys.exit(0)
