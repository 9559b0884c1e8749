"""A client of a Ray cluster's Jobs API over the standard library's HTTP, with a deadline per call."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from gputui.runs.executors.courier import UnreachableError, last_line

DEFAULT_TOKEN = "~/.ray/auth_token"  # noqa: S105 - a path
CALL_SECONDS = 20.0
UPLOAD_SECONDS = 600.0


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirects, so that the token is sent to the target's address only."""

    def redirect_request(self, *_: Any) -> None:
        return None


class HttpAnswer(Struct, frozen=True):
    """A response of the cluster; ``date`` is the HTTP header."""

    status: int
    body: bytes
    date: str | None

    @property
    def words(self) -> str:
        """Why it refused, in one line: the last line of a traceback, or the whole text."""
        line = last_line(self.body.decode("utf-8", "replace"))
        return line or f"it answered {self.status} and said nothing"

    def json(self, kind: type[Any] = dict) -> Any:
        """The JSON body. Raises UnreachableError if it is none of this type, and so not from a Ray cluster."""
        with contextlib.suppress(ValueError):
            if isinstance(found := json.loads(self.body), kind):
                return found
        raise UnreachableError(f"no answer of a Ray cluster: {self.words[:80]}")


class JobsApi:
    """The client of one target's cluster."""

    def __init__(self, target: Mapping[str, Any]) -> None:
        self.address = str(target["address"]).rstrip("/")
        self.token_file = target.get("token_file")
        self.opener = urllib.request.build_opener(_NoRedirect)

    def token(self) -> str | None:
        """Read again for each call: one that expired may have been replaced. Raises UnreachableError where the named
        file cannot be read."""
        path = Path(os.path.expanduser(self.token_file or DEFAULT_TOKEN))  # noqa: PTH111 - of a path in a string
        try:
            return path.read_text("utf-8").strip() or None
        except (OSError, ValueError) as error:
            if self.token_file is None:
                return None
            raise UnreachableError(f"token_file {self.token_file}: {error}") from error

    def call(
        self, method: str, path: str, given: Any = None, seconds: float = CALL_SECONDS, **query: str | int
    ) -> HttpAnswer:
        """One request; ``given`` is JSON, or bytes as they are. Raises UnreachableError without an answer, or the
        token was refused."""
        is_raw = isinstance(given, bytes)
        data = given if is_raw or given is None else json.dumps(given).encode("utf-8")
        url = f"{self.address}{path}" + (f"?{urllib.parse.urlencode(query)}" if query else "")
        request = urllib.request.Request(url, data=data, method=method)  # noqa: S310 - http or https: options.py
        request.add_header("Content-Type", "application/octet-stream" if is_raw else "application/json")
        token = self.token()
        if token is not None:
            request.add_header("Authorization", f"Bearer {token}")
        try:
            with self.opener.open(request, timeout=seconds) as response:
                return HttpAnswer(response.status, response.read(), response.headers.get("Date"))
        except urllib.error.HTTPError as error:
            with error:
                answer = HttpAnswer(error.code, error.read(), error.headers.get("Date"))
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise UnreachableError(f"{self.address} does not answer: {reason}") from error
        if answer.status in (401, 403):
            which = self.token_file or DEFAULT_TOKEN
            raise UnreachableError(f"{self.address} refuses the token ({which}): {answer.words}")
        if 300 <= answer.status < 400 or answer.status in (502, 503, 504):
            raise UnreachableError(f"{self.address} answered {answer.status}: {answer.words}")
        return answer

    # --- jobs ---------------------------------------------------------------------------------------------------------

    def version(self) -> HttpAnswer:
        return self.call("GET", "/api/version")

    def submit(self, request: Mapping[str, Any]) -> HttpAnswer:
        return self.call("POST", "/api/jobs/", request)

    def job(self, job: str) -> dict[str, Any] | None:
        """A job's record, or None. Raises UnreachableError."""
        answer = self.call("GET", f"/api/jobs/{job}")
        if answer.status == 404:
            return None
        if answer.status != 200:
            raise UnreachableError(f"{self.address} answered {answer.status}: {answer.words}")
        return dict(answer.json())

    def stop(self, job: str) -> None:
        self.call("POST", f"/api/jobs/{job}/stop")

    def delete(self, job: str) -> None:
        self.call("DELETE", f"/api/jobs/{job}")

    def log(self, job: str) -> str | None:
        """The whole output of a job; None if unavailable, as when its node is gone. Raises UnreachableError."""
        answer = self.call("GET", f"/api/jobs/{job}/logs", seconds=120.0)
        return str(answer.json().get("logs") or "") if answer.status == 200 else None

    def last_lines(self, job: str, count: int) -> str | None:
        """The end of a job's output; None if this cluster cannot return it."""
        answer = self.call("GET", "/api/v0/logs/file", submission_id=job, lines=count)
        return answer.body.decode("utf-8", "replace") if answer.status == 200 else None

    def has_package(self, name: str) -> bool:
        return self.call("GET", f"/api/packages/gcs/{name}").status == 200

    def upload(self, name: str, data: bytes) -> HttpAnswer:
        return self.call("PUT", f"/api/packages/gcs/{name}", data, seconds=UPLOAD_SECONDS)
