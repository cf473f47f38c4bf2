-- The same batch with one transaction around the three records of a chunk. Run with psql -f.
\set ON_ERROR_STOP on
\set chunk 10
select count(*) as total from approved \gset
begin;
select next_index as start, next_index < :total as more from progress for update \gset
\if :more
    update orders set state = 'cancelled', revision = revision + 1
    where order_id in (select order_id from approved where position >= :start order by position limit :chunk);
    insert into audit select position, order_id from approved where position >= :start order by position limit :chunk;
    update progress set next_index = least(:start + :chunk, :total);
    commit;
    \ir bound.sql
\else
    rollback;
\endif
