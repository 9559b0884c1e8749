"""A simulated training: writes metrics, logs and checkpoints like a real one, and computes nothing.

Standard library only; the demo's profiles start a copy of this file.
"""

import argparse
import json
import math
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

CHECKPOINT_STEPS = 200  # a failure loses a part of an hour, as in reality
KEPT_CHECKPOINTS = 3
VALIDATION_STEPS = 100  # some hundred points on a chart
LOG_STEPS = 20  # a log that moves and can be read
LR = 6e-4
WEIGHT_DECAY = 0.1
OOM = """\
[rank1]: Traceback (most recent call last):
[rank1]:   File "/srv/train/train.py", line 88, in <module>
[rank1]:     loss.backward()
[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has 1.31 GiB free.
"""

SHORT_STEPS = 12_000
"""A shorter training has shorter steps, so that a trial of the study takes a minute."""


class TrainedModel(NamedTuple):
    """What is trained.

    Attributes:
        usual_seconds: the time of a step of ``usual_samples``.
        usual_samples: the samples of a rank's usual step.
        first_loss: the loss of the first step.
        last_loss: the loss at the end of a training with the best parameters.
        checkpoint_bytes: the size of the weights.
        sample_bytes: the memory that a sample of a batch takes.
    """

    usual_seconds: float
    usual_samples: int
    first_loss: float
    last_loss: float
    checkpoint_bytes: int
    sample_bytes: int

    def step_seconds(self, samples: int) -> float:
        """The time of a step of so many samples of a rank."""
        return self.usual_seconds * samples / self.usual_samples

    def peak_bytes(self, batch_size: int) -> int:
        """The most memory of a rank: weights, gradients and two moments, and what each sample of its batch takes."""
        return 4 * self.checkpoint_bytes + batch_size * self.sample_bytes


MODELS = {
    "gpt2-124m": TrainedModel(0.4, 64, 10.9, last_loss=2.8, checkpoint_bytes=498_000_000, sample_bytes=639_000_000),
    "resnet50": TrainedModel(0.4, 256, 6.9, last_loss=1.4, checkpoint_bytes=102_000_000, sample_bytes=160_000_000),
    "vit-b16": TrainedModel(0.5, 512, 6.9, last_loss=1.7, checkpoint_bytes=346_000_000, sample_bytes=150_000_000),
    "bert-mlm": TrainedModel(0.4, 128, 10.3, last_loss=1.8, checkpoint_bytes=440_000_000, sample_bytes=240_000_000),
}


class Continuation(NamedTuple):
    """Where a run of the demo's past goes on: a JSON file in its folder that its next process takes away.

    Attributes:
        step: the last one that was made.
        fails_at: the step at which rank 1 runs out of memory; None if it does not.
    """

    step: int
    fails_at: int | None = None

    def write(self, folder: Path) -> None:
        (folder / "continuation.json").write_text(json.dumps(self), "utf-8")

    @classmethod
    def take(cls, folder: Path) -> "Continuation | None":
        path = folder / "continuation.json"
        if not path.exists():
            return None
        continuation = cls(*json.loads(path.read_text("utf-8")))
        path.unlink()
        return continuation


def noise(*key: int) -> float:
    """A number from -1 to 1 that depends only on the key (an integer hash after Wang)."""
    value = 0x9E3779B9
    for part in key:
        value = (value ^ part) * 0x27D4EB2D & 0xFFFFFFFF
        value ^= value >> 15
    return value / 0x7FFFFFFF - 1.0


def drift(step: int, knot_steps: int, *key: int) -> float:
    """A number from -1 to 1 that changes slowly: noise at each so many steps, and lines between."""
    knot, into = divmod(step, knot_steps)
    before = noise(knot, *key)
    after = noise(knot + 1, *key)
    return before + (after - before) * into / knot_steps


class SimulatedTraining(NamedTuple):
    """What a training measures with some parameters.

    Its loss falls fast at first, then slowly, with ever less noise. The best learning rate ends lowest, a smaller one
    is also slower.

    Attributes:
        steps: how many steps the training makes.
        batch_size: the samples of a rank's batch.
        accumulated: the batches of a step.
    """

    model: TrainedModel
    steps: int
    lr: float
    weight_decay: float
    batch_size: int = 1
    accumulated: int = 1

    @property
    def seed(self) -> int:
        """What tells its noise from that of other trainings."""
        return int(self.model.first_loss * 1000) + int(self.lr * 1e7) + int(self.weight_decay * 1e5)

    @property
    def samples(self) -> int:
        """The samples of a step of a rank."""
        return self.batch_size * self.accumulated

    def training_loss(self, step: int) -> float:
        """The loss of a step's batch. Its noise is that of single batches, so that a mean still falls."""
        width = 0.008 + 0.05 * math.exp(-8 * step / self.steps)
        return self._smooth_loss(step) * (1 + width * (noise(self.seed, step) + noise(self.seed, step, 5)))

    def validation_loss(self, step: int) -> float:
        """The loss on the validation data, which falls behind the training's."""
        lag = 1.02 + 0.04 * step / self.steps
        return round(self._smooth_loss(step) * lag * (1 + 0.008 * noise(self.seed, step, 6)), 5)

    def _smooth_loss(self, step: int) -> float:
        first = self.model.first_loss
        penalty = 0.09 * math.log10(self.lr / LR) ** 2 + 1.2 * (self.weight_decay - WEIGHT_DECAY) ** 2
        last = self.model.last_loss * (1 + penalty)
        done = step / self.steps * min(1.5, (self.lr / LR) ** 0.3)
        return last + (first - last) * (0.7 * math.exp(-18 * done) + 0.3 * math.exp(-2.2 * done))

    def lines(self, step: int, at: float, ranks: int, step_seconds: float) -> Iterator[dict[str, Any]]:
        """The lines of all ranks about a step at a time (UTC unix seconds)."""
        seed = self.seed
        warm = max(1, self.steps // 20)
        for rank in range(ranks):
            slower = 0.02 * noise(seed, step, rank, 1) + 0.03 * drift(step, 150, seed, 2)
            wait = 0.02 + 0.01 * abs(noise(seed, step, rank)) + 0.01 * abs(drift(step, 150, seed, rank))
            line: dict[str, Any] = {
                "step": step,
                "time": round(at, 3),
                "rank": rank,
                "step_time": round(step_seconds * (1 + slower), 4),
                "data_time": round(step_seconds * wait, 4),
                "gpu_mem_peak": self.model.peak_bytes(self.batch_size),
            }
            if rank == 0:
                steepness = 0.6 + 2.0 * math.exp(-step / warm)
                grad_norm = steepness * (1 + 0.2 * noise(seed, step, 2) + 0.2 * drift(step, 300, seed, 3))
                line |= {
                    "loss": round(self.training_loss(step), 5),
                    "lr": self.lr * min(1.0, step / warm) * 0.5 * (1 + math.cos(math.pi * step / self.steps)),
                    "grad_norm": round(grad_norm, 4),
                    "samples_per_s": round(ranks * self.samples / (step_seconds * (1 + slower)), 1),
                    "total_steps": self.steps,
                }
                if step % VALIDATION_STEPS == 0 and step:
                    line["val/loss"] = self.validation_loss(step)
            yield line


def log_line(step: int, total: int, loss: float) -> str:
    """The line of rank 0 about a step."""
    return f"step {step}/{total} loss {loss:.4f}"


def save(folder: Path, step: int, size: int) -> Path:
    """Write a checkpoint in the format safetensors: a header, and a hole in the file in place of ``size`` weights."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step_{step:06d}.safetensors"
    weights = {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}
    header = json.dumps({"__metadata__": {"step": str(step)}, "weights": weights}).encode()
    with path.with_suffix(".tmp").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(file.tell() + size)
    path.with_suffix(".tmp").replace(path)
    for old in sorted(folder.glob("step_*.safetensors"))[:-KEPT_CHECKPOINTS]:
        old.unlink()
    return path


def saved_step(path: Path) -> int:
    """The step of a checkpoint."""
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return int(header["__metadata__"]["step"])


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
    if "LOCAL_RANK" in os.environ:
        sys.exit(train(options, int(os.environ["LOCAL_RANK"]), ranks))
    sys.exit(launch(options, ranks))


def say(text: str) -> None:
    """Write one line of the log, unbuffered."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def launch(options: argparse.Namespace, ranks: int) -> int:
    """Start this script once for each rank, and wait; returns the first exit code that is not 0."""
    continuation = Continuation.take(options.out)
    if continuation is None:
        continuation = Continuation(0)
        if options.resume is not None:
            continuation = Continuation(saved_step(options.resume))
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
                "CONTINUATION": json.dumps(continuation),
            }  # fmt: skip
            processes.append(subprocess.Popen([sys.executable, *sys.argv], env=environment))
        codes = []
        for _ in processes:
            codes.append(os.waitstatus_to_exitcode(os.wait()[1]))
            if codes[-1]:
                # The other ranks cannot go on without this one.
                store.close()
    return next((code for code in codes if code), 0)


def train(options: argparse.Namespace, rank: int, ranks: int) -> int:
    """Run one rank until all steps are done or SIGTERM arrives; returns the exit code."""
    should_stop: list[bool] = []
    signal.signal(signal.SIGTERM, lambda *_: should_stop.append(True))
    with socket.create_connection(("127.0.0.1", int(os.environ["MASTER_PORT"]))) as store:
        return steps(options, rank, ranks, should_stop, store)


def steps(options: argparse.Namespace, rank: int, ranks: int, should_stop: list[bool], store: socket.socket) -> int:
    """Make the steps that are left, until ``should_stop`` is filled or the ``store`` is gone; returns the exit code."""
    begin, fails_at = Continuation(*json.loads(os.environ["CONTINUATION"]))
    model = MODELS[options.model]
    training = SimulatedTraining(
        model,
        options.steps,
        options.lr,
        weight_decay=options.weight_decay,
        batch_size=options.batch_size,
        accumulated=options.grad_accum,
    )
    step_seconds = model.step_seconds(training.samples) * min(1.0, options.steps / SHORT_STEPS)
    out = os.open(os.environ["GPUTUI_METRICS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    folder = options.out / "checkpoints"
    began_at = time.monotonic()
    for step in range(begin + 1, options.steps + 1):
        wait = max(0.0, began_at + (step - begin) * step_seconds - time.monotonic())
        is_group_gone = bool(select.select([store], [], [], wait)[0])
        if is_group_gone:
            return 1
        if step == fails_at and rank == 1:
            sys.stderr.write(OOM)
            return 1
        lines = training.lines(step, time.time(), ranks, step_seconds)
        line = next(line for line in lines if line["rank"] == rank)
        os.write(out, f"{json.dumps(line)}\n".encode())
        if rank == 0 and step % LOG_STEPS == 0:
            say(log_line(step, options.steps, line["loss"]))
        if rank == 0 and (step % CHECKPOINT_STEPS == 0 or should_stop or step == options.steps):
            say(f"saved {save(folder, step, model.checkpoint_bytes).name}")
        if should_stop:
            break
    return 0


if __name__ == "__main__":
    main()
