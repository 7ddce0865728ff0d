// Curves as plain SVG. A figure carries its colours in attributes, so that it looks the same when it is saved.
"use strict";

const SVG = "http://www.w3.org/2000/svg";
// Okabe and Ito's colours, which people with any colour vision tell apart; dashes tell them apart without colour
const COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8a6d00", "#56b4e9", "#e69f00", "#6e6e6e"];
const DASHES = ["", "6 3", "2 3", "8 3 2 3"];

function svg(tag, attributes, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes || {})) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function colourOf(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function short(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e5)) return value.toExponential(1).replace("e+", "e");
  return String(Number(value.toPrecision(3)));
}

function ticks(low, high, count) {
  const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw);
  const found = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step * 1e-9; value += step) found.push(Math.abs(value) < step * 1e-6 ? 0 : value);
  return found;
}

// series: [{label, colour, dash, x: [], y: [], error: [] or null}]; marks: [{x, label, kind}]; band: [low, high] or null
function lineChart({ title, series, band = null, marks = [], width = 480, height = 220 }) {
  const ink = colourOf("--ink"), quiet = colourOf("--quiet"), rule = colourOf("--line"), ground = colourOf("--ground");
  const left = 52, right = 10, top = 10, bottom = 26;
  const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title, xmlns: SVG, tabindex: "0" });
  root.append(svg("rect", { width, height, fill: ground }));
  const xs = series.flatMap((s) => s.x), ys = series.flatMap((s) => s.y).filter((y) => y !== null);
  if (!ys.length) {
    root.append(svg("text", { x: width / 2, y: height / 2, fill: quiet, "text-anchor": "middle", "font-size": 13 }, "not logged"));
    return root;
  }
  let low = Infinity, high = -Infinity, first = Infinity, last = -Infinity;
  for (const y of ys) { if (y < low) low = y; if (y > high) high = y; }
  for (const x of xs) { if (x < first) first = x; if (x > last) last = x; }
  if (band) { // the edge of the healthy range is in view if it is near
    for (const edge of band) if (edge !== null && edge > low - (high - low || 1) && edge < high + (high - low || 1)) { low = Math.min(low, edge); high = Math.max(high, edge); }
  }
  if (low === high) { low -= Math.abs(low) * 0.1 || 0.5; high += Math.abs(high) * 0.1 || 0.5; }
  if (first === last) { first -= 1; last += 1; }
  const pad = (high - low) * 0.05; low -= pad; high += pad;
  const px = (x) => left + ((x - first) / (last - first)) * (width - left - right);
  const py = (y) => top + Math.min(1, Math.max(0, 1 - (y - low) / (high - low))) * (height - top - bottom);
  if (band) {
    const from = band[0] === null ? low : Math.max(low, band[0]), to = band[1] === null ? high : Math.min(high, band[1]);
    if (to > from) root.append(svg("rect", { class: "band", x: left, width: width - left - right, y: py(to), height: py(from) - py(to), fill: "#2da44e", "fill-opacity": 0.12 }));
  }
  for (const y of ticks(low, high, 4)) {
    root.append(svg("line", { x1: left, x2: width - right, y1: py(y), y2: py(y), stroke: rule, "stroke-width": 1 }));
    root.append(svg("text", { x: left - 6, y: py(y) + 4, fill: quiet, "text-anchor": "end", "font-size": 11, "font-family": "sans-serif" }, short(y)));
  }
  for (const x of ticks(first, last, 6)) root.append(svg("text", { x: px(x), y: height - 8, fill: quiet, "text-anchor": "middle", "font-size": 11, "font-family": "sans-serif" }, String(Math.round(x))));
  for (const mark of marks) {
    if (mark.x < first || mark.x > last) continue;
    const colour = mark.kind === "alarm" ? colourOf("--bad") : quiet;
    root.append(svg("line", { class: "mark", x1: px(mark.x), x2: px(mark.x), y1: top, y2: height - bottom, stroke: colour, "stroke-dasharray": "2 3", "stroke-width": 1.5 }, svg("title", {}, mark.label)));
    root.append(svg("text", { x: px(mark.x), y: top + 9, fill: colour, "font-size": 11, "text-anchor": "middle" }, mark.kind === "alarm" ? "!" : "▾"));
  }
  for (const s of series) {
    if (s.error) {
      const known = s.x.map((x, i) => [x, s.y[i], s.error[i]]).filter(([, y, e]) => y !== null && e !== null && e !== undefined);
      const points = [...known.map(([x, y, e]) => [x, y + e]), ...known.reverse().map(([x, y, e]) => [x, y - e])];
      root.append(svg("polygon", { points: points.map(([x, y]) => `${px(x).toFixed(1)},${py(y).toFixed(1)}`).join(" "), fill: s.colour, "fill-opacity": 0.15 }));
    }
    let path = "", pen = "M";
    s.x.forEach((x, i) => {
      if (s.y[i] === null) { pen = "M"; return; }
      path += `${pen}${px(x).toFixed(1)} ${py(s.y[i]).toFixed(1)}`; pen = "L";
    });
    root.append(svg("path", { d: path, fill: "none", stroke: s.colour, "stroke-width": 1.6, "stroke-dasharray": s.dash || "none", "stroke-linejoin": "round" }));
    if (s.x.length <= 12) s.x.forEach((x, i) => s.y[i] !== null && root.append(svg("circle", { cx: px(x), cy: py(s.y[i]), r: 2.6, fill: s.colour })));
  }
  hover(root, { series, px, first, last, left, right, width, height, top, bottom, ink, ground, rule });
  return root;
}

function hover(root, box) {
  const layer = svg("g", { visibility: "hidden", class: "hover" });
  const line = svg("line", { y1: box.top, y2: box.height - box.bottom, stroke: box.ink, "stroke-width": 0.8 });
  const back = svg("rect", { fill: box.ground, stroke: box.rule, rx: 4 });
  const text = svg("text", { fill: box.ink, "font-size": 11, "font-family": "sans-serif" });
  layer.append(line, back, text);
  root.append(layer);
  let at = box.last;
  const show = (update) => {
    at = Math.min(box.last, Math.max(box.first, update));
    const found = box.series.map((s) => {
      let best = -1;
      s.x.forEach((value, i) => { if (s.y[i] !== null && (best < 0 || Math.abs(value - at) < Math.abs(s.x[best] - at))) best = i; });
      return best < 0 ? null : { x: s.x[best], y: s.y[best], label: s.label, colour: s.colour };
    }).filter(Boolean);
    if (!found.length) return;
    const place = box.px(found[0].x);
    line.setAttribute("x1", place); line.setAttribute("x2", place);
    text.replaceChildren(...[`update ${Math.round(found[0].x)}`, ...found.map((f) => `${f.label ? f.label.slice(0, 28) + ": " : ""}${short(f.y)}`)]
      .map((words, i) => svg("tspan", { x: 0, dy: i ? 14 : 0, fill: i && found.length > 1 ? found[i - 1].colour : box.ink }, words)));
    layer.setAttribute("visibility", "visible");
    const size = text.getBBox ? text.getBBox() : { width: 100, height: 30 };
    const x = place + size.width + 20 > box.width ? place - size.width - 12 : place + 8;
    for (const span of text.children) span.setAttribute("x", x);
    text.setAttribute("y", box.top + 14);
    for (const [name, value] of Object.entries({ x: x - 5, y: box.top + 1, width: size.width + 10, height: size.height + 6 })) back.setAttribute(name, value);
  };
  root.addEventListener("pointermove", (event) => {
    const frame = root.getBoundingClientRect(), x = ((event.clientX - frame.left) / frame.width) * box.width;
    show(box.first + ((x - box.left) / (box.width - box.left - box.right)) * (box.last - box.first));
  });
  const hide = () => layer.setAttribute("visibility", "hidden");
  root.addEventListener("pointerleave", hide);
  root.addEventListener("blur", hide);
  root.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step) { show(at + (step * (box.last - box.first)) / 40); event.preventDefault(); event.stopPropagation(); }
  });
}

// Where a sequence's ratio lies, and where the clip range does. Linear within the range, logarithmic outside of it.
function ratioGauge(logS, band, clip) {
  const width = 300, height = 42, middle = width / 2, y = 18;
  const low = -Math.log1p(-Math.min(band[0], 0.999)), high = Math.log1p(band[1]), unit = Math.max(low, high) || 1e-4;
  const bend = (value) => Math.sign(value) * Math.log1p(Math.abs(value) / unit);
  const reach = Math.max(bend(4 * unit), Math.abs(bend(logS)) * 1.15), at = (value) => middle + (bend(value) / reach) * (width / 2 - 12);
  const ink = colourOf("--ink"), quiet = colourOf("--quiet");
  const words = `s_i ${Math.exp(logS).toPrecision(6)}, clip range ${(1 - band[0]).toPrecision(5)} to ${(1 + band[1]).toPrecision(5)}`;
  const colour = clip > 0 ? "#d55e00" : clip < 0 ? "#0072b2" : ink, x = at(logS);
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": words, width, height, xmlns: SVG },
    svg("rect", { x: at(-low), width: at(high) - at(-low), y: y - 9, height: 18, fill: "#2da44e", "fill-opacity": 0.25 }),
    svg("line", { x1: 8, x2: width - 8, y1: y, y2: y, stroke: quiet }),
    svg("line", { x1: middle, x2: middle, y1: y - 5, y2: y + 5, stroke: quiet }),
    svg("path", { d: `M${x} ${y - 9}l5 9l-5 9l-5 -9z`, fill: colour }),
    svg("text", { x: at(-low), y: 39, "font-size": 10, fill: quiet, "text-anchor": "end", "font-family": "sans-serif" }, (1 - band[0]).toPrecision(5)),
    svg("text", { x: at(high), y: 39, "font-size": 10, fill: quiet, "font-family": "sans-serif" }, (1 + band[1]).toPrecision(5)));
}

function saveSvg(root, name) {
  const copy = root.cloneNode(true);
  copy.querySelectorAll(".hover").forEach((layer) => layer.remove());
  save(new Blob([new XMLSerializer().serializeToString(copy)], { type: "image/svg+xml" }), `${name}.svg`);
}

function savePng(root, name) {
  const copy = root.cloneNode(true), [, , width, height] = root.getAttribute("viewBox").split(" ").map(Number);
  copy.querySelectorAll(".hover").forEach((layer) => layer.remove());
  copy.setAttribute("width", width * 3); copy.setAttribute("height", height * 3);
  const image = new Image();
  return new Promise((resolve) => {
    image.onload = () => {
      const canvas = document.createElement("canvas");
      canvas.width = width * 3; canvas.height = height * 3;
      canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
      canvas.toBlob((blob) => { save(blob, `${name}.png`); resolve(blob.size); });
    };
    image.src = `data:image/svg+xml,${encodeURIComponent(new XMLSerializer().serializeToString(copy))}`;
  });
}

function save(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name.replace(/[^\w.-]+/g, "_");
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
