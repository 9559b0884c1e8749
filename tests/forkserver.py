"""Programs of this tree without the start of an interpreter: a server that has imported what they need forks for each.

Hundreds of tests start the command line as a process, and each would spend half a second of a processor on imports; a
rank of the trainer would spend five. `Forked` is used like `subprocess.Popen`: the process has arguments, variables, a
working directory and descriptors of its own, its status comes back, signals reach it. Only its command line in /proc is
the server's. What the start itself must prove (imports, the console script, another locale) uses `subprocess` with
`sys.executable`.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import fcntl
import gc
import importlib
import inspect
import io
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
MESSAGE_MAX_BYTES = 1 << 20
_EXECUTE_CHILD = inspect.signature(subprocess.Popen._execute_child)  # type: ignore[attr-defined]


class Server:
    """The tests' end of a server, which is started when it is first needed and ends with this process."""

    def __init__(self, preloaded: str) -> None:
        self._preloaded = preloaded
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None

    def fork(self, request: dict[str, Any], descriptors: list[int]) -> int:
        """The PID of a process that runs the module of the request. ``descriptors`` are its stdin, stdout, stderr and
        where the server writes how it ended, as `os.waitpid` has it."""
        with self._lock:
            if self._socket is None:
                self._socket = self._start()
            message = json.dumps(request).encode()
            sent = array.array("i", descriptors)
            self._socket.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, sent)])
            return int(self._socket.recv(64))

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MESSAGE_MAX_BYTES)
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.forkserver", str(theirs.fileno()), self._preloaded],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            cwd=ROOT,
            start_new_session=True,
        )
        theirs.close()
        atexit.register(_end, ours, process)
        return ours


def _end(connection: socket.socket, process: subprocess.Popen[bytes]) -> None:
    connection.close()
    process.wait(60)


_SERVERS = {module: Server(module) for module in ("tests.preloaded", "tests.trainer.preloaded")}


class Forked(subprocess.Popen[str]):
    """``python -m MODULE WORDS``, forked from the server. The first argument is the module with its words.

    With ``leads_terminal`` the process leads a session of which its standard input is the controlling terminal;
    ``preloaded`` is the module that says what its server has imported.
    """

    _status_fd = -1

    def __init__(
        self, arguments: list[str], *, leads_terminal: bool = False, preloaded: str = "tests.preloaded", **options: Any
    ) -> None:
        self._leads_terminal = leads_terminal
        self._server = _SERVERS[preloaded]
        super().__init__(arguments, **options)

    def _execute_child(self, *arguments: Any) -> None:
        """In place of fork and exec; pipes were made and are used by `subprocess`."""
        call = _EXECUTE_CHILD.bind(self, *arguments).arguments
        pipes = [call[name] for name in ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")]
        assert call["preexec_fn"] is None
        assert not call["shell"]
        assert not call["pass_fds"]
        environment = dict(os.environ if call["env"] is None else call["env"])
        request = {
            "argv": [os.fspath(word) for word in call["args"]],
            "cwd": str(Path.cwd() if call["cwd"] is None else call["cwd"]),
            "env": environment,
            "session": call["start_new_session"] or self._leads_terminal,
            "terminal": self._leads_terminal,
        }
        self._status_fd, theirs = os.pipe()
        streams = [number if fd < 0 else fd for number, fd in enumerate((pipes[0], pipes[3], pipes[5]))]
        try:
            self.pid = self._server.fork(request, [*streams, theirs])
        finally:
            os.close(theirs)
            self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]
        self._child_created = True

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        os.set_blocking(self._status_fd, not wait_flags & os.WNOHANG)
        try:
            text = os.read(self._status_fd, 64)
        except BlockingIOError:
            return 0, 0
        os.close(self._status_fd)
        assert text, "the server that forks has ended"
        return self.pid, int(text)

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        if self.returncode is None and self._waitpid_lock.acquire(False):  # type: ignore[attr-defined]
            try:
                if self.returncode is None:
                    pid, status = self._try_wait(os.WNOHANG)
                    if pid == self.pid:
                        self._handle_exitstatus(status)  # type: ignore[attr-defined]
            finally:
                self._waitpid_lock.release()  # type: ignore[attr-defined]
        return self.returncode


def run(
    arguments: list[str], *, timeout: float, check: bool = False, **options: Any
) -> subprocess.CompletedProcess[str]:
    """`subprocess.run` of a module with its words, output captured as text."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
    with Forked(arguments, **options) as process:
        try:
            output, errors = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(arguments, process.returncode, output, errors)
    if check:
        done.check_returncode()
    return done


# --- the server


def serve(connection: socket.socket) -> list[str] | None:
    """Fork for each request until nobody asks any more (None); in the fork, the module and its words."""
    selector = selectors.DefaultSelector()
    selector.register(connection, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.data is not None:
                pid, theirs = key.data
                selector.unregister(key.fd)
                os.close(key.fd)
                _, status = os.waitpid(pid, 0)
                with contextlib.suppress(BrokenPipeError):
                    os.write(theirs, str(status).encode())
                os.close(theirs)
                continue
            message, descriptors, _, _ = socket.recv_fds(connection, MESSAGE_MAX_BYTES, 4)
            if not message:
                return None
            pid = os.fork()
            if pid == 0:
                selector.close()
                connection.close()
                return _become(json.loads(message), descriptors[:3])
            for fd in descriptors[:3]:
                os.close(fd)
            selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, descriptors[3]))
            connection.send(str(pid).encode())


def _become(request: dict[str, Any], streams: list[int]) -> list[str]:
    """Make of this fork the process that was asked for."""
    if request["session"]:
        os.setsid()
    # The descriptors received are all above 2, because the server's own three are open.
    for number, fd in enumerate(streams):
        os.dup2(fd, number)
    os.closerange(3, 1 << 16)
    if request["terminal"]:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    time.tzset()
    sys.stdin = sys.__stdin__ = _stream(0, "r")  # type: ignore[assignment,misc]
    sys.stdout = sys.__stdout__ = _stream(1, "w")  # type: ignore[assignment,misc]
    sys.stderr = sys.__stderr__ = _stream(2, "w", errors="backslashreplace", line_buffering=True)  # type: ignore[assignment,misc]
    argv: list[str] = request["argv"]
    return argv


def _stream(fd: int, mode: str, errors: str = "strict", line_buffering: bool = False) -> io.TextIOWrapper:
    raw = open(fd, f"{mode}b", closefd=False)  # noqa: SIM115 - as long as the process
    return io.TextIOWrapper(raw, "utf-8", errors, line_buffering=line_buffering or os.isatty(fd))


def main() -> None:
    connection = socket.socket(fileno=int(sys.argv[1]))
    importlib.import_module(sys.argv[2])
    # The imported modules are no garbage: freezing them keeps collections short.
    gc.collect()
    gc.freeze()
    arguments = serve(connection)
    if arguments is None:
        return
    module, *_ = sys.argv = arguments
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = _exit_code(end)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    # As the interpreter ends, but without taking apart every module.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
    except OSError:
        code = 120
    with contextlib.suppress(OSError):
        sys.stderr.flush()
    os._exit(code)


def _exit_code(end: SystemExit) -> int:
    if end.code is None or isinstance(end.code, int):
        return (end.code or 0) & 0xFF
    sys.stderr.write(f"{end.code}\n")
    return 1


if __name__ == "__main__":
    main()
