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
