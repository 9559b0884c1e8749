-- How many GPUs the next attempts of a run have, where exclude_gpu left fewer than its specification asks for.
ALTER TABLE runs ADD COLUMN gpu_count INTEGER;

-- Until now that was only told by the leases of a run that is not over.
UPDATE runs SET gpu_count = (SELECT count(*) FROM leases WHERE leases.run_id = runs.run_id)
WHERE ended_at IS NULL AND attempt > 0
  AND (SELECT count(*) FROM leases WHERE leases.run_id = runs.run_id) BETWEEN 1
      AND max(json_array_length(spec, '$.gpus.uuids'), coalesce(spec ->> '$.gpus.count', 0)) - 1;
