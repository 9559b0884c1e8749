"""Telemetry of a run. After the start, nothing here stops training. Read `telemetry` first."""
