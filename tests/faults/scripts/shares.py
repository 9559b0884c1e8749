"""Ranks that share the accumulation and assert that they can, as nanoGPT's do; the first attempt runs out of memory at
step 15. No PyTorch."""

import argparse
import json
import os
import pathlib
import time
import zipfile

parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int)
parser.add_argument("--gradient_accumulation_steps", type=int)
parser.add_argument("--divisor", type=int)
parser.add_argument("--resume", default="")
options = parser.parse_args()
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
assert options.gradient_accumulation_steps % size == 0
assert options.batch_size % options.divisor == 0
folder = pathlib.Path(os.environ["GPUTUI_RUN_DIR"]) / "checkpoints"
folder.mkdir(exist_ok=True)


class OutOfMemoryError(RuntimeError):
    __module__ = "torch"


begin = int(pathlib.Path(options.resume).stem.split("_")[1]) if options.resume else 0
for step in range(begin, 30) if rank == 0 else ():
    time.sleep(0.01)
    if step == 15 and not options.resume:
        raise OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
    with pathlib.Path(os.environ["GPUTUI_METRICS"]).open("a") as metrics:
        metrics.write(json.dumps({"step": step, "loss": 1 / (step + 1)}) + "\n")
    if (step + 1) % 10 == 0:
        path = folder / f"step_{step + 1:06d}.pt"
        with zipfile.ZipFile(path.with_suffix(".tmp"), "w") as archive:
            archive.writestr("step", str(step + 1))
        path.with_suffix(".tmp").rename(path)
