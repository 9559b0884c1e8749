"""Hardware history: from the sampler's messages to rows, rollups and their retention.

In: messages of the sampler process. Out: rows of samples, minutes, hours and days; energy per attempt; sample files
and status lines of `gputui --record`. The janitor calls what tidies. Read `recorder.py` first.
"""
