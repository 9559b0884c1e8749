"""Sources whose files are read in other threads, because their file system may not answer, a search for them may be
long, or another run may write them."""

from __future__ import annotations

import time
from collections.abc import Callable

from gputui.metrics import background_reads
from gputui.metrics.background_reads import ReadContext, ReadResult, begin_read
from gputui.metrics.batch import BATCH_BYTES, MIN_BATCH_BYTES, Batch, MetricsNote
from gputui.metrics.contests import Contest, Contests
from gputui.metrics.open_sources import OpenSource, OpenSources
from gputui.metrics.walk import MOST_ENTRIES, has_wildcards
from gputui.store.events import EventKind

# A script may be seen writing its file only some time after it began to.
UNATTRIBUTED_SECONDS = 10.0


class BackgroundSources:
    """Decides which sources are read in the background, begins their reads and takes the results. ``note`` reports a
    remark about a run's files."""

    def __init__(
        self,
        read_context: ReadContext,
        sources: OpenSources,
        contests: Contests,
        note: Callable[[str, MetricsNote], None],
    ) -> None:
        self.read_context = read_context
        self.home_device = read_context.home.stat().st_dev
        self._sources = sources
        self._contests = contests
        self._note = note

    def must_read(self, run_id: str, pattern: str, device: int | None = None) -> bool:
        """Whether a path or glob must not be touched in the caller's thread. A plain path in the run's folder is on the
        file system of the home until a link there proves to lead to another ``device``."""
        if has_wildcards(pattern):
            return True
        if device is None:
            return not pattern.startswith(f"{self.read_context.run_dir(run_id)}/")
        return device != self.home_device

    def includes(self, source: OpenSource) -> bool:
        """Whether a source is read in the background from now on."""
        if source.read is not None:
            return True
        must = source.pattern is not None and (
            self.must_read(source.run_id, source.pattern, source.device) or self._contests.of(source) is not None
        )
        if must != source.in_background:
            # A reader for the caller's thread shares its connection.
            source.close()
            source.in_background = must
        return must

    def take(self, source: OpenSource, budget_bytes: int, ended: bool) -> Batch | None:
        """The batch of a source's finished read, or None; begins the next read if that is due. Raises OSError."""
        read = source.read
        if read is None:
            self._begin(source, budget_bytes, ended)
            return None
        if read.ended and not ended:
            # It is for the caller that reads the rest of the attempt.
            return None
        if not read.job.is_over:
            self._note_unanswered(source)
            return None
        source.read, source.awaits_since = None, None
        source.next_read_at = time.monotonic() + background_reads.QUIET_INTERVAL_SECONDS
        result: ReadResult = read.job.result()
        contest = self._contests.of(source)
        if read.rivals != ([] if contest is None else contest.rival_attempts):
            # What was read may be the file of a run that has begun since.
            source.close()
            self._begin(source, budget_bytes, ended)
            return None
        source.device = result.device
        self._note_result(source, result, contest)
        if result.batch is None and ended and not read.ended:
            self._begin(source, budget_bytes, ended)
        return result.batch

    def read_on(self, source: OpenSource, batch: Batch, ended: bool) -> None:
        """Begin the next read if it is due, after the batch was committed: only then may the reader go on behind it."""
        interval = 0.0 if batch.more else background_reads.ACTIVE_INTERVAL_SECONDS
        source.next_read_at = time.monotonic() + interval
        self._begin(source, BATCH_BYTES, ended)

    def _begin(self, source: OpenSource, budget_bytes: int, ended: bool) -> None:
        """Begin a read if it is due, and if the device of the file answers."""
        now = time.monotonic()
        if now < source.next_read_at and not ended:
            return
        source.awaits_since = now if source.awaits_since is None else source.awaits_since
        slow = [other for other in self._sources.all() if other.read is not None and other.read.is_slow]
        is_stuck = source.device is not None and any(other.device == source.device for other in slow)
        if is_stuck or len(slow) >= background_reads.MOST_SLOW:
            self._note_unanswered(source)
            return
        contest = self._contests.of(source)
        source.read = begin_read(
            self.read_context,
            f"reading {source.pattern}",
            source.reader,
            source.state,
            source.boundaries,
            budget_bytes=max(MIN_BATCH_BYTES, budget_bytes),
            ended=ended,
            custody=self._contests.custody(source),
            rivals=[] if contest is None else contest.rival_attempts,
        )

    def _note_result(self, source: OpenSource, result: ReadResult, contest: Contest | None) -> None:
        if result.is_cut:
            text = f"the search for {source.pattern} ends after {MOST_ENTRIES} files and folders; name its folders"
            self._note_once(source, "metrics_search_cut", str(source.pattern), text)
        if result.doubtful is None or contest is None:
            source.unattributed_since = None
            return
        now = time.monotonic()
        source.unattributed_since = now if source.unattributed_since is None else source.unattributed_since
        if now - source.unattributed_since >= UNATTRIBUTED_SECONDS:
            others = ", ".join(sorted({party.run_id for _, party in contest.rivals}))
            text = (
                f"{result.doubtful} is not read: {others} may write it too, and gputui cannot see whose it is; "
                "let each run write below {run_dir}"
            )
            self._note_once(source, "metrics_doubtful", result.doubtful, text)

    def _note_unanswered(self, source: OpenSource) -> None:
        if source.is_unanswered():
            text = f"{source.pattern} does not answer; its metrics are read once it does"
            self._note_once(source, "metrics_unanswered", str(source.pattern), text)

    def _note_once(self, source: OpenSource, kind: EventKind, key: str, text: str) -> None:
        if (kind, key) not in source.reported:
            source.reported.add((kind, key))
            self._note(source.run_id, MetricsNote(kind, key, text))
