"""A run gets what the shell had that launched it, not the one that once started the agent."""

from __future__ import annotations

import json
import os
import sys

from tests.machine import Machine

SECRET = "hf_aVerySecretTokenOfMine"


def test_each_run_gets_the_shell_that_launched_it_also_from_a_later_agent(machine: Machine) -> None:
    script = machine.folder / "shows.py"
    script.write_text(
        "import json, os, pathlib\n"
        "seen = {name: os.environ.get(name) for name in ('FOO', 'HF_TOKEN', 'TERM', 'GPUTUI_ATTEMPT')}\n"
        "open('made', 'w').close()\n"
        "seen['mode'] = os.stat('made').st_mode & 0o777\n"
        "with open(os.environ['GPUTUI_RUN_DIR'] + '/seen', 'a') as file: file.write(json.dumps(seen) + '\\n')\n"
        "print('token', os.environ['HF_TOKEN'])\n"
    )
    profile = machine.profile(
        "shows", f"name: shows\nlauncher: python\npython: {sys.executable}\nscript: shows.py\ngpus: 0\n"
    )
    machine.gputui("agent", "start")
    variables = {**os.environ, "FOO": "of the launcher", "HF_TOKEN": SECRET, "TERM": "xterm"}
    with machine.start("run", profile, "--wait", env=variables, umask=0o022) as process:
        _, errors = process.communicate(timeout=90)
    assert process.returncode == 0, errors
    machine.gputui("agent", "stop")
    machine.gputui("restart", "shows-1")
    machine.wait_for("shows-1", "succeeded")
    folder = machine.workspace.run_dir("shows-1")
    seen = [json.loads(line) for line in (folder / "seen").read_text().splitlines()]
    expected = {"FOO": "of the launcher", "HF_TOKEN": SECRET, "TERM": None, "mode": 0o644}
    assert seen == [{**expected, "GPUTUI_ATTEMPT": "1"}, {**expected, "GPUTUI_ATTEMPT": "2"}]
    private = [folder / "spec.json", *(folder / f"attempts/{number}/attempt.json" for number in (1, 2))]
    assert all(SECRET in path.read_text() and path.stat().st_mode & 0o777 == 0o600 for path in private)
    stored = [path for path in machine.workspace.state.glob("gputui.db*") if SECRET.encode() in path.read_bytes()]
    assert stored == [] and SECRET not in machine.workspace.agent_log.read_text()
