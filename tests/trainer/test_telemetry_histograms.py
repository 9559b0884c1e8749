"""Histograms: every value counted once, per block, and only when asked for."""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.trainer.ranks import Ranks
from trainer.telemetry import histograms
from trainer.telemetry.histograms import (
    EDGES,
    MAX_PARTS,
    Histogram,
    ValueCounts,
    blocks_of,
    gradients,
    parts,
    watch_activations,
)
from trainer.world import World


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


def test_mean_and_spread() -> None:
    result = counted(torch.tensor([1.0, 2.0]), torch.tensor([[3.0], [6.0]], dtype=torch.float64))
    assert result.mean == 3.0
    assert result.std == pytest.approx(math.sqrt(3.5))
    assert result.norm == pytest.approx(math.sqrt(50))


def test_what_is_beyond_the_bins_is_in_the_outermost() -> None:
    result = counted(torch.tensor([-1e30, 1e30]))
    assert result.total == 2 and result.edges == EDGES and result.max == pytest.approx(1e30)


def test_large_tensors_are_counted_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    values = torch.randn(1000, dtype=torch.bfloat16)
    whole = counted(values)
    monkeypatch.setattr(histograms, "_CHUNK", 64)
    pieces = counted(values.view(10, 100).t())
    assert (pieces.counts, pieces.edges, pieces.zeros) == (whole.counts, whole.edges, whole.zeros)
    assert pieces.norm == pytest.approx(whole.norm)


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


def gradients_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


def test_blocks_are_the_outermost_repeated_modules() -> None:
    assert blocks_of(Network()) == ["blocks.0", "blocks.1", "blocks.2"]
    assert blocks_of(nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))) == ["0", "1"]
    assert blocks_of(nn.Linear(1, 1)) == []


def test_parameters_are_grouped_by_block() -> None:
    network = Network()
    grouped = parts(dict(network.named_parameters()), blocks_of(network))
    assert list(grouped) == ["embed", "blocks.0", "blocks.1", "blocks.2", "head.norm", "head.out"]
    assert grouped["blocks.1"] == [f"blocks.1.{layer}.{kind}" for layer in (0, 1) for kind in ("weight", "bias")]
    assert parts(["scale"], []) == {"scale": ["scale"]}


def test_there_are_never_too_many_parts() -> None:
    names = [f"layers.{index}.weight" for index in range(500)]
    grouped = parts(names, [f"layers.{index}" for index in range(500)])
    assert len(grouped) == MAX_PARTS
    assert {"layers.0", "layers.499"} <= set(grouped)


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


def test_hooks_go_also_when_the_step_fails() -> None:
    network = Network()
    with pytest.raises(RuntimeError), watch_activations(network):
        network(torch.randn(5, 7))
    assert not any(module._forward_hooks for module in network.modules())


class Odd(nn.Module):
    """A block that answers with a tuple, as many transformers do, or with what no histogram can be made of."""

    def __init__(self, whole_numbers: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.whole_numbers = whole_numbers

    def forward(self, x: Tensor) -> Any:
        return x.long() if self.whole_numbers else (x * self.weight, "cache")


def test_odd_outputs() -> None:
    network = nn.ModuleList([Odd(False), Odd(True)])
    with watch_activations(network) as found:
        for block in network:
            block(torch.ones(3))
    assert [(one.name, one.total) for one in found] == [("0", 3)]


def local_shards(world: World) -> list[tuple[str, int, int]]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (world.size,))
    network = Network()
    for block in network.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(network, mesh=mesh)
    with watch_activations(network) as found:
        network(torch.randn(5, 4)).sum().backward()
    found += gradients(gradients_of(network), blocks_of(network))
    return [(one.name, one.total, one.not_finite) for one in found if one.name == "blocks.1"]


def test_of_distributed_tensors_the_local_part_is_counted(two_ranks: Ranks) -> None:
    activation, half = ("blocks.1", 20, 0), ("blocks.1", 20, 0)  # a block has 40 parameters
    assert two_ranks.run(local_shards) == [[activation, half]] * 2
