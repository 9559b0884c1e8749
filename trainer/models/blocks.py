"""Where a network repeats itself: the row of blocks that recomputation and sharding work on."""

from __future__ import annotations

from torch import nn


def transformer_blocks(model: nn.Module) -> list[nn.Module]:
    """The repeated blocks of a network in order, whatever library it comes from; empty where there are none.

    They are the children of the list or sequence that holds the most parameters, of those whose children all have one
    class. A block that is nothing but such a row itself, like a stage of a ResNet, counts as its children.
    """
    rows = [module for module in model.modules() if _is_row(module)]
    if not rows:
        return []
    # Of nested rows with equally many parameters the outer one comes first.
    return _spread(list(max(rows, key=_parameters).children()))


def _spread(blocks: list[nn.Module]) -> list[nn.Module]:
    spread: list[nn.Module] = []
    for block in blocks:
        inside = list(block.children())
        spread += _spread(list(inside[0].children())) if len(inside) == 1 and _is_row(inside[0]) else [block]
    return spread


def _is_row(module: nn.Module) -> bool:
    if not isinstance(module, nn.ModuleList | nn.Sequential):
        return False
    return len({type(child) for child in module.children()}) == 1 and _parameters(module) > 0


def _parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
