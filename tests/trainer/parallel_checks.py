"""The ranks' part of the tests of trainer.parallel: module-level functions, called as
function(world, …)."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.optim import ZeroRedundancyOptimizer

from tests.trainer.tiny import part_of, tiny_batch, tiny_objective, tiny_settings
from trainer.checkpoints import Checkpointer
from trainer.checkpoints.state import whole
from trainer.collectives import full_tensor, local_shard
from trainer.config import Settings
from trainer.config.schema import Recompute
from trainer.data.contract import Fields, Transform
from trainer.models.blocks import apply_recompute, transformer_blocks
from trainer.optim import Ema
from trainer.parallel.build import build_strategy
from trainer.parallel.ddp import Ddp
from trainer.parallel.strategy import OptimizerState, Strategy
from trainer.precision import compile_modules
from trainer.tasks.objective import Objective
from trainer.world import World

State = dict[str, Tensor]

# --- language models --------------------------------------------------------------------------------------------------

VOCABULARY = 32
CONTEXT = 6


class Words(Objective):
    """Cross entropy of the next token (any token for BERT) under a model from tokens to logits."""

    def forward(self, fields: Fields) -> Tensor:
        logits = self.model(fields["tokens"])
        return nn.functional.cross_entropy(logits.float().flatten(0, 1), fields["target"].flatten())

    def measure(self, fields: Fields) -> dict[str, Tensor]:
        return {}

    def transform(self, *, training: bool) -> Transform:
        return lambda fields, indices: fields


class Logits(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.inner(input_ids=tokens).logits
        return logits


def words_objective(kind: str, seed: int = 0) -> Words:
    import transformers

    torch.manual_seed(seed)
    common = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": VOCABULARY}
    ends = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None, "use_cache": False}
    size = {"intermediate_size": 24, "max_position_embeddings": CONTEXT}
    inner: Any
    if kind == "llama":
        heads = {"num_key_value_heads": 2, "tie_word_embeddings": True}
        inner = transformers.LlamaForCausalLM(transformers.LlamaConfig(**common, **size, **heads, **ends))
    elif kind == "bert":
        none = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        inner = transformers.BertForMaskedLM(transformers.BertConfig(**common, **size, **none))
    else:
        none = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
        config = transformers.GPT2Config(**common, **none, **ends, n_inner=24, n_positions=CONTEXT)
        inner = transformers.GPT2LMHeadModel(config)
    return Words(Logits(inner))


def words_batch(step: int, size: int = 8) -> Fields:
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(VOCABULARY, (size, CONTEXT), generator=generator)
    return {"tokens": tokens, "target": (tokens * 3 + 1) % VOCABULARY}


# --- training ---------------------------------------------------------------------------------------------------------


def build(
    world: World, kind: str = "tiny", seed: int = 0, model: dict[str, Any] | None = None, **options: Any
) -> Strategy:
    """A strategy for the tiny model, or for a language model of that kind, in two blocks."""
    if kind == "tiny":
        return build_strategy(tiny_settings(**options), tiny_objective(seed, **(model or {})), world)
    return build_strategy(words_settings(**options), words_objective(kind, seed), world)


def words_settings(**options: Any) -> Settings:
    return tiny_settings(task="lm", width=32, **options)


def micro_batches(strategy: Strategy, step: int, accumulate: int = 1) -> list[Fields]:
    """This rank's part of a batch that is the same however many ranks there are."""
    batch = words_batch(step) if isinstance(strategy.objective, Words) else tiny_batch(step)
    parts = [part_of(batch, number, accumulate) for number in range(accumulate)]
    return [part_of(part, strategy.data_rank, strategy.data_ranks) for part in parts]


def backward(strategy: Strategy, step: int, accumulate: int = 1) -> float:
    """Forward and backward of one step; the mean loss of this rank's part."""
    strategy.clear_gradients()
    total = 0.0
    for number, fields in enumerate(micro_batches(strategy, step, accumulate)):
        with strategy.accumulate(number == accumulate - 1):
            loss = strategy.loss(fields) / accumulate
            loss.backward()
        total += loss.item()
    return total


def train(strategy: Strategy, steps: range, accumulate: int = 1) -> list[tuple[float, float]]:
    """The loss of this rank and the norm of gradients by step."""
    results = []
    for step in steps:
        loss = backward(strategy, step, accumulate)
        results.append((loss, strategy.clip(1.0).item()))
        strategy.optimizer.step()
        strategy.after_update()
    return results


def copied(state: State) -> State:
    return {name: tensor.detach().clone() for name, tensor in state.items()}


def whole_model(world: World, strategy: Strategy) -> State:
    """A copy of the full model on rank 0; of one that is sharded, nothing elsewhere."""
    return _whole(world, strategy.model_state())


def whole_optimizer(world: World, strategy: Strategy) -> OptimizerState:
    return {name: _whole(world, values) for name, values in strategy.optimizer_state().items()}


def _whole(world: World, state: dict[str, Any]) -> dict[str, Any]:
    full = whole(state, world).items()
    return {name: value.clone() if isinstance(value, Tensor) else value for name, value in full if value is not None}


class Trained(NamedTuple):
    """The means of losses over ranks, the model, the optimizer, and the norms of gradients."""

    losses: list[float]
    model: State
    optimizer: OptimizerState
    norms: list[float]


def train_some(
    world: World,
    steps: range,
    accumulate: int = 1,
    state: tuple[State, OptimizerState] | None = None,
    **settings: Any,
) -> Trained:
    """Train from the beginning, or with other first weights that a state replaces."""
    seed = 5 if state else 0
    strategy = build(world, seed=seed, **settings)
    if state:
        strategy.load_model_state(state[0])
        strategy.load_optimizer_state(state[1])
    losses, norms = zip(*train(strategy, steps, accumulate), strict=True)
    mean = [total / world.size for total in world.sum(*losses)]
    return Trained(mean, whole_model(world, strategy), whole_optimizer(world, strategy), list(norms))


def gradients(
    world: World, accumulate: int = 1, kind: str = "tiny", recompute: Recompute = "none", **settings: Any
) -> tuple[float, State]:
    """Of one step, the mean loss and full gradients, which every rank gets; language models may be compiled."""
    if kind == "tiny":
        strategy = build(world, **settings)
    else:
        objective = words_objective(kind)
        chosen = words_settings(**settings)
        apply_recompute(objective.model, recompute)
        blocks = transformer_blocks(objective.model) if chosen.compile_scope == "blocks" else [objective]
        compile_modules(blocks, chosen)
        strategy = build_strategy(chosen, objective, world)
    torch.manual_seed(7)
    loss = backward(strategy, 0, accumulate)
    gradients = {name: parameter.grad for parameter, name in strategy.names.items()}
    full = {name: full_tensor(gradient).clone() for name, gradient in gradients.items() if gradient is not None}
    return world.sum(loss)[0] / world.size, full


# --- running out of memory --------------------------------------------------------------------------------------------


class _Fail(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. (in backward)")


class Failing(nn.Module):
    """A block that runs out of memory where `armed` says: in forward or in backward."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block
        self.armed = ""

    def forward(self, x: Tensor) -> Tensor:
        if self.armed == "forward":
            raise torch.OutOfMemoryError("CUDA out of memory. (in forward)")
        x = _Fail.apply(x) if self.armed == "backward" else x  # type: ignore[no-untyped-call]
        result: Tensor = self.block(x)
        return result


def survive(
    world: World,
    where: str,
    failing: tuple[int, ...],
    fail_step: int,
    fail_micro: int = 0,
    accumulate: int = 1,
    steps: int = 5,
    model: dict[str, Any] | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Trains as the loop does; on some ranks one micro batch of one step runs out of memory, and all do it again."""
    gc.freeze()  # looking through all of torch for garbage would take most of the time
    objective = tiny_objective(**(model or {}))
    blocks = objective.model.blocks
    blocks[1] = bad = Failing(blocks[1])
    strategy = build_strategy(tiny_settings(oom_retries=1, **settings), objective, world)
    losses = []
    step = 0
    to_fail = world.rank in failing
    while step < steps:
        failed = False
        loss = 0.0
        try:
            strategy.optimizer.zero_grad()
            for number, fields in enumerate(micro_batches(strategy, step, accumulate)):
                with strategy.accumulate(number == accumulate - 1):
                    now = to_fail and (step, number) == (fail_step, fail_micro)
                    if now and where == "data":
                        raise torch.OutOfMemoryError("CUDA out of memory. (batch to the device)")
                    bad.armed = where if now else ""
                    mean = strategy.loss(fields) / accumulate
                    mean.backward()
                    loss += mean.item()
        except torch.OutOfMemoryError:
            failed = True
        if failed:
            assert strategy.can_settle
            strategy.settle()
        if world.vote(failed)[0]:
            to_fail = False
            strategy.renew()
            assert not strategy.local_gradients()
            continue
        strategy.clip(1.0)
        gradients = torch.cat([gradient.flatten() for gradient in strategy.local_gradients().values()])
        assert not isinstance(strategy, Ddp) or all(
            torch.equal(gradients, theirs) for theirs in world.gather(gradients)
        )
        strategy.optimizer.step()
        strategy.after_update()
        losses.append(loss)
        step += 1
    return {"losses": losses, "model": whole_model(world, strategy)}


# --- checkpoints -----------------------------------------------------------------------------------------------------


def save_words(world: World, folder: Path, **settings: Any) -> tuple[State, OptimizerState]:
    """The model and the optimizer after a step, of which all ranks have written a sharded checkpoint."""
    where = {"checkpoint_dir": folder, "sharded_checkpoints": True, **settings}
    strategy = build(world, "llama", **where)
    train(strategy, range(1))
    state = {"step": 1, "model": strategy.model_state(), "optimizer": strategy.optimizer_state()}
    part = world.subgroup(world.size)
    assert part is not None
    Checkpointer(words_settings(**where), part).save(lambda: state, step=1, need="required")
    return whole_model(world, strategy), whole_optimizer(world, strategy)


# --- state, parts and measuring ---------------------------------------------------------------------------------------


def straight_and_resumed(world: World, steps: int, more: int, **settings: Any) -> tuple[State, State]:
    """The model of a run that goes on after its state was taken, and of one that goes on from that state."""
    strategy = build(world, **settings)
    train(strategy, range(steps))
    state = world.from_main((whole_model(world, strategy), whole_optimizer(world, strategy)))
    train(strategy, range(steps, steps + more))
    straight = whole_model(world, strategy)
    return straight, train_some(world, range(steps, steps + more), state=state, **settings).model


def rounds_per_step(world: World, steps: int, accumulate: int, **settings: Any) -> list[int]:
    """Exchanged buckets by step."""
    strategy = build(world, **settings)
    assert isinstance(strategy, Ddp)
    rounds = []
    for step in range(steps):
        train(strategy, range(step, step + 1), accumulate)
        rounds.append(strategy.exchange.sent)
    return rounds


def optimizer_share(world: World, **settings: Any) -> tuple[int, int]:
    """Elements of optimizer state on this rank, and of all parameters."""
    strategy = build(world, **settings)
    train(strategy, range(1))
    inner = strategy.optimizer.optim if isinstance(strategy.optimizer, ZeroRedundancyOptimizer) else strategy.optimizer
    elements = [local_shard(state["exp_avg"]).numel() for state in inner.state.values()]
    return sum(elements), sum(parameter.numel() for parameter in strategy.objective.model.parameters())


def averages(world: World, **settings: Any) -> tuple[State, State]:
    """Averages after a few steps, and those of another model that takes them over; whole."""
    strategy = build(world, **settings)
    average = Ema(named_parameters(strategy), 0.5)
    for step in range(3):
        train(strategy, range(step, step + 1))
        average.update(step + 1)
    state = _whole(world, average.state())
    again = Ema(named_parameters(build(world, seed=7, **settings)), 0.5)
    again.load(world.from_main(state))
    return state, _whole(world, again.state())


def named_parameters(strategy: Strategy) -> State:
    return {name: parameter for parameter, name in strategy.names.items()}


def draws(world: World, dropout: float) -> tuple[list[float], list[float]]:
    """Random numbers that a rank draws inside of the shared blocks of a Llama, and outside of them."""
    strategy = build(world, "llama", parallel="fsdp", tensor_parallel=2, dropout=dropout)
    inside: list[float] = []
    outside: list[float] = []
    torch.manual_seed(7)
    for name, layer in strategy.objective.model.named_modules():
        if name.endswith(("q_proj", "up_proj")):
            layer.register_forward_hook(lambda *_: inside.append(torch.rand(()).item()))
        if name.endswith(("embed_tokens", "lm_head")):
            layer.register_forward_hook(lambda *_: outside.append(torch.rand(()).item()))
    batch = {"tokens": torch.zeros(2, CONTEXT, dtype=torch.long), "target": torch.zeros(2, CONTEXT, dtype=torch.long)}
    strategy.loss(batch)
    return inside, outside


def load_errors(world: World, **settings: Any) -> list[str]:
    """The errors about states that do not fit."""
    strategy = build(world, **settings)
    train(strategy, range(1))
    model, optimizer = world.from_main((whole_model(world, strategy), whole_optimizer(world, strategy)))
    name = "enter.weight"
    wrong: list[tuple[Callable[[Any], None], Any]] = [
        (strategy.load_model_state, {key: value for key, value in model.items() if key != name}),
        (strategy.load_model_state, {**model, "other": torch.zeros(1)}),
        (strategy.load_model_state, {**model, name: torch.zeros(2, 3)}),
        (strategy.load_optimizer_state, {**optimizer, "other": {}}),
    ]
    said = []
    for load, state in wrong:
        try:
            load(state)
        except (KeyError, ValueError) as error:
            said.append(f"{type(error).__name__}: {error.args[0]}")
    return said


def optimizer_kept_and_forgotten(world: World, **settings: Any) -> tuple[set[str], set[str]]:
    """Names with optimizer state after a state that has it for one parameter only, and after an empty one."""
    strategy = build(world, **settings)
    train(strategy, range(1))
    optimizer = world.from_main(whole_optimizer(world, strategy))
    strategy.load_optimizer_state({"enter.weight": optimizer["enter.weight"]})
    some = world.from_main(set(strategy.optimizer_state()))
    strategy.load_optimizer_state({})
    return some, world.from_main(set(strategy.optimizer_state()))


def can_settle(world: World, exchanges: bool = False, **settings: Any) -> bool:
    objective = tiny_objective()
    objective.exchanges = exchanges
    return build_strategy(tiny_settings(**settings), objective, world).can_settle


# --- building ---------------------------------------------------------------------------------------------------------


def kind_and_place(world: World, **settings: Any) -> tuple[str, int, int]:
    strategy = build(world, **settings)
    return type(strategy).__name__, strategy.data_rank, strategy.data_ranks


def first_weights(world: World, seed: int, **settings: Any) -> State:
    """The model before any step, where every rank began with weights of its own."""
    return whole_model(world, build(world, seed=seed + world.rank, **settings))


def statistics(world: World, **settings: Any) -> tuple[State, State]:
    """Batch statistics after two steps, and as they are measured."""
    strategy = build(world, model={"batch_norm": True}, **settings)
    train(strategy, range(2))
    before = copied(dict(strategy.objective.model.named_buffers()))
    with strategy.measuring():
        return before, copied(dict(strategy.objective.model.named_buffers()))
