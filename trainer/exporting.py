"""A run's weights as a model of `transformers`: describing it beside the checkpoints, loading and exporting it.

The description in ``CHECKPOINT_DIR/model/`` is the network's config.json and the tokenizer of the data, so that a
checkpoint can be used without the data and the settings of its run.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from trainer.checkpoints import choose, files, load
from trainer.config import Settings
from trainer.errors import CheckpointError, SettingsError, TrainerError, one_line, show
from trainer.models.adapters import add_adapters
from trainer.models.custom import load_transformers
from trainer.models.weights import BaseWeights, load_weights, network_of
from trainer.tokenizer import Tokenizer

# The newest checkpoint's, the averaged ones in it, or the best checkpoint's, which are averaged where any are.
Weights = Literal["last", "ema", "best"]

_CONFIG = "config.json"
_ADAPTER_CONFIG = "adapter_config.json"
_MAX_REASON = 200  # errors of load_state_dict name every tensor


def require_exportable(model: nn.Module) -> None:
    """Raise SettingsError if transformers cannot rebuild the network from its description. Needs no memory."""
    network: Any
    network, _ = network_of(model)
    try:
        if not _is_known(network):
            raise ValueError("it is not a transformers model")
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            rebuilt = type(network)(_clean_config(network))
        ours = {name: tensor.shape for name, tensor in network.state_dict().items()}
        theirs = {name: tensor.shape for name, tensor in rebuilt.state_dict().items()}
        # Adapters have names of their own; the weights below them were read by transformers.
        if ours != theirs and not hasattr(network, "peft_config"):
            raise ValueError("it has other weights than in transformers")
    except Exception as error:  # networks raise many types here
        kind = type(network).__name__
        reason = one_line(error)
        raise SettingsError(f"{kind} cannot be exported: {reason}; choose another model or drop --export") from None


def describe(model: nn.Module, tokenizer: Path | None, checkpoint_dir: Path) -> None:
    """Write the description of a transformers model; of any other there is none.

    `tokenizer` is the folder of the data's tokenizer. Raises OSError and the errors of transformers.
    """
    network, _ = network_of(model)
    if not _is_known(network):
        return
    folder = checkpoint_dir / "model"
    config = _clean_config(network)
    if tokenizer is not None:
        loaded = Tokenizer(tokenizer)
        loaded.copy_to(folder)
        special_tokens: dict[str, Any] = {"bos_token_id": loaded.bos, "pad_token_id": loaded.pad}
        config.update({**special_tokens, "eos_token_id": loaded.eos})
        generation = {**special_tokens, "eos_token_id": list(loaded.stops)}
        files.replace(folder / "generation_config.json", json.dumps(generation, indent=2).encode())
    files.replace(folder / _CONFIG, config.to_json_string().encode())


def _is_known(network: nn.Module) -> bool:
    """Return whether transformers has this very class, and not only one of the same name or one
    that it is derived from."""
    if not hasattr(network, "save_pretrained"):
        return False
    network_class = type(network)
    return getattr(load_transformers(), network_class.__name__, None) is network_class


def _clean_config(network: Any) -> Any:
    """A copy of the network's configuration for other programs: with the name of its class, and caches for text."""
    config = type(network.config).from_dict(network.config.to_dict())
    config.architectures = [type(network).__name__]
    config.use_cache = True
    return config


@dataclass(frozen=True)
class Restored:
    """A network of transformers with the weights of a checkpoint, or peft's model around one with its adapters.

    Attributes:
        folder: has its description.
        has_adapters: whether adapters were trained; they may be merged.
    """

    network: Any
    folder: Path
    checkpoint: Path
    step: int
    has_adapters: bool

    def tokenizer(self) -> Tokenizer:
        """Load the model's tokenizer. Raises TrainerError if there is none in the description."""
        if not (self.folder / "tokenizer.json").is_file():
            raise TrainerError(f"{self.checkpoint} has no tokenizer; prepare tokens with python -m trainer prepare")
        return Tokenizer(self.folder)


def restore(source: Path, weights: Weights = "last", *, merge: bool = True) -> Restored:
    """Load the network of `source`: a run's folder, its folder of checkpoints, or one checkpoint.

    Of a contrastive model that is the backbone, without the projection. Without `merge`, adapters stay apart from the
    weights that they were trained over. Raises CheckpointError if there is no valid checkpoint with such weights or
    what it builds on has changed, and TrainerError if transformers cannot build the model.
    """
    checkpoint = _find_checkpoint(source, weights)
    folder = _find_description(checkpoint)
    state = load(checkpoint)
    if weights == "ema" and not state["ema"]:
        raise CheckpointError(f"{checkpoint} has no averaged weights; train with --ema 0.999, or use --weights last")
    if state.get("base") is not None:
        _require_base(checkpoint, BaseWeights(**state["base"]))
    try:
        network = _rebuild(folder, state, weights, merge=merge)
    except SettingsError:
        raise
    except Exception as error:  # networks raise many types here
        reason = one_line(error)[:_MAX_REASON]
        raise TrainerError(f"{checkpoint} is not of the model that {folder} describes: {reason}") from None
    has_adapters = bool(state["config"].get("lora"))  # checkpoints from before there were adapters do not say
    return Restored(network, folder, checkpoint, state["step"], has_adapters)


def _find_checkpoint(source: Path, weights: Weights) -> Path:
    """The verified checkpoint of `source` with such weights. Raises CheckpointError."""
    folder = source / "checkpoints" if (source / "checkpoints").is_dir() else source
    name = "auto"
    if source.is_file():
        name = str(source)
    elif weights == "best":
        name = str(files.best_file(folder))
    choice = choose(name, folder)
    for reason in choice.rejected:
        show(f"trainer: {reason}; trying the one before", error=True)
    if choice.path is None:
        raise CheckpointError(f"{source} has no valid checkpoint; give a run's folder or a checkpoint")
    return choice.path


def _find_description(checkpoint: Path) -> Path:
    """The folder that describes a checkpoint's model. Raises TrainerError if there is none."""
    for parent in (checkpoint.parent, checkpoint.parent.parent):  # checkpoints of epochs lie one deeper
        if (parent / "model" / _CONFIG).is_file():
            return parent / "model"
    raise TrainerError(f"{checkpoint} has no model/{_CONFIG} beside it: only transformers models can be used")


def _require_base(checkpoint: Path, base: BaseWeights) -> None:
    """Raise TrainerError unless the weights that a checkpoint builds on are where they were."""
    if BaseWeights.read(Path(base.folder)) != base:
        raise CheckpointError(f"{checkpoint} was trained over other weights than those now in {base.folder}")


def _rebuild(folder: Path, state: Mapping[str, Any], weights: Weights, *, merge: bool) -> Any:
    """The network that a folder describes, with the weights of a checkpoint's state. Raises what transformers does."""
    hf = load_transformers()
    config = hf.AutoConfig.from_pretrained(folder, local_files_only=True)
    class_name, *_ = config.architectures
    network = getattr(hf, class_name)(config).eval()
    is_contrastive = any(name.startswith("backbone.") for name in state["model"])
    prefix = "backbone.inner." if is_contrastive else "inner."
    adapted = None
    base = state.get("base")  # checkpoints from before there were adapters have none
    if base is not None:
        fresh = load_weights(network, Path(base["folder"]))
        settings = Settings.model_validate({**state["config"], "weights": base["folder"]})
        if settings.lora:
            adapted = add_adapters(network, settings, fresh).eval()
    network.load_state_dict(_tensors_below(prefix, state["model"]), strict=base is None)
    if weights != "last":  # of tied parameters one name is averaged
        network.load_state_dict(_tensors_below(prefix, state["ema"]), strict=False)
    if adapted is None:
        return network
    if merge:
        return adapted.merge_and_unload()
    return adapted


def _tensors_below(prefix: str, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """The tensors whose names have the prefix, by the rest of their names."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def export(source: Path, out: Path, weights: Weights = "last", *, merge: bool = False) -> Restored:
    """Write a folder that transformers loads: safetensors, config.json and the tokenizer. Returns the exported network.

    Of a run with adapters, these alone as peft loads them, unless they are to `merge` with the weights below them.
    Replaces an earlier export at `out` atomically. Raises SettingsError if something else is there, or TrainerError.
    """
    require_replaceable(out)
    restored = restore(source, weights, merge=merge)
    if merge and not restored.has_adapters:
        raise SettingsError(f"{source} has no adapters to merge: leave --merge out")
    load_transformers().utils.logging.disable_progress_bar()
    fresh = out.with_name(f".{out.name}.new")
    former = out.with_name(f".{out.name}.former")
    try:
        for leftover in (fresh, former):  # of a killed process
            shutil.rmtree(leftover, ignore_errors=True)
        if restored.has_adapters and not merge:
            restored.network.save_pretrained(fresh, save_embedding_layers=False)  # they are not trained
        else:
            restored.network.save_pretrained(fresh)
        shutil.copytree(restored.folder, fresh, ignore=shutil.ignore_patterns(_CONFIG), dirs_exist_ok=True)
        for path in fresh.iterdir():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        if out.exists():
            out.replace(former)
        fresh.replace(out)
        files.sync_folder(out.parent)
        shutil.rmtree(former, ignore_errors=True)
    except OSError as error:
        raise TrainerError(f"{out} cannot be written: {error.strerror or error}") from None
    return restored


def require_replaceable(out: Path) -> None:
    """Raise SettingsError if an export to `out` would replace anything but an earlier export."""
    if not out.exists():
        return
    is_export = any((out / name).is_file() for name in (_CONFIG, _ADAPTER_CONFIG))
    is_empty_folder = out.is_dir() and not any(out.iterdir())
    if not is_export and not is_empty_folder:
        raise SettingsError(f"{out} is there and is no earlier export; move it away, or name another folder")
