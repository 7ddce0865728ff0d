// The page of `gspo view`. All text of a run goes into text nodes (h below), never into markup.
"use strict";

const inside = document.getElementById("data");
const offline = inside ? JSON.parse(inside.textContent) : null;
const main = document.getElementById("main");
const state = { runs: [], shown: new Set(), series: new Map() };

// --- small tools ------------------------------------------------------------------------------------------------

function h(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

const words = (...children) => h("span", { class: "text" }, ...children);
const say = (text) => { document.getElementById("status").textContent = text; };
const isNumber = (value) => typeof value === "number";
const percent = (value) => `${Math.round(100 * value)} %`;
const asText = (value) => (typeof value === "string" ? value : JSON.stringify(value));

function swatch(colour) {
  const box = h("span", { class: "swatch", "aria-hidden": "true" });
  box.style.backgroundColor = colour;
  return box;
}

// The hash is the whole state of a view: #view?name=value
function place() {
  const [view, rest = ""] = location.hash.replace(/^#/, "").split("?");
  return { view: view || "overview", query: Object.fromEntries(new URLSearchParams(rest)) };
}
function address(view, query) {
  const kept = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined && value !== false);
  return `#${view}${kept.length ? "?" + new URLSearchParams(kept) : ""}`;
}
const go = (view, query) => { location.hash = address(view, query); };
const change = (more) => { const { view, query } = place(); go(view, { ...query, ...more }); };

async function ask(run, what, query = {}) {
  if (offline) return fromFile(offline[run], what, query);
  const kept = Object.entries(query).filter(([, value]) => value !== "" && value !== undefined);
  const response = await fetch(run === null ? "/api/runs" : `/api/run/${run}/${what}?${new URLSearchParams(kept)}`);
  if (!response.ok) throw new Error(`${what}: ${response.status} ${await response.text()}`);
  return response.json();
}

// --- the same answers without a server ---------------------------------------------------------------------------

function fromFile(run, what, query) {
  if (what === "series") return Object.fromEntries(query.tags.split(",").filter((tag) => run.series[tag]).map((tag) => [tag, run.series[tag]]));
  if (what === "overview" || what === "answers" || what === "prompts") return run[what];
  const text = (query.q || "").toLowerCase();
  const key = { log_s: (r) => (isNumber(r.log_s) ? Math.abs(r.log_s) : null) }[query.sort] || ((r) => r[query.sort || "iteration"]);
  const rows = run.rows.filter((r) =>
    ["iteration", "prompt_id", "row"].every((name) => !query[name] || String(r[name]) === query[name]) &&
    ["source", "choice"].every((name) => !query[name] || r[name] === query[name]) &&
    (!text || `${r.prompt}\n${r.completion}`.toLowerCase().includes(text)) &&
    (!query.live || r.advantage) && (!query.clipped || r.clip));
  if (what === "rows") return { rows };
  const way = query.up ? 1 : -1, size = (r) => (key(r) === null || key(r) === undefined ? -Infinity : key(r));
  const byPlace = (a, b) => a.prompt_id - b.prompt_id || a.sample - b.sample || (a.row || 0) - (b.row || 0);
  const compare = (a, b) => (size(a) === size(b) ? 0 : size(a) < size(b) ? -1 : 1);
  rows.sort((a, b) => way * compare(a, b) || (query.sort && query.sort !== "iteration" ? way * (a.n - b.n) : byPlace(a, b)));
  const offset = Number(query.offset || 0);
  return { total: rows.length, offset, rows: rows.slice(offset, offset + 100).map((r) => ({ ...r, update_: r.update })) };
}

// --- overview ----------------------------------------------------------------------------------------------------

const CHARTS = [
  ["Does it learn?", ["reward/mean", "val/accuracy", "val/reward", "response/length", "reward/dead_groups"]],
  ["Why does it clip?", ["clip/tokens", "clip/high", "clip/low", "ratio/log_sequence_p95", "ratio/log_sequence_p05", "ratio/max"]],
  ["Is it stable?", ["policy/entropy", "kl/old_new_k3", "optim/gradient_norm", "optim/gradient_spike", "ratio/effective_sample_size"]],
  ["Is the sampler off?", ["noise/sampler_logprob_gap", "noise/sampler_sequence_gap", "noise/kl_sampler_old_k1", "staleness/mean_age"]],
];

const shownRuns = () => state.runs.filter((run) => state.shown.has(run.number));
const colourOfRun = (run) => COLOURS[run.number % COLOURS.length];

async function overview(query) {
  const runs = shownRuns();
  const page = [];
  for (const run of runs) page.push(...aboutRun(run));
  const all = [...new Set(runs.flatMap((run) => Object.keys(run.tags)))].sort();
  const wanted = (query.tags || "").split(" ").filter(Boolean);
  const search = h("input", { type: "search", id: "find", value: query.find || "", placeholder: "all metrics: part of a name", "aria-label": "Find metrics" });
  search.addEventListener("change", () => change({ find: search.value }));
  page.push(h("h2", {}, "Curves"), h("div", { class: "bar" }, search,
    h("span", { class: "quiet" }, `${all.length} metrics · x: updates · green: healthy range · ! alarm · ▾ change`)));
  let groups = CHARTS.map(([title, tags]) => [title, tags.filter((tag) => all.includes(tag))]);
  if (query.find || wanted.length) groups = [["Found", all.filter((tag) => wanted.includes(tag) || (query.find && tag.includes(query.find))).slice(0, 60)]];
  if (query.chart && !groups.some(([, tags]) => tags.includes(query.chart))) groups.unshift(["From a hint", all.filter((tag) => tag === query.chart)]);
  const tags = groups.flatMap(([, some]) => some);
  const errors = all.includes("val/accuracy_standard_error") ? ["val/accuracy_standard_error"] : [];
  await Promise.all(runs.map(async (run) => {
    const missing = [...tags, ...errors].filter((tag) => !(state.series.get(run.number) || {})[tag]);
    if (missing.length) state.series.set(run.number, { ...state.series.get(run.number), ...(await ask(run.number, "series", { tags: missing.join(",") })) });
  }));
  for (const [title, some] of groups) {
    if (some.length) page.push(h("h3", {}, title), h("div", { class: "grid" }, some.map((tag) => chart(tag, runs, tag === query.chart))));
  }
  main.replaceChildren(...page.filter(Boolean));
  const marked = main.querySelector(".marked");
  if (marked) marked.scrollIntoView({ block: "center" });
}

function aboutRun(run) {
  const kind = { bad: "✖", look: "!", note: "i" };
  return [
    h("h2", {}, swatch(colourOfRun(run)), " ", run.label, " ", h("span", { class: "quiet" }, run.finished ? "" : "(not finished)")),
    h("p", {}, `${run.objective}, ${run.model}, seed ${run.seed}, ${run.date}: ${run.headline}`),
    run.problems.map((problem) => h("p", { class: "warning", role: "note" }, `This run is not whole: ${problem}`)),
    run.indexed || offline ? null : h("p", { class: "warning" }, "Recorded responses are still being read; tables grow while they are."),
    h("ul", { class: "hints" }, run.hints.length
      ? run.hints.map((hint) => h("li", { class: `hint ${hint.level}`, "data-hint": hint.name },
        h("h3", {}, h("span", { "aria-hidden": "true" }, `${kind[hint.level]} `), hint.title),
        h("p", {}, words(hint.why)), h("a", { href: hintLink(run, hint) }, "Look")))
      : h("li", { class: "hint" }, h("h3", {}, "Nothing looks wrong"), h("p", {}, "No hint applies to this run."))),
    h("ul", { class: "facts" }, run.verdicts.map(([topic, word, sentence]) => h("li", { title: sentence }, h("b", {}, `${topic}: `), word))),
  ].flat();
}

function hintLink(run, hint) {
  const [view, rest = ""] = hint.link.slice(1).split("?");
  return address(view, { ...Object.fromEntries(new URLSearchParams(rest)), ...(view === "overview" ? {} : { run: run.number }) });
}

function chart(tag, runs, marked) {
  const meaning = runs.map((run) => run.tags[tag]).find((found) => found && found.definition) || {};
  const series = [], marks = [];
  runs.forEach((run) => {
    const found = (state.series.get(run.number) || {})[tag];
    if (!found) return;
    let error = null;
    if (tag === "val/accuracy") {
      const spread = (state.series.get(run.number) || {})["val/accuracy_standard_error"];
      const by = new Map(spread ? spread[0].map((x, i) => [x, 1.96 * spread[1][i]]) : []);
      error = spread ? found[0].map((x) => by.get(x)) : null;
    }
    series.push({ label: runs.length > 1 ? run.label : "", colour: colourOfRun(run), dash: DASHES[run.number % DASHES.length], x: found[0], y: found[1], error });
    run.alarms.forEach((alarm) => marks.push({ x: alarm.update, kind: "alarm", label: `${alarm.signature} at update ${alarm.update}: ${alarm.what || ""}` }));
    run.events.forEach((event) => marks.push({ x: event.update, kind: "event", label: `update ${event.update}: ${event.what}` }));
  });
  const drawing = lineChart({ title: `${tag} over updates`, series, band: meaning.band, marks });
  const told = h("div", { hidden: true },
    h("p", {}, `${meaning.definition || "Not defined by this package."} [${meaning.unit || "?"}]`),
    h("p", {}, h("b", {}, "Healthy: "), meaning.healthy || "–"), h("p", {}, h("b", {}, "Otherwise: "), meaning.do || "–"));
  const info = h("button", { type: "button", "aria-expanded": "false", "aria-label": `What is ${tag}?`, onclick: () => {
    told.hidden = !told.hidden;
    info.setAttribute("aria-expanded", String(!told.hidden));
  } }, "?");
  return h("figure", { class: marked ? "marked" : null, "data-tag": tag },
    h("figcaption", {}, h("b", { title: meaning.definition || tag }, tag), info,
      h("button", { type: "button", "aria-label": `Save ${tag} as SVG`, onclick: () => saveSvg(drawing, tag) }, "SVG"),
      h("button", { type: "button", "aria-label": `Save ${tag} as PNG`, onclick: () => savePng(drawing, tag) }, "PNG")), drawing, told);
}

// --- rollouts ----------------------------------------------------------------------------------------------------

const HEADS = [["iteration", "iteration", "Iteration of the run"], ["", "prompt"], ["", "answer of the policy"], ["reward", "reward"],
  ["advantage", "A", "Advantage"], ["log_s", "log s_i", "Mean log-ratio of the sequence to the old policy, in nats: largest first"], ["", "clip"],
  ["length", "tokens"], ["age", "age", "Updates between the weights that sampled it and those that trained on it"], ["", "end"]];

function runPicker(query) {
  if (state.runs.length < 2) return null;
  return h("label", {}, "run ", h("select", { id: "run", onchange: (event) => change({ run: event.target.value, offset: "" }) },
    state.runs.map((run) => h("option", { value: run.number, selected: String(run.number) === (query.run || "0") }, run.label))));
}

async function rollouts(query) {
  const number = Number(query.run || 0), run = state.runs[number], facts = run.facts;
  const found = await ask(number, "rollouts", query);
  const field = (name, attributes) => {
    const input = h("input", { ...attributes, value: query[name] || "", id: name });
    input.addEventListener("change", () => change({ [name]: input.value, offset: "" }));
    return input;
  };
  const tick = (name, label) => h("label", {}, h("input", { type: "checkbox", id: name, checked: Boolean(query[name]), onchange: (event) => change({ [name]: event.target.checked ? "1" : "", offset: "" }) }), label);
  const bar = h("div", { class: "bar", role: "search" }, runPicker(query),
    field("q", { type: "search", placeholder: "text in prompt or answer", "aria-label": "Text" }),
    h("label", {}, "iteration ", field("iteration", { type: "number", min: 0, "aria-label": "Iteration" })),
    facts.sources.length ? h("label", {}, "source ", h("select", { id: "source", onchange: (event) => change({ source: event.target.value, offset: "" }) },
      h("option", { value: "" }, "all"), facts.sources.map((name) => h("option", { value: name, selected: name === query.source }, name)))) : null,
    tick("live", "A ≠ 0"), tick("clipped", "clipped"),
    h("span", { class: "quiet", id: "total" }, `${found.total.toLocaleString("en")} responses`));
  const sort = query.sort || "iteration";
  const head = HEADS.map(([name, label, title]) => h("th", { scope: "col", class: name ? "num" : null, title: title || null, "aria-sort": name && sort === name ? (query.up ? "ascending" : "descending") : null },
    name ? h("button", { type: "button", onclick: () => change({ sort: name, up: sort === name && !query.up ? "1" : "", offset: "" }) }, label + (sort === name ? (query.up ? " ▴" : " ▾") : "")) : label));
  const rows = found.rows.map((r) => {
    const target = address("group", { run: number, iteration: r.iteration, prompt_id: r.prompt_id, at: r.sample });
    return h("tr", { class: "open", onclick: () => { location.hash = target; } },
      h("td", { class: "num" }, h("a", { href: target }, String(r.iteration))), h("td", {}, words(r.prompt)), h("td", {}, words(r.completion)),
      h("td", { class: "num" }, rewardText(r.reward)), h("td", { class: "num" }, signed(r.advantage, 2)),
      h("td", { class: "num" }, signed(r.log_s, 4)), h("td", { class: "short" }, clipMark(r.clip)), h("td", { class: "num" }, short(r.length)),
      h("td", { class: "num" }, short(r.age)), h("td", { class: "short" }, words(r.finish)));
  });
  const offset = found.offset || 0;
  const turn = (to, label) => h("button", { type: "button", disabled: to < 0 || to >= found.total, onclick: () => change({ offset: to || "" }) }, label);
  main.replaceChildren(h("h2", {}, "Responses in training"), bar, ...[facts.rollouts ? null : h("p", { class: "warning" }, "No responses are recorded in this run: data.record_tokens records some of every iteration.")].filter(Boolean),
    h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, head)), h("tbody", {}, rows))),
    h("div", { class: "bar" }, turn(offset - 100, "Previous"), turn(offset + 100, "Next"), `${Math.min(found.total, offset + 1)} to ${Math.min(found.total, offset + 100)} of ${found.total}`));
}

const rewardText = (value) => (value === null || value === undefined ? "missing" : short(value));
const signed = (value, digits) => (isNumber(value) ? (value > 0 ? "+" : "") + (Math.abs(value) < 1e-3 && value !== 0 ? value.toExponential(1) : value.toFixed(digits)) : "–");
const clipMark = (clip) => (!clip ? "" : clip > 0 ? h("span", { title: "clipped at the upper bound" }, "▲ high") : h("span", { title: "clipped at the lower bound" }, "▼ low"));

// --- a group, its tokens, and a prompt over time ------------------------------------------------------------------

const COLOURINGS = { log_ratio: "log-ratio to the old policy", advantage: "advantage", clip: "clip side", entropy: "entropy", gap: "old policy − sampler", age: "age" };
const SIGNED = new Set(["log_ratio", "advantage", "clip", "gap"]);

// Blue to orange through white for signs, white to purple for sizes: told apart with any colour vision
function paint(value, scale, withSign) {
  const size = Math.min(1, Math.sqrt(Math.abs(value) / (scale || 1)));
  const to = withSign ? (value < 0 ? [0, 114, 178] : [213, 94, 0]) : [94, 60, 153];
  const ground = document.documentElement.dataset.theme === "dark" ? [13, 17, 23] : [255, 255, 255];
  const mixed = to.map((channel, i) => Math.round(ground[i] + (channel - ground[i]) * size * 0.85));
  const linear = mixed.map((c) => c / 255).map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
  const light = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  return { ground: `rgb(${mixed.join(",")})`, ink: light > 0.179 ? "#000000" : "#ffffff" }; // always 4.5 to 1 or more
}

function valuesOf(row, colouring) {
  const tokens = row.tokens || {}, count = (tokens.text || []).length, own = tokens.own;
  const mine = (i) => !own || own[i];
  const fill = (value) => Array.from({ length: count }, (_, i) => (mine(i) ? value : null));
  if (colouring === "advantage") return tokens.advantage || fill(row.advantage ?? null);
  if (colouring === "clip") return tokens.clip || fill(row.clip ?? null);
  if (colouring === "age") return tokens.age || fill(row.age ?? null);
  return (tokens[colouring] || fill(null)).map((value, i) => (mine(i) ? value : null));
}

function scaleOf(rows, colouring) {
  const sizes = rows.flatMap((row) => valuesOf(row, colouring)).filter(isNumber).map(Math.abs).sort((a, b) => a - b);
  return sizes.length ? sizes[Math.floor(0.98 * (sizes.length - 1))] || sizes[sizes.length - 1] : 0;
}

function tokenView(row, colouring, scale) {
  const tokens = row.tokens || {}, values = valuesOf(row, colouring), under = h("div", { class: "under quiet", "aria-live": "polite" }, "Point at a token, or use ← and →.");
  const sides = tokens.clip || [];
  const spans = (tokens.text || []).map((text, i) => {
    const own = !tokens.own || tokens.own[i];
    const span = h("span", { class: `tok${own ? "" : " other"}${sides[i] > 0 ? " up" : sides[i] < 0 ? " down" : ""}` }, text.replace(/\n/g, "⏎\n") || "·");
    if (own && isNumber(values[i])) {
      const colours = paint(values[i], scale, SIGNED.has(colouring));
      span.style.backgroundColor = colours.ground;
      span.style.color = colours.ink;
    }
    return span;
  });
  const tell = (i) => {
    spans.forEach((span, j) => span.classList.toggle("at", i === j));
    const own = !tokens.own || tokens.own[i], parts = [`token ${i + 1} of ${spans.length} “${tokens.text[i]}”`];
    if (!own) parts.push("not chosen by the policy: not trained");
    else for (const [name, label] of Object.entries(COLOURINGS)) {
      const value = valuesOf(row, name)[i];
      if (isNumber(value) && (name !== "clip" || value) && (name !== "age" || value)) parts.push(`${label} ${short(value)}`);
    }
    under.replaceChildren(words(parts.join(" · ")));
  };
  const box = h("div", { class: "tokens", tabindex: "0", role: "group", "aria-label": "Tokens; arrow keys go through them" }, spans);
  let at = -1;
  box.addEventListener("pointerover", (event) => { const i = spans.indexOf(event.target); if (i >= 0) tell((at = i)); });
  box.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step && spans.length) { tell((at = Math.max(0, Math.min(spans.length - 1, at + step)))); event.preventDefault(); }
  });
  return spans.length ? [box, under] : [h("p", { class: "quiet" }, "No tokens are recorded for this response."), h("div", { class: "tokens" }, row.completion)];
}

// Which tokens make s_i what it is: their parts of the sum of log-ratios
function whyClipped(row) {
  if (!isNumber(row.log_s) || !row.tokens) return null;
  const values = valuesOf(row, "log_ratio"), total = values.reduce((sum, value) => sum + Math.abs(value || 0), 0);
  const s = Math.exp(row.log_s), parts = [];
  const [low, high] = row.band || [null, null], perToken = Boolean(row.tokens.clip);
  if (row.log_s === 0 && total === 0) return "First update of its iteration: the policy is still the old policy, so s_i is exactly 1 and nothing clips.";
  if (perToken) parts.push(`${percent(row.clipped || 0)} of its tokens are clipped (marked by a line).`);
  else if (row.clip > 0) parts.push(`Clipped: s_i = ${s.toFixed(5)} is above ${(1 + high).toFixed(5)} and A > 0, so the update already went far enough towards it.`);
  else if (row.clip < 0) parts.push(`Clipped: s_i = ${s.toFixed(5)} is below ${(1 - low).toFixed(5)} and A < 0, so the update already went far enough away from it.`);
  else if (!row.advantage) parts.push("No gradient: the advantage is 0, all answers of its group earn the same.");
  else if (low !== null && (s > 1 + high || s < 1 - low)) parts.push(`Outside of the range, yet not clipped: s_i = ${s.toFixed(5)} moved against its advantage, and the gradient takes it back.`);
  else parts.push(`Not clipped: s_i = ${s.toFixed(5)}${low === null ? "" : " is within the range"}.`);
  const largest = values.map((value, i) => [Math.abs(value || 0), i]).sort((a, b) => b[0] - a[0]).slice(0, 3).filter(([size]) => size > 0.02 * total);
  if (largest.length && total > 0) parts.push(`Most of the movement is in ${largest.map(([size, i]) => `“${row.tokens.text[i]}” (token ${i + 1}, ${signed(values[i], 3)}, ${percent(size / total)})`).join(", ")}.`);
  return parts.join(" ");
}

function rolloutCard(row, colouring, scale, best) {
  const verdict = Object.entries(row.parts || {}).map(([name, value]) => {
    const status = (row.statuses || {})[name], extra = (row.extra || {})[name];
    return h("li", {}, h("b", {}, `${name}: `), value === null ? "missing" : short(value), status ? ` (${status})` : "", extra !== undefined ? words(` ${asText(extra)}`) : null);
  });
  const more = Object.entries(row.extra || {}).filter(([name]) => !(row.parts || {})[name] && (row.parts || {})[name] !== 0);
  const label = `sample ${row.sample}${row.rows > 1 ? `, row ${row.row + 1} of ${row.rows}` : ""}`;
  return h("article", { class: `card${best ? " best" : ""}${row.parent >= 0 ? " branch" : ""}`, "data-sample": row.sample, "aria-label": label },
    h("h3", {}, `${label}: reward ${rewardText(row.reward)}, A ${signed(row.advantage, 2)} `, clipMark(row.clip)),
    row.parent >= 0 ? h("p", { class: "quiet" }, `Branch of row ${row.parent + 1}: they share ${row.shared} of its ${row.context} tokens of context.`) : null,
    h("div", { class: "quiet" }, [`update ${short(row.update)}`, `${short(row.length)} tokens`, `end: ${row.finish}`, `age ${short(row.age)}`, row.source ? `source ${row.source}` : ""].filter(Boolean).join(" · ")),
    isNumber(row.log_s) && row.band ? ratioGauge(row.log_s, row.band, row.clip) : null,
    whyClipped(row) ? h("p", { class: "why" }, words(whyClipped(row))) : null,
    ...tokenView(row, colouring, scale),
    h("ul", { class: "facts", "aria-label": "Rewards" }, verdict, more.map(([name, value]) => h("li", {}, words(`${name}: ${asText(value)}`))),
      Object.entries(row.logged || {}).map(([name, value]) => h("li", {}, words(`${name}: ${short(value)}`))), row.missing ? h("li", {}, words(`missing: ${row.missing}`)) : null),
    row.messages && row.messages.length ? conversation(row) : null);
}

function conversation(row) {
  return h("details", {}, h("summary", {}, `Conversation, ${row.messages.length} messages${row.turn_rewards ? `, rewards of turns ${row.turn_rewards.map(short).join(", ")}` : ""}`),
    h("ol", { class: "messages" }, row.messages.map((message) => h("li", { class: message.role === "assistant" ? "assistant" : null },
      h("div", { class: "role" }, message.role === "assistant" ? "assistant (trained)" : `${message.role} (read, not trained)`),
      words(asText(message.content ?? "")),
      (message.tool_calls || []).map((call) => h("div", { class: "mono" }, words(`→ ${asText(call.function || call)}`)))))));
}

function colouringBar(colouring, scale) {
  const legend = SIGNED.has(colouring) ? [-scale, 0, scale] : [0, scale];
  return h("div", { class: "bar" }, h("label", {}, "colour by ", h("select", { id: "colour", onchange: (event) => change({ colour: event.target.value }) },
    Object.entries(COLOURINGS).map(([name, label]) => h("option", { value: name, selected: name === colouring }, label)))),
  h("span", { class: "legend", "aria-hidden": "true" }, legend.flatMap((value) => {
    const box = h("i", {}); box.style.backgroundColor = paint(value, scale, SIGNED.has(colouring)).ground;
    return [box, short(value)];
  })), h("span", { class: "quiet" }, "line above: clipped high · line below: clipped low · dotted: not trained"));
}

async function group(query) {
  const number = Number(query.run || 0), run = state.runs[number];
  const { rows } = await ask(number, "rows", { iteration: query.iteration, prompt_id: query.prompt_id });
  if (!rows.length) { main.replaceChildren(h("p", { class: "warning" }, "This group is not recorded.")); return; }
  rows.sort((a, b) => (b.reward ?? -Infinity) - (a.reward ?? -Infinity) || a.sample - b.sample || (a.row || 0) - (b.row || 0));
  const colouring = COLOURINGS[query.colour] ? query.colour : "log_ratio", scale = scaleOf(rows, colouring);
  const rewards = rows.map((row) => row.reward).filter(isNumber), best = Math.max(...rewards), dead = new Set(rewards).size < 2;
  main.replaceChildren(h("h2", {}, `Iteration ${query.iteration}: ${new Set(rows.map((row) => row.sample)).size} answers to one prompt`),
    h("p", {}, `${run.label} · `, h("a", { href: address("prompt", { run: number, prompt_id: query.prompt_id }) }, "this prompt over time"), ` · ${dead ? "dead group: all rewards are equal" : `rewards ${short(Math.min(...rewards))} to ${short(best)}`}`),
    h("div", { class: "card" }, words(rows[0].prompt), rows[0].answer !== "" && rows[0].answer !== undefined ? h("p", { class: "quiet" }, "known answer: ", words(asText(rows[0].answer))) : null),
    colouringBar(colouring, scale), h("div", { class: "cards" }, rows.map((row) => rolloutCard(row, colouring, scale, !dead && row.reward === best))));
  const at = query.at && main.querySelector(`[data-sample="${CSS.escape(query.at)}"]`);
  if (at) at.scrollIntoView({ block: "nearest" });
}

async function prompt(query) {
  const number = Number(query.run || 0);
  const { rows } = await ask(number, "rows", { prompt_id: query.prompt_id });
  const colouring = COLOURINGS[query.colour] ? query.colour : "log_ratio", scale = scaleOf(rows, colouring);
  const iterations = [...new Set(rows.map((row) => row.iteration))];
  const sections = iterations.map((iteration) => h("section", {},
    h("h3", {}, h("a", { href: address("group", { run: number, iteration, prompt_id: query.prompt_id }) }, `Iteration ${iteration}`)),
    h("div", { class: "cards" }, rows.filter((row) => row.iteration === iteration).slice(0, 4).map((row) => rolloutCard(row, colouring, scale, false)))));
  main.replaceChildren(...(rows.length ? [h("h2", {}, "One prompt over training"), h("div", { class: "card" }, words(rows[0].prompt)), colouringBar(colouring, scale), ...sections]
    : [h("p", { class: "warning" }, "This prompt is not recorded.")]));
}

// --- held-out answers ---------------------------------------------------------------------------------------------

async function answers(query) {
  const number = Number(query.run || 0);
  const [{ rows }, prompts] = await Promise.all([ask(number, "answers"), ask(number, "prompts")]);
  const updates = [...new Set(rows.map((row) => row.update))].sort((a, b) => a - b), ids = [...new Set(rows.map((row) => row.id))];
  const shown = query.all ? updates : updates.length > 4 ? [updates[0], ...updates.slice(-3)] : updates;
  const cell = (row) => (row ? h("td", {}, words(row.completion), h("div", { class: row.reward >= 1 ? "ok" : row.reward > 0 ? "quiet" : "wrong" }, `${row.reward >= 1 ? "✓ " : row.reward > 0 ? "" : "✗ "}reward ${rewardText(row.reward)}, ${short(row.tokens)} tokens`)) : h("td", {}, "–"));
  const table = ids.map((id) => {
    const own = rows.filter((row) => row.id === id);
    return h("tr", {}, h("td", {}, words(own[0].prompt), h("div", { class: "quiet" }, "known answer: ", words(asText(own[0].answer ?? "")))), shown.map((update) => cell(own.find((row) => row.update === update))));
  });
  main.replaceChildren(h("h2", {}, "Held-out answers, before and after"), h("div", { class: "bar" }, runPicker(query), updates.length > 4 ? h("label", {}, h("input", { type: "checkbox", checked: Boolean(query.all), onchange: (event) => change({ all: event.target.checked ? "1" : "" }) }), `all ${updates.length} evaluations`) : null),
    rows.length ? h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "prompt"), shown.map((update) => h("th", { scope: "col" }, update ? `after update ${update}` : "before training")))), h("tbody", {}, table)))
      : h("p", { class: "warning" }, "This run has no held-out answers."),
    h("h2", {}, "Training prompts that came by more than once"),
    prompts.rows.length ? h("ul", {}, prompts.rows.map((row) => h("li", {}, h("a", { href: address("prompt", { run: number, prompt_id: row.prompt_id }) }, words(row.prompt)), ` ${row.iterations} iterations, mean reward ${rewardText(row.reward)}`)))
      : h("p", { class: "quiet" }, "None was recorded twice: every prompt came by once."));
}

// --- config and machine ---------------------------------------------------------------------------------------------

async function config(query) {
  const runs = shownRuns(), names = [...new Set(runs.flatMap((run) => Object.keys(run.config)))].sort();
  const differs = (name) => new Set(runs.map((run) => JSON.stringify(run.config[name]))).size > 1;
  const onlyDifferent = runs.length > 1 && !query.all, text = (query.find || "").toLowerCase();
  const rows = names.filter((name) => (!onlyDifferent || differs(name)) && name.toLowerCase().includes(text));
  const search = h("input", { type: "search", id: "find", value: query.find || "", placeholder: "part of a setting's name", "aria-label": "Find settings" });
  search.addEventListener("change", () => change({ find: search.value }));
  const versions = [...new Set(runs.flatMap((run) => Object.keys(run.versions)))];
  const table = (head, body) => h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, [head, ...runs.map((run) => run.label)].map((label) => h("th", { scope: "col" }, label)))), h("tbody", {}, body)));
  main.replaceChildren(h("h2", {}, onlyDifferent ? "Settings that differ" : "Settings"),
    h("div", { class: "bar" }, search, runs.length > 1 ? h("label", {}, h("input", { type: "checkbox", checked: Boolean(query.all), onchange: (event) => change({ all: event.target.checked ? "1" : "" }) }), "equal ones, too") : null),
    rows.length ? table("setting", rows.map((name) => h("tr", {}, h("td", { class: "mono" }, words(name)), runs.map((run) => h("td", { class: "mono" }, words(asText(run.config[name] ?? "–"))))))) : h("p", { class: "quiet" }, "No setting differs."),
    h("h2", {}, "Machine and versions"),
    table("", [["folder", (run) => run.folder], ["seconds", (run) => short(run.machine.seconds)], ["peak memory, MB", (run) => short(run.machine.peak_memory_mb)],
      ...versions.map((name) => [name, (run) => run.versions[name] || "–"])].map(([name, value]) => h("tr", {}, h("td", {}, name), runs.map((run) => h("td", { class: "mono" }, words(String(value(run)))))))));
}

// --- frame ----------------------------------------------------------------------------------------------------------

const VIEWS = { overview, rollouts, answers, config, group, prompt };
const NAV = [["overview", "Overview"], ["rollouts", "Responses"], ["answers", "Held-out"], ["config", "Config"]];

async function render() {
  const { view, query } = place(), known = Object.hasOwn(VIEWS, view) ? view : "overview";
  const current = { group: "rollouts", prompt: "rollouts" }[known] || known;
  document.getElementById("nav").replaceChildren(...NAV.map(([name, label]) => h("a", { href: address(name, query.run && name !== "overview" ? { run: query.run } : {}), "aria-current": name === current ? "page" : null }, label)));
  document.getElementById("runs").replaceChildren(...(state.runs.length < 2 ? [] : state.runs.map((run) => h("label", { title: run.folder },
    h("input", { type: "checkbox", checked: state.shown.has(run.number), onchange: (event) => { state.shown[event.target.checked ? "add" : "delete"](run.number); render(); } }), swatch(colourOfRun(run)), h("span", { class: "name" }, run.label)))));
  document.title = `${NAV.find(([name]) => name === current)[1]} – gspo view`;
  if (query.run && !state.runs[Number(query.run)]) { main.replaceChildren(h("p", { class: "warning" }, "There is no such run.")); return; }
  main.setAttribute("aria-busy", "true");
  try { await VIEWS[known](query); } catch (error) {
    main.replaceChildren(h("p", { class: "warning", role: "alert" }, `This view could not be shown: ${error.message}`));
  }
  main.removeAttribute("aria-busy");
}

async function read() {
  state.runs = offline ? offline.map((run) => run.overview) : await ask(null);
  if (!state.shown.size) state.runs.forEach((run) => state.shown.add(run.number));
}

async function follow() { // a live run: look for news, and draw them where nothing is lost by it
  const live = state.runs.filter((run) => !run.finished || !run.indexed);
  for (const run of live) {
    let now;
    try { now = await ask(run.number, "overview"); } catch (error) { say("the server does not answer"); continue; }
    if (JSON.stringify(now.stamp) === JSON.stringify(run.stamp) && now.indexed === run.indexed) continue;
    state.runs[run.number] = now;
    state.series.delete(run.number);
    const busy = ["INPUT", "SELECT"].includes((document.activeElement || {}).tagName);
    if (place().view === "overview" && !busy) { const y = scrollY; await render(); scrollTo(0, y); } else say("news: press r to read again");
  }
  setTimeout(follow, live.length ? 5000 : 60000);
}

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

document.getElementById("theme").addEventListener("click", otherTheme);
document.getElementById("help").addEventListener("click", keys);
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || ["INPUT", "SELECT", "TEXTAREA"].includes(event.target.tagName)) return;
  const { query } = place(), links = [...main.querySelectorAll("tbody a, .hint a")], at = links.indexOf(document.activeElement);
  const actions = {
    d: otherTheme, "?": keys, u: () => history.back(), r: () => read().then(() => { state.series.clear(); say(""); return render(); }),
    "/": () => (document.getElementById("q") || document.getElementById("find") || main).focus(),
    j: () => links.length && links[Math.min(links.length - 1, at + 1)].focus(), k: () => links.length && links[Math.max(0, at - 1)].focus(),
    c: () => { const names = Object.keys(COLOURINGS); change({ colour: names[(names.indexOf(query.colour || "log_ratio") + 1) % names.length] }); },
  };
  const view = NAV[Number(event.key) - 1];
  if (view) go(view[0], {});
  else if (Object.hasOwn(actions, event.key)) actions[event.key]();
  else return;
  event.preventDefault();
});
addEventListener("hashchange", () => { render().then(() => { if (!place().query.at) scrollTo(0, 0); }); });

let before = null;
try { before = localStorage.getItem("gspo-view-theme"); } catch (error) { /* see above */ }
theme(before || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
read().then(render).then(() => { document.documentElement.dataset.ready = "1"; if (!offline) setTimeout(follow, 5000); })
  .catch((error) => main.replaceChildren(h("p", { class: "warning", role: "alert" }, `The runs could not be read: ${error.message}`)));
