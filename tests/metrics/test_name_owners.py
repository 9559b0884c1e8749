"""Each name of a run has one source: the more exact one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gputui.metrics import name_owners
from gputui.metrics.formats import Reading
from gputui.store.metrics.queries import points_json
from tests.metrics.conftest import RUN, MetricsHome

PATTERN = r"step (?P<step>\d+) loss (?P<loss>\S+) acc (?P<acc>\S+)"


@pytest.fixture
def printed(tmp_path: Path) -> Iterator[MetricsHome]:
    """A run whose output and JSON lines both have a loss."""
    home = MetricsHome(tmp_path, kind="output", name="attempts/1/output.log", metrics={"patterns": (PATTERN,)})
    home.ingest.open_source(RUN, str(tmp_path / "log.jsonl"), "jsonl")
    home.file.parent.mkdir(parents=True)
    yield home
    home.close()


def lines(*steps: int) -> str:
    return "".join(f"step {step} loss 0.{step} acc 0.5\n" for step in steps)


def losses(home: MetricsHome) -> list[tuple[int, float]]:
    return [(point["step"], point["value"]) for point in points_json(home.connection, RUN, ["loss"])]


def begin(home: MetricsHome) -> None:
    with home.connection:
        home.ingest.begin_attempt(RUN, 1, "output.log")


def test_a_file_takes_its_names_from_the_output(printed: MetricsHome, tmp_path: Path) -> None:
    begin(printed)
    printed.append(lines(1, 2))
    printed.pump()
    (tmp_path / "log.jsonl").write_text('{"step": 1, "loss": 0.125}\n{"step": 2, "loss": 0.25}\n')
    printed.pump()
    printed.append(lines(3))
    printed.pump()
    assert losses(printed) == [(1, 0.125), (2, 0.25)]
    assert len(list(points_json(printed.connection, RUN, ["acc"]))) == 3


def test_who_has_many_lines_keeps_its_names(
    printed: MetricsHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(name_owners, "MAX_REMOVED_LINES", 1)
    begin(printed)
    printed.append(lines(1, 2))
    printed.pump()
    (tmp_path / "log.jsonl").write_text('{"step": 1, "loss": 0.125, "lr": 1}\n')
    printed.pump()
    with (tmp_path / "log.jsonl").open("a") as file:
        file.write('{"step": 2, "loss": 0.125, "lr": 1}\n')
    printed.append(lines(3))
    printed.restart()
    printed.pump()
    assert losses(printed) == [(1, 0.1), (2, 0.2), (3, 0.3)]
    assert len(list(points_json(printed.connection, RUN, ["lr"]))) == 2


def test_a_file_of_epochs_leaves_its_names_to_the_output(tmp_path: Path) -> None:
    home = MetricsHome(tmp_path, kind="output", name="attempts/1/output.log", metrics={"patterns": (PATTERN,)})
    home.ingest.open_source(RUN, str(tmp_path / "history.csv"), "csv", Reading(step="epoch"))
    home.file.parent.mkdir(parents=True)
    begin(home)
    (tmp_path / "history.csv").write_text("epoch,loss,lr\n0,0.125,1\n")
    home.pump()
    home.append(lines(1, 2))
    home.pump()
    assert losses(home) == [(1, 0.1), (2, 0.2)]
    assert len(list(points_json(home.connection, RUN, ["lr"]))) == 1
    home.close()


def test_of_two_files_in_different_forms_the_first_has_a_name(tmp_path: Path) -> None:
    home = MetricsHome(tmp_path)
    home.ingest.open_source(RUN, str(tmp_path / "log.csv"), "csv")
    begin(home)
    (tmp_path / "log.csv").write_text("step,loss,lr\n1,0.5,1\n")
    home.pump()
    home.append('{"step": 1, "loss": 0.25}\n')
    home.pump()
    with (tmp_path / "log.csv").open("a") as file:
        file.write("2,0.5,1\n")
    home.append('{"step": 2, "loss": 0.125}\n')
    home.pump()
    assert losses(home) == [(1, 0.25), (2, 0.125)]
    assert len(list(points_json(home.connection, RUN, ["lr"]))) == 2
    home.close()
