"""Recomputation changes memory and nothing else, alone and in sharded networks."""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from tests.tables import table
from tests.trainer.small_models import SMALL, inputs, small_settings
from trainer.errors import SettingsError
from trainer.models import apply_recompute, build_model, transformer_blocks

NETWORKS = ["cnn", "resnet18", "resnet50", "vit-b16", "bytes", "gpt2", "smollm-135m", "bert-base"]


def network(name: str, mode: Any, dropout: float = 0.2) -> nn.Module:
    torch.manual_seed(1)
    return build_model(small_settings(name, gradient_checkpointing=mode, dropout=dropout), SMALL[name][1])


def backward(model: nn.Module, samples: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """The output, and everything that a step leaves behind in the model."""
    torch.manual_seed(2)
    output = model(samples)
    output.float().square().mean().backward()
    gradients = {
        name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None
    }
    return output.detach(), {**gradients, **{name: buffer.clone() for name, buffer in model.named_buffers()}}


def kept_values(model: nn.Module, samples: Tensor) -> int:
    """Numbers that forward keeps for backward, beside the model's own."""
    stored = {tensor.data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    sizes: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        sizes.append(0 if tensor.data_ptr() in stored else tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(samples)
    return sum(sizes)


class Computed(TorchDispatchMode):
    """Counts operations by name."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[func.__name__.partition(".")[0]] += 1
        return func(*args, **(kwargs or {}))


@table("name", NETWORKS)
def test_gradients_statistics_and_names_stay_the_same(name: str) -> None:
    samples = inputs(SMALL[name][1])
    plain = network(name, "none")
    names = list(plain.state_dict())
    output, gradients = backward(plain, samples)
    for mode in ("operations", "selective", "full"):
        model = network(name, mode)
        assert list(model.state_dict()) == list(copy.deepcopy(model).state_dict()) == names
        recomputed, left_too = backward(model, samples)
        assert torch.equal(recomputed, output)
        assert gradients.keys() == left_too.keys()
        assert all(torch.equal(gradients[key], left_too[key]) for key in gradients)


@table("name", NETWORKS)
def test_less_is_kept_the_more_is_recomputed(name: str) -> None:
    samples = inputs(SMALL[name][1])
    none, selective, full = (kept_values(network(name, mode), samples) for mode in ("none", "selective", "full"))
    assert full < selective < none
    # Without training, nothing is recomputed.
    assert kept_values(network(name, "full").eval(), samples) == kept_values(network(name, "none").eval(), samples)


@table("name", ["bytes", "gpt2", "resnet18"])
def test_products_are_not_computed_again_where_their_results_are_kept(name: str) -> None:
    counts = {}
    for mode in ("none", "operations", "full"):
        model = network(name, mode)
        with Computed() as computed:
            backward(model, inputs(SMALL[name][1]))
        counts[mode] = computed.counts
    products = ("mm", "addmm", "bmm", "convolution", "_scaled_dot_product_flash_attention_for_cpu")
    for product in products:
        assert counts["operations"][product] == counts["none"][product] <= counts["full"][product]
    assert sum(counts["full"][product] - counts["none"][product] for product in products) >= 6
    cheap = "relu" if name == "resnet18" else "gelu"
    assert counts["operations"][cheap] == counts["full"][cheap] > counts["none"][cheap]


@table("name", NETWORKS)
def test_blocks_are_found_in_their_order(name: str) -> None:
    for mode in ("none", "selective"):
        model = network(name, mode)
        blocks = transformer_blocks(model)
        expected = 5 if name.startswith("resnet") else 3
        assert len(blocks) == expected
        order: list[nn.Module] = []
        for block in blocks:
            block.register_forward_hook(lambda module, *_, order=order: order.append(module))
        model.eval()(inputs(SMALL[name][1]))
        assert order == blocks


def test_blocks_of_foreign_networks() -> None:
    layers = [nn.Linear(4, 4) for _ in range(3)]
    assert transformer_blocks(nn.Sequential(*layers)) == layers
    assert transformer_blocks(nn.Sequential(nn.Linear(2, 4), nn.Sequential(*layers), nn.Linear(4, 2))) == layers
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)
    assert transformer_blocks(encoder) == list(encoder.layers)
    assert transformer_blocks(nn.ModuleList([nn.ReLU(), nn.ReLU()])) == []
    without = nn.Sequential(nn.Linear(2, 4), nn.ReLU())
    assert transformer_blocks(without) == []
    apply_recompute(without, "none")
    with pytest.raises(SettingsError, match="gradient_checkpointing: the model has no row of equal blocks"):
        apply_recompute(without, "full")
