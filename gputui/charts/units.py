"""Quantities as people read them. Unknown is `None` and shows as "–"; non-finite numbers show as what they are."""

import math
from collections.abc import Sequence
from typing import Final

UNKNOWN: Final = "–"

_BINARY: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_DECIMAL: Final = ("", "k", "M", "G", "T", "P", "E")
_THIN: Final = " "


def _special(value: float | None) -> str | None:
    """The text of a value without digits, else `None`."""
    if value is None:
        return UNKNOWN
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return None


def _three_digits(value: float) -> str:
    """A number from 0.01 to about a thousand with three digits at most and no trailing zeros behind the point."""
    size = abs(value)
    limits = (99.95, 9.995, 0.9995, 0.09995)
    decimals = next((decimals for decimals, limit in enumerate(limits) if size >= limit), len(limits))
    text = f"{value:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _scaled(value: float, base: float, units: tuple[str, ...]) -> tuple[float, str]:
    """`value` divided by a power of `base`, so that three digits are enough, and that power's unit."""
    index = 0
    while abs(value) >= base * (1 - 5e-4) and index < len(units) - 1:
        value /= base
        index += 1
    return value, units[index]


def bytes_text(count_bytes: float | None) -> str:
    """Memory and file sizes in binary units: "347 GiB", "1.5 MiB", "12 B"."""
    if (special := _special(count_bytes)) is not None or count_bytes is None:
        return special or UNKNOWN
    value, unit = _scaled(count_bytes, 1024, _BINARY)
    return f"{_three_digits(value) if unit != 'B' else round(value)} {unit}"


def gibibytes(count_bytes: float | None, decimals: int = 1) -> str:
    """The number of GiB alone, for columns that name the unit in their head: "71.2"."""
    if (special := _special(count_bytes)) is not None or count_bytes is None:
        return special or UNKNOWN
    return f"{count_bytes / 2**30:.{decimals}f}"


def byte_rate(bytes_per_second: float | None) -> str:
    """Throughput of disks and links in decimal units, as their vendors count: "1.2 GB/s"."""
    if (special := _special(bytes_per_second)) is not None or bytes_per_second is None:
        return special or UNKNOWN
    value, prefix = _scaled(bytes_per_second, 1000, _DECIMAL)
    return f"{_three_digits(value)} {prefix}B/s"


def watts(power_watts: float | None) -> str:
    """Power: "612 W", from 1 000 W on "3.41 kW"."""
    if (special := _special(power_watts)) is not None or power_watts is None:
        return special or UNKNOWN
    if abs(power_watts) < 999.5:
        return f"{power_watts:.0f} W"
    return f"{_three_digits(power_watts / 1000)} kW"


def percent(value_percent: float | None, decimals: int = 0) -> str:
    """A percentage given in percent: "61%"."""
    if (special := _special(value_percent)) is not None or value_percent is None:
        return special or UNKNOWN
    return f"{value_percent:.{decimals}f}%"


def celsius(temperature_celsius: float | None) -> str:
    """A temperature: "78°C"."""
    if (special := _special(temperature_celsius)) is not None or temperature_celsius is None:
        return special or UNKNOWN
    return f"{temperature_celsius:.0f}°C"


def short_number(value: float | None) -> str:
    """A number in few cells: "0.00123" → "1.23e-3", "41 200" → "41.2k", 1 902 000 → "1.9M", 3.214 → "3.21"."""
    if (special := _special(value)) is not None or value is None:
        return special or UNKNOWN
    size = abs(value)
    if size == 0:
        return "0"
    if size < 0.01 or size >= 1e21:
        mantissa, _, exponent = f"{value:.2e}".partition("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    scaled, prefix = _scaled(value, 1000, _DECIMAL)
    return _three_digits(scaled) + prefix


def metric_value(value: float | None) -> str:
    """A metric's value with four significant digits: "1.902", "9.8e-04" → "9.8e-4", "3021", "nan"."""
    if (special := _special(value)) is not None or value is None:
        return special or UNKNOWN
    if value == 0:
        return "0"
    size = abs(value)
    if size < 1e-3 or size >= 1e6:
        mantissa, _, exponent = f"{value:.3e}".partition("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    decimals = max(0, 3 - math.floor(math.log10(size)))
    return f"{value:.{decimals}f}"


def count(number: float | None) -> str:
    """A whole number in groups of three: "41 200"."""
    if (special := _special(number)) is not None or number is None:
        return special or UNKNOWN
    return f"{round(number):,}".replace(",", _THIN)


def duration(seconds: float | None) -> str:
    """A span of time in its two largest units: "47 s", "3 min 20 s", "1 h 42", "2 d 5 h"; below ten seconds "2.4 s"."""
    if (special := _special(seconds)) is not None or seconds is None:
        return special or UNKNOWN
    sign = "-" if seconds < 0 else ""
    seconds = abs(seconds)
    if seconds < 9.95:
        return f"{sign}{seconds:.1f}".removesuffix(".0") + " s"
    whole = round(seconds)
    if whole < 60:
        return f"{sign}{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{sign}{minutes} min" + (f" {rest} s" if rest else "")
    hours, minutes = divmod(round(seconds / 60), 60)
    if hours < 24:
        return f"{sign}{hours} h {minutes:02d}"
    days, hours = divmod(round(seconds / 3600), 24)
    return f"{sign}{days} d" + (f" {hours} h" if hours else "")


def age(seconds: float | None) -> str:
    """How long ago, in one unit: "now", "47 s", "12 min", "3 h", "9 d". A clock that ran back shows as "now"."""
    if (special := _special(seconds)) is not None or seconds is None:
        return special or UNKNOWN
    if seconds < 1:
        return "now"
    for limit, size, unit in ((60, 1, "s"), (3600, 60, "min"), (86400, 3600, "h")):
        if seconds < limit:
            return f"{int(seconds // size)} {unit}"
    return f"{int(seconds // 86400)} d"


def ago(seconds: float | None) -> str:
    """The same as a phrase: "just now", "47 s ago"."""
    words = age(seconds)
    return "just now" if words == "now" else f"{words} ago"


def index_ranges(values: Sequence[int]) -> str:
    """Numbers in ascending order with runs drawn together: ``0–3, 6``."""
    parts: list[list[int]] = []
    for value in values:
        if parts and value == parts[-1][-1] + 1:
            parts[-1].append(value)
        else:
            parts.append([value])
    return ", ".join(f"{part[0]}–{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)
