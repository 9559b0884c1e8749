"""What the ranks do in the tests of trainer.parallel: module-level functions, called as function(world, …)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.trainer.tiny import part_of, tiny_batch, tiny_objective, tiny_settings
from trainer.data.contract import Fields
from trainer.parallel.build import build_strategy
from trainer.parallel.ddp import Ddp
from trainer.parallel.strategy import OptimizerState, Strategy
from trainer.world import World

ALONE = World(rank=0, size=1, device=torch.device("cpu"), backend="")

State = dict[str, Tensor]


def micro_batches(strategy: Strategy, step: int, accumulate: int, size: int = 16) -> list[Fields]:
    """This rank's part of a batch that is the same however many ranks there are."""
    batch = tiny_batch(step, size)
    parts = [part_of(batch, number, accumulate) for number in range(accumulate)]
    return [part_of(part, strategy.data_rank, strategy.data_ranks) for part in parts]


def backward(strategy: Strategy, step: int, accumulate: int = 1) -> float:
    """Forward and backward of one step; the mean loss of this rank's part."""
    strategy.optimizer.zero_grad()
    total = 0.0
    for number, fields in enumerate(micro_batches(strategy, step, accumulate)):
        with strategy.accumulate(number == accumulate - 1):
            loss = strategy.loss(fields) / accumulate
            loss.backward()
        total += loss.item()
    return total


def train(strategy: Strategy, steps: range, accumulate: int = 1, clip: float = 1.0) -> list[float]:
    """Losses of this rank by step."""
    losses = []
    for step in steps:
        losses.append(backward(strategy, step, accumulate))
        strategy.clip(clip)
        strategy.optimizer.step()
        strategy.after_update(step)
    return losses


def build(world: World, seed: int = 0, model: dict[str, Any] | None = None, **settings: Any) -> Strategy:
    return build_strategy(tiny_settings(**settings), tiny_objective(seed, **(model or {})), world)


def copied(state: State) -> State:
    return {name: tensor.detach().clone() for name, tensor in state.items()}


def copied_optimizer(state: OptimizerState) -> OptimizerState:
    return {
        name: {key: value.clone() if isinstance(value, Tensor) else value for key, value in values.items()}
        for name, values in state.items()
    }


# --- gradients --------------------------------------------------------------------------------------------------------


def gradients(world: World, accumulate: int = 1, **settings: Any) -> State:
    """This rank's gradients of one step, whole."""
    strategy = build(world, **settings)
    backward(strategy, 0, accumulate)
    shares = {name: tensor.clone() for name, tensor in strategy.own_gradients().items()}
    return copied(strategy.whole(shares))


def train_and_state(
    world: World, steps: int, accumulate: int = 1, **settings: Any
) -> tuple[list[float], State, OptimizerState]:
    """Losses averaged over ranks, the model and the optimizer after a few steps."""
    strategy = build(world, **settings)
    losses = train(strategy, range(steps), accumulate)
    mean = [total / world.size for total in world.sum(*losses)]
    return mean, copied(strategy.model_state()), copied_optimizer(strategy.optimizer_state())


def go_on(
    world: World,
    model: State,
    optimizer: OptimizerState,
    steps: range,
    seed: int = 5,
    **settings: Any,
) -> tuple[list[float], State]:
    """Another strategy, with other first weights, takes over the state and trains on."""
    strategy = build(world, seed=seed, **settings)
    strategy.load_model_state(model)
    strategy.load_optimizer_state(optimizer)
    losses = train(strategy, steps)
    mean = [total / world.size for total in world.sum(*losses)]
    return mean, copied(strategy.model_state())


# --- running out of memory --------------------------------------------------------------------------------------------


class _Fail(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. (in backward)")


class Failing(nn.Module):
    """A block that runs out of memory where `armed` says: in forward or in backward."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block
        self.armed = ""

    def forward(self, x: Tensor) -> Tensor:
        if self.armed == "forward":
            raise torch.OutOfMemoryError("CUDA out of memory. (in forward)")
        x = _Fail.apply(x) if self.armed == "backward" else x  # type: ignore[no-untyped-call]
        result: Tensor = self.block(x)
        return result


def survive(
    world: World,
    where: str,
    failing: tuple[int, ...],
    fail_step: int,
    fail_micro: int = 0,
    accumulate: int = 1,
    steps: int = 5,
    model: dict[str, Any] | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Trains as the loop does; on some ranks one micro batch of one step runs out of memory, and all do it again."""
    objective = tiny_objective(**(model or {}))
    blocks = objective.model.blocks
    blocks[1] = bad = Failing(blocks[1])
    strategy = build_strategy(tiny_settings(oom_retries=1, **settings), objective, world)
    losses, rounds, answers = [], [], 0
    step, to_fail = 0, world.rank in failing
    while step < steps:
        failed, loss = False, 0.0
        before = strategy.exchange.rounds if isinstance(strategy, Ddp) else 0
        try:
            strategy.optimizer.zero_grad()
            for number, fields in enumerate(micro_batches(strategy, step, accumulate)):
                with strategy.accumulate(number == accumulate - 1):
                    now = to_fail and (step, number) == (fail_step, fail_micro)
                    if now and where == "data":
                        raise torch.OutOfMemoryError("CUDA out of memory. (batch to the device)")
                    bad.armed = where if now else ""
                    mean = strategy.loss(fields) / accumulate
                    mean.backward()
                    loss += mean.item()
        except torch.OutOfMemoryError:
            failed = True
        if failed:
            assert strategy.can_settle
            sent = strategy.exchange.sent if isinstance(strategy, Ddp) else 0
            strategy.settle()
            answers = strategy.exchange.sent - sent if isinstance(strategy, Ddp) else 0
        if world.vote(failed)[0]:
            to_fail = False
            strategy.renew()
            assert not strategy.own_gradients()
            continue
        strategy.clip(1.0)
        gradients = torch.cat([gradient.flatten() for gradient in strategy.own_gradients().values()])
        assert all(torch.equal(gradients, theirs) for theirs in world.gather(gradients))
        strategy.optimizer.step()
        strategy.after_update(step)
        losses.append(loss)
        rounds.append(strategy.exchange.rounds - before if isinstance(strategy, Ddp) else 0)
        step += 1
    return {"losses": losses, "model": copied(strategy.model_state()), "rounds": rounds, "answers": answers}
