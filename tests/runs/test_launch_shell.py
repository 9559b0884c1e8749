"""The environment of the launching shell, which the command gets as it was."""

from __future__ import annotations

import json
import os
import resource

import pytest
from msgspec.structs import replace

from gputui.core.config import Workspace
from gputui.runs.launch_shell import capture, passed_on
from gputui.runs.redaction import redact_spec, secrets_of
from gputui.runs.spec import RunSpec
from gputui.runs.submission import SPEC_FILE, read_ticket, ticket_to_renew, write_spec
from tests.runs.test_shim import Attempt, attempt  # noqa: F401 - a fixture

SPEC = RunSpec("job", "command", ("true",), "/")

SHOWS = """
import json, os, resource
print(json.dumps({
    "environment": dict(os.environ), "umask": os.umask(0), "nice": os.getpriority(os.PRIO_PROCESS, 0),
    "affinity": sorted(os.sched_getaffinity(0)), "NOFILE": resource.getrlimit(resource.RLIMIT_NOFILE),
}))
"""


def test_what_is_of_a_terminal_or_of_another_run_stays_behind() -> None:
    passed = {"PATH": "/bin", "HF_TOKEN": "x", "LD_LIBRARY_PATH": "/lib", "CONDA_PREFIX": "/c", "XDG_RUNTIME_DIR": "/r"}
    passed |= {"TERMINAL_COUNT": "1", "BASH_FUNC_module%%": "() {\n}", "ODD": "\udcff"}
    dropped = (
        "TERM COLORTERM SSH_TTY SSH_AUTH_SOCK DISPLAY TMUX TMUX_PANE STY WINDOWID COLUMNS LINES _ SHLVL PWD OLDPWD"
    )
    dropped += " DBUS_SESSION_BUS_ADDRESS XDG_SESSION_ID GPUTUI_HOME GPUTUI_RUN_DIR GPUTUI_AGENT RANK WORLD_SIZE"
    dropped += " TORCHELASTIC_RUN_ID INVOCATION_ID"
    assert passed_on(passed | dict.fromkeys(dropped.split(), "x")) == passed


def test_a_shell_is_kept_whole_in_the_private_specification_only() -> None:
    shell = capture({"HF_TOKEN": "hf_secret_value", "ODD": "\udcff"})
    spec = RunSpec("job", "command", ("true",), "/", shell=shell)
    again = RunSpec.from_json(json.loads(json.dumps(spec.to_json())))
    assert again.shell == shell
    assert again.shell.environment["ODD"] == "\udcff"
    assert redact_spec(spec).shell is None
    assert secrets_of(spec) == {"hf_secret_value"}
    assert RunSpec.from_json({**SPEC.to_json(), "shell": None}).shell is None
    assert shell.limits["NOFILE"] == resource.getrlimit(resource.RLIMIT_NOFILE)


def test_a_run_on_a_target_is_started_again_with_the_variables_of_the_shell_that_asks(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CONF", "/etc/now")
    local_spec = SPEC
    target_spec = replace(SPEC, target={"name": "lab", "kind": "slurm"}, shell=capture({"HF_TOKEN": "x"}))
    for run_id, spec in (("a-1", local_spec), ("a-2", target_spec)):
        workspace.run_dir(run_id).mkdir()
        write_spec(workspace.run_dir(run_id) / SPEC_FILE, spec)
    assert ticket_to_renew(workspace, "a-1") == {}
    ticket = ticket_to_renew(workspace, "a-2", lambda target: {**target, "time": "2h"})["ticket"]
    _, renewed = read_ticket(workspace, ticket)
    assert renewed.target == {"name": "lab", "kind": "slurm", "time": "2h"}
    assert renewed.shell is not None
    assert target_spec.shell is not None
    assert renewed.shell.clients is not None
    assert renewed.shell.clients["SLURM_CONF"] == "/etc/now"
    assert renewed.shell.environment == target_spec.shell.environment


def test_a_command_gets_what_its_launchers_shell_had(attempt: Attempt) -> None:  # noqa: F811
    cpu = min(os.sched_getaffinity(0))
    shell = {
        "environment": {"FOO": "launcher", "PATH": os.environ["PATH"]},
        "limits": {"NOFILE": [321, 321], "NO_SUCH": [1, 1]},
        "nice": 7,
        "affinity": [cpu],
        "umask": 0o027,
    }
    attempt.start(SHOWS, inherit={"FOO": "agent", "BAR": "agent"}, shell=shell)
    assert attempt.ended()["code"] == 0
    settings = json.loads(attempt.output())
    assert (settings["umask"], settings["nice"], settings["affinity"], settings["NOFILE"]) == (
        0o027,
        7,
        [cpu],
        [321, 321],
    )
    assert settings["environment"]["FOO"] == "launcher"
    assert "BAR" not in settings["environment"]
    assert settings["environment"]["GPUTUI_ATTEMPT"] == "1"
    paths = [attempt.folder / name for name in ("started.json", "exit.json", "output.log")]
    assert all(path.stat().st_mode & 0o077 == 0 for path in paths)
