-- How a source's lines are read (JSON): patterns, the name of the step, factors of units, and which of a rank's outputs
-- are searched. Until now only patterns were, and those stood in the run's specification.
ALTER TABLE metric_sources ADD COLUMN reading TEXT;

UPDATE metric_sources SET reading = json_object('patterns', json(
    (SELECT coalesce(runs.spec -> '$.metrics.patterns', '[]') FROM runs WHERE runs.run_id = metric_sources.run_id)
)) WHERE format IN ('stdout', 'output');
