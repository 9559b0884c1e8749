"""Pages from the templates beside this module, and the files of a report.

All text is escaped and without control characters; a page needs no script and no other file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from gputui.core import units
from gputui.core.errors import ExplainedError
from gputui.core.files import replaced
from gputui.core.text import clean
from gputui.metrics.draw.export import svg_text
from gputui.metrics.draw.parts import Chart
from gputui.metrics.draw.picture import picture

PICTURE_SIZE = (1000, 360)


class ReportError(ExplainedError):
    """The report cannot be written. The text has the reason and a remedy."""

    is_refusal = True


def render(name: str, **values: Any) -> str:
    """The text of a template; one for HTML escapes every value."""
    return _environment().get_template(name).render(values)


@cache
def _share(fraction: float | None) -> str:
    """``12.5 %``"""
    if fraction is None:
        return units.UNKNOWN
    return f"{100 * fraction:.1f} %"


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("gputui.reports"),
        autoescape=select_autoescape(["html.j2"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_plain,
        extensions=["jinja2.ext.do"],
    )
    environment.filters.update(
        bytes=units.bytes_text,
        count=units.count,
        duration=units.duration,
        metric=units.metric_value,
        short=units.short_number,
        watts=units.watts,
        share=_share,
        moment=_moment,
        svg=svg,
    )
    environment.tests["numbers"] = is_numbers
    environment.globals["unknown"] = units.UNKNOWN
    return environment


def _plain(value: Any) -> Any:
    """A value for a page: text without control characters, unknown as a dash."""
    if value is None:
        return units.UNKNOWN
    if isinstance(value, str) and not isinstance(value, Markup):
        return clean(value)
    return value


def _moment(at: float | None) -> str:
    if at is None:
        return units.UNKNOWN
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def svg(drawing: Chart) -> Markup:
    """A chart as a part of a page; the drawing escapes its labels."""
    return Markup(svg_text(picture(drawing, *PICTURE_SIZE)))  # noqa: S704


def is_numbers(texts: Sequence[object]) -> bool:
    cells = [str(text) for text in texts]
    return bool(cells) and all(
        text == units.UNKNOWN or text[:1].isdecimal() or (text[:1] in "-−+" and text[1:2].isdecimal()) for text in cells
    )


def write_files(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write files into a folder, which is created if necessary. All of them are
    written under other names before the first is renamed. Raises ReportError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        folder_name = next((name for name in contents if (folder / name).is_dir()), None)
        if folder_name is not None:
            raise IsADirectoryError(None, f"{folder_name} is a folder")
        with ExitStack() as files:
            for name, content in contents.items():
                file = files.enter_context(replaced(folder / name))
                file.write(content)
                file.flush()
    except OSError as error:
        why = error.strerror or error
        raise ReportError(f"cannot write into {folder}: {why}; choose another folder with --out") from error
