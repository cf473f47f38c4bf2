"""The client only asks; all three writes happen inside one function call."""

from __future__ import annotations

from psycopg import errors

from harness.contract import ChunkResult, Conflict, UnknownJob

FUNCTION = """
    CREATE OR REPLACE FUNCTION pg_temp.advance(the_job text)
    RETURNS TABLE (processed bigint[], next_index int, total int) LANGUAGE plpgsql AS $$
    DECLARE
        job jobs%ROWTYPE;
        item job_items%ROWTYPE;
        unmatched bigint[] := '{}';
    BEGIN
        SELECT * INTO job FROM jobs AS j WHERE j.job_id = the_job FOR UPDATE;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'unknown job' USING ERRCODE = 'no_data_found';
        END IF;
        processed := '{}';
        next_index := job.next_index;
        SELECT count(*) INTO total FROM job_items AS i WHERE i.job_id = the_job;
        FOR item IN
            SELECT * FROM job_items AS i
            WHERE i.job_id = the_job AND i.position >= job.next_index
            ORDER BY i.position LIMIT job.chunk_size
        LOOP
            UPDATE orders AS o SET state = 'cancelled', revision = o.revision + 1
            WHERE o.order_id = item.order_id AND o.tenant = job.tenant AND o.state = 'pending'
              AND o.revision = item.revision AND o.qty = item.qty;
            IF NOT FOUND THEN
                unmatched := unmatched || item.order_id;
                CONTINUE;
            END IF;
            INSERT INTO job_audit (job_id, position, order_id, revision_before, revision_after, qty)
            SELECT the_job, item.position, o.order_id, item.revision, o.revision, o.qty
            FROM orders AS o WHERE o.order_id = item.order_id;
            processed := processed || item.order_id;
            next_index := item.position + 1;
        END LOOP;
        IF unmatched <> '{}' THEN
            RAISE EXCEPTION 'not as approved: %', unmatched USING ERRCODE = 'triggered_action_exception';
        END IF;
        UPDATE jobs AS j SET next_index = advance.next_index
        WHERE j.job_id = the_job AND j.next_index <> advance.next_index;
        RETURN NEXT;
    END $$
"""


def run_chunk(conn, job_id):
    """Advance the job by its next chunk."""
    try:
        with conn.transaction():
            conn.execute(FUNCTION)
            row = conn.execute("SELECT * FROM pg_temp.advance(%s)", (job_id,)).fetchone()
            conn.execute("DROP FUNCTION pg_temp.advance")
    except errors.NoDataFound:
        raise UnknownJob(job_id) from None
    except errors.TriggeredActionException as error:
        raise Conflict(error.diag.message_primary) from None
    processed, next_index, total = row
    return ChunkResult(tuple(processed), next_index, next_index == total)
