"""The program in this process, from its entry to its exit code: nothing is started but what a verb itself starts."""

from __future__ import annotations

import json
import sys
from typing import Any, NamedTuple
from unittest.mock import patch

from click.testing import CliRunner

from gputui.core.config import Workspace
from gputui.ui.main import entry


class Done(NamedTuple):
    code: int
    stdout: str
    stderr: str


def call(workspace: Workspace, *arguments: str, **environ: str) -> Done:
    argv = ["gputui", "--home", str(workspace.state.parent), *arguments]
    with CliRunner().isolation(env=environ) as (out, err, _), patch.object(sys, "argv", argv):
        try:
            entry()
            code = 0
        except SystemExit as ended:
            code = int(ended.code or 0)
        sys.stdout.flush()
        return Done(code, out.getvalue().decode(), err.getvalue().decode())


def output_of(workspace: Workspace, *arguments: str, code: int = 0, **environ: str) -> str:
    """The output of a command; its errors too, if it fails."""
    done = call(workspace, *arguments, **environ)
    assert done.code == code, done
    return done.stdout if code == 0 else done.stdout + done.stderr


def json_of(workspace: Workspace, *arguments: str, code: int = 0) -> Any:
    return json.loads(output_of(workspace, *arguments, "--json", code=code))


def error_of(workspace: Workspace, *arguments: str, code: int) -> str:
    """The error of a refused command: every line begins with the program's name, nothing is printed
    beside it."""
    done = call(workspace, *arguments)
    assert (done.code, done.stdout) == (code, ""), done
    assert done.stderr, done
    assert all(line.startswith("gputui: ") for line in done.stderr.splitlines()), done
    return done.stderr
