"""A client of a Ray cluster's Jobs API over the standard library's HTTP, with a deadline per call."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shlex
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from gputui.runs.executors.commands import UnreachableError, last_line
from gputui.runs.executors.remote import PROGRAM
from gputui.runs.executors.remote_runner import python_of

DEFAULT_TOKEN = "~/.ray/auth_token"  # noqa: S105 - a path
CALL_SECONDS = 20.0  # a dashboard under load answers in seconds

SENT = "_gputui"
"""The folder in a sent package of files other than the user's code."""
# Ray gives a job 3 s between its SIGTERM and SIGKILL unless configured otherwise.
STOP_MARGIN_SECONDS = 20


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirects, so that the token is sent to the target's address only."""

    def redirect_request(self, *_: Any) -> None:
        return None


class HttpAnswer(Struct, frozen=True):
    """A response of the cluster; ``date`` is the HTTP header."""

    status: int
    body: bytes
    date: str | None = None

    @property
    def is_accepted(self) -> bool:
        """The cluster has the submitted job, from this request or from an earlier one."""
        return self.status == 200 or "already exists" in self.words

    @property
    def words(self) -> str:
        """The reason of a refusal in one line: the last line of a traceback, or the whole text."""
        line = last_line(self.body.decode("utf-8", "replace"))
        return line or f"it answered {self.status} and said nothing"

    def json(self, kind: type[Any] = dict) -> Any:
        """The JSON body. Raises UnreachableError if it is none of this type, and so not from a Ray
        cluster."""
        with contextlib.suppress(ValueError):
            if isinstance(value := json.loads(self.body), kind):
                return value
        raise UnreachableError(f"no answer of a Ray cluster: {self.words[:80]}")


class JobsApi:
    """The client of one target's cluster."""

    def __init__(self, target: Mapping[str, Any]) -> None:
        self.address = str(target["address"]).rstrip("/")
        self.token_file = target.get("token_file")
        self.opener = urllib.request.build_opener(_NoRedirect)

    def token(self) -> str | None:
        """Read again for each call: one that expired may have been replaced. Raises
        UnreachableError where the named file cannot be read."""
        path = Path(os.path.expanduser(self.token_file or DEFAULT_TOKEN))  # noqa: PTH111 - of a path in a string
        try:
            return path.read_text("utf-8").strip() or None
        except (OSError, ValueError) as error:
            if self.token_file is None:
                return None
            raise UnreachableError(f"token_file {self.token_file}: {error}") from error

    def call(
        self, method: str, path: str, body: Any = None, seconds: float = CALL_SECONDS, **query: str | int
    ) -> HttpAnswer:
        """One request; ``body`` is JSON, or bytes as they are. Raises UnreachableError without an
        answer, or where the token is refused."""
        is_raw = isinstance(body, bytes)
        if is_raw or body is None:
            data = body
        else:
            data = json.dumps(body).encode("utf-8")
        url = f"{self.address}{path}"
        if query:
            url += f"?{urllib.parse.urlencode(query)}"
        headers = {"Content-Type": "application/octet-stream" if is_raw else "application/json"}
        if (token := self.token()) is not None:
            headers["Authorization"] = f"Bearer {token}"
        request = urllib.request.Request(url, data, headers, method=method)  # noqa: S310 - http or https: options.py
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

    def log(self, job: str) -> str | None:
        """The whole output of a job; None if unavailable, as when its node is gone. Raises
        UnreachableError."""
        answer = self.call("GET", f"/api/jobs/{job}/logs", seconds=120.0)
        if answer.status == 200:
            return str(answer.json().get("logs") or "")
        return None

    def last_lines(self, job: str, count: int) -> str | None:
        """The end of a job's output; None if this cluster cannot return it."""
        answer = self.call("GET", "/api/v0/logs/file", submission_id=job, lines=count)
        if answer.status == 200:
            return answer.body.decode("utf-8", "replace")
        return None


def submission_id(plan: Mapping[str, Any], token: str) -> str:
    """The job's name in the cluster. Ray refuses a second job of the same name."""
    return f"gputui-{plan['run_id']}.{plan['attempt']}-{token}"


def script_path(plan: Mapping[str, Any], folder: str) -> str:
    """The job's script, as its node sees it: shared, or in the sent package, which is its working
    directory."""
    if plan["target"].get("shared"):
        return f"{folder}/job.sh"
    return f"{SENT}/job.sh"


def entry_script(plan: Mapping[str, Any], folder: str, claim: str) -> str:
    """The entrypoint of the job. Without shared files it is in the package, and creates ``folder``."""
    target = plan["target"]
    if target.get("shared"):
        program = [f"{folder}/{PROGRAM}", "body"]
    else:
        program = [f"{SENT}/{PROGRAM}", "stream"]
    lines = ["#!/bin/bash"]
    if not plan["asks"]["gpus"]:
        lines.append("export CUDA_VISIBLE_DEVICES=")
    command = shlex.join([python_of(plan), "-I", "-S", *program, folder, claim])
    return "\n".join([*lines, *target.get("setup", ()), f"exec {command}", ""])


def job_request(plan: Mapping[str, Any], folder: str, job: str, package: str) -> dict[str, Any]:
    """The body of POST /api/jobs/. ``package`` is the URI of the uploaded package."""
    target = plan["target"]
    stop_seconds = round(float(plan["grace_seconds"])) + STOP_MARGIN_SECONDS
    environment: dict[str, Any] = {"env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": str(stop_seconds)}}
    if not target.get("shared"):
        environment["working_dir"] = package
    request = {
        "entrypoint": f"exec bash {shlex.quote(script_path(plan, folder))}",
        "submission_id": job,
        "runtime_env": environment,
        "metadata": {"job_submission_id": job, "gputui_run": str(plan["run_id"])},
        # A job that requests nothing is placed on the head node.
        "entrypoint_num_cpus": float(target.get("cpus", 1)),
        "entrypoint_num_gpus": float(plan["asks"]["gpus"]),
        "entrypoint_memory": target.get("memory_bytes"),
        "entrypoint_resources": target.get("resources") or None,
    }
    return {name: value for name, value in request.items() if value is not None}


def on_node(argv: Sequence[str], job: str, node: str) -> dict[str, Any]:
    """A job that runs a command on a ``node`` (an IP address) and reserves no resources."""
    return {
        "entrypoint": shlex.join(argv),
        "submission_id": job,
        "entrypoint_num_cpus": 0.0,
        "entrypoint_resources": {f"node:{node}": 0.001},
    }


def preview(plan: Mapping[str, Any], folder: str) -> str:
    """The request and the script, with placeholders for token and package."""
    target = plan["target"]
    job = submission_id(plan, "TOKEN")
    request = json.dumps(job_request(plan, folder, job, "gcs://_ray_pkg_HASH.zip"), indent=2)
    where = f"POST {target['address'].rstrip('/')}/api/jobs/"
    return f"{where}\n{request}\n\n# {script_path(plan, folder)}\n{entry_script(plan, folder, job)}"
