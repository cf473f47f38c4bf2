-- Lab 7: what does not add up in one job? One row a position; no rows means all is exact.
--
-- It reads the same tables as report.py and shares no code with it, so it can catch a mistake in it.
-- Run it with psycopg and {"job_id": ...}. A half-done job is exact as far as it goes: what comes
-- after the checkpoint is only unfinished.

WITH job AS (
    SELECT job_id, tenant, chunk_size, next_index,
           (SELECT count(*) FROM job_items AS i WHERE i.job_id = j.job_id) AS total
    FROM jobs AS j
    WHERE job_id = %(job_id)s
),
-- Every position that anyone mentions. An inner join of list and audit would hide exactly the
-- positions that are missing on one side.
positions AS (
    SELECT position FROM job_items WHERE job_id = %(job_id)s
    UNION
    SELECT position FROM job_audit WHERE job_id = %(job_id)s
    UNION
    SELECT next_index FROM job
),
differences AS (
    SELECT position, i.order_id,
           concat_ws('; ',
               -- the checkpoint
               CASE WHEN position = next_index AND next_index > total
                    THEN 'checkpoint past the end of the list' END,
               CASE WHEN position = next_index AND next_index < total
                         AND mod(next_index, chunk_size) <> 0
                    THEN 'checkpoint inside a chunk' END,
               -- the audit against the list
               CASE WHEN position < next_index AND a.position IS NULL
                    THEN 'not in the audit' END,
               CASE WHEN position >= next_index AND a.position IS NOT NULL
                    THEN 'in the audit past the checkpoint' END,
               CASE WHEN a.position IS NOT NULL
                         AND (a.order_id, a.revision_before, a.revision_after, a.qty)
                             IS DISTINCT FROM (i.order_id, i.revision, i.revision + 1, i.qty)
                    THEN 'audit differs from the approval' END,
               -- the orders against the approval, as far as the job got
               CASE WHEN position < next_index AND o.order_id IS NULL
                    THEN 'order is missing' END,
               CASE WHEN position < next_index AND o.order_id IS NOT NULL
                         AND (o.tenant, o.state, o.revision, o.qty)
                             IS DISTINCT FROM (job.tenant, 'cancelled', i.revision + 1, i.qty)
                    THEN 'order has drifted' END
           ) AS difference
    FROM job
    CROSS JOIN positions
    LEFT JOIN job_items AS i USING (job_id, position)
    LEFT JOIN job_audit AS a USING (job_id, position)
    LEFT JOIN orders AS o ON o.order_id = i.order_id
)
SELECT position, order_id, difference
FROM differences
WHERE difference <> ''
ORDER BY position;
