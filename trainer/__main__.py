"""``python -m trainer`` or ``torchrun … -m trainer``: reads the settings, trains, and says by exit code how it went.

0: done, or stopped by a signal after a checkpoint. 1: failed. 2: a setting is wrong.

torch is imported only when the settings are right and its environment variables are set.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import traceback
from collections.abc import MutableMapping, Sequence
from typing import NoReturn

from trainer import commands, config
from trainer.config import Settings
from trainer.errors import RankError, SettingsError, TrainerError, show

# torch reads the first; newer ones call it by the second name as well.
_ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


def prepare_environment(settings: Settings, environment: MutableMapping[str, str] = os.environ) -> None:
    """Set what CUDA's allocator and cuBLAS read when they start; keep other values."""
    if settings.expandable_segments:
        for name in [name for name in _ALLOCATOR if name in environment] or _ALLOCATOR[:1]:
            environment[name] = _with_expandable_segments(environment.get(name, ""))
    if settings.deterministic and settings.device != "cpu":
        environment.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def _with_expandable_segments(options: str) -> str:
    rest = re.sub(r"\s*expandable_segments\s*:\s*\w+\s*,?", "", options).strip().rstrip(",")
    return f"{rest},expandable_segments:True" if rest else "expandable_segments:True"


def main(arguments: Sequence[str] | None = None) -> int:
    """One run of the trainer, or one of its commands, in this process. Only TrainerErrors become exit codes."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if given and given[0] in commands.NAMES:
        try:
            return commands.run(given[0], given[1:])
        except TrainerError as error:
            return _report(error)
    try:
        settings, action = config.from_arguments(given, os.environ)
    except SettingsError as error:
        # On every rank: whichever ends first has the launcher end the others, which then say nothing more.
        show(f"trainer: {error}", error=True)
        return error.exit_code
    if action != "train":
        if _is_main():
            schema = action == "json_schema"
            print(json.dumps(config.json_schema(), indent=2) if schema else settings.model_dump_json(indent=2))
        return 0
    prepare_environment(settings)

    # Only now: importing torch takes a second or more, and a wrong flag should not.
    from torch.distributed.elastic.multiprocessing.errors import record

    from trainer import run, world
    from trainer.checkpoints import still_writing

    try:
        # `record` leaves the error file that torchrun reads; it must have it before the group is torn down, because the
        # others fail in turn as soon as that happens.
        record(run.run)(settings)
    except BaseException as error:
        code = _report(error) if isinstance(error, TrainerError) else None
        # Python aborts if a thread wakes up in C++ during its exit.
        if world.leaving_may_wait() or still_writing():
            # Only the end of this process tells the others, and the launcher, that nothing more comes from it.
            _end_at_once(error, code)
        world.leave()
        if code is None:
            raise
        return code
    world.leave()
    return 0


def _is_main() -> bool:
    return os.environ.get("RANK", "0") == "0"


def _report(error: TrainerError) -> int:
    """One line: from rank 0 what comes on all ranks alike, else from the rank that has met it."""
    if _is_main():
        show(f"trainer: {error}", error=True)
    elif isinstance(error, RankError):
        show(f"trainer: rank {os.environ['RANK']}: {error}", error=True)
    return error.exit_code


def _end_at_once(error: BaseException, code: int | None) -> NoReturn:
    """What Python does at the end of a process, but for everything that runs at its exit."""
    if code is None and isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else 1
    elif code is None:
        traceback.print_exception(error)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1 if code is None else code)


if __name__ == "__main__":
    # Until training begins there is nothing to save, and who asks for a checkpoint does not want to end the run.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    sys.exit(main())
