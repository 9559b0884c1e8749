"""Many rows as one test case, which fails with every row that does not hold, named by its values."""

from __future__ import annotations

import inspect
import shutil
import tempfile
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest


def table(names: str | tuple[str, ...], rows: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Call a test for each row, as ``pytest.mark.parametrize`` does, but as one case.

    Each row has its own monkeypatch and its own copy of every fixture that is a folder. All other fixtures are shared
    by the rows: use ``parametrize`` where a row changes one. A time-out, a skip and ``pytest.fail`` end the case.
    """
    arguments = names.split(", ") if isinstance(names, str) else list(names)
    values = [tuple(row) if len(arguments) > 1 else (row,) for row in rows]
    assert values
    assert all(len(row) == len(arguments) for row in values)

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(test)

        def run(*bound: Any, **fixtures: Any) -> None:
            wrong = []
            for row in values:
                copies = dict(fixtures)
                for name, folder in fixtures.items():
                    if isinstance(folder, Path) and folder.is_dir():
                        place = Path(tempfile.mkdtemp(prefix="row", dir=folder.parent))
                        copies[name] = shutil.copytree(folder, place / folder.name, symlinks=True)
                with pytest.MonkeyPatch.context() as patch:
                    if "monkeypatch" in copies:
                        copies["monkeypatch"] = patch
                    try:
                        test(*bound, **copies, **dict(zip(arguments, row, strict=True)))
                    except Exception:
                        wrong.append(f"{', '.join(map(repr, row))}:\n{traceback.format_exc()}")
                    except BaseException as error:
                        error.add_note(f"in row {row!r}, after {len(wrong)} wrong ones\n" + "\n".join(wrong))
                        raise
            assert not wrong, f"{len(wrong)} of {len(values)} rows:\n" + "\n".join(wrong)

        run.__name__ = test.__name__
        run.__doc__ = test.__doc__
        run.__module__ = test.__module__
        run.__qualname__ = test.__qualname__
        parameters = [parameter for name, parameter in signature.parameters.items() if name not in arguments]
        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return run

    return decorate
