"""The effect of setproctitle on a process: its environment is wiped, while the program itself keeps
its variables."""

import ctypes
import os


def set_title():
    environment = dict(os.environ)
    with open("/proc/self/stat") as file:  # noqa: PTH123
        fields = file.read().rpartition(")")[2].split()
    # env_start and env_end of proc_pid_stat(5)
    start = int(fields[47])
    end = int(fields[48])
    ctypes.memset(start, 0, end - start)
    for name, value in environment.items():
        os.putenv(name, value)
