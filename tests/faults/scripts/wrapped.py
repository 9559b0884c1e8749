"""Two ranks that train over gloo below a launcher that gputui knows nothing of; the first time one of them fails."""

import json
import os
import pathlib
import signal
import sys
import zipfile

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record


@record
def main(fault: str, batch: str, resume: str) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    run_dir = pathlib.Path(os.environ["GPUTUI_RUN_DIR"])
    begin = int(pathlib.Path(resume).stem.split("_")[1]) if resume else 0
    for step in range(begin, 20):
        if rank == 1 and step == 15 and not resume:
            if fault == "oom":
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total of 8")
            os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(torch.ones(1))
        if rank == 0:
            with pathlib.Path(os.environ["GPUTUI_METRICS"]).open("a") as metrics:
                metrics.write(json.dumps({"step": step, "loss": 1 / (step + 1), "batch": float(batch)}) + "\n")
            if step == 9:
                path = run_dir / "checkpoints" / "step_10.pt"
                path.parent.mkdir(exist_ok=True)
                with zipfile.ZipFile(path.with_suffix(".tmp"), "w") as archive:
                    archive.writestr("step", "10")
                path.with_suffix(".tmp").rename(path)
    dist.destroy_process_group()


main(sys.argv[1], sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else "")
