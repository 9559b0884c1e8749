"""Models without memory for their parameters: the first values, and how much memory sharding them takes."""

from __future__ import annotations

import ctypes
import gc
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.trainer import ranks
from tests.trainer.ranks import Ranks
from trainer.config import Settings
from trainer.data import load_data
from trainer.models import build, transformer_blocks
from trainer.models.deferred import DeferredInit, NotDeferrableError
from trainer.session import PhaseSession, TrainingProgress
from trainer.world import World

MODELS: dict[str, dict[str, Any]] = {
    "bytes": {"task": "lm"},
    "gpt2": {"task": "lm", "model": "gpt2", "model_options": {"n_layer": 2, "n_embd": 64, "n_head": 2}},
    "llama": {"task": "lm", "model": "smollm-135m", "model_options": {"num_hidden_layers": 2}},
    "bert": {"task": "mlm"},
    "cnn": {"task": "classify"},
    "resnet18": {"task": "classify", "model": "resnet18"},
    "vit": {"task": "classify", "model": "vit-b16", "model_options": {"num_hidden_layers": 1}},
    "embedder": {"task": "contrastive"},
}


@pytest.mark.parametrize("name", MODELS)
def test_what_is_initialised_later_has_the_values_that_it_would_have_had(name: str) -> None:
    settings = Settings(data="synthetic", synthetic_samples=16, **MODELS[name])
    data = load_data(settings)
    torch.manual_seed(0)
    model = build(settings, data).model
    after = torch.get_rng_state()
    torch.manual_seed(0)
    deferred = DeferredInit()
    with deferred:
        empty = build(settings, data).model
    assert torch.equal(torch.get_rng_state(), after)
    initial = deferred.initial(empty)
    expected = dict(model.named_parameters())
    assert initial.keys() == expected.keys() and all(parameter.is_meta for parameter in empty.parameters())
    # In any order, as often as wanted, and whatever was drawn meanwhile.
    for other in sorted(expected, key=hash):
        assert torch.equal(initial[other](), expected[other]), other
    assert torch.equal(torch.get_rng_state(), after)
    assert all(torch.equal(one, two) for one, two in zip(model.buffers(), empty.buffers(), strict=True))
    assert not nn.Linear(2, 2).weight.is_meta  # outside nothing is deferred


@pytest.mark.parametrize("kind", ["from another parameter", "without values", "on the way"])
def test_what_cannot_be_written_down_is_said(kind: str) -> None:
    deferred = DeferredInit()
    with pytest.raises((NotDeferrableError, RuntimeError)), deferred:
        one, other = nn.Linear(3, 3), nn.Linear(3, 3)
        with torch.no_grad():
            if kind == "from another parameter":
                other.weight.copy_(one.weight)
            elif kind == "on the way":
                other.weight.fill_(float(one.weight.sum()))
            else:
                other.register_parameter("late", nn.Parameter(torch.empty(4)))
        deferred.initial(other)
    assert not nn.Linear(2, 2).weight.is_meta


def initialised_by_hand(vocabulary: int, context: int) -> nn.Module:
    """A person's own model, one of whose parameters follows from another."""
    model = nn.Sequential(nn.Embedding(vocabulary, 16), nn.Linear(16, 16), nn.Linear(16, vocabulary))
    with torch.no_grad():
        model[2].weight.copy_(model[0].weight)
    return model


def first_weights(world: World, **changes: Any) -> dict[str, torch.Tensor]:
    settings = Settings(**{"task": "lm", "data": "synthetic", "synthetic_samples": 16, "device": "cpu", **changes})
    with PhaseSession(settings, world, 1, TrainingProgress()) as session:
        return {name: tensor.clone() for name, tensor in session.strategy.model_state().items()}


@pytest.mark.parametrize("options", [{}, {"cpu_offload": True}, {"model": f"{__name__}:initialised_by_hand"}])
def test_fsdp_begins_with_the_weights_of_one_process(options: dict[str, Any], two_ranks: Ranks) -> None:
    own = {key: value for key, value in options.items() if key == "model"}
    alone = first_weights(World(rank=0, size=1, device=torch.device("cpu"), backend=""), **own)
    main, _ = two_ranks.run(first_weights, parallel="fsdp", **options)
    assert main.keys() == alone.keys()
    assert all(torch.equal(main[name], alone[name]) for name in alone)


# --- memory -----------------------------------------------------------------------------------------------------------


def resident(name: str) -> int:
    """VmRSS or VmHWM of this process, in bytes."""
    [line] = [one for one in Path("/proc/self/status").read_text().splitlines() if one.startswith(f"{name}:")]
    return int(line.split()[1]) * 1024


_M_MMAP_THRESHOLD = -3  # malloc.h


def memory_of_building(world: World, offload: bool, **options: int) -> dict[str, float]:
    """Bytes that a rank takes at most while a session is built and one more state is loaded; its shard, and a block."""
    settings = Settings(
        task="lm",
        context=16,
        device="cpu",
        parallel="fsdp",
        cpu_offload=offload,
        model="smollm-135m",
        model_options=options,
    )
    gc.collect()
    first_weights(world, parallel="fsdp", cpu_offload=offload, model="smollm-135m", model_options=_TINY)  # imports
    libc = ctypes.CDLL(None)
    libc.malloc_trim(0)  # what other tests left free must not be used again unseen
    # What is freed is given back at once: its size counts otherwise, by chance, as glibc keeps it for later.
    libc.mallopt(_M_MMAP_THRESHOLD, 1 << 20)
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak
    with PhaseSession(settings, world, 1, TrainingProgress()) as session:
        peak = resident("VmHWM") - before
        libc.mallopt(_M_MMAP_THRESHOLD, 32 << 20)  # glibc's own limit, for other tests
        block = transformer_blocks(session.objective.model)[0]
        elements = sum(parameter.numel() for parameter in block.parameters())
        assert all(parameter.numel() < elements for parameter in session.objective.model.parameters())
        return {"peak": peak, "share": 4 * session.parameters / world.size, "block": 4 * elements}


_TINY = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
_TINY["num_key_value_heads"] = 2


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("hidden", "layers", "offload"),
    [
        (1024, 8, False),
        pytest.param(1024, 8, True, marks=pytest.mark.long),
        pytest.param(2048, 19, False, marks=pytest.mark.long, id="1.3 B"),
    ],
)
def test_building_takes_half_as_much_again_as_a_shard_and_one_block(
    hidden: int, layers: int, offload: bool, four_ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks, "PATIENCE_SECONDS", 560.0)
    options = {"hidden_size": hidden, "intermediate_size": 4 * hidden, "num_hidden_layers": layers}
    options |= {"num_attention_heads": 16, "num_key_value_heads": 16}
    found = four_ranks.run(memory_of_building, offload, **options)
    for one in found:
        print({name: f"{value / 2**20:.0f} MiB" for name, value in one.items()})  # shown where the next line fails
        assert one["peak"] <= 1.5 * one["share"] + one["block"]
    assert math.isclose(sum(one["share"] for one in found), 4 * layers * 16 * hidden**2, rel_tol=0.05)
