"""Training a part of the weights: adapters as a plain loop with peft trains them, and parameters chosen by name."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional

from tests.tables import table
from tests.texts import mentions
from tests.trainer.comparing import difference, final_state, same
from tests.trainer.instructions import CHATS, CONTEXT
from tests.trainer.ranks import Ranks
from tests.trainer.running import events, settings, step_lines, train, train_on
from tests.trainer.small_models import LLAMA, SMALL, inputs, small_settings, text
from trainer.__main__ import main
from trainer.data import load_data
from trainer.data.order import Order
from trainer.models import build, build_model

OPTIONS = LLAMA | {"num_key_value_heads": 1}
STEADY = ("--schedule", "constant", "--warmup-steps", "0", "--validate-every", "0", "--validate-samples", "2")
MODEL = ("--task", "lm", "--context", "16", "--model", "smollm-135m", "--model-options", json.dumps(OPTIONS))
SMALL_RUN = (*MODEL, *STEADY, "--data", "text", "--data-dir", str(CHATS), "--device", "cpu", "--steps", "6")
SMALL_RUN += ("--lr", "0.02")
LORA = ("--lora", "4", "--lora-modules", "q_proj,v_proj,down_proj", "--lora-alpha", "12")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the weights of a small Llama over bytes."""
    return _written(tmp_path_factory.mktemp("base"), vocabulary=256, context=16)


def _written(folder: Path, *, vocabulary: int, context: int) -> Path:
    sizes = {"vocab_size": vocabulary, "max_position_embeddings": context, "rms_norm_eps": 1e-5}
    config = transformers.LlamaConfig(**OPTIONS, **sizes, tie_word_embeddings=True)
    torch.manual_seed(11)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def by_hand(base: Path, start: dict[str, Tensor], *, steps: int) -> tuple[list[float], dict[str, Tensor]]:
    """Losses and adapters of a plain loop with peft, from the trainer's own first values of them."""
    chosen = settings(*SMALL_RUN)
    data = load_data(chosen)
    config = peft.LoraConfig(r=4, lora_alpha=12, target_modules=["q_proj", "v_proj", "down_proj"])
    network = transformers.LlamaForCausalLM.from_pretrained(base, dtype=torch.float32)
    model: Any = peft.get_peft_model(network, config)
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    trained = {name.replace("base_model.model.", "inner."): parameter for name, parameter in trained.items()}
    assert trained.keys() == start.keys()
    with torch.no_grad():
        for name, parameter in trained.items():
            parameter.copy_(start[name])
    parameters = list(trained.values())
    optimizer = torch.optim.AdamW(parameters, lr=0.02, betas=(chosen.beta1, chosen.beta2), weight_decay=0.1)
    losses = []
    for number in range(steps):
        tokens = data.train.read(Order(data.train, chosen.seed).indices(12 * number, 12))["tokens"]
        loss = functional.cross_entropy(model(tokens[:, :-1]).logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, chosen.grad_clip)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, trained


WAYS: dict[str, tuple[str, ...]] = {
    "ddp": (),
    "zero1, recomputed": ("--parallel", "zero1", "--gradient-checkpointing", "full"),
    "fsdp": ("--parallel", "fsdp"),
    "fsdp, recomputed": ("--parallel", "fsdp", "--gradient-checkpointing", "full", "--sharded-checkpoints"),
}


@pytest.mark.parametrize("way", WAYS)
def test_adapters_of_two_ranks_are_a_plain_loop_with_peft(
    way: str, base: Path, two_ranks: Ranks, tmp_path: Path
) -> None:
    flags = (*SMALL_RUN, *LORA, "--weights", str(base))
    torch.manual_seed(settings(*flags).seed)
    built = build(settings(*flags), load_data(settings(*flags)))
    start = {name: weight for name, weight in built.model.state_dict().items() if name not in built.in_base}
    losses, adapters = by_hand(base, start, steps=6)
    two_ranks.run(train_on, tmp_path, *flags, "--batch-size", "2", "--grad-accum", "3", *WAYS[way])
    lines = [line for line in step_lines(tmp_path) if not line["rank"]]
    assert [line["loss"] for line in lines] == pytest.approx(losses, rel=1e-6)
    assert losses[0] - losses[-1] > 0.05
    state = final_state(tmp_path)
    assert difference(dict(state["model"]), {name: weight.detach() for name, weight in adapters.items()}) < 1e-5
    assert set(state["optimizer"]) == set(adapters)


@table("parallel", ["ddp", "fsdp"])
def test_frozen_weights_are_stored_in_bf16_and_adapters_in_fp32(
    parallel: str, base: Path, two_ranks: Ranks, tmp_path: Path
) -> None:
    flags = (*SMALL_RUN, *LORA, "--weights", str(base), "--parallel", parallel)
    two_ranks.run(train_on, tmp_path / "fp32", *flags)
    two_ranks.run(train_on, tmp_path / "bf16", *flags, "--precision", "bf16", "--ema", "0.9")
    first, second = ([line["loss"] for line in step_lines(tmp_path / name)] for name in ("fp32", "bf16"))
    assert second == pytest.approx(first, rel=0.01)
    assert second != first
    state = final_state(tmp_path / "bf16")
    assert {weight.dtype for weight in state["model"].values()} == {torch.float32}
    assert set(state["ema"]) == set(state["model"])
    chosen = settings(*flags, "--precision", "bf16")
    parameters = list(build_model(chosen, load_data(chosen)).parameters())
    assert {parameter.dtype for parameter in parameters if not parameter.requires_grad} == {torch.bfloat16}
    assert {parameter.dtype for parameter in parameters if parameter.requires_grad} == {torch.float32}


@table("chosen", [LORA, ("--train-only", r"norm|layers\.1\.mlp")])
def test_a_checkpoint_has_what_was_trained_and_resumes_bit_for_bit(
    chosen: tuple[str, ...], base: Path, tmp_path: Path
) -> None:
    flags = (*SMALL_RUN, "--weights", str(base), "--ema", "0.9", "--dropout", "0.2", "--checkpoint-every", "3")
    assert train(tmp_path / "straight", *flags, *chosen) == 0
    assert train(tmp_path / "whole", *flags) == 0
    shutil.copytree(tmp_path / "straight", tmp_path / "again")
    third = tmp_path / "again" / "checkpoints" / "step_00000003.pt"
    assert train(tmp_path / "again", *flags, *chosen, "--resume", str(third)) == 0
    straight, again = (final_state(tmp_path / name) for name in ("straight", "again"))
    assert straight["step"] == 6
    for part in ("model", "ema", "optimizer", "random", "base"):
        assert same(straight[part], again[part]), part
    assert straight["model"].keys() == straight["optimizer"].keys() == straight["ema"].keys()
    assert straight["base"]["folder"] == str(base)
    small, whole = (events(tmp_path / name, "checkpoint")[-1]["bytes"] for name in ("straight", "whole"))
    assert small < whole / 3


def test_a_checkpoint_is_not_continued_over_other_weights(
    base: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ours = tmp_path / "ours"
    moved = tmp_path / "moved"
    shutil.copytree(base, ours)
    flags = [*SMALL_RUN, "--train-only", "norm", "--checkpoint-every", "3", "--resume", "auto"]
    assert train(tmp_path / "out", *flags, "--weights", str(ours)) == 0
    shutil.copytree(ours, moved)
    longer = [*flags, "--steps", "7"]
    assert train(tmp_path / "out", *longer, "--weights", str(moved)) == 0, "the same weights in another place"
    other: Any = transformers.LlamaForCausalLM.from_pretrained(ours)
    with torch.no_grad():
        other.model.embed_tokens.weight[0, 0] += 1
    other.save_pretrained(moved)
    for weights in (str(moved), ""):
        assert train(tmp_path / "out", *longer, "--steps", "8", "--weights", weights) == 1
        assert mentions(capfd.readouterr().err, "only what was trained, over the weights in", "give those to --weights")
    assert main(["export", str(tmp_path / "out")]) == 1
    assert mentions(capfd.readouterr().err, "was trained over other weights than those now in", str(moved))


@pytest.fixture(scope="module")
def answering(tokens: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A folder of weights, and a run with adapters over them that has exported its averaged ones."""
    place = tmp_path_factory.mktemp("answering")
    base = _written(place / "base", vocabulary=384, context=CONTEXT)
    flags = [*SMALL_RUN, "--data", "tokens", "--data-dir", str(tokens), "--context", str(CONTEXT), *LORA]
    flags += ["--weights", str(base), "--ema", "0.9", "--export", "ema", "--precision", "bf16"]
    assert train(place / "run", *flags) == 0
    return base, place / "run"


@table("weights", ["last", "ema"])
def test_an_adapter_and_the_merged_model_have_the_logits_of_the_run(
    weights: str, answering: tuple[Path, Path], tmp_path: Path
) -> None:
    base, run = answering
    for out, flags in (("adapter", ()), ("merged", ("--merge",))):
        assert main(["export", str(run), "--weights", weights, "--out", str(tmp_path / out), *flags]) == 0
    state = final_state(run)
    chosen = settings(*MODEL, "--context", str(CONTEXT), *LORA, "--weights", str(base))
    model = build_model(chosen, text(384, CONTEXT)).eval()
    model.load_state_dict(state["ema" if weights == "ema" else "model"], strict=False)
    tokens = torch.randint(0, 384, (2, CONTEXT), generator=torch.Generator().manual_seed(1))
    network: Any = transformers.AutoModelForCausalLM.from_pretrained(base)
    merged: Any = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    with torch.no_grad():
        untrained = network(tokens).logits
        adapted: Any = peft.PeftModel.from_pretrained(network, tmp_path / "adapter").eval()
        expected = model(tokens)
        assert torch.equal(adapted(tokens).logits, expected)
        assert not torch.allclose(untrained, expected, atol=1e-3)
        assert merged(tokens).logits.allclose(expected, atol=1e-5)
    assert (tmp_path / "adapter" / "adapter_model.safetensors").stat().st_size < 20_000
    assert not (tmp_path / "adapter" / "model.safetensors").exists()
    for out in ("adapter", "merged"):
        assert transformers.AutoTokenizer.from_pretrained(tmp_path / out).chat_template


def test_a_run_with_adapters_exports_them_at_its_end_and_answers(
    answering: tuple[Path, Path], capfd: pytest.CaptureFixture[str]
) -> None:
    base, run = answering
    config = json.loads((run / "hf" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(base)
    assert config["task_type"] == "CAUSAL_LM"
    adapted: Any = peft.AutoPeftModelForCausalLM.from_pretrained(run / "hf")
    assert adapted.generate(input_ids=torch.tensor([[1, 2]]), max_new_tokens=2).shape == (1, 4)
    assert main(["sample", str(run), "--prompt", "Count from 2.", "--tokens", "4"]) == 0
    assert capfd.readouterr().out


def test_a_head_that_the_weights_lack_is_trained_beside_the_adapters(tmp_path: Path) -> None:
    data = SMALL["vit-b16"][1]
    torch.manual_seed(1)
    headless: Any = build_model(small_settings("vit-b16"), data)
    headless.inner.vit.save_pretrained(tmp_path)
    built = build(small_settings("vit-b16", weights=tmp_path, lora=2), data)
    trained = {name for name, parameter in built.model.named_parameters() if parameter.requires_grad}
    assert {name for name in trained if "lora_" not in name} == {
        "inner.classifier.modules_to_save.default.bias",
        "inner.classifier.modules_to_save.default.weight",
    }
    assert len(trained) > 10, "all linear layers of the blocks have adapters"
    built.model(inputs(data)).square().mean().backward()
    assert all(parameter.grad is not None for parameter in built.model.parameters() if parameter.requires_grad)


def test_only_chosen_parameters_change_and_the_export_is_the_whole_model(
    base: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    flags = [*SMALL_RUN, "--weights", str(base), "--train-only", r"^model\.layers\.1\.", "--export", "last"]
    assert train(tmp_path, *flags, "--precision", "bf16") == 0
    before: Any = transformers.LlamaForCausalLM.from_pretrained(base).state_dict()
    after: Any = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "hf").state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {name for name in before if "layers.1." in name}
    assert main(["export", str(tmp_path), "--merge"]) == 2
    assert "no adapters to merge" in capfd.readouterr().err
    assert not (tmp_path / "hf-merged").exists()


def test_blocks_without_a_trained_parameter_are_the_same_however_ranks_share_the_model(
    base: Path, two_ranks: Ranks, tmp_path: Path
) -> None:
    flags = (*SMALL_RUN, "--weights", str(base), "--train-only", r"layers\.1\.mlp")
    for parallel in ("ddp", "zero1", "fsdp"):
        two_ranks.run(train_on, tmp_path / parallel, *flags, "--parallel", parallel)
    losses = {parallel: [line["loss"] for line in step_lines(tmp_path / parallel)] for parallel in ("zero1", "fsdp")}
    expected = [line["loss"] for line in step_lines(tmp_path / "ddp")]
    assert losses == {"zero1": pytest.approx(expected, rel=1e-6), "fsdp": pytest.approx(expected, rel=1e-6)}
    assert difference(final_state(tmp_path / "ddp")["model"], final_state(tmp_path / "fsdp")["model"]) < 1e-5


def test_without_weights_a_checkpoint_has_everything(tmp_path: Path) -> None:
    assert train(tmp_path, *SMALL_RUN, "--train-only", "norm") == 0
    state = final_state(tmp_path)
    assert state["base"] is None
    assert "inner.model.embed_tokens.weight" in state["model"]
    assert all("norm" in name for name in state["optimizer"])


@table(
    "flags, reason",
    [
        (["--lora", "4", "--weights="], "--lora needs --weights"),
        ([*LORA, "--train-only", "norm"], "--train-only goes not with --lora"),
        (["--lora-modules", "q_proj"], "--lora-modules needs --lora"),
        (["--lora", "4", "--lora-modules", "q_prj"], "has no layer q_prj; did you mean q_proj?"),
        (["--lora", "4", "--lora-modules", "lm_head"], "lm_head shares its weights with another layer"),
        (["--train-only", "q_prooj"], "no parameter's name matches 'q_prooj'; did you mean q_proj?"),
        (["--train-only", "("], "--train-only should be a regular expression"),
        ([*LORA, "--parallel", "fsdp", "--tensor-parallel", "2"], "not with --lora or --train-only"),
    ],
)
def test_what_cannot_be_trained_is_refused_in_words(
    flags: list[str], reason: str, base: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert train(tmp_path, *SMALL_RUN, "--weights", str(base), *flags) == 2
    assert reason in capfd.readouterr().err
    assert not (tmp_path / "metrics.jsonl").exists() or not step_lines(tmp_path)


def test_a_model_that_is_not_of_transformers_takes_no_adapters(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from safetensors.torch import save_file

    data = SMALL["bytes"][1]
    save_file(build_model(small_settings("bytes"), data).state_dict(), tmp_path / "model.safetensors")
    flags = [
        "--task",
        "lm",
        "--data",
        "text",
        "--data-dir",
        str(CHATS),
        "--context",
        "16",
        "--width",
        "32",
        "--depth",
        "3",
        "--lora",
        "4",
    ]
    assert train(tmp_path / "out", *flags, "--device", "cpu", "--weights", str(tmp_path)) == 2
    assert "--lora needs a model of transformers" in capfd.readouterr().err


def test_without_peft_a_line_names_the_extra(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    assert train(tmp_path, *SMALL_RUN, "--weights", str(base), *LORA) == 2
    assert "pip install 'gputui[lora]'" in capfd.readouterr().err
