// The table of recorded responses: filters, orders, pages.
"use strict";

const HEADS = [
  ["iteration", "iteration", "Iteration of the run, from 0"], ["", "prompt"], ["", "answer of the policy"],
  ["reward", "reward"], ["advantage", "A", "Advantage: above 0 the answer is made more likely"],
  ["log_s", "log s_i", "Mean log-ratio of the response to the old policy, in nats; sorted by size"], ["", "clip"],
  ["length", "tokens"], ["age", "age", "Updates between the weights that sampled it and those that trained on it"], ["", "end"],
];

function runPicker(query) {
  if (state.runs.length < 2) return null;
  return choice(query, "run", "run", state.runs.map((run) => [String(run.number), run.label]), "0");
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

async function rollouts(query) {
  const number = Number(query.run || 0), run = state.runs[number], { sources, rollouts: recorded } = run.facts;
  const found = await ask(number, "rollouts", query);
  const filters = h("div", { class: "bar", role: "search" }, runPicker(query),
    field(query, "q", { type: "search", placeholder: "Text in prompt or answer", "aria-label": "Text" }),
    h("label", {}, "iteration ", field(query, "iteration", { type: "number", min: 0, max: run.facts.last, "aria-label": "Iteration" })),
    sources.length ? choice(query, "source", "source", [["", "all"], ...sources.map((name) => [name, name])]) : null,
    tick(query, "live", "A ≠ 0"), tick(query, "clipped", "clipped"),
    h("span", { class: "quiet", id: "total" }, `${thousands(found.total)} response${found.total === 1 ? "" : "s"}`),
    ["q", "iteration", "source", "live", "clipped", "prompt_id", "choice"].some((name) => query[name]) ? h("a",
      { href: address("rollouts", { run: query.run, sort: query.sort, up: query.up }) }, "all") : null);
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
      h("td", { class: "num" }, h("a", { href: target }, String(row.iteration))),
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
