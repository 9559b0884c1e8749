"""Histograms: every value counted once, per block, and only when asked for."""

from __future__ import annotations

import math
from collections import OrderedDict

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.trainer.test_telemetry import gradients_of
from trainer.telemetry.histograms import EDGES, Histogram, ValueCounts, blocks_of, gradients, watch_activations


def counted(*tensors: Tensor) -> Histogram:
    tally = ValueCounts()
    for tensor in tensors:
        tally.add(tensor)
    return tally.histogram("x", "gradient")


floats = st.floats(width=32) | st.floats(-1, 1, width=32) | st.just(0.0)


@given(st.lists(st.lists(floats, max_size=20), max_size=3))
def test_every_value_is_counted_once(lists: list[list[float]]) -> None:
    result = counted(*(torch.tensor(values, dtype=torch.float32) for values in lists))
    values = [value for one in lists for value in one]
    finite = [value for value in values if math.isfinite(value)]
    assert result.total == len(finite)
    assert result.not_finite == len(values) - len(finite)
    assert result.zeros == finite.count(0.0)
    assert len(result.edges) == len(result.counts) + 1 if finite else not result.edges
    if finite:
        assert (result.min, result.max) == (min(finite), max(finite))
        assert result.mean == pytest.approx(math.fsum(finite) / len(finite), rel=1e-6, abs=1e-6 * max(map(abs, finite)))
        assert result.norm == pytest.approx(math.sqrt(math.fsum(value * value for value in finite)))


@given(st.lists(st.floats(-1e4, 1e4, width=32), min_size=1, max_size=20))
def test_values_are_in_the_bin_whose_edges_enclose_them(values: list[float]) -> None:
    result = counted(torch.tensor(values))
    edges = torch.tensor(result.edges)
    for index, count in enumerate(result.counts):
        low, high = float(edges[index]), float(edges[index + 1])
        last = high == pytest.approx(EDGES[-1])
        assert count == sum(low <= value < high or (last and value == high) for value in values)


class Network(nn.Module):
    def __init__(self, depth: int = 3) -> None:
        super().__init__()
        self.embed = nn.Linear(4, 4)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)) for _ in range(depth))
        self.head = nn.Sequential(OrderedDict(norm=nn.LayerNorm(4), out=nn.Linear(4, 2)))

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
    found = {one.name: one for one in gradients(gradients_of(network), blocks_of(network))}
    assert set(found) == {"blocks.0", "blocks.1", "blocks.2", "head.norm", "head.out"}
    expected = torch.cat([p.grad.flatten() for p in network.blocks[1].parameters() if p.grad is not None])
    assert found["blocks.1"].kind == "gradient"
    assert found["blocks.1"].norm == pytest.approx(float(expected.norm()), rel=1e-5)
    assert found["blocks.1"].total == expected.numel()


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
