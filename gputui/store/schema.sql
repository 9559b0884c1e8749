-- The schema of a new home. Each change raises SCHEMA_VERSION in gputui/store/database.py.

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
    cuda_version TEXT,
    gpu_problem TEXT,
    sampler_state TEXT NOT NULL DEFAULT 'starting',
    sampler_silent_seconds REAL,
    longest_turn_seconds REAL,
    longest_turn_part TEXT
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
    locked_by TEXT,
    is_excluded INTEGER NOT NULL DEFAULT 0,
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
    pcie_replays INTEGER,
    encoder_percent REAL,
    decoder_percent REAL,
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
    resume_from TEXT,
    priority INTEGER NOT NULL DEFAULT 0,
    gpu_count INTEGER,
    study_id TEXT,
    trial INTEGER,
    target TEXT
) STRICT;

CREATE INDEX runs_by_state ON runs (state);

-- The study and the trial that a run is of.
CREATE INDEX runs_by_study ON runs (study_id, trial) WHERE study_id IS NOT NULL;

-- The highest number that the id of a run had behind each name. A removed run's id is not given again: exports and notes
-- name it.
CREATE TABLE run_numbers (
    name TEXT PRIMARY KEY,
    highest INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- The tags (JSON list) and the note that a person gave a run. A change replaces the row, so that the highest number
-- says whether anything changed, the name in `runs` too.
CREATE TABLE run_labels (
    change_id INTEGER PRIMARY KEY,
    run_id TEXT NOT NULL UNIQUE REFERENCES runs (run_id) ON DELETE CASCADE,
    tags TEXT NOT NULL DEFAULT '[]',
    note TEXT
) STRICT;

-- The bytes that the folder of a run took when it ended; measured later, and forgotten when the run goes on.
CREATE TABLE run_sizes (
    run_id TEXT PRIMARY KEY REFERENCES runs (run_id) ON DELETE CASCADE,
    size_bytes INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- What a run's metrics mean: the names of its losses and of the metric that it is judged by. `is_given`: a person named
-- the loss; `is_settled`: the first lines are over, so that a loss that was chosen stays.
CREATE TABLE metric_roles (
    run_id TEXT PRIMARY KEY REFERENCES runs (run_id) ON DELETE CASCADE,
    training TEXT,
    validation TEXT,
    best TEXT,
    mode TEXT CHECK (mode IN ('min', 'max')),
    is_given INTEGER NOT NULL DEFAULT 0,
    is_settled INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;

CREATE TABLE transitions (
    transition_id INTEGER PRIMARY KEY AUTOINCREMENT,
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
    exited_at REAL,
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
    checkpoint_folder TEXT,
    scanned_at REAL,
    PRIMARY KEY (run_id, number)
) STRICT, WITHOUT ROWID;

-- Who may use a GPU. One run has it alone, unless its share is below 1.
CREATE TABLE leases (
    gpu_uuid TEXT NOT NULL,
    run_id TEXT NOT NULL REFERENCES runs (run_id),
    since REAL NOT NULL,
    share REAL NOT NULL DEFAULT 1,
    PRIMARY KEY (gpu_uuid, run_id)
) STRICT, WITHOUT ROWID;

-- Trials of one study share a GPU among themselves, as do runs of none, up to the whole of it.
CREATE TRIGGER leases_exclude BEFORE INSERT ON leases
WHEN EXISTS (
    SELECT 1 FROM leases AS l JOIN runs AS r USING (run_id)
    WHERE l.gpu_uuid = NEW.gpu_uuid AND l.run_id != NEW.run_id
        AND r.study_id IS NOT (SELECT study_id FROM runs WHERE run_id = NEW.run_id)
) OR NEW.share + (SELECT total(share) FROM leases WHERE gpu_uuid = NEW.gpu_uuid AND run_id != NEW.run_id) > 1.000001
BEGIN
    SELECT raise(ABORT, 'another run has the GPU');
END;

-- One row per metrics file of a run. `generation` grows when the file was rotated, replaced or rewritten; those from
-- `first_generation` on are versions of one file, of whose lines each value is stored once, the newest one. `byte_offset`
-- is committed together with the rows read up to it.
CREATE TABLE metric_sources (
    source_id INTEGER PRIMARY KEY,
    run_id TEXT REFERENCES runs (run_id) ON DELETE SET NULL,
    path TEXT NOT NULL,
    format TEXT NOT NULL,
    inode INTEGER,
    generation INTEGER NOT NULL DEFAULT 0,
    byte_offset INTEGER NOT NULL DEFAULT 0,
    skipping INTEGER NOT NULL DEFAULT 0,
    fingerprint TEXT,
    line_count INTEGER NOT NULL DEFAULT 0,
    rejected_count INTEGER NOT NULL DEFAULT 0,
    first_generation INTEGER NOT NULL DEFAULT 0,
    reading TEXT,
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

-- How far each live export is. `key` identifies its target, `sink` is its name in the profile; `progress` is what was
-- read, `position` what was written.
CREATE TABLE sink_cursors (
    run_id TEXT NOT NULL REFERENCES runs (run_id) ON DELETE CASCADE,
    key TEXT NOT NULL,
    sink TEXT,
    progress TEXT NOT NULL,
    position TEXT NOT NULL,
    written_at REAL NOT NULL,
    ended_at REAL,
    PRIMARY KEY (run_id, key)
) STRICT, WITHOUT ROWID;

CREATE TABLE rejected_lines (
    source_id INTEGER NOT NULL REFERENCES metric_sources (source_id) ON DELETE CASCADE,
    generation INTEGER NOT NULL,
    byte_offset INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    at REAL NOT NULL,
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
    witnesses TEXT NOT NULL DEFAULT '[]',
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
    message TEXT NOT NULL,
    kind TEXT,
    key TEXT
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

-- The newest value of every name, per attempt and rank, kept up to date in the transaction that stores the lines: what
-- a screen shows each second must not cost a walk through all lines. `rank` is -1 where lines name none. `data` maps
-- names (step and time among them) to numbers, or to "NaN", "Infinity", "-Infinity".
CREATE TABLE metric_newest (
    source_id INTEGER NOT NULL REFERENCES metric_sources (source_id) ON DELETE CASCADE,
    attempt INTEGER NOT NULL,
    rank INTEGER NOT NULL,
    data TEXT NOT NULL,
    PRIMARY KEY (source_id, attempt, rank)
) STRICT, WITHOUT ROWID;

-- What the agent saw in a living attempt by watching it, once per kind. `ends`: it is the reason for which gputui ends
-- the attempt, noted before anything is done, so that an agent that dies in between is followed by one that goes on.
CREATE TABLE observations (
    observation_id INTEGER PRIMARY KEY,
    run_id TEXT NOT NULL REFERENCES runs (run_id) ON DELETE CASCADE,
    attempt INTEGER NOT NULL,
    at REAL NOT NULL,
    kind TEXT NOT NULL,
    rank INTEGER,
    step INTEGER,
    text TEXT NOT NULL,
    ends INTEGER NOT NULL DEFAULT 0,
    UNIQUE (run_id, attempt, kind, ends)
) STRICT;

-- GPUs that failed, or that a person (`actor`) set aside: no run gets one before a person clears it. `run_id` is the run
-- that it failed under; a run that is forgotten takes nothing from it.
CREATE TABLE gpu_quarantine (
    gpu_uuid TEXT PRIMARY KEY,
    since REAL NOT NULL,
    run_id TEXT,
    attempt INTEGER,
    reason TEXT NOT NULL,
    actor TEXT
) STRICT, WITHOUT ROWID;

-- What a run's next attempt needs besides its parameters: variables of that attempt alone, and what it waits for.
-- Gone when that attempt begins.
CREATE TABLE next_attempts (
    run_id TEXT PRIMARY KEY REFERENCES runs (run_id) ON DELETE CASCADE,
    env TEXT NOT NULL DEFAULT '{}',
    preconditions TEXT NOT NULL DEFAULT '[]',
    since REAL NOT NULL
) STRICT, WITHOUT ROWID;

-- At most one row: who paused the queue, and when. Without it the queue is open.
CREATE TABLE queue_pause (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    at REAL NOT NULL,
    actor TEXT NOT NULL
) STRICT;

-- Alerts: one row from the moment it was raised; `cleared_at` is NULL while it lasts. `subject_kind` is gpu, host or run,
-- `subject_id` a GPU's UUID, a run's id, or '' for the host. `run_id` is the run that it concerns, where there is one; an
-- alert about a GPU outlives the run that trained on it. `value` and `threshold` are in `unit`; infinities are NULL.
CREATE TABLE alerts (
    alert_id INTEGER PRIMARY KEY AUTOINCREMENT,
    rule TEXT NOT NULL,
    severity TEXT NOT NULL,
    subject_kind TEXT NOT NULL,
    subject_id TEXT NOT NULL,
    subject_name TEXT NOT NULL,
    run_id TEXT,
    raised_at REAL NOT NULL,
    cleared_at REAL,
    cleared_because TEXT,
    acknowledged_at REAL,
    acknowledged_by TEXT,
    silenced_until REAL,
    silenced_by TEXT,
    value REAL,
    threshold REAL,
    unit TEXT NOT NULL,
    sentence TEXT NOT NULL,
    remedy TEXT NOT NULL
) STRICT;

-- What lasts is at most once there per rule and subject.
CREATE UNIQUE INDEX alerts_lasting ON alerts (rule, subject_kind, subject_id) WHERE cleared_at IS NULL;

CREATE INDEX alerts_by_run ON alerts (run_id) WHERE run_id IS NOT NULL;

CREATE INDEX alerts_by_time ON alerts (raised_at);

-- Rules of which nobody is told for a while; `subject_id` '*' is every subject. A rule that is silenced is raised and
-- stored as ever.
CREATE TABLE alert_silences (
    rule TEXT NOT NULL,
    subject_kind TEXT NOT NULL,
    subject_id TEXT NOT NULL,
    until REAL NOT NULL,
    actor TEXT NOT NULL,
    PRIMARY KEY (rule, subject_kind, subject_id)
) STRICT, WITHOUT ROWID;

-- What it takes to look at a past moment: what happened around a time is found without reading what lies between.
CREATE INDEX events_by_time ON events (at);

CREATE INDEX incidents_by_time ON incidents (at);

CREATE INDEX gpu_events_by_time ON gpu_events (at);

CREATE INDEX transitions_by_time ON transitions (at);

-- The few lines that tell of an event, a checkpoint among them, out of millions.
CREATE INDEX metrics_with_event ON metrics (source_id, at) WHERE instr(data, '"event"') > 0;

-- Metrics reduced for charts, written in the transaction that stores the lines. Of each source the lines of rank 0, or
-- of no rank, in the order they were written, in stretches of 512 lines of one attempt; `number` counts the stretches of
-- an attempt in a source. Lines behind the last stretch are not reduced yet. The place is that of the first line up to
-- that behind the last. Bounds of unknown times are NULL.
CREATE TABLE metric_stretches (
    source_id INTEGER NOT NULL REFERENCES metric_sources (source_id) ON DELETE CASCADE,
    generation INTEGER NOT NULL,
    byte_offset INTEGER NOT NULL,
    end_generation INTEGER NOT NULL,
    end_offset INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    number INTEGER NOT NULL,
    line_count INTEGER NOT NULL,
    min_step INTEGER NOT NULL,
    max_step INTEGER NOT NULL,
    min_at REAL,
    max_at REAL,
    PRIMARY KEY (source_id, generation, byte_offset)
) STRICT, WITHOUT ROWID;

-- The extremes of one metric. A row of level 0 holds those of a stretch's blocks of 32 lines; a row of level n those of
-- 16 rows of level n - 1, numbered by sixteenths. gputui/store/metrics/envelopes.py says what an entry is.
CREATE TABLE metric_envelopes (
    source_id INTEGER NOT NULL REFERENCES metric_sources (source_id) ON DELETE CASCADE,
    attempt INTEGER NOT NULL,
    name TEXT NOT NULL,
    level INTEGER NOT NULL,
    number INTEGER NOT NULL,
    entries BLOB NOT NULL,
    UNIQUE (source_id, attempt, name, level, number)
) STRICT;

-- Messages to the recipients of notify.yaml, one row for each recipient. `recipient` is a digest of its address, which may
-- contain secrets; `label` is how people are told of it. A row without sent_at and gave_up_at is still to be sent.
-- `active_alert_id` is the alert that the message is about until its end is told, too.
CREATE TABLE notices (
    -- Never used again: files are named after it.
    notice_id INTEGER PRIMARY KEY AUTOINCREMENT,
    run_id TEXT REFERENCES runs (run_id) ON DELETE SET NULL,
    active_alert_id INTEGER REFERENCES alerts (alert_id) ON DELETE SET NULL,
    at REAL NOT NULL,
    recipient TEXT NOT NULL,
    label TEXT NOT NULL,
    message TEXT NOT NULL,
    tries INTEGER NOT NULL DEFAULT 0,
    due_at REAL NOT NULL,
    problem TEXT,
    sent_at REAL,
    gave_up_at REAL
) STRICT;

CREATE INDEX notices_owed ON notices (notice_id) WHERE sent_at IS NULL AND gave_up_at IS NULL;
CREATE INDEX notices_by_run ON notices (run_id) WHERE run_id IS NOT NULL;
CREATE INDEX notices_by_alert ON notices (active_alert_id) WHERE active_alert_id IS NOT NULL;

-- How far the news were read: the newest transition, study's move and alert of which messages were made, and when the
-- queue was last told to be empty.
CREATE TABLE news (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    transition_id INTEGER NOT NULL,
    move_id INTEGER NOT NULL,
    alert_id INTEGER NOT NULL,
    queue_empty_at REAL NOT NULL
) STRICT;

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
    memory_temperature_celsius_mean REAL,
    memory_temperature_celsius_min REAL,
    memory_temperature_celsius_max REAL,
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
    memory_temperature_celsius_mean REAL,
    memory_temperature_celsius_min REAL,
    memory_temperature_celsius_max REAL,
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

-- Up to which moment samples have been rolled up, written in the transaction of the rows. `gpu_id` 0 is the host.
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

-- Which store this is. One that is begun anew, after a loss, numbers its rows from 1 again: who keeps a row's number
-- outside of it keeps the identity too.
CREATE TABLE store (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    identity TEXT NOT NULL
) STRICT;
INSERT INTO store (id, identity) VALUES (1, lower(hex(randomblob(16))));

-- The ledger of checkpoints: what was seen in the checkpoint folder of each run, whose it is, and whether it may be
-- resumed from. `seen` is the place in the order in which the contents were first seen; copies have the same one. What is
-- gone, or was written over, keeps its row.
-- origin: run (it appeared while `attempt` lived), foreign (it appeared while none did), contested (while one of another
--   run lived too), named (a person chose it; it counts as written by `attempt`).
-- verdict: unexamined, valid, invalid, doubtful (attempts that resumed from it made no step), cut (the end of its attempt
--   may have cut its save short), left (by a rollback or a person's choice), struck; `why` says why.
-- left_by: the attempt that began from an earlier checkpoint; counts once that attempt has made a step.
CREATE TABLE checkpoints (
    run_id TEXT NOT NULL REFERENCES runs (run_id) ON DELETE CASCADE,
    path TEXT NOT NULL,
    seen INTEGER NOT NULL,
    content TEXT NOT NULL,
    stamp TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    origin TEXT NOT NULL,
    unseen_at REAL NOT NULL,
    seen_at REAL NOT NULL,
    modified_at REAL NOT NULL,
    saved_at REAL,
    step INTEGER,
    size_bytes INTEGER,
    is_settled INTEGER NOT NULL,
    is_rewrite INTEGER NOT NULL,
    verdict TEXT NOT NULL,
    why TEXT NOT NULL,
    failed_starts INTEGER NOT NULL,
    left_by INTEGER,
    base_of INTEGER,
    gone_at REAL,
    PRIMARY KEY (run_id, path, seen)
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX checkpoints_present ON checkpoints (run_id, path) WHERE gone_at IS NULL;

CREATE INDEX attempts_by_checkpoint_folder ON attempts (checkpoint_folder) WHERE checkpoint_folder IS NOT NULL;

-- Studies: many runs, one question. The truth of trials, points, values and verdicts is Optuna's journal in the study's
-- folder; `trials` and `trial_rungs` are what screen, reports and agent read, with what Optuna has not. A study's process
-- is their only writer but for what a person wants of a trial, and for the run that the agent makes of it.
-- state: running, paused, stopping, finished, stopped, failed. `spec` is what the study's file resolved to (JSON), `source`
-- the file's text; neither holds a secret. `milestone` is the last one at which a population was compared,
-- `importances` the share of each parameter by objective (JSON list).
-- `removed_gpu_seconds` is what those of its runs took that were removed since.
CREATE TABLE studies (
    study_id TEXT PRIMARY KEY,
    sequence INTEGER NOT NULL UNIQUE,
    name TEXT NOT NULL,
    profile TEXT NOT NULL,
    state TEXT NOT NULL,
    reason TEXT,
    spec TEXT NOT NULL,
    source TEXT NOT NULL,
    milestone INTEGER NOT NULL DEFAULT 0,
    importances TEXT NOT NULL DEFAULT '[]',
    created_at REAL NOT NULL,
    ended_at REAL,
    removed_gpu_seconds REAL NOT NULL DEFAULT 0,
    problem TEXT  -- while its process fails again and again: how often, why, where its log is
) STRICT;

CREATE TABLE study_moves (
    move_id INTEGER PRIMARY KEY AUTOINCREMENT,
    study_id TEXT NOT NULL REFERENCES studies (study_id) ON DELETE CASCADE,
    at REAL NOT NULL,
    from_state TEXT,
    to_state TEXT NOT NULL,
    cause TEXT NOT NULL,
    actor TEXT NOT NULL
) STRICT;

CREATE INDEX study_moves_by_study ON study_moves (study_id, at);

-- Points that a person asked for, until the study's process has put them into the journal.
CREATE TABLE trial_requests (
    request_id INTEGER PRIMARY KEY AUTOINCREMENT,
    study_id TEXT NOT NULL REFERENCES studies (study_id) ON DELETE CASCADE,
    params TEXT NOT NULL
) STRICT;

-- One point of a study's space. `number` is Optuna's: it counts from 0 without gaps.
-- state: enqueued (by a person, or to go on), launching, running, pruning, stopping; then one verdict: complete, pruned,
-- infeasible, failed, stopped. `origin`: sampled, enqueued, warm (an earlier run of the profile), rerun (of its parent, to the end) or
-- outside (another process asked Optuna for it, and runs it).
-- `params` are the tuned values alone. `rung` is the last one that was passed. `value` is that of the first objective,
-- `objective_values` (JSON list) those of all where there are several; both NULL while unknown or withheld.
-- `constraint_values` (JSON): at most 0 where a constraint is kept. `starts` counts how often a run was asked for,
-- `command_id` is the newest command that did. `parent` and `generation` are for population-based training. `population`
-- is what a member keeps of its lineage (JSON). `request` is what a person wants of it: keep (it is never cut short) or
-- prune (it was cut short by hand).
CREATE TABLE trials (
    study_id TEXT NOT NULL REFERENCES studies (study_id) ON DELETE CASCADE,
    number INTEGER NOT NULL,
    run_id TEXT REFERENCES runs (run_id) ON DELETE SET NULL,
    state TEXT NOT NULL,
    origin TEXT NOT NULL,
    params TEXT NOT NULL,
    rung INTEGER,
    value REAL,
    objective_values TEXT,
    constraint_values TEXT,
    reason TEXT,
    parent INTEGER,
    generation INTEGER,
    starts INTEGER NOT NULL DEFAULT 0,
    command_id INTEGER,
    population TEXT NOT NULL DEFAULT '{}',
    created_at REAL NOT NULL,
    ended_at REAL,
    request TEXT,
    PRIMARY KEY (study_id, number)
) STRICT, WITHOUT ROWID;

CREATE INDEX trials_by_run ON trials (run_id) WHERE run_id IS NOT NULL;

-- The value of a trial at a rung: one for each, from the attempt that passed it first. NULL where it is no number.
CREATE TABLE trial_rungs (
    study_id TEXT NOT NULL,
    number INTEGER NOT NULL,
    rung INTEGER NOT NULL,
    step INTEGER NOT NULL,
    value REAL,
    attempt INTEGER NOT NULL,
    at REAL NOT NULL,
    PRIMARY KEY (study_id, number, rung),
    FOREIGN KEY (study_id, number) REFERENCES trials (study_id, number) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;

-- Where an attempt is, where that is not this machine, as its executor reported it last. `state` is submitting, pending,
-- configuring, running, suspended, ending, requeued or ended; `reason` and `problem` are the target's own words, `problem` why the
-- last try to reach it failed. `limit_at` is when the target ends it; `contact_at` when the last successful contact began,
-- up to which its files are known. `gpus` were asked for, on all nodes together; `queued_seconds` and `ran_seconds` are how
-- long its job waited and ran, and `limit_restarts` those of its `restarts` for its time limit. Times are UTC unix seconds.
CREATE TABLE placements (
    run_id TEXT NOT NULL REFERENCES runs (run_id) ON DELETE CASCADE,
    attempt INTEGER NOT NULL,
    job TEXT,
    state TEXT NOT NULL,
    reason TEXT,
    expected_start REAL,
    nodes TEXT NOT NULL DEFAULT '[]',
    limit_at REAL,
    restarts INTEGER NOT NULL DEFAULT 0,
    limit_restarts INTEGER NOT NULL DEFAULT 0,
    gpus INTEGER,
    queued_seconds REAL NOT NULL DEFAULT 0,
    ran_seconds REAL NOT NULL DEFAULT 0,
    contact_at REAL,
    poll_seconds REAL NOT NULL,
    problem TEXT,
    PRIMARY KEY (run_id, attempt)
) STRICT, WITHOUT ROWID;
