"""A process without pidfds, as old kernels and some sandboxes have it: a seccomp filter that refuses their calls."""

from __future__ import annotations

import ctypes
import errno
import platform
import struct

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _MODE_FILTER = 38, 22, 2
_LOAD_NUMBER, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
# The same on all architectures (since Linux 5.1 and 5.3).
_PIDFD_SEND_SIGNAL, _PIDFD_OPEN = 424, 434


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def forbid_pidfds(number: int = errno.ENOSYS, *, open_too: bool = True) -> bool:
    """Refuse pidfd_send_signal and, with ``open_too``, pidfd_open with ``number`` in this process and its children,
    for good. False where this kernel does not allow the filter."""
    if platform.machine() not in ("x86_64", "aarch64"):
        return False
    refused = [_PIDFD_SEND_SIGNAL, *([_PIDFD_OPEN] if open_too else [])]
    code = [(_LOAD_NUMBER, 0, 0, 0)]
    code += [(_JUMP_IF_EQUAL, len(refused) - at, 0, call) for at, call in enumerate(refused)]
    code += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _ERRNO | number)]
    # The last jump falls through to the permission, the others over it.
    packed = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *line) for line in code))
    program = _Program(len(code), ctypes.cast(packed, ctypes.c_void_p))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        return False
    return bool(libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(program), 0, 0) == 0)
