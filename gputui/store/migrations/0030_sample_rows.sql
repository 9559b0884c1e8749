-- Samples are rows again, kept for two days and then as minutes and hours. What packs held of the last days has become
-- rows before this (store/sample_packs.py).
DROP VIEW gpu_samples;
DROP VIEW gpu_slow_samples;
DROP VIEW host_samples;
ALTER TABLE gpu_sample_rows RENAME TO gpu_samples;
ALTER TABLE gpu_slow_sample_rows RENAME TO gpu_slow_samples;
ALTER TABLE host_sample_rows RENAME TO host_samples;
DROP TABLE gpu_sample_packs;
DROP TABLE gpu_slow_sample_packs;
DROP TABLE host_sample_packs;
DROP TABLE gpu_conditions;
DROP TABLE pack_places;
