-- GPUs that failed: no run gets one before a person clears it. `run_id` is the run that it failed under; a run that is
-- forgotten takes nothing from it.
CREATE TABLE gpu_quarantine (
    gpu_uuid TEXT PRIMARY KEY,
    since REAL NOT NULL,
    run_id TEXT,
    attempt INTEGER,
    reason TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- What a run's next attempt needs besides its parameters: variables of that attempt alone, and what it waits for.
-- Gone when that attempt begins.
CREATE TABLE next_attempts (
    run_id TEXT PRIMARY KEY REFERENCES runs (run_id) ON DELETE CASCADE,
    env TEXT NOT NULL DEFAULT '{}',
    gates TEXT NOT NULL DEFAULT '[]',
    since REAL NOT NULL
) STRICT, WITHOUT ROWID;
