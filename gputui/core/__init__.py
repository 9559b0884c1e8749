"""Shared code of every room: paths, redaction, safe text, units and YAML."""
