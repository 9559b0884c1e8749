"""Checkpoints: when a state is saved, how it is written atomically, and which one a run resumes from.

The session's state comes in (tensors on any device, also DTensors); files with a SHA-256 go out. `writer` decides, and
runs at most one `job` at a time; `snapshot` copies live tensors; `streams`, `files` and `durable` write; `sharded`
splits by rank; `rotation` chooses, loads and deletes; `names` has the paths. Read `writer` first.
"""

from trainer.checkpoints.files import FORMAT, State, require_writable
from trainer.checkpoints.rotation import ResumeChoice, check_fits, choose, existing, load
from trainer.checkpoints.sharded import Parts, parts_on_host, shared_state
from trainer.checkpoints.snapshot import random_state, restore_random_state
from trainer.checkpoints.writer import Checkpointer, Outcome

__all__ = [
    "FORMAT",
    "Checkpointer",
    "Outcome",
    "Parts",
    "ResumeChoice",
    "State",
    "check_fits",
    "choose",
    "existing",
    "load",
    "parts_on_host",
    "random_state",
    "require_writable",
    "restore_random_state",
    "shared_state",
]
