"""The wheel, built from the repository and installed into an empty environment, works as the checkout does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from gputui.core.config import locate
from gputui.runs.agent_process import stop_agent

pytestmark = pytest.mark.long

REPOSITORY = Path(__file__).resolve().parent.parent

PROFILE = """
name: hello
launcher: python
script: hello.py
gpus: 0
params: {word: hi}
metrics: {source: stdout, patterns: ['step (?P<step>\\d+) loss (?P<loss>\\S+)']}
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(REPOSITORY)],
        check=True,
        capture_output=True,
        timeout=120,
    )
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_holds_what_is_needed_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert "gputui/shipped_profiles/digits-ddp.yaml" in names
    assert "gputui/shipped_profiles/custom_script.py" in names
    assert {f"gputui/shipped_studies/{name}.yaml" for name in ("digits-lr", "gpt2-pbt")} <= set(names)
    assert "gputui/store/schema.sql" in names
    assert "gputui/py.typed" in names
    pages = {f"gputui/shipped_docs/{path.name}" for path in (REPOSITORY / "docs").glob("*.md")}
    assert {name for name in names if name.startswith("gputui/shipped_docs/")} == pages
    data = ("templates/report.html.j2", "prometheus/rules.yaml", "prometheus/dashboard.json", "export/run.sql")
    assert {f"gputui/reports/{name}" for name in data} <= set(names)
    assert "trainer/__main__.py" in names
    assert any(name.endswith(".tcss") for name in names)
    assert not [name for name in names if name.startswith(("tests/", "benchmarks/", "state/"))]


def test_it_works_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    environment = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True, timeout=120)
    python = environment / "bin" / "python"
    installed = subprocess.run(
        [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-compile", str(wheel)],
        capture_output=True,
        text=True,
        timeout=170,
    )
    if installed.returncode != 0 and "No matching distribution" in installed.stderr:
        pytest.skip("the package index cannot be reached")
    assert installed.returncode == 0, installed.stderr
    home = tmp_path / "home"
    plain = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "PYTHONPATH")}

    def gputui(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(environment / "bin" / "gputui"), "--home", str(home), *arguments],
            capture_output=True, text=True, timeout=60, cwd=tmp_path, env=plain, check=False,
        )  # fmt: skip

    names = {entry["name"]: entry for entry in json.loads(gputui("profile", "list", "--json").stdout)}
    assert {"digits-ddp", "stdlib-lm", "custom-script"} <= set(names)
    assert all(entry["error"] is None for entry in names.values())
    assert "targets" in gputui("help").stdout
    assert "kepler2" in gputui("help", "targets").stdout
    refused = gputui("run", "digits-ddp")
    assert refused.returncode == 3
    assert "torch" in refused.stderr
    assert "gputui[train]" in refused.stderr
    assert "Traceback" not in refused.stderr
    (tmp_path / "hello.py").write_text("import sys\nprint('step 3 loss 0.25', sys.argv)\n")
    (tmp_path / "hello.yaml").write_text(PROFILE)
    try:
        ran = gputui("run", "hello.yaml", "--wait")
        assert ran.returncode == 0, ran.stdout + ran.stderr
        points = json.loads(gputui("metrics", "hello-1", "loss", "--json").stdout)
        assert [(point["step"], point["value"]) for point in points] == [(3, 0.25)]
    finally:
        stop_agent(locate(home, {}))
