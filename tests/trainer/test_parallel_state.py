"""State by name is checked against the kind of optimizer that is to take it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from trainer.optim import Muon
from trainer.parallel.state import load_state_by_name, names_by_parameter


class OwnAdamW(torch.optim.AdamW):
    """A kind of AdamW, as a library may make one."""


ADAM = {"step": torch.tensor(1.0), "exp_avg": torch.zeros(2, 2), "exp_avg_sq": torch.zeros(2, 2)}
MOMENTUM = {"momentum_buffer": torch.zeros(2, 2)}


def loaded(kind: Any, state: dict[str, Any], **options: Any) -> set[str]:
    """The keys of a parameter's state after it has been loaded."""
    model = nn.Linear(2, 2, bias=False)
    optimizer = kind(model.parameters(), lr=0.1, **options)
    load_state_by_name(optimizer, names_by_parameter(model), {"weight": state})
    return set(optimizer.state[model.weight])


@pytest.mark.parametrize("kind", [torch.optim.AdamW, OwnAdamW])
def test_a_kind_of_adamw_takes_the_state_of_adamw_alone(kind: type[torch.optim.Optimizer]) -> None:
    assert loaded(kind, ADAM) == set(ADAM)
    with pytest.raises(ValueError):
        loaded(kind, MOMENTUM)


@pytest.mark.parametrize("state", [ADAM, MOMENTUM])
def test_muon_takes_the_state_of_matrices_and_of_all_others(state: dict[str, Any]) -> None:
    options = {"betas": (0.9, 0.95), "momentum": 0.95, "fused": None}
    assert loaded(Muon, state, **options) == set(state)
    with pytest.raises(ValueError):
        loaded(Muon, {"step": torch.tensor(1.0)}, **options)


def test_an_optimizer_that_is_not_known_is_refused() -> None:
    with pytest.raises(TypeError):
        loaded(torch.optim.RMSprop, ADAM)
