// Two runs on the same prompts: their answers side by side, and the tokens where they part.
"use strict";

const PAIRS = 10, PARTING = 600;
const KEPT = { "": "all", parted: "that differ", one: "that one of them solves" };

// Words of a text whose tokens are not recorded
const wordsOf = (text) => text.match(/\s*[\p{L}\p{N}]+|\s*[^\s]|\s+$/gu) || [];

// For each token of two lists, whether a longest common subsequence has it
function commonTokens(a, b) {
  let start = 0, end = 0;
  while (start < a.length && start < b.length && a[start] === b[start]) start += 1;
  while (end < a.length - start && end < b.length - start && a[a.length - 1 - end] === b[b.length - 1 - end]) end += 1;
  const kept = [a, b].map((all) => all.map((_, i) => i < start || i >= all.length - end));
  const rows = a.slice(start, a.length - end), columns = b.slice(start, b.length - end);
  if (rows.length > PARTING || columns.length > PARTING) return { start, kept }; // all between is shown as parted
  const best = Array.from({ length: rows.length + 1 }, () => new Uint16Array(columns.length + 1));
  for (let i = rows.length - 1; i >= 0; i -= 1) for (let j = columns.length - 1; j >= 0; j -= 1)
    best[i][j] = rows[i] === columns[j] ? best[i + 1][j + 1] + 1 : Math.max(best[i + 1][j], best[i][j + 1]);
  for (let i = 0, j = 0; i < rows.length && j < columns.length;) {
    if (rows[i] === columns[j]) { kept[0][start + i] = true; kept[1][start + j] = true; i += 1; j += 1; }
    else if (best[i + 1][j] >= best[i][j + 1]) i += 1;
    else j += 1;
  }
  return { start, kept };
}

function partedText(tokens, kept, start) {
  return h("div", { class: `tokens${isLong(tokens.join("")) ? " long" : ""}` }, tokens.map((text, i) => h("span",
    { class: `tok${kept[i] ? "" : " parted"}${i === start ? " fork" : ""}` }, text.replace(/\n/g, "⏎\n"))));
}

// side: { run, title, reward, tokens, href or null }
function pairOf(title, prompt, sides, unit) {
  const [a, b] = sides.map(({ tokens }) => tokens), { start, kept } = commonTokens(a, b), same = start === a.length && start === b.length;
  const at = (tokens) => (start < tokens.length ? `“${tokens[start].trim() || "space"}”` : "the end");
  const told = same ? "The same answer." : `They part at ${unit} ${start + 1}: ${at(a)} and ${at(b)}.`;
  const heading = (side, whole) => [
    h("h3", {}, swatch(side.run), words(side.run.label), h("span", { class: rewardClass(side.reward) }, `reward ${rewardText(side.reward)}`)),
    h("p", { class: "quiet" }, side.title, side.href && !whole ? [" · ", h("a", { href: side.href }, "its group")] : null)];
  const card = (some, whole, i) => h("article", { class: "card", "aria-label": some.map((side) => side.run.label).join(" and ") },
    some.map((side) => heading(side, whole)).flat(), partedText(some[0].tokens, kept[i], start));
  const cells = (whole) => h("div", { class: same ? "" : "cards two" }, same ? card(sides, whole, 0) : sides.map((side, i) => card([side], whole, i)));
  return h("section", { class: "pair", "aria-label": title },
    h("h3", {}, title), h("div", {}, long(prompt, "Prompt")), h("p", { class: same ? "quiet" : "parting" }, words(told)), cells(false),
    isLong(a.join("")) || isLong(b.join("")) ? opener("Read both in full", title, () => [h("div", { class: "card prompt" }, words(prompt)), h("p", {}, words(told)), cells(true)]) : null);
}

const lastAnswers = (rows) => { // by prompt, those of the last evaluation
  const last = Math.max(...rows.map((row) => row.update));
  return new Map(rows.filter((row) => row.update === last).map((row) => [JSON.stringify([row.prompt, row.pictures || []]), row]));
};

async function heldOutPairs(runs, query) {
  const [a, b] = await Promise.all(runs.map(async (run) => lastAnswers((await ask(run.number, "answers")).rows)));
  const keep = { parted: (x, y) => x.completion !== y.completion, one: (x, y) => solved(x.reward) !== solved(y.reward) }[query.only] || (() => true);
  const common = [...a.keys()].filter((key) => b.has(key)), pairs = common.map((key) => [a.get(key), b.get(key)]);
  const distance = ([x, y]) => 2 * Number(solved(x.reward) !== solved(y.reward)) + Number(x.completion !== y.completion);
  const wanted = pairs.filter(([x, y]) => keep(x, y)).sort((x, y) => distance(y) - distance(x)); // the most different first
  const draw = async ([x, y]) => pairOf(`Held-out prompt ${x.id}`, x.prompt, [x, y].map((row, i) => ({ run: runs[i], reward: row.reward, tokens: wordsOf(row.completion),
    title: `${row.update ? `after update ${thousands(row.update)}` : "before training"}, ${short(row.tokens)} tokens` })), "word");
  const differ = pairs.filter(([x, y]) => x.completion !== y.completion).length;
  return { wanted, draw, summary: `${common.length} common prompts, ${differ} answers differ` };
}

async function trainingPairs(runs) {
  const key = (row) => `${row.characters}:${row.prompt}`;
  const [a, b] = await Promise.all(runs.map(async (run) => new Map((await ask(run.number, "texts")).rows.map((row) => [key(row), row]))));
  const wanted = [...a.keys()].filter((prompt) => b.has(prompt)).map((prompt) => [a.get(prompt), b.get(prompt)])
    .sort((x, y) => Math.min(...y.map((row) => row.iteration)) - Math.min(...x.map((row) => row.iteration)) || x[0].prompt_id - y[0].prompt_id);
  const draw = async (pair) => {
    const groups = await Promise.all(pair.map(async (row, i) => (await ask(runs[i].number, "rows",
      { iteration: String(row.iteration), prompt_id: String(row.prompt_id) })).rows));
    const rows = groups.map((group, i) => group.find((row) => groups[1 - i].some((other) => other.sample === row.sample)) || group[0]);
    if (rows.some((row) => !row)) return null; // was just recorded anew
    return pairOf(`Training prompt ${pair[0].prompt_id}`, rows[0].prompt, rows.map((row, i) => ({ run: runs[i], reward: row.reward,
      tokens: textsOf(row).length ? textsOf(row) : wordsOf(row.completion), href: groupOf(runs[i].number, row),
      title: `iteration ${thousands(row.iteration)}, sample ${titleOf(row)}, ${short(row.length)} tokens` })), rows.every((row) => textsOf(row).length) ? "token" : "word");
  };
  return { wanted, draw, summary: `${wanted.length} prompts that both recorded, the last first` };
}

async function compare(query) {
  const ticked = shownRuns(), standard = ticked.length > 1 ? ticked : state.runs;
  const runs = ["a", "b"].map((name, i) => state.runs[query[name] ? Number(query[name]) : (standard[i] || standard[0]).number]);
  if (runs.some((run) => !run)) { main.replaceChildren(warning("There is no such run.")); return; }
  const { wanted, draw, summary } = await (query.kind === "training" ? trainingPairs(runs) : heldOutPairs(runs, query));
  const offset = Math.min(Number(query.offset || 0) || 0, Math.max(0, wanted.length - 1)), page = wanted.slice(offset, offset + PAIRS);
  const pairs = (await Promise.all(page.map(draw))).filter(Boolean);
  const all = state.runs.map((run) => [String(run.number), run.label]);
  const pick = (name, i) => choice(query, name, i ? "and" : "runs", all, String((standard[i] || standard[0]).number));
  const turn = (to, label) => h("button", { type: "button", disabled: to < 0 || to >= wanted.length, onclick: () => change({ offset: to || "" }) }, label);
  main.replaceChildren(...[
    h("h2", {}, "Two runs on the same prompts"),
    h("div", { class: "bar" }, pick("a", 0), pick("b", 1), choice(query, "kind", "answers", [["", "held-out"], ["training", "in training"]]),
      query.kind === "training" ? null : choice(query, "only", "show", Object.entries(KEPT)),
      quiet(summary), quiet("marked: what the other answer lacks · ┆ where they part")),
    ...pairs,
    wanted.length ? null : note(query.only ? "No pair of answers is like that." : "These runs have no prompt in common."),
    wanted.length > PAIRS ? h("div", { class: "bar" }, turn(offset - PAIRS, "Previous"), turn(offset + PAIRS, "Next"),
      `${thousands(offset + 1)} to ${thousands(offset + page.length)} of ${thousands(wanted.length)}`) : null,
  ].filter(Boolean));
}
