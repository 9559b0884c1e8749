"""A simulated training: writes metrics, logs and checkpoints like a real one, and computes nothing.

Standard library only; the demo's profiles start a copy of this file.
"""

import argparse
import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CHECKPOINT_STEPS = 200
KEPT_CHECKPOINTS = 3
VALIDATION_STEPS = 100
LOG_STEPS = 20
LR, WEIGHT_DECAY = 6e-4, 0.1

# Of each model the seconds of a step, and the first and the last loss.
MODELS = {
    "gpt2-124m": (0.4, (10.9, 3.1)),
    "resnet50": (0.4, (6.9, 1.4)),
    "vit-b16": (0.5, (6.9, 1.9)),
    "bert-mlm": (0.4, (10.3, 1.8)),
}
SHORT_STEPS = 12_000
"""A shorter training has shorter steps, so that a trial of the study takes a minute."""


def noise(*key: int) -> float:
    """A number from -1 to 1 that depends only on the key (an integer hash after Wang)."""
    value = 0x9E3779B9
    for part in key:
        value = (value ^ part) * 0x27D4EB2D & 0xFFFFFFFF
        value ^= value >> 15
    return value / 0x7FFFFFFF - 1.0


def loss_at(step: int, total: int, start: float, end: float, seed: int) -> float:
    """A loss that falls fast, then slowly, with proportional noise."""
    done = step / total
    smooth = end + (start - end) * (0.8 * math.exp(-18 * done) + 0.2 * math.exp(-3 * done))
    return smooth * (1 + 0.03 * noise(seed, step))


def tuned_end(end: float, lr: float, weight_decay: float) -> float:
    """The final loss: ``end`` for the best parameters, more for others."""
    return end * (1 + 0.09 * math.log10(lr / LR) ** 2 + 1.2 * (weight_decay - WEIGHT_DECAY) ** 2)


def validation_loss(step: int, total: int, loss: tuple[float, float]) -> float:
    """The validation loss after a step. ``loss`` are the first and the last training loss."""
    return round(loss_at(step, total, loss[0], loss[1] * 1.04, int(loss[0] * 1000) + 1), 5)


def lines(
    step: int,
    at: float,
    *,
    total: int,
    ranks: int,
    batch_size: int,
    step_seconds: float,
    loss: tuple[float, float],
    lr: float = LR,
) -> Iterator[dict[str, Any]]:
    """The lines of all ranks about a step; ``loss`` are the first and the last, ``at`` is UTC."""
    seed = int(loss[0] * 1000)
    warm = max(1, total // 20)
    for rank in range(ranks):
        wait = 0.02 + 0.01 * abs(noise(seed, step, rank))
        line: dict[str, Any] = {
            "step": step, "time": round(at, 3), "rank": rank,
            "step_time": round(step_seconds * (1 + 0.02 * noise(seed, step, rank, 1)), 4),
            "data_time": round(step_seconds * wait, 4),
        }  # fmt: skip
        if rank == 0:
            line |= {
                "loss": round(loss_at(step, total, *loss, seed), 5),
                "lr": lr * min(1.0, step / warm) * 0.5 * (1 + math.cos(math.pi * step / total)),
                "grad_norm": round(0.6 + 2.0 * math.exp(-step / warm) + 0.1 * noise(seed, step, 2), 4),
                "samples_per_s": round(ranks * batch_size / step_seconds * (1 + 0.01 * noise(seed, step, 3)), 1),
                "total_steps": total,
            }
            if step % VALIDATION_STEPS == 0 and step:
                line["val/loss"] = validation_loss(step, total, loss)
        yield line


def log_line(step: int, total: int, loss: float) -> str:
    """The line of rank 0 about a step."""
    return f"step {step}/{total} loss {loss:.4f}"


def save(folder: Path, step: int) -> Path:
    """Write a checkpoint: a ZIP file as by ``torch.save``, without weights."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step_{step:06d}.pt"
    with zipfile.ZipFile(path.with_suffix(".tmp"), "w") as archive:
        archive.writestr("archive/state.json", json.dumps({"step": step}))
    path.with_suffix(".tmp").replace(path)
    for old in sorted(folder.glob("step_*.pt"))[:-KEPT_CHECKPOINTS]:
        old.unlink()
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", choices=MODELS, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=LR)
    parser.add_argument("--weight-decay", type=float, default=WEIGHT_DECAY)
    parser.add_argument("--grad-accum", type=int, default=1)
    parser.add_argument("--resume", type=Path)
    options = parser.parse_args()
    ranks = max(1, len(os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")))
    sys.exit(train(options, int(os.environ["LOCAL_RANK"]), ranks) if "LOCAL_RANK" in os.environ else launch(ranks))


def say(text: str) -> None:
    """Write one line of the log, unbuffered."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def launch(ranks: int) -> int:
    """Start this script once for each rank, and wait; returns the first exit code that is not 0."""
    processes: list[subprocess.Popen[bytes]] = []

    def pass_on(*_: object) -> None:
        for process in processes:
            process.terminate()

    signal.signal(signal.SIGTERM, pass_on)
    # Every rank keeps a connection to it, as the members of a process group do to their store.
    with socket.create_server(("127.0.0.1", 0), backlog=ranks) as store:
        port = str(store.getsockname()[1])
        for rank in range(ranks):
            environment = {
                **os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_PORT": port,
            }  # fmt: skip
            processes.append(subprocess.Popen([sys.executable, *sys.argv], env=environment))
        codes = [process.wait() for process in processes]
    return next((code for code in codes if code), 0)


def train(options: argparse.Namespace, rank: int, ranks: int) -> int:
    """Run one rank until all steps are done or SIGTERM arrives; returns the exit code."""
    should_stop: list[bool] = []
    signal.signal(signal.SIGTERM, lambda *_: should_stop.append(True))
    with socket.create_connection(("127.0.0.1", int(os.environ["MASTER_PORT"]))):
        return steps(options, rank, ranks, should_stop)


def steps(options: argparse.Namespace, rank: int, ranks: int, should_stop: list[bool]) -> int:
    """Make the steps that are left, until ``should_stop`` is filled; returns the exit code."""
    begin = 0
    if options.resume is not None:
        with zipfile.ZipFile(options.resume) as archive:
            begin = json.loads(archive.read("archive/state.json"))["step"]
    step_seconds, (first, last) = MODELS[options.model]
    step_seconds *= min(1.0, options.steps / SHORT_STEPS)
    loss = first, tuned_end(last, options.lr, options.weight_decay)
    out = os.open(os.environ["GPUTUI_METRICS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    folder, began_at = options.out / "checkpoints", time.monotonic()
    for step in range(begin + 1, options.steps + 1):
        time.sleep(max(0.0, began_at + (step - begin) * step_seconds - time.monotonic()))
        written = lines(
            step, time.time(), total=options.steps, ranks=ranks, batch_size=options.batch_size * options.grad_accum,
            step_seconds=step_seconds, loss=loss, lr=options.lr,
        )  # fmt: skip
        line = next(one for one in written if one["rank"] == rank)
        os.write(out, f"{json.dumps(line)}\n".encode())
        if rank == 0 and step % LOG_STEPS == 0:
            say(log_line(step, options.steps, line["loss"]))
        if rank == 0 and (step % CHECKPOINT_STEPS == 0 or should_stop or step == options.steps):
            say(f"saved {save(folder, step).name}")
        if should_stop:
            break
    return 0


if __name__ == "__main__":
    main()
