"""The networks, and the optimizer with its schedule."""

from __future__ import annotations

import itertools

import pytest
import torch

from tests.trainer.running import settings
from trainer.config import Settings
from trainer.loop import _loss
from trainer.models import build_model
from trainer.optim import WarmupCosine, build_optimizer, learning_rate

LM = ("--task", "lm", "--width", "32", "--context", "16")


def gradients(chosen: Settings, inputs: torch.Tensor, targets: torch.Tensor) -> list[torch.Tensor]:
    torch.manual_seed(1)
    model = build_model(chosen)
    _loss(model(inputs), targets).backward()  # type: ignore[no-untyped-call]
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("task", ["digits", "lm"])
def test_activation_checkpointing_changes_memory_and_not_the_gradients(task: str) -> None:
    flags = (*LM, "--dropout", "0.2") if task == "lm" else ("--dropout", "0.2")
    inputs = torch.randint(256, (3, 16)) if task == "lm" else torch.rand(3, 1, 8, 8)
    targets = torch.randint(10, (3, 16) if task == "lm" else (3,))
    saved: dict[bool, int] = {}
    results = {}
    for recompute in (False, True):
        sizes: list[int] = []

        def pack(tensor: torch.Tensor, sizes: list[int] = sizes) -> torch.Tensor:
            sizes.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            chosen = settings(*flags, "--depth", "3", "--gradient-checkpointing", str(recompute))
            torch.manual_seed(1)
            loss = _loss(build_model(chosen)(inputs), targets)
        saved[recompute] = sum(sizes)
        assert loss.isfinite()
        results[recompute] = gradients(chosen, inputs, targets)
    assert all(torch.equal(a, b) for a, b in zip(results[False], results[True], strict=True))
    assert saved[True] < saved[False] / 2


def test_the_language_model_does_not_look_ahead() -> None:
    torch.manual_seed(0)
    model = build_model(settings(*LM)).eval()
    text = torch.randint(256, (1, 16))
    changed = text.clone()
    changed[0, 9] = (changed[0, 9] + 1) % 256
    before, after = model(text), model(changed)
    assert torch.equal(before[0, :9], after[0, :9])
    assert not torch.allclose(before[0, 9:], after[0, 9:])


def test_schedule_warms_up_and_decays_to_its_last_share() -> None:
    chosen = settings("--steps", "100", "--warmup-steps", "10", "--lr", "0.5", "--final-lr-ratio", "0.1")
    rates = [learning_rate(step, chosen) for step in range(1, 101)]
    assert rates[:10] == pytest.approx([0.05 * step for step in range(1, 11)])
    assert all(later < earlier for earlier, later in itertools.pairwise(rates[9:]))
    assert rates[54] == pytest.approx(0.5 * (0.1 + 0.9 / 2))
    assert rates[-1] == pytest.approx(0.05)
    assert learning_rate(500, chosen) == pytest.approx(0.05)
    assert learning_rate(1, settings("--warmup-steps", "0", "--steps", "1")) > 0


def test_a_peak_given_on_resume_wins() -> None:
    model = build_model(settings())
    first = WarmupCosine(build_optimizer(model, settings("--lr", "0.5"), torch.device("cpu")), settings("--lr", "0.5"))
    for _ in range(30):
        first.advance()
    optimizer = build_optimizer(model, settings("--lr", "0.1"), torch.device("cpu"))
    second = WarmupCosine(optimizer, settings("--lr", "0.1"))
    second.load_state_dict(first.state_dict())
    assert second.advance() == pytest.approx(first.advance() / 5)
    assert (
        optimizer.param_groups[0]["lr"] == optimizer.param_groups[1]["lr"] == learning_rate(31, settings("--lr", "0.1"))
    )


def test_only_matrices_decay() -> None:
    optimizer = build_optimizer(build_model(settings()), settings("--weight-decay", "0.3"), torch.device("cpu"))
    for group in optimizer.param_groups:
        assert all((parameter.dim() >= 2) == (group["weight_decay"] == 0.3) for parameter in group["params"])
