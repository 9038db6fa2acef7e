// The review table: one page of rows at a time, so that thousands of clips cost no more than fifty. Texts are set as
// texts, never as markup. A decision is shown at once, sent in order, and sent again until the server has saved it.
"use strict";
const PAGE_ROWS = 50, RETRY_MS = 1500, SEARCH_PAUSE_MS = 150, BUSY = 423;
const asked = new URLSearchParams(window.location.search);
const source = { project: asked.get("project") || "", dataset: asked.get("dataset") || "" };
const part = id => document.getElementById(id);
const FILTERS = {
  all: ["All clips", () => true],
  todo: ["Not reviewed", row => !row.state],
  marked: ["Marked by verify", row => row.marked && row.state !== "rejected"],
  machine: ["Machine-made, not reviewed", row => row.machine && !row.state],
  accepted: ["Accepted", row => row.state === "accepted"],
  edited: ["Edited", row => row.state === "edited"],
  rejected: ["Rejected", row => row.state === "rejected"],
};
let rows = [], view = [], chosen = 0, stamp = "", last = null;
let waiting = 0, sending = Promise.resolve();
const player = new Audio();
player.controls = true;
player.preload = "none";

// ---- what is shown ---------------------------------------------------------------------------------------------------

function fillRow(made, row, index) {
  const find = name => made.querySelector(name);
  find(".number").textContent = (index + 1).toLocaleString();
  find(".id").textContent = row.id;
  const facts = [`${row.seconds.toFixed(1)} s`, row.speaker];
  if (row.disagreement !== null) { facts.push(`disagreement ${row.disagreement.toFixed(2)}`); }
  if (row.machine) { facts.push("machine-made"); }
  find(".facts").textContent = facts.join(" · ");
  if (row.marked) {
    find(".facts").append(" · ", Object.assign(document.createElement("b"), { textContent: "marked by verify" }));
  }
  const field = find("textarea");
  if (field !== document.activeElement) { field.value = row.draft ?? row.text; }
  for (const [name, text] of [[".heard", row.heard], [".original", row.original]]) {
    find(name).hidden = !text;
    find(`${name} span`).textContent = text;
  }
  const words = { accepted: "✓ accepted", edited: "✓ edited", rejected: "✗ rejected", "": "" }[row.state];
  find(".state").className = `state ${row.unsaved ? "unsaved" : row.state}`;
  find(".state").textContent = row.unsaved || words;
  if (row.reasons.length) {
    const left = `left out: ${row.reasons.join(", ")}`;
    find(".state").append(Object.assign(document.createElement("small"), { textContent: left }));
  }
}

function buildRow(row, index) {
  const made = part("row").content.firstElementChild.cloneNode(true);
  made.dataset.index = index;
  fillRow(made, row, index);
  const field = made.querySelector("textarea");
  field.lang = row.language;
  field.setAttribute("aria-label", `Text of ${row.id}`);
  for (const button of made.querySelectorAll("button")) {
    button.setAttribute("aria-label", `${button.textContent} ${row.id}`);
  }
  if (index === chosen) { markChosen(made, row); }
  return made;
}

function markChosen(element, row) {
  element.setAttribute("aria-current", "true");
  element.tabIndex = 0;
  const address = `review/audio?${new URLSearchParams({ ...source, clip: row.id })}`;
  if (player.getAttribute("src") !== address) { player.src = address; }
  player.setAttribute("aria-label", `Audio of ${row.id}`);
  if (!element.contains(player)) { element.querySelector(".player").append(player); }
}

const rowElement = index => part("rows").querySelector(`[data-index="${index}"]`);

function renderPage() {
  const first = Math.floor(chosen / PAGE_ROWS) * PAGE_ROWS;
  const shown = view.slice(first, first + PAGE_ROWS);
  part("rows").replaceChildren(...shown.map((row, place) => buildRow(row, first + place)));
  const pages = Math.ceil(view.length / PAGE_ROWS);
  part("pager").hidden = pages < 2;
  part("page").textContent = `Page ${Math.floor(chosen / PAGE_ROWS) + 1} of ${pages.toLocaleString()}`;
  part("before").disabled = first === 0;
  part("after").disabled = first + PAGE_ROWS >= view.length;
  part("empty").hidden = view.length > 0;
  part("empty").textContent = rows.length ? "No clip matches." : "";
}

// In place: a row that is rebuilt between the press and the release of a button would lose the click.
function renderRow(row) {
  const index = view.indexOf(row), made = index < 0 ? null : rowElement(index);
  if (made) { fillRow(made, row, index); }
}

function renderCounts() {
  const counts = Object.fromEntries(Object.entries(FILTERS).map(([name, [, test]]) => [name, rows.filter(test).length]));
  for (const option of part("filter").options) {
    option.textContent = `${FILTERS[option.value][0]} (${counts[option.value].toLocaleString()})`;
  }
  const done = rows.length - counts.todo;
  part("progress").max = rows.length || 1;
  part("progress").value = done;
  part("count").textContent = `${done.toLocaleString()} of ${rows.length.toLocaleString()} reviewed`;
  part("undo").disabled = !last || waiting > 0;
  part("undo").querySelector("span").textContent = last ? `: ${last.state} ${last.id.slice(-24)}` : "";
}

function applyFilter(keep = view[chosen]?.id) {
  const test = FILTERS[part("filter").value][1], words = part("search").value.trim().toLowerCase();
  view = rows.filter(row => test(row) && (!words ||
    [row.text, row.id, row.speaker, row.heard, row.original].some(one => one.toLowerCase().includes(words))));
  chosen = Math.max(0, view.findIndex(row => row.id === keep));
  renderPage();
  remember();
}

// Filter, search and place are part of the address: a reload shows the same.
function remember() {
  const address = new URL(window.location.href);
  const now = { show: part("filter").value, search: part("search").value, clip: view[chosen]?.id || "" };
  for (const [key, value] of Object.entries(now)) {
    if (value) { address.searchParams.set(key, value); } else { address.searchParams.delete(key); }
  }
  window.history.replaceState(null, "", address);
}

function choose(index, { focus = true, play = part("autoplay").checked } = {}) {
  if (!view.length) { return; }
  const next = Math.min(Math.max(index, 0), view.length - 1), before = rowElement(chosen);
  const samePage = before && Math.floor(next / PAGE_ROWS) === Math.floor(chosen / PAGE_ROWS);
  if (next !== chosen) { player.pause(); }
  chosen = next;
  if (samePage) {
    before.removeAttribute("aria-current");
    before.tabIndex = -1;
    markChosen(rowElement(next), view[next]);
  } else {
    renderPage();
  }
  if (focus) {
    rowElement(next).focus({ preventScroll: true });
    rowElement(next).scrollIntoView({ block: "nearest" });
  }
  remember();
  if (play) { playChosen(true); }
}

function playChosen(start = player.paused) {
  if (start) { player.play().catch(() => {}); } else { player.pause(); } // an error is shown by its own event
}

function tell(words) { part("status").textContent = words; }

function showProblem(words) {
  part("problem").hidden = !words;
  part("problem").textContent = words;
}

// ---- what is saved ---------------------------------------------------------------------------------------------------

async function load() {
  const answer = await fetch(`review/clips?${new URLSearchParams({ ...source, stamp })}`);
  if (answer.status === 204) { return; }
  const found = await answer.json().catch(() => null);
  if (!answer.ok || !found) { throw new Error(found ? `${found.error.found} (${found.error.cure})` : answer.statusText); }
  [rows, stamp, last] = [found.clips, found.stamp, found.undo];
  part("dataset").textContent = found.dataset;
  document.title = `Review transcripts: ${found.dataset}`;
}

async function reload(keep) {
  if (waiting || document.activeElement?.matches("textarea")) { return; } // what is being typed or sent comes first
  try {
    const before = stamp;
    await load();
    if (stamp !== before) { applyFilter(keep); renderCounts(); }
  } catch (error) { showProblem(String(error.message)); }
}

async function post(values) {
  for (;;) {
    let answer = null;
    try {
      answer = await fetch("review/decide", {
        method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ ...source, ...values }),
      });
    } catch { /* the server is away; what it has not saved is sent again */ }
    if (answer && answer.status !== BUSY) {
      const found = await answer.json().catch(() => null);
      if (answer.ok && found) { return found; }
      throw new Error(found ? `${found.error.found} (${found.error.cure})` : answer.statusText);
    }
    const why = answer ? "Another command is working on this dataset" : "The server does not answer";
    showProblem(`${why}. Not saved yet: ${waiting}. It is tried again; leave this page open.`);
    await new Promise(done => setTimeout(done, RETRY_MS));
  }
}

function send(row, values, words) {
  waiting++;
  row.unsaved = "saving …";
  if (values.decision === "edit") { row.draft = values.text; }
  renderRow(row);
  renderCounts();
  sending = sending.then(async () => {
    try {
      const seen = { text: row.text, at: row.at };
      const found = await post(values.decision === "undo" ? values : { ...values, clip: row.id, seen });
      const isAhead = found.before !== stamp; // another command or window has changed other clips
      [stamp, last] = [isAhead ? "" : found.stamp, found.undo];
      delete row.unsaved;
      delete row.draft;
      Object.assign(row, found.clip);
      waiting--;
      showProblem("");
      tell(`Saved: ${row.id} ${words}.`);
      if (isAhead) { await reload(); }
    } catch (error) {
      waiting--;
      delete row.unsaved;
      tell("");
      stamp = "";
      await reload(row.id);
      const now = rows.find(one => one.id === row.id);
      if (now && row.draft !== undefined) { [now.draft, now.unsaved] = [row.draft, "not saved"]; }
      if (now) { renderRow(now); }
      showProblem(`${row.id} was not saved: ${error.message}`);
    }
    renderRow(row);
    renderCounts();
  });
}

function decide(row, decision, text) {
  if (row) { send(row, { decision, text }, { accept: "accepted", edit: "edited", reject: "rejected" }[decision]); }
}

function undoLast() {
  if (!last || waiting) { return; }
  const { id, at, state } = last, row = rows.find(one => one.id === id);
  if (!row) { return; }
  if (!view.includes(row)) { part("filter").value = "all"; part("search").value = ""; applyFilter(id); }
  choose(view.indexOf(row), { play: false });
  send(row, { decision: "undo", clip: id, at }, `is no longer ${state}`);
}

// ---- what people do --------------------------------------------------------------------------------------------------

const indexOf = element => Number(element.closest("tr[data-index]")?.dataset.index ?? -1);

part("rows").addEventListener("click", event => {
  const button = event.target.closest("[data-do]"), index = indexOf(event.target);
  if (index < 0) { return; }
  if (!button) {
    if (index !== chosen) { choose(index, { focus: !event.target.matches("textarea") }); }
    return;
  }
  if (button.dataset.do === "play") { choose(index, { play: true }); return; }
  decide(view[index], button.dataset.do);
  choose(index + 1);
});
part("rows").addEventListener("focusin", event => {
  if (!event.target.matches("textarea")) { return; }
  const index = indexOf(event.target);
  if (index !== chosen) { choose(index, { focus: false }); }
});
// A field is saved when it is left, as in a spreadsheet: nothing that was typed waits for a button.
part("rows").addEventListener("focusout", event => {
  if (!event.target.matches("textarea")) { return; }
  const row = view[indexOf(event.target)], text = event.target.value.trim();
  // After the focus has moved: the field of the row is filled again.
  setTimeout(() => { if (text === row.text.trim()) { renderRow(row); } else { decide(row, "edit", text); } });
});
document.addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) { return; }
  const target = event.target;
  if (target.matches?.("textarea")) {
    if (event.key === "Enter" && !event.shiftKey) {
      event.preventDefault();
      const index = indexOf(target), isSame = target.value.trim() === view[index].text.trim();
      target.blur(); // saves it
      if (isSame) { decide(view[index], "accept"); }
      choose(index + 1);
    } else if (event.key === "Escape") {
      const row = view[indexOf(target)];
      target.value = row.text;
      delete row.draft;
      if (row.unsaved === "not saved") { delete row.unsaved; }
      rowElement(indexOf(target)).focus();
    }
    return;
  }
  if (target.matches?.("input, select")) {
    if (target.id === "search" && ["Enter", "Escape", "ArrowDown"].includes(event.key)) {
      event.preventDefault();
      choose(chosen);
    }
    return;
  }
  if (!part("shortcuts").checked) { return; }
  // On a keyboard of another script the place of the key counts.
  const isLatin = /^[\x20-\x7e]$/.test(event.key) || event.key.length > 1;
  const key = isLatin ? event.key : event.code.startsWith("Key") ? event.code.slice(3).toLowerCase() : event.key;
  if (key === " " && target.closest?.("button, a, summary, audio")) { return; }
  if (key.startsWith("Arrow") && target.matches?.("audio")) { return; }
  const actions = {
    j: () => choose(chosen + 1),
    k: () => choose(chosen - 1),
    " ": () => view.length && playChosen(),
    a: () => { decide(view[chosen], "accept"); choose(chosen + 1); },
    r: () => { decide(view[chosen], "reject"); choose(chosen + 1); },
    e: () => { const field = rowElement(chosen)?.querySelector("textarea"); field?.focus(); field?.select(); },
    u: undoLast,
    "/": () => part("search").focus(),
    "?": () => { part("help").open = !part("help").open; },
  };
  const action = actions[{ ArrowDown: "j", ArrowUp: "k" }[key] || key];
  if (action) { event.preventDefault(); action(); }
});
part("undo").addEventListener("click", undoLast);
part("filter").addEventListener("change", () => applyFilter());
let searching = 0;
part("search").addEventListener("input", () => {
  clearTimeout(searching);
  searching = setTimeout(() => applyFilter(), SEARCH_PAUSE_MS);
});
for (const [id, step] of [["before", -1], ["after", 1]]) {
  part(id).addEventListener("click", () => choose((Math.floor(chosen / PAGE_ROWS) + step) * PAGE_ROWS));
}
player.addEventListener("error", () => showProblem(`${view[chosen]?.id}: the audio cannot be played.`));
window.addEventListener("focus", () => reload());
window.addEventListener("beforeunload", event => {
  const field = document.activeElement, row = field?.matches("textarea") ? view[indexOf(field)] : null;
  const isTyping = row && field.value.trim() !== row.text.trim();
  if (waiting || isTyping || rows.some(one => one.draft !== undefined)) { event.preventDefault(); }
});
for (const id of ["shortcuts", "autoplay"]) {
  const kept = window.localStorage.getItem(`voxgraft-review-${id}`);
  if (kept !== null) { part(id).checked = kept === "true"; }
  part(id).addEventListener("change", () => window.localStorage.setItem(`voxgraft-review-${id}`, part(id).checked));
}

(async () => {
  part("back").href = `../?${new URLSearchParams({ ...(source.project && { project: source.project }), tab: "data" })}`;
  for (const [name, [label]] of Object.entries(FILTERS)) { part("filter").add(new Option(label, name)); }
  part("filter").value = asked.get("show") in FILTERS ? asked.get("show") : "all";
  part("search").value = asked.get("search") || "";
  try {
    await load();
    applyFilter(asked.get("clip"));
    renderCounts();
    if (rows.length) { choose(chosen, { play: false }); } else { tell("No clips yet: import recordings first."); }
  } catch (error) { showProblem(String(error.message)); }
})();
