-- The ledger of checkpoints: what was seen in the checkpoint folder of each run, who wrote it, and whether it may be
-- resumed from. A file that is written again is entered again, in place of what it was.
-- origin: run (written by `attempt`), rebuilt (the same, concluded from times: the run is older than the ledger),
--   foreign (it lay there before, or another wrote it), named (a person chose it; it counts as written by `attempt`).
-- verdict: unexamined, valid, invalid, doubtful (attempts that resumed from it made no step), struck; `why` says why.
-- left_by: the attempt that began from an earlier checkpoint; counts once that attempt has made a step.
CREATE TABLE checkpoints (
    run_id TEXT NOT NULL REFERENCES runs (run_id) ON DELETE CASCADE,
    path TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    origin TEXT NOT NULL,
    modified_ns INTEGER NOT NULL,
    size_bytes INTEGER,
    step INTEGER,
    first_seen_at REAL NOT NULL,
    is_settled INTEGER NOT NULL DEFAULT 0,
    verdict TEXT NOT NULL DEFAULT 'unexamined',
    why TEXT NOT NULL DEFAULT '',
    failed_starts INTEGER NOT NULL DEFAULT 0,
    left_by INTEGER,
    PRIMARY KEY (run_id, path)
) STRICT, WITHOUT ROWID;

-- Where an attempt writes its checkpoints: two runs that share a folder cannot tell whose a checkpoint is.
ALTER TABLE attempts ADD COLUMN checkpoint_folder TEXT;
CREATE INDEX attempts_by_checkpoint_folder ON attempts (checkpoint_folder) WHERE checkpoint_folder IS NOT NULL;
