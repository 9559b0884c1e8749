"""Models without memory for their parameters, and their first values block by block.

No rank ever has a sharded model whole: it is built with parameters on the meta device, and once each rank has memory
for its shards, one block after the other gets first values as its modules make them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from trainer.errors import TrainerError
from trainer.models.blocks import transformer_blocks


@contextlib.contextmanager
def without_memory() -> Iterator[None]:
    """Inside, modules register their parameters on the meta device; buffers, which are small, are as always."""
    register = nn.Module.register_parameter

    def register_on_meta(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None and not parameter.is_meta:  # one that is stays the same object: it may be tied
            parameter = nn.Parameter(parameter.detach().to("meta"), requires_grad=parameter.requires_grad)
        register(module, name, parameter)

    nn.Module.register_parameter = register_on_meta  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


def give_first_values(model: nn.Module) -> None:
    """Give the parameters of a whole model memory and first values: those that its shards would have."""
    real = {one: nn.Parameter(values, one.requires_grad) for one, values in first_values(model)}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[name] = real[parameter]


def first_values(model: nn.Module) -> Iterator[tuple[nn.Parameter, Tensor]]:
    """Each parameter with first values of its full shape, on the CPU; those of one block are there at a time.

    They come from torch's random state by `reset_parameters` of each module and `_init_weights` of what contains it,
    which must leave modules of other blocks alone: their parameters are not there, or are shards.
    Raises TrainerError for a parameter that neither sets.
    """
    owners: dict[nn.Module, Any] = {}
    _find_owners(model, None, owners)
    blocks = [list(block.modules()) for block in transformer_blocks(model)]
    inside = {module for block in blocks for module in block}
    done: set[nn.Parameter] = set()
    for modules in (*blocks, *([module] for module in model.modules() if module not in inside)):
        own = {module: dict(module._parameters) for module in modules}
        fresh: dict[nn.Parameter, nn.Parameter] = {}
        for module in modules:
            for name, parameter in own[module].items():
                if parameter is not None:
                    blank = nn.Parameter(torch.full(parameter.shape, torch.nan, dtype=parameter.dtype))
                    module._parameters[name] = fresh.setdefault(parameter, blank)
        try:
            for module in reversed(modules):  # a module after those inside of it
                if fresh and callable(reset := getattr(module, "reset_parameters", None)):
                    reset()
                if fresh and module in owners:
                    owners[module]._init_weights(module)
        finally:
            for module in modules:
                module._parameters.update(own[module])
        for parameter, values in fresh.items():
            if parameter in done:
                continue
            if values.isnan().any():
                raise TrainerError(
                    f"--parallel fsdp: {type(modules[0]).__name__} does not set the first values of its parameters; "
                    "give --weights, or use --parallel ddp"
                )
            done.add(parameter)
            yield parameter, values.detach()


def _find_owners(module: nn.Module, owner: Any, owners: dict[nn.Module, Any]) -> None:
    """The nearest module with `_init_weights` for each module inside of it, itself included."""
    owner = module if hasattr(module, "_init_weights") else owner
    if owner is not None:
        owners[module] = owner
    for child in module.children():
        _find_owners(child, owner, owners)
