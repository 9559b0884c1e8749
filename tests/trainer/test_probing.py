"""The search for the largest batch with compiled steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.trainer.ranks import Ranks
from trainer.config import Settings
from trainer.faults import Injector
from trainer.probing import largest_batch
from trainer.session import PhaseSession, TrainingProgress
from trainer.stepper import Stepper
from trainer.telemetry.timing import StepTimer
from trainer.world import World

ALONE = World(rank=0, size=1, device=torch.device("cpu"), backend="")


def left_by_trial_steps(world: World) -> tuple[int, set[str]]:
    """The batch size that was found, and the parameters whose exchange the trial steps have left something for."""
    settings = Settings(
        batch_size="auto",
        max_batch_size=2,
        device="cpu",
        data="synthetic",
        synthetic_samples=64,
        compress_gradients="powersgd",
    )
    with PhaseSession(settings, world, 1, TrainingProgress()) as session:
        stepper = Stepper(session, Injector((), world.rank, settings.output_dir), StepTimer(world.device))
        return largest_batch(session, stepper), set(session.strategy.exchange_state())


def test_trial_steps_leave_nothing_for_the_exchange_of_gradients(two_ranks: Ranks) -> None:
    assert two_ranks.run(left_by_trial_steps) == [(2, set()), (2, set())]


@pytest.mark.long
def test_every_size_is_compiled_and_so_is_what_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch gives up compiling after eight shapes, and says so in a warning only."""
    compiled: list[int] = []

    def noted(graph: torch.fx.GraphModule, examples: list[torch.Tensor]) -> Any:
        compiled.extend(one.shape[0] for one in examples if one.dtype == torch.uint8)
        return graph.forward

    def compile_(self: nn.Module, mode: str, dynamic: bool) -> None:
        self._compiled_call_impl = torch.compile(self._call_impl, backend=noted, dynamic=dynamic)

    monkeypatch.setattr(nn.Module, "compile", compile_)
    settings = Settings(batch_size="auto", max_batch_size=512, device="cpu", compile="default", width=8, depth=1)
    with PhaseSession(settings, ALONE, 1, TrainingProgress()) as session:
        stepper = Stepper(session, Injector((), 0, settings.output_dir), StepTimer(ALONE.device))
        assert largest_batch(session, stepper) == 512
        assert set(compiled) == {2**power for power in range(10)}
        compiled.clear()
        session.set_batch(512, 1)
        assert stepper.gradients(1, survive=False) is not None
    assert set(compiled) == {512}
