"""Output to other tools: exports and sinks (`export`), a Prometheus endpoint (`prometheus`),
reports (`summary`, with `pages` and ``templates``).

In: the database, read only. Out: files, trackers, an HTTP endpoint on loopback.
"""
