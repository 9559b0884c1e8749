"""Which code a run was launched with: the commit of its working directory, and what differed from it then."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

GIT_SECONDS = 5.0
MOST_DIFF_BYTES = 256 << 10
CUT = "\n… cut here: the diff is longer\n"


def read_code(workdir: Path) -> dict[str, Any] | None:
    """``{commit, branch, changed_files, diff}`` of the git checkout that a folder lies in; None if it is in none, or
    git does not answer. ``branch`` is None if none is checked out. ``diff`` is from the commit to the files as they
    are, without those that git does not know, which ``changed_files`` counts too."""
    names = _git(workdir, "rev-parse", "HEAD", "--abbrev-ref", "HEAD")
    if names is None or len(names.split()) != 2:
        return None
    commit, branch = names.split()
    changed = _git(workdir, "status", "--porcelain")
    diff = _git(workdir, "diff", "HEAD", "--no-color", "--no-ext-diff", "--no-textconv")
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
    """What may be in the database: a diff may hold a secret."""
    return None if code is None else {name: value for name, value in code.items() if name != "diff"}


def code_words(code: Any) -> str | None:
    """``1a2b3c4d on main, 2 files changed``; None if it is not known."""
    if not isinstance(code, Mapping) or not code.get("commit"):
        return None
    words = str(code["commit"])[:8]
    if code.get("branch"):
        words += f" on {code['branch']}"
    count = code.get("changed_files")
    if isinstance(count, int) and count:
        words += f", {count} file{'' if count == 1 else 's'} changed"
    return words


def _git(workdir: Path, *words: str) -> str | None:
    # What a checkout configures to be run beside git must not run at a launch.
    argv = ["git", "-c", "core.fsmonitor=false", "-C", str(workdir), *words]
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, errors="replace", timeout=GIT_SECONDS, check=False,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
