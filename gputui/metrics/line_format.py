"""A format of lines: how their reader calls it, from the file's first line to its end.

`gputui.metrics.formats` has those for files and `gputui.metrics.learning` the one for any output;
`gputui.metrics.record_format` is the same for files of records.
"""

from __future__ import annotations

from typing import Any

from gputui.metrics.contract import Parsed, Rejected


class LineFormat:
    """A format of lines. Its hooks stand in the order in which a reader calls them.

    Attributes:
        breaks_at_return: A carriage return also ends a line, as progress bars print it.
        has_header: The first line of a file names its columns, so that `begin` must be called before `parse`.
        learns: It finds out by itself which lines have metrics, so that `has_news` may become true.
    """

    breaks_at_return = False
    has_header = False
    learns = False

    def begin(self, header: bytes, attempts_first: bytes = b"") -> None:
        """Begin or continue a file. Called only if it has a header.

        Args:
            header: The first line of the file.
            attempts_first: The first line of the attempt that is read, which may be a header of its own.
        """

    def parse(self, line: bytes) -> Parsed:
        """Parse a line without its newline; None if it is neither metrics nor an error."""
        raise NotImplementedError

    @property
    def has_news(self) -> bool:
        """Whether lines that were passed over are metrics after all. Asked after each line; if so, the reader goes on
        with what `restarted` returns, from the file's beginning."""
        return False

    def restarted(self) -> LineFormat:
        """The format with what is learned, for the file's first line."""
        return self

    def parse_unterminated(self, line: bytes) -> Parsed:
        """Parse the last bytes of an attempt, which have no newline: valid if complete, else
        rejected as cut off."""
        parsed = self.parse(line)
        if isinstance(parsed, Rejected):
            return Rejected(f"cut off: {parsed.reason}")
        return parsed

    @property
    def remark(self) -> str | None:
        """A sentence on how its steps were counted, for a person, after each batch of lines; None if they are as
        written."""
        return None

    @property
    def learned(self) -> Any:
        """What its lines have shown so far, stored with each batch: plain data that the file's next reader gets as
        `Reading.learned`. None if nothing."""
        return None

    @property
    def inherited(self) -> Any:
        """The same for the files of the run's later attempts."""
        return self.learned

    def conclude(self) -> None:
        """The file has ended: a last chance for `has_news`."""
