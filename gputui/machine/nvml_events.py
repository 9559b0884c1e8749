"""XIDs that the driver reports while it is open. Earlier ones are only in the kernel log."""

from __future__ import annotations

import contextlib
from ctypes import c_void_p, cast
from typing import Any

_XID_CRITICAL_ERROR = 0x8  # nvmlEventTypeXidCriticalError in nvml.h
_AT_ONCE_MAX = 64


class XidEvents:
    """An event set over all GPUs of a session. Drivers without events (old ones, WSL) report none."""

    def __init__(self, nvml: Any, handles: dict[str, Any]) -> None:
        self._nvml = nvml
        self._uuids: dict[int | None, str] = {}
        self._set: Any = None
        with contextlib.suppress(nvml.NVMLError):
            self._set = nvml.nvmlEventSetCreate()
        if self._set is None:
            return
        for uuid, handle in handles.items():
            with contextlib.suppress(nvml.NVMLError):
                nvml.nvmlDeviceRegisterEvents(handle, _XID_CRITICAL_ERROR, self._set)
                self._uuids[_address(handle)] = uuid

    def read(self) -> list[tuple[str, int]]:
        """Return (UUID, XID) of the events since the last call, without waiting."""
        found: list[tuple[str, int]] = []
        if not self._uuids:
            return found
        # Any error ends the reading: usually a timeout. The fast tier reports a lost GPU.
        with contextlib.suppress(self._nvml.NVMLError):
            while len(found) < _AT_ONCE_MAX:
                data = self._nvml.nvmlEventSetWait_v2(self._set, 0)
                uuid = self._uuids.get(_address(data.device))
                if uuid is not None and data.eventType & _XID_CRITICAL_ERROR:
                    found.append((uuid, int(data.eventData)))
        return found

    def close(self) -> None:
        if self._set is not None:
            with contextlib.suppress(self._nvml.NVMLError):
                self._nvml.nvmlEventSetFree(self._set)
            self._set = None
            self._uuids.clear()


def _address(handle: Any) -> int | None:
    return cast(handle, c_void_p).value
