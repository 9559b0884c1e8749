"""Histograms: every value counted once, per block, and only when asked for."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.tables import table
from tests.trainer.test_telemetry import gradients_of
from trainer.telemetry.histograms import EDGES, count, gradients, part_of, watch_activations

floats = st.floats(width=32) | st.floats(-1, 1, width=32) | st.just(0.0)


@given(st.lists(st.lists(floats, max_size=20), max_size=3))
def test_every_value_is_counted_once_in_the_bin_that_encloses_it(lists: list[list[float]]) -> None:
    result = count("x", "gradient", [torch.tensor(values, dtype=torch.float32) for values in lists])
    values = [value for one in lists for value in one]
    finite = [value for value in values if math.isfinite(value)]
    assert (result.total, result.not_finite) == (len(finite), len(values) - len(finite))
    assert result.zeros == finite.count(0.0)
    if not finite:
        assert (result.edges, result.mean, result.max) == ((), None, None)
        return
    assert (result.min, result.max) == (min(finite), max(finite))
    assert result.mean == pytest.approx(math.fsum(finite) / len(finite), rel=1e-6, abs=1e-6 * max(map(abs, finite)))
    assert result.norm == pytest.approx(math.sqrt(math.fsum(value * value for value in finite)))
    edges = torch.tensor(result.edges).tolist()
    assert len(edges) == len(result.counts) + 1
    for low, high, counted in zip(edges, edges[1:], result.counts, strict=False):
        below = low == pytest.approx(EDGES[0])
        above = high == pytest.approx(EDGES[-1])
        assert counted == sum((below or low <= value) and (above or value < high) for value in finite)


@table(
    ("parameter", "part"),
    [
        ("transformer.h.3.attn.c_attn.weight", "transformer.h.3"),
        ("resnet.encoder.stages.0.layers.1.layer.0.convolution.weight", "resnet.encoder.stages.0"),
        ("transformer.wte.weight", "transformer.wte"),
        ("model.decoder.norm.bias", "model.decoder"),
        ("conv2d.weight", "conv2d"),
        ("scale", "scale"),
    ],
)
def test_parts(parameter: str, part: str) -> None:
    assert part_of(parameter) == part


class Network(nn.Module):
    def __init__(self, depth: int = 3) -> None:
        super().__init__()
        self.embed = nn.Linear(4, 4)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)) for _ in range(depth))
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        result: Tensor = self.head(x)
        return result


def test_gradients_per_block_with_their_norm() -> None:
    network = Network()
    network.embed.requires_grad_(False)
    network(torch.randn(5, 4)).sum().backward()
    found = {one.name: one for one in gradients(gradients_of(network))}
    assert set(found) == {"blocks.0", "blocks.1", "blocks.2", "head"}
    expected = torch.cat([p.grad.flatten() for p in network.blocks[1].parameters() if p.grad is not None])
    assert (found["blocks.1"].kind, found["blocks.1"].total) == ("gradient", expected.numel())
    assert found["blocks.1"].norm == pytest.approx(float(expected.norm()), rel=1e-5)


def test_activations_are_those_of_the_first_micro_batch_and_no_hook_stays() -> None:
    network = Network()
    outputs: list[Tensor] = []
    keep = network.blocks[0].register_forward_hook(lambda module, inputs, output: outputs.append(output))
    with watch_activations(network) as found:
        network(torch.randn(5, 4))
        network(torch.randn(50, 4))
    keep.remove()
    assert [(one.name, one.kind, one.total) for one in found] == [(f"blocks.{n}", "activation", 20) for n in range(3)]
    assert found[0].mean == pytest.approx(outputs[0].mean().item(), rel=1e-5)
    assert not any(module._forward_hooks for module in network.modules())
