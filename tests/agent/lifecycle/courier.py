"""An executor's program that runs nothing here: it submits a job once, mirrors its end, and may be killed meanwhile.

The far side is a process without any tag of the run, which ends when the file `finish` is there.
"""

import fcntl
import json
import os
import subprocess
import sys
import time
from pathlib import Path

FAR = 'until [ -e "$0/finish" ]; do sleep 0.02; done; echo 0 > "$0/far.tmp"; mv "$0/far.tmp" "$0/far-ended"'


def write(path: Path, record: dict[str, object]) -> None:
    path.with_suffix(".tmp").write_text(json.dumps(record))
    path.with_suffix(".tmp").replace(path)


def start_ticks(pid: int) -> int:
    text = Path(f"/proc/{pid}/stat").read_text()
    return int(text[text.rfind(")") + 2 :].split()[19])


def main(folder: Path) -> None:
    lock = os.open(folder / "attempt.lock", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return
    if (folder / "exit.json").exists():
        return
    began = time.time()
    if not (folder / "handle.json").exists():
        far = subprocess.Popen(["sh", "-c", FAR, str(folder)], start_new_session=True, env={"PATH": os.environ["PATH"]})
        write(folder / "handle.json", {"job": far.pid})
        with (folder / "submitted").open("a") as file:
            file.write("once\n")
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    own = {"shim_pid": os.getpid(), "shim_start_ticks": start_ticks(os.getpid())}
    write(folder / "started.json", {**own, "boot_id": boot, "at": began})
    while not (folder / "far-ended").exists():
        time.sleep(0.02)
    write(folder / "exit.json", {"code": 0, "signal": None, "started_at": began, "ended_at": time.time()})


main(Path(sys.argv[1]))
