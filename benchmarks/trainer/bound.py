"""A module as a rank on a core of its own: ``torchrun … -m benchmarks.trainer.bound MODULE [ARGUMENT…]``.

The kernel at times puts two ranks that wake each other on one core and leaves the other one idle. A step then takes
twice as long, whatever its loop does.
"""

from __future__ import annotations

import os
import runpy
import sys


def main() -> None:
    """Run the module; where there are fewer cores than ranks, wherever the kernel puts it."""
    cores = sorted(os.sched_getaffinity(0))
    rank = int(os.environ["LOCAL_RANK"])
    if int(os.environ["LOCAL_WORLD_SIZE"]) <= len(cores):
        os.sched_setaffinity(0, {cores[rank]})
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
