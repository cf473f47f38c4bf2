-- One row for every order that was not cancelled exactly once, with its audit.
select o.order_id, o.state, o.revision, a.position as approved_at, t.position as audited_at
from orders o left join approved a using (order_id) left join audit t using (order_id)
where (o.state, o.revision, t.position) is distinct from
      (case when a.position is null then 'pending' else 'cancelled' end,
       case when a.position is null then 1 else 2 end,
       a.position)
order by o.order_id
