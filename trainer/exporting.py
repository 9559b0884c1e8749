"""A run's weights as a model of `transformers`: describing it beside the checkpoints, loading and exporting it.

The description in ``CHECKPOINT_DIR/model/`` is the network's config.json and the tokenizer of the data, so that a
checkpoint can be used without the data and the settings of its run.
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

from trainer.checkpoints import choose, files, load
from trainer.errors import CheckpointError, SettingsError, TrainerError, one_line, show
from trainer.models.custom import library
from trainer.models.weights import network_of
from trainer.tokenizer import Tokenizer

# Which weights of a run: the newest checkpoint's, the averaged ones in it, or the best checkpoint's.
Weights = Literal["last", "ema", "best"]

_CONFIG = "config.json"
_WEIGHTS = "model.safetensors"


def description_of(checkpoint_dir: Path) -> Path:
    """The folder of the description that belongs to the checkpoints in a folder."""
    return checkpoint_dir / "model"


def require_exportable(model: nn.Module) -> None:
    """Raise SettingsError if transformers cannot rebuild the network from its description. Needs no memory."""
    network: Any = network_of(model)[0]
    kind = type(network).__name__
    if not _is_known(network):
        raise SettingsError(f"{kind} is not a transformers model; choose another one or drop --export")
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            rebuilt = type(network)(_configuration(network))
    except Exception as error:  # networks raise many types here
        reason = one_line(error)
        raise SettingsError(f"{kind} cannot be rebuilt: {reason}; choose another one or drop --export") from None
    ours, theirs = ({name: tensor.shape for name, tensor in one.state_dict().items()} for one in (network, rebuilt))
    if ours != theirs:
        raise SettingsError(f"{kind} has other weights than in transformers; choose another one or drop --export")


def describe(model: nn.Module, tokenizer: Path | None, checkpoint_dir: Path) -> None:
    """Write the description of a transformers model; of any other there is none.

    `tokenizer` is the folder of the data's tokenizer. Raises OSError and the errors of transformers.
    """
    network = network_of(model)[0]
    if not _is_known(network):
        return
    folder = description_of(checkpoint_dir)
    folder.mkdir(parents=True, exist_ok=True)
    config = _configuration(network)
    if tokenizer is not None:
        loaded = Tokenizer(tokenizer)
        loaded.copy_to(folder)
        config.bos_token_id, config.eos_token_id, config.pad_token_id = loaded.bos, loaded.eos, loaded.pad
        generation = {"bos_token_id": loaded.bos, "eos_token_id": list(loaded.stops), "pad_token_id": loaded.pad}
        _write_json(folder / "generation_config.json", generation)
    _write_json(folder / _CONFIG, json.loads(config.to_json_string()))


def _is_known(network: nn.Module) -> bool:
    """Whether transformers has this very class, and not only one of the same name or one that it is derived from."""
    kind = type(network)
    return hasattr(network, "save_pretrained") and getattr(library(), kind.__name__, None) is kind


def _configuration(network: Any) -> Any:
    config = type(network.config).from_dict(network.config.to_dict())
    config.architectures = [type(network).__name__]
    config.use_cache = True
    return config


@dataclass(frozen=True)
class Restored:
    """A network of transformers with the weights of a checkpoint; `folder` has its description."""

    network: Any
    folder: Path
    checkpoint: Path
    step: int

    def tokenizer(self) -> Tokenizer:
        """Load the model's tokenizer. Raises TrainerError if there is none in the description."""
        if not (self.folder / "tokenizer.json").is_file():
            raise TrainerError(
                f"{self.checkpoint} was trained on tokens without their tokenizer; prepare them with"
                " python -m trainer prepare"
            )
        return Tokenizer(self.folder)


def restore(source: Path, weights: Weights = "last") -> Restored:
    """Load the network of `source`: a run's folder, its folder of checkpoints, or one checkpoint.

    Of a contrastive model that is the backbone, without the projection. Raises CheckpointError if there is no valid
    checkpoint with such weights, and TrainerError if transformers cannot build the model.
    """
    path = _find_checkpoint(source, weights)
    candidates = (description_of(folder) for folder in (path.parent, path.parent.parent))  # epochs lie one deeper
    folder = next((candidate for candidate in candidates if (candidate / _CONFIG).is_file()), None)
    if folder is None:
        raise TrainerError(f"{path} has no model/{_CONFIG} beside it: only transformers models can be used")
    state = load(path)
    if weights == "ema" and not state["ema"]:
        raise CheckpointError(f"{path} has no averaged weights; train with --ema 0.999, or use --weights last")
    averaged: Mapping[str, Tensor] = state["ema"] if weights != "last" else {}
    hf = library()
    try:
        config = hf.AutoConfig.from_pretrained(folder, local_files_only=True)
        network = getattr(hf, config.architectures[0])(config)
    except Exception as error:  # networks raise many types here
        raise TrainerError(f"{folder} describes no model: {one_line(error)}") from None
    stored: Mapping[str, Tensor] = state["model"]
    prefix = next((prefix for prefix in ("backbone.inner.", "inner.") if any(n.startswith(prefix) for n in stored)), "")
    try:
        network.load_state_dict({n.removeprefix(prefix): t for n, t in stored.items() if n.startswith(prefix)})
    except RuntimeError:
        raise TrainerError(f"{path} is not of the model that {folder} describes") from None
    with torch.no_grad():
        # By parameter: tied ones have two names and one average.
        for name, parameter in network.named_parameters():
            if f"{prefix}{name}" in averaged:
                parameter.copy_(averaged[f"{prefix}{name}"])
    network.eval()
    return Restored(network, folder, path, state["step"])


def export(source: Path, out: Path, weights: Weights = "last") -> Restored:
    """Write a folder that transformers loads: safetensors, config.json and the tokenizer. Returns the exported network.

    Replaces an earlier export at `out` atomically. Raises SettingsError if something else is there, TrainerError if it
    cannot be written, and the errors of `restore`.
    """
    require_replaceable(out)
    restored = restore(source, weights)
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


def require_replaceable(out: Path) -> None:
    """Raise SettingsError if an export to `out` would replace anything but an earlier export."""
    if out.exists() and not (out.is_dir() and (not any(out.iterdir()) or (out / _CONFIG).is_file())):
        raise SettingsError(f"{out} is there and is no earlier export; move it away, or name another folder")


def _find_checkpoint(source: Path, weights: Weights) -> Path:
    """The verified checkpoint of `source` with such weights. Raises CheckpointError."""
    if source.is_file():
        files.verify(source)
        return source
    folder = source / "checkpoints" if (source / "checkpoints").is_dir() else source
    if weights == "best":
        path = files.best_file(folder)
        if path.is_file():
            files.verify(path)
            return path
        raise CheckpointError(f"{folder} has no best checkpoint; train with --best-checkpoint, or use --weights last")
    choice = choose("auto", folder)
    for reason in choice.rejected:
        show(f"trainer: {reason}; trying the one before", error=True)
    if choice.path is None:
        raise CheckpointError(f"{source} has no valid checkpoint; give a run's folder or a checkpoint")
    return choice.path


@contextlib.contextmanager
def _replaced(out: Path) -> Iterator[Path]:
    """A new folder, which replaces `out` when the block ends without an error."""
    fresh, former = (out.with_name(f".{out.name}.{kind}") for kind in ("new", "former"))
    for leftover in (fresh, former):  # of a killed process
        shutil.rmtree(leftover, ignore_errors=True)
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


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    temporary.replace(path)
