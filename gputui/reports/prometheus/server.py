"""The endpoint that Prometheus scrapes: a thread that reads the store, so that the agent's loop
never waits for it."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

from msgspec import Struct
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gputui.reports.prometheus.families import families
from gputui.store.database import StoreError, open_reader

DEFAULT_HOST = "127.0.0.1"
_BUSY_MILLISECONDS = 2000


class AddressError(ValueError):
    """An address is invalid or in use. The text says why."""


class Address(Struct, frozen=True):
    """The address to listen on. Port 0 is any free one."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        return self.host in ("localhost", "::1") or self.host.startswith("127.")


def parse_address(text: str) -> Address:
    """``9464``, ``:9464``, ``127.0.0.1:9464`` or ``[::1]:9464``. Raises AddressError."""
    host, _, port = text.strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]") or DEFAULT_HOST
    if not (port.isascii() and port.isdigit()) or not int(port) <= 65535:
        raise AddressError("expected HOST:PORT, such as 127.0.0.1:9464")
    return Address(host, int(port))


class StoreCollector(Collector):
    """Reads the store for each scrape. If it is unreadable, only that is reported."""

    def __init__(self, database: Path, wall: Callable[[], float] = time.time) -> None:
        self._database = database
        self._wall = wall

    def collect(self) -> Iterator[Metric]:
        began = time.perf_counter()
        readable = GaugeMetricFamily("gputui_store_readable", "1 when the database of gputui could be read.")
        try:
            with closing(open_reader(self._database)) as connection:
                connection.execute(f"PRAGMA busy_timeout = {_BUSY_MILLISECONDS}")
                metrics = list(families(connection, self._wall()))
        except (StoreError, sqlite3.Error, OSError):
            readable.add_metric([], 0.0)
            yield readable
            return
        readable.add_metric([], 1.0)
        yield readable
        yield from metrics
        took = GaugeMetricFamily("gputui_scrape_seconds", "What reading the store for this scrape took.")
        took.add_metric([], time.perf_counter() - began)
        yield took


def serve(database: Path, address: Address) -> Address:
    """Listen in a thread that ends with the process; returns the actual address. Raises
    AddressError."""
    registry = CollectorRegistry()
    registry.register(StoreCollector(database))
    try:
        server, _ = start_http_server(address.port, addr=address.host, registry=registry)
    except OSError as error:
        raise AddressError(f"cannot listen on {address.host}:{address.port}: {error.strerror or error}") from error
    return Address(address.host, int(server.server_address[1]))
