"""A disk that is full for a while."""

from __future__ import annotations

import math
import os
import random
import shutil
import subprocess
import time
from pathlib import Path

SIZE = "96m"
# So long after the disk has room again, a stopped process may still go on with what it wanted to write.
LATER_SECONDS = 10.0
# The disk is sometimes full for so long that a command gets no answer.
LONG_SECONDS = 24.0


def mount(folder: Path) -> bool:
    """Make of the folder a small file system; False where that may not be done here."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        return False
    command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(folder)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def unmount(folder: Path) -> None:
    subprocess.run(["umount", "-l", str(folder)], check=False)


class Disk:
    """The small file system of the home, which is filled and freed."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self.ballast = folder / "ballast"
        self.folder = folder
        self.chance = chance
        self.until: float | None = None
        # Begin and end of each time that it was full, in UTC unix seconds.
        self.spells: list[tuple[float, float]] = []

    def fill(self) -> str | None:
        """Leave no room for some seconds. None where there is none already."""
        if self.until is not None:
            return None
        seconds = LONG_SECONDS if self.chance.random() < 0.1 else self.chance.uniform(0.2, 4.0)
        self.until = time.monotonic() + seconds
        self.spells.append((time.time(), math.inf))
        with self.ballast.open("wb", buffering=0) as file:
            status = os.statvfs(self.folder)
            try:
                os.posix_fallocate(file.fileno(), 0, max(status.f_bavail * status.f_frsize, 1))
                file.seek(0, os.SEEK_END)
                while file.write(b"\0" * 4096):
                    pass
            except OSError:
                pass
        return "disk filled and freed"

    def turn(self) -> None:
        """Free it when its time has come."""
        if self.until is not None and time.monotonic() >= self.until:
            self.free()

    def free(self) -> None:
        self.ballast.unlink(missing_ok=True)
        if self.until is not None:
            self.spells[-1] = (self.spells[-1][0], time.time())
            self.until = None

    def was_full(self, at: float) -> bool:
        """Return whether what ended at this time may have found no room. It may have ended a little
        later."""
        return any(begin <= at <= end + LATER_SECONDS for begin, end in self.spells)
