"""What two ranks can check about themselves; started by torchrun, writes its findings as JSON to the path given."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

from tests.trainer.running import settings
from trainer import distributed
from trainer.distributed import World
from trainer.emit import MetricsWriter
from trainer.loop import Trainer
from trainer.signals import Signals


def build(world: World, output: Path, *flags: str) -> Trainer:
    chosen = settings("--output-dir", str(output), "--grad-clip", "0", "--validate-every", "0", *flags)
    return Trainer(chosen, world, MetricsWriter(chosen.metrics, repair=False), Signals(30))


def gradients_of_a_step(trainer: Trainer) -> torch.Tensor:
    """All gradients of one step in a row, as the optimizer gets them."""
    seen: list[torch.Tensor] = []

    def keep(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        seen.extend(p.grad.flatten().clone() for p in trainer.model.parameters() if p.grad is not None)

    with_hook = trainer.optimizer.register_step_pre_hook(keep)
    trainer.train_step()
    with_hook.remove()
    return torch.cat(seen)


def record_samples(trainer: Trainer) -> list[int]:
    taken: list[int] = []
    original = trainer.data.train.batch

    def batch(indices: Any) -> tuple[torch.Tensor, torch.Tensor]:
        taken.extend(indices.tolist())
        return original(indices)

    trainer.data.train.batch = batch  # type: ignore[method-assign]
    return taken


def main(output: Path) -> None:
    torch.set_num_threads(1)
    world = distributed.join(settings())
    found: dict[str, Any] = {"backend": world.backend, "size": world.size}

    # The gradients of two ranks, and those of one process on the joined batch.
    together = build(world, output / "together", "--dropout", "0", "--batch-size", "8", "--grad-accum", "3")
    gradients = gradients_of_a_step(together)
    others = [torch.tensor(row) for row in world.gather(gradients.tolist())]
    found["identical"] = torch.equal(others[0], others[1])
    alone = World(rank=0, size=1, device=world.device, backend="")
    single = build(alone, output / f"single{world.rank}", "--dropout", "0", "--batch-size", "16", "--grad-accum", "3")
    joined = gradients_of_a_step(single)
    found["difference"] = float((gradients - joined).abs().max() / joined.abs().max())
    found["loss_difference"] = abs(together.latest["loss"] - single.latest["loss"])

    # Exchanges of gradients per step do not depend on the number of micro batches.
    rounds = {}
    for accumulation in (1, 4):
        trainer = build(world, output / f"accumulation{accumulation}", "--grad-accum", str(accumulation))
        trainer.train_step()
        before = trainer.exchange.rounds
        trainer.train_step()
        rounds[accumulation] = trainer.exchange.rounds - before
    found["rounds"] = rounds

    # The samples of one epoch, by rank: 1437 = 3 * 479, so 2 ranks * 8 * 3 reach into the next epoch after 29 steps.
    walker = build(world, output / "walker", "--batch-size", "8", "--grad-accum", "3")
    taken = record_samples(walker)
    for _ in range(29):
        walker.train_step()
    found["taken"] = world.gather(taken)

    # Dropout differs by rank, and after a resume goes on where it was: 20 + 20 steps equal 40.
    straight = build(world, output / "straight", "--steps", "40", "--dropout", "0.3")
    straight.train()
    first = build(world, output / "halves", "--steps", "40", "--dropout", "0.3")
    first.resume()
    for _ in range(20):
        first.train_step()
    first.save()
    torch.rand(7)  # whatever happens in between
    second = build(world, output / "halves", "--steps", "40", "--dropout", "0.3", "--resume", "auto")
    second.train()
    equal = [torch.equal(a, b) for a, b in zip(straight.model.parameters(), second.model.parameters(), strict=True)]
    found["resumed_equals_straight"] = all(all(row) for row in world.gather(equal))
    states = world.gather(torch.get_rng_state().tolist())
    found["ranks_have_own_randomness"] = states[0] != states[1]

    # A slow rank shows as a short wait on itself and a long one on the other.
    slow = build(world, output / "slow", "--inject", "slow@step=4,rank=1,seconds=0.3")
    slow.resume()
    waits = []
    for _ in range(5):
        slow.train_step()
        waits.append(slow.exchange.seconds)
    found["waits"] = world.gather(waits[3])
    found["sum"] = world.sum(world.rank + 1, 0.5)
    found["from_main"] = world.from_main(f"rank {world.rank}")

    if world.is_main:
        (output / "found.json").write_text(json.dumps(found))
    distributed.leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
