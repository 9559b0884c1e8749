-- The tables of an export to SQLite, each with what fills it from the store. The sink adds params and metrics.
-- A table follows those that it refers to.
CREATE TABLE runs (run_id TEXT PRIMARY KEY, name TEXT, profile TEXT, state TEXT, priority INTEGER, created_at REAL,
    started_at REAL, ended_at REAL, reason TEXT);
INSERT INTO runs SELECT run_id, name, profile, state, priority, created_at, started_at, ended_at, reason
    FROM store.runs WHERE run_id = :run_id;

CREATE TABLE attempts (attempt INTEGER PRIMARY KEY, run_id TEXT REFERENCES runs (run_id), state TEXT, created_at REAL,
    started_at REAL, first_step_at REAL, ended_at REAL, exit_code INTEGER, exit_signal INTEGER, resumed_from TEXT,
    resumed_step INTEGER, first_step INTEGER, last_step INTEGER);
INSERT INTO attempts SELECT number, run_id, state, created_at, started_at, first_step_at, ended_at, exit_code,
    exit_signal, resumed_from, resumed_step, first_step, last_step FROM store.attempts WHERE run_id = :run_id;

CREATE TABLE params (attempt INTEGER REFERENCES attempts (attempt), name TEXT, value);

CREATE TABLE gpus (uuid TEXT PRIMARY KEY, position INTEGER, name TEXT);
INSERT INTO gpus SELECT uuid, position, name FROM store.gpus
    WHERE uuid IN (SELECT value FROM store.attempts, json_each(gpus) WHERE run_id = :run_id);

CREATE TABLE attempt_gpus (attempt INTEGER REFERENCES attempts (attempt), gpu_uuid TEXT REFERENCES gpus (uuid),
    energy_joules REAL);
INSERT INTO attempt_gpus SELECT number, g.uuid, e.energy_joules FROM store.attempts AS a
    JOIN json_each(a.gpus) AS j JOIN store.gpus AS g ON g.uuid = j.value
    LEFT JOIN store.attempt_energy AS e ON e.run_id = a.run_id AND e.attempt = a.number AND e.gpu_uuid = g.uuid
    WHERE a.run_id = :run_id;

CREATE TABLE metrics (attempt INTEGER REFERENCES attempts (attempt), rank INTEGER, step INTEGER, at REAL, name TEXT,
    value REAL, not_finite TEXT);

CREATE TABLE incidents (incident_id INTEGER PRIMARY KEY, attempt INTEGER REFERENCES attempts (attempt), at REAL,
    kind TEXT, rank INTEGER, step INTEGER, summary TEXT, evidence TEXT);
INSERT INTO incidents SELECT incident_id, attempt, at, kind, rank, step, summary, evidence
    FROM store.incidents WHERE run_id = :run_id;

CREATE TABLE decisions (decision_id INTEGER PRIMARY KEY, incident_id INTEGER REFERENCES incidents (incident_id),
    attempt INTEGER REFERENCES attempts (attempt), at REAL, rung INTEGER, verdict TEXT, actions TEXT, params TEXT,
    resume_from TEXT, delay_seconds REAL, reason TEXT, outcome TEXT);
INSERT INTO decisions SELECT decision_id, incident_id, attempt, at, rung, verdict, actions, params, resume_from,
    delay_seconds, reason, outcome FROM store.decisions WHERE run_id = :run_id;

CREATE TABLE observations (observation_id INTEGER PRIMARY KEY, attempt INTEGER REFERENCES attempts (attempt), at REAL,
    kind TEXT, rank INTEGER, step INTEGER, text TEXT);
INSERT INTO observations SELECT observation_id, attempt, at, kind, rank, step, text
    FROM store.observations WHERE run_id = :run_id;

CREATE TABLE transitions (transition_id INTEGER PRIMARY KEY, run_id TEXT REFERENCES runs (run_id), at REAL,
    from_state TEXT, to_state TEXT, cause TEXT, actor TEXT);
INSERT INTO transitions SELECT transition_id, run_id, at, from_state, to_state, cause, actor
    FROM store.transitions WHERE run_id = :run_id;

CREATE TABLE events (event_id INTEGER PRIMARY KEY, attempt INTEGER REFERENCES attempts (attempt), at REAL, kind TEXT,
    key TEXT, severity TEXT, message TEXT);
INSERT INTO events SELECT event_id, attempt, at, kind, key, severity, message
    FROM store.events WHERE run_id = :run_id;

CREATE TABLE alerts (alert_id INTEGER PRIMARY KEY, run_id TEXT REFERENCES runs (run_id), rule TEXT, severity TEXT,
    subject TEXT, raised_at REAL, cleared_at REAL, value REAL, threshold REAL, unit TEXT, sentence TEXT);
INSERT INTO alerts SELECT alert_id, run_id, rule, severity, subject_name, raised_at, cleared_at, value, threshold,
    unit, sentence FROM store.alerts WHERE run_id = :run_id;

CREATE TABLE checkpoints (path TEXT PRIMARY KEY, attempt INTEGER REFERENCES attempts (attempt), step INTEGER,
    origin TEXT, verdict TEXT, why TEXT, size_bytes INTEGER, modified_at REAL);
INSERT INTO checkpoints SELECT path, attempt, step, origin, verdict, why, size_bytes, modified_at
    FROM store.checkpoints WHERE run_id = :run_id AND gone_at IS NULL;

-- The samples of each attempt's GPUs, and minutes from before the oldest sample.
CREATE TABLE samples (attempt INTEGER REFERENCES attempts (attempt), gpu_uuid TEXT REFERENCES gpus (uuid), at REAL,
    span_seconds REAL, utilization_percent REAL, memory_used_bytes INTEGER, temperature_celsius REAL, power_watts REAL,
    sm_clock_mhz REAL, throttled REAL);
INSERT INTO samples
WITH held AS (
    SELECT a.number AS attempt, g.gpu_id, g.uuid, coalesce(a.started_at, a.created_at) AS since,
        coalesce(a.ended_at, 1e18) AS until
    FROM store.attempts AS a JOIN json_each(a.gpus) AS j JOIN store.gpus AS g ON g.uuid = j.value
    WHERE a.run_id = :run_id
)
SELECT h.attempt, h.uuid, m.at, 60.0, m.utilization_percent_mean, m.memory_used_bytes_mean, m.temperature_celsius_mean,
    m.power_watts_mean, m.sm_clock_mhz_mean, m.throttled_fraction
FROM held AS h JOIN store.gpu_minutes AS m ON m.gpu_id = h.gpu_id AND m.at >= h.since - 60 AND m.at < h.until
    AND m.at + 60 <= (SELECT coalesce(min(at), 1e18) FROM store.gpu_samples WHERE gpu_id = h.gpu_id)
UNION ALL
SELECT h.attempt, h.uuid, s.at, 0.0, s.utilization_percent, s.memory_used_bytes, s.temperature_celsius, s.power_watts,
    s.sm_clock_mhz, CASE WHEN s.throttle_reasons IS NOT NULL THEN s.throttle_reasons <> '[]' END
FROM held AS h JOIN store.gpu_samples AS s ON s.gpu_id = h.gpu_id AND s.at >= h.since AND s.at < h.until;

-- Of attempts that began while this was written.
DELETE FROM params WHERE attempt NOT IN (SELECT attempt FROM attempts);

CREATE INDEX idx_metrics_name_step ON metrics (name, step);
CREATE INDEX idx_samples_gpu_uuid_at ON samples (gpu_uuid, at);
