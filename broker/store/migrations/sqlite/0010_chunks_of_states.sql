-- How many saved states of the holder name the chunk. The sweep examines only chunks that no state names.
ALTER TABLE chunks ADD COLUMN of_states INTEGER NOT NULL DEFAULT 0;

WITH RECURSIVE named (owner, course, name, number) AS (
    SELECT owner, course, name, 0 FROM states WHERE LENGTH(chunks) > 0
    UNION ALL
    SELECT owner, course, name, number + 1 FROM named JOIN states USING (owner, course, name)
    WHERE LENGTH(chunks) > 32 * (number + 1)
),
counted (owner, course, hash, times) AS (
    SELECT owner, course, SUBSTR(chunks, 32 * number + 1, 32), COUNT(*)
    FROM named JOIN states USING (owner, course, name) GROUP BY 1, 2, 3
)
UPDATE chunks SET of_states = times FROM counted
WHERE counted.hash = chunks.hash AND counted.owner = chunks.owner AND counted.course = chunks.course;

DROP INDEX chunks_touched;
CREATE INDEX chunks_touched ON chunks (touched_ms) WHERE of_states = 0;
