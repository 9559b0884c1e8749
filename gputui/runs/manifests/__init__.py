"""Manifests: a profile as a job file of another system, which runs it without gputui.

In: a specification. Out: YAML. Such a run is not tracked here. The registry below is the one place that names the
systems. Read first: job.py, from which all of them are made.
"""

from __future__ import annotations

MANIFESTS = {
    "kuberay": "gputui.runs.manifests.kuberay",
    "skypilot": "gputui.runs.manifests.skypilot",
    "dstack": "gputui.runs.manifests.dstack",
}
"""The module of each system, which has `manifest`, by name."""
