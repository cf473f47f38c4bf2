-- The tables of both tracks. They are given: you fill in code, not tables.
--
-- Track A (labs 1-7) resumes an interrupted batch. `jobs` and `job_items` hold what was approved and
-- never change after registration; `job_audit` and `jobs.next_index` hold what was executed.
-- Positions are 0-based and follow the order of the order IDs.

create table orders (
    order_id  bigint primary key,
    tenant    text   not null,
    qty       int    not null check (qty > 0),
    state     text   not null default 'pending' check (state in ('pending', 'cancelled')),
    revision  int    not null default 1      -- every normal write raises it by one
);

create table jobs (
    job_id      text primary key,
    tenant      text not null,
    chunk_size  int  not null check (chunk_size > 0),
    next_index  int  not null default 0 check (next_index >= 0)   -- the checkpoint
);

create table job_items (
    job_id    text   not null references jobs,
    position  int    not null,
    order_id  bigint not null,
    revision  int    not null,               -- the version that was approved
    qty       int    not null,
    primary key (job_id, position),
    unique (job_id, order_id)
);

create table job_audit (
    job_id           text        not null references jobs,
    position         int         not null,
    order_id         bigint      not null,
    revision_before  int         not null,
    revision_after   int         not null,
    qty              int         not null,
    recorded_at      timestamptz not null default now(),
    primary key (job_id, position)
);

-- Track B (labs 8-12) keeps one durable row per unit of work. `child_work` is the ledger; the counters
-- in `parent_work` are a projection of it.

create table parent_work (
    parent_id      text primary key,
    payload        jsonb,
    total          int,                      -- NULL until decomposed
    processed      int not null default 0,
    failed         int not null default 0,
    skipped        int not null default 0,
    decomposed_at  timestamptz,
    completed_at   timestamptz,
    failed_at      timestamptz,
    failure        text
);

create table child_work (
    child_id               bigint generated always as identity primary key,
    parent_id              text not null references parent_work,
    sequence               int  not null,    -- 0-based, in the order of the payload
    event                  jsonb,
    processing_started_at  timestamptz,      -- the claim
    attempts               int  not null default 0,
    processed_at           timestamptz,      -- at most one of these three is ever set
    failed_at              timestamptz,
    skipped_at             timestamptz,
    outcome                text,             -- the reason, for failed and skipped
    unique (parent_id, sequence)
);

create table subjects (
    subject  text primary key                -- the local subjects that events may name
);

create table event_effects (                 -- the business effect; no unique key on purpose
    effect_id    bigint generated always as identity primary key,
    parent_id    text not null,
    sequence     int  not null,
    subject      text not null,
    occurred_at  timestamptz not null
);
