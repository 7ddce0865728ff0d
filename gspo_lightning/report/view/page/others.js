// Held-out answers before and after, settings that differ, machine and versions.
"use strict";

// --- held-out answers -------------------------------------------------------------------------------------------------------

const FATES = { became_right: "became right", became_wrong: "became wrong", stayed_right: "stayed right", stayed_wrong: "stayed wrong" };

function fateOf(before, after) {
  if (!before || !after || !isNumber(before.reward) || !isNumber(after.reward)) return "";
  const right = solved(after.reward);
  return solved(before.reward) === right ? (right ? "stayed_right" : "stayed_wrong") : right ? "became_right" : "became_wrong";
}

function heldOutCell(row) {
  if (!row) return h("td", {}, "–");
  const right = solved(row.reward), mark = right ? "✓ " : row.reward > 0 ? "" : "✗ ";
  return h("td", {}, long(row.completion, `Held-out answer after update ${thousands(row.update)}`),
    h("div", { class: right ? "ok" : row.reward > 0 ? "quiet" : "wrong" },
      `${mark}reward ${rewardText(row.reward)}, ${short(row.tokens)} tokens`));
}

async function answers(query) {
  const number = runOf(query);
  const [{ rows }, prompts] = await Promise.all([ask(number, "answers"), ask(number, "prompts")]);
  const updates = [...new Set(rows.map((row) => row.update))].sort((a, b) => a - b), ids = [...new Set(rows.map((row) => row.id))];
  const shown = query.all || updates.length <= 4 ? updates : [updates[0], ...updates.slice(-3)];
  const of = (id) => rows.filter((row) => row.id === id), at = (id, update) => of(id).find((row) => row.update === update);
  const fates = new Map(ids.map((id) => [id, fateOf(at(id, updates[0]), updates.length > 1 ? at(id, updates.at(-1)) : null)]));
  const count = (fate) => [...fates.values()].filter((found) => found === fate).length;
  const cut = withoutCommon(ids.map((id) => of(id)[0].prompt));
  const body = ids.filter((id) => !query.fate || fates.get(id) === query.fate).map((id) => {
    const first = of(id)[0];
    return h("tr", {},
      h("td", {}, pictures(number, first), long(cut(first.prompt), "Prompt"),
        h("div", { class: "quiet" }, "known answer ", words(asText(first.answer ?? ""))),
        fates.get(id) ? h("span", { class: `chip ${fates.get(id)}` }, FATES[fates.get(id)]) : null),
      shown.map((update) => heldOutCell(at(id, update))));
  });
  const head = [h("th", { scope: "col" }, "prompt"),
    ...shown.map((update) => h("th", { scope: "col" }, update ? `after update ${thousands(update)}` : "before training"))];
  main.replaceChildren(
    h("h2", {}, "Held-out answers, before and after"),
    h("div", { class: "bar" }, runPicker(query),
      updates.length > 1 ? choice(query, "fate", "show",
        [["", `all ${ids.length}`], ...Object.entries(FATES).map(([name, label]) => [name, `${label}: ${count(name)}`])]) : null,
      updates.length > 4 ? tick(query, "all", `all ${updates.length} evaluations`) : null,
      rows.length ? quiet(`${ids.length} held-out prompts are followed: ${count("became_right")} became right, ${count("became_wrong")} became wrong`) : null),
    rows.length ? table("Held-out answers", head, body) : note("This run has no held-out answers."),
    h("h2", {}, "Training prompts that came by more than once"),
    prompts.rows.length ? promptList(number, prompts.rows) : note("None was recorded twice: every prompt came by once."));
}

function promptList(number, rows) {
  const cut = withoutCommon(rows.map((row) => row.prompt));
  const head = ["prompt", "iterations", "mean reward"].map((label, i) => h("th", { scope: "col", class: i ? "num" : null }, label));
  return table("Training prompts", head,
    rows.map((row) => h("tr", {}, h("td", {},
      h("a", { href: address("prompt", { run: number, prompt_id: row.prompt_id }) }, words(cut(row.prompt)))),
    h("td", { class: "num" }, thousands(row.iterations)), h("td", { class: "num" }, rewardText(row.reward)))));
}

// --- settings and machine -----------------------------------------------------------------------------------------------------

const MACHINE = [["seconds", "seconds"], ["peak_memory_mb", "peak memory, MB"], ["device", "device"], ["ranks", "ranks"],
  ["precision", "precision"], ["processors", "processors"], ["threads", "threads"], ["platform", "platform"]];

// A name of a setting breaks after its dots only, a value there first
const breakable = (name, kind = null) => h("span", { class: kind }, name.split(/(?<=[._])/).flatMap((part) => [part, h("wbr")]));

// Settings by the first part of their names: model, data, trainer
function groupsOf(names) {
  const groups = new Map();
  for (const name of names) groups.set(name.split(".")[0], [...(groups.get(name.split(".")[0]) || []), name]);
  const many = [...groups].filter(([, some]) => some.length > 1), alone = [...groups].filter(([, some]) => some.length < 2);
  return [...(alone.length ? [["the run", alone.flatMap(([, some]) => some)]] : []), ...many];
}

function settingsOf(title, names, count, drawn) {
  const key = `settings ${title}`, open = folded.has(key) ? folded.get(key) : count <= 40;
  const details = h("details", { class: "section", open },
    h("summary", { onclick: () => folded.set(key, !details.open) }, h("h3", {}, words(title)), quiet(`${names.length} setting${names.length === 1 ? "" : "s"}`)), drawn);
  return details;
}

async function config(query) {
  const runs = shownRuns(), names = [...new Set(runs.flatMap((run) => Object.keys(run.config)))].sort();
  const settingOf = (run, name) => (Object.hasOwn(run.config, name) ? asText(run.config[name]) : "–");
  const differs = (name) => new Set(runs.map((run) => settingOf(run, name))).size > 1;
  const onlyDifferent = runs.length > 1 && !query.all, text = (query.find || "").toLowerCase();
  const shown = names.filter((name) => (!onlyDifferent || differs(name)) && name.toLowerCase().includes(text));
  const versions = [...new Set(runs.flatMap((run) => Object.keys(run.versions)))];
  const head = (label) => [h("th", { scope: "col" }, label),
    ...runs.map((run) => h("th", { scope: "col" }, swatch(run), " ", words(run.label)))];
  const row = (name, values) => h("tr", {}, h("th", { scope: "row", class: "mono setting" }, breakable(name)),
    values.map((value) => h("td", { class: "mono" }, isLong(value) ? long(value, name) : breakable(value, "text"))));
  const facts = [["folder", (run) => run.folder],
    ...MACHINE.filter(([name]) => runs.some((run) => Object.hasOwn(run.machine, name))).map(([name, label]) => [label,
      (run) => (isNumber(run.machine[name]) ? short(run.machine[name]) : String(run.machine[name] ?? "–"))])];
  main.replaceChildren(
    h("h2", {}, onlyDifferent ? "Settings that differ" : "Settings"),
    h("div", { class: "bar" },
      field(query, "find", { type: "search", placeholder: "Part of a setting's name", "aria-label": "Find settings" }),
      runs.length > 1 ? tick(query, "all", "equal ones, too") : null, quiet(`${shown.length} of ${names.length} settings`)),
    ...shown.length ? groupsOf(shown).map(([title, some]) => settingsOf(title, some, shown.length, table(`Settings of ${title}`, head("setting"),
      some.map((name) => row(name, runs.map((run) => settingOf(run, name))))))) : [note(text ? "No setting has that in its name." : "No setting differs.")],
    h("h2", {}, "Machine and versions"),
    table("Machine and versions", head("what"),
      [...facts.map(([name, value]) => row(name, runs.map(value))),
        ...versions.map((name) => row(name, runs.map((run) => (Object.hasOwn(run.versions, name) ? String(run.versions[name]) : "–"))))]));
}
