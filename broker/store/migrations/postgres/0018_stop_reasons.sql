-- Why a job was stopped is JSON now, instead of a sentence for its owner.
UPDATE jobs SET stopped = CASE
    WHEN stopped LIKE 'The cell was stopped because%' THEN '{"notebook_away":{}}'
    ELSE '{"staff":{"person":null,"reason":null}}' END
WHERE stopped IS NOT NULL;
