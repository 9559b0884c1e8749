"""A training whose loss is a formula: ``planted.py --lr 0.01 --dropout 0.1 --width 256``. Standard library only.

A line of metrics a step, to ``GPUTUI_METRICS`` where that is given and to standard output else. The best final loss of
the space is 0.25, at lr 0.005, dropout 0.15 and width 256; a small learning rate starts slowly, so that the best at the
first rung is not the best in the end.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import time

LR = (1e-4, 1e-1)
DROPOUT = (0.0, 0.5)
WIDTHS = (32, 64, 128, 256, 512)
STEPS = 27
BEST = 0.25
NOISE = 0.01


def final_loss(lr: float, dropout: float, width: int) -> float:
    """The final loss."""
    off = math.log10(lr / 0.005)
    return BEST + 0.22 * off**2 + 0.8 * (dropout - 0.15) ** 2 + 0.01 * math.log2(width / 256) ** 2


def loss(lr: float, dropout: float, width: int, done: float, chance: random.Random) -> float:
    """The loss after a share of the training, with a little noise that vanishes in the end."""
    slow = 1 + max(0.0, math.log10(0.005 / lr))
    end = final_loss(lr, dropout, width)
    return end + (2.3 - end) * math.exp(-done * 8 / slow) + chance.gauss(0.0, NOISE) * (1 - done)


def loss_curve(lr: float, dropout: float, width: int) -> list[float]:
    """The loss after each step; the same for the same point."""
    chance = random.Random(f"{lr!r} {dropout!r} {width!r}")
    return [loss(lr, dropout, width, (step + 1) / STEPS, chance) for step in range(STEPS)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, required=True)
    parser.add_argument("--dropout", type=float, required=True)
    parser.add_argument("--width", type=int, required=True)
    parser.add_argument("--seconds", type=float, default=0.1, help="of a step")
    options = parser.parse_args()
    began = time.monotonic()
    path = os.environ.get("GPUTUI_METRICS")
    out = 1 if path is None else os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for step, value in enumerate(loss_curve(options.lr, options.dropout, options.width)):
        time.sleep(max(0.0, began + (step + 1) * options.seconds - time.monotonic()))
        os.write(out, (json.dumps({"step": step, "time": time.time(), "loss": value}) + "\n").encode())


if __name__ == "__main__":
    main()
