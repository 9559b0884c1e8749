"""What is exported can be read back by the tools that it is for."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gputui.cli.main import command
from gputui.config import Workspace
from gputui.reports.export.subject import ExportError, Subject, read_subject
from gputui.reports.export.tables import write_csv, write_jsonl, write_parquet
from gputui.reports.export.trackers import write_mlflow, write_tensorboard, write_wandb
from tests.tui.filling import NOW, Filler


@pytest.fixture
def filler(workspace: Workspace) -> Iterator[Filler]:
    made = Filler(workspace)
    made.run("net-1", "succeeded", name="net", params={"lr": 0.5, "note": 'a,b\n"c"'}, attempt=2, ended_ago=1.0)
    made.attempt("net-1", 1, "failed")
    made.attempt("net-1", 2, "succeeded")
    made.metrics("net-1", 1, [
        {"step": 0, "time": NOW, "rank": 0, "event": "start"},
        {"step": 1, "time": NOW + 1, "rank": 0, "loss": 2.0, "lr": 0.5},
        {"step": 1, "time": NOW + 1, "rank": 1, "step_time": 0.25},
        {"step": 2, "time": NOW + 2, "rank": 0, "loss": float("nan")},
    ])  # fmt: skip
    made.metrics("net-1", 2, [{"step": 2, "time": NOW + 9.5, "rank": 0, "loss": 1.5, "val/acc,uracy": 0.75}])
    yield made
    made.close()


@pytest.fixture
def subject(filler: Filler) -> Subject:
    return read_subject(filler.connection, "net-1")


def test_csv(subject: Subject, tmp_path: Path) -> None:
    assert write_csv(subject, tmp_path / "out.csv") == 4
    with (tmp_path / "out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["loss"] for row in rows] == ["2.0", "", "nan", "1.5"]
    assert [row["attempt"] for row in rows] == ["1", "1", "1", "2"] and rows[1]["rank"] == "1"
    assert float(rows[3]["time"]) == NOW + 9.5 and rows[3]["val/acc,uracy"] == "0.75"
    assert [path.name for path in tmp_path.glob("*.new")] == []


def test_json_lines_are_those_that_were_written(subject: Subject, tmp_path: Path) -> None:
    assert write_jsonl(subject, tmp_path / "out.jsonl") == 5
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert lines[0] == {"run": "net-1", "attempt": 1, "step": 0, "time": NOW, "rank": 0, "event": "start"}
    assert lines[3]["loss"] == "NaN" and lines[4]["attempt"] == 2


def test_parquet(subject: Subject, tmp_path: Path) -> None:
    import pyarrow.parquet

    assert write_parquet(subject, tmp_path / "out.parquet") == 4
    table = pyarrow.parquet.read_table(tmp_path / "out.parquet")
    losses = table["loss"].to_pylist()
    assert losses[0] == 2.0 and losses[1] is None and math.isnan(losses[2])
    assert table["time"].to_pylist()[3] == datetime.fromtimestamp(NOW + 9.5, UTC)
    assert table["step_time"].to_pylist()[1] == 0.25


def test_a_metric_with_the_name_of_a_column(filler: Filler, tmp_path: Path) -> None:
    filler.metrics("net-1", 2, [{"step": 3, "attempt": 7.0}])
    with pytest.raises(ExportError, match="export to jsonl"):
        write_parquet(read_subject(filler.connection, "net-1"), tmp_path / "out.parquet")


def test_tensorboard(subject: Subject, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert write_tensorboard(subject, tmp_path / "board") == 4
    read = EventAccumulator(str(tmp_path / "board")).Reload()
    losses = read.Scalars("loss")
    assert [event.step for event in losses] == [1, 2, 2] and losses[2].value == 1.5
    assert losses[2].wall_time == pytest.approx(NOW + 9.5) and math.isnan(losses[1].value)
    assert read.Scalars("rank1/step_time")[0].value == 0.25
    with pytest.raises(ExportError, match="not empty"):
        write_tensorboard(subject, tmp_path / "board")


@pytest.mark.slow
def test_mlflow(subject: Subject, tmp_path: Path) -> None:
    from mlflow.tracking import MlflowClient

    uri = f"sqlite:///{tmp_path}/mlflow.db"
    assert write_mlflow(subject, uri) == 4
    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("gputui")
    assert experiment is not None
    [run] = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == ("net-1", "FINISHED")
    assert run.data.params["lr"] == "0.5" and run.data.tags["gputui.run"] == "net-1"
    history = client.get_metric_history(run.info.run_id, "loss")
    assert sorted(metric.step for metric in history) == [1, 2, 2]
    assert run.data.metrics["val/acc_uracy"] == 0.75
    assert client.get_metric_history(run.info.run_id, "rank1/step_time")[0].timestamp == round((NOW + 1) * 1000)


@pytest.mark.slow
def test_weights_and_biases(subject: Subject, tmp_path: Path) -> None:
    assert write_wandb(subject, tmp_path / "wandb") == 4
    [written] = (tmp_path / "wandb").rglob("run-*.wandb")
    content = written.read_bytes()
    assert b"net-1" in content and b"loss" in content and b"rank1/step_time" in content


def test_a_place_that_cannot_be_written_leaves_nothing(subject: Subject, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"cannot write .*choose another place"):
        write_csv(subject, tmp_path / "gone" / "out.csv")
    (tmp_path / "old.csv").write_text("as it was")

    def broken() -> Iterator[None]:
        yield from ()
        raise OSError(28, "No space left on device")

    full = Subject(subject.run, {}, ("loss",), broken)  # type: ignore[arg-type]
    with pytest.raises(ExportError, match="No space left"):
        write_csv(full, tmp_path / "old.csv")
    assert (tmp_path / "old.csv").read_text() == "as it was" and len(list(tmp_path.glob("*.csv*"))) == 1


# --- the command


def gputui(workspace: Workspace, *words: str) -> Result:
    return CliRunner().invoke(command, ["--home", str(workspace.state.parent), *words])


def test_the_command(filler: Filler, workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = gputui(workspace, "export", "net-1", "loss", "--to", "csv")
    assert (done.exit_code, done.output) == (0, "3 lines of net-1 in net-1.csv\n")
    assert (tmp_path / "net-1.csv").read_text().splitlines()[0] == "attempt,rank,step,time,loss"
    wrong = gputui(workspace, "export", "net-1", "los", "--to", "csv")
    assert wrong.exit_code == 3 and "did you mean loss?" in wrong.output
    filler.run("empty-1")
    empty = gputui(workspace, "export", "empty-1", "--to", "csv")
    assert empty.exit_code == 3 and "measured nothing yet" in empty.output
