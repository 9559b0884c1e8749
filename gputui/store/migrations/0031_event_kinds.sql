-- What the program reads back of an event is its kind and its key; the message is for people alone. Both are NULL for a
-- sentence of an older gputui that is not known here.
ALTER TABLE events ADD COLUMN kind TEXT;
ALTER TABLE events ADD COLUMN key TEXT;

UPDATE events SET kind = CASE
    WHEN message LIKE 'sink %: is written again; %' THEN 'sink_recovered'
    WHEN message LIKE 'sink %: is not complete: %' THEN 'sink_incomplete'
    WHEN message LIKE 'sink %: %' THEN 'sink_failed'
    WHEN message LIKE 'process %, though its attempt is over; %' THEN 'orphan'
    WHEN message LIKE 'process% cannot be killed (%' THEN 'process_unkillable'
    WHEN message LIKE '% could not end orphan % of %' THEN 'orphan_unkillable'
    WHEN message LIKE '% ended orphan % of %' THEN 'orphan_killed'
    WHEN message LIKE 'the last logout ends the agent %' OR message LIKE 'a logout ends the agent %'
        THEN 'logout_ends_agent'
    WHEN message LIKE 'cannot start: %; trying again' THEN 'cannot_start'
    WHEN message LIKE 'its steps start again at their first %' THEN 'steps_restarted'
    WHEN message LIKE 'metrics cannot be read: %' THEN 'metrics_unreadable'
    WHEN message LIKE '% was rewritten; it is read from %' THEN 'metrics_rewritten'
    WHEN message LIKE '% was replaced while nobody was reading; %' THEN 'metrics_lost'
    WHEN message LIKE '% was replaced; the new one is read from %' THEN 'metrics_replaced'
    WHEN message LIKE 'launched by %' THEN 'launched'
    WHEN message LIKE 'attempt % starts%' THEN 'attempt_started'
    WHEN message LIKE 'restart by %' OR message LIKE 'resume by %' THEN 'requeued'
    WHEN message LIKE '% asked it to stop' THEN 'stop_requested'
    WHEN message = 'stopped' OR message LIKE 'stopped %' OR message LIKE 'stopped; %' THEN 'stopped'
    WHEN message LIKE 'finished%' AND attempt IS NOT NULL THEN 'succeeded'
    WHEN message LIKE 'XID %' THEN 'gpu_xid'
    WHEN message LIKE 'is lost%' THEN 'gpu_lost'
    WHEN message LIKE 'is back%' THEN 'gpu_returned'
    WHEN message LIKE '% is in quarantine: %' THEN 'gpu_quarantined'
    WHEN message LIKE 'told by %: %' THEN 'notice_sent'
    WHEN message LIKE 'nobody was told: %; given up' THEN 'notice_failed'
    WHEN message LIKE 'nobody was told: %' THEN 'notice_delayed'
END;
UPDATE events SET kind = 'incident' WHERE kind IS NULL AND EXISTS (
    SELECT 1 FROM incidents AS i
    WHERE i.run_id = events.run_id AND i.attempt = events.attempt AND i.summary = events.message
);
UPDATE events SET kind = 'decision' WHERE kind IS NULL AND EXISTS (
    SELECT 1 FROM decisions AS d
    WHERE d.run_id = events.run_id AND d.attempt = events.attempt AND d.reason = events.message
);

UPDATE events SET key = CASE
    WHEN kind IN ('sink_recovered', 'sink_incomplete', 'sink_failed')
        THEN substr(message, 6, instr(message, ': ') - 6)
    WHEN kind = 'orphan' THEN substr(message, 9, instr(substr(message, 9), ' ') - 1)
    WHEN kind = 'metrics_unreadable' THEN substr(message, 25)
    WHEN kind = 'metrics_rewritten' THEN substr(message, 1, instr(message, ' was rewritten; ') - 1)
    WHEN kind IN ('metrics_lost', 'metrics_replaced') THEN substr(message, 1, instr(message, ' was replaced') - 1)
    WHEN kind = 'requeued' THEN substr(message, 1, instr(message, ' ') - 1)
    WHEN kind = 'gpu_quarantined' THEN substr(message, 1, instr(message, ' ') - 1)
    WHEN kind = 'incident' THEN (
        SELECT i.kind FROM incidents AS i
        WHERE i.run_id = events.run_id AND i.attempt = events.attempt AND i.summary = events.message
    )
    WHEN kind = 'decision' THEN (
        SELECT d.verdict FROM decisions AS d
        WHERE d.run_id = events.run_id AND d.attempt = events.attempt AND d.reason = events.message
    )
END
WHERE kind IS NOT NULL;
