// A group side by side: ratios, tokens, rewards, conversations; and one prompt over time.
"use strict";

const COLOURINGS = { log_ratio: "log-ratio to the old policy", advantage: "advantage", clip: "clip side", entropy: "entropy",
  gap: "old policy − sampler", age: "age" };
const UNITS = { log_ratio: "nats", entropy: "nats", gap: "nats", age: "updates" };
const SIGNED = new Set(["log_ratio", "advantage", "clip", "gap"]);

// --- colours of tokens ----------------------------------------------------------------------------------------------------

// Blue to orange through the ground for signs, ground to purple for sizes: told apart with any colour vision
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

// The 98th percentile of sizes, so that one token does not make all others pale
function scaleOf(rows, colouring) {
  const sizes = rows.flatMap((row) => valuesOf(row, colouring)).filter(isNumber).map(Math.abs).sort((a, b) => a - b);
  return sizes.length ? sizes[Math.floor(0.98 * (sizes.length - 1))] || sizes[sizes.length - 1] : 0;
}

function colouringBar(colouring, scale) {
  const steps = SIGNED.has(colouring) ? [-1, -0.5, -0.1, 0, 0.1, 0.5, 1] : [0, 0.1, 0.25, 0.5, 1];
  const bar = h("span", { class: "scale", "aria-hidden": "true" });
  bar.style.backgroundImage = `linear-gradient(to right, ${steps.map((step) => paint(step * scale, scale, SIGNED.has(colouring)).ground).join(", ")})`;
  const unit = UNITS[colouring] ? ` ${UNITS[colouring]}` : "";
  return h("div", { class: "bar sticky" },
    choice({ colour: colouring }, "colour", "colour tokens by", Object.entries(COLOURINGS), ""),
    scale ? h("span", { class: "legend" }, short(SIGNED.has(colouring) ? -scale : 0), bar, `${short(scale)}${unit}`)
      : quiet(colouring === "age" ? "all 0: sampled by the weights they train" : "not recorded, or 0 everywhere"),
    quiet("line above: clipped high · below: clipped low · dotted: not trained · ┆ first token that differs from the first answer"));
}

// --- tokens ---------------------------------------------------------------------------------------------------------------

function tokenView(row, colouring, scale, fork) {
  const tokens = row.tokens || {}, values = valuesOf(row, colouring), sides = tokens.clip || [];
  if (!(tokens.text || []).length) return [quiet("No tokens are recorded for this response. "), long(row.completion, titleOf(row))];
  const spans = tokens.text.map((text, i) => {
    const own = !tokens.own || tokens.own[i], side = sides[i] > 0 ? " up" : sides[i] < 0 ? " down" : "";
    const span = h("span", { class: `tok${own ? "" : " other"}${side}${i === fork ? " fork" : ""}` }, text.replace(/\n/g, "⏎\n") || "·");
    if (own && isNumber(values[i])) {
      const colours = paint(values[i], scale, SIGNED.has(colouring));
      span.style.backgroundColor = colours.ground;
      span.style.color = colours.ink;
    }
    return span;
  });
  const tell = (i) => {
    document.querySelectorAll(".tok.at").forEach((span) => span.classList.remove("at"));
    spans[i].classList.add("at");
    const own = !tokens.own || tokens.own[i], parts = [`token ${i + 1} of ${spans.length} “${tokens.text[i]}”`];
    if (!own) parts.push("not chosen by the policy: not trained");
    else for (const [name, label] of Object.entries(COLOURINGS)) {
      const value = valuesOf(row, name)[i];
      if (isNumber(value) && (value || !["clip", "age"].includes(name))) parts.push(`${label} ${name === "clip" ? (value > 0 ? "high" : "low") : short(value)}`);
    }
    say(parts.join(" · "));
  };
  const box = h("div", { class: `tokens${isLong(tokens.text.join("")) ? " long" : ""}`, tabindex: "0", role: "group", "aria-label": "Tokens; arrow keys go through them" }, spans);
  let at = -1;
  box.addEventListener("pointerover", (event) => { const i = spans.indexOf(event.target); if (i >= 0) tell((at = i)); });
  box.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    tell((at = Math.max(0, Math.min(spans.length - 1, at + step))));
    spans[at].scrollIntoView({ block: "nearest" });
    event.preventDefault();
  });
  return [box];
}

// Why the ratio is clipped or not, and which tokens make it what it is: their parts of the sum of log-ratios
function whyClipped(row) {
  if (!isNumber(row.log_s) || !row.tokens) return null;
  const values = valuesOf(row, "log_ratio"), total = values.reduce((sum, value) => sum + Math.abs(value || 0), 0);
  const s = Math.exp(row.log_s), [low, high] = row.band || [null, null], parts = [];
  if (row.log_s === 0 && total === 0) return "First update of its iteration: the policy is still the old policy, so s_i is exactly 1 and nothing clips.";
  if (row.tokens.clip) parts.push(`${percent(row.clipped || 0)} of its tokens are clipped (marked by a line).`);
  else if (row.clip > 0) parts.push(`Clipped: s_i = ${s.toFixed(5)} is above ${(1 + high).toFixed(5)} and A > 0, so the update already went far enough towards it.`);
  else if (row.clip < 0) parts.push(`Clipped: s_i = ${s.toFixed(5)} is below ${(1 - low).toFixed(5)} and A < 0, so the update already went far enough away from it.`);
  else if (!row.advantage) parts.push("No gradient: the advantage is 0, all answers of its group earn the same.");
  else if (low !== null && (s > 1 + high || s < 1 - low)) parts.push(`Outside of the range, yet not clipped: s_i = ${s.toFixed(5)} moved against its advantage, and the gradient takes it back.`);
  else parts.push(`Not clipped: s_i = ${s.toFixed(5)}${low === null ? "" : " is within the range"}.`);
  const largest = values.map((value, i) => [Math.abs(value || 0), i]).sort((a, b) => b[0] - a[0]).slice(0, 3).filter(([size]) => size > 0.02 * total);
  if (largest.length && total > 0) parts.push(`Most of the movement is in ${largest.map(([size, i]) => `“${row.tokens.text[i]}” (token ${i + 1}, ${signed(values[i], 3)}, ${percent(size / total)})`).join(", ")}.`);
  return parts.join(" ");
}

// --- a response -------------------------------------------------------------------------------------------------------------

const textsOf = (row) => (row.tokens || {}).text || [];

function forkOf(row, best) {
  if (!best || best === row || (best.row || 0) !== (row.row || 0)) return -1;
  const [own, theirs] = [textsOf(row), textsOf(best)];
  return own.findIndex((text, i) => text !== theirs[i]);
}

function rewardsOf(row) {
  const parts = row.parts || {}, extra = row.extra || {}, statuses = row.statuses || {};
  const items = [
    ...Object.entries(parts).map(([name, value]) => [name, value === null ? "missing" : short(value),
      Object.hasOwn(statuses, name) ? ` (${statuses[name]})` : "", Object.hasOwn(extra, name) ? ` ${asText(extra[name])}` : ""]),
    ...Object.entries(extra).filter(([name]) => !Object.hasOwn(parts, name)).map(([name, value]) => [name, asText(value), "", ""]),
    ...Object.entries(row.logged || {}).map(([name, value]) => [name, short(value), "", ""]),
    ...(row.missing ? [["missing", row.missing, "", ""]] : []),
  ];
  return h("ul", { class: "chips", "aria-label": "Rewards and their reasons" },
    items.map(([name, value, status, reason]) => h("li", { class: "chip" }, h("b", {}, words(name)),
      words(` ${value}${status}${reason}`))));
}

const titleOf = (row) => `#${row.sample}${row.rows > 1 ? `, row ${row.row + 1} of ${row.rows}` : ""}`;

function rolloutCard(number, row, colouring, scale, best, isBest) {
  const name = titleOf(row), why = whyClipped(row);
  const facts = [isNumber(row.update) ? `update ${thousands(row.update)}` : "", `${short(row.length)} tokens`, `end: ${row.finish}`,
    row.age ? `age ${row.age}` : "", row.source ? `source ${row.source}` : ""];
  return h("article",
    { class: `card${isBest ? " best" : ""}${row.parent >= 0 ? " branch" : ""}`, "data-sample": row.sample, "aria-label": `sample ${name}` },
    h("h3", {}, quiet(name), h("span", { class: rewardClass(row.reward) }, `reward ${rewardText(row.reward)}`),
      isNumber(row.advantage) ? h("span", {}, `A ${signed(row.advantage, 2)}`) : null,
      isNumber(row.log_s) ? h("span", {}, `s_i ${Math.exp(row.log_s).toFixed(5)}`) : null, clipMark(row.clip),
      h("a", { class: "whole", "data-name": nameOf(row), href: responseOf(number, row), "aria-label": `Sample ${name} in full`, title: "In full; Esc closes it" }, "in full")),
    row.parent >= 0 ? quiet(`Branch of row ${row.parent + 1}: they share ${row.shared} of its ${row.context} tokens of context. `) : null,
    quiet(facts.filter(Boolean).join(" · ")),
    ...tokenView(row, colouring, scale, forkOf(row, best)),
    why ? h("p", { class: "why" }, words(why)) : null,
    rewardsOf(row), conversation(row));
}

function pictures(number, row) {
  const shown = (row.pictures || []).map((name) => pictureAddress(number, name)).filter(Boolean);
  if (!shown.length && !row.unseen_pictures) return null;
  return h("div", { class: "pictures" }, shown.map((src, i) => h("img", { src, alt: `picture ${i + 1} of the prompt` })),
    row.unseen_pictures ? quiet(`${row.unseen_pictures} more, not kept`) : null);
}

// --- conversations ----------------------------------------------------------------------------------------------------------

function conversation(row) {
  if (row.tree && row.tree.length) return treeOf(row.tree);
  if (!row.messages || !row.messages.length) return null;
  const rewards = row.turn_rewards && row.turn_rewards.length ? `, rewards of turns ${row.turn_rewards.map(short).join(", ")}` : "";
  return h("details", {}, h("summary", {}, `Conversation, ${row.messages.length} messages${rewards}`),
    h("ol", { class: "messages" },
      row.messages.map((message) => said(message, message.role === "assistant" ? "trained" : "read, not trained"))));
}

function said(message, fate) {
  return h("li", { class: fate === "trained" ? "trained" : null }, h("div", { class: "role" }, words(`${message.role} (${fate})`)),
    long(asText(message.content ?? ""), `${message.role} (${fate})`),
    (message.tool_calls || []).map((call) => h("div", { class: "mono" }, words(`→ ${asText(call.function || call)}`))));
}

// A rollout of an agent: branches are indented; seconds are the policy's for a turn, the client's and its tools' before one
function treeOf(nodes) {
  const children = (i) => nodes.map((node, j) => [node, j]).filter(([node]) => node.parent === i).map(([, j]) => j);
  const seconds = (value) => `${value < 0.01 ? value.toFixed(4) : value.toFixed(2)} s`;
  const times = (i) => {
    const node = nodes[i], before = isNumber(node.parent) ? nodes[node.parent] : null;
    if (isNumber(node.asked_s)) return `policy ${seconds(node.answered_s - node.asked_s)}`;
    const next = nodes[children(i)[0]];
    return next && isNumber(next.asked_s) && before && isNumber(before.answered_s) ? `client and tools ${seconds(next.asked_s - before.answered_s)}` : "";
  };
  const fate = (node) => (!isNumber(node.asked_s) ? "read, not trained" : node.trained ? "trained" : "sampled, not trained");
  const path = (i) => {
    const node = nodes[i], after = children(i), more = [`${node.tokens} tokens`, times(i)].filter(Boolean).join(", ");
    const here = (node.messages || []).map((message, k) => said(message, k ? fate(node) : `${fate(node)}; ${more}`));
    if (node.trained) here.forEach((item) => item.classList.add("trained"));
    if (after.length < 2) return [...here, ...after.flatMap(path)];
    return [...here, ...after.map((j) => h("li", { class: "branches" }, h("ol", { class: "messages" }, path(j))))];
  };
  const roots = nodes.map((node, i) => i).filter((i) => !isNumber(nodes[i].parent)), turns = nodes.filter((node) => isNumber(node.asked_s)).length;
  const title = `Conversation: ${turns} turn${turns === 1 ? "" : "s"}${roots.length > 1 ? `, begun anew ${roots.length - 1} times` : ""}`;
  return h("details", {}, h("summary", {}, title),
    roots.map((i, k) => [roots.length > 1 ? h("p", { class: "role" }, `history ${k + 1}`) : null,
      h("ol", { class: "messages" }, path(i))]));
}

// --- views ------------------------------------------------------------------------------------------------------------------

function promptCard(number, row) {
  const known = row.answer !== "" && row.answer !== undefined ? h("p", {}, quiet("known answer "), words(asText(row.answer))) : null;
  return h("section", { class: "card prompt", "aria-label": "Prompt" }, pictures(number, row), long(row.prompt, "Prompt"), known);
}

function groupFigure(rows) {
  const placed = rows.filter((row) => isNumber(row.log_s) && row.band && !(row.tokens || {}).clip);
  if (placed.length < 2) return null;
  const title = "s_i of the group and the clip range";
  const told = [h("p", {},
    "s_i is the geometric mean of the ratios of a response's tokens, new policy to old. Shaded: where a response with this sign of A has no gradient.")];
  return figure({ name: "group_ratios", title, told, draw: (more) => groupChart({ rows: placed, band: placed[0].band, title, ...more }) });
}

let readLast = null;

async function group(query) {
  const number = runOf(query), run = state.runs[number];
  const { rows } = await ask(number, "rows", { iteration: query.iteration, prompt_id: query.prompt_id });
  if (!rows.length) { main.replaceChildren(warning("This group is not recorded.")); return; }
  rows.sort((a, b) => (b.reward ?? -Infinity) - (a.reward ?? -Infinity) || a.sample - b.sample || (a.row || 0) - (b.row || 0));
  const colouring = COLOURINGS[query.colour] ? query.colour : "log_ratio", scale = scaleOf(rows, colouring);
  const rewards = rows.map((row) => row.reward).filter(isNumber), top = Math.max(...rewards), dead = rewards.length < 2 || nearlyEqual(Math.min(...rewards), top);
  const best = dead ? null : rows.find((row) => row.reward === top), samples = new Set(rows.map((row) => row.sample)).size;
  const summary = dead ? "dead group: all rewards are equal, nothing is learned from it" : `rewards ${short(Math.min(...rewards))} to ${short(top)}`;
  main.replaceChildren(...[
    h("h2", {}, `Iteration ${query.iteration}: ${samples} answer${samples === 1 ? "" : "s"} to one prompt`),
    h("p", {}, words(run.label), ` · ${summary} · `,
      h("a", { href: address("prompt", { run: number, prompt_id: query.prompt_id }) }, "this prompt over time"), " · ",
      h("a", { href: address("rollouts", { run: number, iteration: query.iteration }) }, "this iteration")),
    promptCard(number, rows[0]), groupFigure(rows), colouringBar(colouring, scale),
    h("div", { class: "cards" }, rows.map((row) => rolloutCard(number, row, colouring, scale, best, !dead && isNumber(row.reward) && nearlyEqual(row.reward, top)))),
  ].filter(Boolean));
  const whole = query.full && rows.find((row) => nameOf(row) === query.full);
  if (query.full && !whole) say("This response is not recorded.");
  if (whole) {
    const card = rolloutCard(number, whole, colouring, scale, best, false);
    card.querySelectorAll("details").forEach((details) => { details.open = true; });
    openReader(`Iteration ${query.iteration}, sample ${titleOf(whole)}`, [promptCard(number, whole), card],
      () => { readLast = query.full; change({ full: "", at: whole.sample }); });
  } else if (readLast) { // back to where it was opened
    const link = main.querySelector(`[data-name="${CSS.escape(readLast)}"]`);
    readLast = null;
    if (link) link.focus();
  }
  const at = query.at && main.querySelector(`[data-sample="${CSS.escape(query.at)}"]`);
  if (at) { at.classList.add("chosen"); if (at.getBoundingClientRect().bottom > innerHeight) at.scrollIntoView({ block: "center" }); }
}

async function prompt(query) {
  const number = runOf(query), run = state.runs[number];
  const { rows, rewards } = await ask(number, "prompt", { prompt_id: query.prompt_id });
  if (!rows.length) { main.replaceChildren(warning("This prompt is not recorded.")); return; }
  const colouring = COLOURINGS[query.colour] ? query.colour : "log_ratio", scale = scaleOf(rows, colouring);
  const iterations = [...new Set(rows.map((row) => row.iteration))];
  const line = { label: run.label, colour: colourOfRun(run), x: rewards.map(([x]) => x), y: rewards.map(([, y]) => y) };
  const title = "mean reward of this prompt", known = { title, unit: "reward", xLabel: "iteration", series: [line] };
  const open = (iteration) => { location.hash = groupOf(number, { iteration, prompt_id: query.prompt_id }); };
  main.replaceChildren(
    h("h2", {}, "One prompt over training"),
    h("p", {}, words(run.label),
      ` · recorded in ${rewards.length} iteration${rewards.length === 1 ? "" : "s"}${iterations.length < rewards.length ? `, ${iterations.length} of them below` : ""}, up to 4 answers of each`),
    promptCard(number, rows[0]),
    zoomButton(query, "iterations") || "",
    rewards.length > 1 ? figure({ name: "prompt_reward", title,
      draw: (more) => lineChart({ ...known, ...more, open, zoom: zoomOf(query), width: wide(more.paper), height: 150 }) }) : "",
    colouringBar(colouring, scale),
    ...iterations.map((iteration) => h("section", {},
      h("h3", {}, h("a", { href: groupOf(number, { iteration, prompt_id: query.prompt_id }) }, `Iteration ${iteration}`)),
      h("div", { class: "cards" },
        rows.filter((row) => row.iteration === iteration).map((row) => rolloutCard(number, row, colouring, scale, null, false))))));
}
