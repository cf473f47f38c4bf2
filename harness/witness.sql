-- The witness: a record of every committed change, which the learner's role can neither read nor touch.
--
-- Run once in a new database by the role that owns the lab tables, after labs/schema.sql; the tables
-- are found through search_path (schema `lab`).
--
-- Each lab table has statement-level AFTER triggers. When a statement changed rows, they do two things:
-- * store old and new rows with the top-level transaction's id (a row's own xmin would be the savepoint's);
--   a transaction that rolls back takes its records along, so what is left is what was committed;
-- * say so on the wire: an INFO with SQLSTATE LB001, which is sent whatever client_min_messages says.
--   The proxy recognises it by its fields, not by its text, and takes it out.
--
-- What counts as a change: a row whose values differ afterwards. An UPDATE that sets every column to
-- what it was (a known way to lock a row) leaves nothing to prove or to undo, so it is neither recorded
-- nor announced, and a point such as `checkpoint` means that the checkpoint moved.
--
-- The triggers are ENABLE ALWAYS (session_replication_role does not silence them), their functions run
-- with the owner's rights under a fixed search_path, and every name in them is qualified or built in.
-- Transition tables come before any table of the same name, temporary ones included.
--
-- The owner alone may silence them for its own session, to seed and clear: SET witness.quiet = 'on'.
-- A client that sets this is recorded all the same, because the condition asks who the session is.

create schema witness;

create table witness.change (
    seq                 bigint      generated always as identity,
    xid                 xid8        not null default pg_current_xact_id(),
    backend_pid         int         not null default pg_backend_pid(),
    tbl                 text        not null,
    op                  text        not null,
    old                 jsonb,
    new                 jsonb,
    synchronous_commit  text        not null default current_setting('synchronous_commit'),
    at                  timestamptz not null default clock_timestamp()
);

-- The setting at the end of each transaction that updated `jobs`: what decides whether its commit survives.
create table witness.commit_setting (
    xid                 xid8 primary key,
    synchronous_commit  text not null
);

create function witness.announce(tbl text, op text, n bigint) returns void
language plpgsql as $$
begin
    raise info 'lab' using errcode = 'LB001', schema = 'lab', table = tbl,
        constraint = op || ':' || n, detail = pg_catalog.pg_current_xact_id()::text;
end $$;

create function witness.on_insert() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare n bigint;
begin
    insert into witness.change (tbl, op, new)
    select tg_table_name, 'insert', to_jsonb(r) from new_rows r;
    get diagnostics n = row_count;
    if n > 0 then perform witness.announce(tg_table_name, 'insert', n); end if;
    return null;
end $$;

create function witness.on_delete() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare n bigint;
begin
    insert into witness.change (tbl, op, old)
    select tg_table_name, 'delete', to_jsonb(r) from old_rows r;
    get diagnostics n = row_count;
    if n > 0 then perform witness.announce(tg_table_name, 'delete', n); end if;
    return null;
end $$;

-- Old and new rows are paired by their place: the server appends both at once for each row it updates.
-- A pairing by primary key would lose a row whose key was changed.
create function witness.on_update() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare n bigint;
begin
    insert into witness.change (tbl, op, old, new)
    select tg_table_name, 'update', o.row, n.row
    from (select row_number() over () as place, to_jsonb(r) as row from old_rows r) o
    join (select row_number() over () as place, to_jsonb(r) as row from new_rows r) n using (place)
    where o.row <> n.row;
    get diagnostics n = row_count;
    if n > 0 then perform witness.announce(tg_table_name, 'update', n); end if;
    return null;
end $$;

-- Which rows went is not known here; one record says that all did.
create function witness.on_truncate() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    insert into witness.change (tbl, op) values (tg_table_name, 'truncate');
    perform witness.announce(tg_table_name, 'truncate', 1);
    return null;
end $$;

-- Deferred, so it runs inside COMMIT, after the last statement that could still change the setting.
create function witness.on_commit() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    insert into witness.commit_setting
    values (pg_current_xact_id(), current_setting('synchronous_commit'))
    on conflict (xid) do update set synchronous_commit = excluded.synchronous_commit;
    return null;
end $$;

revoke all on all functions in schema witness from public;

do $$
declare
    t regclass;
    name text;
    -- Everybody but the owner is always recorded; the owner unless it asked for quiet.
    seen text := format($cond$
        (session_user <> %L or current_setting('witness.quiet', true) is distinct from 'on')
    $cond$, session_user);
begin
    for t in select oid from pg_class where relnamespace = 'lab'::regnamespace and relkind = 'r' loop
        execute format('create trigger witness_insert after insert on %s
            referencing new table as new_rows when %s execute function witness.on_insert()', t, seen);
        execute format('create trigger witness_update after update on %s
            referencing old table as old_rows new table as new_rows
            when %s execute function witness.on_update()', t, seen);
        execute format('create trigger witness_delete after delete on %s
            referencing old table as old_rows when %s execute function witness.on_delete()', t, seen);
        execute format('create trigger witness_truncate after truncate on %s
            when %s execute function witness.on_truncate()', t, seen);
        if t = 'lab.jobs'::regclass then
            execute format('create constraint trigger witness_commit after update on %s
                deferrable initially deferred for each row
                when %s execute function witness.on_commit()', t, seen);
        end if;
        for name in select tgname from pg_trigger where tgrelid = t and not tgisinternal loop
            execute format('alter table %s enable always trigger %I', t, name);
        end loop;
    end loop;
end $$;
