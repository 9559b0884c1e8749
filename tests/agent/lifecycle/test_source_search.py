"""Sources of metrics that an attempt begins to write are found."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gputui.agent.lifecycle import file_search
from gputui.agent.lifecycle.file_search import FileLooks, FileSearch
from tests.metrics.conftest import RUN, MetricsHome

BEGUN_AT = 1_000_000.0
LINES = '{"step": 1, "loss": 2}\n{"step": 2, "loss": 1}\n'


def search(tmp_path: Path) -> FileSearch:
    """A search of attempt 1, whose working directory is ``work``."""
    run_dir = tmp_path / "state/runs/a-1"
    work = tmp_path / "work"
    (run_dir / "attempts/1").mkdir(parents=True, exist_ok=True)
    work.mkdir(exist_ok=True)
    return FileSearch(run_dir, 1, work, tmp_path / "state", BEGUN_AT)


def write(path: Path, text: str, at: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(text)
    os.utime(path, (at, at))


def paths(sources: list[file_search.NewSource]) -> list[str]:
    return [Path(new.source.path).name for new in sources]


def test_files_of_the_attempt(tmp_path: Path) -> None:
    looks = FileLooks(search(tmp_path))
    work = tmp_path / "work"
    write(work / "old.jsonl", LINES, BEGUN_AT - 9)
    write(work / "appended.jsonl", LINES, BEGUN_AT - 9)
    write(work / "half.jsonl", LINES[:9], BEGUN_AT + 1)
    write(tmp_path / "state/runs/other-1/metrics.jsonl", LINES, BEGUN_AT + 1)
    assert looks.look([]) == []
    write(work / "out/new.jsonl", LINES, BEGUN_AT + 2)
    write(work / "appended.jsonl", LINES, BEGUN_AT + 2)
    write(work / "half.jsonl", LINES[9:], BEGUN_AT + 2)
    write(tmp_path / "state/runs/a-1/own.jsonl", LINES, BEGUN_AT + 2)
    sources = looks.look([])
    assert sorted(paths(sources)) == ["appended.jsonl", "half.jsonl", "new.jsonl", "own.jsonl"]
    begins = {Path(new.source.path).name: new.begin for new in sources}
    appended = begins["appended.jsonl"]
    assert begins["new.jsonl"] is None
    assert appended is not None
    assert appended.byte_offset == len(LINES)
    write(work / "out/new.jsonl", LINES, BEGUN_AT + 3)
    assert looks.look([]) == sources


def test_copies_that_gputui_writes_are_no_sources(tmp_path: Path) -> None:
    looks = FileLooks(search(tmp_path))
    looks.search.copies = [tmp_path / "work/out/a-1.jsonl", tmp_path / "work/board"]
    looks.look([])
    copies = ("work/out/a-1.jsonl", "work/board/events.out.tfevents.gputui.00001", "state/runs/a-1/sinks/metrics.jsonl")
    for path in (*copies, "work/out/own.jsonl"):
        write(tmp_path / path, LINES, BEGUN_AT + 2)
    assert paths(looks.look([])) == ["own.jsonl"]


def test_a_file_that_the_attempt_writes_anew_is_its_own_from_the_start(tmp_path: Path) -> None:
    home = MetricsHome(tmp_path)
    home.begin()
    looks = FileLooks(search(tmp_path))
    file = tmp_path / "work/log.jsonl"
    write(file, LINES, BEGUN_AT - 9)
    looks.look([])
    again = LINES.replace("loss", "error") + '{"step": 3, "error": 1}\n'
    file.write_text(again)
    os.utime(file, (BEGUN_AT + 9, BEGUN_AT + 9))
    ((source, begin),) = looks.look([])
    assert home.ingest.add_source(RUN, 1, source, begin)
    assert not home.ingest.add_source(RUN, 1, source, begin)
    home.pump()
    assert [step for _, step in home.stored()] == [1, 2, 3]
    home.close()


def test_event_files_alone_count_in_the_folders_of_a_profile(tmp_path: Path) -> None:
    looks = FileLooks(search(tmp_path))
    run_dir = tmp_path / "state/runs/a-1"
    looks.search.event_folders = [f"{tmp_path}/[[]x]/runs/*", str(run_dir / "tb")]
    looks.search.learns = False
    event = "events.out.tfevents.1.host.1.0"
    places = ("[x]/runs/exp/" + event, "[x]/runs/exp/acc_val/" + event, "[x]/runs/" + event, "work/" + event)
    for place in (*places, "[x]/runs/exp/new.jsonl"):
        write(tmp_path / place, LINES, BEGUN_AT + 1)
    write(run_dir / "tb/sub" / event, LINES, BEGUN_AT + 1)
    place_of = {new.source.path: new.source.reading.place for new in looks.look([])}
    assert place_of.keys() == {*(str(tmp_path / place) for place in places[:2]), str(run_dir / "tb/sub" / event)}
    write(tmp_path / "[x]/runs/exp" / "events.out.tfevents.2.host.1.1", LINES, BEGUN_AT + 2)
    assert paths(looks.look([]))[3:] == ["events.out.tfevents.2.host.1.1"]


def test_a_new_agent_knows_what_was_there_before(tmp_path: Path) -> None:
    write(tmp_path / "work/old.jsonl", LINES, BEGUN_AT - 9)
    FileLooks(search(tmp_path)).look([])
    write(tmp_path / "work/old.jsonl", LINES, BEGUN_AT + 9)
    write(tmp_path / "work/first.jsonl", LINES, BEGUN_AT + 9)
    assert sorted(paths(FileLooks(search(tmp_path)).look([]))) == ["first.jsonl", "old.jsonl"]
    write(tmp_path / "work/second.jsonl", LINES, BEGUN_AT + 9)
    assert sorted(paths(FileLooks(search(tmp_path)).look([]))) == ["first.jsonl", "old.jsonl", "second.jsonl"]


@pytest.mark.parametrize("is_held", [True, False])
def test_where_other_runs_write_too_only_open_files_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_held: bool
) -> None:
    looks = FileLooks(search(tmp_path))
    write(tmp_path / "work/log.jsonl", LINES, BEGUN_AT + 1)
    open_files = {str(tmp_path / "work/log.jsonl")} if is_held else set()
    monkeypatch.setattr(file_search, "held_files", lambda _: open_files)
    assert paths(looks.look(["b-1"])) == ["log.jsonl"] * is_held
    assert looks.disputed == [str(tmp_path / "work/log.jsonl")] * (not is_held)
    monkeypatch.setattr(file_search, "held_files", lambda _: {str(tmp_path / "work/log.jsonl")})
    assert paths(looks.look(["b-1"])) == ["log.jsonl"]


def test_lines_between_the_start_and_the_first_look_are_the_attempts(tmp_path: Path) -> None:
    file = tmp_path / "work/log.jsonl"
    write(file, LINES, BEGUN_AT - 9)
    search(tmp_path).list_before()
    write(file, LINES, BEGUN_AT + 1)
    ((source, begin),) = FileLooks(search(tmp_path)).look([])
    assert source.path == str(file)
    assert begin is not None
    assert begin.byte_offset == len(LINES)
    # A new agent reads the list in the attempt's folder, however old it is.
    later = FileLooks(search(tmp_path))
    later.search.begun_at += 3600
    write(tmp_path / "work/another.jsonl", LINES, BEGUN_AT + 7200)
    assert [new.begin for new in later.look([])] == [begin, None]


def test_many_files_before_the_attempt_are_remembered(tmp_path: Path) -> None:
    for number in range(700):
        write(tmp_path / f"work/{'a' * 100}{number}.jsonl", LINES, BEGUN_AT - 9)
    FileLooks(search(tmp_path)).look([])
    write(tmp_path / f"work/{'a' * 100}7.jsonl", LINES, BEGUN_AT + 1)
    ((_, begin),) = FileLooks(search(tmp_path)).look([])
    assert begin is not None
    assert begin.byte_offset == len(LINES)


def test_event_files_of_others_give_no_prefix(tmp_path: Path) -> None:
    event = "events.out.tfevents.1.host.1.0"
    write(tmp_path / "work/runs" / event, LINES, BEGUN_AT - 9)
    looks = FileLooks(search(tmp_path))
    looks.look([])
    for folder in ("exp", "exp/loss_val"):
        write(tmp_path / "work/runs" / folder / event, LINES, BEGUN_AT + 1)
    places = {Path(new.source.path).parent.name: new.source.reading.place for new in looks.look([])}
    assert places == {"exp": "", "loss_val": "loss_val"}
