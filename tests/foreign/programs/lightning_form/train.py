"""In the form of Lightning's Trainer with its own DDP launcher: the process that was started is rank 0 and starts the
others itself, with RANK and LOCAL_RANK in their environment; metrics in lightning_logs/version_N/metrics.csv, a version
for each start; checkpoints beside them; `fit` takes ckpt_path."""

import argparse
import csv
import os
import pathlib
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
import torch
from fake_gpu import allocate

parser = argparse.ArgumentParser()
parser.add_argument("--devices", type=int, default=2)
parser.add_argument("--max_steps", type=int, default=200)
parser.add_argument("--batch_size", type=int, default=32)
parser.add_argument("--accumulate_grad_batches", type=int, default=1)
parser.add_argument("--default_root_dir", default=".")
parser.add_argument("--ckpt_path", default=None)
args = parser.parse_args()

rank = int(os.environ.get("LOCAL_RANK", "0"))
children = []
if "LOCAL_RANK" not in os.environ:
    os.environ.update(MASTER_ADDR="127.0.0.1", NODE_RANK="0", WORLD_SIZE=str(args.devices))
    for number in range(1, args.devices):
        env = {**os.environ, "LOCAL_RANK": str(number), "RANK": str(number)}
        children.append(subprocess.Popen([sys.executable, *sys.argv], env=env))
    os.environ.update(LOCAL_RANK="0", RANK="0")


def end(*_):
    for child in children:
        child.terminate()
    raise SystemExit(143)


signal.signal(signal.SIGTERM, end)
step = torch.load(args.ckpt_path, weights_only=True)["global_step"] if args.ckpt_path else 0
root = pathlib.Path(args.default_root_dir) / "lightning_logs"
if rank == 0:
    root.mkdir(parents=True, exist_ok=True)
    version = len(list(root.glob("version_*")))
    folder = root / f"version_{version}"
    assert not folder.exists()
    (folder / "checkpoints").mkdir(parents=True)
    file = (folder / "metrics.csv").open("w", newline="")
    writer = csv.DictWriter(file, ["epoch", "step", "train_loss"])
    writer.writeheader()
while step < args.max_steps:
    allocate(args.batch_size, step)
    time.sleep(0.02)
    step += 1
    for number, child in enumerate(children, 1):
        if child.poll() not in (None, 0):
            ended = f"[rank: {number}] Child process with PID {child.pid} terminated with code {child.returncode}. "
            print(ended + "Forcefully terminating all other processes to avoid zombies", file=sys.stderr, flush=True)
    if any(child.poll() not in (None, 0) for child in children):
        raise RuntimeError("DataLoader worker or a rank of DDP ended: [rank0] Connection closed by peer")
    if rank == 0 and step % 5 == 0:
        writer.writerow({"epoch": step // 50, "step": step, "train_loss": 2.0 / step})
        file.flush()
    if rank == 0 and step % 20 == 0:
        saved = folder / "checkpoints" / f"epoch={step // 50}-step={step}.ckpt"
        torch.save({"global_step": step, "state_dict": {}}, saved)
for child in children:
    child.wait()
