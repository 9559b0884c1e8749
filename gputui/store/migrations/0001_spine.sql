-- The spine: hardware, runs, metrics, incidents and commands.
-- Times are UTC unix seconds (REAL). Unknown is NULL. Units are in the names.

CREATE TABLE agent (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    pid INTEGER NOT NULL,
    start_ticks INTEGER NOT NULL,
    boot_id TEXT NOT NULL,
    version TEXT NOT NULL,
    started_at REAL NOT NULL,
    heartbeat_at REAL NOT NULL,
    ended_at REAL,
    recording INTEGER NOT NULL DEFAULT 0,
    interval_seconds REAL NOT NULL DEFAULT 1.0,
    source TEXT,
    driver_version TEXT,
    gpu_problem TEXT,
    sampler_state TEXT NOT NULL DEFAULT 'starting',
    sampler_silent_seconds REAL
) STRICT;

CREATE TABLE gpus (
    gpu_id INTEGER PRIMARY KEY,
    uuid TEXT NOT NULL UNIQUE,
    position INTEGER NOT NULL,
    name TEXT NOT NULL,
    present INTEGER NOT NULL DEFAULT 1,
    facts TEXT NOT NULL DEFAULT '{}',
    slow TEXT,
    slow_at REAL,
    processes TEXT,
    processes_at REAL,
    first_seen_at REAL NOT NULL,
    last_seen_at REAL NOT NULL
) STRICT;

CREATE TABLE gpu_samples (
    at REAL NOT NULL,
    gpu_id INTEGER NOT NULL REFERENCES gpus (gpu_id),
    state TEXT NOT NULL,
    utilization_percent REAL,
    memory_utilization_percent REAL,
    memory_used_bytes INTEGER,
    memory_reserved_bytes INTEGER,
    memory_total_bytes INTEGER,
    temperature_celsius REAL,
    power_watts REAL,
    power_limit_watts REAL,
    sm_clock_mhz INTEGER,
    memory_clock_mhz INTEGER,
    performance_state INTEGER,
    throttle_reasons TEXT,
    PRIMARY KEY (gpu_id, at)
) STRICT, WITHOUT ROWID;

CREATE TABLE gpu_slow_samples (
    at REAL NOT NULL,
    gpu_id INTEGER NOT NULL REFERENCES gpus (gpu_id),
    fan_percent REAL,
    memory_temperature_celsius REAL,
    pcie_generation INTEGER,
    pcie_width INTEGER,
    pcie_received_bytes_per_second REAL,
    pcie_sent_bytes_per_second REAL,
    nvlink_received_bytes_per_second REAL,
    nvlink_sent_bytes_per_second REAL,
    ecc_corrected INTEGER,
    ecc_uncorrected INTEGER,
    row_remap_pending INTEGER,
    row_remap_failed INTEGER,
    energy_joules REAL,
    PRIMARY KEY (gpu_id, at)
) STRICT, WITHOUT ROWID;

-- A row when the set of processes on a GPU changed, so that any moment can be looked at again.
CREATE TABLE gpu_process_sets (
    at REAL NOT NULL,
    gpu_id INTEGER NOT NULL REFERENCES gpus (gpu_id),
    processes TEXT,
    PRIMARY KEY (gpu_id, at)
) STRICT, WITHOUT ROWID;

CREATE TABLE gpu_events (
    event_id INTEGER PRIMARY KEY,
    at REAL NOT NULL,
    uuid TEXT NOT NULL,
    event TEXT NOT NULL,
    code INTEGER,
    text TEXT
) STRICT;

CREATE TABLE host_samples (
    at REAL PRIMARY KEY,
    cpu_percent REAL,
    cpu_count INTEGER,
    load_1m REAL,
    memory_used_bytes INTEGER,
    memory_total_bytes INTEGER,
    swap_used_bytes INTEGER,
    disk_read_bytes_per_second REAL,
    disk_write_bytes_per_second REAL,
    disk_used_bytes INTEGER,
    disk_total_bytes INTEGER,
    shm_used_bytes INTEGER,
    shm_total_bytes INTEGER,
    network_received_bytes_per_second REAL,
    network_sent_bytes_per_second REAL
) STRICT, WITHOUT ROWID;

CREATE TABLE runs (
    run_id TEXT PRIMARY KEY,
    sequence INTEGER NOT NULL UNIQUE,
    name TEXT NOT NULL,
    profile TEXT NOT NULL,
    state TEXT NOT NULL,
    attempt INTEGER NOT NULL DEFAULT 0,
    spec TEXT NOT NULL,
    params TEXT NOT NULL,
    created_at REAL NOT NULL,
    queued_at REAL,
    not_before REAL,
    started_at REAL,
    ended_at REAL,
    reason TEXT,
    waiting_for TEXT,
    resume_from TEXT
) STRICT;
CREATE INDEX runs_by_state ON runs (state);

CREATE TABLE transitions (
    transition_id INTEGER PRIMARY KEY,
    run_id TEXT NOT NULL REFERENCES runs (run_id) ON DELETE CASCADE,
    at REAL NOT NULL,
    from_state TEXT,
    to_state TEXT NOT NULL,
    cause TEXT NOT NULL,
    actor TEXT NOT NULL
) STRICT;
CREATE INDEX transitions_by_run ON transitions (run_id);

CREATE TABLE attempts (
    run_id TEXT NOT NULL REFERENCES runs (run_id) ON DELETE CASCADE,
    number INTEGER NOT NULL,
    state TEXT NOT NULL,
    params TEXT NOT NULL,
    gpus TEXT NOT NULL,
    launch TEXT NOT NULL,
    created_at REAL NOT NULL,
    started_at REAL,
    first_step_at REAL,
    ended_at REAL,
    shim_pid INTEGER,
    shim_start_ticks INTEGER,
    boot_id TEXT,
    exit_code INTEGER,
    exit_signal INTEGER,
    exit TEXT,
    resumed_from TEXT,
    resumed_step INTEGER,
    first_step INTEGER,
    last_step INTEGER,
    stop_requested TEXT,
    PRIMARY KEY (run_id, number)
) STRICT, WITHOUT ROWID;

-- At most one holder per GPU: the primary key is the lease.
CREATE TABLE leases (
    gpu_uuid TEXT PRIMARY KEY,
    run_id TEXT NOT NULL REFERENCES runs (run_id),
    since REAL NOT NULL
) STRICT, WITHOUT ROWID;

-- One row per metrics file of a run. `generation` grows when the file was rotated or truncated; `byte_offset` is
-- committed together with the rows read up to it.
CREATE TABLE metric_sources (
    source_id INTEGER PRIMARY KEY,
    run_id TEXT NOT NULL REFERENCES runs (run_id) ON DELETE CASCADE,
    path TEXT NOT NULL,
    format TEXT NOT NULL,
    inode INTEGER,
    generation INTEGER NOT NULL DEFAULT 0,
    byte_offset INTEGER NOT NULL DEFAULT 0,
    skipping INTEGER NOT NULL DEFAULT 0,
    fingerprint TEXT,
    line_count INTEGER NOT NULL DEFAULT 0,
    rejected_count INTEGER NOT NULL DEFAULT 0,
    UNIQUE (run_id, path)
) STRICT;

-- Where each attempt begins in an append-only file, noted before the attempt is started.
CREATE TABLE metric_boundaries (
    source_id INTEGER NOT NULL REFERENCES metric_sources (source_id) ON DELETE CASCADE,
    generation INTEGER NOT NULL,
    byte_offset INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    PRIMARY KEY (source_id, generation, byte_offset, attempt)
) STRICT, WITHOUT ROWID;

-- One row per line. The key is the line's place in its file, so that no line can be stored twice.
-- `data` is the line as standard JSON; NaN and infinities are the strings "NaN", "Infinity", "-Infinity".
CREATE TABLE metrics (
    source_id INTEGER NOT NULL REFERENCES metric_sources (source_id) ON DELETE CASCADE,
    generation INTEGER NOT NULL,
    byte_offset INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    rank INTEGER,
    step INTEGER,
    at REAL,
    data TEXT NOT NULL,
    PRIMARY KEY (source_id, generation, byte_offset)
) STRICT, WITHOUT ROWID;

CREATE TABLE rejected_lines (
    source_id INTEGER NOT NULL REFERENCES metric_sources (source_id) ON DELETE CASCADE,
    generation INTEGER NOT NULL,
    byte_offset INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    at REAL NOT NULL,
    length_bytes INTEGER NOT NULL,
    reason TEXT NOT NULL,
    excerpt TEXT NOT NULL,
    PRIMARY KEY (source_id, generation, byte_offset)
) STRICT, WITHOUT ROWID;

CREATE TABLE incidents (
    incident_id INTEGER PRIMARY KEY,
    run_id TEXT NOT NULL REFERENCES runs (run_id) ON DELETE CASCADE,
    attempt INTEGER NOT NULL,
    at REAL NOT NULL,
    kind TEXT NOT NULL,
    rank INTEGER,
    step INTEGER,
    summary TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    evidence TEXT NOT NULL,
    UNIQUE (run_id, attempt, fingerprint)
) STRICT;

CREATE TABLE decisions (
    decision_id INTEGER PRIMARY KEY,
    incident_id INTEGER NOT NULL REFERENCES incidents (incident_id) ON DELETE CASCADE,
    run_id TEXT NOT NULL REFERENCES runs (run_id) ON DELETE CASCADE,
    attempt INTEGER NOT NULL,
    at REAL NOT NULL,
    rung INTEGER NOT NULL,
    verdict TEXT NOT NULL,
    actions TEXT NOT NULL,
    params TEXT NOT NULL,
    resume_from TEXT,
    delay_seconds REAL NOT NULL DEFAULT 0,
    reason TEXT NOT NULL,
    outcome TEXT
) STRICT;

-- What a person sees scroll by: one plain sentence each.
CREATE TABLE events (
    event_id INTEGER PRIMARY KEY,
    at REAL NOT NULL,
    severity TEXT NOT NULL,
    subject TEXT,
    run_id TEXT,
    attempt INTEGER,
    message TEXT NOT NULL
) STRICT;
CREATE INDEX events_by_run ON events (run_id);

CREATE TABLE commands (
    command_id INTEGER PRIMARY KEY,
    created_at REAL NOT NULL,
    verb TEXT NOT NULL,
    run_id TEXT,
    args TEXT NOT NULL DEFAULT '{}',
    actor TEXT NOT NULL,
    state TEXT NOT NULL DEFAULT 'pending',
    reason TEXT,
    result TEXT,
    answered_at REAL
) STRICT;
CREATE INDEX commands_pending ON commands (state) WHERE state = 'pending';

-- For people with sqlite-utils or Datasette: a metric a row.
CREATE VIEW metric_points AS
SELECT s.run_id, m.attempt, m.rank, m.step, m.at, j.key AS name, j.value AS value
FROM metrics AS m
JOIN metric_sources AS s ON s.source_id = m.source_id
JOIN json_each(m.data) AS j
WHERE j.type IN ('integer', 'real') AND j.key NOT IN ('step', 'time', 'rank');
