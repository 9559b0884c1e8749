"""Models without memory for their parameters, and initial values for these, one block after another.

So no rank ever has a sharded model whole: it is built on the meta device, and its shards are filled block by block.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.utils.hooks import RemovableHandle

from trainer.errors import TrainerError
from trainer.models.blocks import transformer_blocks


def without_memory() -> RemovableHandle:
    """A context in which modules put their parameters on the meta device; buffers, which are small, are as always."""
    return register_module_parameter_registration_hook(_on_meta)  # type: ignore[arg-type]


def _on_meta(module: nn.Module, name: str, parameter: nn.Parameter) -> nn.Parameter:
    if parameter.is_meta:  # it stays the same object, because it may be tied
        return parameter
    return nn.Parameter(parameter.detach().to("meta"), requires_grad=parameter.requires_grad)


def give_first_values(model: nn.Module) -> None:
    """Give the parameters of a whole model memory and initial values: those that its shards would have."""
    real = {parameter: nn.Parameter(values, parameter.requires_grad) for parameter, values in first_values(model)}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            module._parameters[name] = None if parameter is None else real[parameter]


def first_values(model: nn.Module) -> Iterator[tuple[nn.Parameter, Tensor]]:
    """Yield each parameter with initial values of its full shape, on the CPU; those of one block exist at a time.

    `reset_parameters` of each module and `_init_weights` of the model around it draw them from torch's random state.
    Neither may touch other blocks, whose parameters are on the meta device or are shards.
    Raises TrainerError for a parameter that neither sets.
    """
    blocks = [list(block.modules()) for block in transformer_blocks(model)]
    in_blocks = set(itertools.chain(*blocks))
    outside = [[module] for module in model.modules() if module not in in_blocks]
    # By module the innermost model around it, which comes last.
    owners = {inner: owner for owner in model.modules() if hasattr(owner, "_init_weights") for inner in owner.modules()}
    done: set[nn.Parameter] = set()  # a tied one occurs several times, and has the values of the first
    for modules in (*blocks, *outside):
        for parameter, values in _initialised(modules, owners).items():
            if parameter in done:
                continue
            if values.isnan().any():
                raise TrainerError(
                    f"--parallel fsdp: {type(modules[0]).__name__} does not set the first values of its parameters; "
                    "give --weights, or use --parallel ddp"
                )
            done.add(parameter)
            yield parameter, values.detach()


def _initialised(modules: Sequence[nn.Module], owners: dict[nn.Module, nn.Module]) -> dict[nn.Parameter, nn.Parameter]:
    """The modules' parameters with initial values, NaN where nothing sets them; the modules stay as they are."""
    values: dict[nn.Parameter, nn.Parameter] = {}
    originals = [dict(module._parameters) for module in modules]
    for module in modules:
        for name, parameter in module._parameters.items():
            if parameter is not None:
                if parameter not in values:
                    values[parameter] = nn.Parameter(torch.full(parameter.shape, torch.nan, dtype=parameter.dtype))
                module._parameters[name] = values[parameter]
    if values:
        for module in reversed(modules):  # inner modules first
            if callable(reset := getattr(module, "reset_parameters", None)):
                reset()
            if module in owners:
                owners[module]._init_weights(module)  # type: ignore[operator]
    for module, parameters in zip(modules, originals, strict=True):
        module._parameters.update(parameters)
    return values
