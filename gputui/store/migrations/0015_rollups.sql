-- What is left of the samples once they are too old to be kept one by one. `at` is when the minute or hour begins, in UTC
-- unix seconds; spans in which nothing was sampled have no row. `sample_count` counts the samples in which the GPU
-- answered. `p95` is the nearest-rank 95th percentile of the span's samples. `throttled_fraction` is the share of samples
-- in which something held the clocks back. `energy_joules` is what the energy counter rose by.
CREATE TABLE gpu_minutes (
    gpu_id INTEGER NOT NULL REFERENCES gpus (gpu_id),
    at REAL NOT NULL,
    sample_count INTEGER NOT NULL,
    utilization_percent_mean REAL,
    utilization_percent_min REAL,
    utilization_percent_max REAL,
    utilization_percent_p95 REAL,
    memory_used_bytes_mean INTEGER,
    memory_used_bytes_min INTEGER,
    memory_used_bytes_max INTEGER,
    temperature_celsius_mean REAL,
    temperature_celsius_min REAL,
    temperature_celsius_max REAL,
    temperature_celsius_p95 REAL,
    power_watts_mean REAL,
    power_watts_min REAL,
    power_watts_max REAL,
    power_watts_p95 REAL,
    sm_clock_mhz_mean REAL,
    sm_clock_mhz_min INTEGER,
    sm_clock_mhz_max INTEGER,
    throttled_fraction REAL,
    energy_joules REAL,
    PRIMARY KEY (gpu_id, at)
) STRICT, WITHOUT ROWID;

CREATE TABLE gpu_hours (
    gpu_id INTEGER NOT NULL REFERENCES gpus (gpu_id),
    at REAL NOT NULL,
    sample_count INTEGER NOT NULL,
    utilization_percent_mean REAL,
    utilization_percent_min REAL,
    utilization_percent_max REAL,
    utilization_percent_p95 REAL,
    memory_used_bytes_mean INTEGER,
    memory_used_bytes_min INTEGER,
    memory_used_bytes_max INTEGER,
    temperature_celsius_mean REAL,
    temperature_celsius_min REAL,
    temperature_celsius_max REAL,
    temperature_celsius_p95 REAL,
    power_watts_mean REAL,
    power_watts_min REAL,
    power_watts_max REAL,
    power_watts_p95 REAL,
    sm_clock_mhz_mean REAL,
    sm_clock_mhz_min INTEGER,
    sm_clock_mhz_max INTEGER,
    throttled_fraction REAL,
    energy_joules REAL,
    PRIMARY KEY (gpu_id, at)
) STRICT, WITHOUT ROWID;

CREATE TABLE host_minutes (
    at REAL PRIMARY KEY,
    sample_count INTEGER NOT NULL,
    cpu_percent_mean REAL,
    cpu_percent_min REAL,
    cpu_percent_max REAL,
    cpu_percent_p95 REAL,
    memory_used_bytes_mean INTEGER,
    memory_used_bytes_min INTEGER,
    memory_used_bytes_max INTEGER,
    disk_used_bytes_mean INTEGER,
    disk_read_bytes_per_second_mean REAL,
    disk_write_bytes_per_second_mean REAL,
    network_received_bytes_per_second_mean REAL,
    network_sent_bytes_per_second_mean REAL
) STRICT, WITHOUT ROWID;

CREATE TABLE host_hours (
    at REAL PRIMARY KEY,
    sample_count INTEGER NOT NULL,
    cpu_percent_mean REAL,
    cpu_percent_min REAL,
    cpu_percent_max REAL,
    cpu_percent_p95 REAL,
    memory_used_bytes_mean INTEGER,
    memory_used_bytes_min INTEGER,
    memory_used_bytes_max INTEGER,
    disk_used_bytes_mean INTEGER,
    disk_read_bytes_per_second_mean REAL,
    disk_write_bytes_per_second_mean REAL,
    network_received_bytes_per_second_mean REAL,
    network_sent_bytes_per_second_mean REAL
) STRICT, WITHOUT ROWID;

-- Up to which moment samples have been put together, written in the transaction of the rows. `gpu_id` 0 is the host.
CREATE TABLE rollup_marks (
    span_seconds INTEGER NOT NULL,
    gpu_id INTEGER NOT NULL,
    until REAL NOT NULL,
    PRIMARY KEY (span_seconds, gpu_id)
) STRICT, WITHOUT ROWID;

-- One row: samples, and minutes, older than this have been deleted.
CREATE TABLE record_bounds (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    raw_since REAL NOT NULL DEFAULT 0,
    minutes_since REAL NOT NULL DEFAULT 0
) STRICT;
INSERT INTO record_bounds (id) VALUES (1);

-- What each GPU of an attempt consumed by its own energy counter, from the attempt's start up to `until`; complete once
-- `settled`. NULL where the counter told nothing.
CREATE TABLE attempt_energy (
    run_id TEXT NOT NULL REFERENCES runs (run_id) ON DELETE CASCADE,
    attempt INTEGER NOT NULL,
    gpu_uuid TEXT NOT NULL,
    until REAL NOT NULL,
    counter_joules REAL,
    energy_joules REAL,
    settled INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (run_id, attempt, gpu_uuid)
) STRICT, WITHOUT ROWID;
