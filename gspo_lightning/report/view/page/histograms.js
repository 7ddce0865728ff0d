// Histograms of ratios by the sign of the advantage, over the clip zones.
"use strict";

const BARS = 60;

// Bars of equal width on the axis of ratios, none of which lies across an edge of the clip range
function barEdges(most, unit, edge) {
  const cuts = edge ? [-most, -edge.low, edge.high, most] : [-most, 0, most], found = [];
  cuts.slice(1).forEach((end, i) => {
    const from = bent(cuts[i], unit), to = bent(end, unit), count = Math.max(2, Math.round((BARS * (to - from)) / (2 * bent(most, unit))));
    for (let k = 0; k < count; k += 1) found.push([from + (k / count) * (to - from), from + ((k + 1) / count) * (to - from)]);
  });
  return found;
}

// Counts of recorded bins, dealt out to the bars: a bin that lies across bars is divided by its width on the axis
function barsOf(counts, edges, bars, unit, most) {
  const heights = bars.map(() => 0), reach = bent(most, unit);
  counts.forEach((count, i) => {
    if (!count) return;
    const low = Math.max(-reach, Math.min(reach, i ? bent(edges[i - 1], unit) : -reach)), high = Math.min(reach, bent(edges[i], unit));
    const exact = high - low < 1e-12 ? Math.min(low, reach - 1e-9) : null;
    bars.forEach(([from, to], k) => {
      const share = exact === null ? Math.max(0, Math.min(high, to) - Math.max(low, from)) / (high - low) : Number(exact >= from && exact < to);
      heights[k] += count * share;
    });
  });
  return heights;
}

// How far the axis goes: as far as any recorded update does, so that it stays while one goes through them
function farthest(updates, edges) {
  let most = 0;
  for (const update of updates) for (const side of [update.positive, update.negative]) side.forEach((count, i) => {
    if (count) most = Math.max(most, Math.abs(edges[i]), i ? Math.abs(edges[i - 1]) : 0);
  });
  return most;
}

function histogramChart({ update, edges, band, most, title, level, paper = false, width = wide(paper), height = 170 }) {
  const { root, box } = frame({ title: `${title}, update ${update.update}`, unit: "", xLabel: `ratio of a ${level} to the old policy`, paper, width, height });
  const edge = bounds(band), unit = edge ? Math.max(edge.low, edge.high) : Math.max(most / 100, 1e-5);
  const reach = Math.max(4 * unit, most * 1.1), left = 74, inner = box.width - left - box.right;
  const at = (place) => left + (inner / 2) * (1 + place / bent(reach, unit)), px = (value) => at(bent(value, unit));
  const middle = (box.top + box.height - box.bottom) / 2, half = middle - box.top;
  if (edge) root.append(
    svg("rect", { class: "band", x: px(-edge.low), width: px(edge.high) - px(-edge.low), y: box.top, height: 2 * half, fill: HEALTHY, "fill-opacity": 0.18 }),
    svg("rect", { class: "zone", x: px(edge.high), width: left + inner - px(edge.high), y: box.top, height: half, fill: UP, "fill-opacity": 0.12 }),
    svg("rect", { class: "zone", x: left, width: px(-edge.low) - left, y: middle, height: half, fill: DOWN, "fill-opacity": 0.12 }));
  const bars = barEdges(reach, unit, edge), sides = [update.positive, update.negative].map((counts) => barsOf(counts, edges, bars, unit, reach));
  const top = Math.max(...sides.flat()) || 1;
  sides.forEach((heights, side) => heights.forEach((count, i) => {
    if (!count) return;
    const size = Math.max(0.8, (count / top) * (half - 6)), x = at(bars[i][0]), inZone = edge && (side ? at(bars[i][1]) <= px(-edge.low) + 0.01 : x >= px(edge.high) - 0.01);
    root.append(svg("rect", { class: "bar", "data-sign": side ? "negative" : "positive", x: x + 0.3, width: Math.max(0.8, at(bars[i][1]) - x - 0.6),
      y: side ? middle : middle - size, height: size, fill: inZone ? (side ? DOWN : UP) : box.quiet }));
  }));
  root.append(svg("line", { x1: left, x2: left + inner, y1: middle, y2: middle, stroke: box.quiet, "stroke-width": 0.8 }));
  [["A > 0", update.positive, middle - half / 2], ["A < 0", update.negative, middle + half / 2]].forEach(([label, counts, y]) => root.append(
    svg("text", { ...FONT, x: left - 8, y, fill: box.quiet, "text-anchor": "end" }, label),
    svg("text", { ...FONT, x: left - 8, y: y + 13, fill: box.quiet, "text-anchor": "end" }, thousands(Math.round(counts.reduce((sum, count) => sum + count, 0))))));
  if (edge) root.append(
    svg("text", { ...FONT, x: left + inner - 4, y: box.top + 12, fill: box.quiet, "text-anchor": "end" }, "clips"),
    svg("text", { ...FONT, x: left + 4, y: box.height - box.bottom - 5, fill: box.quiet }, "clips"));
  for (const value of bentTicks(reach, edge || { low: unit, high: unit })) box.columnOf(px(value), sText(value));
  if (!paper) tellBars(root, box, { bars, sides, at, unit });
  return root;
}

function tellBars(root, box, { bars, sides, at, unit }) {
  const show = bubble(root, box), straight = (place) => Math.sign(place) * Math.expm1(Math.abs(place)) * unit;
  let now = Math.floor(bars.length / 2) - 1;
  const tell = (i) => {
    now = Math.max(0, Math.min(bars.length - 1, i));
    const [from, to] = bars[now];
    show((at(from) + at(to)) / 2, [{ words: `ratio ${sText(straight(from))} to ${sText(straight(to))}` },
      { words: `A > 0: ${short(sides[0][now])}` }, { words: `A < 0: ${short(sides[1][now])}` }]);
  };
  root.addEventListener("pointermove", (event) => {
    const [x] = within(root, box, event);
    tell(bars.findIndex(([, to]) => at(to) >= x));
  });
  steer(root, (step) => tell(now + step));
}

// A figure with a slider over the updates whose histograms were written
function histogramFigure(run, { level, edges, updates, band }) {
  const several = state.shown.size > 1 ? `, ${run.label}` : "", title = `ratios of ${level}s by the sign of A${several}`, most = farthest(updates, edges);
  const told = [
    h("p", {}, `All ${level}s of an update, recorded or not, by their ratio to the old policy: those with A > 0 above the line, those with A < 0 below. ` +
      "Shaded: where one of that sign clips and has no gradient; bars there are coloured. Green: the clip range."),
    h("p", {}, "A bin that lies across an edge of the range is divided by its width, so shares at the edges are approximate. " +
      "The first mini-batch of an iteration has all ratios at 1. model.histogram_every says how often they are written."),
    band ? null : h("p", {}, "No zone is drawn: no range was recorded, or this objective clips something else than this ratio."),
  ].filter(Boolean);
  const later = updates.findLastIndex((update) => update.mini_batch);
  let at = later < 0 ? updates.length - 1 : later;
  const draw = (more) => histogramChart({ update: updates[at], edges, band, most, title, level, ...more });
  const drawn = figure({ name: `histogram_${run.number}`, title, told, draw, wide: true });
  const place = () => {
    const { update, iteration, mini_batch: part } = updates[at];
    return `update ${thousands(update)}${isNumber(iteration) ? `, iteration ${thousands(iteration)}` : ""}${isNumber(part) ? `, mini-batch ${part + 1}` : ""}`;
  };
  const output = h("output", {}, place());
  const slider = h("input", { type: "range", min: 0, max: updates.length - 1, step: 1, "aria-label": `Update of ${title}`, "aria-valuetext": place() });
  slider.value = at;
  slider.addEventListener("input", () => {
    at = Number(slider.value);
    output.textContent = place();
    slider.setAttribute("aria-valuetext", place());
    drawn.querySelector(":scope > svg").replaceWith(draw({}));
  });
  drawn.querySelector(":scope > svg").after(h("div", { class: "slider" }, updates.length > 1 ? slider : null, output));
  return drawn;
}
