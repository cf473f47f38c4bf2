/* What the audit should be, what it is, and what the orders should be: differences by position. */
WITH job AS (SELECT * FROM jobs WHERE job_id = %(job_id)s),
expected AS (
    SELECT i.position, i.order_id, i.revision AS before, i.revision + 1 AS after, i.qty, j.tenant
    FROM job AS j JOIN job_items AS i ON i.job_id = j.job_id AND i.position < j.next_index
),
audited AS (
    SELECT position, order_id, revision_before, revision_after, qty
    FROM job_audit WHERE job_id = %(job_id)s
),
found AS (
    (SELECT position, order_id, before, after, qty FROM expected EXCEPT TABLE audited)
    UNION ALL
    (TABLE audited EXCEPT SELECT position, order_id, before, after, qty FROM expected)
),
impossible AS (
    -- every place a checkpoint may stand: 0, the end of each chunk, the end of the list
    SELECT next_index AS position FROM job
    WHERE next_index NOT IN (
        SELECT generate_series(0, count(*), (SELECT chunk_size FROM job))
        FROM job_items WHERE job_id = %(job_id)s
        UNION SELECT count(*) FROM job_items WHERE job_id = %(job_id)s
    )
)
SELECT position FROM found
UNION
SELECT position FROM expected AS e
WHERE NOT EXISTS (
    SELECT FROM orders AS o
    WHERE (o.order_id, o.tenant, o.qty, o.revision, o.state)
        = (e.order_id, e.tenant, e.qty, e.after, 'cancelled')
)
UNION
SELECT position FROM impossible
UNION
-- a checkpoint past the end claims positions that the list does not have
SELECT generate_series(count(*), max(next_index) - 1)::int
FROM job LEFT JOIN job_items USING (job_id)
HAVING max(next_index) > count(*)
