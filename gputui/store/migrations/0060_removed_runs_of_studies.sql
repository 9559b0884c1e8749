-- What those runs of a study took that were removed since: a budget in GPU-hours counts them, too.
ALTER TABLE studies ADD COLUMN removed_gpu_seconds REAL NOT NULL DEFAULT 0;
