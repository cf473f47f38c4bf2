/* The live board: views come in as server-sent events, commands go out as small POSTs. */
(() => {
  const $ = (id) => document.getElementById(id);
  const stage = { view: null };
  const ask = async (command) => {
    const answer = await fetch("do", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(command) }).catch(() => null);
    if (!answer || !answer.ok) $("message").textContent = answer ? await answer.text() : "The board has ended. Start `lab board` again.";
  };
  const button = (words, action, worker, enabled) => {
    const e = document.createElement("button");
    e.type = "button";
    e.textContent = words;
    e.disabled = !enabled;
    e.dataset.action = action;
    e.setAttribute("aria-label", `${words} ${worker.name}`);
    e.addEventListener("click", () => ask({ action, worker: worker.number }));
    return e;
  };
  /* Buttons keep the focus when their row is drawn again, so that Step can be pressed many times. */
  const drawWorkers = (workers) => {
    const active = document.activeElement, kept = active && active.closest("#workers li");
    const focus = kept ? [kept.dataset.worker, active.dataset.action] : null;
    $("workers").replaceChildren(...workers.map((w) => {
      const row = document.createElement("li"), name = document.createElement("b"), state = document.createElement("span");
      row.dataset.worker = w.number;
      row.className = w.ended ? "ended" : w.frozen ? "frozen" : w.held ? "held" : "busy";
      name.textContent = w.name;
      state.className = "state";
      state.textContent = w.state + (w.fault ? ` · ${w.fault} is waiting for it` : "");
      row.append(name, state);
      if (!w.ended) {
        row.append(button("Step", "step", w, w.held && !w.running), w.running ? button("Pause", "pause", w, true) : button("Run", "run", w, !w.frozen),
          w.frozen ? button("Thaw", "thaw", w, true) : button("Freeze", "freeze", w, true), button("Kill", "kill", w, true));
      }
      return row;
    }));
    if (focus) {
      const again = document.querySelector(`#workers li[data-worker="${focus[0]}"] [data-action="${focus[1]}"]`);
      if (again) again.focus();
    }
  };
  const drawVerdict = (view) => {
    const broken = view.findings.length > 0, done = view.verdict.startsWith("finished");
    const words = broken ? `broken: ${view.findings.map((f) => `${f.promise} (expected ${f.expected}; seen ${f.seen})`).slice(0, 2).join("\n")}` : view.verdict;
    $("verdict").className = `verdict v-${broken ? "fail" : done ? "pass" : "none"}`;
    $("verdict").textContent = `${broken ? "✗" : done ? "✓" : "…"} ${words}`;
  };
  const draw = (view) => {
    $("message").textContent = view.message;
    $("running").hidden = !view.on;
    if (!view.on) { document.getElementById("stage").hidden = true; stage.view = null; return; }
    const orders = document.querySelector("#rival select"), chosen = orders.value;
    if (!stage.view || stage.view.orders.length !== view.orders.length) {
      orders.replaceChildren(...view.orders.map((id) => new Option(id, id)));
      const middle = view.orders[Math.floor(view.orders.length * 0.375)];
      orders.value = view.orders.includes(Number(chosen)) ? chosen : middle;
    }
    drawWorkers(view.workers);
    drawVerdict(view);
    interrupted.setBoards([view.board]);
    const follow = $("follow").checked || !stage.view;
    interrupted.show(view.story, follow ? view.story.steps.length - 1 : Math.min(interrupted.at(), view.story.steps.length - 1));
    stage.view = view;
  };
  $("start").addEventListener("submit", (e) => {
    e.preventDefault();
    const form = new FormData(e.target);
    stage.view = null;
    ask({ action: "start", activity: form.get("activity"), impl: form.get("impl"), fault: form.get("fault"), orders: Number(form.get("orders")), chunk: Number(form.get("chunk")) });
  });
  $("rival").addEventListener("submit", (e) => {
    e.preventDefault();
    ask({ action: "rival", order: Number(new FormData(e.target).get("order")) });
  });
  $("another").addEventListener("click", () => ask({ action: "another" }));
  const events = new EventSource("events");
  events.addEventListener("message", (e) => draw(JSON.parse(e.data)));
  events.addEventListener("gone", () => { events.close(); draw({ on: false, message: "This board is shown in another window now, or has ended." }); });
  events.addEventListener("error", () => { if (events.readyState !== EventSource.OPEN) $("message").textContent = "No connection to the board."; });
})();
