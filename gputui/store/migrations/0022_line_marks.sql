-- What was in a metrics file as far as it was read: a CRC-32 of each line in order (little-endian, 256 in a block), so
-- that of a file that is rewritten or replaced only those lines are read that it did not have before.
CREATE TABLE line_marks (
    source_id INTEGER NOT NULL REFERENCES metric_sources (source_id) ON DELETE CASCADE,
    block INTEGER NOT NULL,
    marks BLOB NOT NULL,
    PRIMARY KEY (source_id, block)
) STRICT;

-- How many lines have a mark; NULL where none have, as in files that an older gputui began to read.
ALTER TABLE metric_sources ADD COLUMN mark_count INTEGER;

-- Whether it was reported that the file is rewritten: once is enough.
ALTER TABLE metric_sources ADD COLUMN is_rewritten INTEGER NOT NULL DEFAULT 0;
