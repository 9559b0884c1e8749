"""Two ranks that exchange over gloo; at step 30 rank 1 is stopped, or waits for a lock that nobody gives back."""

import json
import os
import pathlib
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
run_dir = pathlib.Path(os.environ["GPUTUI_RUN_DIR"])
with pathlib.Path(os.environ["GPUTUI_METRICS"]).open("a", buffering=1) as metrics:
    for step in range(1000):
        time.sleep(0.1)
        if step == 30 and rank == 1:
            (run_dir / "failed-at").write_text(repr(time.time()))
            if sys.argv[1] == "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            threading.Event().wait()
        dist.all_reduce(torch.ones(1))
        if rank == 0:
            metrics.write(json.dumps({"step": step, "loss": 1.0, "time": time.time()}) + "\n")
