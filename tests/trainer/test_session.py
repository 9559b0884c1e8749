"""What the ranks of a phase have in common, and what not."""

from __future__ import annotations

from typing import Any

import torch

from tests.trainer.ranks import Ranks
from trainer.config import Settings
from trainer.faults import Injector
from trainer.session import PhaseSession, TrainingProgress
from trainer.stepper import Stepper
from trainer.telemetry.timing import StepTimer
from trainer.world import World

WORDS: dict[str, Any] = {
    "task": "mlm",
    "data": "synthetic",
    "synthetic_samples": 16,
    "context": 16,
    "device": "cpu",
    "parallel": "fsdp",
    "dropout": 0.5,
    "batch_size": 2,
    "grad_accum": 1,
}


ALONE: dict[str, Any] = {"data": "synthetic", "synthetic_samples": 16, "device": "cpu", "width": 8, "depth": 1}
WORLD = World(rank=0, size=1, device=torch.device("cpu"), backend="")


def steps_with_dropout(world: World, state: Any, steps: int, **changes: Any) -> tuple[list[torch.Tensor], Any]:
    """Everything that a rank holds whole after some steps, and the session's state."""
    settings = Settings(**{**WORDS, **changes})
    with PhaseSession(settings, world, 1, TrainingProgress()) as session:
        if state is not None:
            session.load(state)
        session.set_batch(2, 1)
        stepper = Stepper(session, Injector((), world.rank, settings.output_dir), StepTimer(world.device))
        for step in range(1, steps + 1):
            session.schedule.advance()
            assert stepper.gradients(step, survive=False) is not None
            stepper.update()
        parameters = session.objective.model.named_parameters()
        whole = [parameter.detach().clone() for name, parameter in parameters if "LayerNorm" in name]
        return whole, world.broadcast(session.state())


def test_settings_of_the_loss_scale_win_over_those_of_the_state() -> None:
    scaling = {"precision": "fp16", "loss_scale": 256.0, "loss_scale_interval": 10}
    later = {"loss_scale_interval": 5, "loss_scale_growth": 4.0, "loss_scale_backoff": 0.25}
    with PhaseSession(Settings(**{**ALONE, **scaling}), WORLD, 1, TrainingProgress()) as session:
        state = session.state()
    state["scaler"] |= {"scale": 64.0, "_growth_tracker": 3}
    with PhaseSession(Settings(**{**ALONE, **scaling, **later}), WORLD, 1, TrainingProgress()) as session:
        session.load(state)
        found = session.precision.scaler.state_dict()
    assert found == {
        "scale": 64.0,
        "_growth_tracker": 3,
        "growth_interval": 5,
        "growth_factor": 4.0,
        "backoff_factor": 0.25,
    }


def test_ranks_that_share_layers_drop_the_same_activations(two_ranks: Ranks) -> None:
    (first, _), (second, _) = two_ranks.run(steps_with_dropout, None, 3, tensor_parallel=2)
    assert first
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def test_they_do_so_when_they_go_on_from_ranks_that_did_not(two_ranks: Ranks) -> None:
    (_, state), _ = two_ranks.run(steps_with_dropout, None, 1)
    assert not torch.equal(state["random"][0]["torch"], state["random"][1]["torch"])
    (first, _), (second, _) = two_ranks.run(steps_with_dropout, state, 2, tensor_parallel=2)
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
