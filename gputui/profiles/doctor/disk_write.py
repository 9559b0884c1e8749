"""Write a file to the disk and print how many seconds that took. Runs as a separate process.

python -m gputui.profiles.doctor.disk_write PATH BYTES
"""

from __future__ import annotations

import os
import sys
import time

from gputui.core.config import PRIVATE_FILE_MODE

_CHUNK_BYTES = 4 * 2**20


def main(path: str, size_bytes: int) -> int:
    """The bytes are random, because some disks and file systems compress."""
    chunk = os.urandom(_CHUNK_BYTES)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_FILE_MODE)
        # Unlinked at once, so that nothing is left if this process is killed.
        os.unlink(path)  # noqa: PTH108
        began = time.monotonic()
        left = size_bytes
        while left > 0:
            left -= os.write(descriptor, chunk[:left])
        os.fsync(descriptor)
    except OSError as error:
        sys.stderr.write(f"{error.strerror or error}\n")
        return 1
    sys.stdout.write(f"{time.monotonic() - began}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
