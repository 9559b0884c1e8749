-- What the agent saw in a living attempt by watching it, once per kind. `ends`: it is the reason for which gputui ends
-- the attempt, noted before anything is done, so that an agent that dies in between is followed by one that goes on.
CREATE TABLE observations (
    observation_id INTEGER PRIMARY KEY,
    run_id TEXT NOT NULL REFERENCES runs (run_id) ON DELETE CASCADE,
    attempt INTEGER NOT NULL,
    at REAL NOT NULL,
    kind TEXT NOT NULL,
    rank INTEGER,
    step INTEGER,
    text TEXT NOT NULL,
    ends INTEGER NOT NULL DEFAULT 0,
    UNIQUE (run_id, attempt, kind, ends)
) STRICT;
