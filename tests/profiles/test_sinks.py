"""``sinks:`` in a profile."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest

from gputui.core.yaml_forms.problems import ProfileError
from gputui.profiles.describe import describe, preview_launch
from gputui.profiles.preflight import quick_checks
from gputui.profiles.profile_file import load, read_profile
from gputui.profiles.resolve import resolve
from gputui.reports.export.formats import FORMATS
from gputui.runs.redaction import redact_spec
from gputui.runs.spec import RunSpec
from tests.tables import table
from tests.texts import mentions

Make = Callable[..., RunSpec]


def problem(sinks: str) -> str:
    with pytest.raises(ProfileError) as caught:
        read_profile(f"script: a.py\nsinks: {sinks}", Path("x.yaml"))
    return str(caught.value)


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def made(sinks: str, workdir: str = ".") -> RunSpec:
        (tmp_path / "a.py").write_text("")
        text = f"script: a.py\ngpus: 0\nworkdir: '{workdir}'\nparams: {{size: 3}}\nsinks: {sinks}"
        (tmp_path / "x.yaml").write_text(text)
        return resolve(load(tmp_path / "x.yaml"), environ={"HOME": "/home/ada"})

    return made


def check_of(spec: RunSpec, state: Path, name: str = "sinks") -> tuple[str, str]:
    [check] = [result for result in quick_checks(spec, state=state) if result.name == name]
    return check.status, f"{check.detail}; {check.remedy}"


@table(
    ("sinks", "said"),
    [
        ("tensorbord", "x.yaml:2: sinks: unknown sink; did you mean tensorboard?"),
        ("[csv, splunk]", f"x.yaml:2: sinks.1: unknown sink; there are {', '.join(FORMATS)}"),
        ("{csv: /tmp/x.csv}", "sinks.csv: every run would write to the same place; add {run_id} to it"),
        ("mlflow", "needs its address: mlflow: sqlite:////path/mlflow.db, or a server's http://…"),
        ("{mlflow: mlruns}", "expected an address such as sqlite:////path/mlflow.db or http://127.0.0.1:5000"),
        ("{mlflow: 'sqlite:///x.db'}", "the path of the database is relative; sqlite: takes four slashes"),
        ("", "sinks: has no value"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(sinks: str, said: str) -> None:
    text = problem(sinks)
    assert said in text
    assert len(text.splitlines()) == 1


def test_places(make: Make, tmp_path: Path) -> None:
    assert make("[csv, tensorboard]").sinks == {
        "csv": "{run_dir}/sinks/metrics.csv",
        "tensorboard": "{run_dir}/sinks/tensorboard",
    }
    spec = make("{jsonl: 'a/{run_id}.jsonl', csv: '~/{run_id}', parquet: , mlflow: 'http://ada:hunter2@host:5000'}")
    assert spec.sinks == {
        "jsonl": f"{tmp_path}/a/{{run_id}}.jsonl",
        "csv": "/home/ada/{run_id}",
        "parquet": "{run_dir}/sinks/metrics.parquet",
        "mlflow": "http://ada:hunter2@host:5000",
    }
    assert make("{csv: '{run_id}.csv'}", "{run_dir}").sinks == {"csv": "{run_dir}/{run_id}.csv"}
    assert RunSpec.from_json(spec.to_json()) == spec
    assert redact_spec(spec).sinks["mlflow"] == "http://ada:[redacted]@host:5000"
    description = "\n".join(describe(spec, preview_launch(spec, runs=tmp_path)))
    assert f"sinks        jsonl → {tmp_path}/a/RUN.jsonl" in description
    assert "hunter2" not in description


def test_preflight(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_of(make("[jsonl, csv]"), tmp_path) == ("pass", "jsonl, csv; None")
    (tmp_path / "file").write_text("")
    status, detail = check_of(make("{csv: 'file/{run_id}.csv'}"), tmp_path)
    assert status == "fail"
    assert mentions(detail, "csv: ", f"{tmp_path}/file", "not a folder")
    assert check_of(make("{csv: 'new/{run_id}-{size}.csv'}"), tmp_path)[0] == "pass"
    status, detail = check_of(make("{csv: '{run_id}-{siz}.csv'}"), tmp_path, "placeholders")
    assert status == "fail"
    assert mentions(detail, "{siz}", "sinks.csv", "{size}")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    status, detail = check_of(make("tensorboard"), tmp_path)
    assert status == "fail"
    assert mentions(detail, "tensorboard: ", "pip install 'gputui[trackers]'")
