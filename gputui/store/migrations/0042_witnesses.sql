-- Who says each line of an incident's evidence, as a JSON list in its order.
ALTER TABLE incidents ADD COLUMN witnesses TEXT NOT NULL DEFAULT '[]';

UPDATE incidents SET witnesses = (
    SELECT json_group_array(CASE
        WHEN value LIKE 'exit: %' THEN 'exit'
        WHEN value LIKE 'kernel: %' THEN 'kernel'
        WHEN value LIKE 'torchrun: %' OR value LIKE 'the launcher: %' THEN 'launcher'
        ELSE 'finding'
    END)
    FROM json_each(incidents.evidence)
)
WHERE json_valid(evidence);
