-- The tags (JSON list) and the note that a person gave a run. A change replaces the row, so that the highest number
-- says whether anything changed, the name in `runs` too.
CREATE TABLE run_labels (
    change_id INTEGER PRIMARY KEY,
    run_id TEXT NOT NULL UNIQUE REFERENCES runs (run_id) ON DELETE CASCADE,
    tags TEXT NOT NULL DEFAULT '[]',
    note TEXT
) STRICT;
