// The first view: what each run came to, what looks wrong, and its curves.
"use strict";

const CHARTS = [
  ["Does it learn?", ["reward/mean", "val/accuracy", "val/reward", "response/length", "reward/dead_groups"]],
  ["Why does it clip?", ["clip/tokens", "clip/high", "clip/low", "ratio/log_sequence_p95", "ratio/log_sequence_p05", "ratio/max"]],
  ["Is it stable?", ["policy/entropy", "kl/old_new_k3", "optim/gradient_norm", "optim/gradient_spike", "ratio/effective_sample_size"]],
  ["Is the sampler off?", ["noise/sampler_logprob_gap", "noise/sampler_sequence_gap", "noise/kl_sampler_old_k1", "staleness/mean_age"]],
];
const ALSO = ["data/iteration", "val/accuracy_standard_error"];
const SMOOTH = [["0", "none"], ["0.6", "a little"], ["0.9", "more"], ["0.97", "much"]];
const LEVELS = { bad: ["✖", "Wrong"], look: ["!", "Look at this"], note: ["i", "Note"], fine: ["✓", "In order"] };
// Student's t for 95 % and 1, 2, 3 ... degrees of freedom
const STUDENT = [12.71, 4.3, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23];

const shownRuns = () => state.runs.filter((run) => state.shown.has(run.number));
// Of a list, the runs that are ticked differ in colour; of named runs, each keeps its own
const slotOf = (run) => (state.listed ? Math.max(0, shownRuns().indexOf(run)) : run.number);
const colourOfRun = (run) => COLOURS[slotOf(run) % COLOURS.length];
const dashOfRun = (run) => DASHES[Math.floor(slotOf(run) / 2) % DASHES.length];
const seriesOf = (run, tag) => (state.series.get(seriesKey(run)) || {})[tag];
// A long run is sent with fewer points than it has: a zoomed part of it is asked for anew
const finer = (run) => !offline && state.zoom && run.updates > 1000;
const seriesKey = (run) => `${run.number}${finer(run) ? `:${state.zoom.join("-")}` : ""}`;

async function overview(query) {
  const runs = shownRuns();
  state.zoom = zoomOf(query).range;
  const all = [...new Set(runs.flatMap((run) => Object.keys(run.tags)))].sort();
  const wanted = (query.tags || "").split(" ").filter(Boolean);
  let groups = CHARTS.map(([title, tags]) => [title,
    tags.filter((tag) => all.includes(tag) && !(tag === "val/reward" && all.includes("val/accuracy")))]);
  if (query.find || wanted.length) groups = [["Found",
    all.filter((tag) => wanted.includes(tag) || (query.find && tag.includes(query.find))).slice(0, 60)]];
  if (query.chart && !groups.some(([, tags]) => tags.includes(query.chart))) groups.unshift(["From a verdict",
    all.filter((tag) => tag === query.chart)]);
  await fetchSeries(runs, [...groups.flatMap(([, tags]) => tags), ...ALSO.filter((tag) => all.includes(tag))]);
  const clips = query.find || wanted.length ? [] : await Promise.all(runs.map(async (run) => [run, await ask(run.number, "ratios"),
    await ask(run.number, "histograms")]));
  const lines = linesOf(runs, Boolean(query.seeds));
  const drawn = groups.map(([title, tags]) => [title, tags, [
    ...(title === "Why does it clip?" ? clips.flatMap(([run, dots, histograms]) => [
      dots.dots.some(inZoom) ? ratioFigure(run, dots) : null, histograms.updates.length ? histogramFigure(run, histograms) : null]) : []).filter(Boolean),
    ...tags.map((tag) => chart(tag, runs, lines, query)),
  ]]).filter(([, , figures]) => figures.length);
  main.replaceChildren(
    h("div", { class: "runs" }, runs.map(aboutRun)),
    ...verdictsOf(runs),
    h("h2", {}, "Curves"), curveBar(query, runs, all.length),
    ...drawn.map(([title, tags, figures], i) => section(title, figures, !i || tags.includes(query.chart))),
    ...(runs.length ? [] : [note("No run is chosen: tick one at the top.")]),
    ...(runs.length && !all.length ? [note("No number is logged yet.")] : []),
    ...(query.find && !groups[0][1].length ? [note(`No metric has “${query.find}” in its name.`)] : []));
  const marked = main.querySelector(".marked");
  if (marked) marked.scrollIntoView({ block: "center" });
}

// A part of the page that folds; in a narrow window only what must be seen is unfolded at first
const folded = new Map();
function section(title, content, needed) {
  const open = needed || (folded.has(title) ? folded.get(title) : innerWidth >= 1000);
  const details = h("details", { class: "section", open },
    h("summary", { onclick: () => folded.set(title, !details.open) }, h("h3", {}, title), quiet(`${content.length} figure${content.length === 1 ? "" : "s"}`)), h("div", { class: "grid" }, content));
  return details;
}

async function fetchSeries(runs, tags) {
  await Promise.all(runs.map(async (run) => {
    const key = seriesKey(run), known = state.series.get(key) || {}, missing = tags.filter((tag) => !known[tag]);
    const part = finer(run) ? { first: state.zoom[0], last: state.zoom[1] } : {};
    if (missing.length) state.series.set(key, { ...known, ...(await ask(run.number, "series", { tags: missing.join(","), ...part })) });
  }));
}

function curveBar(query, runs, count) {
  const kinds = runs.map((run) => run.kind).filter(Boolean), seeds = new Set(kinds).size < kinds.length;
  return h("div", { class: `bar${state.zoom ? " sticky" : ""}` }, zoomButton(query, "updates"),
    field(query, "find", { type: "search", placeholder: "Find a metric", "aria-label": "Find metrics" }), quiet(`${count} metrics`),
    choice(query, "smooth", "smooth", SMOOTH, "0"), tick(query, "log", "log scale"), tick(query, "every", "every update"),
    seeds ? tick(query, "seeds", "mean of seeds, 95 % interval") : null,
    h("span", { class: "key quiet" }, h("i", { class: "band", "aria-hidden": "true" }),
      "healthy range · ! alarm · ▾ change · drag over a curve: zoom · click: responses of that update"));
}

function aboutRun(run) {
  const [result, effort] = run.headline.split(" (");
  const facts = [run.objective, run.model, `seed ${run.seed}`, (effort || "").replace(/\)$/, ""), run.date].filter(Boolean);
  return h("section", { class: "run", "aria-label": run.label },
    h("h2", {}, swatch(run), " ", words(run.label), run.finished ? null : h("span", { class: "pill" }, "not finished")),
    h("p", { class: "result" }, words(result)),
    h("p", { class: "quiet" }, words(facts.join(" · "))),
    run.finished || damageOf(run).length === run.problems.length ? null
      : h("p", { class: "quiet" }, "It goes on, or it was stopped before its end: there is no summary.json."),
    damageOf(run).map((problem) => warning(`This run is not whole: ${problem}`)),
    run.indexed || offline ? null : warning("Recorded responses are still being read; tables grow meanwhile."));
}

const sentenceOf = (text) => text.slice(0, 1).toUpperCase() + text.slice(1);

// All verdicts of all runs in one list, the worst first; what is in order is one line that opens
function verdictsOf(runs) {
  const found = runs.flatMap((run) => run.verdicts.map((verdict) => [run, verdict]));
  const order = Object.keys(LEVELS);
  found.sort(([, a], [, b]) => order.indexOf(a.level) - order.indexOf(b.level));
  const fine = found.filter(([, verdict]) => verdict.level === "fine"), open = found.filter(([, verdict]) => verdict.level !== "fine");
  const wrong = open.filter(([, verdict]) => verdict.level !== "note").length;
  const title = (verdict) => `${sentenceOf(verdict.topic)}: ${verdict.word}`;
  return [
    h("h2", {}, "Verdicts"),
    runs.length && runs.every((run) => !run.updates) ? h("p", { class: "quiet" }, "Nothing can be judged before the first update.")
      : runs.length && !wrong ? h("p", { class: "fine" }, `✓ Nothing looks wrong${open.length ? "; worth knowing:" : "."}`) : null,
    open.length ? h("ul", { class: "hints" }, open.map(([run, verdict]) => h("li",
      { class: `hint ${verdict.level}`, "data-topic": verdict.topic },
      h("h3", {}, h("span", { class: "level", role: "img", "aria-label": LEVELS[verdict.level][1] }, LEVELS[verdict.level][0]),
        words(title(verdict))),
      runs.length > 1 ? h("p", { class: "quiet" }, swatch(run), " ", words(run.label)) : null,
      h("p", {}, words(sentenceOf(verdict.sentence))), h("a", { href: verdictLink(run, verdict) }, linkText(verdict))))) : null,
    fine.length ? h("details", { class: "in-order" },
      h("summary", {}, h("span", { class: "chips" }, fine.map(([run, verdict]) => h("span", { class: "chip", "data-topic": verdict.topic },
        runs.length > 1 ? [swatch(run), " "] : "✓ ", h("b", {}, verdict.topic), ` ${verdict.word}`)))),
      h("dl", {}, fine.map(([run, verdict]) => [h("dt", {}, runs.length > 1 ? [swatch(run), " "] : null, title(verdict)),
        h("dd", {}, words(sentenceOf(verdict.sentence)))]))) : null,
  ].filter(Boolean);
}

function linkText(verdict) {
  const chart = /^#overview\?chart=(.*)$/.exec(verdict.link);
  if (chart) return `See the curve ${chart[1]}`;
  return { rollouts: "See the responses", answers: "See held-out answers",
    config: "See the settings" }[verdict.link.slice(1).split("?")[0]] || "See the curves";
}

function verdictLink(run, verdict) {
  const [view, rest = ""] = verdict.link.slice(1).split("?");
  return address(view, { ...Object.fromEntries(new URLSearchParams(rest)), ...(view === "overview" ? {} : { run: run.number }) });
}

// --- curves -------------------------------------------------------------------------------------------------------------

// What is drawn as one line: a run, or all runs that differ in nothing but their seed
function linesOf(runs, seeds) {
  const by = new Map();
  for (const run of runs) {
    const key = seeds && run.kind ? run.kind : run.number;
    by.set(key, [...(by.get(key) || []), run]);
  }
  return [...by.values()].map((some) => ({
    runs: some, colour: colourOfRun(some[0]), dash: dashOfRun(some[0]),
    label: some.length > 1 ? `${some[0].objective}, ${some.length} seeds` : some[0].label,
  }));
}

function valueAt([xs, ys], x) {
  let i = xs.findIndex((found) => found >= x);
  if (i < 0) return null;
  if (xs[i] === x || i === 0) return xs[i] === x ? ys[i] : null;
  i -= 1;
  return ys[i] === null || ys[i + 1] === null ? null : ys[i] + ((x - xs[i]) / (xs[i + 1] - xs[i])) * (ys[i + 1] - ys[i]);
}

// Mean over runs, with a 95 % interval of the mean (Student's t) over seeds
function meanOf(found) {
  const x = found[0][0].filter((step) => found.every((one) => valueAt(one, step) !== null)), y = [], error = [];
  for (const step of x) {
    const values = found.map((one) => valueAt(one, step)), n = values.length, mean = values.reduce((sum, value) => sum + value, 0) / n;
    const deviation = Math.sqrt(values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / (n - 1));
    y.push(mean);
    error.push(((STUDENT[n - 2] || 2) * deviation) / Math.sqrt(n));
  }
  return { x, y, error };
}

function pointsOf(line, tag, every, smooth) {
  const found = line.runs.map((run) => seriesOf(run, tag)).filter(Boolean);
  if (!found.length) return null;
  const asMeans = (one, averaged) => one[2] && (!every || (one[3] && averaged)); // an average of extremes is not theirs
  if (found.length > 1) return meanOf(found.map((one) => (asMeans(one, true) ? [one[2][0], one[2][1]] : one)));
  if (asMeans(found[0], smooth)) { // the mini-batches of an iteration as their mean and range, not as a saw-tooth
    const [x, y, low, high] = found[0][2];
    return { x, y, range: [low, high] };
  }
  const [x, y] = found[0], spread = tag === "val/accuracy" && seriesOf(line.runs[0], "val/accuracy_standard_error");
  const by = new Map(spread ? spread[0].map((step, i) => [step, 1.96 * spread[1][i]]) : []);
  return { x, y, error: spread ? x.map((step) => by.get(step)) : null };
}

function chart(tag, runs, lines, query) {
  const meaning = runs.map((run) => run.tags[tag]).find((found) => found && found.definition) || {};
  const bands = new Set(runs.filter((run) => run.tags[tag]).map((run) => JSON.stringify(run.tags[tag].band || null)));
  const band = bands.size === 1 ? meaning.band : null; // objectives with other clip ranges have other bands
  const marks = runs.flatMap((run) => [
    ...run.alarms.map((alarm) => ({ x: alarm.update, kind: "alarm",
      label: `${alarm.signature} at update ${alarm.update}: ${alarm.what || ""}`})),
    ...run.events.map((event) => ({ x: event.update, kind: "event", label: `update ${event.update}: ${event.what}` })),
  ]);
  const within = tag === "val/accuracy" ? { least: 0, most: 1 } : {};
  const smooth = Number(query.smooth || 0);
  const series = lines
    .map((line) => ({ ...line, ...within, ...pointsOf(line, tag, Boolean(query.every), smooth > 0) }))
    .filter((line) => line.x);
  const known = { title: tag, unit: meaning.unit, xLabel: "update", series, band, marks, smooth,
    log: Boolean(query.log), zoom: zoomOf(query) };
  const open = (update) => {
    const steps = runs.length && seriesOf(runs[0], "data/iteration");
    if (steps) go("rollouts",
      { run: runs[0].number, iteration: valueAt(steps, update) === null ? "" : Math.floor(valueAt(steps, update)) });
  };
  const last = series.map((line) => h("span", { class: "last" }, series.length > 1 ? swatchOf(line.colour, line.dash) : null,
    short(line.y.filter((y) => y !== null).at(-1))));
  const told = [
    h("p", {}, `${meaning.definition || "Not defined by this package."} [${meaning.unit || "?"}]`),
    h("p", {}, h("b", {}, "Healthy: "), meaning.healthy || "–"), h("p", {}, h("b", {}, "Otherwise: "), meaning.do || "–"),
  ];
  return figure({ name: tag, title: tag, last, told, marked: tag === query.chart, draw: (more) => lineChart({ ...known, ...more, open }) });
}

// A card around a drawing: what it is, its last values, an explanation, and two files to save
function figure({ name, title, draw, told = [], last = [], marked = false, wide = false }) {
  const explained = h("div", { class: "told", hidden: true }, told);
  const info = h("button", { type: "button", "aria-expanded": "false", "aria-label": `What is ${title}?`, onclick: () => {
    explained.hidden = !explained.hidden;
    info.setAttribute("aria-expanded", String(!explained.hidden));
  } }, "?");
  const button = (kind, act) => h("button",
    { type: "button", "aria-label": `Save ${title} as ${kind}`, title: `Save as ${kind}, with legend`,
      onclick: () => act(draw({ paper: true }), name) },
    kind);
  return h("figure", { class: [marked && "marked", wide && "wide"].filter(Boolean).join(" ") || null, "data-tag": name },
    h("figcaption", {}, h("b", {}, title), last.length === 1 ? last : null,
      h("span", { class: "buttons" }, told.length ? info : null, button("SVG", saveSvg), button("PNG", savePng))),
    last.length > 1 ? h("div", { class: "lasts" }, last) : null, draw({}), explained);
}

const inZoom = ([update]) => !state.zoom || (update >= state.zoom[0] && update <= state.zoom[1]);

function ratioFigure(run, { dots, band }) {
  const several = state.shown.size > 1 ? `, ${run.label}` : "";
  const told = [
    h("p", {},
      "Each mark is a recorded response in an update: its mean log-ratio to the old policy, log s_i, in nats. ▲ A > 0, ▼ A < 0, small: A = 0. Filled: clipped, no gradient."),
    h("p", {},
      "Upwards of the range only A > 0 clips, downwards only A < 0: the update already went far enough. In the first update of an iteration all are exactly 0."),
  ];
  return figure({ name: `ratios_${run.number}`, title: `log s_i of responses${several}`, told, wide: true,
    draw: (more) => ratioChart({ dots: dots.filter(inZoom), band, range: state.zoom, title: `log s_i of responses${several}`,
      open: (dot) => { location.hash = groupOf(run.number, dot); }, ...more }) });
}
