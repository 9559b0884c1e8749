"""Calls to NVML, each of which gives a value, None or an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

# nvmlReturn_t, from nvml.h; written out so that nothing here needs the binding at import time.
ERROR_UNINITIALIZED = 1
ERROR_INVALID_ARGUMENT = 2
ERROR_NOT_SUPPORTED = 3
ERROR_NO_PERMISSION = 4
ERROR_NOT_FOUND = 6
ERROR_INSUFFICIENT_SIZE = 7
ERROR_DRIVER_NOT_LOADED = 9
ERROR_LIBRARY_NOT_FOUND = 12
ERROR_FUNCTION_NOT_FOUND = 13
ERROR_GPU_IS_LOST = 15
ERROR_RESET_REQUIRED = 16
ERROR_LIB_RM_VERSION_MISMATCH = 18
ERROR_DEPRECATED = 26

_NEVER = frozenset({ERROR_NOT_SUPPORTED, ERROR_FUNCTION_NOT_FOUND, ERROR_DEPRECATED})
_GPU_GONE = {
    ERROR_GPU_IS_LOST: "the driver lost this GPU (it has fallen off the bus or does not answer)",
    ERROR_RESET_REQUIRED: "the driver wants this GPU reset before it can be used again",
}
_DRIVER_GONE = frozenset({ERROR_UNINITIALIZED, ERROR_DRIVER_NOT_LOADED})

# nvmlFieldValue_t.valueType → the member of nvmlValue_t that holds the value (nvmlValueType_t in
# nvml.h).
_FIELD_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
_FIELD_NEVER = _NEVER | {ERROR_INVALID_ARGUMENT}  # an older driver does not know the id

# NVML_VALUE_NOT_AVAILABLE, as 32 and as 64 bits.
_BLANK = frozenset({0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF})


class GpuGoneError(Exception):
    """The GPU's handle is invalid. The text says why."""


class DriverGoneError(Exception):
    """The driver was unloaded."""


class FieldValue(NamedTuple):
    """The value of a field, and when the driver read it."""

    value: float
    at_microseconds: int


class Calls:
    """Calls to NVML about GPUs. ``gpu`` is a key for the cache, usually the UUID."""

    def __init__(self, nvml: Any) -> None:
        self.nvml = nvml
        self.last_error: dict[str, str] = {}
        self._never: set[tuple[object, ...]] = set()

    def ask(self, gpu: str, function: str, handle: Any, *args: object) -> Any:
        """The result of ``pynvml.<function>(handle, *args)``, or None. Raises GpuGoneError,
        DriverGoneError."""
        key = (gpu, function, *args)
        if key in self._never:
            return None
        return self._guarded(gpu, key, getattr(self.nvml, function), handle, *args)

    def run(self, gpu: str, name: str, function: Callable[[], Any]) -> Any:
        """The result of a function that makes several calls; "not supported" is cached under
        ``name``. Raises GpuGoneError, DriverGoneError."""
        key = (gpu, name)
        if key in self._never:
            return None
        return self._guarded(gpu, key, function)

    def number(self, gpu: str, function: str, handle: Any, *args: object) -> int | None:
        """An integer, or None if NVML leaves it blank. Raises GpuGoneError, DriverGoneError."""
        value = self.ask(gpu, function, handle, *args)
        if value is None or value in _BLANK:
            return None
        return int(value)

    def text(self, gpu: str, function: str, handle: Any) -> str | None:
        """A string without control characters. Raises GpuGoneError, DriverGoneError."""
        value = self.ask(gpu, function, handle)
        if isinstance(value, bytes):
            value = value.decode("utf-8", "replace")
        if not isinstance(value, str):
            return None
        return "".join(character for character in value if character.isprintable()).strip() or None

    def answers(self, gpu: str, function: str, *args: object) -> bool:
        """Return whether the GPU has not answered "not supported" to this call."""
        return (gpu, function, *args) not in self._never

    def fields(self, gpu: str, handle: Any, requested: list[tuple[int, int]]) -> dict[int, FieldValue]:
        """Several field values in one call, by field ID, without unknown ones. ``requested`` holds
        (field ID, scope) pairs; unsupported ones are removed from it. Raises GpuGoneError,
        DriverGoneError."""
        if not requested:
            return {}
        answers = self.ask(gpu, "nvmlDeviceGetFieldValues", handle, tuple(requested))
        by_field: dict[int, FieldValue] = {}
        for pair, answer in zip(tuple(requested), answers or (), strict=False):
            status = answer.nvmlReturn
            if status == 0:
                kind = answer.valueType
                if 0 <= kind < len(_FIELD_MEMBERS):
                    value = getattr(answer.value, _FIELD_MEMBERS[kind])
                    if value not in _BLANK:
                        field_id, _ = pair
                        by_field[field_id] = FieldValue(value, answer.timestamp)
            elif status in _FIELD_NEVER:
                requested.remove(pair)
            elif status in _GPU_GONE:
                raise GpuGoneError(_GPU_GONE[status])
        return by_field

    def _guarded(self, gpu: str, key: tuple[object, ...], function: Callable[..., Any], *args: object) -> Any:
        try:
            return function(*args)
        except self.nvml.NVMLError as error:
            code = error.value
            if code in _NEVER:
                self._never.add(key)
            elif code in _GPU_GONE:
                raise GpuGoneError(_GPU_GONE[code]) from error
            elif code in _DRIVER_GONE:
                raise DriverGoneError from error
            else:
                self.last_error[gpu] = f"{key[1]}: {error}"
            return None
        except UnicodeDecodeError as error:
            # nvidia-ml-py decodes strictly, and some drivers return text that is not UTF-8.
            return error.object
        except Exception as error:
            # No reading of one GPU may cost the others.
            self.last_error[gpu] = f"{key[1]}: {type(error).__name__}: {error}"
            return None


def problem_of(code: int, text: str) -> str:
    """The reason why NVML cannot be opened, and the remedy, in one line."""
    if code == ERROR_LIBRARY_NOT_FOUND:
        return (
            "No NVIDIA driver found (libnvidia-ml.so.1 is missing). Install the driver, or try simulated GPUs with: "
            "gputui --demo"
        )
    if code == ERROR_DRIVER_NOT_LOADED:
        return "The NVIDIA driver is installed but not loaded. Load it with: sudo modprobe nvidia"
    if code == ERROR_LIB_RM_VERSION_MISMATCH:
        return (
            "The NVIDIA driver was updated while in use: its library and its kernel module differ in version. "
            "Reboot, or stop all GPU work and reload the nvidia kernel modules"
        )
    if code == ERROR_NO_PERMISSION:
        return "The NVIDIA driver refuses this user. Check the permissions of /dev/nvidia* (often the group video)"
    if code == ERROR_FUNCTION_NOT_FOUND:
        return "The NVIDIA driver is too old for gputui. Install release 535 or later"
    return f"The NVIDIA driver cannot be used ({text}). See what it says in the kernel log: dmesg | grep -i nvrm"
