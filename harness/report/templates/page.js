"use strict";
/* One story at a time, one step at a time. The state of the board at a step is the sum of the changes
   of all steps before it; going forward applies one step, going back starts again from the first. */
const interrupted = (() => {
  const $ = (id) => document.getElementById(id);
  const read = (id) => { const e = $(id); return e ? JSON.parse(e.textContent) : null; };
  const svg = (name, attributes, text) => {
    const e = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const key in attributes) e.setAttribute(key, attributes[key]);
    if (text !== undefined) e.textContent = text;
    return e;
  };
  const html = (name, text, className) => {
    const e = document.createElement(name);
    if (text !== undefined) e.textContent = text;
    if (className) e.className = className;
    return e;
  };
  const WIDE_ORDERS = 200;
  const LETTERS = { orders: "o", audit: "a", checkpoint: "p", commit: "C" };
  const CHUNKS_SHOWN = 12, CHUNKS_SHOWN_WIDE = 6;
  let boards = read("boards"), board = null;
  let story = null, state = null, at = 0, marks = [];

  /* --- the state at a step --- */

  const fresh = () => {
    const n = board.orders.length;
    return { step: -1, orders: Array(n).fill("p"), audit: Array(n).fill("p"), ordersTx: Array(n).fill(0),
      auditTx: Array(n).fill(0), checkpointTx: new Map(), checkpoint: [0, null], chunk: 0, touched: [] };
  };
  const fill = (states, txs, runs) => {
    for (const [start, size, letter, tx] of runs || []) {
      states.fill(letter, start, start + size);
      txs.fill(tx, start, start + size);
    }
  };
  const apply = (s, step) => {
    fill(s.orders, s.ordersTx, step.o);
    fill(s.audit, s.auditTx, step.u);
    const [committed, written] = step.c;
    if (committed !== s.checkpoint[0] && step.x)
      for (let k = Math.floor(s.checkpoint[0] / board.chunk); k * board.chunk < committed; k++) s.checkpointTx.set(k, step.x);
    if (step.o && s.step >= 0) s.chunk = Math.floor(step.o[step.o.length - 1][0] / board.chunk);
    s.checkpoint = [committed, written === undefined ? null : written];
    if (step.m) s.touched = step.m;
    s.step++;
  };
  const stateAt = (n, from) => {
    const s = from && from.step <= n ? from : fresh();
    while (s.step < n) apply(s, story.steps[s.step + 1]);
    return s;
  };

  /* --- the board --- */

  const drawBoard = (states, label, changed) => {
    const paths = {};
    let outline = "";
    states.forEach((letter, n) => {
      const corner = `M${board.x[n]} ${board.y[n]}`;
      paths[letter] = (paths[letter] || "") + corner + board.shapes[letter];
      outline += corner + "h10v10h-10z";
    });
    const drawing = svg("svg", { class: "board", viewBox: `-2 -2 ${board.width + 4} ${board.height + 4}`, role: "img", "aria-label": label });
    drawing.style.maxWidth = `${(board.width + 4) * (board.ids ? 2.6 : 2)}px`;
    drawing.append(svg("path", { class: "outline", d: outline }));
    for (const letter in paths) drawing.append(svg("path", { class: "s-" + letter, d: paths[letter] }));
    for (const [x, y, text] of board.labels) drawing.append(svg("text", { class: "chunk", x, y, "font-size": board.text }, text));
    if (board.ids) board.orders.forEach((id, n) => drawing.append(svg("text", { class: "id", x: board.x[n] + 13, y: board.y[n] + 8 }, id)));
    if (changed && board.ids) {
      let d = "";
      for (const [start, size] of changed)
        for (let n = start; n < start + size; n++) d += `M${board.x[n] - 1} ${board.y[n] - 1}h12v12h-12z`;
      drawing.append(svg("path", { class: "changed", d }));
    }
    return drawing;
  };
  const counts = (states) => {
    const found = {};
    for (const letter of states) found[letter] = (found[letter] || 0) + 1;
    return Object.keys(board.words).filter((letter) => found[letter]).map((letter) => `${found[letter]} ${board.words[letter]}`).join("; ");
  };
  const swatch = (letter) => {
    const e = svg("svg", { viewBox: "0 0 10 10", "aria-hidden": "true" });
    e.append(svg("path", { class: "s-" + letter, d: "M0 0" + board.shapes[letter] }));
    return e;
  };
  const drawLegend = () => {
    $("legend").replaceChildren(...Object.keys(board.words).filter((letter) => letter !== "t").map((letter) => {
      const item = html("li");
      item.append(swatch(letter), board.words[letter]);
      return item;
    }));
  };
  const cellAt = (event, drawing) => {
    const box = drawing.getBoundingClientRect(), [, , w] = drawing.getAttribute("viewBox").split(" ");
    const scale = w / box.width, x = (event.clientX - box.left) * scale - 2, y = (event.clientY - box.top) * scale - 2;
    return board.x.findIndex((left, n) => x >= left && x <= left + (board.ids ? 40 : 10) && y >= board.y[n] && y <= board.y[n] + 10);
  };
  const cellWords = (n) => {
    const [revision, qty] = board.approved[n], tx = state.ordersTx[n];
    return `order ${board.orders[n]}, position ${n}: ${board.words[state.orders[n]]}${tx ? ` by T${tx}` : ""}; approved at revision ${revision}, quantity ${qty}`;
  };

  /* --- three records of each chunk --- */

  const part = (states, from, to) => {
    const cell = html("td"), found = {};
    for (let n = from; n < to; n++) found[states[n]] = (found[states[n]] || 0) + 1;
    const letters = Object.keys(found).filter((letter) => letter !== "p");
    if (!letters.length) cell.append(html("span", "–", "none"));
    letters.forEach((letter, i) => cell.append(i ? " " : "", swatch(letter), `${found[letter]}`, html("span", " " + board.words[letter], "hidden")));
    return cell;
  };
  const checkpointCell = (from, to) => {
    const [committed, written] = state.checkpoint, cell = html("td");
    const letter = committed >= to ? "c" : written !== null && written >= to ? "w" : committed > from ? "d" : "";
    if (letter) cell.append(swatch(letter), `${letter === "d" ? committed : to}`, html("span", " " + board.words[letter], "hidden"));
    else cell.append(html("span", "–", "none"));
    return cell;
  };
  const chunkRow = (k) => {
    const from = k * board.chunk, to = Math.min(from + board.chunk, board.orders.length), row = html("tr");
    const head = html("th", `${k + 1}`);
    head.scope = "row";
    const txs = new Set([...state.ordersTx.slice(from, to), ...state.auditTx.slice(from, to), state.checkpointTx.get(k) || 0]);
    txs.delete(0);
    const names = [...txs].sort((a, b) => a - b).map((n) => `T${n}`);
    const writer = html("td", names.slice(0, 3).join(", ") + (names.length > 3 ? ` and ${names.length - 3} more` : "") || "–");
    if (names.length > 1) { writer.className = "apart"; writer.append(" (apart)"); }
    row.append(head, part(state.orders, from, to), part(state.audit, from, to), checkpointCell(from, to), writer);
    if (k === state.chunk) row.className = "active";
    return row;
  };
  const drawChunks = () => {
    const total = Math.ceil(board.orders.length / board.chunk), most = board.orders.length > WIDE_ORDERS ? CHUNKS_SHOWN_WIDE : CHUNKS_SHOWN;
    const first = total <= most ? 0 : Math.max(0, Math.min(state.chunk - most / 2, total - most));
    const last = Math.min(first + most, total), rows = [];
    const more = (n, words) => { const row = html("tr", undefined, "more"), cell = html("td", `${n} ${words}`); cell.colSpan = 5; row.append(cell); return row; };
    if (first > 0) rows.push(more(first, "chunks before"));
    for (let k = first; k < last; k++) rows.push(chunkRow(k));
    if (last < total) rows.push(more(total - last, "chunks after"));
    $("chunks").replaceChildren(...rows);
    const [committed, written] = state.checkpoint;
    $("checkpoint").textContent = `next_index: ${committed}` + (written !== null && written !== committed ? `, and ${written} written but not committed` : "");
  };

  /* --- the timeline --- */

  /* A transaction spans the boundaries of one client from its BEGIN to its end. */
  const spans = () => {
    const found = [], open = new Map();
    story.steps.forEach((step, n) => {
      const span = open.get(step.a);
      if (step.k === "boundary" && !span && (step.s || step.d)) open.set(step.a, { from: n, to: n + 1, who: step.a, x: 0, end: "open", locks: null });
      const now = open.get(step.a);
      if (step.k === "boundary" && now) {
        now.to = n + 1;
        now.x = step.x || now.x;
        if (step.l && now.locks === null) now.locks = n;
        if (!step.s) { now.end = step.d ? "done" : now.wrote ? "rolled" : "read"; found.push(now); open.delete(step.a); }
        if (step.o || step.u) now.wrote = true;
      }
      if ((step.k === "fault" || step.k === "end") && open.has(step.a)) {
        const gone = open.get(step.a);
        gone.to = n + 1; gone.end = "rolled"; found.push(gone); open.delete(step.a);
      }
      if (step.k === "commit") found.push({ from: n, to: n + 1, who: step.a, x: step.x, end: "done", locks: null });
    });
    const all = [...found, ...open.values()].sort((a, b) => a.from - b.from), rows = [];
    for (const span of all) { // transactions of several clients at once stand below one another
      span.row = rows.findIndex((end) => end <= span.from);
      if (span.row < 0) span.row = rows.length;
      rows[span.row] = span.to;
    }
    return all;
  };
  const lives = () => {
    const found = [];
    story.steps.forEach((step, n) => {
      if (step.a === null) return;
      const life = (found[step.a] = found[step.a] || { from: n });
      life.to = n + 1;
      if (step.k === "fault") life.killed = n;
    });
    return found;
  };
  const faultName = (words) => (words.startsWith("killed") ? "SIGKILL" : words.includes("SIGSTOP") ? "freeze" : words.startsWith("another owner") ? "edit" : "fault");
  const drawTimeline = () => {
    const place = $("timeline"), width = Math.max(280, place.clientWidth), narrow = width < 520, label = narrow ? 58 : 150, total = story.steps.length;
    const column = Math.max(7, Math.min(26, (width - label - 8) / total)), shown = Math.min(total, Math.floor((width - label - 8) / column));
    const first = Math.max(0, Math.min(at - Math.floor(shown / 2), total - shown)), last = first + shown;
    const x = (n) => label + (Math.max(first, Math.min(last, n)) - first) * column;
    const inside = (span) => span.to > first && span.from < last;
    const rows = Math.max(1, ...story.spans.map((span) => span.row + 1)), again = Array(rows - 1).fill("");
    const lanes = narrow ? [...story.actors.map((name) => name.replace(/^client /, "")), "wire", "trans.", ...again, "locks", ...again, "knows"]
      : [...story.actors, "wire", "transactions", ...again, "locks", ...again, "client knows"];
    const lane = 30, top = 26;
    const height = top + lanes.length * lane + 8, y = (n) => top + n * lane;
    const drawing = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img",
      "aria-label": `Timeline, steps ${first + 1} to ${last} of ${total}. Step ${at + 1}: ${$("who").textContent} ${$("what").textContent}` });
    const add = (name, attributes, text) => drawing.append(svg(name, attributes, text));
    drawing.dataset.first = first; drawing.dataset.column = column; drawing.dataset.label = label;
    add("rect", { class: "now-column", x: x(at), y: top - 4, width: column, height: height - top });
    lanes.forEach((name, n) => {
      add("line", { class: "lane", x1: 0, x2: width, y1: y(n) + lane, y2: y(n) + lane });
      const most = narrow ? 8 : 24;
      add("text", { x: 0, y: y(n) + 20 }, name.length > most ? name.slice(0, most - 1) + "…" : name);
    });
    story.actors.forEach((_, who) => {
      const life = story.lives[who];
      if (!life) return;
      const { from, to, killed } = life;
      if (to > first && from < last) add("rect", { class: "process", x: x(from), y: y(who) + 12, width: Math.max(2, x(to) - x(from)), height: 7, rx: 2 });
      if (killed !== undefined && killed >= first && killed < last) add("text", { class: "fault-text", x: x(killed) + column / 2 - 5, y: y(who) + 20 }, "✕");
    });
    const wire = story.actors.length;
    for (let n = first; n < last; n++) {
      const step = story.steps[n];
      if (step.k !== "boundary") continue;
      const letter = step.e ? "E" : step.p ? LETTERS[story.texts[step.p]] || "+" : "";
      if (letter && column >= 7) add("text", { class: step.e ? "unknown" : "point", x: x(n) + column / 2, y: y(wire) + 20, "text-anchor": "middle" }, letter);
      else add("circle", { class: "tick", cx: x(n) + column / 2, cy: y(wire) + 16, r: 1.6 });
      if (step.d) add("text", { class: step.h ? "unknown" : "known", x: x(n) + column / 2, y: y(lanes.length - 1) + 20, "text-anchor": "middle" }, step.h ? "?" : "✓");
    }
    for (const span of story.spans.filter(inside)) {
      const left = x(span.from) + 1, size = Math.max(3, x(span.to) - x(span.from) - 2);
      add("rect", { class: span.end === "read" ? "process" : span.end, x: left, y: y(wire + 1 + span.row) + 7, width: size, height: 17, rx: 3 });
      const words = span.end === "rolled" ? "rolled back" : span.x ? `T${span.x}` : "";
      if (words && size > words.length * 7) add("text", { class: span.end === "rolled" ? "rolled-text" : "on-bar", x: left + size / 2, y: y(wire + 1 + span.row) + 20, "text-anchor": "middle" }, words);
      if (span.locks !== null && span.to > span.locks) add("rect", { class: "lock", x: x(span.locks), y: y(wire + 1 + rows + span.row) + 12, width: Math.max(2, x(span.to) - x(span.locks)), height: 8, rx: 2 });
    }
    story.steps.slice(first, last).forEach((step, i) => {
      if (step.k !== "fault" && step.k !== "look") return;
      const n = first + i;
      const middle = x(n) + column / 2, fault = step.k === "fault";
      add("line", { class: fault ? "fault-line" : "look-line", x1: middle, x2: middle, y1: top - 6, y2: height });
      const right = middle > width - 90;
      const words = fault ? faultName(story.texts[step.w]) : "look";
      if (fault || column > 12 || n === total - 1) add("text", { class: fault ? "fault-text" : "", x: middle + (right ? 4 : fault ? 4 : 4), y: top - 12, "text-anchor": right || fault ? "end" : "start" }, words);
    });
    place.replaceChildren(drawing);
  };

  /* --- moments: before the kill, after it, after the resume --- */

  const findMoments = () => {
    const steps = story.steps, fault = steps.findIndex((s) => s.k === "fault"), find = (name) => steps.findIndex((s) => s.look === name);
    const what = fault < 0 ? "" : { SIGKILL: "the kill", edit: "the edit", freeze: "the freeze" }[faultName(story.texts[steps[fault].w])] || "the fault", found = [];
    if (fault > 0) found.push([fault - 1, `Before ${what}`, what === "the kill" ? "as the client saw it" : ""]);
    else found.push([0, "At the start", ""]);
    const seen = "as a fresh connection saw it", end = steps.map((s) => s.look).lastIndexOf("after-resume");
    if (find("after-fault") >= 0) found.push([find("after-fault"), `After ${what}`, seen]);
    if (end >= 0) found.push([end, fault >= 0 && story.actors.length > 1 ? "After the resume" : "At the end", seen]);
    return found;
  };
  const drawMoments = () => {
    marks = [];
    $("moments").replaceChildren(...findMoments().map(([n, title, whose]) => {
      const button = html("button"), there = stateAt(n), words = counts(there.orders);
      button.type = "button";
      const next = there.checkpoint[0], open = there.checkpoint[1];
      button.append(html("span", title, "title"), drawBoard(there.orders, `${title}: ${words}`),
        html("span", `${words}. next_index ${next}${open !== null && open !== next ? ` (${open} written)` : ""}.`, "counts"), html("span", whose, "counts"));
      button.addEventListener("click", () => go(n));
      marks.push([n, button]);
      return button;
    }));
    $("moments").hidden = marks.length < 2;
  };

  /* --- going there --- */

  const isEvent = (step) => step.k !== "boundary" || step.o || step.u || step.d || step.e;
  const go = (n) => {
    at = Math.max(0, Math.min(story.steps.length - 1, n));
    state = stateAt(at, state);
    const step = story.steps[at], text = (i) => (i === undefined ? "" : story.texts[i]);
    $("who").textContent = step.k === "boundary" || step.k === "fault" || step.k === "end" ? story.actors[step.a] || "" : "";
    $("what").textContent = text(step.w);
    $("sql").textContent = text(step.q);
    $("answer").textContent = [step.g !== undefined && text(step.g) ? `→ ${text(step.g)}` : "", step.b ? `boundary ${step.b}` : "", step.t !== undefined ? `${step.t.toFixed(1)} ms` : ""].filter(Boolean).join("  ·  ");
    $("now").className = step.k === "fault" || (step.h && step.d) ? "now fault" : "now";
    const words = counts(state.orders);
    $("board").replaceChildren(drawBoard(state.orders, `The board at step ${at + 1}: ${words}`, step.o && at ? step.o : null));
    $("counts").textContent = words + ".";
    $("touched").hidden = !state.touched.length;
    $("touched").textContent = `Never approved, and touched: ${state.touched.slice(0, 12).join(", ")}`;
    $("where").value = at;
    $("where").setAttribute("aria-valuetext", `step ${at + 1} of ${story.steps.length}: ${$("what").textContent}`);
    $("count").textContent = `${at + 1} of ${story.steps.length}`;
    $("prev").disabled = $("prev-event").disabled = at === 0;
    $("next").disabled = $("next-event").disabled = at === story.steps.length - 1;
    marks.forEach(([m, button]) => (m === at ? button.setAttribute("aria-current", "step") : button.removeAttribute("aria-current")));
    drawChunks();
    drawTimeline();
  };
  const event = (direction) => {
    let n = at + direction;
    while (n > 0 && n < story.steps.length - 1 && !isEvent(story.steps[n])) n += direction;
    go(n);
  };

  /* --- stories --- */

  /* A story opens where the fault is; one without a fault, or with one before its start, at its end. */
  const startAt = () => {
    const fault = story.steps.findIndex((s) => s.k === "fault");
    return fault > 1 ? fault : story.steps.length - 1;
  };

  const show = (data, where) => {
    story = data;
    board = boards[story.board];
    story.spans = spans();
    story.lives = lives();
    state = null;
    $("where").max = story.steps.length - 1;
    $("stage").hidden = false;
    $("no-board").hidden = true;
    const wide = board.orders.length > WIDE_ORDERS;
    document.querySelector(".columns").classList.toggle("wide", wide);
    if (wide) $("board").setAttribute("tabindex", "0"); // it scrolls on a narrow screen
    drawMoments();
    drawLegend();
    go(where === undefined ? startAt() : where);
  };
  const open = (id) => {
    const told = $("told-" + id);
    if (!told) return;
    document.querySelectorAll(".told").forEach((e) => (e.hidden = e !== told));
    document.querySelectorAll("[data-story]").forEach((a) => (a.dataset.story === id ? a.setAttribute("aria-current", "true") : a.removeAttribute("aria-current")));
    const data = read("data-" + id);
    $("stage").hidden = !data;
    $("no-board").hidden = !!data;
    if (data) show(data);
  };

  $("prev").addEventListener("click", () => go(at - 1));
  $("next").addEventListener("click", () => go(at + 1));
  $("prev-event").addEventListener("click", () => event(-1));
  $("next-event").addEventListener("click", () => event(1));
  $("where").addEventListener("input", (e) => go(Number(e.target.value)));
  $("timeline").addEventListener("click", (e) => {
    const drawing = e.currentTarget.firstChild;
    if (drawing) go(Number(drawing.dataset.first) + Math.floor((e.clientX - drawing.getBoundingClientRect().left - drawing.dataset.label) / drawing.dataset.column));
  });
  $("board").addEventListener("pointermove", (e) => {
    const n = e.currentTarget.firstChild ? cellAt(e, e.currentTarget.firstChild) : -1;
    $("counts").textContent = n >= 0 ? cellWords(n) : counts(state.orders) + ".";
  });
  $("board").addEventListener("pointerleave", () => ($("counts").textContent = counts(state.orders) + "."));
  document.addEventListener("keydown", (e) => {
    if (!story || e.altKey || e.ctrlKey || e.metaKey || /^(INPUT|SELECT|TEXTAREA)$/.test(e.target.tagName)) return;
    const move = { ArrowLeft: -1, ArrowRight: 1 }[e.key];
    if (move) e.shiftKey ? event(move) : go(at + move);
    else if (e.key === "Home") go(0);
    else if (e.key === "End") go(story.steps.length - 1);
    else return;
    e.preventDefault();
  });
  addEventListener("hashchange", () => open(location.hash.slice(1)));
  let resized = 0;
  addEventListener("resize", () => { cancelAnimationFrame(resized); resized = requestAnimationFrame(() => story && drawTimeline()); });

  /* --- the theme --- */

  const THEMES = ["auto", "light", "dark"];
  const setTheme = (theme) => {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    $("theme").textContent = `Theme: ${theme}`;
    try { localStorage.setItem("interrupted-theme", theme); } catch { /* a page from a file may have no storage */ }
  };
  let theme = "auto";
  try { theme = localStorage.getItem("interrupted-theme") || "auto"; } catch { /* as above */ }
  setTheme(THEMES.includes(theme) ? theme : "auto");
  $("theme").addEventListener("click", () => setTheme(THEMES[(THEMES.indexOf($("theme").textContent.slice(7)) + 1) % 3]));

  return { open, show, go, setBoards: (data) => { boards = data; }, at: () => at, last: () => (story ? story.steps.length - 1 : 0) };
})();
