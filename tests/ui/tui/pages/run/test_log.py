"""The log of a run's page: reading it piece by piece, and looking at it."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from gputui.core.text import cell_width
from gputui.runs.log_lines import Level
from gputui.ui.tui.data import log_tail
from gputui.ui.tui.data.log_tail import LogReader
from gputui.ui.tui.pages.run.log import RunLog
from gputui.ui.tui.pages.run.log_view import LogSearch, SearchPattern
from gputui.ui.views.snapshot import LogTail
from tests.tables import table
from tests.texts import mentions

NOISE = "launcher", "rank 0 of attempt 1", "launcher of attempt 1"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    folder = tmp_path / "nodes" / "0"
    folder.mkdir(parents=True)
    return folder / "output.log"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_tail, "TAIL_BYTES", 100)
    monkeypatch.setattr(log_tail, "DEEP_BYTES", 1000)
    monkeypatch.setattr(log_tail, "MOST_LINES", 60)


def numbers(tail: LogTail) -> list[int]:
    return list(range(tail.first, tail.first + len(tail.lines)))


def tail_of(count: int, first: int = 0, label: str = "rank 0") -> LogTail:
    lines = tuple(f"WARNING {n}" if n % 10 == 0 else f"line {n}" for n in range(first, first + count))
    levels = bytes(int(Level.WARNING) if line.startswith("W") else 0 for line in lines)
    return LogTail(label, (label,), lines, problem=None, levels=levels, first=first)


def log_of(tail: LogTail, said: list[str] | None = None) -> RunLog:
    view = RunLog((said if said is not None else []).append, lambda: None)
    view.update(tail, 80, 4)
    return view


def visible_lines(view: RunLog) -> list[str]:
    return [view.line(number)[0] for number in view.window.numbers]


def pane_text(view: RunLog, *, is_live: bool = True) -> list[str]:
    lines = view.lines(80, style="title", is_live=is_live)
    assert {sum(cell_width(text) for text, _ in line) for line in lines} == {80}
    return ["".join(text for text, _ in line) for line in lines]


def test_what_was_read_is_kept_and_only_the_rest_is_read(log: Path) -> None:
    reader = LogReader()
    log.write_text("one\ntwo\nhal")
    first = reader.read(log.parents[2], None)
    assert first.lines == ("one", "two", "hal")
    assert first.is_whole
    assert first.label == "launcher"
    assert reader.read(log.parents[2], None) is first  # nothing new: nothing is read
    with log.open("a") as file:
        file.write("f\nERROR three\n")
    second = reader.read(log.parents[2], None)
    assert second.lines == ("one", "two", "half", "ERROR three")
    assert second.first == first.first
    assert list(second.levels) == [0, 0, 0, Level.ERROR]


def test_only_the_end_of_a_long_log_is_read_until_more_is_wanted(log: Path, small: None) -> None:
    log.write_text("".join(f"line {n:03}\n" for n in range(100)))
    reader = LogReader()
    tail = reader.read(log.parents[2], None)
    assert tail.lines[-1] == "line 099"
    assert 5 < len(tail.lines) < 15
    assert not tail.is_whole
    deep = reader.read(log.parents[2], None, deep=True)
    assert len(deep.lines) == 60
    assert deep.lines[-1] == "line 099"
    assert not deep.is_whole
    place = dict(zip(numbers(deep), deep.lines, strict=True))
    assert all(place[number] == line for number, line in zip(numbers(tail), tail.lines, strict=True))
    with log.open("a") as file:
        file.write("the newest\n")
    newer = reader.read(log.parents[2], None, deep=True)
    assert newer.lines[-1] == "the newest"
    assert newer.first == deep.first + 1


def test_a_flood_and_a_log_that_begins_anew(log: Path, small: None) -> None:
    reader = LogReader()
    log.write_text("old\n")
    before = reader.read(log.parents[2], None)
    log.write_text("old\n" + "".join(f"flood {n:04}\n" for n in range(1000)))
    flooded = reader.read(log.parents[2], None)
    assert flooded.lines[-1] == "flood 0999"
    assert len(flooded.lines) < 20
    assert flooded.first > before.first
    log.write_text("again\n")
    assert reader.read(log.parents[2], None).lines == ("again",)


def test_a_log_that_cannot_be_read_says_so(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    log.write_text("x\n")
    monkeypatch.setattr(log_tail, "read_window", fail)
    assert mentions(LogReader().read(log.parents[2], None).problem, log, "Input/output error")


def test_a_progress_bar_is_one_line_that_changes(log: Path) -> None:
    reader = LogReader()
    log.write_bytes(b"begin\n\rstep 1\rstep 2")
    first = reader.read(log.parents[2], None)
    assert first.lines == ("begin", "step 2")
    with log.open("ab") as file:
        for number in range(3, 300):
            file.write(b"\rstep %d" % number)
            if number % 20 == 0:
                file.flush()
                assert reader.read(log.parents[2], None).lines == ("begin", f"step {number}")
        file.write(b"\rstep 300\nend\n")
    done = reader.read(log.parents[2], None)
    assert done.lines == ("begin", "step 300", "end")
    assert done.first == first.first
    assert LogReader().read(log.parents[2], None, deep=True).lines[-2:] == ("step 300", "end")


# --- looking at it


def test_the_end_is_followed_until_somebody_scrolls() -> None:
    view = log_of(tail_of(50))
    assert visible_lines(view) == ["line 46", "line 47", "line 48", "line 49"]
    assert " following " in pane_text(view)[0]
    assert "following" not in pane_text(view, is_live=False)[0], "nothing is written any more"
    assert "following" not in pane_text(log_of(tail_of(50, label="rank 0 of attempt 2")))[0]
    view.scroll(-2)
    visible = visible_lines(view)
    assert visible[-1] == "line 47"
    assert "2 lines below, f follows" in pane_text(view)[0]
    view.update(tail_of(80), 80, 4)
    assert visible_lines(view) == visible
    assert "32 lines below" in pane_text(view)[0]
    view.update(tail_of(60, first=30), 80, 4)  # the oldest are dropped, what is read stays
    assert visible_lines(view) == visible
    view.scroll(1000)
    assert " following " in pane_text(view)[0]
    assert visible_lines(view)[-1] == "line 89"
    view.scroll_to(end=False)
    assert visible_lines(view)[0] == "WARNING 30"
    assert view.is_deep
    view.update(tail_of(70, first=20), 80, 4)
    assert visible_lines(view)[0] == "WARNING 20", "older lines were read meanwhile"
    view.scroll_to(end=True)
    assert visible_lines(view)[-1] == "line 89"


def test_hits_are_found_as_lines_come_and_walked_through() -> None:
    said: list[str] = []
    view = log_of(tail_of(50), said)
    view.do_hit_next()
    view.look_for(None, "warn")
    assert view.search.hits == [0, 10, 20, 30, 40]
    assert view.search.current == 40
    assert view.search.words == "match 5 of 5"
    assert 40 in view.window.numbers
    assert "search warn: match 5 of 5" in pane_text(view)[0]
    view.do_hit_previous()
    assert view.search.current == 30
    assert 30 in view.window.numbers
    view.update(tail_of(70), 80, 4)
    assert view.search.hits[-2:] == [50, 60]
    assert 30 in view.window.numbers
    places = []
    for _ in range(4):
        view.do_hit_next()
        places.append(view.search.current)
    assert places == [40, 50, 60, 0], "around the end"
    view.look_for(None, "")
    assert view.search.hits == []
    assert view.search.current is None
    view.look_for(None, "nowhere")
    view.do_hit_next()
    assert "Nothing is searched" in said[0]
    assert "No line" in said[1]
    assert len(said) == 2


def test_a_search_minds_capitals_only_when_there_are_some() -> None:
    matches = {
        (text, line): bool((search := SearchPattern.of(text)).pattern and search.pattern.search(line))
        for text, line in (("loss", "LOSS"), ("Loss", "loss"), ("a.c", "abc"), ("~a.c", "xABC"), ("~", ""))
    }
    assert list(matches.values()) == [True, False, False, True, False]
    assert "not a regular expression" in str(SearchPattern.of("~(").problem)


def test_only_what_is_grave_is_shown_and_searched() -> None:
    view = log_of(tail_of(50))
    view.do_grave_only()
    assert visible_lines(view) == ["WARNING 10", "WARNING 20", "WARNING 30", "WARNING 40"]
    assert "warnings and errors: 5 of 50 lines" in pane_text(view)[0]
    view.update(tail_of(70), 80, 4)
    assert visible_lines(view)[-1] == "WARNING 60"
    view.look_for(None, "line")
    assert view.search.hits == []
    view.do_grave_only()
    assert len(view.search.hits) == 63
    assert visible_lines(view)[-1] == "line 69"


def test_long_lines_are_read_sideways() -> None:
    view = log_of(
        LogTail("rank 0", ("rank 0",), ("short", "漢字" + "x" * 160 + "END"), problem=None, levels=bytes(2), first=0)
    )
    assert "END" not in pane_text(view)[2]
    view.sideways(1)
    assert "from column 40" in pane_text(view)[0]
    assert view.window.first_column == 39
    view.sideways(9)
    assert pane_text(view)[2].endswith("xEND")
    view.sideways(-9)
    assert view.window.first_column == 0
    view.window.first_column = 2
    # The second half of a wide character is a blank.
    assert pane_text(view)[2].startswith(" … xxx")


def test_another_log_is_chosen_or_there_is_none() -> None:
    said: list[str] = []
    view = log_of(tail_of(5)._replace(labels=("rank 0", "rank 1", "launcher")), said)
    view.do_log_next()
    assert view.label == "rank 1"
    view.do_log_previous()
    assert view.label == "launcher"
    assert not said
    log_of(tail_of(5), said).do_log_next()
    assert len(said) == 1
    assert "other log" in said[0]


def test_the_log_of_a_new_attempt_is_another_one(tmp_path: Path) -> None:
    """Warnings and hits of the log before must not be looked for in it."""
    for number, count in ((1, 50), (2, 3)):
        folder = tmp_path / str(number) / "nodes" / "0"
        folder.mkdir(parents=True)
        (folder / "output.log").write_text("".join(f"WARNING {number}.{n}\n" for n in range(count)))
    reader = LogReader()
    view = log_of(reader.read(tmp_path / "1", None))
    view.do_grave_only()
    view.look_for(None, "warning")
    view.scroll(-20)
    view.update(reader.read(tmp_path / "2", None), 80, 4)
    assert visible_lines(view) == ["WARNING 2.0", "WARNING 2.1", "WARNING 2.2"]
    assert len(view.search.hits) == 3
    assert "below" not in pane_text(view)[0]
    assert view.search.current is None


def test_logs_of_attempts_before_can_be_chosen(tmp_path: Path) -> None:
    for number in range(1, 7):
        folder = tmp_path / str(number) / "nodes" / "0"
        folder.mkdir(parents=True)
        (folder / "output.log").write_text("" if number in (4, 6) else f"attempt {number}\n")
    reader = LogReader()
    tail = reader.read(tmp_path / "6", None)
    assert tail.labels == ("launcher of attempt 5", "launcher of attempt 3")
    assert tail.lines == ()
    chosen = reader.read(tmp_path / "6", "launcher of attempt 3")
    assert chosen.label == "launcher of attempt 3"
    assert chosen.lines == ("attempt 3",)
    assert reader.read(tmp_path / "6", "rank 7").label == "launcher"


@table("labels, rank, with_errors, label, is_lacking", [
    (("rank 0", "rank 1", "rank 1 stderr", *NOISE), 1, ("rank 1 stderr", "launcher"), "rank 1 stderr", False),
    (("rank 0", "rank 1", "rank 1 stderr", *NOISE), 1, ("rank 1", "launcher"), "rank 1", False),
    (("rank 0", "rank 0 stderr", "rank 1", *NOISE), 1, (*NOISE, "rank 0 stderr"), "rank 1", True),
    (("rank 0", "rank 0 stderr", *NOISE), 0, NOISE, "rank 0", True),
    (("rank 0 stderr", *NOISE), 0, NOISE, "rank 0 stderr", True),
    (("rank 0", "rank 1", "rank 1 stderr", *NOISE), None, ("rank 1 stderr", "launcher"), "rank 1 stderr", False),
    (("rank 0", "rank 1", "rank 1 stderr", *NOISE), None, NOISE, "rank 0", True),
    (NOISE, None, NOISE, "launcher", False),
    (("launcher",), None, (), "launcher", True),
    (("launcher of attempt 1",), None, ("launcher of attempt 1",), None, True),
])  # fmt: skip
def test_a_failed_run_opens_on_the_log_of_the_rank_that_failed(
    labels: tuple[str, ...], rank: int | None, with_errors: tuple[str, ...], label: str | None, is_lacking: bool
) -> None:
    view = log_of(LogTail(labels=labels))
    view.show_traceback(labels, rank)
    levels = {name: bytes([Level.INFO, Level.ERROR if name in with_errors else Level.INFO]) for name in (*labels, None)}
    tails = {name: LogTail(name, labels, ("one", "two"), levels=levels[name]) for name in levels}
    for _ in labels:
        view.update(tails[view.label], 80, 4)
    assert (view.label, view.lacks_traceback) == (label, is_lacking)
    assert ("no traceback" in pane_text(view, is_live=False)[0]) is is_lacking
    view.update(LogTail(view.label, labels, ("one", "two", "three"), levels=bytes(3)), 80, 4)
    assert not view.lacks_traceback, "what was written since may have one"


def test_a_hit_that_a_filter_hides_is_no_longer_the_current_one() -> None:
    search = LogSearch()
    search.look_for("1")
    tail = tail_of(20)
    search.find(tail, numbers(tail))
    assert search.go(-1, numbers(tail)) == 19
    search.find(tail, [0, 10])
    assert search.hits == [10]
    assert search.current is None
    assert search.words == "1 found"
