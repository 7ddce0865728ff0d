// The table of recorded responses: filters, orders, pages.
"use strict";

const ENDS = ["stop", "length", "done", "turns", "lost"];
const FILTERS = ["q", "iteration", "source", "finish", "least", "most", "live", "clipped", "prompt_id", "choice"];
const COLUMNS = ["iteration", "update_", "prompt_id", "sample", "row", "source", "reward", "advantage", "log_s", "clip", "length", "age",
  "finish", "choice", "prompt", "completion"];
const HEADS = [
  ["iteration", "iteration", "Iteration of the run, from 0"], ["", "prompt"], ["", "answer of the policy"],
  ["reward", "reward"], ["advantage", "A", "Advantage: above 0 the answer is made more likely"],
  ["log_s", "log s_i", "Mean log-ratio of the response to the old policy, in nats; sorted by size"], ["", "clip"],
  ["length", "tokens"], ["age", "age", "Updates between the weights that sampled it and those that trained on it"], ["", "end"],
];

function runPicker(query) {
  if (state.runs.length < 2) return null;
  return choice(query, "run", "run", state.runs.map((run) => [String(run.number), run.label]), String(standardRun()));
}

function clipMark(clip) {
  if (!clip) return null;
  return h("span", { class: clip > 0 ? "clip high" : "clip low", title: `clipped at the ${clip > 0 ? "upper" : "lower"} bound` },
    clip > 0 ? "▲ high" : "▼ low");
}

// What a conversation begins with stands in the column before
function answerOf(row) {
  const said = `user: ${row.prompt}\n`;
  return row.completion.startsWith(said) ? row.completion.slice(said.length) : row.completion;
}

// A cell of a CSV file (RFC 4180). A spreadsheet would run a text that begins like a formula: it gets an apostrophe before it
function csvCell(value) {
  if (value === null || value === undefined) return "";
  if (isNumber(value)) return String(value);
  const text = /^[=+\-@\t\r\n]/.test(value) ? `'${value}` : String(value);
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

async function saveCsv(number, query) {
  const lines = [[...COLUMNS.map((name) => name.replace(/_$/, "")), "link"].join(",")], page = location.protocol === "file:" ? "file://" : location.origin;
  let total = 1, done = 0, last = "";
  while (done < total) { // in pieces; what is recorded meanwhile is left out
    const piece = await ask(number, "export", { ...query, offset: done, last });
    if (!piece.rows.length) break;
    for (const row of piece.rows) lines.push([...COLUMNS.map((name) => csvCell(name === "update_" ? row.update_ ?? row.update : row[name])),
      csvCell(`${page}${location.pathname}${responseOf(number, row)}`)].join(","));
    done += piece.rows.length;
    total = piece.total;
    last = last || String(piece.last ?? "");
    say(`${thousands(done)} of ${thousands(total)} responses`);
  }
  save(new Blob([lines.join("\r\n"), "\r\n"], { type: "text/csv" }), `responses_${state.runs[number].label}.csv`);
}

async function rollouts(query) {
  const number = runOf(query), run = state.runs[number], { sources, rollouts: recorded } = run.facts;
  const found = await ask(number, "rollouts", query);
  const filters = h("div", { class: "bar", role: "search" }, runPicker(query),
    field(query, "q", { type: "search", placeholder: "Text in prompt or answer", "aria-label": "Text" }),
    h("label", {}, "iteration ", field(query, "iteration", { type: "number", min: 0, max: run.facts.last, "aria-label": "Iteration" })),
    sources.length ? choice(query, "source", "source", [["", "all"], ...sources.map((name) => [name, name])]) : null,
    choice(query, "finish", "end", [["", "any"], ...ENDS.map((name) => [name, name])]),
    h("label", {}, "reward ", field(query, "least", { type: "number", step: "any", "aria-label": "Reward at least" }), " to ",
      field(query, "most", { type: "number", step: "any", "aria-label": "Reward at most" })),
    tick(query, "live", "A ≠ 0"), tick(query, "clipped", "clipped"),
    h("span", { class: "quiet", id: "total" }, `${thousands(found.total)} response${found.total === 1 ? "" : "s"}`),
    FILTERS.some((name) => query[name]) ? h("a",
      { href: address("rollouts", { run: query.run, sort: query.sort, up: query.up }) }, "all") : null,
    found.total ? h("button", { type: "button", id: "csv", title: "These responses in this order, with their whole texts",
      onclick: () => saveCsv(number, query).catch((error) => say(`The file could not be made: ${error.message}`)) }, "Save as CSV") : null);
  const sort = query.sort || "iteration";
  const head = HEADS.map(([name, label, title]) => {
    const sorted = name && sort === name, arrow = sorted ? (query.up ? " ▴" : " ▾") : "";
    const order = () => change({ sort: name, up: sorted && !query.up ? "1" : "", offset: "" });
    return h("th",
      { scope: "col", class: name ? "num" : null, title: title || null,
        "aria-sort": sorted ? (query.up ? "ascending" : "descending") : null },
      name ? h("button", { type: "button", onclick: order }, label + arrow) : label);
  });
  const shown = withoutCommon(found.rows.map((row) => endOf(row.prompt)));
  const rows = found.rows.map((row, i) => {
    const target = groupOf(number, row), again = i > 0 && row.prompt === found.rows[i - 1].prompt;
    return h("tr", { class: "open", onclick: () => { location.hash = target; } },
      h("td", { class: "num" }, h("a", { href: target }, String(row.iteration)), " ",
        h("a", { class: "more", href: responseOf(number, row), "aria-label": `Sample ${row.sample} of iteration ${row.iteration} in full`,
          onclick: (event) => event.stopPropagation() }, `#${row.sample}`)),
      h("td", { class: again ? "quiet" : null }, words(shown(endOf(row.prompt)))), h("td", {}, words(answerOf(row))),
      h("td", { class: "num" }, h("span", { class: rewardClass(row.reward) }, rewardText(row.reward))),
      h("td", { class: "num" }, signed(row.advantage, 2)),
      h("td", { class: "num" }, signed(row.log_s, 4)), h("td", { class: "short" }, clipMark(row.clip)),
      h("td", { class: "num" }, short(row.length)),
      h("td", { class: "num" }, short(row.age)), h("td", { class: "short" }, words(row.finish)));
  });
  const { offset } = found, end = Math.min(found.total, offset + 100);
  const turn = (to, label) => h("button",
    { type: "button", disabled: to < 0 || to >= found.total, onclick: () => change({ offset: to || "" }) }, label);
  main.replaceChildren(...[
    h("h2", {}, "Responses in training"),
    recorded ? null : warning("No responses are recorded in this run: data.record_tokens records some of every iteration."),
    filters, found.total ? table("Responses", head, rows) : recorded ? note("No response fits these filters.") : null,
    found.total > 100 ? h("div", { class: "bar" }, turn(offset - 100, "Previous"), turn(offset + 100, "Next"),
      `${thousands(offset + 1)} to ${thousands(end)} of ${thousands(found.total)}`) : null,
  ].filter(Boolean));
}
