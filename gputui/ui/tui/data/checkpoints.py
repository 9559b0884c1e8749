"""A thread that lists a run's checkpoints and checks the newest that the run wrote. The folder may be on a slow file
system, and a check reads the whole file: neither may delay a snapshot."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from gputui.core.text import clean
from gputui.ui.views.snapshot import Checkpoint, CheckpointList

if TYPE_CHECKING:
    from gputui.runs.checkpoint_files import FoundCheckpoint

AFTER_ALL = 1 << 62
"""The order of a file that the ledger does not have yet."""

LIST_SECONDS = 5.0
MOST_LISTED = 50

CHECKED_UNASKED_BYTES = 256 * 1024 * 1024
"""Larger checkpoints are checked only on request: the training needs the disk too."""


class LedgerFact(Struct, frozen=True):
    """The ledger's entry of a checkpoint; ``refused`` says why the run will not resume from it, ``is_contested``
    whether that is because another run may have written it; ``order`` is its place in the order of all."""

    step: int | None
    attempt: int | None
    refused: str
    order: int = 0
    is_contested: bool = False


class CheckpointQuery(NamedTuple):
    """A request for a list of checkpoints. ``to_check`` names a checkpoint to check whatever its
    size; ``facts`` are those of the ledger, by path."""

    folder: Path
    pattern: str
    to_check: str | None = None
    facts: Mapping[str, LedgerFact] = {}


class CheckpointReader:
    """Follows one run's checkpoints. `read` never waits."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._query: CheckpointQuery | None = None
        self._listed_at = float("-inf")
        self._found: tuple[Path | None, CheckpointList] = (None, CheckpointList())
        self._checked: dict[FoundCheckpoint, tuple[bool | None, str]] = {}
        self._thread: threading.Thread | None = None

    def read(self, query: CheckpointQuery) -> CheckpointList:
        """The known checkpoints, newest first."""
        now = self._clock()
        is_busy = self._thread is not None and self._thread.is_alive()
        if not is_busy and (query != self._query or now - self._listed_at >= LIST_SECONDS):
            self._query = query
            self._listed_at = now
            self._thread = threading.Thread(target=self._look, args=(query,), name="checkpoints", daemon=True)
            self._thread.start()
        folder, newest = self._found
        if folder == query.folder:
            return newest
        return CheckpointList()

    def wait(self, seconds: float) -> None:
        if self._thread is not None:
            self._thread.join(seconds)

    # --- the thread

    def _look(self, query: CheckpointQuery) -> None:
        # Imported on first use: the archive and hash libraries would slow the start.
        from gputui.runs.checkpoint_files import list_checkpoints, measured
        from gputui.runs.checkpoint_formats import validate
        from gputui.runs.learned_checkpoints import LEARNED

        files: list[FoundCheckpoint] = []
        if query.pattern == LEARNED:
            files = [file for path in query.facts if (file := measured(Path(path))) is not None]
        else:
            with suppress(OSError):
                files = list_checkpoints(query.folder, query.pattern)
        orders = {path: fact.order for path, fact in query.facts.items()}
        files.sort(key=lambda file: orders.get(file.path, AFTER_ALL), reverse=True)
        self._show(query, files)
        written = {path for path, fact in query.facts.items() if fact.attempt is not None}
        newest = next((file for file in files if file.path in written), None)
        for file in files[:MOST_LISTED]:
            is_small = file.size_bytes is not None and file.size_bytes <= CHECKED_UNASKED_BYTES
            is_requested = Path(file.path).name == query.to_check
            if (is_requested or (file is newest and is_small)) and file not in self._checked:
                info = validate(Path(file.path))
                is_valid = None if info.is_unreadable else info.valid
                self._checked[file] = (is_valid, clean(info.why))
                self._show(query, files)

    def _show(self, query: CheckpointQuery, files: list[FoundCheckpoint]) -> None:
        from gputui.runs.checkpoint_names import step_in_name

        listed = []
        for file in files[:MOST_LISTED]:
            path = Path(file.path)
            checked = self._checked.get(file, (None, ""))
            step = step_in_name(path, query.folder)
            checkpoint = Checkpoint(clean(path.name), step, file.size_bytes, file.modified_ns / 1e9, *checked)
            if (fact := query.facts.get(file.path)) is not None:
                checkpoint = checkpoint._replace(
                    step=fact.step, attempt=fact.attempt, refused=clean(fact.refused), is_contested=fact.is_contested
                )
            listed.append(checkpoint)
        # A single assignment, because the feed's thread reads it at any time.
        self._found = (query.folder, CheckpointList(tuple(listed), len(files), is_known=True))
