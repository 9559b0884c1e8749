"""Checkpoints: when a state is saved, how it is written atomically, and which one a run resumes from.

The session's state comes in (tensors on any device, also DTensors); files with a SHA-256 go out. `checkpointer` decides
and has the thread, in which `writer` writes; `state` copies live tensors and splits them by rank; `files` has names,
hashes and atomic writing; `streams` writes and reads content; `rotation` chooses and deletes. Read `checkpointer` and
then `writer` first.
"""

from trainer.checkpoints.checkpointer import Checkpointer, Need, still_writing
from trainer.checkpoints.files import State, require_writable
from trainer.checkpoints.rotation import ResumeChoice, check_fits, choose, existing, load
from trainer.checkpoints.state import (
    Parts,
    parts_on_host,
    random_state,
    restore_random_state,
    seed_everything,
    shared_state,
)
from trainer.checkpoints.streams import sign_of_life
from trainer.checkpoints.writer import Outcome

__all__ = [
    "Checkpointer",
    "Need",
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
    "seed_everything",
    "shared_state",
    "sign_of_life",
    "still_writing",
]
