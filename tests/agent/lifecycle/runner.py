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
        write(folder / "handle.json", {"job": str(far.pid)})
        with (folder / "submitted").open("a") as file:
            file.write("once\n")
    boot = f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()}/{Path('/proc/self/ns/pid').stat().st_ino}"
    shim_fields = {"shim_pid": os.getpid(), "shim_start_ticks": start_ticks(os.getpid())}
    job = json.loads((folder / "handle.json").read_text())["job"]
    write(folder / "started.json", {**shim_fields, "boot_id": boot, "at": None})
    state = ""
    while not (folder / "far-ended").exists():
        reported = (folder / "far-state").read_text().strip() if (folder / "far-state").exists() else "running"
        if reported != state:
            state = reported
            if state == "running":
                write(folder / "started.json", {**shim_fields, "boot_id": boot, "at": began})
            report = {"job": job, "state": state, "reason": "Priority" if state == "pending" else None}
            write(folder / "placement.json", {**report, "nodes": ["node1"], "contact_at": time.time()})
        time.sleep(0.02)
    write(folder / "placement.json", {"job": job, "state": "ended", "contact_at": time.time()})
    write(folder / "exit.json", {"code": 0, "signal": None, "started_at": began, "ended_at": time.time()})


main(Path(sys.argv[1]))
