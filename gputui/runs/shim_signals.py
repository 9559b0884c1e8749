"""The signals of the shim: which ones it waits for, which it survives, and how its command gets the usual ones back.

Standard library only, for any Python from 3.9 on: the shim imports it on targets too.
"""

from __future__ import annotations

import contextlib
import os
import signal

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
WATCHED = (*STOP_SIGNALS, signal.SIGUSR2, signal.SIGCHLD)
# Faults of the shim itself, job control, and signals without an effect by default.
LEFT_ALONE = (
    *(signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGSYS, signal.SIGTRAP),
    *(signal.SIGKILL, signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGCONT),
    *(signal.SIGURG, signal.SIGWINCH),
)


def awaited_signal(numbers: tuple[int, ...], timeout: float) -> int | None:
    """One of the blocked signals ``numbers`` that arrives within ``timeout`` seconds."""
    info = signal.sigtimedwait(numbers, timeout)
    # If the process was stopped (SIGSTOP) beyond the timeout, Python returns uninitialized memory.
    if info is not None and info.si_signo in numbers:
        return info.si_signo
    return None


def signal_all(pids: set[int], number: int) -> None:
    """Signal descendants. A stopped one handles signals only when continued."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
            if number != signal.SIGKILL:
                os.kill(pid, signal.SIGCONT)


def survive_signals() -> None:
    """Make this process outlive all other signals, because an attempt whose shim is killed loses its exit.

    They are caught, not ignored: the command would inherit ignored ones.
    """
    for number in signal.valid_signals() - {*WATCHED, *LEFT_ALONE}:
        if signal.getsignal(number) is signal.SIG_DFL:
            with contextlib.suppress(OSError):
                signal.signal(number, lambda *_: None)


def restore_signals() -> None:
    """Give a process that the shim starts the usual signal settings; runs between fork and exec."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
