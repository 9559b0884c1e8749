"""The Prometheus endpoint of `gputui --record --prometheus`, its alert rules and a Grafana dashboard.

In: one consistent snapshot of the store per scrape. Out: metric families in base units; unknown values are absent.
"""
