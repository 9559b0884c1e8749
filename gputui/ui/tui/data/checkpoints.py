"""A thread that lists a run's checkpoints and checks the newest one. The folder may be on a slow file system, and a
check reads the whole file: neither may delay a snapshot."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from gputui.core.text import clean
from gputui.ui.tui.data.snapshot import Checkpoint, CheckpointList

if TYPE_CHECKING:
    from gputui.runs.checkpoint_files import FoundCheckpoint

LIST_SECONDS = 5.0
MOST_LISTED = 50

CHECKED_UNASKED_BYTES = 256 * 1024 * 1024
"""Larger checkpoints are checked only on request: the training needs the disk too."""


class LedgerFact(Struct, frozen=True):
    """The ledger's entry of a checkpoint; ``refused`` says why the run will not resume from it, ``seen`` is its place
    in the order of all."""

    step: int | None
    attempt: int | None
    refused: str
    seen: int = 0


Facts = Mapping[str, LedgerFact]
"""By path."""


class _Wish(Struct, frozen=True):
    folder: Path
    pattern: str
    to_check: str | None
    facts: Facts = msgspec.field(default_factory=dict)


class CheckpointReader:
    """Follows one run's checkpoints. `read` never waits."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._wish: _Wish | None = None
        self._listed_at = float("-inf")
        self._found: tuple[Hashable, CheckpointList] = (None, CheckpointList())
        self._checked: dict[Hashable, tuple[bool, str]] = {}
        self._thread: threading.Thread | None = None

    def read(
        self, folder: Path, pattern: str, to_check: str | None = None, facts: Facts | None = None
    ) -> CheckpointList:
        """The known checkpoints, newest first. ``to_check`` names one to check whatever its size; ``facts`` are those
        of the ledger."""
        wish = _Wish(folder, pattern, to_check, facts or {})
        now = self._clock()
        is_busy = self._thread is not None and self._thread.is_alive()
        if not is_busy and (wish != self._wish or now - self._listed_at >= LIST_SECONDS):
            self._wish, self._listed_at = wish, now
            self._thread = threading.Thread(target=self._look, args=(wish,), name="checkpoints", daemon=True)
            self._thread.start()
        found_for, found = self._found
        return found if found_for == (folder, pattern) else CheckpointList()

    def wait(self, seconds: float) -> None:
        if self._thread is not None:
            self._thread.join(seconds)

    # --- the thread

    def _look(self, wish: _Wish) -> None:
        # Imported on first use: the archive and hash libraries would slow the start.
        from gputui.runs.checkpoint_files import list_checkpoints
        from gputui.runs.checkpoint_formats import validate

        try:
            lying = list_checkpoints(wish.folder, wish.pattern)
        except OSError:
            lying = []
        lying.sort(key=lambda one: facts.seen if (facts := wish.facts.get(one.path)) else 1 << 62, reverse=True)
        listed = [self._checkpoint(one, wish) for one in lying[:MOST_LISTED]]
        self._show(wish, listed, len(lying))
        for number, (one, found) in enumerate(zip(lying, listed, strict=False)):
            is_small = found.size_bytes is not None and found.size_bytes <= CHECKED_UNASKED_BYTES
            is_wanted = found.name == wish.to_check or (number == 0 and is_small)
            if is_wanted and found.is_valid is None:
                info = validate(Path(one.path))
                self._checked[one] = (info.valid, clean(info.why))
                listed[number] = self._checkpoint(one, wish)
                self._show(wish, listed, len(lying))

    def _checkpoint(self, one: FoundCheckpoint, wish: _Wish) -> Checkpoint:
        from gputui.runs.checkpoint_names import step_in_name

        path = Path(one.path)
        found = Checkpoint(
            clean(path.name), step_in_name(path, wish.folder), one.size_bytes, one.modified_ns / 1e9,
            *self._checked.get(one, (None, "")),
        )  # fmt: skip
        fact = wish.facts.get(one.path)
        if fact is None:
            return found
        return found._replace(step=fact.step, attempt=fact.attempt, refused=clean(fact.refused))

    def _show(self, wish: _Wish, listed: list[Checkpoint], count: int) -> None:
        # A single assignment, because the feed's thread reads it at any time.
        self._found = ((wish.folder, wish.pattern), CheckpointList(tuple(listed), count, is_known=True))
