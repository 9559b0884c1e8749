-- Alerts: one row from the moment it was raised; `cleared_at` is NULL while it lasts. `subject_kind` is gpu, host or run,
-- `subject_id` a GPU's UUID, a run's id, or '' for the host. `run_id` is the run that it concerns, where there is one; an
-- alert about a GPU outlives the run that trained on it. `value` and `threshold` are in `unit`; infinities are NULL.
CREATE TABLE alerts (
    alert_id INTEGER PRIMARY KEY,
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

-- What the engine remembers, as JSON: an agent that is killed is followed by one that goes on.
CREATE TABLE alert_engine (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    at REAL NOT NULL,
    state TEXT NOT NULL
) STRICT;
