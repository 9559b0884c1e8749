"""Quantities as people read them. None, for unknown, is "–"; not finite "nan" and "inf"."""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import wraps
from typing import Concatenate, Final, ParamSpec, TypeVar

P = ParamSpec("P")
Figure = TypeVar("Figure", int, float)

UNKNOWN: Final = "–"
LEAST_PLAIN: Final = 1e-4
"""The least size of a number without an exponent, as Python writes it and a person finds it in logs and commands."""

_BINARY: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_DECIMAL: Final = ("", "k", "M", "G", "T", "P", "E")
_THIN: Final = " "


def _of_numbers(write: Callable[Concatenate[float, P], str]) -> Callable[Concatenate[float | None, P], str]:
    """Let a function that writes finite numbers write any: "–" for None, "nan", "inf"."""

    @wraps(write)
    def text(value: float | None, /, *args: P.args, **kwargs: P.kwargs) -> str:
        if value is None:
            return UNKNOWN
        if math.isfinite(value):
            return write(value, *args, **kwargs)
        return str(float(value))

    return text


def _all_three_digits(value: float) -> str:
    """A number from 0.0001 to about a thousand with three digits."""
    size = abs(value)
    limits = (99.95, 9.995, 0.9995, 0.09995, 0.009995, 0.0009995)
    decimals = next((decimals for decimals, limit in enumerate(limits) if size >= limit), len(limits))
    return f"{value:.{decimals}f}"


def _three_digits(value: float) -> str:
    """The same with three digits at most: no trailing zeros behind the point."""
    text = _all_three_digits(value)
    if "." in text:
        return text.rstrip("0").rstrip(".")
    return text


def _scaled(value: float, base: float, units: tuple[str, ...]) -> tuple[float, str]:
    """`value` divided by a power of `base` so that three digits suffice, and the power's unit."""
    index = 0
    while abs(value) >= base * (1 - 5e-4) and index < len(units) - 1:
        value /= base
        index += 1
    return value, units[index]


def _scientific(value: float, decimals: int) -> str:
    mantissa, _, exponent = f"{value:.{decimals}e}".partition("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"


@_of_numbers
def bytes_text(count_bytes: float) -> str:
    """Memory and file sizes in binary units: "347 GiB", "1.5 MiB", "12 B"."""
    value, unit = _scaled(count_bytes, 1024, _BINARY)
    if unit == "B":
        return f"{round(value)} B"
    return f"{_three_digits(value)} {unit}"


@_of_numbers
def gibibytes(count_bytes: float, decimals: int = 1) -> str:
    """The number of GiB alone, for columns that name the unit in their head: "71.2"."""
    return f"{count_bytes / 2**30:.{decimals}f}"


@_of_numbers
def byte_rate(bytes_per_second: float) -> str:
    """Throughput of disks and links in decimal units, as their vendors count: "1.2 GB/s"."""
    value, prefix = _scaled(bytes_per_second, 1000, _DECIMAL)
    return f"{_three_digits(value)} {prefix}B/s"


@_of_numbers
def watts(power_watts: float) -> str:
    """Power: "612 W", from 1 000 W on "3.41 kW"."""
    if abs(power_watts) < 999.5:
        return f"{power_watts:.0f} W"
    return f"{_three_digits(power_watts / 1000)} kW"


@_of_numbers
def percent(value_percent: float) -> str:
    """A percentage given in percent: "61%"."""
    return f"{value_percent:.0f}%"


@_of_numbers
def celsius(temperature_celsius: float) -> str:
    """A temperature: "78°C"."""
    return f"{temperature_celsius:.0f}°C"


@_of_numbers
def short_number(value: float) -> str:
    """A number in few cells: "1.23e-5", "0.05", "41.2k", "1.9M", "3.21"."""
    if value == 0:
        return "0"
    if not LEAST_PLAIN <= abs(value) < 1e21:
        return _scientific(value, 2)
    scaled, prefix = _scaled(value, 1000, _DECIMAL)
    return _three_digits(scaled) + prefix


@_of_numbers
def rate(value: float) -> str:
    """A rate with all of three digits, so that it holds still: "2.50", "41.0", "1.20k"."""
    if not 0.01 <= abs(value) < 1e21:
        return short_number(value)
    scaled, prefix = _scaled(value, 1000, _DECIMAL)
    return _all_three_digits(scaled) + prefix


@_of_numbers
def gpu_hours(value: float) -> str:
    """GPU-hours with two digits, of less than one to hundredths: "0.05", "1.5", "310", "< 0.01"."""
    if value >= 100:
        return f"{value:.0f}"
    if value >= 1:
        return f"{value:.2g}"
    if 0 < value < 0.01:
        return "< 0.01"
    return f"{value:.2f}".rstrip("0").rstrip(".") or "0"


@_of_numbers
def metric_value(value: float) -> str:
    """A metric's value with four significant digits: "1.902", "9.8e-5"; whole numbers, and those of
    at most two digits such as 0.05, as they are."""
    size = abs(value)
    if size < 1e6 and value == int(value):
        return f"{value:.0f}"
    if size < LEAST_PLAIN or size >= 1e6:
        return _scientific(value, 3)
    if value == float(f"{value:.2g}"):
        return _three_digits(value)
    decimals = max(0, 3 - math.floor(math.log10(size)))
    return f"{value:.{decimals}f}"


def parameter(value: object) -> str:
    """A parameter's value in the form of `metric_value`, without trailing zeros: "0.125", "6e-5", "true", "null"."""
    if isinstance(value, str):
        return value
    if not isinstance(value, float):
        return json.dumps(value, ensure_ascii=False, default=str)
    text = metric_value(value)
    if "." in text and "e" not in text:
        text = text.rstrip("0").rstrip(".")
    return text


@_of_numbers
def count(number: float) -> str:
    """A whole number in groups of three: "41 200"."""
    return f"{round(number):,}".replace(",", _THIN)


def count_of(number: int, noun: str) -> str:
    """``1 trial``, ``1 200 trials``, ``2 processes``."""
    if number == 1:
        return f"1 {noun}"
    ending = "es" if noun.endswith("s") else "s"
    return f"{count(number)} {noun}{ending}"


@_of_numbers
def duration(seconds: float) -> str:
    """A span of time in its two largest units: "47 s", "3 min 20 s", "2 d 5 h", "2.4 s"."""
    sign = "-" if seconds < 0 else ""
    seconds = abs(seconds)
    if seconds < 9.95:
        return f"{sign}{seconds:.1f}".removesuffix(".0") + " s"
    whole = round(seconds)
    if whole < 60:
        return f"{sign}{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return _two_units(f"{sign}{minutes} min", rest, "s")
    hours, minutes = divmod(round(seconds / 60), 60)
    if hours < 24:
        return _two_units(f"{sign}{hours} h", minutes, "min")
    days, hours = divmod(round(seconds / 3600), 24)
    return _two_units(f"{sign}{days} d", hours, "h")


def _two_units(larger: str, number: int, unit: str) -> str:
    if number == 0:
        return larger
    return f"{larger} {number} {unit}"


@_of_numbers
def age(seconds: float) -> str:
    """An age in one unit: "now", "47 s", "12 min", "3 h", "9 d"."""
    if seconds < 1:
        return "now"
    for limit, size, unit in ((60, 1, "s"), (3600, 60, "min"), (86400, 3600, "h")):
        if seconds < limit:
            return f"{int(seconds // size)} {unit}"
    return f"{int(seconds // 86400)} d"


def ago(seconds: float | None) -> str:
    """The same as a phrase: "just now", "47 s ago"."""
    text = age(seconds)
    if text == "now":
        return "just now"
    return f"{text} ago"


def sum_of_known(figures: Iterable[Figure | None]) -> Figure | None:
    """The sum of the figures that are known; None if none is."""
    known_figures = [figure for figure in figures if figure is not None]
    if not known_figures:
        return None
    return sum(known_figures)


def aligned(texts: Sequence[str]) -> list[str]:
    """The texts of numbers, padded so that right-aligned decimal points are below each other."""
    # What follows the point, with it.
    widths = [len("".join(text.partition(".")[1:])) for text in texts]
    widest = max(widths, default=0)
    padded = []
    for text, width in zip(texts, widths, strict=True):
        if text != UNKNOWN:
            text += " " * (widest - width)
        padded.append(text)
    return padded


def index_ranges(values: Sequence[int]) -> str:
    """Numbers in ascending order with runs drawn together: ``0–3, 6``."""
    parts: list[list[int]] = []
    for value in values:
        if parts and value == parts[-1][-1] + 1:
            parts[-1].append(value)
        else:
            parts.append([value])
    return ", ".join(map(_range, parts))


def _range(numbers: Sequence[int]) -> str:
    if len(numbers) == 1:
        return str(numbers[0])
    return f"{numbers[0]}–{numbers[-1]}"


def iso(at: float | None) -> str | None:
    """UTC unix seconds as ISO 8601 with milliseconds and a Z; None for what is no time."""
    if at is None:
        return None
    try:
        return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):
        return None
