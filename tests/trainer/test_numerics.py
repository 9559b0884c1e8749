"""Ten ways to train, against plain loops or undisturbed runs, with the most by which each may differ."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.trainer import own_code
from tests.trainer.comparing import same
from tests.trainer.instructions import CONTEXT, alone
from tests.trainer.ranks import ALONE, Ranks
from tests.trainer.running import events, settings, step_lines, train, train_on
from tests.trainer.small_models import LLAMA
from trainer.checkpoints import choose, load
from trainer.data import load_data
from trainer.data.order import Order
from trainer.faults import Injector
from trainer.models import build_model
from trainer.tasks import build_objective
from trainer.tasks.language import LanguageObjective
from trainer.world import World

STEADY = ("--schedule", "constant", "--warmup-steps", "0", "--validate-every", "0", "--validate-samples", "2")
GPT2 = json.dumps({"n_embd": 32, "n_layer": 2, "n_head": 2})
CHATS_MODEL = json.dumps(LLAMA | {"num_key_value_heads": 2})
# rows of chats in one step, over all ranks and micro batches
ROWS = 6
STEPS = 6
CHATS = (*STEADY, "--task", "lm", "--data", "tokens", "--context", str(CONTEXT), "--device", "cpu", "--seed", "3")
CHATS += ("--model", "smollm-135m", "--model-options", CHATS_MODEL, "--steps", str(STEPS), "--grad-clip", "0.5")
CHATS += ("--optimizer", "sgd", "--momentum", "0.9", "--weight-decay", "0", "--lr", "0.2")


def trained(output: Path, step: int) -> dict[str, Tensor]:
    state: dict[str, Tensor] = load(output / "checkpoints" / f"step_{step:08d}.pt")["model"]
    return state


def farthest(first: dict[str, Tensor], second: dict[str, Tensor]) -> float:
    assert first.keys() == second.keys()
    return max((first[name] - second[name]).abs().max().item() for name in first)


def update(parameters: list[nn.Parameter], optimizer: torch.optim.Optimizer, clip: float) -> None:
    nn.utils.clip_grad_norm_(parameters, clip)
    optimizer.step()
    optimizer.zero_grad()


@pytest.fixture(scope="module")
def by_hand(tokens: Path) -> tuple[list[float], dict[str, Tensor]]:
    """Losses and weights of a loop that runs each document alone, and counts each learnt token of a step alike."""
    chosen = settings(*CHATS, "--data-dir", str(tokens))
    data = load_data(chosen)
    torch.manual_seed(3)
    task = build_objective(chosen, data, build_model(chosen, data), ALONE)
    assert isinstance(task, LanguageObjective)
    parameters = list(task.model.parameters())
    losses = []
    optimizer = torch.optim.SGD(parameters, lr=0.2, momentum=0.9, nesterov=True)
    for number in range(STEPS):
        raw = data.train.read(Order(data.train, 3).indices(ROWS * number, ROWS))
        total, count = alone(task, raw)
        (total / count).backward()
        update(parameters, optimizer, 0.5)
        losses.append(float(total.detach() / count))
    return losses, dict(task.model.state_dict())


def joined(value: Any) -> Any:
    """Join shards into a dictionary."""
    return {key: joined(inner) for key, inner in value.items()} if isinstance(value, Mapping) else value


def train_and_crash(world: World, output: Path, *flags: str) -> None:
    with pytest.raises(RuntimeError):
        train_on(world, output, *flags)


def test_gpt2_of_two_ranks_and_three_micro_batches_is_a_plain_loop_over_the_joined_batch(
    two_ranks: Ranks, tmp_path: Path
) -> None:
    flags = (*STEADY, "--task", "lm", "--data", "synthetic", "--model", "gpt2", "--model-options", GPT2)
    flags += ("--context", "16", "--steps", "8", "--lr", "0.003", "--grad-clip", "0.5", "--weight-decay", "0.1")
    two_ranks.run(train_on, tmp_path, *flags, "--batch-size", "2", "--grad-accum", "3")
    chosen = settings(*flags)
    data = load_data(chosen)
    torch.manual_seed(chosen.seed)
    model = build_model(chosen, data)
    parameters = list(model.parameters())
    groups = [
        {"params": [parameter for parameter in parameters if parameter.dim() >= 2], "weight_decay": 0.1},
        {"params": [parameter for parameter in parameters if parameter.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.003, betas=(chosen.beta1, chosen.beta2))
    losses = []
    for number in range(8):
        tokens = data.train.read(Order(data.train, chosen.seed).indices(12 * number, 12))["tokens"]
        loss = functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        update(parameters, optimizer, 0.5)
        losses.append(loss.item())
    lines = step_lines(tmp_path)
    assert [line["loss"] for line in lines[:8]] == pytest.approx(losses, rel=1e-6)
    assert max(line["grad_norm"] for line in lines) > 0.5, "nothing was clipped"
    assert farthest(trained(tmp_path, 8), dict(model.state_dict())) < 5e-5


def test_local_sgd_is_two_plain_loops_whose_weights_are_averaged(two_ranks: Ranks, tmp_path: Path) -> None:
    """Two steps with common gradients, then averages after steps 5 and 8; validation and checkpoint 8 add none."""
    flags = (*STEADY, "--task", "lm", "--data", "synthetic", "--model", "gpt2", "--model-options", GPT2)
    flags += ("--context", "16", "--steps", "8", "--lr", "0.1", "--grad-clip", "0.5", "--optimizer", "sgd")
    flags += ("--weight-decay", "0", "--batch-size", "2", "--grad-accum", "3", "--checkpoint-every", "0")
    local = ("--parallel", "local_sgd", "--average-from", "2", "--average-every", "3")
    two_ranks.run(train_on, tmp_path, *flags, *local)
    chosen = settings(*flags)
    data = load_data(chosen)
    models = []
    for _ in range(2):
        torch.manual_seed(chosen.seed)
        models.append(build_model(chosen, data))
    weights = [list(model.parameters()) for model in models]
    optimizers = [torch.optim.SGD(own, lr=0.1, momentum=0.9, nesterov=True) for own in weights]
    order = Order(data.train, chosen.seed)
    losses = []
    for number in range(8):
        loss = 0.0
        for micro in range(3):
            for rank, model in enumerate(models):
                tokens = data.train.read(order.indices(12 * number + 4 * micro + 2 * rank, 2))["tokens"]
                entropy = functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
                (entropy / 3).backward()
                loss += entropy.item() / 6
        losses.append(loss)
        for pair in zip(*weights, strict=True):
            if number < 2:
                mean = torch.stack([weight.grad for weight in pair if weight.grad is not None]).mean(0)
                for weight in pair:
                    weight.grad = mean.clone()
        for own, optimizer in zip(weights, optimizers, strict=True):
            update(own, optimizer, 0.5)
        if number in (4, 7):
            for pair in zip(*weights, strict=True):
                mean = torch.stack([weight.detach() for weight in pair]).mean(0)
                for weight in pair:
                    weight.data.copy_(mean)
    assert [line["loss"] for line in step_lines(tmp_path) if not line["rank"]] == pytest.approx(losses, abs=1e-6)
    assert farthest(trained(tmp_path, 8), dict(models[0].state_dict())) < 1e-6


def test_local_sgd_leaves_frozen_weights_as_they_are(two_ranks: Ranks, tmp_path: Path) -> None:
    code = "tests.trainer.own_code"
    flags = ("--data", f"{code}:table", "--task", f"{code}:Regression", "--model", f"{code}:Tiny", "--batch-size", "4")
    flags += ("--train-only", "trained", "--parallel", "local_sgd", "--average-every", "2", "--steps", "4")
    two_ranks.run(train_on, tmp_path, *flags)
    assert trained(tmp_path, 4)["frozen"] > 0


def test_local_sgd_resumes_bit_for_bit_between_two_averages(two_ranks: Ranks, tmp_path: Path) -> None:
    flags = ("--parallel", "local_sgd", "--average-from", "2", "--average-every", "4", "--steps", "12")
    flags += ("--checkpoint-every", "4", "--validate-every", "5", "--dropout", "0.2")
    crash = ("--inject", "crash@step=10,rank=0;crash@step=10,rank=1")
    two_ranks.run(train_on, tmp_path / "straight", *flags)
    two_ranks.run(train_and_crash, tmp_path / "again", *flags, *crash)
    two_ranks.run(train_on, tmp_path / "again", *flags, *crash, "--resume", "auto")
    straight, again = (load(tmp_path / name / "checkpoints" / "step_00000012.pt") for name in ("straight", "again"))
    for part in ("model", "optimizer", "random", "samples"):
        assert same(straight[part], again[part]), part


WAYS: dict[str, tuple[str, ...]] = {
    "ddp": ("--batch-size", "1", "--grad-accum", "3"),
    "fsdp": ("--batch-size", "1", "--grad-accum", "3", "--parallel", "fsdp"),
    "shared layers": ("--batch-size", "3", "--grad-accum", "2", "--parallel", "fsdp", "--tensor-parallel", "2"),
    "zero1, loss in chunks, recomputed": (
        *("--batch-size", "3", "--grad-accum", "1", "--parallel", "zero1"),
        *("--loss-chunk", "50", "--gradient-checkpointing", "full"),
    ),
    "out of memory on a rank": (
        *("--batch-size", "3", "--grad-accum", "1", "--oom-retries", "1"),
        *("--inject", "oom@step=3,above=2,rank=1,times=always"),
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_packed_chats_are_a_plain_loop_over_documents_alone(
    way: str, by_hand: tuple[list[float], dict[str, Tensor]], tokens: Path, two_ranks: Ranks, tmp_path: Path
) -> None:
    losses, weights = by_hand
    two_ranks.run(train_on, tmp_path, *CHATS, "--data-dir", str(tokens), *WAYS[way])
    assert len(events(tmp_path, "batch_reduced")) == (way == "out of memory on a rank")
    assert [line["loss"] for line in step_lines(tmp_path) if not line["rank"]] == pytest.approx(losses, rel=5e-6)
    assert farthest(trained(tmp_path, STEPS), weights) < 1e-5


@pytest.mark.parametrize("parallel", ["ddp", "zero1", "fsdp"])
def test_a_task_of_ones_own_is_a_plain_loop_over_the_joined_batch(
    parallel: str, two_ranks: Ranks, tmp_path: Path
) -> None:
    own = "tests.trainer.own_code"
    flags = (*STEADY, "--data", f"{own}:table", "--model", f"{own}:network", "--task", f"{own}:Regression")
    flags += ("--steps", "8", "--lr", "0.03", "--optimizer", "sgd", "--grad-clip", "0", "--weight-decay", "0")
    two_ranks.run(train_on, tmp_path, *flags, "--parallel", parallel, "--samples-per-step", "12", "--batch-size", "4")
    torch.manual_seed(0)
    data = own_code.table()
    model = own_code.network(own_code.FEATURES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9, nesterov=True)
    losses = []
    for number in range(8):
        batch = data.train.read(Order(data.train, 0).indices(12 * number, 12))
        loss = functional.mse_loss(model(batch["features"]).squeeze(1), batch["target"])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    lines = [line for line in step_lines(tmp_path) if not line["rank"]]
    assert [line["loss"] for line in lines] == pytest.approx(losses, rel=1e-6)
    assert farthest(trained(tmp_path, 8), dict(model.state_dict())) < 1e-6


def test_everything_of_fsdp_resumes_bit_for_bit(two_ranks: Ranks, tmp_path: Path) -> None:
    flags = ("--parallel", "fsdp", "--steps", "12", "--checkpoint-every", "4", "--ema", "0.9", "--dropout", "0.2")
    flags += ("--sharded-checkpoints", "--async-checkpoints", "--best-checkpoint", "--validate-every", "4")
    flags += ("--checkpoint-compression", "zstd")
    two_ranks.run(train_on, tmp_path / "straight", *flags)
    crash = ("--inject", "crash@step=10,rank=0;crash@step=10,rank=1")
    two_ranks.run(train_and_crash, tmp_path / "again", *flags, *crash)
    two_ranks.run(train_on, tmp_path / "again", *flags, *crash, "--resume", "auto")
    straight, again = (load(tmp_path / name / "checkpoints" / "step_00000012.pt") for name in ("straight", "again"))
    for part in ("model", "ema", "optimizer", "random", "samples"):
        assert same(joined(straight[part]), joined(again[part])), part


def test_the_memory_order_of_weights_and_of_what_a_resume_reads_may_differ(two_ranks: Ranks, tmp_path: Path) -> None:
    """torch's fused kernels take one order for granted."""
    flags = (*STEADY, "--steps", "8", "--checkpoint-every", "5", "--dropout", "0", "--lr", "0.01")
    two_ranks.run(train_on, tmp_path / "straight", *flags, "--parallel", "zero1", "--channels-last")
    for name, others in (("same", ("--channels-last",)), ("other", ())):
        shutil.copytree(tmp_path / "straight", tmp_path / name)
        begin = ("--resume", str(tmp_path / name / "checkpoints" / "step_00000005.pt"))
        two_ranks.run(train_on, tmp_path / name, *flags, "--parallel", "zero1", *begin, *others)
        assert farthest(trained(tmp_path / name, 8), trained(tmp_path / "straight", 8)) < 1e-5, name


@pytest.mark.long
def test_compiled_blocks_that_step_down_are_the_eager_run(two_ranks: Ranks, tmp_path: Path) -> None:
    flags = (*STEADY, "--task", "lm", "--data", "synthetic", "--model", "gpt2", "--model-options", GPT2)
    flags += ("--context", "16", "--steps", "6", "--optimizer", "sgd", "--lr", "0.1", "--batch-size", "4")
    two_ranks.run(train_on, tmp_path / "eager", *flags, "--grad-accum", "1")
    compiled = ("--compile", "default", "--compile-scope", "blocks", "--oom-retries", "1")
    oom = ("--inject", "oom@step=3,above=3,rank=1,times=always")
    two_ranks.run(train_on, tmp_path / "compiled", *flags, "--grad-accum", "1", *compiled, *oom)
    assert len(events(tmp_path / "compiled", "batch_reduced")) == 1
    assert farthest(trained(tmp_path / "compiled", 6), trained(tmp_path / "eager", 6)) < 1e-5


def test_a_stop_during_a_write_in_the_background_leaves_the_checkpoint_of_the_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Injector.before_checkpoint
    steps = list[int]()

    def stop_once(self: Injector, step: int, *others: Any) -> Any:
        if not steps:
            os.kill(os.getpid(), signal.SIGTERM)
        steps.append(step)
        return original(self, step, *others)

    monkeypatch.setattr(Injector, "before_checkpoint", stop_once)
    flags = ("--steps", "5000", "--validate-every", "0", "--checkpoint-every", "5", "--keep", "1")
    assert train(tmp_path, *flags, "--async-checkpoints") == 0
    [stop] = events(tmp_path, "stop")
    choice = choose("auto", tmp_path / "checkpoints")
    assert not choice.rejected
    assert choice.path is not None
    assert [path.name for path in (tmp_path / "checkpoints").glob("*.pt")] == [f"step_{stop['step']:08d}.pt"]
    assert load(choice.path)["step"] == stop["step"] >= steps[0]
