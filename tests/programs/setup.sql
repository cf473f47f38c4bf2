-- A batch that cancels what was approved, ten a chunk, for the psql programs beside this file.
create table orders (order_id int primary key, state text not null default 'pending', revision int not null default 1);
create table approved (position int primary key, order_id int not null references orders);
create table audit (position int primary key, order_id int not null);
create table progress (next_index int not null);

insert into orders select n * 3 from generate_series(1, 30) n;
insert into approved select n - 1, n * 3 from generate_series(1, 23) n;
insert into progress values (0);
