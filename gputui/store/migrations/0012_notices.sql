-- Messages that somebody is owed, each by one way, written with the decision that they are about. A row without sent_at
-- and gave_up_at is still to be sent; an agent that died over it is followed by one that sends it again.
CREATE TABLE notices (
    notice_id INTEGER PRIMARY KEY,
    run_id TEXT NOT NULL REFERENCES runs (run_id) ON DELETE CASCADE,
    attempt INTEGER NOT NULL,
    at REAL NOT NULL,
    way TEXT NOT NULL CHECK (way IN ('command', 'webhook')),
    message TEXT NOT NULL,
    tries INTEGER NOT NULL DEFAULT 0,
    due_at REAL NOT NULL,
    sent_at REAL,
    gave_up_at REAL
) STRICT;

CREATE INDEX notices_owed ON notices (due_at) WHERE sent_at IS NULL AND gave_up_at IS NULL;
