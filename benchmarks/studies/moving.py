"""A training whose best learning rate falls while it trains: ``moving.py --lr 0.1 --steps 400``. Standard library only.

No fixed learning rate is good from begin to end. A checkpoint holds the loss and the learning rate that led to it, as
one with an optimizer does; what the command line says counts. The state follows from the learning rates alone, so that
a lineage can be replayed exactly.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
import zipfile
from pathlib import Path

LR = (1e-4, 1.0)
BEGIN = 0.1
END = 1e-3
"""The best learning rate at the first step and at the last."""
FLOOR = 0.1
FIRST = 2.0


def best_lr(step: int, steps: int) -> float:
    return BEGIN * math.pow(END / BEGIN, step / steps)


def next_loss(loss: float, lr: float, step: int, steps: int) -> float:
    """The loss after one more step: it falls fastest at the best learning rate of the moment."""
    off = math.log(lr / best_lr(step, steps))
    return loss - (loss - FLOOR) * (4.0 / steps) * math.exp(-(off**2))


def trained(lr: float, begin: int, end: int, steps: int, loss: float = FIRST) -> float:
    """The loss after the steps from ``begin`` to before ``end`` with one learning rate."""
    for step in range(begin, end):
        loss = next_loss(loss, lr, step, steps)
    return loss


def allowed_steps() -> float:
    """The number of allowed steps, by the file that ``MOVING_GATE`` names; where there is none,
    all."""
    try:
        return int(Path(os.environ["MOVING_GATE"]).read_text())
    except (KeyError, FileNotFoundError):
        return math.inf


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, required=True)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seconds", type=float, default=0.05, help="of a step")
    parser.add_argument("--every", type=int, default=10, help="steps between checkpoints")
    parser.add_argument("--resume", default="")
    options = parser.parse_args()
    folder = Path(os.environ["GPUTUI_RUN_DIR"]) / "checkpoints"
    folder.mkdir(exist_ok=True)
    begin = 0
    loss = FIRST
    lr = options.lr
    if options.resume:
        with zipfile.ZipFile(options.resume) as archive:
            begin, loss, lr = json.loads(archive.read("state"))
        # What was loaded is the donor's; the command line's own applies after it.
        lr = options.lr
    out = os.open(os.environ["GPUTUI_METRICS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for step in range(begin, options.steps):
        time.sleep(options.seconds)
        while step >= allowed_steps():
            time.sleep(options.seconds)
        loss = next_loss(loss, lr, step, options.steps)
        os.write(out, (json.dumps({"step": step, "time": time.time(), "loss": loss, "lr": lr}) + "\n").encode())
        if (step + 1) % options.every == 0:
            path = folder / f"step_{step + 1:06d}.pt"
            with zipfile.ZipFile(path.with_suffix(".tmp"), "w") as archive:
                archive.writestr("state", json.dumps([step + 1, loss, lr]))
            path.with_suffix(".tmp").rename(path)


if __name__ == "__main__":
    main()
