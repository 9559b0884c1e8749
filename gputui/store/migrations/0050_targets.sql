-- The name of the target that a run was launched on; NULL is this machine.
ALTER TABLE runs ADD COLUMN target TEXT;

-- Where an attempt is, where that is not this machine, as its executor reported it last. `state` is submitting, pending,
-- configuring, running, ending, requeued or ended; `reason` and `problem` are the target's own words, `problem` why the
-- last try to reach it failed. `limit_at` is when the target ends it. Times are UTC unix seconds.
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
    contact_at REAL,
    problem TEXT,
    PRIMARY KEY (run_id, attempt)
) STRICT, WITHOUT ROWID;
