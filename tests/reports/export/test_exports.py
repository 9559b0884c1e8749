"""Exports, read back by the tools that they are for."""

from __future__ import annotations

import csv
import json
import math
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gputui.core.config import Workspace
from gputui.reports.export.formats import FORMATS, Format
from gputui.reports.export.mlflow_sink import valid_name, without_login
from gputui.reports.export.sink import ExportError
from gputui.reports.export.subject import read_subject
from gputui.reports.export.whole import export
from tests.homes import NOW, Home
from tests.texts import mentions
from tests.ui.cli.program import output_of

PREFIXES = {"mlflow": "sqlite:///"}
"""What stands before the path in a target."""


ODD = (
    "grad//norm", "/loss", "loss/", "./x", "layer.0/../w", "../x", "..", ".", "", "/", "...x", "a/./b", "//", "a/..",
    "rank1//x", "val/acc,uracy", "x" * 251, "é" * 300, "a/" * 300, "." * 400, "\ud800", "loss\n",
)  # fmt: skip


@pytest.fixture
def home(home: Home) -> Home:
    home.run("net-1", "succeeded", name="net", params={"lr": 0.5, "note": 'a,b\n"c"'}, attempt=2, ended_ago=1.0)
    home.attempt("net-1", 1, "failed")
    home.attempt("net-1", 2, "succeeded")
    home.metrics("net-1", 1, [
        {"step": 0, "time": NOW, "rank": 0, "event": "start"},
        {"step": 1, "time": NOW + 1, "rank": 0, "loss": 2.0, "lr": 0.5},
        {"step": 1, "time": NOW + 1, "rank": 1, "step_time": 0.25},
        {"step": 2, "time": NOW + 2, "rank": 0, "loss": float("nan")},
    ])  # fmt: skip
    home.metrics("net-1", 2, [{"step": 2, "time": NOW + 9.5, "rank": 0, "loss": 1.5, "val/acc,uracy": 0.75}])
    return home


def write(home: Home, form: Format, target: Path | str, *, replace: bool = False) -> int:
    subject = read_subject(home.connection, "net-1", form, str(target))
    return export(subject, form, str(target), replaces=replace)


@pytest.mark.parametrize("form", FORMATS)
def test_missing_folders_are_made(form: Format, home: Home, tmp_path: Path) -> None:
    target = tmp_path / "new" / "folder" / "out"
    output_of(home.workspace, "export", "net-1", "--to", form, "--out", f"{PREFIXES.get(form, '')}{target}")
    assert target.exists()


def test_files_hold_what_was_measured(home: Home, tmp_path: Path) -> None:
    import pyarrow.parquet

    counts = {form: write(home, form, tmp_path / f"out.{form}") for form in ("csv", "jsonl", "parquet")}
    assert counts == {"csv": 4, "jsonl": 8, "parquet": 4}
    assert list(tmp_path.glob("*.new")) == []
    with (tmp_path / "out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["loss"] for row in rows] == ["2.0", "", "nan", "1.5"]
    assert [row["attempt"] for row in rows] == ["1", "1", "1", "2"]
    assert rows[1]["rank"] == "1"
    assert float(rows[3]["time"]) == NOW + 9.5
    assert rows[3]["val/acc,uracy"] == "0.75"
    # JSON lines are those that were written, between the events of the run.
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert lines[0]["event"] == "gputui.run"
    assert lines[0]["params"]["lr"] == 0.5
    assert lines[2] == {"run": "net-1", "attempt": 1, "step": 0, "time": NOW, "rank": 0, "event": "start"}
    assert lines[5]["loss"] == "NaN"
    assert lines[7]["attempt"] == 2
    begun = [(place, line["attempt"]) for place, line in enumerate(lines) if line.get("event") == "gputui.attempt"]
    assert begun == [(1, 1), (6, 2)]
    table = pyarrow.parquet.read_table(tmp_path / "out.parquet")
    losses = table["loss"].to_pylist()
    assert losses[0] == 2.0
    assert losses[1] is None
    assert math.isnan(losses[2])
    assert table["time"].to_pylist()[3] == datetime.fromtimestamp(NOW + 9.5, UTC)
    assert table["step_time"].to_pylist()[1] == 0.25


def test_tensorboard(home: Home, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert write(home, "tensorboard", tmp_path / "board") == 4
    read = EventAccumulator(str(tmp_path / "board")).Reload()
    losses = read.Scalars("loss")
    # The second attempt began with step 2, so the first attempt's lines from there on are discarded.
    assert [(event.step, event.value) for event in losses] == [(1, 2.0), (2, 1.5)]
    assert losses[1].wall_time == pytest.approx(NOW + 9.5)
    assert read.Scalars("rank1/step_time")[0].value == 0.25
    parameters = read.Tensors("gputui.parameters")[-1].tensor_proto.string_val[0].decode()
    assert "| lr | 0.5 |" in parameters
    story = read.Tensors("gputui.story")[-1].tensor_proto.string_val[0].decode()
    assert story.splitlines() == ["- attempt 1 begins", "- attempt 2 begins"]
    with pytest.raises(ExportError, match="not empty"):
        write(home, "tensorboard", tmp_path / "board")


@pytest.mark.long
def test_mlflow(home: Home, tmp_path: Path) -> None:
    from mlflow.tracking import MlflowClient

    uri = f"sqlite:///{tmp_path}/mlflow.db"
    assert write(home, "mlflow", uri) == 4
    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("gputui")
    assert experiment is not None
    [run] = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == ("net-1", "FINISHED")
    assert run.data.params["lr"] == "0.5"
    assert run.data.tags["gputui.run"] == "net-1"
    history = client.get_metric_history(run.info.run_id, "loss")
    assert sorted(metric.step for metric in history) == [1, 2, 2]
    assert run.data.metrics["val/acc_uracy"] == 0.75
    assert client.get_metric_history(run.info.run_id, "rank1/step_time")[0].timestamp == round((NOW + 1) * 1000)
    assert run.data.tags["mlflow.note.content"].count("begins") == 2
    with pytest.raises(ExportError, match=r"holds net-1 already, as run \w+"):
        write(home, "mlflow", uri)
    with pytest.raises(ExportError, match=r"MLflow refuses nothing://h: (?!.*hunter2)"):
        write(home, "mlflow", "nothing://ada:hunter2@h")


def test_a_place_that_cannot_be_written_leaves_nothing(home: Home, tmp_path: Path) -> None:
    forms: tuple[Format, ...] = ("csv", "jsonl", "parquet")
    old = tmp_path / "old"
    (tmp_path / "file").touch()
    for form in forms:
        with pytest.raises(ExportError, match=r"cannot write .*/file/folder: .*; choose another"):
            write(home, form, tmp_path / "file" / "folder" / "out")
        old.write_text("as it was")
        with pytest.raises(ExportError, match="exists already"):
            write(home, form, old)
        assert old.read_text() == "as it was"
        assert write(home, form, old, replace=True) > 0
        for place, what in ((tmp_path, "a folder"), (Path("/dev/null"), "no file")):
            with pytest.raises(ExportError, match=f"{place} is {what}"):
                write(home, form, place, replace=True)
        assert Path("/dev/null").is_char_device()
        assert old.read_bytes() != b"as it was", form
        assert len(list(tmp_path.glob("*old*"))) == 1, form


@pytest.mark.long
def test_mlflow_takes_every_name() -> None:
    validation = pytest.importorskip("mlflow.utils.validation")
    for name in ODD:
        valid = valid_name(name)
        validation._validate_metric_name(valid)
        validation._validate_param_name(valid)
        assert valid
        assert len(valid) <= validation.MAX_ENTITY_KEY_LENGTH == 250


def test_an_address_is_shown_without_its_login_only() -> None:
    uris = {
        "http://ada:hunter2@host:5000/x": "http://host:5000/x",
        "http://ada:hunt@r2@host": "http://host",
        "http://token@host": "http://host",
        "postgresql://ada:hun/ter2@host/db": "postgresql://host/db",
        "http://host:5000/me@lab": "http://host:5000/me@lab",
        "sqlite:////data/me@lab/ml.db": "sqlite:////data/me@lab/ml.db",
        "databricks": "databricks",
    }
    assert {uri: without_login(uri) for uri in uris} == uris


def test_the_command(home: Home, workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def export(arguments: str, code: int = 0) -> str:
        return output_of(workspace, "export", *arguments.split(), code=code)

    assert mentions(export("net-1 loss --to csv"), "3 lines", "net-1.csv")
    assert (tmp_path / "net-1.csv").read_text().splitlines()[0] == "attempt,rank,step,time,loss"
    assert mentions(export("net-1 --to csv", 3), "gputui: ", f"{tmp_path}/net-1.csv", "--force")
    assert mentions(export("net-1 --to csv --force"), "4 lines", "net-1.csv")
