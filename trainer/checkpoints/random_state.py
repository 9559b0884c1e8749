"""The random generators of a process, so that a resumed run draws what the uninterrupted one would have drawn."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

from trainer.checkpoints.files import State


def seed_everything(seed: int) -> None:
    """Sets every global random generator of this process, those of GPUs too, by a seed of 0 or more."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def random_state(device: torch.device) -> State:
    """The state of every global random generator of this process, as plain values and tensors."""
    kind, keys, *rest = np.random.get_state(legacy=True)
    state: State = {
        "python": random.getstate(),
        "numpy": [str(kind), torch.from_numpy(np.asarray(keys, dtype=np.int64)), *rest],
        "torch": torch.get_rng_state(),
    }
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def restore_random_state(state: State, device: torch.device) -> None:
    """Sets every generator that `state` has something for; that of a GPU only where this process has one too."""
    random.setstate(_as_tuple(state["python"]))
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(state["torch"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)


def _as_tuple(value: Any) -> Any:
    """Python takes back only tuples, whatever became of them on the way."""
    return tuple(_as_tuple(item) for item in value) if isinstance(value, list | tuple) else value
