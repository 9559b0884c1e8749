"""The search for the files with metrics that one attempt begins to write."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path, PurePath
from typing import NamedTuple

import msgspec

from gputui.agent.lifecycle.run_files import read_executor_record
from gputui.metrics.files import fixed_part, state_at
from gputui.metrics.source_state import SourceState
from gputui.metrics.trackers import TRACKERS
from gputui.metrics.written_sources import FoundSource, may_be_source, recognised
from gputui.runs.processes import processes_of
from gputui.runs.submission import write_private
from gputui.runs.written_files import files_below, held_files

# How long an attempt waits for the list of the files before it, and how long that is good for.
LISTED_SECONDS = 10.0
# In an attempt's folder: the states of the files that were there before it, and the sources that it began to write. The
# first lies in the run's folder until the attempt has one.
BEFORE_FILE = "files_before.json"
SOURCES_FILE = "sources.json"


class NewSource(NamedTuple):
    """A source that an attempt has begun to write.

    ``begin`` is the state of its file before the attempt; None if the attempt made the file.
    """

    source: FoundSource
    begin: SourceState | None


@dataclass(slots=True)
class FileSearch:
    """Where an attempt may write metrics, and which files there may be its own.

    Attributes:
        workdir: looked through, beside the run's folder.
        state: gputui's own folder, which is left out.
        begun_at: when the attempt was created (UTC unix seconds): what changed later may be its own.
        event_folders: globs of further folders, of which event files alone count.
        learns: whether any source counts.
        copies: files and folders to which gputui itself writes the run's metrics.
    """

    run_dir: Path
    number: int
    workdir: Path
    state: Path
    begun_at: float
    event_folders: Sequence[str] = ()
    learns: bool = True
    copies: Sequence[Path] = ()

    @property
    def folder(self) -> Path:
        """The attempt's own folder."""
        return self.run_dir / "attempts" / str(self.number)

    def sizes(self, open_files: Collection[str]) -> Mapping[str, tuple[int, float]]:
        """Size (bytes) and last change (UTC unix seconds) of each file that may have metrics."""
        records = [self.run_dir / name for name in ("attempts", "incidents", "sinks")]
        paths = [path for path in open_files if not path.startswith(f"{self.state}/")]
        if self.learns:
            paths += [entry.path for entry in files_below(self.workdir, (self.state,))]
            paths += [entry.path for entry in files_below(self.run_dir, records)]
        for pattern in self.event_folders:
            paths += [entry.path for entry in files_below(fixed_part(pattern))]
        sizes = {}
        for path in paths:
            if any(PurePath(path).is_relative_to(copy) for copy in self.copies):
                continue
            if may_be_source(PurePath(path)) and (self.learns or self._is_event_file(PurePath(path))):
                with suppress(OSError):
                    status = Path(path).stat()
                    sizes[path] = (status.st_size, status.st_mtime)
        return sizes

    def _is_event_file(self, path: PurePath) -> bool:
        """Return whether a file is an event file in one of the folders or below."""
        is_below = any(fnmatchcase(str(folder), pattern) for folder in path.parents for pattern in self.event_folders)
        return is_below and fnmatchcase(path.name, TRACKERS["tensorboard"].pattern)

    def list_before(self) -> None:
        """List the files that are there before the attempt, in its run's folder, since it has none yet. Raises
        OSError."""
        sizes = {path: size for path, (size, _) in self.sizes(()).items()}
        listed = FilesBefore(self.number, self.begun_at, _source_states(sizes))
        write_private(self.run_dir / BEFORE_FILE, msgspec.to_builtins(listed))


@dataclass(slots=True)
class FileLooks:
    """Looks at an attempt's files, again and again, each time in one job.

    Attributes:
        looked_at: the sizes at which files were examined, as surely its own or not.
        before: the states of the files that were there before the attempt; None until they are read.
        new_sources: the sources that it has found; None until those of a former agent are read.
        disputed: files with metrics that it may have written, or one of its rivals.
    """

    search: FileSearch
    looked_at: dict[tuple[str, bool], int] = field(default_factory=dict)
    before: dict[str, SourceState] | None = None
    new_sources: list[NewSource] | None = None
    disputed: list[str] = field(default_factory=list)

    def look(self, rivals: Collection[str]) -> list[NewSource]:
        """Look for the files with metrics that the attempt has written. Raises OSError.

        Args:
            rivals: other live runs that have or had the same folders; with any, only the files count that the
                attempt's own processes hold open.

        Returns:
            All sources so far.
        """
        search = self.search
        open_files = held_files(process.pid for process in processes_of(search.run_dir, search.number))
        sizes = search.sizes(open_files)
        before = self._before(sizes)
        if self.new_sources is None:
            self.new_sources = stored_sources(search.folder)
        already = len(self.new_sources)
        changed_sizes = self._changed_sizes(sizes, before)
        written = frozenset(map(Path, changed_sizes))
        for path, size in changed_sizes.items():
            is_own = not rivals or path in open_files or path.startswith(f"{search.run_dir}/")
            if not self._is_to_examine(path, size, is_own=is_own):
                continue
            self.looked_at[path, is_own] = size
            with suppress(OSError):
                source = recognised(Path(path), written)
                if source is None or any(source.path == earlier.source.path for earlier in self.new_sources):
                    continue
                if is_own:
                    self.new_sources.append(NewSource(source, before.get(path)))
                else:
                    self.disputed.append(path)
        if len(self.new_sources) > already:
            write_private(search.folder / SOURCES_FILE, {"sources": msgspec.to_builtins(self.new_sources)})
        return [*self.new_sources]

    def _is_to_examine(self, path: str, size: int, *, is_own: bool) -> bool:
        """Return whether a file may tell more than when it was last examined."""
        is_known = path in self.disputed and not is_own
        return size > 0 and not is_known and size != self.looked_at.get((path, is_own))

    def _changed_sizes(
        self, sizes: Mapping[str, tuple[int, float]], before: Mapping[str, SourceState]
    ) -> dict[str, int]:
        """The sizes of the files that were written since the attempt began."""
        changed: dict[str, int] = {}
        for path, (size, modified_at) in sizes.items():
            state = before.get(path)
            if modified_at >= self.search.begun_at or (state is not None and state.byte_offset != size):
                changed[path] = size
        return changed

    def _before(self, sizes: Mapping[str, tuple[int, float]]) -> Mapping[str, SourceState]:
        """The states of the files before the attempt, none of an empty one; kept in its folder for the next agent.

        If nobody listed them before the attempt began, they are those of the files that did not change since.
        """
        if self.before is not None:
            return self.before
        search = self.search
        stored = FilesBefore.read(search.folder)
        listed = stored or FilesBefore.read(search.run_dir)
        if listed is None or not listed.is_for(search.number, search.begun_at):
            unchanged = {path: size for path, (size, at) in sizes.items() if at < search.begun_at}
            listed = FilesBefore(search.number, search.begun_at, _source_states(unchanged))
        if stored is None:
            write_private(search.folder / BEFORE_FILE, msgspec.to_builtins(listed))
        self.before = listed.files
        return self.before


def stored_sources(folder: Path) -> list[NewSource]:
    """The sources that an attempt's folder names."""
    record = read_executor_record(folder / SOURCES_FILE) or {}
    return msgspec.convert(record.get("sources", []), list[NewSource])


def _source_states(sizes: Mapping[str, int]) -> dict[str, SourceState]:
    """The states of files at their sizes, without those that are empty or cannot be read."""
    states = {}
    for path, size in sizes.items():
        with suppress(OSError):
            state = state_at(Path(path), size)
            if state is not None:
                states[path] = state
    return states


class FilesBefore(msgspec.Struct, frozen=True):
    """The files that were there ``at`` a time (UTC unix seconds) before an attempt, which is not created yet."""

    attempt: int
    at: float
    files: dict[str, SourceState]

    @classmethod
    def read(cls, folder: Path) -> FilesBefore | None:
        """The list in the folder of an attempt, or the newest of a run in its folder; None if there is none."""
        with suppress(OSError, msgspec.DecodeError):
            return msgspec.json.decode((folder / BEFORE_FILE).read_bytes(), type=cls)
        return None

    def is_for(self, attempt: int, now: float) -> bool:
        """Return whether it shows what is there before an attempt that is created at a time (UTC unix seconds)."""
        return self.attempt == attempt and now - self.at < LISTED_SECONDS
