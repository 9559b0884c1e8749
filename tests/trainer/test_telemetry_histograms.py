"""Histograms: every value counted once, per block, and only when asked for."""

from __future__ import annotations

import json
import math
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.trainer.running import train
from tests.trainer.small_models import gradients_of
from trainer.telemetry.histograms import EDGES, count, embeddings, gradients, part_of, watch_activations

floats = st.floats(width=32) | st.floats(-1, 1, width=32) | st.just(0.0)


@given(st.lists(st.lists(floats, max_size=20), max_size=3))
def test_every_value_is_counted_once_in_the_bin_that_encloses_it(lists: list[list[float]]) -> None:
    result = count("x", "gradient", [torch.tensor(values, dtype=torch.float32) for values in lists])
    values = [value for part in lists for value in part]
    finite = [value for value in values if math.isfinite(value)]
    assert (sum(result.counts), result.not_finite) == (len(finite), len(values) - len(finite))
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


PARTS = {
    "transformer.h.3.attn.c_attn.weight": "transformer.h.3",
    "resnet.encoder.stages.0.layers.1.layer.0.convolution.weight": "resnet.encoder.stages.0",
    "transformer.wte.weight": "transformer.wte",
    "model.decoder.norm.bias": "model.decoder",
    "conv2d.weight": "conv2d",
    "scale": "scale",
}


def test_parts_are_blocks_or_two_levels() -> None:
    assert {name: part_of(name) for name in PARTS} == PARTS


def test_histograms_per_block_with_gradients_norm_and_the_first_activations() -> None:
    parts = {"embed": nn.Linear(4, 4), "blocks": nn.Sequential(*(nn.Sequential(nn.Linear(4, 4)) for _ in range(3)))}
    model = nn.Sequential(OrderedDict(parts, head=nn.Linear(4, 2)))
    model.embed.requires_grad_(False)
    with watch_activations(model) as activations:
        for size in (5, 50):
            model(torch.randn(size, 4)).sum().backward()
    assert [(activation.name, activation.kind, sum(activation.counts)) for activation in activations] == [
        (f"blocks.{n}", "activation", 20) for n in range(3)
    ]
    assert not any(module._forward_hooks for module in model.modules())
    histograms = {gradient.name: gradient for gradient in gradients(gradients_of(model))}
    assert set(histograms) == {"blocks.0", "blocks.1", "blocks.2", "head"}
    expected = torch.cat([gradient.flatten() for gradient in gradients_of(model.blocks[1]).values()])
    assert (histograms["blocks.1"].kind, sum(histograms["blocks.1"].counts)) == ("gradient", expected.numel())
    assert histograms["blocks.1"].norm == pytest.approx(float(expected.norm()), rel=1e-5)


class Tables(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(5, 3)
        self.inner = nn.Linear(3, 3)
        self.position_embeddings = nn.Parameter(torch.ones(1, 4, 3))


def test_embeddings_are_tables_of_vectors_each_by_itself() -> None:
    model = Tables()
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    tokens, positions = sorted(embeddings(model, names), key=lambda table: table.name, reverse=True)
    assert (tokens.name, tokens.kind, sum(tokens.counts)) == ("tokens.weight", "embedding", 15)
    assert tokens.norm == pytest.approx(float(model.tokens.weight.detach().norm()))
    assert (positions.name, positions.mean, sum(positions.counts)) == ("position_embeddings", 1.0, 12)


def test_a_run_writes_tables_of_text_and_vectors_of_contrastive_learning(tmp_path: Path) -> None:
    short = ("--steps", "2", "--histograms-every", "2", "--validate-every", "0", "--validate-samples", "8")
    assert (
        train(tmp_path / "lm", "--task", "lm", "--data", "synthetic", "--context", "16", "--width", "32", *short) == 0
    )
    assert train(tmp_path / "pairs", "--task", "contrastive", "--embedding-size", "8", *short) == 0
    written = {}
    for name in ("lm", "pairs"):
        lines = (tmp_path / name / "histograms.jsonl").read_text().splitlines()
        written[name] = [line for line in map(json.loads, lines) if line["kind"] == "embedding"]
    assert written["lm"]
    assert all(line["step"] == 2 for line in written["lm"])
    [vectors] = written["pairs"]
    # 8 images in a micro batch, two views of each, with 8 numbers
    assert (vectors["name"], vectors["step"], sum(vectors["counts"])) == ("embeddings", 2, 8 * 2 * 8)
    assert vectors["norm"] == pytest.approx(4.0)
