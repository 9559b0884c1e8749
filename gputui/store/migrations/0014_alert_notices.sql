-- A message may be about an alert, which need not concern a run.
CREATE TABLE notices_of_all (
    notice_id INTEGER PRIMARY KEY,
    run_id TEXT REFERENCES runs (run_id) ON DELETE CASCADE,
    attempt INTEGER,
    alert_id INTEGER REFERENCES alerts (alert_id) ON DELETE CASCADE,
    at REAL NOT NULL,
    way TEXT NOT NULL CHECK (way IN ('command', 'webhook')),
    message TEXT NOT NULL,
    tries INTEGER NOT NULL DEFAULT 0,
    due_at REAL NOT NULL,
    sent_at REAL,
    gave_up_at REAL,
    CHECK (run_id IS NOT NULL OR alert_id IS NOT NULL)
) STRICT;
INSERT INTO notices_of_all (notice_id, run_id, attempt, at, way, message, tries, due_at, sent_at, gave_up_at)
SELECT notice_id, run_id, attempt, at, way, message, tries, due_at, sent_at, gave_up_at FROM notices;
DROP TABLE notices;
ALTER TABLE notices_of_all RENAME TO notices;

CREATE INDEX notices_owed ON notices (due_at) WHERE sent_at IS NULL AND gave_up_at IS NULL;
-- Without it, forgetting an alert walks through all messages.
CREATE INDEX notices_by_alert ON notices (alert_id) WHERE alert_id IS NOT NULL;
