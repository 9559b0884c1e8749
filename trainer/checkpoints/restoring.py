"""Reading a checkpoint back, and whether it suits the run that wants it."""

from __future__ import annotations

from pathlib import Path

from trainer.checkpoints import files, sharded
from trainer.config import Settings
from trainer.config.problems import flag
from trainer.config.schema import SHAPE_SETTINGS
from trainer.errors import CheckpointError


def load(path: Path) -> files.State:
    """The content of a verified checkpoint, on the CPU, its tensors whole and read from the disk when they are used.

    Those of a sharded checkpoint are in mappings that put together what is asked for. Raises CheckpointError.
    """
    state = files.read(path)
    return sharded.whole_state(state, path) if "shards" in state else state


def check_fits(state: files.State, settings: Settings, path: Path) -> None:
    """Raises CheckpointError where a checkpoint was made with other shapes than the settings ask for.

    Phases, the way of working in parallel and the number of ranks may differ.
    """
    made_with = state.get("config", {})
    wanted = settings.model_dump(mode="json")
    defaults = Settings.model_validate({"task": settings.task}).model_dump(mode="json")
    for name in SHAPE_SETTINGS:
        value = made_with.get(name, defaults[name])
        if value != wanted[name]:
            raise CheckpointError(
                f"checkpoint {path} was made with {flag(name)} {_shown(value)}, this run has {_shown(wanted[name])};"
                " use the same value, or --resume none"
            )


def _shown(value: object) -> str:
    return str(value) if value != "" else "''"
