// One pair at a time; every answer is kept at once (localStorage), so that a reload continues where it was.
(() => {
  "use strict";
  const test = JSON.parse(document.getElementById("test").textContent);
  const store = "voxgraft-listening-" + test.test;
  const at = (id) => document.getElementById(id);
  const sides = ["a", "b"], choices = ["a", "same", "b"];
  const fresh = () => ({ rater: "", started: new Date().toISOString(), place: 0, answers: {} });
  const load = () => {
    try {
      const kept = JSON.parse(localStorage.getItem(store));
      return kept && typeof kept.answers === "object" && test.pairs[kept.place] ? kept : fresh();
    } catch { return fresh(); }
  };
  let state = load(), heard = new Set(), kept = true;
  const keep = () => {
    try { localStorage.setItem(store, JSON.stringify(state)); kept = true; } catch { kept = false; }
  };
  const pair = () => test.pairs[state.place];
  const answer = () => (state.answers[pair().id] ??= { choice: null, faults: { a: [], b: [] }, note: "" });
  const answered = () => test.pairs.filter((one) => state.answers[one.id]?.choice);
  const ready = () => Boolean(answer().choice) || sides.every((side) => heard.has(side));

  const report = () => {
    const done = answered().length;
    at("progress").textContent = `Pair ${state.place + 1} of ${test.pairs.length}`;
    at("state").textContent = `${done} of ${test.pairs.length} answered.`
      + (done === test.pairs.length ? " Please save the file and send it." : "")
      + (kept ? "" : " This browser keeps nothing: save before you close the page.");
    choices.forEach((choice) => {
      at("choose-" + choice).setAttribute("aria-pressed", String(answer().choice === choice));
      at("choose-" + choice).disabled = !ready();
    });
    at("hint").textContent = ready() ? "" : "Play A and B first.";
    at("previous").disabled = state.place === 0;
    at("next").disabled = state.place === test.pairs.length - 1;
  };
  const show = (place) => {
    state.place = place;
    heard = new Set();
    const one = pair();
    at("text").textContent = one.text;
    at("text").lang = one.language;
    ["a", "b", "original"].forEach((side) => {
      if (one[side]) at("sound-" + side).src = one[side];
      else at("sound-" + side).removeAttribute("src");
    });
    at("reference").hidden = !one.original;
    document.querySelectorAll("[data-side]").forEach((box) => {
      box.checked = answer().faults[box.dataset.side].includes(box.value);
    });
    at("note").value = answer().note;
    keep();
    report();
  };
  const move = (step) => {
    const place = state.place + step;
    if (test.pairs[place]) show(place);
  };
  const choose = (choice) => {
    if (!ready()) return;
    const first = !answer().choice;
    answer().choice = choice;
    keep();
    // Only a first answer moves on, so that a corrected one can be seen.
    if (first && test.pairs[state.place + 1]) move(1); else report();
  };
  const play = (side) => {
    const sound = at("sound-" + side);
    if (!sound.src) return;
    sound.currentTime = 0;
    sound.play().catch(() => {});
  };
  const save = () => {
    const answers = answered().map((one) => ({ pair: one.id, ...state.answers[one.id] }));
    const saved = { format: test.format, test: test.test, rater: state.rater, started: state.started,
      saved: new Date().toISOString(), answers };
    const link = document.createElement("a");
    const name = state.rater.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "") || "answers";
    link.download = `listening-${name}.json`;
    link.href = URL.createObjectURL(new Blob([JSON.stringify(saved, null, 2)], { type: "application/json" }));
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  };

  sides.forEach((side) => at("sound-" + side).addEventListener("play", () => { heard.add(side); report(); }));
  choices.forEach((choice) => at("choose-" + choice).addEventListener("click", () => choose(choice)));
  at("previous").addEventListener("click", () => move(-1));
  at("next").addEventListener("click", () => move(1));
  at("save").addEventListener("click", save);
  at("again").addEventListener("click", () => {
    if (!confirm("Delete all answers in this browser?")) return;
    state = fresh();
    at("rater").value = "";
    show(0);
  });
  at("rater").value = state.rater;
  at("rater").addEventListener("input", () => { state.rater = at("rater").value.trim(); keep(); });
  at("note").addEventListener("input", () => { answer().note = at("note").value; keep(); });
  document.querySelectorAll("[data-side]").forEach((box) => box.addEventListener("change", () => {
    const side = box.dataset.side;
    answer().faults[side] = [...document.querySelectorAll(`[data-side="${side}"]:checked`)].map((one) => one.value);
    keep();
  }));
  const actions = { 1: () => play("a"), 2: () => play("b"), 3: () => play("original"),
    a: () => choose("a"), s: () => choose("same"), b: () => choose("b"), p: () => move(-1), n: () => move(1) };
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest?.("textarea, input[type=text]");
    if (typing || !at("keys").checked || event.ctrlKey || event.metaKey || event.altKey || event.repeat) return;
    // On a keyboard without Latin letters or digits, the place of the key counts.
    const key = /^[a-z0-9]$/i.test(event.key) ? event.key : event.code.replace(/^(Key|Digit)/, "");
    const action = actions[key.toLowerCase()];
    if (action) { event.preventDefault(); action(); }
  });
  show(state.place);
})();
