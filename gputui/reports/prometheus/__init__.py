"""The Prometheus endpoint of `gputui --record --prometheus`.

In: one consistent snapshot of the store per scrape. Out: metric families in base units; unknown
values are absent. Beside it ``rules.yaml`` and ``dashboard.json``, for Prometheus and Grafana.
"""
