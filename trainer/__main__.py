"""``python -m trainer`` or ``torchrun … -m trainer``: reads the settings, trains, and says by exit code how it went.

0: done, or stopped by a signal after a checkpoint. 1: failed. 2: a setting is wrong.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import MutableMapping, Sequence
from typing import NoReturn

from trainer import commands, config
from trainer.config import Settings
from trainer.errors import RankError, TrainerError, show

# torch reads the first; newer ones call it by the second name as well.
_ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


def prepare_environment(settings: Settings, environment: MutableMapping[str, str] = os.environ) -> None:
    """Set what CUDA's allocator and cuBLAS read when they start; keep what somebody has set."""
    name = next((name for name in _ALLOCATOR if name in environment), _ALLOCATOR[0])
    options = environment.get(name, "")
    if settings.expandable_segments and "expandable_segments" not in options:
        environment[name] = f"{options},expandable_segments:True".removeprefix(",")
    if settings.deterministic and settings.device != "cpu":
        environment.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def main(arguments: Sequence[str] | None = None) -> int:
    """One run of the trainer, or one of its commands, in this process. Only TrainerErrors become exit codes."""
    if arguments is None:
        arguments = sys.argv[1:]
    try:
        if arguments and arguments[0] in commands.NAMES:
            return commands.run(arguments[0], arguments[1:])
        settings, action = config.from_arguments(arguments, os.environ)
    except TrainerError as error:
        # On every rank: whichever ends first has the launcher end the others, which then say nothing more.
        show(f"trainer: {error}", error=True)
        return error.exit_code
    rank = os.environ.get("RANK", "0")
    if action != "train":
        if rank == "0" and action == "json_schema":
            show(json.dumps(config.json_schema(), indent=2))
        elif rank == "0":
            show(config.as_file(settings))
        return 0
    prepare_environment(settings)

    # Only now: importing torch takes a second or more, and reads the environment.
    from torch.distributed.elastic.multiprocessing.errors import record

    from trainer import run, world
    from trainer.checkpoints import still_writing

    try:
        # `record` leaves the error file that torchrun reads; it must have it before the group is torn down, because the
        # others fail in turn as soon as that happens.
        record(run.run)(settings)
    except BaseException as error:
        if rank == "0" and isinstance(error, TrainerError):  # it comes on all ranks alike
            show(f"trainer: {error}", error=True)
        elif isinstance(error, RankError):
            show(f"trainer: rank {rank}: {error}", error=True)
        # Python aborts if a thread wakes up in C++ during its exit.
        if world.leaving_may_wait() or still_writing():
            # Only the end of this process tells the others, and the launcher, that nothing more comes from it.
            _end_at_once(error)
        world.leave()
        if not isinstance(error, TrainerError):
            raise
        return error.exit_code
    world.leave()
    return 0


def _end_at_once(error: BaseException) -> NoReturn:
    """End the process as Python does, without its exit handlers."""
    code = 1
    if isinstance(error, TrainerError):
        code = error.exit_code
    elif isinstance(error, SystemExit) and isinstance(error.code, int):
        code = error.code
    else:
        traceback.print_exception(error)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    # Until training begins there is nothing to save, and who asks for a checkpoint does not want to end the run.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    sys.exit(main())
