"""Checkpoints: what is saved when, how it gets to the disk whole, and which one a run continues from.

In comes the session's state (tensors on any device, maybe DTensors), out come files that hold until their SHA-256 says
otherwise. `writer` decides and runs at most one `job` at a time; `snapshot` copies live tensors, `streams`, `files`
and `durable` write, `sharded` splits by rank, `rotation` chooses, loads and deletes, `names` says what lies where.
`writer` first.
"""

from trainer.checkpoints.files import FORMAT, State, require_writable
from trainer.checkpoints.rotation import ResumeChoice, check_fits, choose, existing, load
from trainer.checkpoints.snapshot import random_state, restore_random_state
from trainer.checkpoints.writer import Checkpointer, Outcome

__all__ = [
    "FORMAT",
    "Checkpointer",
    "Outcome",
    "ResumeChoice",
    "State",
    "check_fits",
    "choose",
    "existing",
    "load",
    "random_state",
    "require_writable",
    "restore_random_state",
]
