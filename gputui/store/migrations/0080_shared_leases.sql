-- Trials of one study may share a GPU: a lease is of a GPU and a run, and a trigger keeps all others apart.
CREATE TABLE new_leases (
    gpu_uuid TEXT NOT NULL,
    run_id TEXT NOT NULL REFERENCES runs (run_id),
    since REAL NOT NULL,
    is_shared INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (gpu_uuid, run_id)
) STRICT, WITHOUT ROWID;

INSERT INTO new_leases (gpu_uuid, run_id, since) SELECT gpu_uuid, run_id, since FROM leases;
DROP TABLE leases;
ALTER TABLE new_leases RENAME TO leases;

CREATE TRIGGER leases_exclude BEFORE INSERT ON leases
WHEN EXISTS (
    SELECT 1 FROM leases AS l JOIN runs AS r USING (run_id)
    WHERE l.gpu_uuid = NEW.gpu_uuid AND l.run_id != NEW.run_id AND NOT coalesce(
        l.is_shared AND NEW.is_shared AND r.study_id = (SELECT study_id FROM runs WHERE run_id = NEW.run_id), 0
    )
)
BEGIN
    SELECT raise(ABORT, 'another run has the GPU');
END;
