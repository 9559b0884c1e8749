"""What is exported can be read back by the tools that it is for."""

from __future__ import annotations

import csv
import errno
import json
import math
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gputui.cli.main import command
from gputui.config import Workspace
from gputui.reports.export.follower import Follower, Target
from gputui.reports.export.formats import Format
from gputui.reports.export.line_file import LineFile
from gputui.reports.export.memory import MemoryPlace, Remembered
from gputui.reports.export.once import export
from gputui.reports.export.sink import ExportError
from gputui.reports.export.sink_factory import key_of, make_sink, memory_key_of
from gputui.reports.export.subject import read_subject
from gputui.store.database import open_reader
from gputui.store.metrics.exported import ExportProgress
from tests.trainer.test_telemetry_trackers import wandb_records
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


def write(filler: Filler, form: Format, target: Path | str, *, replace: bool = False) -> int:
    subject = read_subject(filler.connection, "net-1")
    return export(filler.connection, subject, form, str(target), replace=replace)


def test_csv(filler: Filler, tmp_path: Path) -> None:
    assert write(filler, "csv", tmp_path / "out.csv") == 4
    with (tmp_path / "out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["loss"] for row in rows] == ["2.0", "", "nan", "1.5"]
    assert [row["attempt"] for row in rows] == ["1", "1", "1", "2"] and rows[1]["rank"] == "1"
    assert float(rows[3]["time"]) == NOW + 9.5 and rows[3]["val/acc,uracy"] == "0.75"
    assert [path.name for path in tmp_path.glob("*.new")] == []


def test_json_lines_are_those_that_were_written(filler: Filler, tmp_path: Path) -> None:
    assert write(filler, "jsonl", tmp_path / "out.jsonl") == 8
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert lines[0]["event"] == "gputui.run" and lines[0]["params"]["lr"] == 0.5
    assert lines[2] == {"run": "net-1", "attempt": 1, "step": 0, "time": NOW, "rank": 0, "event": "start"}
    assert lines[5]["loss"] == "NaN" and lines[7]["attempt"] == 2
    assert [(line["event"], line["attempt"]) for line in (lines[1], lines[6])] == [
        ("gputui.attempt", 1),
        ("gputui.attempt", 2),
    ]


def test_parquet(filler: Filler, tmp_path: Path) -> None:
    import pyarrow.parquet

    assert write(filler, "parquet", tmp_path / "out.parquet") == 4
    table = pyarrow.parquet.read_table(tmp_path / "out.parquet")
    losses = table["loss"].to_pylist()
    assert losses[0] == 2.0 and losses[1] is None and math.isnan(losses[2])
    assert table["time"].to_pylist()[3] == datetime.fromtimestamp(NOW + 9.5, UTC)
    assert table["step_time"].to_pylist()[1] == 0.25


def test_a_metric_with_the_name_of_a_column(filler: Filler, tmp_path: Path) -> None:
    filler.metrics("net-1", 2, [{"step": 3, "attempt": 7.0}])
    with pytest.raises(ExportError, match="export to jsonl"):
        write(filler, "parquet", tmp_path / "out.parquet")


def test_tensorboard(filler: Filler, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert write(filler, "tensorboard", tmp_path / "board") == 4
    read = EventAccumulator(str(tmp_path / "board")).Reload()
    losses = read.Scalars("loss")
    # The second attempt began with step 2: what the first wrote there is discarded.
    assert [(event.step, event.value) for event in losses] == [(1, 2.0), (2, 1.5)]
    assert losses[1].wall_time == pytest.approx(NOW + 9.5)
    assert read.Scalars("rank1/step_time")[0].value == 0.25
    parameters = read.Tensors("gputui.parameters")[-1].tensor_proto.string_val[0].decode()
    assert "| lr | 0.5 |" in parameters
    story = read.Tensors("gputui.story")[-1].tensor_proto.string_val[0].decode()
    assert story == "- attempt 1 begins\n- attempt 2 begins"
    with pytest.raises(ExportError, match="not empty"):
        write(filler, "tensorboard", tmp_path / "board")


def test_mlflow(filler: Filler, tmp_path: Path) -> None:
    from mlflow.tracking import MlflowClient

    uri = f"sqlite:///{tmp_path}/mlflow.db"
    assert write(filler, "mlflow", uri) == 4
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
    assert run.data.tags["mlflow.note.content"] == "- attempt 1 begins\n- attempt 2 begins"
    with pytest.raises(ExportError, match=r"holds net-1 already, as run \w+"):
        write(filler, "mlflow", uri)
    follow_mlflow(filler, uri, run.info.run_id)
    with pytest.raises(ExportError, match=r"MLflow refuses nothing://h: (?!.*hunter2)"):
        write(filler, "mlflow", "nothing://ada:hunter2@h")


@pytest.mark.long
def test_metrics_whose_names_mlflow_refuses_are_not_merged(filler: Filler, tmp_path: Path) -> None:
    from mlflow.tracking import MlflowClient

    filler.metrics("net-1", 2, [{"step": 3, "time": NOW + 10, "acc@1": 0.5, "acc#1": 0.75}])
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    write(filler, "mlflow", uri)
    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("gputui")
    assert experiment is not None
    [run] = client.search_runs([experiment.experiment_id])
    assert sorted(value for name, value in run.data.metrics.items() if name.startswith("acc_1")) == [0.5, 0.75]


def test_trials_are_children_of_their_study_in_mlflow(filler: Filler, tmp_path: Path) -> None:
    from mlflow.tracking import MlflowClient

    filler.study("search-1", trials=3)
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    begun = threading.Barrier(3)

    def write_trial(number: int) -> None:
        with closing(open_reader(filler.workspace.database)) as connection:
            subject = read_subject(connection, f"search-1-t{number}")
            begun.wait()
            export(connection, subject, "mlflow", uri, replace=False)

    # Its tables are made once.
    client = MlflowClient(tracking_uri=uri)
    client.search_experiments()
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(write_trial, range(3)))
    experiment = client.get_experiment_by_name("gputui")
    assert experiment is not None
    runs = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    assert set(runs) == {"search-1", *(f"search-1-t{number}" for number in range(3))}
    parents = {name: run.data.tags.get("mlflow.parentRunId") for name, run in runs.items()}
    assert parents.pop("search-1") is None and set(parents.values()) == {runs["search-1"].info.run_id}
    assert [runs[f"search-1-t{number}"].data.tags["gputui.trial"] for number in range(3)] == ["0", "1", "2"]


def test_a_study_is_finished_in_mlflow_with_the_last_of_its_trials(filler: Filler, tmp_path: Path) -> None:
    from mlflow.tracking import MlflowClient

    filler.study("search-1", trials=4)  # the last two run
    filler.connection.execute("UPDATE runs SET state = 'queued', attempt = 0 WHERE run_id = 'search-1-t3'")
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    client = MlflowClient(tracking_uri=uri)

    def after(number: int, state: str) -> str:
        """The study's status when this trial has ended so."""
        filler.connection.execute(
            "UPDATE runs SET state = ?, ended_at = ? WHERE run_id = ?", (state, NOW, f"search-1-t{number}")
        )
        export(filler.connection, read_subject(filler.connection, f"search-1-t{number}"), "mlflow", uri, replace=False)
        experiment = client.get_experiment_by_name("gputui")
        assert experiment is not None
        [study] = client.search_runs([experiment.experiment_id], "attributes.run_name = 'search-1'")
        return str(study.info.status)

    filler.connection.execute("UPDATE runs SET state = 'running', ended_at = NULL WHERE run_id = 'search-1-t1'")
    assert [after(0, "succeeded"), after(1, "failed")] == ["RUNNING", "RUNNING"]
    # One that never began has no run there that could finish the study.
    assert after(2, "succeeded") == "FINISHED"
    filler.connection.execute("UPDATE runs SET attempt = 1 WHERE run_id = 'search-1-t3'")
    assert after(3, "failed") == "FINISHED"


def test_a_file_of_our_own_is_no_refusal_of_mlflow(filler: Filler, tmp_path: Path) -> None:
    filler.study("search-1", trials=3)
    lock = filler.workspace.database.parent / "studies" / "search-1" / "mlflow.lock"
    lock.mkdir(parents=True)
    subject = read_subject(filler.connection, "search-1-t0")
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    with pytest.raises(ExportError, match=f"^cannot write {lock}: Is a directory"):
        export(filler.connection, subject, "mlflow", uri, replace=False)
    lock.rmdir()
    export(filler.connection, subject, "mlflow", uri, replace=False)
    key = key_of("mlflow", subject.run.run_id, subject.run.created_at, uri)
    with pytest.raises(KeyError, match="story"):
        make_sink("mlflow", subject, uri, key).begin({})


def follow_mlflow(filler: Filler, uri: str, run_id: str) -> None:
    """A process that follows the same run, and died before it remembered anything, writes nothing twice."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    before = {name: client.get_metric_history(run_id, name) for name in ("loss", "lr", "val/acc_uracy")}
    run_dir = filler.workspace.run_dir("net-1")
    run_dir.mkdir()
    follower = Follower(filler.workspace.database, Target("net-1", run_dir, "mlflow", uri))
    place = MemoryPlace.of(run_dir, "mlflow", memory_key_of("mlflow", "net-1", uri))
    place.make()
    place.write(Remembered(filler_created_at(filler), ExportProgress(), {"story": []}, NOW))
    filler.metrics("net-1", 2, [{"step": 3, "time": NOW + 10, "loss": 1.25}])
    assert follower.run() == 5
    after = {name: client.get_metric_history(run_id, name) for name in before}
    assert len(after.pop("loss")) == len(before.pop("loss")) + 1
    assert {name: len(history) for name, history in after.items()} == {
        name: len(history) for name, history in before.items()
    }
    assert client.get_run(run_id).info.status == "FINISHED"


def filler_created_at(filler: Filler) -> float:
    return float(filler.connection.execute("SELECT created_at FROM runs WHERE run_id = 'net-1'").fetchone()[0])


@pytest.mark.long
def test_weights_and_biases(filler: Filler, tmp_path: Path) -> None:
    """What a process left unfinished is taken away, and everything is written once."""
    target = tmp_path / "wandb"
    run_dir = filler.workspace.run_dir("net-1")
    run_dir.mkdir()
    key = key_of("wandb", "net-1", filler_created_at(filler), str(target))
    place = MemoryPlace.of(run_dir, "wandb", memory_key_of("wandb", "net-1", str(target)))
    place.make()
    place.write(Remembered(filler_created_at(filler), ExportProgress({}, {"attempt": 1}), {}, NOW))
    unfinished = target / "wandb" / f"offline-run-20261121_031200-{key}"
    unfinished.mkdir(parents=True)
    assert Follower(filler.workspace.database, Target("net-1", run_dir, "wandb", str(target))).run() == 4
    assert not unfinished.exists()
    [written] = target.rglob("run-*.wandb")
    history = [
        {".".join([item.key, *item.nested_key]).strip("."): item.value_json for item in record.history.item}
        for record in wandb_records(written)
        if record.WhichOneof("record_type") == "history"
    ]
    assert [(values["step"], values["gputui.attempt"], values.get("loss")) for values in history] == [
        ("1", "1", "2"), ("1", "1", None), ("2", "1", "NaN"), ("2", "2", "1.5"),
    ]  # fmt: skip
    assert history[1]["rank1/step_time"] == "0.25"


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_a_place_that_cannot_be_written_leaves_nothing(form: Format, filler: Filler, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"cannot write .*/gone/out: No such file or directory; choose another place"):
        write(filler, form, tmp_path / "gone" / "out")
    (tmp_path / "old").write_text("as it was")
    with pytest.raises(ExportError, match="exists already"):
        write(filler, form, tmp_path / "old")
    assert (tmp_path / "old").read_text() == "as it was"
    assert write(filler, form, tmp_path / "old", replace=True) > 0
    for place, what in ((tmp_path, "a folder"), (Path("/dev/null"), "no file")):
        with pytest.raises(ExportError, match=f"{place} is {what}"):
            write(filler, form, place, replace=True)
    assert Path("/dev/null").is_char_device()
    assert (tmp_path / "old").read_bytes() != b"as it was" and len(list(tmp_path.glob("*old*"))) == 1


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_a_disk_that_becomes_full_leaves_the_old_file(
    form: Format, filler: Filler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: LineFile, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(LineFile, "append", full)
    (tmp_path / "old").write_text("as it was")
    with pytest.raises(ExportError, match="old: No space left on device"):
        write(filler, form, tmp_path / "old", replace=True)
    assert (tmp_path / "old").read_text() == "as it was" and len(list(tmp_path.glob("*old*"))) == 1


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
    again = gputui(workspace, "export", "net-1", "--to", "csv")
    assert (again.exit_code, again.output) == (
        3, f"gputui: {tmp_path}/net-1.csv exists already; move it away or choose another place; --force replaces it\n"
    )  # fmt: skip
    assert gputui(workspace, "export", "net-1", "--to", "csv", "--force").output == "4 lines of net-1 in net-1.csv\n"
    unknown = gputui(workspace, "export", "nett-1", "--to", "csv")
    assert unknown.exit_code == 3 and "nearest: net-1" in unknown.output
    relative = gputui(workspace, "export", "net-1", "--to", "jsonl", "--out", "no/such/folder")
    assert relative.exit_code == 3 and os.strerror(errno.ENOENT) in relative.output
    assert gputui(workspace, "export", "net-1", "--to", "csv", "--follow", "--force").exit_code == 2


def test_following_by_hand(
    filler: Filler, workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    workspace.run_dir("net-1").mkdir()
    for words in ("4 lines of net-1 in net-1.csv\n", "0 lines of net-1 in net-1.csv\n"):
        done = gputui(workspace, "export", "net-1", "--to", "csv", "--follow")
        assert (done.exit_code, done.output) == (0, words)
    other = gputui(workspace, "export", "net-1", "lr", "--to", "csv", "--follow")
    assert other.exit_code == 3 and "exists already" in other.output
    (tmp_path / "mine").write_text("mine")
    taken = gputui(workspace, "export", "net-1", "--to", "jsonl", "--follow", "--out", "mine")
    assert taken.exit_code == 3 and "exists already" in taken.output
