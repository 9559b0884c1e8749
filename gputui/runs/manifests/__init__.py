"""Manifests: a profile as the file of another system, which runs it without gputui.

In comes a specification; out comes YAML. Nothing follows such a run: it is in no list here. The registry below is the
one place that names the systems. Read first: job.py, which all of them are made from.
"""

from __future__ import annotations

MANIFESTS = {
    "kuberay": "gputui.runs.manifests.kuberay",
    "skypilot": "gputui.runs.manifests.skypilot",
    "dstack": "gputui.runs.manifests.dstack",
}
"""Name of a system → its module, which has `manifest`."""
