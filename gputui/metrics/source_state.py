"""How far a source of metrics has been read."""

from __future__ import annotations

from msgspec import Struct

from gputui.store.metrics.stored_lines import FilePosition


class SourceState(Struct, frozen=True):
    """The read position of a source: the committed columns of ``metric_sources``.

    Attributes:
        inode: That of the file, None before the first read.
        generation: Counts the files, and the versions of a file, that were read.
        byte_offset: The position in this version; in entries of a Hugging Face history.
        skipping: It is within an over-long line.
        fingerprint: That of the bytes before it, see `gputui.metrics.files`; None if nothing was read.
        first_generation: Generations before it are other files.
    """

    inode: int | None = None
    generation: int = 0
    byte_offset: int = 0
    skipping: bool = False
    fingerprint: str | None = None
    first_generation: int = 0

    @property
    def position(self) -> FilePosition:
        return self.generation, self.byte_offset

    @property
    def read_part(self) -> tuple[int, str | None]:
        """The length and the fingerprint of what was read."""
        return self.byte_offset, self.fingerprint
