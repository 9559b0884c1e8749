-- Studies: many runs, one question. A study's process is the only writer of its trials but for those that a person
-- enqueued, and for the run that the agent makes of a trial.
-- state: running, paused, stopping, finished, stopped, failed. `spec` is what the study's file resolved to (JSON), `source`
-- the file's text; neither holds a secret. `sampler` is what the sampler remembers of the study (JSON).
CREATE TABLE studies (
    study_id TEXT PRIMARY KEY,
    sequence INTEGER NOT NULL UNIQUE,
    name TEXT NOT NULL,
    profile TEXT NOT NULL,
    state TEXT NOT NULL,
    reason TEXT,
    spec TEXT NOT NULL,
    source TEXT NOT NULL,
    sampler TEXT NOT NULL DEFAULT '{}',
    created_at REAL NOT NULL,
    ended_at REAL
) STRICT;

CREATE TABLE study_moves (
    move_id INTEGER PRIMARY KEY,
    study_id TEXT NOT NULL REFERENCES studies (study_id) ON DELETE CASCADE,
    at REAL NOT NULL,
    from_state TEXT,
    to_state TEXT NOT NULL,
    cause TEXT NOT NULL,
    actor TEXT NOT NULL
) STRICT;

CREATE INDEX study_moves_by_study ON study_moves (study_id, at);

-- One point of a study's space. `number` counts from 0 without gaps: samplers know a trial by it.
-- state: enqueued (by a person), launching, running, pruning, stopping; then one verdict: complete, pruned, infeasible,
-- failed, stopped. `origin`: sampled, enqueued, warm (an earlier run of the profile) or exploit (population-based).
-- `params` are the tuned values alone. `rung` is the last one that was passed. `value` is that of the first objective,
-- `objective_values` (JSON list) those of all where there are several; both NULL while unknown or withheld.
-- `constraint_values` (JSON): at most 0 where a constraint is kept. `starts` counts how often a run was asked for,
-- `command_id` is the newest command that did. `parent` and `generation` are for population-based training. `sampler` is
-- what the sampler remembers of the trial (JSON).
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
    sampler TEXT NOT NULL DEFAULT '{}',
    created_at REAL NOT NULL,
    ended_at REAL,
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

-- The study and the trial that a run is of.
ALTER TABLE runs ADD COLUMN study_id TEXT;
ALTER TABLE runs ADD COLUMN trial INTEGER;

CREATE INDEX runs_by_study ON runs (study_id, trial) WHERE study_id IS NOT NULL;
