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
