"""`import gputui`: what a notebook reads is what the commands print."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gputui.core.config import locate
from gputui.store import api, rollups
from gputui.store.database import StoreMissingError
from gputui.store.rows import insert, update
from gputui.store.runs import RunLookupError
from tests.homes import NOW, Home
from tests.stories import overnight
from tests.ui.cli.program import json_of

PAGE = Path(__file__).parents[2] / "docs" / "python.md"
RUN = "vit-b16-1"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    home = Home(locate(tmp_path_factory.mktemp("api") / "home"))
    overnight(home)
    yield home
    home.close()


@pytest.fixture
def folder(home: Home) -> Path:
    return home.workspace.state.parent


def test_the_page_says_what_happens(folder: Path) -> None:
    # A process of its own: here the packages gputui.runs and gputui.metrics are loaded.
    command = [sys.executable, "-m", "doctest", str(PAGE)]
    done = subprocess.run(command, env={**os.environ, "GPUTUI_HOME": str(folder)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_runs_are_those_of_the_commands(home: Home, folder: Path) -> None:
    assert [run.id for run in api.runs(home=folder)] == [run["id"] for run in json_of(home.workspace, "ps")]
    assert [run.id for run in api.runs(state="queued", home=folder)] == ["lr-sweep-3"]
    assert api.runs(tag="none", home=folder) == [] == api.runs(study="none", home=folder)
    record = json_of(home.workspace, "show", RUN)
    run = api.run("vit-b16", home=folder)
    assert (run.id, run.state, dict(run.params)) == (RUN, record["state"], record["params"])
    assert [attempt.incident for attempt in run.attempts] == [
        attempt["incident"] and attempt["incident"]["kind"] for attempt in record["attempts"]
    ]
    assert run.attempts[1].exit_signal == 9
    assert run.attempts[1].decision == record["attempts"][1]["decision"]["reason"]
    assert run.created_at.tzinfo is UTC
    assert run.ended_at is None


def test_metrics_are_those_of_the_command(home: Home, folder: Path) -> None:
    for names in ([], ["loss"]):
        points = api.metrics(RUN, names, home=folder)
        printed = json_of(home.workspace, "metrics", RUN, *names)
        key = ("attempt", "rank", "step", "name", "value")
        assert {tuple(getattr(point, name) for name in key) for point in points} == {
            tuple(point[name] for name in key) for point in printed
        }
        assert len(points) == len(printed)
    repeated = {(point.attempt, point.step) for point in api.metrics(RUN, "loss", home=folder) if point.repeated}
    assert repeated
    assert all(step >= {1: 4000, 2: 8000}[attempt] for attempt, step in repeated if step is not None)


def test_values_that_are_no_finite_numbers(tmp_path: Path) -> None:
    home = Home(locate(tmp_path))
    home.run("odd-1")
    home.attempt("odd-1", 1)
    home.metrics("odd-1", 1, [{"step": 1, "loss": float("nan")}, {"step": 2, "loss": float("inf"), "rank": 3}])
    home.close()
    first, second = api.metrics("odd-1", home=tmp_path)
    assert first.value != first.value
    assert first.rank is None
    assert second.value == float("inf")
    assert second.rank == 3


def test_gpus_now_and_since(home: Home, folder: Path) -> None:
    newest = api.gpus(home=folder)
    assert [gpu.index for gpu in newest] == [gpu["index"] for gpu in json_of(home.workspace, "--readonly", "gpus")]
    assert {gpu.run for gpu in newest} >= {RUN, None}
    since = datetime.fromtimestamp(NOW - 600, UTC)
    points = api.gpus(since, home=folder)
    assert points
    assert all(point.time is not None and point.time >= since for point in points)
    assert len(api.gpus(timedelta(days=36500), home=folder)) > len(points)


def test_what_is_too_old_for_samples_comes_as_means(tmp_path: Path) -> None:
    home = Home(locate(tmp_path))
    home.gpus(1)
    home.sample(0, at=NOW, utilization=70.0)
    for table, at, utilization in (("gpu_hours", 3600.0, 10.0), ("gpu_minutes", 7200.0, 20.0)):
        insert(home.connection, table, gpu_id=1, at=at, sample_count=1, utilization_percent_mean=utilization)
    update(home.connection, "record_bounds", {"id": 1}, raw_since=9000.0, minutes_since=7000.0)
    assert rollups.bounds(home.connection) == (9000.0, 7000.0)
    home.close()
    assert [point.utilization_percent for point in api.gpus(timedelta(days=36500), home=tmp_path)] == [10.0, 20.0, 70.0]


def test_tables_become_frames(folder: Path) -> None:
    for table in (api.runs(home=folder), api.metrics(RUN, home=folder), api.gpus(timedelta(days=36500), home=folder)):
        assert len(table) == len(table.to_pandas()) == len(table.to_polars())
    frame = api.metrics(RUN, "loss", home=folder).to_pandas()
    assert str(frame["time"].dtype).endswith("UTC]")
    assert frame["value"].dtype == "float64"
    assert next(iter(api.runs(state="stopping", home=folder).to_pandas())) == "id"


def test_what_is_missing_is_an_error(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(RunLookupError, match=RUN):
        api.run("vit-b16-9", home=folder)
    with pytest.raises(LookupError, match="grad_norm"):
        api.metrics(RUN, "los", home=folder)
    with pytest.raises(ValueError, match="succeeded"):
        api.runs(state="success", home=folder)
    with pytest.raises(TypeError, match="timedelta"):
        api.gpus("5m", home=folder)  # type: ignore[arg-type]
    with pytest.raises(StoreMissingError, match=str(tmp_path)):
        api.runs(home=tmp_path)


@pytest.mark.parametrize(
    ("function", "arguments", "mentioned"),
    [
        (api.run, {"run_id": 5}, "run_id"),
        (api.run, {"run_id": None}, "run_id"),
        (api.metrics, {"run_id": object()}, "run_id"),
        (api.metrics, {"run_id": RUN, "names": ["loss", 5]}, "names"),
        (api.runs, {"state": 5}, "state"),
        (api.runs, {"profile": b"vit"}, "profile"),
        (api.runs, {"tag": ["a", "b"]}, "tag"),
        (api.runs, {"study": 0}, "study"),
    ],
)
def test_what_is_no_text_is_an_error(
    function: Callable[..., Any], arguments: dict[str, Any], mentioned: str, folder: Path
) -> None:
    with pytest.raises(TypeError, match=mentioned):
        function(**arguments, home=folder)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_missing_library_is_named(library: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = api.runs(home=folder)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ImportError, match=f"pip install {library}"):
        getattr(table, f"to_{library}")()
