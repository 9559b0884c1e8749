"""A run's weights as a model of `transformers`: what lies beside checkpoints for it, reading it back, and exporting it.

``CHECKPOINT_DIR/model/`` has the network's config.json and the tokenizer of the data, so that a checkpoint can be used
without the data and the settings it came from.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from trainer.checkpoints import choose, files, hashes, load, names
from trainer.errors import CheckpointError, SettingsError, TrainerError, show
from trainer.models.huggingface import library
from trainer.models.weights import network_of
from trainer.tokenizer import Tokenizer

# Which weights of a run: those of the newest checkpoint, the averaged ones in it, or those that measured best.
Weights = Literal["last", "ema", "best"]

_CONFIG = "config.json"
_WEIGHTS = "model.safetensors"


def description_of(checkpoint_dir: Path) -> Path:
    """Where the description lies that belongs to the checkpoints in a folder."""
    return checkpoint_dir / "model"


def can_be_exported(model: nn.Module) -> bool:
    """Whether this is a model of transformers."""
    return hasattr(network_of(model)[0], "save_pretrained")


def describe(model: nn.Module, tokenizer: Path | None, checkpoint_dir: Path) -> None:
    """Writes what else than weights a model of transformers consists of; nothing for other models.

    `tokenizer` is the folder of the one that the data was made with. Raises OSError.
    """
    network: Any = network_of(model)[0]
    if not can_be_exported(model):
        return
    folder = description_of(checkpoint_dir)
    folder.mkdir(parents=True, exist_ok=True)
    config = type(network.config).from_dict(network.config.to_dict())
    config.architectures = [type(network).__name__]
    config.use_cache = True
    if tokenizer is not None:
        known = Tokenizer(tokenizer)
        known.copy_to(folder)
        config.bos_token_id, config.eos_token_id, config.pad_token_id = known.bos, known.eos, known.pad
        ends = {"bos_token_id": known.bos, "eos_token_id": list(known.stops), "pad_token_id": known.pad}
        _write(folder / "generation_config.json", ends)
    _write(folder / _CONFIG, json.loads(config.to_json_string()))


@dataclass(frozen=True)
class Restored:
    """A network of transformers with the weights of a checkpoint; `folder` is its description."""

    network: Any
    folder: Path
    checkpoint: Path
    step: int

    def tokenizer(self) -> Tokenizer:
        """Raises TrainerError if the model was not trained on tokens of a known tokenizer."""
        if not (self.folder / "tokenizer.json").is_file():
            raise TrainerError(
                f"{self.checkpoint} was trained on tokens without their tokenizer; prepare them with"
                " python -m trainer prepare"
            )
        return Tokenizer(self.folder)


def restore(place: Path, weights: Weights = "last") -> Restored:
    """The network of a run's folder, of its folder of checkpoints, or of one checkpoint.

    Raises CheckpointError if there is no valid checkpoint, or none with such weights, and TrainerError where the
    model is none of transformers.
    """
    path = _checkpoint(place, weights)
    near = (description_of(folder) for folder in (path.parent, path.parent.parent))
    folder = next((one for one in near if (one / _CONFIG).is_file()), None)
    if folder is None:
        raise TrainerError(f"{path} has no model/{_CONFIG} beside it: only models of transformers can be used")
    state = load(path)
    if weights == "ema" and not state["ema"]:
        raise CheckpointError(f"{path} has no averaged weights; train with --ema 0.999, or use --weights last")
    averaged: Mapping[str, Tensor] = state["ema"] if weights != "last" else {}
    hf = library()
    try:
        config = hf.AutoConfig.from_pretrained(folder, local_files_only=True)
        network = getattr(hf, config.architectures[0])(config)
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise TrainerError(f"{folder} describes no model: {' '.join(str(error).split())}") from None
    prefix = "inner."
    network.load_state_dict({name.removeprefix(prefix): tensor for name, tensor in state["model"].items()})
    with torch.no_grad():
        # By parameter: one that has two names has one average.
        for name, parameter in network.named_parameters():
            if f"{prefix}{name}" in averaged:
                parameter.copy_(averaged[f"{prefix}{name}"])
    network.eval()
    return Restored(network, folder, path, state["step"])


def export(place: Path, out: Path, weights: Weights = "last") -> Restored:
    """Writes a folder that transformers loads: safetensors, config.json and the tokenizer. Returns what is in it.

    An earlier export at `out` is replaced, whole. Raises SettingsError if something else is there, and otherwise
    like `restore`.
    """
    if out.exists() and not (out.is_dir() and (not any(out.iterdir()) or (out / _CONFIG).is_file())):
        raise SettingsError(f"{out} is there and is no earlier export; name another folder with --out")
    restored = restore(place, weights)
    library().utils.logging.disable_progress_bar()
    try:
        with _replaced(out) as folder:
            restored.network.save_pretrained(folder)
            for path in restored.folder.iterdir():
                if path.name != _CONFIG:
                    shutil.copyfile(path, folder / path.name)
    except OSError as error:
        raise TrainerError(f"{out} cannot be written: {error.strerror or error}") from None
    return restored


def answer(restored: Restored, prompt: str, *, tokens: int, temperature: float, plain: bool) -> str:
    """What a model answers to a prompt, or with `plain` how it continues it; at most `tokens` tokens.

    The most likely token each time, or drawn by torch's random state with a temperature above 0. Raises SettingsError
    where the prompt leaves no room.
    """
    tokenizer = restored.tokenizer()
    ids = tokenizer.beginning(prompt) if plain else tokenizer.prompt([{"role": "user", "content": prompt}])
    room = getattr(restored.network.config, "max_position_embeddings", None) or len(ids) + tokens
    if len(ids) >= room:
        raise SettingsError(f"--prompt has {len(ids)} tokens, and the model sees {room} at once: shorten it")
    drawn = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {"do_sample": False}
    with torch.no_grad():
        output = restored.network.generate(
            torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            max_new_tokens=min(tokens, room - len(ids)),
            eos_token_id=list(tokenizer.stops),
            pad_token_id=tokenizer.pad,
            **drawn,
        )
    return tokenizer.text(output[0, len(ids) :].tolist())


def _checkpoint(place: Path, weights: Weights) -> Path:
    if place.is_file():
        hashes.verify(place)
        return place
    folder = place / "checkpoints" if (place / "checkpoints").is_dir() else place
    if weights == "best":
        for path in (names.best_file(folder), names.best_file(folder, gzip=True)):
            if path.is_file():
                hashes.verify(path)
                return path
        raise CheckpointError(f"{folder} has no best checkpoint; train with --best-checkpoint, or use --weights last")
    choice = choose("auto", folder)
    for reason in choice.rejected:
        show(f"trainer: {reason}; trying the one before", error=True)
    if choice.path is None:
        raise CheckpointError(f"{place} has no valid checkpoint; give a run's folder or a checkpoint")
    return choice.path


@contextlib.contextmanager
def _replaced(out: Path) -> Iterator[Path]:
    """A new folder that takes the place of `out` once it is written."""
    fresh, former = (out.with_name(f".{out.name}.{kind}") for kind in ("new", "former"))
    for left in (fresh, former):
        shutil.rmtree(left, ignore_errors=True)
    fresh.mkdir(parents=True)
    yield fresh
    for path in fresh.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
    if out.exists():
        out.replace(former)
    fresh.replace(out)
    files.sync_folder(out.parent)
    shutil.rmtree(former, ignore_errors=True)


def _write(path: Path, content: Mapping[str, Any]) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    temporary.replace(path)
