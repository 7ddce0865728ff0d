// Figures as plain SVG. A figure carries its colours in attributes, so that it looks the same when it is saved.
"use strict";

const SVG = "http://www.w3.org/2000/svg";
// Okabe and Ito's colours, which people with any colour vision tell apart; dashes tell them apart without colour
const COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8a6d00", "#56b4e9", "#e69f00", "#6e6e6e"];
const DASHES = ["", "6 3", "2 3", "8 3 2 3"];
const UP = "#d55e00", DOWN = "#0072b2", HEALTHY = "#2da44e";
const FONT = { "font-family": "system-ui, sans-serif", "font-size": 11 };

function svg(tag, attributes, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes || {})) if (value !== null && value !== undefined) element.setAttribute(name, value);
  element.append(...children.flat().filter(Boolean));
  return element;
}

// Colours of the page, or of a paper: black on white
function palette(paper) {
  if (paper) return { ink: "#111111", quiet: "#444444", rule: "#dddddd", ground: "#ffffff", bad: "#a40e26" };
  const of = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  return { ink: of("--ink"), quiet: of("--quiet"), rule: of("--rule"), ground: of("--ground"), bad: of("--bad") };
}

function swatchOf(colour, dash) {
  const line = svg("line", { x1: 1, x2: 17, y1: 6, y2: 6, stroke: colour, "stroke-width": 3, "stroke-dasharray": dash || null });
  return svg("svg", { class: "swatch", width: 18, height: 12, "aria-hidden": "true" }, line);
}
const swatch = (run) => swatchOf(colourOfRun(run), dashOfRun(run));

function ticks(low, high, count) {
  const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw), found = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step * 1e-9; value += step) found.push(Math.abs(value) < step * 1e-6 ? 0 : value);
  return found;
}

// A single update has the only tick: there is no update before 0, and none between two
const updateTicks = (first, last, count) => (first === last ? [first]
  : ticks(first, last, count).map((x) => (Math.abs(x - Math.round(x)) < 1e-6 ? Math.round(x) : x)).filter(Number.isInteger));

// The frame that figures share: ground, title and legend of a saved figure, ticks and their labels
function frame({ title, unit, xLabel, paper, width, height, legend = [] }) {
  const colours = palette(paper), head = paper ? 26 + 16 * legend.length : 8;
  const box = { left: 54, right: 12, top: head, bottom: paper ? 40 : 24, width, height: height + (paper ? head + 16 : 0), ...colours };
  const root = svg("svg",
    { viewBox: `0 0 ${box.width} ${box.height}`, role: "img", "aria-label": title, xmlns: SVG, tabindex: paper ? null : "0" },
    svg("rect", { width: box.width, height: box.height, fill: box.ground }));
  if (paper) {
    root.append(svg("text", { ...FONT, x: box.left, y: 17, fill: box.ink, "font-weight": "bold" }, unit ? `${title} [${unit}]` : title));
    legend.forEach(({ label, colour, dash }, i) => root.append(
      svg("line",
        { x1: box.left, x2: box.left + 24, y1: 30 + 16 * i, y2: 30 + 16 * i, stroke: colour, "stroke-width": 2,
          "stroke-dasharray": dash || null }),
      svg("text", { ...FONT, x: box.left + 30, y: 34 + 16 * i, fill: box.ink }, label)));
    root.append(svg("text",
      { ...FONT, x: (box.left + box.width - box.right) / 2, y: box.height - 8, fill: box.quiet, "text-anchor": "middle" }, xLabel));
  }
  const rows = [], columns = [];
  const free = (taken, at, size) => taken.every((other) => Math.abs(other - at) >= size) && taken.push(at); // the first of labels that would meet
  box.rowOf = (y, label) => {
    root.append(svg("line", { x1: box.left, x2: box.width - box.right, y1: y, y2: y, stroke: box.rule }));
    if (free(rows, y, 12)) root.append(svg("text", { ...FONT, x: box.left - 6, y: y + 4, fill: box.quiet, "text-anchor": "end" }, label));
  };
  box.columnOf = (x, label) => {
    if (free(columns, x, 7 * label.length + 4)) root.append(svg("text",
      { ...FONT, x, y: box.height - box.bottom + 16, fill: box.quiet, "text-anchor": "middle" }, label));
  };
  return { root, box };
}

function nothing(root, box) {
  root.append(svg("text", { ...FONT, x: box.width / 2, y: box.height / 2, fill: box.quiet, "text-anchor": "middle" }, "no values"));
  return root;
}

// --- curves -------------------------------------------------------------------------------------------------------------

// Exponential moving average without the bias of its start; on a log scale it is that of the logarithms, or it would leave the plot
function smoothed(values, weight, log) {
  let sum = 0, mass = 0;
  return values.map((value) => {
    if (value === null || value === undefined || (log && value <= 0)) return null;
    sum = weight * sum + (1 - weight) * (log ? Math.log10(value) : value);
    mass = weight * mass + (1 - weight);
    return log ? 10 ** (sum / mass) : sum / mass;
  });
}

// Lower and upper end of each point's interval or range, where it has one
const spreadOf = (s) => s.x.map((_, i) => (s.range ? [s.range[0][i], s.range[1][i]]
  : s.error && isNumber(s.error[i]) && isNumber(s.y[i]) ? endsOf(s, i) : [null, null]));
// An interval of an accuracy ends where accuracies do
const endsOf = ({ y, error, least = -Infinity, most = Infinity }, i) => [Math.max(least, y[i] - error[i]), Math.min(most, y[i] + error[i])];

function extent(values) {
  let low = Infinity, high = -Infinity;
  for (const value of values) { if (value < low) low = value; if (value > high) high = value; }
  return [low, high];
}

// The part of a figure in which curves are drawn: what lies outside of it, of a zoomed one, is cut
let plots = 0;
function clipTo(root, box) {
  const id = `plot-${(plots += 1)}`, size = { x: box.left, width: box.width - box.left - box.right, y: box.top, height: box.height - box.top - box.bottom };
  root.append(svg("defs", {}, svg("clipPath", { id }, svg("rect", size))));
  return `url(#${id})`;
}

// Lowest and highest value that is drawn between two updates: of points, smoothed lines and spreads
function heights(lines, first, last, usable) {
  const ys = [];
  for (const { x, y, drawn, spread } of lines) x.forEach((at, i) => {
    if (at >= first && at <= last) ys.push(...[y[i], drawn[i], ...spread[i]].filter(usable));
  });
  return ys;
}

// series: [{label, colour, dash, x: [], y: [], error: [] or null, range: [low [], high []] or null }]; marks: [{x, label, kind }];
// band: [low, high] or null; zoom: { range: [first, last] or null, set } or null
function lineChart(known) {
  const { title, unit, xLabel, series, band = null, marks = [], smooth = 0, log = false, open = null, paper = false, zoom = null } = known;
  const { width = 420, height = 190 } = known;
  const { root, box } = frame({ title, unit, xLabel, paper, width, height, legend: series.length > 1 ? series : [] });
  const usable = (y) => isNumber(y) && (!log || y > 0);
  const lines = series.map((s) => ({ ...s, drawn: smooth ? smoothed(s.y, smooth, log) : s.y, spread: spreadOf(s) }));
  const all = extent(series.flatMap((s) => s.x));
  let [first, last] = (zoom && zoom.range) || all, ys = heights(lines, first, last, usable);
  if (!ys.length) ys = heights(lines, ...all, usable); // between two evaluations, say
  if (!ys.length) return nothing(root, box);
  let [low, high] = extent(ys);
  for (const edge of band || []) { // the edge of the healthy range is in view if it is near
    const near = edge !== null && edge > low - (high - low || 1) && edge < high + (high - low || 1);
    if (near && (!log || edge > 0)) [low, high] = [Math.min(low, edge), Math.max(high, edge)];
  }
  const bend = log ? Math.log10 : (value) => value;
  if (nearlyEqual(low, high)) { low -= Math.abs(low) * 0.1 || 0.5; high += Math.abs(high) * 0.1 || 0.5; }
  const columns = updateTicks(first, last, 6);
  if (first === last) { first -= 1; last += 1; }
  let [bottom, top] = [bend(low), bend(high)];
  const pad = (top - bottom) * 0.06;
  bottom -= pad; top += pad;
  const px = (x) => box.left + ((x - first) / (last - first)) * (box.width - box.left - box.right);
  const py = (y) => box.top + (1 - (bend(y) - bottom) / (top - bottom)) * (box.height - box.top - box.bottom);
  const within = (y) => Math.min(box.height - box.bottom, Math.max(box.top, y));
  if (band) {
    const from = band[0] === null ? -Infinity : band[0], to = band[1] === null ? Infinity : band[1];
    const y1 = to === Infinity ? box.top : log && to <= 0 ? box.height - box.bottom : within(py(to));
    const y2 = from === -Infinity || (log && from <= 0) ? box.height - box.bottom : within(py(from));
    if (y2 > y1) root.append(svg("rect",
      { class: "band", x: box.left, width: box.width - box.left - box.right, y: y1, height: y2 - y1, fill: HEALTHY, "fill-opacity": 0.13 }));
  }
  const powers = log && top - bottom > 1 ? ticks(Math.ceil(bottom), top, 4).filter(Number.isInteger).map((power) => 10 ** power) : null;
  const rows = powers || ticks(low, high, 4).filter((y) => !log || y > 0);
  for (const y of rows) box.rowOf(py(y), short(y));
  for (const x of columns) box.columnOf(px(x), thousands(x));
  drawMarks(root, box, marks.filter((mark) => mark.x >= first && mark.x <= last), px);
  const clip = clipTo(root, box);
  for (const line of lines) drawLine(root, line, { px, py, floor: box.height - box.bottom, usable, smooth, clip, first, last });
  if (!paper) hover(root, box, { series, first, last, all, px, open, zoom, xLabel });
  return root;
}

function drawMarks(root, box, marks, px) {
  for (const mark of marks) {
    const colour = mark.kind === "alarm" ? box.bad : box.quiet, x = px(mark.x);
    root.append(svg("g", { class: "mark" }, svg("title", {}, mark.label),
      svg("line",
        { x1: x, x2: x, y1: box.top, y2: box.height - box.bottom, stroke: colour, "stroke-dasharray": "2 3", "stroke-width": 1.5 }),
      svg("text", { ...FONT, x, y: box.top + 9, fill: colour, "text-anchor": "middle" }, mark.kind === "alarm" ? "!" : "▾")));
  }
}

function drawLine(root, s, { px, py, floor, usable, smooth, clip, first, last }) {
  const place = (x, y) => `${px(x).toFixed(1)},${py(y).toFixed(1)}`;
  if (s.error || s.range) { // on a log scale what reaches to 0 or below reaches to the lower edge
    const known = s.x.map((x, i) => [x, ...s.spread[i]]).filter(([, low, high]) => isNumber(low) && usable(high));
    const points = [...known.map(([x, , high]) => place(x, high)),
      ...known.reverse().map(([x, low]) => (usable(low) ? place(x, low) : `${px(x).toFixed(1)},${floor}`))];
    const edge = s.range ? { stroke: s.colour, "stroke-opacity": 0.35, "stroke-width": 0.7 } : {}; // one high update is seen
    root.append(svg("polygon", { points: points.join(" "), fill: s.colour, "fill-opacity": 0.15, "clip-path": clip, ...edge }));
  }
  const draw = (values, more) => {
    let path = "", pen = "M";
    s.x.forEach((x, i) => {
      if (!usable(values[i])) { pen = "M"; return; }
      path += `${pen}${place(x, values[i]).replace(",", " ")}`;
      pen = "L";
    });
    root.append(svg("path",
      { d: path, fill: "none", stroke: s.colour, "stroke-width": 1.7, "stroke-dasharray": s.dash || null, "stroke-linejoin": "round",
        "clip-path": clip, ...more }));
  };
  if (smooth) draw(s.y, { "stroke-opacity": 0.3, "stroke-width": 1 });
  draw(s.drawn, {});
  if (s.x.length <= 12) s.x.forEach((x, i) => usable(s.y[i]) && x >= first && x <= last && root.append(svg("circle",
    { cx: px(x), cy: py(s.y[i]), r: 2.6, fill: s.colour })));
}

// A line and a box of words over a figure
function bubble(root, box) {
  const line = svg("line", { y1: box.top, y2: box.height - box.bottom, stroke: box.ink, "stroke-width": 0.8 });
  const back = svg("rect", { fill: box.ground, stroke: box.rule, rx: 4 }), text = svg("text", { ...FONT, fill: box.ink });
  const layer = svg("g", { visibility: "hidden", class: "hover", "pointer-events": "none" }, line, back, text);
  root.append(layer);
  const show = (place, rows) => {
    line.setAttribute("x1", place); line.setAttribute("x2", place);
    text.replaceChildren(...rows.map(({ words, colour }, i) => svg("tspan", { x: 0, dy: i ? 14 : 0, "font-weight": i ? "normal" : "bold" },
      colour ? svg("tspan", { fill: colour }, "■ ") : "", words)));
    layer.setAttribute("visibility", "visible");
    const size = text.getBBox(), x = place + size.width + 20 > box.width ? place - size.width - 12 : place + 10;
    for (const row of text.children) row.setAttribute("x", Math.max(4, x));
    text.setAttribute("y", box.top + 14);
    for (const [name, value] of Object.entries({ x: Math.max(4, x) - 5, y: box.top + 1, width: size.width + 10,
      height: size.height + 6 })) back.setAttribute(name, value);
  };
  const hide = () => layer.setAttribute("visibility", "hidden");
  root.addEventListener("pointerleave", hide);
  root.addEventListener("blur", hide);
  return show;
}

// Where a pointer is, in the units of a figure
function within(root, box, event) {
  const seen = root.getBoundingClientRect();
  return [((event.clientX - seen.left) / seen.width) * box.width, ((event.clientY - seen.top) / seen.height) * box.height];
}

function steer(root, by, enter) {
  root.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step) by(step);
    else if (event.key === "Enter" && enter) enter();
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  if (enter) root.addEventListener("click", enter);
}

function hover(root, box, { series, first, last, all, px, open, zoom, xLabel }) {
  const bubbleAt = bubble(root, box);
  let at = last;
  const show = (update) => {
    at = Math.min(last, Math.max(first, update));
    const found = series.map((s) => {
      let best = -1;
      s.x.forEach((value, i) => {
        if (s.y[i] !== null && value >= first && value <= last && (best < 0 || Math.abs(value - at) < Math.abs(s.x[best] - at))) best = i;
      });
      return best < 0 ? null : { x: s.x[best], y: s.y[best], s, error: s.error && s.error[best] };
    }).filter(Boolean);
    if (!found.length) return;
    at = found[0].x;
    bubbleAt(px(at), [{ words: `${xLabel} ${thousands(Math.round(at))}` }, ...found.map(({ y, s, error }) => ({
      words: `${short(y)}${isNumber(error) ? ` ± ${short(error)}` : ""}${series.length > 1 ? ` ${s.label.slice(0, 28)}` : ""}`,
      colour: series.length > 1 ? s.colour : "",
    }))]);
  };
  const updateAt = (event) => first + ((within(root, box, event)[0] - box.left) / (box.width - box.left - box.right)) * (last - first);
  root.addEventListener("pointermove", (event) => show(updateAt(event)));
  const dragged = zoom ? zooming(root, box, { first, last, all, px, updateAt, zoom, at: () => at }) : () => false;
  steer(root, (step) => show(at + (step * (last - first)) / 40), open && (() => dragged() || open(at)));
}

// --- ratios -------------------------------------------------------------------------------------------------------------

// The width of a figure across the page, so that its letters are as large as others
const wide = (paper) => (paper ? 640 : Math.max(340, main.clientWidth - 70));

// Linear within the clip range, logarithmic outside of it: the range is seen, and so is what is far away
const bent = (value, unit) => Math.sign(value) * Math.log1p(Math.abs(value) / unit);
const bounds = (band) => (band ? { low: -Math.log1p(-Math.min(band[0], 0.999)), high: Math.log1p(band[1]) } : null);

// Values to label on such an axis: the edges of the range, and powers of ten beyond them
function bentTicks(reach, edge) {
  const found = [edge.high, -edge.low, 0];
  for (let power = Math.floor(Math.log10(edge.high)); 10 ** power <= reach; power += 1) {
    if (10 ** power > 2 * edge.high) found.push(10 ** power);
    if (10 ** power > 2 * edge.low) found.push(-(10 ** power));
  }
  return found;
}

function dotOf(x, y, advantage, clip, ink, size) {
  const colour = clip > 0 ? UP : clip < 0 ? DOWN : ink, up = advantage > 0 ? -1 : 1;
  if (!advantage) return svg("circle", { class: "dot", cx: x, cy: y, r: size / 2, fill: ink, "fill-opacity": 0.35 });
  return svg("path",
    { class: "dot", d: `M${x - size} ${y - (up * size) / 2}h${2 * size}l${-size} ${up * size * 1.6}z`, fill: clip ? colour : "none",
      "fill-opacity": 0.8, stroke: colour, "stroke-width": 1 });
}

// dots: [[update, log s_i, A, clip, iteration, prompt, sample]]; a click opens the group of the nearest one
function ratioChart({ dots, band, title, open, range = null, paper = false, width = wide(paper), height = 230 }) {
  const { root, box } = frame({ title, unit: "nats", xLabel: "update", paper, width, height });
  let [first, last] = range || extent(dots.map((dot) => dot[0]));
  const columns = updateTicks(first, last, 10);
  if (first === last) { first -= 1; last += 1; }
  const sizes = dots.map((dot) => Math.abs(dot[1])), edge = bounds(band), unit = edge ? Math.max(edge.low, edge.high) : Math.max(...sizes) / 10 || 1e-4;
  const most = Math.max(...sizes, 3 * unit) * 1.15, reach = bent(most, unit), inner = box.height - box.top - box.bottom;
  const px = (x) => box.left + 6 + ((x - first) / (last - first)) * (box.width - box.left - box.right - 12);
  const py = (y) => box.top + (inner / 2) * (1 - bent(y, unit) / reach);
  if (edge) root.append(svg("rect",
    { class: "band", x: box.left, width: box.width - box.left - box.right, y: py(edge.high), height: py(-edge.low) - py(edge.high),
      fill: HEALTHY, "fill-opacity": 0.15 }));
  for (const y of edge ? bentTicks(most, edge) : ticks(-most, most, 4)) box.rowOf(py(y), signed(y, y === 0 ? 0 : 3));
  for (const x of columns) box.columnOf(px(x), thousands(x));
  for (const [x, y, advantage, clip] of dots) root.append(dotOf(px(x), py(y), advantage, clip, box.quiet, 3.2));
  if (paper) return root;
  const show = bubble(root, box), order = [...dots].sort((a, b) => Math.abs(b[1]) - Math.abs(a[1]));
  let at = -1;
  const tell = (i) => {
    at = Math.max(0, Math.min(order.length - 1, i));
    const [update, log, advantage, clip, iteration] = order[at];
    show(px(update),
      [{ words: `update ${thousands(update)}, iteration ${thousands(iteration)}` },
        { words: `log s_i ${signed(log, 4)} nats, A ${signed(advantage, 2)}` },
        { words: clip ? `clipped ${clip > 0 ? "high" : "low"}` : "not clipped" }]);
  };
  root.addEventListener("pointermove", (event) => {
    const [x, y] = within(root, box, event), far = (dot) => (px(dot[0]) - x) ** 2 + (py(dot[1]) - y) ** 2;
    tell(order.reduce((best, dot, i) => (far(dot) < far(order[best]) ? i : best), 0));
  });
  steer(root, (step) => tell(at + step), () => at >= 0 && open({ iteration: order[at][4], prompt_id: order[at][5], sample: order[at][6] }));
  return root;
}

// A group on one axis: above the line the responses with A > 0, below it those with A < 0; where each clips is shaded
function groupChart({ rows, band, title, paper = false, width = wide(paper), height = 112 }) {
  const { root, box } = frame({ title, unit: "", xLabel: "s_i, the ratio of a response to the old policy", paper, width, height });
  const edge = bounds(band), unit = Math.max(edge.low, edge.high), most = Math.max(4 * unit,
    ...rows.map((row) => Math.abs(row.log_s))) * 1.2;
  const left = 74, inner = box.width - left - box.right, middle = (box.top + box.height - box.bottom) / 2;
  const px = (value) => left + (inner / 2) * (1 + bent(value, unit) / bent(most, unit));
  const half = middle - box.top;
  root.append(
    svg("rect",
      { class: "band", x: px(-edge.low), width: px(edge.high) - px(-edge.low), y: box.top, height: 2 * half, fill: HEALTHY,
        "fill-opacity": 0.18 }),
    svg("rect", { x: px(edge.high), width: left + inner - px(edge.high), y: box.top, height: half, fill: UP, "fill-opacity": 0.12 }),
    svg("rect", { x: left, width: px(-edge.low) - left, y: middle, height: half, fill: DOWN, "fill-opacity": 0.12 }),
    svg("line", { x1: left, x2: left + inner, y1: middle, y2: middle, stroke: box.quiet, "stroke-width": 0.8 }),
    svg("text", { ...FONT, x: left - 8, y: middle - half / 2 + 4, fill: box.quiet, "text-anchor": "end" }, "A > 0"),
    svg("text", { ...FONT, x: left - 8, y: middle + half / 2 + 4, fill: box.quiet, "text-anchor": "end" }, "A < 0"),
    svg("text", { ...FONT, x: left + inner - 4, y: box.top + 12, fill: box.quiet, "text-anchor": "end" }, "clips"),
    svg("text", { ...FONT, x: left + 4, y: box.height - box.bottom - 5, fill: box.quiet }, "clips"));
  for (const value of bentTicks(most, edge)) box.columnOf(px(value), sText(value));
  const used = [];
  for (const row of rows) { // those that meet are stacked
    const x = px(row.log_s), lane = Math.sign(row.advantage || 0), level = used.filter((one) => one.lane === lane && Math.abs(one.x - x) < 14).length;
    used.push({ x, lane });
    const y = middle - lane * (14 + (level % 3) * 9);
    root.append(svg("g", { class: "member" }, svg("title", {},
      `sample ${row.sample}: s_i ${Math.exp(row.log_s).toFixed(5)}, A ${signed(row.advantage, 2)}`),
      dotOf(x, y, row.advantage, row.clip, box.ink, 4),
      svg("text", { ...FONT, "font-size": 9, x: x + 6, y: y + 3, fill: box.ink }, `${row.sample}`)));
  }
  return root;
}

// A ratio from its logarithm, with as many digits as tell it from 1
const sText = (log) => Math.exp(log).toFixed(log === 0 ? 0 : Math.max(2, Math.min(6, 1 - Math.floor(Math.log10(Math.abs(log))))));

// --- files --------------------------------------------------------------------------------------------------------------

function saveSvg(root, name) {
  save(new Blob([new XMLSerializer().serializeToString(root)], { type: "image/svg+xml" }), `${name}.svg`);
}

function savePng(root, name) {
  const [, , width, height] = root.getAttribute("viewBox").split(" ").map(Number);
  root.setAttribute("width", width * 3);
  root.setAttribute("height", height * 3);
  const image = new Image();
  return new Promise((resolve) => {
    image.onload = () => {
      const canvas = document.createElement("canvas");
      canvas.width = width * 3;
      canvas.height = height * 3;
      canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
      canvas.toBlob((blob) => { save(blob, `${name}.png`); resolve(blob.size); });
    };
    image.src = `data:image/svg+xml,${encodeURIComponent(new XMLSerializer().serializeToString(root))}`;
  });
}

function save(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name.replace(/[^\w.-]+/g, "_");
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
