"""What can be seen of a run from outside: metrics lines, console, text log, trackers, histograms, traces.

In come the loop's numbers and tensors, out come files, from rank 0 but for the timings of the other ranks. Nothing here
stops the training once it has begun. `timing` measures without making the device wait, `speed` gives the verdict,
`trackers` feeds others. Read `telemetry` first.
"""
