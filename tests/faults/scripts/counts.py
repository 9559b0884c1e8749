"""Counts steps, with a line of metrics for each, and saves every ten; each checkpoint carries its lineage: the number
of the attempt that began it from nothing. A CSV file is rewritten now and then, often with one more column. No PyTorch.

What it did is noted for whoever checks: `starts.jsonl` (one line an attempt), `journal.jsonl` (one line for each
line of metrics, and for each begin and end of a rewriting in place). Where ``GPU_LOCKS`` names a folder, it holds a
lock there for its GPU, which has ``GPU_PLACES`` places (1), as long as it lives; `starts.jsonl` says which place, null
if others had them all. ``GPU_PEAK`` is the memory that it says it takes.
"""

import argparse
import csv
import fcntl
import hashlib
import io
import json
import os
import pathlib
import random
import signal
import sys
import time
import zipfile

from title import set_title

if os.getpid() % 2:
    set_title()
parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--seconds", type=float, default=0.1)
parser.add_argument("--quality", type=float, default=0.0, help="where the loss ends")
parser.add_argument("--rewrite", choices=["never", "rename", "in_place"], default="never")
parser.add_argument("--folder", default="")
parser.add_argument("--resume", default="")
options = parser.parse_args()
run_dir = pathlib.Path(os.environ["GPUTUI_RUN_DIR"])
attempt = int(os.environ["GPUTUI_ATTEMPT"])
table = run_dir / "table.csv"
folder = pathlib.Path(options.folder or run_dir / "checkpoints")
folder.mkdir(exist_ok=True)
stopping = False


def ask(*_):
    global stopping
    stopping = True


def put(descriptor, text):
    """Write it whole, or fail."""
    data = text.encode()
    if os.write(descriptor, data) != len(data):
        raise OSError(28, "No space left on device")


def save(step):
    # Runs may share the folder; the run's name keeps them from overwriting each other's files.
    path = folder / f"step_{step:06d}_{run_dir.name}.pt"
    temporary = path.with_suffix(".tmp")
    with zipfile.ZipFile(temporary, "w") as archive:
        archive.writestr("state", json.dumps({"run": run_dir.name, "lineage": lineage, "step": step}))
    digest = hashlib.sha256(temporary.read_bytes()).hexdigest()
    side = path.with_suffix(".pt.sha256")
    side.unlink(missing_ok=True)
    temporary.rename(path)
    side.write_text(f"{digest}  {path.name}\n")


def read_table():
    """Header and whole rows."""
    text = table.read_text()
    return list(csv.reader(text[: text.rfind("\n") + 1].splitlines()))


def lines_of(rows):
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(rows)
    return buffer.getvalue().splitlines(keepends=True)


def replace_table(rows):
    temporary = table.with_suffix(".new")
    temporary.write_text("".join(lines_of(rows)))
    temporary.rename(table)


def rewrite_table():
    """Write all of it again, with another column as long as there are few."""
    header, *rows = read_table()
    if len(header) < 8:
        header.append(f"extra{len(header)}")
        rows = [[*row, ""] for row in rows]
    if options.rewrite == "rename":
        replace_table([header, *rows])
        put(journal, json.dumps({"replaced": attempt}) + "\n")
        return
    put(journal, json.dumps({"rewriting": attempt}) + "\n")
    with table.open("w") as file:
        for line in lines_of([header, *rows]):
            file.write(line)
            if random.random() < 0.2:
                file.flush()
    put(journal, json.dumps({"rewritten": attempt}) + "\n")


def open_table():
    if not table.exists():
        replace_table([["step", "serial", "loss"]])
    elif not table.read_bytes().endswith(b"\n"):
        # An attempt that found no room has left half a row.
        replace_table(read_table() or [["step", "serial", "loss"]])


def log_step(step, serial):
    loss = options.quality + 1 / (step + 1)
    if options.rewrite == "never":
        peak = {"gpu_mem_peak": int(os.environ["GPU_PEAK"])} if "GPU_PEAK" in os.environ else {}
        put(metrics, json.dumps({"step": step, "time": time.time(), "loss": loss, "serial": serial, **peak}) + "\n")
    else:
        width = len(read_table()[0])
        row = [step, serial, loss, *[random.random() for _ in range(width - 3)]]
        descriptor = os.open(table, os.O_WRONLY | os.O_APPEND)
        put(descriptor, lines_of([row])[0])
        os.close(descriptor)
    put(journal, json.dumps({"serial": serial}) + "\n")


def take_place():
    """The place on the GPU that no other process that lives has; None if there is none."""
    for place in range(int(os.environ.get("GPU_PLACES", "1")) if "GPU_LOCKS" in os.environ else 0):
        name = f"{os.environ['CUDA_VISIBLE_DEVICES']}.{place}"
        lock = os.open(pathlib.Path(os.environ["GPU_LOCKS"]) / name, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
        else:
            return place
    return None


signal.signal(signal.SIGTERM, ask)
lineage = attempt
begin = 0
if options.resume:
    with zipfile.ZipFile(options.resume) as archive:
        state = json.loads(archive.read("state"))
    lineage = state["lineage"] if state["run"] == run_dir.name else state["run"]
    begin = state["step"]
flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
# The blank line ends a half line of an earlier attempt that had no room on the disk.
starts, journal = (os.open(run_dir / name, flags) for name in ("starts.jsonl", "journal.jsonl"))
put(journal, "\n")
note = {"attempt": attempt, "pid": os.getpid(), "lineage": lineage, "begin": begin, "place": take_place()}
put(starts, "\n" + json.dumps(note) + "\n")
if options.rewrite == "never":
    metrics = os.open(os.environ["GPUTUI_METRICS"], flags)
else:
    open_table()
for step in range(begin, options.steps):
    time.sleep(options.seconds)
    log_step(step, attempt * 1_000_000 + step)
    if options.rewrite != "never" and random.random() < 0.1:
        rewrite_table()
    if (step + 1) % 10 == 0 or stopping:
        save(step + 1)
    if stopping:
        sys.exit(0)
print("done", flush=True)
