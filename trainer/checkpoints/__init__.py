"""Checkpoints: `writer` saves them, `rotation` chooses and tidies, `restoring` reads; `names` says what lies where."""

from trainer.checkpoints.files import FORMAT, State, require_writable
from trainer.checkpoints.rotation import Choice, check_fits, choose, existing, load
from trainer.checkpoints.snapshot import random_state, restore_random_state
from trainer.checkpoints.writer import Checkpointer, Outcome

__all__ = [
    "FORMAT",
    "Checkpointer",
    "Choice",
    "Outcome",
    "State",
    "check_fits",
    "choose",
    "existing",
    "load",
    "random_state",
    "require_writable",
    "restore_random_state",
]
