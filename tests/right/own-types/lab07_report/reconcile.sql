-- Discrepancies as what two sets do not share: what should be, and what is.
WITH job AS (
    SELECT * FROM jobs WHERE job_id = %(job_id)s
), should AS (
    SELECT position, i.order_id, i.revision AS before, i.revision + 1 AS after, i.qty,
           job.tenant, 'cancelled' AS state, i.revision + 1 AS revision_now, i.qty AS qty_now
    FROM job_items AS i JOIN job USING (job_id)
    WHERE position < next_index
), is_so AS (
    SELECT coalesce(a.position, i.position) AS position,
           a.order_id, a.revision_before, a.revision_after, a.qty,
           o.tenant, o.state, o.revision, o.qty AS qty_now
    FROM (SELECT * FROM job_items JOIN job USING (job_id) WHERE position < next_index) AS i
    FULL JOIN (SELECT * FROM job_audit JOIN job USING (job_id)) AS a USING (position)
    LEFT JOIN orders AS o ON o.order_id = coalesce(i.order_id, a.order_id)
), wrong AS (
    (SELECT position FROM (TABLE should EXCEPT TABLE is_so) AS lacking)
    UNION
    (SELECT position FROM (TABLE is_so EXCEPT TABLE should) AS extra)
    UNION
    (
        SELECT next_index FROM job
        WHERE next_index NOT IN (SELECT position FROM job_items WHERE job_id = %(job_id)s
                                 AND mod(position, chunk_size) = 0)
          AND next_index <> (SELECT count(*) FROM job_items WHERE job_id = %(job_id)s)
    )
)
SELECT wrong.position, should.*, is_so.*
FROM wrong LEFT JOIN should USING (position) LEFT JOIN is_so USING (position)
ORDER BY 1
