"""A training script that needs more memory than the GPU has, until its batch is halved; torch is all it needs.

Half of a batch of `--full` takes three fifths of the free memory. On the CPU, where no such limit is known, it raises
what CUDA would raise.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--full", type=int, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--resume", default="")
    args = parser.parse_args()
    first = torch.load(args.resume, weights_only=True)["step"] + 1 if args.resume else 1
    (args.out / "checkpoints").mkdir(parents=True, exist_ok=True)
    for step in range(first, args.steps + 1):
        # The first steps fit whatever the batch, so that there is a checkpoint to go on from.
        batch = args.batch_size if step > args.steps // 2 else 1
        loss = take(batch, args.full, args.device)
        with (args.out / "metrics.jsonl").open("a") as lines:
            lines.write(json.dumps({"step": step, "time": time.time(), "loss": loss}) + "\n")
        torch.save({"step": step}, args.out / "checkpoints" / f"step_{step:08d}.pt")


def take(batch: int, full: int, device: str) -> float:
    if device == "cpu":
        if batch >= full:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB. (on purpose, on the CPU)")
        return 1.0 / batch
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    parts = [torch.ones(int(1.2 * free / full), dtype=torch.uint8, device=device) for _ in range(batch)]
    return float(torch.stack([part[0] for part in parts]).float().mean()) / batch


if __name__ == "__main__":
    main()
