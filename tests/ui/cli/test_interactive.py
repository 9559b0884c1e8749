"""Opening the screen where it cannot be drawn."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def test_a_screen_that_would_be_drawn_into_a_file_is_refused(tmp_path: Path) -> None:
    theirs, ours = os.openpty()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "gputui", "--home", str(tmp_path)],
            stdin=ours, stdout=ours, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
        )  # fmt: skip
    finally:
        os.close(ours)
        os.close(theirs)
    assert done.returncode == 2
    assert "no 2>FILE" in done.stderr and len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "state").exists()
