"""What leaves gputui: exports and sinks (`export`), the Prometheus endpoint (`prometheus`), reports on runs (`summary`).

In: the database, read only. Out: files, trackers, an HTTP endpoint on loopback.
"""
