-- Samples take a third of the room, or less, when many of them are in one row. They are first stored one by one, in what were the
-- tables gpu_samples, gpu_slow_samples and host_samples; when their hour has been put together they become packs. Views
-- of the former names show both, one sample a row.
--
-- A pack holds up to 128 samples of one source that lie within 600 seconds (since 1970); packs of a source do not
-- overlap. `at` is its first sample's time. Value n of a column, counted from 0, is X_base + X_scale * code. Of a code
-- there are one or two digits to the base 32767, each a character: the lower is character n of X_codes, or the only one
-- where all values are the same; the higher, if there is one, is character sample_count + n. The code is the code point of
-- the lower plus 32767 times that of the higher; a space for the lower is an unknown value, and NULL a column of
-- unknown values. Real numbers are in thousandths. Times are in milliseconds, and at_step * n is added to them.
ALTER TABLE gpu_samples RENAME TO gpu_sample_rows;
ALTER TABLE gpu_slow_samples RENAME TO gpu_slow_sample_rows;
ALTER TABLE host_samples RENAME TO host_sample_rows;

-- What a GPU's state and throttle reasons were together; `condition` of a pack is such a row.
CREATE TABLE gpu_conditions (
    condition_id INTEGER PRIMARY KEY,
    state TEXT NOT NULL,
    throttle_reasons TEXT
) STRICT;

-- 0 to 127: the samples of a pack.
CREATE TABLE pack_places (n INTEGER PRIMARY KEY) STRICT;
INSERT INTO pack_places WITH RECURSIVE place (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM place WHERE n < 127)
SELECT n FROM place;

CREATE TABLE gpu_sample_packs (
    pack_id INTEGER PRIMARY KEY,
    gpu_id INTEGER NOT NULL REFERENCES gpus (gpu_id),
    at REAL NOT NULL,
    sample_count INTEGER NOT NULL,
    at_step INTEGER NOT NULL, at_base INTEGER NOT NULL, at_scale INTEGER NOT NULL, at_codes TEXT NOT NULL,
    utilization_percent_base INTEGER, utilization_percent_scale INTEGER, utilization_percent_codes TEXT,
    memory_utilization_percent_base INTEGER, memory_utilization_percent_scale INTEGER, memory_utilization_percent_codes TEXT,
    memory_used_bytes_base INTEGER, memory_used_bytes_scale INTEGER, memory_used_bytes_codes TEXT,
    memory_reserved_bytes_base INTEGER, memory_reserved_bytes_scale INTEGER, memory_reserved_bytes_codes TEXT,
    memory_total_bytes_base INTEGER, memory_total_bytes_scale INTEGER, memory_total_bytes_codes TEXT,
    temperature_celsius_base INTEGER, temperature_celsius_scale INTEGER, temperature_celsius_codes TEXT,
    power_watts_base INTEGER, power_watts_scale INTEGER, power_watts_codes TEXT,
    power_limit_watts_base INTEGER, power_limit_watts_scale INTEGER, power_limit_watts_codes TEXT,
    sm_clock_mhz_base INTEGER, sm_clock_mhz_scale INTEGER, sm_clock_mhz_codes TEXT,
    memory_clock_mhz_base INTEGER, memory_clock_mhz_scale INTEGER, memory_clock_mhz_codes TEXT,
    performance_state_base INTEGER, performance_state_scale INTEGER, performance_state_codes TEXT,
    condition_base INTEGER, condition_scale INTEGER, condition_codes TEXT,
    UNIQUE (gpu_id, at)
) STRICT;

CREATE TABLE gpu_slow_sample_packs (
    pack_id INTEGER PRIMARY KEY,
    gpu_id INTEGER NOT NULL REFERENCES gpus (gpu_id),
    at REAL NOT NULL,
    sample_count INTEGER NOT NULL,
    at_step INTEGER NOT NULL, at_base INTEGER NOT NULL, at_scale INTEGER NOT NULL, at_codes TEXT NOT NULL,
    fan_percent_base INTEGER, fan_percent_scale INTEGER, fan_percent_codes TEXT,
    memory_temperature_celsius_base INTEGER, memory_temperature_celsius_scale INTEGER, memory_temperature_celsius_codes TEXT,
    pcie_generation_base INTEGER, pcie_generation_scale INTEGER, pcie_generation_codes TEXT,
    pcie_width_base INTEGER, pcie_width_scale INTEGER, pcie_width_codes TEXT,
    pcie_received_bytes_per_second_base INTEGER, pcie_received_bytes_per_second_scale INTEGER, pcie_received_bytes_per_second_codes TEXT,
    pcie_sent_bytes_per_second_base INTEGER, pcie_sent_bytes_per_second_scale INTEGER, pcie_sent_bytes_per_second_codes TEXT,
    nvlink_received_bytes_per_second_base INTEGER, nvlink_received_bytes_per_second_scale INTEGER, nvlink_received_bytes_per_second_codes TEXT,
    nvlink_sent_bytes_per_second_base INTEGER, nvlink_sent_bytes_per_second_scale INTEGER, nvlink_sent_bytes_per_second_codes TEXT,
    ecc_corrected_base INTEGER, ecc_corrected_scale INTEGER, ecc_corrected_codes TEXT,
    ecc_uncorrected_base INTEGER, ecc_uncorrected_scale INTEGER, ecc_uncorrected_codes TEXT,
    row_remap_pending_base INTEGER, row_remap_pending_scale INTEGER, row_remap_pending_codes TEXT,
    row_remap_failed_base INTEGER, row_remap_failed_scale INTEGER, row_remap_failed_codes TEXT,
    energy_joules_base INTEGER, energy_joules_scale INTEGER, energy_joules_codes TEXT,
    UNIQUE (gpu_id, at)
) STRICT;

CREATE TABLE host_sample_packs (
    pack_id INTEGER PRIMARY KEY,
    at REAL NOT NULL,
    sample_count INTEGER NOT NULL,
    at_step INTEGER NOT NULL, at_base INTEGER NOT NULL, at_scale INTEGER NOT NULL, at_codes TEXT NOT NULL,
    cpu_percent_base INTEGER, cpu_percent_scale INTEGER, cpu_percent_codes TEXT,
    cpu_count_base INTEGER, cpu_count_scale INTEGER, cpu_count_codes TEXT,
    load_1m_base INTEGER, load_1m_scale INTEGER, load_1m_codes TEXT,
    memory_used_bytes_base INTEGER, memory_used_bytes_scale INTEGER, memory_used_bytes_codes TEXT,
    memory_total_bytes_base INTEGER, memory_total_bytes_scale INTEGER, memory_total_bytes_codes TEXT,
    swap_used_bytes_base INTEGER, swap_used_bytes_scale INTEGER, swap_used_bytes_codes TEXT,
    disk_read_bytes_per_second_base INTEGER, disk_read_bytes_per_second_scale INTEGER, disk_read_bytes_per_second_codes TEXT,
    disk_write_bytes_per_second_base INTEGER, disk_write_bytes_per_second_scale INTEGER, disk_write_bytes_per_second_codes TEXT,
    disk_used_bytes_base INTEGER, disk_used_bytes_scale INTEGER, disk_used_bytes_codes TEXT,
    disk_total_bytes_base INTEGER, disk_total_bytes_scale INTEGER, disk_total_bytes_codes TEXT,
    shm_used_bytes_base INTEGER, shm_used_bytes_scale INTEGER, shm_used_bytes_codes TEXT,
    shm_total_bytes_base INTEGER, shm_total_bytes_scale INTEGER, shm_total_bytes_codes TEXT,
    network_received_bytes_per_second_base INTEGER, network_received_bytes_per_second_scale INTEGER, network_received_bytes_per_second_codes TEXT,
    network_sent_bytes_per_second_base INTEGER, network_sent_bytes_per_second_scale INTEGER, network_sent_bytes_per_second_codes TEXT,
    UNIQUE (at)
) STRICT;

CREATE VIEW gpu_samples AS
SELECT
    at, gpu_id, state, utilization_percent, memory_utilization_percent, memory_used_bytes, memory_reserved_bytes,
    memory_total_bytes, temperature_celsius, power_watts, power_limit_watts, sm_clock_mhz, memory_clock_mhz,
    performance_state, throttle_reasons, at AS pack_at
FROM gpu_sample_rows
UNION ALL
SELECT
    (k.at_step * n + k.at_base + k.at_scale * (nullif(unicode(substr(k.at_codes, n % length(k.at_codes) + 1, 1)), 32)
        + 32767 * coalesce(unicode(substr(k.at_codes, k.sample_count + n + 1, 1)), 0))) / 1000.0,
    k.gpu_id,
    c.state,
    (k.utilization_percent_base + k.utilization_percent_scale * (nullif(unicode(substr(k.utilization_percent_codes, n % length(k.utilization_percent_codes) + 1, 1)), 32)
        + 32767 * coalesce(unicode(substr(k.utilization_percent_codes, k.sample_count + n + 1, 1)), 0))) / 1000.0,
    (k.memory_utilization_percent_base + k.memory_utilization_percent_scale * (nullif(unicode(substr(k.memory_utilization_percent_codes, n % length(k.memory_utilization_percent_codes) + 1, 1)), 32)
        + 32767 * coalesce(unicode(substr(k.memory_utilization_percent_codes, k.sample_count + n + 1, 1)), 0))) / 1000.0,
    k.memory_used_bytes_base + k.memory_used_bytes_scale * (nullif(unicode(substr(k.memory_used_bytes_codes, n % length(k.memory_used_bytes_codes) + 1, 1)), 32)
        + 32767 * coalesce(unicode(substr(k.memory_used_bytes_codes, k.sample_count + n + 1, 1)), 0)),
    k.memory_reserved_bytes_base + k.memory_reserved_bytes_scale * (nullif(unicode(substr(k.memory_reserved_bytes_codes, n % length(k.memory_reserved_bytes_codes) + 1, 1)), 32)
        + 32767 * coalesce(unicode(substr(k.memory_reserved_bytes_codes, k.sample_count + n + 1, 1)), 0)),
    k.memory_total_bytes_base + k.memory_total_bytes_scale * (nullif(unicode(substr(k.memory_total_bytes_codes, n % length(k.memory_total_bytes_codes) + 1, 1)), 32)
        + 32767 * coalesce(unicode(substr(k.memory_total_bytes_codes, k.sample_count + n + 1, 1)), 0)),
    (k.temperature_celsius_base + k.temperature_celsius_scale * (nullif(unicode(substr(k.temperature_celsius_codes, n % length(k.temperature_celsius_codes) + 1, 1)), 32)
        + 32767 * coalesce(unicode(substr(k.temperature_celsius_codes, k.sample_count + n + 1, 1)), 0))) / 1000.0,
    (k.power_watts_base + k.power_watts_scale * (nullif(unicode(substr(k.power_watts_codes, n % length(k.power_watts_codes) + 1, 1)), 32)
        + 32767 * coalesce(unicode(substr(k.power_watts_codes, k.sample_count + n + 1, 1)), 0))) / 1000.0,
    (k.power_limit_watts_base + k.power_limit_watts_scale * (nullif(unicode(substr(k.power_limit_watts_codes, n % length(k.power_limit_watts_codes) + 1, 1)), 32)
        + 32767 * coalesce(unicode(substr(k.power_limit_watts_codes, k.sample_count + n + 1, 1)), 0))) / 1000.0,
    k.sm_clock_mhz_base + k.sm_clock_mhz_scale * (nullif(unicode(substr(k.sm_clock_mhz_codes, n % length(k.sm_clock_mhz_codes) + 1, 1)), 32)
        + 32767 * coalesce(unicode(substr(k.sm_clock_mhz_codes, k.sample_count + n + 1, 1)), 0)),
    k.memory_clock_mhz_base + k.memory_clock_mhz_scale * (nullif(unicode(substr(k.memory_clock_mhz_codes, n % length(k.memory_clock_mhz_codes) + 1, 1)), 32)
        + 32767 * coalesce(unicode(substr(k.memory_clock_mhz_codes, k.sample_count + n + 1, 1)), 0)),
    k.performance_state_base + k.performance_state_scale * (nullif(unicode(substr(k.performance_state_codes, n % length(k.performance_state_codes) + 1, 1)), 32)
        + 32767 * coalesce(unicode(substr(k.performance_state_codes, k.sample_count + n + 1, 1)), 0)),
    c.throttle_reasons,
    k.at
FROM gpu_sample_packs AS k JOIN pack_places ON n < k.sample_count
LEFT JOIN gpu_conditions AS c ON c.condition_id = k.condition_base + k.condition_scale * (nullif(unicode(substr(k.condition_codes, n % length(k.condition_codes) + 1, 1)), 32)
        + 32767 * coalesce(unicode(substr(k.condition_codes, k.sample_count + n + 1, 1)), 0));

CREATE VIEW gpu_slow_samples AS
SELECT
    at, gpu_id, fan_percent, memory_temperature_celsius, pcie_generation, pcie_width,
    pcie_received_bytes_per_second, pcie_sent_bytes_per_second, nvlink_received_bytes_per_second,
    nvlink_sent_bytes_per_second, ecc_corrected, ecc_uncorrected, row_remap_pending, row_remap_failed,
    energy_joules, at AS pack_at
FROM gpu_slow_sample_rows
UNION ALL
SELECT
    (k.at_step * n + k.at_base + k.at_scale * (nullif(unicode(substr(k.at_codes, n % length(k.at_codes) + 1, 1)), 32)
        + 32767 * coalesce(unicode(substr(k.at_codes, k.sample_count + n + 1, 1)), 0))) / 1000.0,
    k.gpu_id,
    (k.fan_percent_base + k.fan_percent_scale * (nullif(unicode(substr(k.fan_percent_codes, n % length(k.fan_percent_codes) + 1, 1)), 32)
        + 32767 * coalesce(unicode(substr(k.fan_percent_codes, k.sample_count + n + 1, 1)), 0))) / 1000.0,
    (k.memory_temperature_celsius_base + k.memory_temperature_celsius_scale * (nullif(unicode(substr(k.memory_temperature_celsius_codes, n % length(k.memory_temperature_celsius_codes) + 1, 1)), 32)
        + 32767 * coalesce(unicode(substr(k.memory_temperature_celsius_codes, k.sample_count + n + 1, 1)), 0))) / 1000.0,
    k.pcie_generation_base + k.pcie_generation_scale * (nullif(unicode(substr(k.pcie_generation_codes, n % length(k.pcie_generation_codes) + 1, 1)), 32)
        + 32767 * coalesce(unicode(substr(k.pcie_generation_codes, k.sample_count + n + 1, 1)), 0)),
    k.pcie_width_base + k.pcie_width_scale * (nullif(unicode(substr(k.pcie_width_codes, n % length(k.pcie_width_codes) + 1, 1)), 32)
        + 32767 * coalesce(unicode(substr(k.pcie_width_codes, k.sample_count + n + 1, 1)), 0)),
    (k.pcie_received_bytes_per_second_base + k.pcie_received_bytes_per_second_scale * (nullif(unicode(substr(k.pcie_received_bytes_per_second_codes, n % length(k.pcie_received_bytes_per_second_codes) + 1, 1)), 32)
        + 32767 * coalesce(unicode(substr(k.pcie_received_bytes_per_second_codes, k.sample_count + n + 1, 1)), 0))) / 1000.0,
    (k.pcie_sent_bytes_per_second_base + k.pcie_sent_bytes_per_second_scale * (nullif(unicode(substr(k.pcie_sent_bytes_per_second_codes, n % length(k.pcie_sent_bytes_per_second_codes) + 1, 1)), 32)
        + 32767 * coalesce(unicode(substr(k.pcie_sent_bytes_per_second_codes, k.sample_count + n + 1, 1)), 0))) / 1000.0,
    (k.nvlink_received_bytes_per_second_base + k.nvlink_received_bytes_per_second_scale * (nullif(unicode(substr(k.nvlink_received_bytes_per_second_codes, n % length(k.nvlink_received_bytes_per_second_codes) + 1, 1)), 32)
        + 32767 * coalesce(unicode(substr(k.nvlink_received_bytes_per_second_codes, k.sample_count + n + 1, 1)), 0))) / 1000.0,
    (k.nvlink_sent_bytes_per_second_base + k.nvlink_sent_bytes_per_second_scale * (nullif(unicode(substr(k.nvlink_sent_bytes_per_second_codes, n % length(k.nvlink_sent_bytes_per_second_codes) + 1, 1)), 32)
        + 32767 * coalesce(unicode(substr(k.nvlink_sent_bytes_per_second_codes, k.sample_count + n + 1, 1)), 0))) / 1000.0,
    k.ecc_corrected_base + k.ecc_corrected_scale * (nullif(unicode(substr(k.ecc_corrected_codes, n % length(k.ecc_corrected_codes) + 1, 1)), 32)
        + 32767 * coalesce(unicode(substr(k.ecc_corrected_codes, k.sample_count + n + 1, 1)), 0)),
    k.ecc_uncorrected_base + k.ecc_uncorrected_scale * (nullif(unicode(substr(k.ecc_uncorrected_codes, n % length(k.ecc_uncorrected_codes) + 1, 1)), 32)
        + 32767 * coalesce(unicode(substr(k.ecc_uncorrected_codes, k.sample_count + n + 1, 1)), 0)),
    k.row_remap_pending_base + k.row_remap_pending_scale * (nullif(unicode(substr(k.row_remap_pending_codes, n % length(k.row_remap_pending_codes) + 1, 1)), 32)
        + 32767 * coalesce(unicode(substr(k.row_remap_pending_codes, k.sample_count + n + 1, 1)), 0)),
    k.row_remap_failed_base + k.row_remap_failed_scale * (nullif(unicode(substr(k.row_remap_failed_codes, n % length(k.row_remap_failed_codes) + 1, 1)), 32)
        + 32767 * coalesce(unicode(substr(k.row_remap_failed_codes, k.sample_count + n + 1, 1)), 0)),
    (k.energy_joules_base + k.energy_joules_scale * (nullif(unicode(substr(k.energy_joules_codes, n % length(k.energy_joules_codes) + 1, 1)), 32)
        + 32767 * coalesce(unicode(substr(k.energy_joules_codes, k.sample_count + n + 1, 1)), 0))) / 1000.0,
    k.at
FROM gpu_slow_sample_packs AS k JOIN pack_places ON n < k.sample_count;

CREATE VIEW host_samples AS
SELECT
    at, cpu_percent, cpu_count, load_1m, memory_used_bytes, memory_total_bytes, swap_used_bytes,
    disk_read_bytes_per_second, disk_write_bytes_per_second, disk_used_bytes, disk_total_bytes, shm_used_bytes,
    shm_total_bytes, network_received_bytes_per_second, network_sent_bytes_per_second, at AS pack_at
FROM host_sample_rows
UNION ALL
SELECT
    (k.at_step * n + k.at_base + k.at_scale * (nullif(unicode(substr(k.at_codes, n % length(k.at_codes) + 1, 1)), 32)
        + 32767 * coalesce(unicode(substr(k.at_codes, k.sample_count + n + 1, 1)), 0))) / 1000.0,
    (k.cpu_percent_base + k.cpu_percent_scale * (nullif(unicode(substr(k.cpu_percent_codes, n % length(k.cpu_percent_codes) + 1, 1)), 32)
        + 32767 * coalesce(unicode(substr(k.cpu_percent_codes, k.sample_count + n + 1, 1)), 0))) / 1000.0,
    k.cpu_count_base + k.cpu_count_scale * (nullif(unicode(substr(k.cpu_count_codes, n % length(k.cpu_count_codes) + 1, 1)), 32)
        + 32767 * coalesce(unicode(substr(k.cpu_count_codes, k.sample_count + n + 1, 1)), 0)),
    (k.load_1m_base + k.load_1m_scale * (nullif(unicode(substr(k.load_1m_codes, n % length(k.load_1m_codes) + 1, 1)), 32)
        + 32767 * coalesce(unicode(substr(k.load_1m_codes, k.sample_count + n + 1, 1)), 0))) / 1000.0,
    k.memory_used_bytes_base + k.memory_used_bytes_scale * (nullif(unicode(substr(k.memory_used_bytes_codes, n % length(k.memory_used_bytes_codes) + 1, 1)), 32)
        + 32767 * coalesce(unicode(substr(k.memory_used_bytes_codes, k.sample_count + n + 1, 1)), 0)),
    k.memory_total_bytes_base + k.memory_total_bytes_scale * (nullif(unicode(substr(k.memory_total_bytes_codes, n % length(k.memory_total_bytes_codes) + 1, 1)), 32)
        + 32767 * coalesce(unicode(substr(k.memory_total_bytes_codes, k.sample_count + n + 1, 1)), 0)),
    k.swap_used_bytes_base + k.swap_used_bytes_scale * (nullif(unicode(substr(k.swap_used_bytes_codes, n % length(k.swap_used_bytes_codes) + 1, 1)), 32)
        + 32767 * coalesce(unicode(substr(k.swap_used_bytes_codes, k.sample_count + n + 1, 1)), 0)),
    (k.disk_read_bytes_per_second_base + k.disk_read_bytes_per_second_scale * (nullif(unicode(substr(k.disk_read_bytes_per_second_codes, n % length(k.disk_read_bytes_per_second_codes) + 1, 1)), 32)
        + 32767 * coalesce(unicode(substr(k.disk_read_bytes_per_second_codes, k.sample_count + n + 1, 1)), 0))) / 1000.0,
    (k.disk_write_bytes_per_second_base + k.disk_write_bytes_per_second_scale * (nullif(unicode(substr(k.disk_write_bytes_per_second_codes, n % length(k.disk_write_bytes_per_second_codes) + 1, 1)), 32)
        + 32767 * coalesce(unicode(substr(k.disk_write_bytes_per_second_codes, k.sample_count + n + 1, 1)), 0))) / 1000.0,
    k.disk_used_bytes_base + k.disk_used_bytes_scale * (nullif(unicode(substr(k.disk_used_bytes_codes, n % length(k.disk_used_bytes_codes) + 1, 1)), 32)
        + 32767 * coalesce(unicode(substr(k.disk_used_bytes_codes, k.sample_count + n + 1, 1)), 0)),
    k.disk_total_bytes_base + k.disk_total_bytes_scale * (nullif(unicode(substr(k.disk_total_bytes_codes, n % length(k.disk_total_bytes_codes) + 1, 1)), 32)
        + 32767 * coalesce(unicode(substr(k.disk_total_bytes_codes, k.sample_count + n + 1, 1)), 0)),
    k.shm_used_bytes_base + k.shm_used_bytes_scale * (nullif(unicode(substr(k.shm_used_bytes_codes, n % length(k.shm_used_bytes_codes) + 1, 1)), 32)
        + 32767 * coalesce(unicode(substr(k.shm_used_bytes_codes, k.sample_count + n + 1, 1)), 0)),
    k.shm_total_bytes_base + k.shm_total_bytes_scale * (nullif(unicode(substr(k.shm_total_bytes_codes, n % length(k.shm_total_bytes_codes) + 1, 1)), 32)
        + 32767 * coalesce(unicode(substr(k.shm_total_bytes_codes, k.sample_count + n + 1, 1)), 0)),
    (k.network_received_bytes_per_second_base + k.network_received_bytes_per_second_scale * (nullif(unicode(substr(k.network_received_bytes_per_second_codes, n % length(k.network_received_bytes_per_second_codes) + 1, 1)), 32)
        + 32767 * coalesce(unicode(substr(k.network_received_bytes_per_second_codes, k.sample_count + n + 1, 1)), 0))) / 1000.0,
    (k.network_sent_bytes_per_second_base + k.network_sent_bytes_per_second_scale * (nullif(unicode(substr(k.network_sent_bytes_per_second_codes, n % length(k.network_sent_bytes_per_second_codes) + 1, 1)), 32)
        + 32767 * coalesce(unicode(substr(k.network_sent_bytes_per_second_codes, k.sample_count + n + 1, 1)), 0))) / 1000.0,
    k.at
FROM host_sample_packs AS k JOIN pack_places ON n < k.sample_count;

-- The temperature of a GPU's memory, which is among the slow samples.
ALTER TABLE gpu_minutes ADD COLUMN memory_temperature_celsius_mean REAL;
ALTER TABLE gpu_minutes ADD COLUMN memory_temperature_celsius_min REAL;
ALTER TABLE gpu_minutes ADD COLUMN memory_temperature_celsius_max REAL;
ALTER TABLE gpu_hours ADD COLUMN memory_temperature_celsius_mean REAL;
ALTER TABLE gpu_hours ADD COLUMN memory_temperature_celsius_min REAL;
ALTER TABLE gpu_hours ADD COLUMN memory_temperature_celsius_max REAL;

-- Days in UTC, put together from hours: a year of eight GPUs is 3 000 rows instead of 70 000. Percentiles cannot be
-- put together.
CREATE TABLE gpu_days (
    gpu_id INTEGER NOT NULL REFERENCES gpus (gpu_id),
    at REAL NOT NULL,
    sample_count INTEGER NOT NULL,
    utilization_percent_mean REAL,
    utilization_percent_min REAL,
    utilization_percent_max REAL,
    memory_used_bytes_mean INTEGER,
    memory_used_bytes_min INTEGER,
    memory_used_bytes_max INTEGER,
    temperature_celsius_mean REAL,
    temperature_celsius_min REAL,
    temperature_celsius_max REAL,
    power_watts_mean REAL,
    power_watts_min REAL,
    power_watts_max REAL,
    sm_clock_mhz_mean REAL,
    sm_clock_mhz_min INTEGER,
    sm_clock_mhz_max INTEGER,
    throttled_fraction REAL,
    energy_joules REAL,
    memory_temperature_celsius_mean REAL,
    memory_temperature_celsius_min REAL,
    memory_temperature_celsius_max REAL,
    PRIMARY KEY (gpu_id, at)
) STRICT, WITHOUT ROWID;
INSERT INTO gpu_days (
    gpu_id, at, sample_count, utilization_percent_mean, utilization_percent_min, utilization_percent_max,
    memory_used_bytes_mean, memory_used_bytes_min, memory_used_bytes_max, temperature_celsius_mean,
    temperature_celsius_min, temperature_celsius_max, power_watts_mean, power_watts_min, power_watts_max,
    sm_clock_mhz_mean, sm_clock_mhz_min, sm_clock_mhz_max, throttled_fraction, energy_joules
)
SELECT
    gpu_id,
    CAST(at / 86400 AS INTEGER) * 86400.0 AS day,
    sum(sample_count),
    round(sum(utilization_percent_mean * sample_count) / sum(CASE WHEN utilization_percent_mean NOTNULL THEN sample_count END), 2),
    min(utilization_percent_min),
    max(utilization_percent_max),
    CAST(round(sum(memory_used_bytes_mean * sample_count) / sum(CASE WHEN memory_used_bytes_mean NOTNULL THEN sample_count END)) AS INTEGER),
    min(memory_used_bytes_min),
    max(memory_used_bytes_max),
    round(sum(temperature_celsius_mean * sample_count) / sum(CASE WHEN temperature_celsius_mean NOTNULL THEN sample_count END), 2),
    min(temperature_celsius_min),
    max(temperature_celsius_max),
    round(sum(power_watts_mean * sample_count) / sum(CASE WHEN power_watts_mean NOTNULL THEN sample_count END), 2),
    min(power_watts_min),
    max(power_watts_max),
    round(sum(sm_clock_mhz_mean * sample_count) / sum(CASE WHEN sm_clock_mhz_mean NOTNULL THEN sample_count END), 1),
    min(sm_clock_mhz_min),
    max(sm_clock_mhz_max),
    round(sum(throttled_fraction * sample_count) / sum(CASE WHEN throttled_fraction NOTNULL THEN sample_count END), 4),
    sum(energy_joules)
FROM gpu_hours GROUP BY gpu_id, day;

CREATE TABLE host_days (
    at REAL PRIMARY KEY,
    sample_count INTEGER NOT NULL,
    cpu_percent_mean REAL,
    cpu_percent_min REAL,
    cpu_percent_max REAL,
    memory_used_bytes_mean INTEGER,
    memory_used_bytes_min INTEGER,
    memory_used_bytes_max INTEGER,
    disk_used_bytes_mean INTEGER,
    disk_read_bytes_per_second_mean REAL,
    disk_write_bytes_per_second_mean REAL,
    network_received_bytes_per_second_mean REAL,
    network_sent_bytes_per_second_mean REAL
) STRICT, WITHOUT ROWID;
INSERT INTO host_days (
    at, sample_count, cpu_percent_mean, cpu_percent_min, cpu_percent_max, memory_used_bytes_mean,
    memory_used_bytes_min, memory_used_bytes_max, disk_used_bytes_mean, disk_read_bytes_per_second_mean,
    disk_write_bytes_per_second_mean, network_received_bytes_per_second_mean, network_sent_bytes_per_second_mean
)
SELECT
    CAST(at / 86400 AS INTEGER) * 86400.0 AS day,
    sum(sample_count),
    round(sum(cpu_percent_mean * sample_count) / sum(CASE WHEN cpu_percent_mean NOTNULL THEN sample_count END), 2),
    min(cpu_percent_min),
    max(cpu_percent_max),
    CAST(round(sum(memory_used_bytes_mean * sample_count) / sum(CASE WHEN memory_used_bytes_mean NOTNULL THEN sample_count END)) AS INTEGER),
    min(memory_used_bytes_min),
    max(memory_used_bytes_max),
    CAST(round(sum(disk_used_bytes_mean * sample_count) / sum(CASE WHEN disk_used_bytes_mean NOTNULL THEN sample_count END)) AS INTEGER),
    round(sum(disk_read_bytes_per_second_mean * sample_count) / sum(CASE WHEN disk_read_bytes_per_second_mean NOTNULL THEN sample_count END), 0),
    round(sum(disk_write_bytes_per_second_mean * sample_count) / sum(CASE WHEN disk_write_bytes_per_second_mean NOTNULL THEN sample_count END), 0),
    round(sum(network_received_bytes_per_second_mean * sample_count) / sum(CASE WHEN network_received_bytes_per_second_mean NOTNULL THEN sample_count END), 0),
    round(sum(network_sent_bytes_per_second_mean * sample_count) / sum(CASE WHEN network_sent_bytes_per_second_mean NOTNULL THEN sample_count END), 0)
FROM host_hours GROUP BY day;
