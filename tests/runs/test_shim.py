"""The shim with real processes: what it starts, how it stops it, and that nothing is ever left behind."""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from gputui.runs import shim
from gputui.runs.identity import identify, is_alive, marked_processes
from tests.conftest import wait_until


class Attempt:
    """An attempt folder and the shim that works on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process: subprocess.Popen[bytes] | None = None

    def start(
        self,
        code: str,
        *,
        grace_seconds: float = 5.0,
        argv: list[str] | None = None,
        inherit: Mapping[str, str] | None = None,
        program: str = shim.__file__,
        **plan: Any,
    ) -> None:
        record = {
            "argv": argv or [sys.executable, "-c", code],
            "env": {"GPUTUI_RUN_DIR": str(self.folder), "GPUTUI_ATTEMPT": "1"},
            "cwd": str(self.folder),
            "grace_seconds": grace_seconds,
            "lock_files": [],
            **plan,
        }
        (self.folder / "attempt.json").write_text(json.dumps(record))
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", program, str(self.folder)],
            start_new_session=True,
            env={**os.environ, **(inherit or {})},
        )

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def started(self) -> dict[str, Any]:
        path = self.folder / "started.json"
        wait_until(path.exists, what="the start")
        return dict(json.loads(path.read_text()))

    def has_tried(self) -> bool:
        """Whether the shim has done what it does around the start of its command, and waits or has ended."""
        assert self.process is not None
        if not (self.folder / "output.log").exists() or self.process.poll() is not None:
            return self.process.poll() is not None
        own = Path(f"/proc/{self.process.pid}")
        is_asleep = own.joinpath("stat").read_text().rpartition(") ")[2].startswith("S")
        return is_asleep and not own.joinpath(f"task/{self.process.pid}/children").read_text()

    def ended(self) -> dict[str, Any]:
        assert self.process is not None
        self.process.wait(40)
        return dict(json.loads((self.folder / "exit.json").read_text()))

    def output(self) -> str:
        path = self.folder / "output.log"
        return path.read_text() if path.exists() else ""


@pytest.fixture
def attempt(tmp_path: Path) -> Iterator[Attempt]:
    made = Attempt(tmp_path)
    yield made
    if made.process is not None and made.process.poll() is None:
        made.process.kill()
    for identity in marked_processes(tmp_path):
        os.kill(identity.pid, signal.SIGKILL)


def left_over(attempt: Attempt) -> list[int]:
    return [identity.pid for identity in marked_processes(attempt.folder)]


def test_an_exit_code_and_the_output_are_kept(attempt: Attempt) -> None:
    attempt.start("import sys; print('hello'); print('oops', file=sys.stderr); sys.exit(7)")
    ended = attempt.ended()
    assert (ended["code"], ended["signal"], ended["stop_requested"]) == (7, None, False)
    assert ended["ended_at"] >= ended["started_at"]
    assert ended["max_rss_bytes"] > 1_000_000
    assert sorted(attempt.output().split()) == ["hello", "oops"]


def test_a_death_by_signal_is_told_apart(attempt: Attempt) -> None:
    attempt.start("import os; os.kill(os.getpid(), 9)")
    ended = attempt.ended()
    assert (ended["code"], ended["signal"]) == (None, signal.SIGKILL)


def test_the_end_of_a_command_that_ends_at_once_is_not_lost(attempt: Attempt) -> None:
    """It is over while the shim still writes down that it began."""
    attempt.start("", argv=["/bin/sh", "-c", "exit 3"])
    assert attempt.ended()["code"] == 3


def test_a_command_that_cannot_start_is_said(attempt: Attempt) -> None:
    attempt.start("", argv=["/does/not/exist"])
    ended = attempt.ended()
    assert ended["code"] is None
    assert "No such file" in ended["error"]
    assert "/does/not/exist" in ended["error"]


def test_a_command_that_cannot_start_for_the_moment_is_tried_again(attempt: Attempt) -> None:
    program = attempt.folder / "program"
    shutil.copy("/bin/true", program)
    with program.open("ab"):
        attempt.start("", argv=[str(program)])
        wait_until(attempt.has_tried, what="the first try")
    ended = attempt.ended()
    assert (ended["code"], ended["error"]) == (0, None)


def test_a_stop_ends_a_command_that_cannot_start_for_the_moment(attempt: Attempt) -> None:
    program = attempt.folder / "program"
    shutil.copy("/bin/true", program)
    with program.open("ab"):
        attempt.start("", argv=[str(program)])
        wait_until(attempt.has_tried, what="the first try")
        attempt.signal(signal.SIGTERM)
        ended = attempt.ended()
    assert ended["stop_requested"] and ended["code"] is None and "busy" in ended["error"]


def test_the_record_names_living_processes(attempt: Attempt) -> None:
    attempt.start("import time; time.sleep(60)")
    started = attempt.started()
    identity = identify(started["pid"])
    assert identity is not None
    assert identity.start_ticks == started["start_ticks"]
    attempt.signal(signal.SIGUSR2)
    ended = attempt.ended()
    assert (ended["signal"], ended["forced"], ended["stop_requested"]) == (signal.SIGKILL, True, True)
    assert not is_alive(identity)


def test_a_stop_lets_the_command_finish_its_work(attempt: Attempt) -> None:
    attempt.start(
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (print('saved', flush=True), sys.exit(0)))\n"
        "print('ready', flush=True)\ntime.sleep(60)"
    )
    wait_until(lambda: "ready" in attempt.output())
    attempt.signal(signal.SIGTERM)
    ended = attempt.ended()
    assert (ended["code"], ended["stop_requested"], ended["forced"]) == (0, True, False)
    assert "saved" in attempt.output()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
def test_the_signal_that_asked_for_a_stop_is_told(attempt: Attempt, number: signal.Signals) -> None:
    attempt.start("import time; time.sleep(60)")
    attempt.started()
    attempt.signal(number)
    ended = attempt.ended()
    assert (ended["signal"], ended["stop_requested"], ended["stop_signal"]) == (signal.SIGTERM, True, number)


def test_no_other_signal_loses_the_end_of_the_command(attempt: Attempt) -> None:
    attempt.start("import os, sys, time\nwhile not os.path.exists('go'):\n    time.sleep(0.01)\nsys.exit(7)")
    attempt.started()
    for number in (
        *(signal.SIGHUP, signal.SIGUSR1, signal.SIGPIPE, signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF),
        *(signal.SIGPOLL, signal.SIGPWR, signal.SIGXCPU, signal.SIGXFSZ, signal.SIGRTMIN, signal.SIGRTMAX),
    ):
        attempt.signal(number)
    (attempt.folder / "go").touch()
    ended = attempt.ended()
    assert (ended["code"], ended["stop_requested"], ended["stop_signal"]) == (7, False, None)


def test_the_command_has_no_signal_ignored_or_blocked_but_what_was_before(attempt: Attempt) -> None:
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    # A job of a shell in the background has more of them.
    (ignored,) = re.findall(r"SigIgn:\s(\w+)", Path("/proc/self/status").read_text())
    try:
        attempt.start("", argv=["/bin/grep", "-E", "SigIgn|SigBlk", "/proc/self/status"])
    finally:
        signal.signal(signal.SIGUSR1, before)
    attempt.ended()
    sets = dict(line.split(":") for line in attempt.output().splitlines())
    assert int(sets["SigBlk"], 16) == 0
    # Python ignores these for itself and gives them back to what it starts.
    own = {signal.SIGPIPE, signal.SIGXFSZ}
    assert int(sets["SigIgn"], 16) == int(ignored, 16) & ~sum(1 << (number - 1) for number in own)


def test_a_command_that_ignores_a_stop_is_killed_after_its_grace(attempt: Attempt) -> None:
    attempt.start(
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('ready', flush=True)\ntime.sleep(60)",
        grace_seconds=0.5,
    )
    wait_until(lambda: "ready" in attempt.output())
    attempt.signal(signal.SIGTERM)
    ended = attempt.ended()
    assert (ended["signal"], ended["forced"]) == (signal.SIGKILL, True)
    assert left_over(attempt) == []


def test_workers_in_sessions_of_their_own_are_asked_and_then_gone(attempt: Attempt) -> None:
    """A worker that called setsid and whose parent is gone still belongs to the attempt, and gets a SIGTERM first."""
    worker = (
        "import os, signal, sys, time\n"
        "os.setsid()\n"
        "def leave(*_):\n    print('worker asked', flush=True)\n    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, leave)\nprint('worker ready', flush=True)\ntime.sleep(60)"
    )
    attempt.start(
        "import subprocess, sys, time\n"
        f"subprocess.Popen([sys.executable, '-c', {worker!r}])\n"
        f"subprocess.Popen([sys.executable, '-c', {worker.replace('leave)', 'signal.SIG_IGN)')!r}])\n"
        "time.sleep(60)"
    )
    wait_until(lambda: attempt.output().count("worker ready") == 2)
    attempt.signal(signal.SIGTERM)
    ended = attempt.ended()
    assert ended["signal"] == signal.SIGTERM
    assert attempt.output().count("worker asked") == 1
    assert ended["survivors"] == []
    assert left_over(attempt) == []


SAVES_WHEN_ASKED = """
import os, signal, sys, threading
asked = threading.Event()
def note(*_):
    print("asked", flush=True)
    asked.set()
signal.signal(signal.SIGTERM, note)
print("ready", flush=True)
while not asked.wait(0.05):
    pass
while not os.path.exists("let"):
    pass
print("saved", flush=True)
"""


@pytest.mark.parametrize("pipe", ["", "| tee copy"], ids=["behind a shell", "behind a pipe"])
def test_a_script_behind_a_command_that_a_stop_ends_at_once_has_the_rest_of_its_grace(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch, pipe: str
) -> None:
    """The save lasts longer than what is left of a run is given without a stop."""
    script = attempt.folder / "train.py"
    script.write_text(SAVES_WHEN_ASKED)
    # In a process of its own, so that the short time of the sweep passes while the script waits.
    program = attempt.folder / "short_shim.py"
    program.write_text(
        f"import runpy, sys\nsys.argv[0] = {shim.__file__!r}\n"
        f"names = runpy.run_path({shim.__file__!r})\nnames['main'].__globals__['STRAY_GRACE_SECONDS'] = 0.0\n"
        "def note(self, pids, before=names['Shim'].ask):\n"
        "    before(self, pids)\n"
        "    if self.status is not None: (self.directory / 'swept').touch()\n"
        "names['Shim'].ask = note\nsys.exit(names['main']())"
    )
    attempt.start(
        "", argv=["bash", "-c", f"{sys.executable} train.py {pipe}; echo over"], grace_seconds=30, program=str(program)
    )
    wait_until(lambda: "ready" in attempt.output())
    attempt.signal(signal.SIGTERM)
    wait_until((attempt.folder / "swept").exists, what="the sweep")
    wait_until(lambda: "asked" in attempt.output())
    (attempt.folder / "let").touch()
    ended = attempt.ended()
    assert attempt.output().split() == ["ready", "asked", "saved"]
    assert (ended["signal"], ended["stop_requested"], ended["forced"]) == (signal.SIGTERM, True, False)
    assert left_over(attempt) == []


def test_what_a_stop_leaves_is_killed_when_the_grace_is_over_and_that_is_told(attempt: Attempt) -> None:
    code = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(60)"
    )
    attempt.start("", argv=["bash", "-c", f'{sys.executable} -c "{code}"; echo over'], grace_seconds=0.5)
    wait_until(lambda: "ready" in attempt.output())
    attempt.signal(signal.SIGTERM)
    ended = attempt.ended()
    assert (ended["signal"], ended["forced"]) == (signal.SIGTERM, True)
    assert left_over(attempt) == []


def test_the_helpers_of_a_script_that_saves_are_not_asked_before_it(attempt: Attempt) -> None:
    """It cannot finish its step without its data loaders."""
    helper = "import sys, time; print('up', flush=True); time.sleep(60)"
    script = attempt.folder / "train.py"
    script.write_text(
        "import signal, subprocess, sys, time\n"
        f"helper = subprocess.Popen([sys.executable, '-c', {helper!r}], stdout=subprocess.PIPE)\n"
        "helper.stdout.readline()\n"
        "def save(*_):\n"
        "    try:\n        helper.wait(1)\n        print('lost', flush=True)\n"
        "    except subprocess.TimeoutExpired:\n        print('saved', flush=True)\n"
        "    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, save)\nprint('ready', flush=True)\ntime.sleep(60)\n"
    )
    attempt.start("", argv=["bash", "-c", f"{sys.executable} train.py; echo over"], grace_seconds=20)
    wait_until(lambda: "ready" in attempt.output())
    attempt.signal(signal.SIGTERM)
    ended = attempt.ended()
    assert attempt.output().split() == ["ready", "saved"]
    assert (ended["forced"], left_over(attempt)) == (False, [])


def test_a_stop_after_the_end_gives_what_was_left_no_grace(attempt: Attempt) -> None:
    """A daemon that ignores SIGTERM holds nobody up for longer than without a stop."""
    daemon = (
        "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); os.write(int(os.environ['UP']), b'.');"
        "time.sleep(600)"
    )
    attempt.start(
        "import os, subprocess, sys\nup, write = os.pipe()\nos.set_inheritable(write, True)\n"
        "environment = {**os.environ, 'UP': str(write)}\n"
        f"subprocess.Popen([sys.executable, '-c', {daemon!r}], env=environment, close_fds=False)\n"
        "os.read(up, 1)",
        grace_seconds=600,
    )
    pid = attempt.started()["pid"]
    wait_until(lambda: pid not in shim.all_pids(), what="the end of the command")
    attempt.signal(signal.SIGTERM)
    assert attempt.ended()["code"] == 0


def test_a_stopped_process_is_ended_too(attempt: Attempt) -> None:
    attempt.start(
        "import os, signal, time\nprint('ready', flush=True)\nos.kill(os.getpid(), signal.SIGSTOP)\ntime.sleep(9)"
    )
    wait_until(lambda: "ready" in attempt.output())
    attempt.signal(signal.SIGTERM)
    assert attempt.ended()["signal"] == signal.SIGTERM
    assert left_over(attempt) == []


def test_what_a_finished_command_left_behind_is_swept(attempt: Attempt) -> None:
    attempt.start("import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])")
    ended = attempt.ended()
    assert (ended["code"], len(ended["left_behind"])) == (0, 1)
    assert left_over(attempt) == []


def test_a_helper_that_ends_by_itself_is_not_left_behind(attempt: Attempt) -> None:
    attempt.start("import subprocess; subprocess.Popen(['sleep', '0.05'])")
    assert attempt.ended()["left_behind"] == []


BEGUN_IN_THE_END = """
import os
os.set_inheritable(os.open("alive", os.O_WRONLY), True)
if os.fork() == 0:
    os.setsid()
    for _ in range(200):
        if os.fork():
            os._exit(0)
    os.execve("/bin/sleep", ["sleep", "60"], {})
"""
BEGUN_WHEN_ASKED = """
import os, signal
os.set_inheritable(os.open("alive", os.O_WRONLY), True)
ready, is_ready = os.pipe()
if os.fork() == 0:
    def ask(*_):
        for _ in range(50):
            if os.fork():
                os._exit(0)
        os.execve("/bin/sleep", ["sleep", "60"], {})
    signal.signal(signal.SIGTERM, ask)
    os.write(is_ready, b".")
    while True:
        signal.pause()
os.read(ready, 1)
"""


@pytest.mark.parametrize("code", [BEGUN_IN_THE_END, BEGUN_WHEN_ASKED], ids=["in the end", "when asked"])
def test_a_process_begun_while_the_others_are_ended_is_ended_too(attempt: Attempt, code: str) -> None:
    """No look at the list of processes sees one whose parents end meanwhile; its environment is empty."""
    alive = attempt.folder / "alive"
    os.mkfifo(alive)
    held = os.open(alive, os.O_RDONLY | os.O_NONBLOCK)
    try:
        attempt.start(code)
        assert attempt.ended()["survivors"] == []
        # It would block while any process had the other end.
        assert os.read(held, 1) == b""
    finally:
        os.close(held)


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="a child of root needs root")
def test_a_command_that_cannot_be_killed_is_given_up() -> None:
    """As what sudo starts: the shim is an ordinary user's, its child root's."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        become_root = folder / "become-root"
        shutil.copy(str(shutil.which("setpriv")), become_root)
        become_root.chmod(0o4755)
        plan = {
            "argv": [str(become_root), "--reuid=0", "--regid=0", "--clear-groups", "sleep", "600"], "cwd": name,
            "grace_seconds": 0.5, "lock_files": [], "env": {"GPUTUI_RUN_DIR": name, "GPUTUI_ATTEMPT": "1"},
        }  # fmt: skip
        (folder / "attempt.json").write_text(json.dumps(plan))
        # What the interpreter needs lies where an ordinary user cannot read it, so it is loaded before.
        program = f"""
import encodings.ascii, os, pathlib
from gputui.runs import shim
shim.UNKILLABLE_SECONDS = 1.0
os.setgroups([]); os.setgid(65534); os.setuid(65534)
shim.Shim(pathlib.Path({name!r})).run()
"""
        process = subprocess.Popen([sys.executable, "-c", program])
        try:
            wait_until((folder / "started.json").exists, what="the start")
            pid = int(json.loads((folder / "started.json").read_text())["pid"])
            if not wait_until(lambda: Path(f"/proc/{pid}/comm").read_text() == "sleep\n", what="the command"):
                pytest.skip("no program becomes root here")
            process.terminate()
            process.wait(20)
            ended = json.loads((folder / "exit.json").read_text())
            assert (ended["code"], ended["signal"], ended["survivors"], ended["forced"]) == (None, None, [pid], True)
            listed = json.loads((folder / "processes.json").read_text())["processes"]
            assert [entry["pid"] for entry in listed] == [pid]
        finally:
            process.kill()
            with contextlib.suppress(ProcessLookupError, UnboundLocalError):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_the_end_of_a_command_that_filled_the_disk_is_told(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(small)], capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        attempt = Attempt(small)
        attempt.start("open('all', 'wb', buffering=0).write(bytes(2_000_000)); open('more', 'w').write('x' * 9999)")
        ended = attempt.ended()
        assert ended["code"] == 1 and os.statvfs(small).f_bavail <= 1
        assert ended["disk_free_bytes"] < 100_000
        assert not (small / "exit.json.tmp").exists()
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
@pytest.mark.parametrize("pages", range(6))
def test_a_command_that_ran_is_never_called_one_that_did_not_start(tmp_path: Path, pages: int) -> None:
    """However little room the shim finds on the disk when it begins."""
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(small)], capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        attempt = Attempt(small)
        with (small / "ballast").open("wb", buffering=0) as ballast:
            # The plan takes a page of its own.
            ballast.write(bytes((16 - 1 - pages) * 4096))
        ran = tmp_path / "ran"
        attempt.start("", argv=["/bin/sh", "-c", f"touch {ran}; rm {small}/ballast"])
        ended = attempt.ended()
        assert (ran.exists(), ended["code"], ended["error"]) in ((True, 0, None), (False, None, ended["error"]))
        assert ran.exists() or "No space" in ended["error"]
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)


def test_locks_are_all_or_none(attempt: Attempt, tmp_path: Path) -> None:
    import fcntl

    free, taken = tmp_path / "a.lock", tmp_path / "b.lock"
    with taken.open("w") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        attempt.start("print('never')", lock_files=[str(free), str(taken)])
        ended = attempt.ended()
    assert ended["lease_conflict"] == [str(taken)]
    assert attempt.output() == ""
    with free.open("w") as again:
        fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_lock_is_held_while_the_attempt_lives(attempt: Attempt, tmp_path: Path) -> None:
    import fcntl

    lock = tmp_path / "gpu.lock"
    attempt.start("import time; time.sleep(60)", lock_files=[str(lock)])
    attempt.started()
    with lock.open("r+") as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    attempt.signal(signal.SIGUSR2)
    attempt.ended()
    with lock.open("r+") as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.parametrize(("group", "joins"), [("a" * 16, True), ("b" * 16, False), (None, False)])
def test_a_lock_is_shared_within_its_group_alone(
    attempt: Attempt, tmp_path: Path, group: str | None, joins: bool
) -> None:
    plan = {"lock_files": [str(tmp_path / "gpu.lock")]}
    attempt.start("import time; time.sleep(60)", **plan, lock_group="a" * 16)
    attempt.started()
    (tmp_path / "other").mkdir()
    other = Attempt(tmp_path / "other")
    other.start("print('ran')", **plan, lock_group=group)
    ended = other.ended()
    assert (ended["lease_conflict"] is None, ended["code"]) == ((True, 0) if joins else (False, None))
    attempt.signal(signal.SIGUSR2)
    attempt.ended()


def test_a_second_shim_leaves_the_attempt_alone(attempt: Attempt) -> None:
    attempt.start("import time; time.sleep(60)")
    first = attempt.started()
    second = subprocess.run([sys.executable, "-I", "-S", shim.__file__, str(attempt.folder)], timeout=20, check=False)
    assert second.returncode == 0
    assert json.loads((attempt.folder / "started.json").read_text()) == first
    assert not (attempt.folder / "exit.json").exists()
    attempt.signal(signal.SIGUSR2)
    attempt.ended()


def test_the_shim_needs_the_standard_library_only() -> None:
    """It must start in an environment without gputui, also when gputui is being upgraded under it."""
    code = f"import runpy, sys; runpy.run_path({shim.__file__!r}, run_name='shim'); print(sys.modules.keys())"
    loaded = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True).stdout
    assert "gputui" not in loaded
    assert "psutil" not in loaded


@pytest.mark.parametrize(("kill_comes", "counted"), [("early", 0), ("late", 1)])
def test_only_a_kill_shortly_before_the_end_counts(tmp_path: Path, kill_comes: str, counted: int) -> None:
    """The shim runs in a process of its own, with a short look and a file in place of the kernel's counter."""
    counter, looks = tmp_path / "counter", tmp_path / "looks"
    counter.write_text("oom_kill 4\n")
    command = f"""
import pathlib, time
counter, looks = pathlib.Path({str(counter)!r}), pathlib.Path({str(looks)!r})
def kill():
    counter.write_text("oom_kill 5\\n")
def wait_for_looks(more):
    until = len(looks.read_text()) + more
    while len(looks.read_text()) < until:
        time.sleep(0.01)
if {kill_comes!r} == "early":
    kill()
    wait_for_looks(2)
else:
    wait_for_looks(2)
    kill()
"""
    plan = {
        "argv": [sys.executable, "-c", command], "cwd": str(tmp_path), "grace_seconds": 5.0, "lock_files": [],
        "env": {"GPUTUI_RUN_DIR": str(tmp_path), "GPUTUI_ATTEMPT": "1"},
    }  # fmt: skip
    (tmp_path / "attempt.json").write_text(json.dumps(plan))
    program = f"""
import pathlib
from gputui.runs import shim
def look():
    with open({str(looks)!r}, "a") as file:
        file.write(".")
    return {{"cgroup": None, "host": shim.counter_in(pathlib.Path({str(counter)!r}))}}
shim.oom_kills, shim.OOM_LOOK_SECONDS = look, 0.2
shim.Shim(pathlib.Path({str(tmp_path)!r})).run()
"""
    subprocess.run([sys.executable, "-c", program], timeout=40, check=True)
    assert json.loads((tmp_path / "exit.json").read_text())["oom_kills"] == {
        "cgroup": None, "host": counted, "processes": 0
    }  # fmt: skip


def test_victims_of_others_are_told_from_those_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = shim.OomWatch()
    told = iter([{5, 7}, set(), {8}])
    monkeypatch.setattr(watch, "log", 0)
    monkeypatch.setattr(watch, "read_log", lambda: next(told, set()))
    watch.read_victims({5})
    found = watch.record()
    assert (found["oom_victims"], found["oom_own_victims"]) == ([5, 7], [7])
    # What is older than two looks has nothing to do with the end.
    watch.look(set())
    watch.look(set())
    watch.read_victims({5})
    assert watch.record()["oom_own_victims"] == []
    watch.read_victims(set())
    assert watch.record()["oom_own_victims"] == [8]


@pytest.mark.parametrize(
    ("groups", "counters", "expected"),
    [
        ("0::/user.slice/a b.scope\n", {"user.slice/a b.scope/memory.events": "oom 4\noom_kill 3\n"}, 3),
        ("0::/\n4:cpu,memory:/job\n", {"memory/job/memory.oom_control": "under_oom 0\noom_kill 2\n"}, 2),
        ("4:memory:/job\n0::/\n", {"memory.events": "oom_kill 5\n"}, 5),
        ("0::/gone\n", {}, None),
        ("0::/x\n", {"x/memory.events": "oom_kill many\n"}, None),
    ],
)
def test_oom_kills_of_the_control_group_are_counted(
    tmp_path: Path, groups: str, counters: dict[str, str], expected: int | None
) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self/cgroup").write_text(groups)
    (tmp_path / "vmstat").write_text("nr_free_pages 7\noom_kill 9\n")
    for name, text in counters.items():
        (tmp_path / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "groups" / name).write_text(text)
    assert shim.oom_kills(tmp_path, tmp_path / "groups") == {"cgroup": expected, "host": 9}


def agent_entry(folder: Path) -> dict[str, Any]:
    """What starts an agent: here one that writes its environment and ends."""
    code = f"import os, pathlib; pathlib.Path({str(folder / 'agent-ran')!r}).write_text(repr(dict(os.environ)))"
    return {
        "argv": [sys.executable, "-c", code],
        "set": {"GPUTUI_AGENT": "1"},
        "unset": ["GPUTUI_RUN_DIR"],
        "lock": str(folder / "agent.lock"),
        "stopped": str(folder / "agent.stopped"),
        "log": str(folder / "agent.log"),
    }


def test_the_end_of_a_run_starts_an_agent_where_none_lives(attempt: Attempt) -> None:
    dead = {"pid": 2**22 - 1, "start_ticks": 1, "boot_id": "x"}
    (attempt.folder / "agent.lock").write_text(json.dumps(dead))
    attempt.start("import sys; sys.exit(1)", agent=agent_entry(attempt.folder))
    attempt.ended()
    environment = wait_until(
        lambda: path.read_text() if (path := attempt.folder / "agent-ran").exists() else None, what="the agent"
    )
    assert "'GPUTUI_AGENT': '1'" in environment and "GPUTUI_RUN_DIR" not in environment


@pytest.mark.parametrize("why", ["an agent lives", "stopped on purpose", "the run was asked to stop"])
def test_no_agent_is_started_where_none_is_wanted(attempt: Attempt, why: str) -> None:
    own = identify(os.getpid())
    assert own is not None
    if why == "an agent lives":
        holder = {"pid": own.pid, "start_ticks": own.start_ticks, "boot_id": own.boot_id}
        (attempt.folder / "agent.lock").write_text(json.dumps(holder))
    if why == "stopped on purpose":
        (attempt.folder / "agent.stopped").touch()
    attempt.start("import time; time.sleep(60)", agent=agent_entry(attempt.folder))
    attempt.started()
    if why == "the run was asked to stop":
        attempt.signal(signal.SIGTERM)
    else:
        os.kill(attempt.started()["pid"], signal.SIGKILL)
    attempt.ended()
    assert not (attempt.folder / "agent.log").exists()


IMPATIENT = f"""
import sys
sys.path.insert(0, {str(Path(shim.__file__).parents[2])!r})
from gputui.runs import shim
shim.AGENT_SECONDS = 0.05
shim.main()
"""


def test_an_agent_that_died_is_followed_by_another_while_the_run_lives(attempt: Attempt, tmp_path: Path) -> None:
    """Also where its sampler, which would start the next one, died with it, and each time that happens."""
    program = tmp_path / "impatient.py"
    program.write_text(IMPATIENT)
    code = f"import os\nwith open({str(tmp_path / 'agents')!r}, 'a') as file: file.write(f'{{os.getpid()}}\\n')"
    agent = {**agent_entry(attempt.folder), "argv": [sys.executable, "-c", code]}
    attempt.start("import time; time.sleep(600)", agent=agent, program=str(program))
    started = attempt.started()

    def agents() -> list[int]:
        path = tmp_path / "agents"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    first, second, *_ = wait_until(lambda: found if len(found := agents()) > 1 else None, what="two agents")
    assert first != second
    # What the shim started is no process of the attempt, and no zombie is left of it.
    wait_until(lambda: identify(first) is None, what="the first agent's end")
    assert first not in attempt_members(attempt)
    os.kill(started["pid"], signal.SIGKILL)
    assert attempt.ended()["signal"] == signal.SIGKILL


def attempt_members(attempt: Attempt) -> set[int]:
    listed = json.loads((attempt.folder / "processes.json").read_text())["processes"]
    return {entry["pid"] for entry in listed}


RANKS = """
import os, signal, subprocess, sys, time
if "LOCAL_RANK" not in os.environ:
    others = []
    for rank in (1, 2):
        env = {**os.environ, "LOCAL_RANK": str(rank), "WORLD_SIZE": "3"}
        others.append(subprocess.Popen([sys.executable, *sys.orig_argv[1:]], env=env))
    print(*(other.pid for other in others), flush=True)
    if MODE == "asks":
        while all(other.poll() is None for other in others):
            time.sleep(0.02)
        raise SystemExit(1)
    while open(f"/proc/{others[0].pid}/stat").read().split()[2] != "Z":
        time.sleep(0.02)
    # Lightning's asks every five seconds.
    time.sleep(3 if MODE == "waits" else 0.02)
    others[0].poll()
    # Lightning ends the others and itself so.
    os.kill(os.getpid(), signal.SIGKILL) if MODE == "waits" else sys.exit(1)
time.sleep(60)
"""


@pytest.mark.parametrize("mode", ["waits", "leaves"])
def test_a_rank_that_a_signal_ended_is_named_whoever_asked_for_its_status(attempt: Attempt, mode: str) -> None:
    """Its parent is a script that starts its ranks itself, and tells nobody."""
    attempt.start(f"MODE = {mode!r}\n{RANKS}")
    listed = attempt.folder / "processes.json"

    def ranks() -> dict[int, int]:
        entries = json.loads(listed.read_text())["processes"] if listed.exists() else []
        return {entry["rank"]: entry["pid"] for entry in entries if entry["rank"] is not None}

    wait_until(lambda: ranks().keys() == {0, 1, 2}, what="the ranks")
    victim = ranks()[1]
    os.kill(victim, signal.SIGKILL)
    killed = attempt.ended()["killed_ranks"]
    assert killed[0] == {"rank": 1, "pid": victim, "signal": signal.SIGKILL}
    # What the shim itself has ended is not among them.
    assert all(one["rank"] != 2 for one in killed)


def test_a_rank_that_is_ended_with_a_stop_is_not_named(attempt: Attempt) -> None:
    attempt.start(f"MODE = 'asks'\n{RANKS}")
    wait_until(lambda: len(attempt.output().split()) == 2, what="the ranks")
    attempt.signal(signal.SIGUSR2)
    assert attempt.ended()["killed_ranks"] == []


STUBBORN = """
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.fork()
print("ready", flush=True)
while True:
    signal.pause()
"""


def test_a_shim_without_descriptors_goes_on_and_ends_all_once_there_are_some(attempt: Attempt) -> None:
    attempt.start(STUBBORN, grace_seconds=0.5)
    wait_until(lambda: attempt.output().count("ready") == 2)
    assert attempt.process is not None
    own, command = attempt.process.pid, identify(attempt.started()["pid"])
    assert command is not None
    before = resource.prlimit(own, resource.RLIMIT_NOFILE)
    # Standard input, output and error alone.
    resource.prlimit(own, resource.RLIMIT_NOFILE, (3, before[1]))
    attempt.signal(signal.SIGTERM)
    wait_until(lambda: not is_alive(command), 20)
    assert attempt.process.poll() is None, "it waits for what the command left behind"
    resource.prlimit(own, resource.RLIMIT_NOFILE, before)
    ended = attempt.ended()
    assert (ended["signal"], ended["forced"], ended["survivors"]) == (signal.SIGKILL, True, [])
    assert left_over(attempt) == []
