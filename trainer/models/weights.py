"""Fine-tuning: taking over weights from a folder as Hugging Face lays it out, from safetensors files only."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from trainer.errors import TrainerError, one_line
from trainer.models.custom import load_transformers
from trainer.models.wrappers import Embedder, Logits

# Parts of own networks that depend on the number of classes.
_HEADS = ("head", "classifier", "fc")

# In the names of tables of positions, whose first rows mean the same in a shorter table.
_POSITIONS = ("wpe", "position")

# Vocabularies are padded to multiples of this: a smaller difference is padding and no other vocabulary.
_PADDING = 64


class _Match(NamedTuple):
    """How stored tensors and a network's go together.

    Attributes:
        copies: pairs of a network's tensor, or its first rows, and what is to be copied into it.
        fresh: names in the network of what stays as initialised.
        problems: words for what does not fit.
    """

    copies: list[tuple[Tensor, Tensor]]
    fresh: list[str]
    problems: list[str]


def load_weights(model: nn.Module, folder: Path) -> tuple[str, ...]:
    """Copy the weights in `folder` into `model`, matched by name; random state stays as it is.

    Returns the names of what stays as initialised: a head, where the folder has another one or none, and what is around
    the network. Tables of positions may be longer than the model's, and vocabularies may differ by their padding.
    Raises TrainerError, with the model unchanged, where anything else is missing, unexpected or of another shape.
    """
    network, prefix = network_of(model)
    try:
        if hasattr(network, "base_model_prefix"):
            match = _match_of_hugging_face(network, folder)
        else:
            match = _match(network, _read(folder))
    except Exception as error:  # the libraries raise many types for a damaged file
        raise TrainerError(f"weights: {folder} cannot be read: {one_line(error)}") from None
    if match.problems:
        more = f" and {len(match.problems) - 3} more" if len(match.problems) > 3 else ""
        raise TrainerError(f"weights: {folder} does not fit the model: {', '.join(match.problems[:3])}{more}")
    with torch.no_grad():
        for target, source in match.copies:
            target.copy_(source)
    around = [name for name in model.state_dict() if not name.startswith(prefix)]
    return (*around, *(prefix + name for name in match.fresh))


def _match(
    network: nn.Module,
    stored: Mapping[str, Tensor],
    unknown: Sequence[str] = (),
    vocabularies: tuple[int | None, int | None] | None = None,
) -> _Match:
    """Match stored tensors with a network's by name. `unknown` are names that stored files have besides.

    `vocabularies` are the sizes of theirs and ours.
    """
    match = _Match([], [], [])
    ours = network.state_dict()
    in_head = _head_of(network)
    surplus = [*unknown, *(name for name in stored if name not in ours)]
    match.problems.extend(f"{name} is not in the model" for name in surplus if not in_head(name))
    for name, tensor in ours.items():
        theirs = stored.get(name)
        if theirs is None:
            if in_head(name):
                match.fresh.append(name)
            else:
                match.problems.append(f"{name} is missing")
            continue
        rows = 0
        if theirs.dim() == tensor.dim() > 0:
            rows = min(len(theirs), len(tensor))
        same_rows = rows > 0 and theirs.shape[1:] == tensor.shape[1:]
        is_vocabulary = same_rows and (len(theirs), len(tensor)) == vocabularies
        is_padded = is_vocabulary and abs(len(theirs) - len(tensor)) < _PADDING
        is_longer = same_rows and len(theirs) > len(tensor) and any(word in name for word in _POSITIONS)
        if theirs.shape == tensor.shape:
            match.copies.append((tensor, theirs))
        elif is_padded or is_longer:
            match.copies.append((tensor[:rows], theirs[:rows]))
        elif in_head(name) and not is_vocabulary:
            match.fresh.append(name)
        else:
            match.problems.append(f"{name} is {tuple(theirs.shape)}, the model's {tuple(tensor.shape)}")
    return match


def _head_of(network: Any) -> Callable[[str], bool]:
    """A test for names of tensors that depend on the classes, so that they may be absent from a folder or differ there.

    Where a network of transformers has no head, that is what a folder has besides.
    """
    if not hasattr(network, "base_model_prefix"):
        return lambda name: name.partition(".")[0] in _HEADS
    base = base_name(network)
    if base:  # poolers serve heads only
        return lambda name: not name.startswith(f"{base}.") or name.startswith(f"{base}.pooler.")
    ours = frozenset(network.state_dict())
    below = f"{network.base_model_prefix}."
    return lambda name: name.startswith("pooler.") or (name not in ours and not name.startswith(below))


def base_name(network: Any) -> str:
    """The name of the part of a network of transformers that is below its head; empty if it has none."""
    prefix: str = network.base_model_prefix
    if hasattr(network, prefix):
        return prefix
    return next((name for name, part in network.named_children() if hasattr(part, "base_model_prefix")), "")


def network_of(model: nn.Module) -> tuple[nn.Module, str]:
    """The network that files know, and the prefix of its names in the model."""
    prefix = ""
    if isinstance(model, Embedder):
        model = model.backbone
        prefix = "backbone."
    if isinstance(model, Logits):
        model = model.inner
        prefix = f"{prefix}inner."
    return model, prefix


def name_in_files(model: nn.Module, name: str) -> str:
    """The name that files and people know a parameter of the model by."""
    _, prefix = network_of(model)
    return name.removeprefix(prefix)


@dataclass(frozen=True)
class BaseWeights:
    """A folder of weights that checkpoints build on, and the SHA-256 of what is in its files."""

    folder: str
    sha256: str

    @classmethod
    def read(cls, folder: Path) -> BaseWeights:
        """Read all files of weights in the folder. Raises TrainerError."""
        try:
            digests = [_sha256(path) for path in _files(folder)]
        except (OSError, ValueError, KeyError) as error:
            raise TrainerError(f"weights: {folder} cannot be read: {one_line(error)}") from None
        return cls(str(folder.resolve()), hashlib.sha256(b"".join(digests)).hexdigest())


def _sha256(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def _files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return [folder / "model.safetensors"]
    names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    return [folder / name for name in sorted(names)]


def _read(folder: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    return {name: tensor for path in _files(folder) for name, tensor in load_file(path).items()}


def _match_of_hugging_face(network: Any, folder: Path) -> _Match:
    """Match a network with weights that transformers itself reads, because it knows the names that older files use."""
    load_transformers().utils.logging.disable_progress_bar()
    config = _stored_config(network, folder)
    vocabularies = getattr(config, "vocab_size", None), getattr(network.config, "vocab_size", None)
    with torch.random.fork_rng(devices=[]):
        with torch.device("meta"):
            outline = type(network)(config).state_dict()
        match = _match(network, outline, vocabularies=vocabularies)
        if match.problems:  # another size, before memory of that size is taken
            return match
        stored, info = type(network).from_pretrained(
            folder,
            config=config,
            dtype=torch.float32,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            local_files_only=True,
            use_safetensors=True,
        )
    # What transformers had to make up is as good as missing.
    made_up = set(info["missing_keys"]) | {name for name, *_ in info["mismatched_keys"]}
    tensors = {name: tensor for name, tensor in stored.state_dict().items() if name not in made_up}
    return _match(network, tensors, sorted(info["unexpected_keys"]), vocabularies)


def _stored_config(network: Any, folder: Path) -> Any:
    """The configuration of the weights in a folder. Raises ValueError if it is another kind of model's.

    transformers would read it as ours, with huge defaults for what it lacks.
    """
    config_class = type(network.config)
    if not (folder / "config.json").is_file():
        return network.config
    values, _ = config_class.get_config_dict(folder, local_files_only=True)
    # A model of text and images has a configuration for each.
    parts = [values, *(value for value in values.values() if isinstance(value, dict))]
    kinds = [part["model_type"] for part in parts if "model_type" in part]
    ours = network.config.model_type
    if kinds and ours not in kinds:
        raise ValueError(f"they are of a {kinds[0]} model, this one is {ours}; give its config.json to --model")
    return config_class.from_pretrained(folder, local_files_only=True)
