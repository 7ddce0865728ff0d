// The frame of the page: navigation, keys, theme, news of a run that goes on.
"use strict";

const VIEWS = { runs: runList, overview, rollouts, answers, config, compare, group, prompt };
const NAV = [["overview", "Overview"], ["rollouts", "Responses"], ["answers", "Held-out"], ["config", "Config"]];
const RUNS = ["runs", "Runs"], COMPARE = ["compare", "Compare"]; // of several runs only
const views = () => (state.runs.length > 1 ? [RUNS, ...NAV, COMPARE] : NAV);

function drawHeader(current, query) {
  document.getElementById("nav").replaceChildren(...views().map(([name, label]) => h("a",
    { href: address(name, query.run && ["rollouts", "answers"].includes(name) ? { run: query.run } : {}), "aria-current": name === current ? "page" : null },
    label)));
  const choose = (run) => (event) => { state.shown[event.target.checked ? "add" : "delete"](run.number); change({}); };
  document.getElementById("runs").replaceChildren(...(state.runs.length < 2 ? [] : pickable().map((run) => h("label", { title: run.folder },
    h("input", { type: "checkbox", checked: state.shown.has(run.number), onchange: choose(run) }), swatch(run),
    h("span", { class: "name" }, run.label)))));
  document.title = `${[RUNS, ...NAV, COMPARE].find(([name]) => name === current)[1]} – gspo view`;
}

// Runs to tick at the top: all that were named; of a list, those that are ticked in it
const pickable = () => (state.listed ? state.runs.filter((run) => state.shown.has(run.number)) : state.runs);

// What has the focus, by what it will be found again after the view is drawn anew
function focused() {
  const element = document.activeElement, drawing = element && element.closest("figure[data-tag]");
  if (!element || !main.contains(element)) return null;
  return element.id ? `#${CSS.escape(element.id)}` : drawing && element instanceof SVGElement ? `figure[data-tag="${CSS.escape(drawing.dataset.tag)}"] > svg` : null;
}

async function render() {
  const { view, query } = place(), known = Object.hasOwn(VIEWS, view) ? view : "overview", focus = focused();
  closeReader();
  state.shown = new Set(query.runs ? query.runs.split(".").map(Number) : standardRuns());
  state.zoom = null;
  drawHeader({ group: "rollouts", prompt: "rollouts" }[known] || known, query);
  say("");
  if (query.run && !state.runs[Number(query.run)]) { main.replaceChildren(warning("There is no such run.")); return; }
  main.setAttribute("aria-busy", "true");
  try { await VIEWS[known](query); } catch (error) {
    main.replaceChildren(h("p", { class: "warning", role: "alert" }, `This view could not be shown: ${error.message}`));
  }
  const again = focus && !reader && main.querySelector(focus);
  if (again) again.focus({ preventScroll: true });
  main.removeAttribute("aria-busy");
}

async function read() {
  state.runs = offline ? offline.map((run) => run.overview) : await ask(null);
  state.listed = state.runs.some((run) => run.listed);
}

async function follow() { // a live run: look for news, and draw them where nothing is lost by it
  const live = state.runs.filter((run) => !run.finished || !run.indexed);
  for (const run of live) {
    let now;
    try { now = await ask(run.number, "overview"); } catch (error) { say("The server does not answer."); continue; }
    if (JSON.stringify(now.stamp) === JSON.stringify(run.stamp) && now.indexed === run.indexed) continue;
    state.runs[run.number] = now;
    for (const key of state.series.keys()) if (String(key).split(":")[0] === String(run.number)) state.series.delete(key);
    const busy = ["INPUT", "SELECT"].includes((document.activeElement || {}).tagName) || main.querySelector("details[open]:not(.section)");
    if (["overview", "runs"].includes(place().view) && !busy && !reader) {
      const y = scrollY;
      await render();
      scrollTo(0, y);
    } else say("The run went on: press r to read again.");
  }
  setTimeout(follow, live.length ? 5000 : 60000);
}

// --- theme and keys ---------------------------------------------------------------------------------------------------------

function theme(name) {
  document.documentElement.dataset.theme = name;
  document.getElementById("theme").textContent = name === "dark" ? "Light" : "Dark";
  try { localStorage.setItem("gspo-view-theme", name); } catch (error) { /* a file has no storage in some browsers */ }
}

const otherTheme = () => { theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"); render(); };

function keys() {
  const box = document.getElementById("keys");
  box.hidden = !box.hidden;
  document.getElementById("help").setAttribute("aria-expanded", String(!box.hidden));
}

function pressed(event) {
  if (reader || event.ctrlKey || event.metaKey || event.altKey || ["INPUT", "SELECT", "TEXTAREA"].includes(event.target.tagName)) return;
  const { query } = place(), links = [...main.querySelectorAll("tbody a:not(.more), .hint a")], at = links.indexOf(document.activeElement);
  const actions = {
    d: otherTheme, "?": keys, u: () => history.back(), r: () => read().then(() => { state.series.clear(); return render(); }),
    "/": () => (document.getElementById("q") || document.getElementById("find") || main).focus(),
    j: () => links.length && links[Math.min(links.length - 1, at + 1)].focus(), k: () => links.length && links[Math.max(0, at - 1)].focus(),
    c: () => { const names = Object.keys(COLOURINGS); change({ colour: names[(names.indexOf(query.colour || "log_ratio") + 1) % names.length] }); },
  };
  const view = state.runs.length > 1 && { 0: RUNS, 5: COMPARE }[event.key] || NAV[Number(event.key) - 1];
  if (view) go(view[0], {});
  else if (Object.hasOwn(actions, event.key)) actions[event.key]();
  else return;
  event.preventDefault();
}

document.getElementById("theme").addEventListener("click", otherTheme);
document.getElementById("help").addEventListener("click", keys);
document.addEventListener("keydown", pressed);
const header = document.querySelector("header"); // what sticks below it needs its height
new ResizeObserver(() => document.documentElement.style.setProperty("--head", `${header.offsetHeight}px`)).observe(header);
let seen = place();
addEventListener("hashchange", () => {
  const now = place(), stay = now.view === seen.view && now.query.run === seen.query.run && now.query.prompt_id === seen.query.prompt_id;
  seen = now; // another filter, order or colouring of a view leaves the reader where they are
  render().then(() => { if (!stay && !now.query.chart) scrollTo(0, 0); });
});

let before = null;
try { before = localStorage.getItem("gspo-view-theme"); } catch (error) { /* see above */ }
theme(before || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
read().then(render).then(() => { document.documentElement.dataset.ready = "1"; if (!offline) setTimeout(follow, 5000); })
  .catch((error) => main.replaceChildren(h("p", { class: "warning", role: "alert" }, `The runs could not be read: ${error.message}`)));
