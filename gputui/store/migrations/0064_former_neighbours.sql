-- When attempts of runs that were removed had a checkpoint folder which others had at the same time: what was written
-- then is still nobody's. Times are UTC unix seconds.
CREATE TABLE former_neighbours (
    checkpoint_folder TEXT NOT NULL,
    run_id TEXT NOT NULL,
    begun_at REAL NOT NULL,
    ended_at REAL NOT NULL,
    PRIMARY KEY (checkpoint_folder, run_id, begun_at)
) STRICT, WITHOUT ROWID;
