"""Fine-tuning: taking over weights from a folder as Hugging Face lays it out, from safetensors files only."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trainer.errors import TrainerError
from trainer.models.custom import imported, library
from trainer.models.own import Embedder, Logits

_ONE_FILE = "model.safetensors"
_INDEX = "model.safetensors.index.json"

# Parts of own networks that depend on the number of classes.
_HEADS = ("head", "classifier", "fc")

# In the names of tables of positions, whose first rows mean the same in a shorter table.
_POSITIONS = ("wpe", "position")

# Vocabularies are padded to multiples of this: a smaller difference is padding and no other vocabulary.
_PADDING = 64


def load_weights(model: nn.Module, folder: Path) -> tuple[str, ...]:
    """Copy the weights in `folder` into `model`, matched by name; random state stays as it is.

    Returns the names of what stays as initialised: a head, where the folder has another one or none, and what is around
    the network. Tables of positions may be longer than the model's, and vocabularies may differ by their padding.
    Raises TrainerError, with the model unchanged, where anything else is missing, unexpected or of another shape, and
    where no safetensors file is.
    """
    network, prefix = network_of(model)
    base: str | None = getattr(network, "base_model_prefix", None)
    unknown: Sequence[str] = ()
    vocabularies = None
    if base is None:
        stored = _read(folder)
    else:
        stored, unknown, vocabularies = _of_hugging_face(network, folder)

    def in_head(name: str) -> bool:
        # On top of the base network; poolers serve heads only.
        return (
            name.partition(".")[0] in _HEADS
            if base is None
            else not name.startswith(f"{base}.") or name.startswith(f"{base}.pooler.")
        )

    ours = network.state_dict()
    surplus = [*unknown, *(name for name in stored if name not in ours)]
    problems = [f"{name} is not in the model" for name in surplus if not in_head(name)]
    rows: dict[str, int] = {}  # of those to be copied in part
    fresh = [name for name in model.state_dict() if not name.startswith(prefix)]
    for name, tensor in ours.items():
        theirs = stored.get(name)
        if theirs is None:
            if in_head(name):
                fresh.append(prefix + name)
            else:
                problems.append(f"{name} is missing")
        elif theirs.shape != tensor.shape:
            same_rows = theirs.dim() == tensor.dim() and theirs.shape[1:] == tensor.shape[1:]
            is_vocabulary = same_rows and (len(theirs), len(tensor)) == vocabularies
            if is_vocabulary and abs(len(theirs) - len(tensor)) < _PADDING:
                rows[name] = min(len(theirs), len(tensor))
            elif same_rows and len(theirs) > len(tensor) and any(word in name for word in _POSITIONS):
                rows[name] = len(tensor)
            elif in_head(name) and not is_vocabulary:
                fresh.append(prefix + name)
            else:
                problems.append(f"{name} is {_shape(theirs)}, the model's {_shape(tensor)}")
    if problems:
        more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise TrainerError(f"weights: {folder} does not fit the model: {', '.join(problems[:3])}{more}")
    with torch.no_grad():
        for name, tensor in ours.items():
            if name in rows:
                tensor[: rows[name]].copy_(stored[name][: rows[name]])
            elif prefix + name not in fresh:
                tensor.copy_(stored[name])
    return tuple(fresh)


def network_of(model: nn.Module) -> tuple[nn.Module, str]:
    """The network that files know, and the prefix of its names in the model."""
    prefix = ""
    if isinstance(model, Embedder):
        model, prefix = model.backbone, "backbone."
    if isinstance(model, Logits):
        model, prefix = model.inner, f"{prefix}inner."
    return model, prefix


def _read(folder: Path) -> dict[str, Tensor]:
    files = [_ONE_FILE]
    if not (folder / _ONE_FILE).is_file():
        index = folder / _INDEX
        if not index.is_file():
            raise TrainerError(f"weights: {folder} has neither {_ONE_FILE} nor {_INDEX}; no other format is read")
        try:
            files = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise TrainerError(f"weights: {index} is no index of safetensors files; copy the folder again") from None
    tensors: dict[str, Tensor] = {}
    for file in files:
        try:
            tensors |= imported("safetensors.torch").load_file(folder / file)
        except (imported("safetensors").SafetensorError, OSError) as error:
            raise TrainerError(f"weights: {folder / file} cannot be read: {error}") from None
    return tensors


def _of_hugging_face(network: Any, folder: Path) -> tuple[dict[str, Tensor], list[str], tuple[Any, Any]]:
    """Tensors by the network's names, names unknown to it, and sizes of vocabulary, theirs and ours.

    Read with transformers itself, which knows the names that older files use.
    """
    hf, config = library(), network.config
    try:
        if (folder / "config.json").is_file():
            kind = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("model_type")
            if kind != config.model_type:
                raise TrainerError(f"weights: {folder} is a {kind}, but the model is a {config.model_type}")
            config = type(config).from_pretrained(folder, local_files_only=True)
        hf.utils.logging.disable_progress_bar()
        with torch.random.fork_rng(devices=[]):
            stored, info = type(network).from_pretrained(
                folder,
                config=config,
                dtype=torch.float32,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
                local_files_only=True,
                use_safetensors=True,
            )
    except (OSError, ValueError, RuntimeError, imported("safetensors").SafetensorError) as error:
        raise TrainerError(f"weights: {folder} cannot be read: {' '.join(str(error).split())}") from None
    # What transformers had to make up is as good as missing.
    made_up = set(info["missing_keys"]) | {name for name, *_ in info["mismatched_keys"]}
    tensors = {name: tensor for name, tensor in stored.state_dict().items() if name not in made_up}
    vocabularies = getattr(config, "vocab_size", None), getattr(network.config, "vocab_size", None)
    return tensors, sorted(info["unexpected_keys"]), vocabularies


def _shape(tensor: Tensor) -> str:
    return "x".join(str(size) for size in tensor.shape)
