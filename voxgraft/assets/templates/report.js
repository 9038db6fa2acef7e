// Theme switch, one player at a time, and the blind-listening page. Nothing leaves the browser.
(() => {
  "use strict";
  const root = document.documentElement;
  const keep = (key, value) => { try { localStorage.setItem(key, value); } catch { /* a browser that keeps nothing */ } };
  const kept = (key) => { try { return localStorage.getItem(key); } catch { return null; } };

  const themes = ["", "light", "dark"], names = { "": "theme: as the system", light: "theme: light", dark: "theme: dark" };
  const button = document.getElementById("theme");
  const show = (theme) => {
    if (theme) root.dataset.theme = theme; else delete root.dataset.theme;
    button.textContent = names[theme];
  };
  let theme = themes.includes(kept("voxgraft-theme")) ? kept("voxgraft-theme") : "";
  show(theme);
  button.addEventListener("click", () => {
    theme = themes[(themes.indexOf(theme) + 1) % themes.length];
    keep("voxgraft-theme", theme);
    show(theme);
  });

  document.addEventListener("play", (event) => {
    document.querySelectorAll("audio").forEach((other) => { if (other !== event.target) other.pause(); });
  }, true);

  const stage = document.getElementById("stage");
  if (!stage) return;
  const store = "voxgraft-blind-" + stage.dataset.report;
  const clips = [...document.querySelectorAll("audio[data-clip]")].map((audio) => ({ ...audio.dataset, src: audio.src }));
  const bySentence = new Map();
  clips.forEach((clip) => bySentence.set(clip.sentence, [...(bySentence.get(clip.sentence) || []), clip]));
  const spoken = [...bySentence.values()].map((some) => some.filter((clip) => clip.who !== "original"));
  const pairs = spoken.filter((some) => some.length === 2);
  const shuffled = (list) => {
    const order = [...list];
    for (let at = order.length - 1; at > 0; at--) {
      const other = Math.floor(Math.random() * (at + 1));
      [order[at], order[other]] = [order[other], order[at]];
    }
    return order;
  };
  const fresh = () => ({
    report: stage.dataset.report,
    started: new Date().toISOString(),
    rateOrder: shuffled(clips.map((clip) => clip.clip)),
    pairOrder: shuffled(pairs.map((pair) => { const [a, b] = shuffled(pair); return { a: a.clip, b: b.clip }; })),
    ratings: [],
    choices: [],
  });
  let state;
  try { state = JSON.parse(kept(store)) || fresh(); } catch { state = fresh(); }
  const known = new Set(clips.map((clip) => clip.clip));
  if (!Array.isArray(state.rateOrder) || !state.rateOrder.every((id) => known.has(id))) state = fresh();
  const save = () => keep(store, JSON.stringify(state));
  const find = (id) => clips.find((clip) => clip.clip === id);
  let mode = "rate";

  const element = (tag, attributes = {}, ...children) => {
    const made = document.createElement(tag);
    Object.entries(attributes).forEach(([key, value]) => {
      if (key === "onclick") made.addEventListener("click", value);
      else if (value !== null) made.setAttribute(key, value);
    });
    made.append(...children);
    return made;
  };
  const player = (clip) => element("audio", { controls: "", preload: "none", src: clip.src });
  const told = (list, total) => element("p", { class: "soft" }, `${list.length} of ${total} done`);

  const rate = () => {
    const id = state.rateOrder[state.ratings.length];
    if (id === undefined) return results();
    const clip = find(id);
    const marks = ["1 not intelligible", "2", "3", "4", "5 clear and natural"];
    stage.replaceChildren(
      told(state.ratings, state.rateOrder.length),
      element("div", { class: "text", lang: clip.language, dir: "auto" }, clip.text),
      player(clip),
      element("div", { class: "choices" }, ...marks.map((mark, at) => element("button", {
        class: "pill", type: "button", onclick: () => {
          state.ratings.push({ clip: id, language: clip.language, text: clip.text, who: clip.who, rating: at + 1 });
          save(); draw();
        },
      }, mark))),
    );
  };
  const choose = () => {
    const pair = state.pairOrder[state.choices.length];
    if (pair === undefined) return results();
    const a = find(pair.a), b = find(pair.b);
    const answer = (chosen) => () => {
      const who = { a: a.who, b: b.who, same: "same" }[chosen];
      state.choices.push({ language: a.language, text: a.text, a: a.who, b: b.who, chosen: who });
      save(); draw();
    };
    stage.replaceChildren(
      told(state.choices, state.pairOrder.length),
      element("div", { class: "text", lang: a.language, dir: "auto" }, a.text),
      element("div", { class: "pair" }, element("div", {}, "A", player(a)), element("div", {}, "B", player(b))),
      element("div", { class: "choices" },
        element("button", { class: "pill", type: "button", onclick: answer("a") }, "A is better"),
        element("button", { class: "pill", type: "button", onclick: answer("same") }, "the same"),
        element("button", { class: "pill", type: "button", onclick: answer("b") }, "B is better")),
    );
  };
  const summary = () => {
    const groups = new Map();
    state.ratings.forEach((one) => {
      const key = `${one.language}, ${one.who}`;
      groups.set(key, [...(groups.get(key) || []), one.rating]);
    });
    const rated = [...groups].map(([key, values]) => [key, (values.reduce((sum, value) => sum + value, 0) / values.length).toFixed(2), values.length]);
    const counted = new Map();
    state.choices.forEach((one) => {
      const key = `${one.language}: ${one.chosen === "same" ? "no difference" : one.chosen + " was better"}`;
      counted.set(key, (counted.get(key) || 0) + 1);
    });
    return { rated, chosen: [...counted] };
  };
  const table = (head, rows) => element("div", { class: "scroll" }, element("table", {},
    element("thead", {}, element("tr", {}, ...head.map((name) => element("th", {}, name)))),
    element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map((cell) => element("td", {}, String(cell))))))));
  const results = () => {
    const { rated, chosen } = summary();
    stage.replaceChildren(
      element("p", { class: "soft" }, `${state.ratings.length} rated, ${state.choices.length} compared`),
      rated.length ? table(["who", "mean rating", "of"], rated) : "",
      chosen.length ? table(["A or B", "times"], chosen) : "",
    );
  };
  const draw = () => {
    document.querySelectorAll("[data-mode]").forEach((tab) => tab.setAttribute("aria-pressed", String(tab.dataset.mode === mode)));
    ({ rate, choose, results })[mode]();
  };
  document.querySelectorAll("[data-mode]").forEach((tab) => tab.addEventListener("click", () => { mode = tab.dataset.mode; draw(); }));
  document.getElementById("download").addEventListener("click", () => {
    const document_ = { format: "voxgraft-blind-1", ...state, summary: summary() };
    const link = element("a", { download: "blind-listening.json", href: URL.createObjectURL(new Blob([JSON.stringify(document_, null, 2)], { type: "application/json" })) });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  });
  document.getElementById("again").addEventListener("click", () => { state = fresh(); save(); mode = "rate"; draw(); });
  if (!pairs.length) document.querySelector('[data-mode="choose"]').disabled = true;
  draw();
})();
