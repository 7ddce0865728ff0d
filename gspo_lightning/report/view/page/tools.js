// Small tools of the page. All text of a run goes into text nodes (h below), never into markup.
"use strict";

const inside = document.getElementById("data");
const offline = inside ? JSON.parse(inside.textContent) : null;
const main = document.getElementById("main");
const state = { runs: [], shown: new Set(), series: new Map(), listed: false, zoom: null };

// --- elements ---------------------------------------------------------------------------------------------------------

function h(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(2).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

const words = (...children) => h("span", { class: "text" }, ...children);
const quiet = (...children) => h("span", { class: "quiet" }, ...children);
const say = (text) => { document.getElementById("status").textContent = text; };
const note = (text) => h("p", { class: "empty" }, text);
const warning = (text) => h("p", { class: "warning", role: "note" }, text);

function tick(query, name, label) {
  const changed = (event) => change({ [name]: event.target.checked ? "1" : "", offset: "" });
  return h("label", {}, h("input", { type: "checkbox", id: name, checked: Boolean(query[name]), onchange: changed }), label);
}

function field(query, name, attributes) {
  const input = h("input", { ...attributes, value: query[name] || "", id: name });
  input.addEventListener("change", () => change({ [name]: input.value, offset: "" }));
  return input;
}

// options: [[value, label]]
function choice(query, name, label, options, standard = "") {
  const now = query[name] || standard;
  const changed = (event) => change({ [name]: event.target.value === standard ? "" : event.target.value, offset: "" });
  return h("label", {}, `${label} `, h("select", { id: name, onchange: changed },
    options.map(([value, text]) => h("option", { value, selected: String(value) === now }, text))));
}

function table(label, head, body) {
  const drawn = h("table", {}, h("thead", {}, h("tr", {}, head)), h("tbody", {}, body));
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, drawn);
}

// --- numbers and texts --------------------------------------------------------------------------------------------------

const isNumber = (value) => typeof value === "number";
const percent = (value) => `${Math.round(100 * value)} %`;
const asText = (value) => (typeof value === "string" ? value : JSON.stringify(value));
const thousands = (value) => value.toLocaleString("en");

function short(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  const text = size !== 0 && (size < 1e-3 || size >= 1e5) ? value.toExponential(1).replace("e+", "e") : String(Number(value.toPrecision(3)));
  return text.replace("-", "−");
}

function signed(value, digits) {
  if (!isNumber(value)) return "–";
  const text = Math.abs(value) < 1e-3 && value !== 0 ? value.toExponential(1) : value.toFixed(digits);
  return `${value > 0 ? "+" : ""}${text}`.replaceAll("-", "−");
}

const rewardText = (value) => (value === null || value === undefined ? "missing" : isNumber(value) ? short(value) : asText(value));
// Numbers that differ by rounding only are equal: the rule of gspo_lightning/core/tolerance.py
const nearlyEqual = (low, high) => high - low <= 1e-9 * Math.max(Math.abs(low), Math.abs(high));
const solved = (reward) => isNumber(reward) && (reward >= 1 || nearlyEqual(reward, 1));
// green is for what counts as right; a wrong answer may earn something, for its format, say
const rewardClass = (value) => (!isNumber(value) ? "reward" : solved(value) ? "reward good" : value > 0 ? "reward some" : "reward poor");

// The end of a prompt, where its question stands: as the server cuts it
const endOf = (text) => (text.length > 401 ? `…${text.slice(-400)}` : text);

// Texts without what they all begin with, such as a system prompt
function withoutCommon(texts) {
  const unique = [...new Set(texts)];
  if (unique.length < 2) return (text) => text;
  let same = 0;
  while (unique.every((text) => text.length > same && text[same] === unique[0][same])) same += 1;
  while (same > 0 && !/\s/.test(unique[0][same - 1])) same -= 1;
  return (text) => (same < 24 ? text : `…${text.slice(same)}`);
}

// --- addresses: the hash is the whole state of a view, #view?name=value ---------------------------------------------------

const given = (value) => value !== "" && value !== null && value !== undefined && value !== false;

function place() {
  const [view, rest = ""] = location.hash.replace(/^#/, "").split("?");
  return { view: view || (state.listed ? "runs" : "overview"), query: Object.fromEntries(new URLSearchParams(rest)) };
}

// Which runs are ticked without a word in the address: all that were named; of a list, the newest
const standardRuns = () => (state.listed ? state.runs.slice(0, 1) : state.runs).map((run) => run.number);

// Which runs are ticked belongs to it, unless they are the standard ones
function runsInAddress() {
  const numbers = state.runs.map((run) => run.number).filter((number) => state.shown.has(number)).join(".");
  return numbers === standardRuns().join(".") ? "" : numbers || "none";
}

function address(view, query, runs = runsInAddress()) {
  const kept = Object.entries({ ...query, runs }).filter(([, value]) => given(value));
  return `#${view}${kept.length ? "?" + new URLSearchParams(kept) : ""}`;
}

const go = (view, query) => { location.hash = address(view, query); };
const change = (more) => { const { view, query } = place(); go(view, { ...query, ...more }); };
// The run of a view of one run: the first that is ticked, unless the address names another
const standardRun = () => (state.runs.find((run) => state.shown.has(run.number)) || state.runs[0]).number;
const runOf = (query) => (query.run ? Number(query.run) : standardRun());
const groupOf = (number, row) => address("group", { run: number, iteration: row.iteration, prompt_id: row.prompt_id, at: row.sample });
const nameOf = (row) => `${row.sample}.${row.row || 0}`;
// The address of one response: its group, with it in full
const responseOf = (number, row) => address("group", { run: number, iteration: row.iteration, prompt_id: row.prompt_id, full: nameOf(row) });

// --- data -------------------------------------------------------------------------------------------------------------

async function ask(run, what, query = {}) {
  if (offline) return fromFile(offline[run], what, query);
  const kept = Object.entries(query).filter(([, value]) => value !== "" && value !== undefined);
  const response = await fetch(run === null ? "/api/runs" : `/api/run/${run}/${what}?${new URLSearchParams(kept)}`);
  if (!response.ok) throw new Error(`${what}: ${response.status} ${await response.text()}`);
  return response.json();
}

function pictureAddress(run, name) {
  if (!/^[0-9a-f]{64}$/.test(name)) return null;
  return offline ? (Object.hasOwn(offline[run].pictures, name) ? offline[run].pictures[name] : null) : `/api/run/${run}/picture/${name}`;
}

// The server's answers, from the data of a written page
function fromFile(run, what, query) {
  if (what === "series") {
    const tags = query.tags.split(",").filter((tag) => Object.hasOwn(run.series, tag));
    return Object.fromEntries(tags.map((tag) => [tag, run.series[tag]]));
  }
  if (what === "texts") return textsFromFile(run.rows);
  if (what === "prompt") return promptFromFile(run.rows.filter((row) => String(row.prompt_id) === query.prompt_id));
  if (what === "rows" || what === "rollouts" || what === "export") return rowsFromFile(run.rows, what, query);
  return run[what];
}

function textsFromFile(all) {
  const last = new Map();
  for (const row of all) if (isNumber(row.prompt_id) && (!last.has(row.prompt_id) || row.iteration > last.get(row.prompt_id).iteration)) last.set(row.prompt_id, row);
  return { rows: [...last.values()].map((row) => ({ prompt_id: row.prompt_id, iteration: row.iteration,
    characters: [...row.prompt].length, prompt: [...row.prompt].slice(-400).join("") })) };
}

function promptFromFile(own) {
  const iterations = [...new Set(own.map((row) => row.iteration))].sort((a, b) => a - b);
  const of = (iteration) => own.filter((row) => row.iteration === iteration);
  const mean = (values) => (values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null);
  const shown = iterations.length <= 12 ? iterations : Array.from({ length: 12 },
    (_, i) => iterations[Math.floor((i * (iterations.length - 1)) / 11)]);
  return {
    rewards: iterations.map((iteration) => [iteration, mean(of(iteration).map((row) => row.reward).filter(isNumber))]),
    rows: shown.flatMap((iteration) => of(iteration).slice(0, 4)),
  };
}

function rowsFromFile(all, what, query) {
  const text = (query.q || "").toLowerCase();
  const rows = all.filter((row) =>
    ["iteration", "prompt_id", "row"].every((name) => !query[name] || String(row[name]) === query[name]) &&
    ["source", "choice", "finish"].every((name) => !query[name] || row[name] === query[name]) &&
    (!text || `${row.prompt}\n${row.completion}`.toLowerCase().includes(text)) &&
    (!query.least || (isNumber(row.reward) && row.reward >= Number(query.least))) &&
    (!query.most || (isNumber(row.reward) && row.reward <= Number(query.most))) &&
    (!query.live || row.advantage) && (!query.clipped || row.clip));
  if (what === "rows") return { rows };
  const sort = query.sort || "iteration", way = query.up ? 1 : -1;
  const size = (row) => {
    const value = sort === "log_s" && isNumber(row.log_s) ? Math.abs(row.log_s) : row[sort];
    return value === null || value === undefined ? -Infinity : value;
  };
  const byPlace = (a, b) => a.prompt_id - b.prompt_id || a.sample - b.sample || (a.row || 0) - (b.row || 0);
  const compare = (a, b) => (size(a) === size(b) ? 0 : size(a) < size(b) ? -1 : 1);
  rows.sort((a, b) => way * compare(a, b) || (sort === "iteration" ? byPlace(a, b) : way * (a.n - b.n)));
  const offset = Number(query.offset || 0), count = what === "export" ? rows.length : 100;
  return { total: rows.length, offset, rows: rows.slice(offset, offset + count) };
}
