-- What it takes to look at a past moment: what happened around a time is found without reading what lies between.
CREATE INDEX events_by_time ON events (at);
CREATE INDEX incidents_by_time ON incidents (at);
CREATE INDEX gpu_events_by_time ON gpu_events (at);
CREATE INDEX transitions_by_time ON transitions (at);

-- The few lines that tell of an event, a checkpoint among them, out of millions.
CREATE INDEX metrics_with_event ON metrics (source_id, at) WHERE instr(data, '"event"') > 0;
