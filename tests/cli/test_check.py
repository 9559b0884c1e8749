"""`gputui check` and profiles' names: the verdict, and which file was probably meant."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from gputui.cli.check import verdict
from gputui.profiles.loading import ProfileNotFoundError, find, load
from gputui.profiles.preflight import quick_checks
from gputui.profiles.resolve import interpreter, resolve
from gputui.runs.checks import CheckResult
from gputui.yaml_forms.nearest import nearest_file
from tests import forkserver
from tests.machine import Machine


def run(folder: Path, *words: str) -> Any:
    return forkserver.run(["gputui", "--home", str(folder / "home"), *words], cwd=folder, timeout=60)


@pytest.mark.parametrize(
    ("statuses", "mark"), [(("pass", "skip"), "✓"), (("pass", "warn", "warn"), "▲"), (("warn", "fail"), "✗")]
)
def test_the_verdict_follows_the_gravest_check_and_names_what_it_rests_on(statuses: tuple[Any, ...], mark: str) -> None:
    results = [CheckResult(f"check{place}", status, "") for place, status in enumerate(statuses)]
    line = verdict(results, "gputui run a")
    assert line.startswith(mark) and "gputui run a" in line
    gravest = "fail" if "fail" in statuses else "warn"
    assert all((one.name in line) == (one.status == gravest) for one in results)


def test_the_verdict_is_the_last_line_and_fits_the_exit_code(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("print(1)\n")
    (tmp_path / "a.yaml").write_text(f"script: a.py\nlauncher: python\npython: {sys.executable}\ngpus: 0\n")
    done = run(tmp_path, "check", "./a.yaml", "--gpus", "0")
    assert done.returncode == 0 and "gputui run ./a.yaml --gpus 0" in done.stdout.splitlines()[-1]
    (tmp_path / "a.py").unlink()
    done = run(tmp_path, "check", "./a.yaml")
    assert done.returncode == 2 and done.stdout.splitlines()[-1].startswith("✗")


def test_a_file_beside_is_what_a_name_without_its_ending_means(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("script: a.py\n")
    with pytest.raises(ProfileNotFoundError) as error:
        find("mine", machine.workspace, tmp_path)
    assert "./mine.yaml?" in str(error.value)


@pytest.mark.parametrize(
    ("name", "files", "meant"),
    [
        ("nosuch.yaml", ["sst.yaml", "count.yaml"], None),
        ("trian.yaml", ["train.yaml", "count.yaml"], "train.yaml"),
        ("train.yaml", ["train.yml"], "train.yml"),
        ("trian.py", ["train.py", "trial.yaml"], "train.py"),
        ("ab.yaml", ["cd.yaml"], None),
    ],
)
def test_an_ending_makes_no_two_names_alike(name: str, files: list[str], meant: str | None) -> None:
    assert nearest_file(name, files) == meant


@pytest.mark.parametrize(
    ("resume", "words"), [("--resume {checkpoint}", "is given the checkpoint"), ("--init_from=resume", "itself")]
)
def test_who_finds_the_checkpoint(tmp_path: Path, resume: str, words: str) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(f'script: a.py\ncheckpoints: {{dir: "{{run_dir}}/x", pattern: a.pt, resume: "{resume}"}}\n')
    (result,) = [one for one in quick_checks(resolve(load(path)), state=tmp_path) if one.name == "resume"]
    assert result.status == "pass" and words in result.detail


def test_doctor_asks_the_python_that_a_profile_without_one_gets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gputui.doctor.examine import current_interpreter

    (tmp_path / "bin").mkdir()
    for name in ("python", "python3"):
        (tmp_path / "bin" / name).symlink_to(sys.executable)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    assert current_interpreter().python == interpreter(None, str(tmp_path), tmp_path, {}) == sys.executable
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path))
    assert current_interpreter().python == str(tmp_path / "bin" / "python")
