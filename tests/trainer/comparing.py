"""What runs are compared by: states bit for bit, and how far two sets of tensors are apart."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from trainer.checkpoints import State, existing, load


def final_state(output: Path) -> State:
    return load(existing(output / "checkpoints")[0])


def same(first: object, second: object) -> bool:
    """Equal bit for bit, tensors included."""
    if isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor):
        return torch.equal(first, second)
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(same(first[key], second[key]) for key in first)
    if isinstance(first, list | tuple) and isinstance(second, list | tuple):
        return len(first) == len(second) and all(map(same, first, second))
    return first == second


def difference(first: dict[str, Tensor], second: dict[str, Tensor]) -> float:
    assert first.keys() == second.keys()
    return max(float((first[name].double() - second[name].double()).abs().max()) for name in first)
