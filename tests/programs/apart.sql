-- The naive batch: every statement commits by itself. Run with psql -f.
\set ON_ERROR_STOP on
\set chunk 10
select count(*) as total from approved \gset
select next_index as start, next_index < :total as more from progress \gset
\if :more
    update orders set state = 'cancelled', revision = revision + 1
    where order_id in (select order_id from approved where position >= :start order by position limit :chunk);
    insert into audit select position, order_id from approved where position >= :start order by position limit :chunk;
    update progress set next_index = least(:start + :chunk, :total);
    \ir apart.sql
\endif
