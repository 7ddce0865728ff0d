// The list of runs: what came of each, what looks wrong in it, and ticks to draw some of them over each other.
"use strict";

const LEVELS_WORST = ["bad", "look", "note", "fine"];
// How much looks wrong: the worst level first, then how often; damage counts as a number out of its band does
const rankOf = (run) => 1000 * Number(damageOf(run).length > 0) + LEVELS_WORST.slice(0, 3).reduce((rank, level, i) => rank + run.verdicts.filter((verdict) => verdict.level === level).length * 1000 ** (2 - i), 0);
const lastOf = (pair) => (pair && isNumber(pair[1]) ? pair[1] : pair && isNumber(pair[0]) ? pair[0] : null);
const ORDERS = {
  run: (run) => run.label.toLowerCase(), verdicts: rankOf, held_out: (run) => lastOf(run.held_out), reward: (run) => lastOf(run.reward),
  updates: (run) => run.updates, day: (run) => run.date,
};
const RUN_HEADS = [["", "show"], ["run", "run"], ["verdicts", "verdicts"], ["held_out", "result"], ["reward", "reward"], ["updates", "updates"], ["day", "day"]];
const NUMERIC = new Set(["reward", "updates"]);

function ordered(runs, name, up) {
  if (!ORDERS[name]) return runs;
  const key = ORDERS[name], known = (value) => value !== null && value !== undefined;
  return [...runs].sort((a, b) => {
    const [x, y] = [key(a), key(b)];
    if (!known(x) || !known(y)) return Number(known(y)) - Number(known(x)); // what is not known comes last
    return (x === y ? 0 : x < y ? -1 : 1) * (up ? 1 : -1) || a.number - b.number;
  });
}

function verdictChips(run) {
  const open = run.verdicts.filter((verdict) => verdict.level !== "fine"), fine = run.verdicts.length - open.length;
  return h("ul", { class: "chips" },
    run.finished ? null : h("li", { class: "chip" }, "not finished"),
    damageOf(run).length ? h("li", { class: "chip look", title: damageOf(run).join("\n") }, "! not whole") : null,
    open.map((verdict) => h("li", { class: `chip ${verdict.level}`, title: verdict.sentence },
      h("span", { role: "img", "aria-label": LEVELS[verdict.level][1] }, LEVELS[verdict.level][0]), " ", h("b", {}, words(verdict.topic)), " ", words(verdict.word))),
    fine ? h("li", { class: "chip quiet" }, `✓ ${fine} in order`) : null);
}

// Folders without what those of all runs begin with
function belowAll(folders) {
  const parts = folders.map((folder) => folder.split("/"));
  let same = 0;
  while (parts.every((names) => same < names.length - 1 && names[same] === parts[0][same])) same += 1;
  return (folder) => folder.split("/").slice(same).join("/");
}

// A run that goes on has no summary yet: that is no damage
const damageOf = (run) => run.problems.filter((problem) => run.finished || !problem.startsWith("no summary.json"));

// The first and the last iteration; one number of a run that has a single one
const fromTo = ({ reward: [first, last], iterations }) => (iterations === 1 ? short(first) : `${short(first)} → ${short(last)}`);

function runRow(run, below) {
  const link = address("overview", {}, standardRuns().join(".") === String(run.number) ? "" : String(run.number));
  const ticked = (event) => { state.shown[event.target.checked ? "add" : "delete"](run.number); change({}); };
  const facts = [run.objective, run.model, `seed ${run.seed}`].join(" · "), [result] = run.headline.split(" (");
  return h("tr", {},
    h("td", {}, h("input", { type: "checkbox", id: `show_${run.number}`, checked: state.shown.has(run.number), "aria-label": `Show ${run.label}`, onchange: ticked })),
    h("td", { class: "name" }, h("a", { href: link }, words(run.label)), h("div", { class: "quiet" }, words(facts)), h("div", { class: "quiet folder", title: run.folder }, words(below(run.folder)))),
    h("td", { class: "verdicts" }, verdictChips(run)), h("td", { class: "result" }, words(result)),
    h("td", { class: "num change" }, run.reward ? fromTo(run) : "–"),
    h("td", { class: "num" }, thousands(run.updates)), h("td", { class: "day" }, run.date));
}

async function runList(query) {
  const text = (query.find || "").toLowerCase();
  const worst = (run) => LEVELS_WORST.find((level) => run.verdicts.some((verdict) => verdict.level === level) || (level === "look" && damageOf(run).length)) || "fine";
  const says = (run) => [run.label, run.folder, run.objective, run.model, run.headline, ...run.verdicts.flatMap(({ topic, word, level }) => (level === "fine" ? [] : [topic, word]))].join("\n");
  const runs = ordered(state.runs.filter((run) => (!query.level || worst(run) === query.level) && says(run).toLowerCase().includes(text)),
    query.sort, Boolean(query.up));
  const count = (level) => state.runs.filter((run) => worst(run) === level).length;
  const head = RUN_HEADS.map(([name, label]) => {
    const sorted = name && query.sort === name, arrow = sorted ? (query.up ? " ▴" : " ▾") : "";
    return h("th", { scope: "col", class: NUMERIC.has(name) ? "num" : null, "aria-sort": sorted ? (query.up ? "ascending" : "descending") : null },
      name ? h("button", { type: "button", id: `sort_${name}`, onclick: () => change({ sort: name, up: sorted && !query.up ? "1" : "" }) }, label + arrow) : label);
  });
  const ticked = shownRuns().length, below = belowAll(state.runs.map((run) => run.folder));
  main.replaceChildren(
    h("h2", {}, `${thousands(state.runs.length)} runs`),
    h("div", { class: "bar", role: "search" },
      field(query, "find", { type: "search", placeholder: "Name, folder, verdict", "aria-label": "Find runs" }),
      choice(query, "level", "worst verdict", [["", "any"], ...LEVELS_WORST.map((level) => [level, `${LEVELS[level][0]} ${LEVELS[level][1].toLowerCase()}: ${count(level)}`])]),
      quiet(`${thousands(runs.length)} shown`),
      ticked ? h("a", { href: address("overview", {}) }, `Curves of the ${ticked === 1 ? "ticked run" : `${ticked} ticked runs`}`) : null,
      ticked > 1 ? h("a", { href: address("compare", {}) }, "Their answers side by side") : null),
    runs.length ? table("Runs", head, runs.map((run) => runRow(run, below))) : note("No run fits these filters."));
}
