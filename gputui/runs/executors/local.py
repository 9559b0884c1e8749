"""The executor of this machine: the shim, which needs only the standard library of Python 3.9 or later."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from gputui.runs import shim
from gputui.runs.executors.base import Executor, ExecutorGoneError


class LocalExecutor(Executor):
    """Runs attempts on this machine."""

    file_name = Path(shim.__file__).name

    def program(self, folder: Path, locks: Sequence[int] = ()) -> tuple[str, ...]:
        for needed in (sys.executable, shim.__file__):
            if not Path(needed).is_file():
                raise ExecutorGoneError(
                    f"{needed} is gone; install gputui again, then gputui agent stop and gputui agent start"
                )
        return (sys.executable, "-I", "-S", shim.__file__, str(folder), *map(str, locks))
