"""What can be seen of a run from outside. After the start, nothing here stops training. Read `telemetry` first."""
