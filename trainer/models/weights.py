"""Fine-tuning: taking over weights from a folder as Hugging Face lays it out, from safetensors files only."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trainer.errors import TrainerError
from trainer.models.huggingface import imported, library
from trainer.models.own import Embedder, Logits

_ONE_FILE = "model.safetensors"
_INDEX = "model.safetensors.index.json"

# Parts of own networks that depend on the number of classes.
_HEADS = ("head", "classifier", "fc")

# In the names of tables of positions, whose first rows mean the same in a shorter table.
_POSITIONS = ("wpe", "position")

# Vocabularies are padded to multiples of this: a smaller difference is padding and no other vocabulary.
_PADDING = 64


@dataclass(frozen=True)
class WeightsReport:
    """Names of tensors: taken over, taken over as far as rows go, left as initialised, and not used of the folder."""

    loaded: tuple[str, ...]
    resized: tuple[str, ...]
    fresh: tuple[str, ...]
    unused: tuple[str, ...]

    def __str__(self) -> str:
        parts = [f"{len(self.loaded) + len(self.resized)} tensors loaded"]
        for names, words in ((self.resized, "in part"), (self.fresh, "freshly initialised"), (self.unused, "not used")):
            if names:
                parts.append(f"{len(names)} {words} ({_first(names)})")
        return ", ".join(parts)


@dataclass(frozen=True)
class _Stored:
    """What a folder holds: tensors by the network's names, names unknown to it, and vocabularies (theirs, ours)."""

    tensors: Mapping[str, Tensor]
    unknown: tuple[str, ...] = ()
    vocabularies: tuple[int, int] | None = None


def load_weights(model: nn.Module, folder: Path) -> WeightsReport:
    """Copy the weights in `folder` into `model`, matched by name; random state stays as it is.

    A head for another number of classes, or no head at all, leaves the model's head as it is. Tables of positions may
    be longer than the model's, and vocabularies may differ by their padding. Raises TrainerError, with the model
    unchanged, where anything else is missing, unexpected or of another shape, and where no safetensors file is.
    """
    network, prefix = network_of(model)
    files = _files(folder)
    if hasattr(network, "base_model_prefix"):
        base = f"{network.base_model_prefix}."
        report = _copy(network, _of_hugging_face(network, folder), folder, lambda name: _beside(base, name))
    else:
        report = _copy(network, _Stored(_read(files)), folder, lambda name: name.partition(".")[0] in _HEADS)
    outside = tuple(name for name in model.state_dict() if not name.startswith(prefix))
    return WeightsReport(
        tuple(prefix + name for name in report.loaded),
        tuple(prefix + name for name in report.resized),
        (*(prefix + name for name in report.fresh), *outside),
        report.unused,
    )


def _beside(base: str, name: str) -> bool:
    """Whether a Hugging Face model has this tensor on top of its base network; poolers serve heads only."""
    return not name.startswith(base) or name.startswith(f"{base}pooler.")


def network_of(model: nn.Module) -> tuple[nn.Module, str]:
    """The network that files know, and the prefix of its names in the model."""
    prefix = ""
    if isinstance(model, Embedder):
        model, prefix = model.backbone, "backbone."
    if isinstance(model, Logits):
        model, prefix = model.inner, f"{prefix}inner."
    return model, prefix


def _files(folder: Path) -> list[Path]:
    if (folder / _ONE_FILE).is_file():
        return [folder / _ONE_FILE]
    index = folder / _INDEX
    if not index.is_file():
        raise TrainerError(f"weights: {folder} has neither {_ONE_FILE} nor {_INDEX}; no other format is read")
    try:
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError):
        raise TrainerError(f"weights: {index} is no index of safetensors files; copy the folder again") from None
    files = [folder / str(name) for name in sorted(names)]
    for file in files:
        if file.parent != folder or file.suffix != ".safetensors" or not file.is_file():
            raise TrainerError(f"weights: {index} names {file.name}, which is no safetensors file in {folder}")
    return files


def _read(files: list[Path]) -> dict[str, Tensor]:
    safetensors = imported("safetensors.torch")
    tensors: dict[str, Tensor] = {}
    for file in files:
        try:
            tensors |= safetensors.load_file(file)
        except (imported("safetensors").SafetensorError, OSError) as error:
            raise TrainerError(f"weights: {file} cannot be read: {error}") from None
    return tensors


def _of_hugging_face(network: Any, folder: Path) -> _Stored:
    """Read with transformers itself, which knows the names that older files use."""
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
    theirs, ours = getattr(config, "vocab_size", None), getattr(network.config, "vocab_size", None)
    vocabularies = (theirs, ours) if isinstance(theirs, int) and isinstance(ours, int) else None
    return _Stored(tensors, tuple(sorted(info["unexpected_keys"])), vocabularies)


def _copy(network: nn.Module, stored: _Stored, folder: Path, in_head: Callable[[str], bool]) -> WeightsReport:
    ours = network.state_dict()
    surplus = [*stored.unknown, *(name for name in stored.tensors if name not in ours)]
    problems = [f"{name} is not in the model" for name in surplus if not in_head(name)]
    same, resized, fresh = [], [], []
    for name, tensor in ours.items():
        theirs = stored.tensors.get(name)
        if theirs is not None and theirs.shape == tensor.shape:
            same.append(name)
        elif theirs is not None and _rows_fit(name, theirs, tensor, stored.vocabularies):
            resized.append(name)
        elif in_head(name) and not (theirs is not None and _is_vocabulary(theirs, tensor, stored.vocabularies)):
            fresh.append(name)
        elif theirs is None:
            problems.append(f"{name} is missing")
        else:
            problems.append(f"{name} is {_shape(theirs)}, the model's {_shape(tensor)}")
    if problems:
        raise TrainerError(f"weights: {folder} does not fit the model: {_first(problems)}")
    with torch.no_grad():
        for name in same:
            ours[name].copy_(stored.tensors[name])
        for name in resized:
            rows = min(len(ours[name]), len(stored.tensors[name]))
            ours[name][:rows].copy_(stored.tensors[name][:rows])
    return WeightsReport(tuple(same), tuple(resized), tuple(fresh), tuple(surplus))


def _is_vocabulary(theirs: Tensor, ours: Tensor, vocabularies: tuple[int, int] | None) -> bool:
    """Whether the first dimension of both is tokens."""
    return theirs.shape[1:] == ours.shape[1:] and (theirs.shape[:1] + ours.shape[:1]) == vocabularies


def _rows_fit(name: str, theirs: Tensor, ours: Tensor, vocabularies: tuple[int, int] | None) -> bool:
    """Whether the rows that both have mean the same."""
    if _is_vocabulary(theirs, ours, vocabularies):
        return abs(len(theirs) - len(ours)) < _PADDING
    longer = theirs.dim() > 0 and theirs.shape[1:] == ours.shape[1:] and len(theirs) > len(ours)
    return longer and any(word in name for word in _POSITIONS)


def _shape(tensor: Tensor) -> str:
    return "x".join(str(size) for size in tensor.shape)


def _first(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
