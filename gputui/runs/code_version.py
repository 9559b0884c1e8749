"""The code that a run is launched with: the commit of its folder, and the changes since."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from gputui.core.units import count_of

GIT_SECONDS = 5.0  # a launch waits for it
MOST_DIFF_BYTES = 256 << 10  # some 5000 lines; what is longer is generated
CUT = "\n… cut here: the diff is longer\n"


def read_code(workdir: Path) -> dict[str, Any] | None:
    """``{commit, branch, changed_files, diff}`` of the git checkout around a folder; None if it is in none, or git
    fails.

    The branch is None for a detached HEAD. The diff is from the commit to the tracked files; changed files count
    untracked ones too.
    """
    names = run_git(workdir, "rev-parse", "HEAD", "--abbrev-ref", "HEAD")
    if names is None or len(names.split()) != 2:
        return None
    commit, branch = names.split()
    changed = run_git(workdir, "status", "--porcelain")
    diff = run_git(workdir, "diff", "HEAD", "--no-color", "--no-ext-diff", "--no-textconv")
    if changed is None or diff is None:
        return None
    if len(diff) > MOST_DIFF_BYTES:
        diff = diff[:MOST_DIFF_BYTES].rpartition("\n")[0] + CUT
    return {
        "commit": commit,
        "branch": None if branch == "HEAD" else branch,
        "changed_files": len(changed.splitlines()),
        "diff": diff,
    }


def without_diff(code: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The code version for the database, which must not hold a diff's secrets."""
    if code is None:
        return None
    return {name: value for name, value in code.items() if name != "diff"}


def code_words(code: Any) -> str | None:
    """``1a2b3c4d on main, 2 files changed``; None if unknown."""
    if not isinstance(code, Mapping) or not code.get("commit"):
        return None
    branch = code.get("branch")
    count = code.get("changed_files")
    text = str(code["commit"])[:8]
    if branch:
        text += f" on {branch}"
    if count:
        return f"{text}, {count_of(count, 'file')} changed"
    return text


def run_git(
    checkout: Path,
    *arguments: str,
    seconds: float = GIT_SECONDS,
    input_text: str = "",
    environment: Mapping[str, str] = MappingProxyType({}),
) -> str | None:
    """The output of git in a checkout, with ``input_text`` as its input; None if it fails or is late."""
    # Programs that a checkout configures to run along with git must not run.
    argv = ["git", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-C", str(checkout), *arguments]
    try:
        done = subprocess.run(
            argv, input=input_text, capture_output=True, text=True, errors="replace", timeout=seconds,
            check=False, env={**os.environ, "GIT_OPTIONAL_LOCKS": "0", **environment},
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode == 0:
        return done.stdout
    return None
