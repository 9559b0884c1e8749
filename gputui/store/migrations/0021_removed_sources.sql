-- A run that is removed goes at once with its few rows. The sources of its metrics stay behind without a run, where
-- nothing finds them any more, and their millions of lines are deleted a slice at a time. The one change is the column
-- run_id of metric_sources, which may be NULL now; how it is made: https://www.sqlite.org/lang_altertable.html#otheralter
PRAGMA writable_schema = ON;
UPDATE sqlite_schema SET sql = replace(
    sql,
    'run_id TEXT NOT NULL REFERENCES runs (run_id) ON DELETE CASCADE',
    'run_id TEXT REFERENCES runs (run_id) ON DELETE SET NULL'
) WHERE type = 'table' AND name = 'metric_sources';
PRAGMA writable_schema = RESET;
