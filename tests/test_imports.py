"""Imports of each module: a static graph cannot see a deferred import that is not deferred."""

from __future__ import annotations

import json
import subprocess
import sys
from graphlib import TopologicalSorter

import grimp
import pytest

HEAVY = ("torch", "textual", "rich", "transformers", "numpy", "plotext", "sqlite_utils", "pandas")


def loaded_by(statement: str) -> set[str]:
    """The top-level packages that are loaded after ``statement`` in a fresh interpreter."""
    code = f"{statement}\nimport json, sys\nprint(json.dumps(sorted({{name.split('.')[0] for name in sys.modules}})))"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
    return set(json.loads(output.splitlines()[-1]))


@pytest.mark.parametrize(
    ("statement", "forbidden"),
    [
        (
            "import gputui; gputui.log({}, step=1)",
            {*HEAVY, "pydantic", "yaml", "click", "sqlite3", "msgspec", "psutil"},
        ),
        (
            "import gputui; gputui.runs, gputui.metrics",
            {*HEAVY, "pydantic", "yaml", "click", "psutil", "pynvml", "watchdog", "polars", "trainer"},
        ),
        ("import gputui.agent.startup", {*HEAVY, "pydantic", "yaml", "click", "psutil", "pynvml", "trainer"}),
        ("import gputui.machine.sampler", {*HEAVY, "pydantic", "yaml", "click", "sqlite3", "watchdog", "trainer"}),
        ("import gputui.ui.main", {*HEAVY, "pydantic", "yaml", "psutil", "pynvml", "watchdog", "trainer"}),
        (
            "from gputui.ui.cli import ps, show, gpus, run_verbs",
            {*HEAVY, "pydantic", "yaml"},
        ),
        ("import gputui.ui.cli.run, gputui.ui.cli.study", {*HEAVY, "pydantic", "yaml", "optuna", "trainer"}),
        ("import gputui.ui.cli.check", {*HEAVY, "trainer"}),
        ("import gputui.ui.once", {*HEAVY, "pydantic", "yaml", "psutil", "pynvml", "watchdog", "trainer"}),
        ("import gputui.ui.tui.app", {"torch", "pydantic", "numpy", "plotext", "psutil", "pynvml", "trainer"}),
        ("import trainer.__main__", {"torch", "gputui"}),
    ],
)
def test_heavy_packages_stay_where_they_belong(statement: str, forbidden: set[str]) -> None:
    assert not loaded_by(statement) & forbidden


def test_the_screen_does_not_reach_into_the_agent() -> None:
    code = "import gputui.ui.tui.app, sys; print([m for m in sys.modules if m.startswith('gputui.agent')])"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
    assert output.strip() == "[]"


def test_the_api_loads_no_package_with_the_name_of_a_function() -> None:
    code = "import gputui, sys; print(gputui.run, [m for m in ('gputui.runs', 'gputui.metrics') if m in sys.modules])"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
    assert output.strip().endswith("[]")


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Nor for types alone, nor inside of functions."""
    graph = grimp.build_graph("gputui", "trainer")
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert list(TopologicalSorter(imports).static_order())
