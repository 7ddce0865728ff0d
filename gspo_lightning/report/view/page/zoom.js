// Zoom of curves: which updates they show is part of the address, so all curves of a view go together.
"use strict";

// Which updates all curves of a view show, by the address
function zoomOf(query) {
  const range = [query.from, query.to].map(Number);
  const chosen = query.from && query.to && range.every(Number.isFinite) && range[0] < range[1];
  return { range: chosen ? range : null, set: (to) => change({ from: to ? to[0] : "", to: to ? to[1] : "" }) };
}

function zoomButton(query, unit) {
  const { range, set } = zoomOf(query);
  return range ? h("button", { type: "button", id: "whole", onclick: () => set(null) },
    `${unit} ${thousands(range[0])} to ${thousands(range[1])}: show all`) : null;
}

// Zoom: a drag over a figure chooses its updates; + and − halve and double them, Shift and arrows move them, Esc shows all
function zooming(root, box, { first, last, all, px, updateAt, zoom, at }) {
  const set = (from, to) => {
    const span = Math.max(2, Math.min(to - from, all[1] - all[0])), start = Math.max(all[0], Math.min(from, all[1] - span));
    const range = [Math.round(start), Math.round(start + span)];
    zoom.set(range[0] <= all[0] && range[1] >= all[1] ? null : range);
  };
  const clamped = (event) => Math.max(first, Math.min(last, updateAt(event)));
  let from = null, moved = false, chosen = null;
  root.addEventListener("pointerdown", (event) => { from = event.button === 0 ? clamped(event) : null; moved = false; });
  root.addEventListener("pointermove", (event) => {
    if (from === null || (!moved && Math.abs(px(clamped(event)) - px(from)) < 6)) return;
    if (!moved) {
      moved = true;
      root.setPointerCapture(event.pointerId);
      chosen = svg("rect", { class: "chosen", y: box.top, height: box.height - box.top - box.bottom, fill: box.quiet, "fill-opacity": 0.2 });
      root.append(chosen);
    }
    const [left, right] = [px(from), px(clamped(event))].sort((a, b) => a - b);
    chosen.setAttribute("x", left);
    chosen.setAttribute("width", right - left);
  });
  root.addEventListener("pointerup", (event) => {
    if (moved) set(...[from, clamped(event)].sort((a, b) => a - b));
    from = null;
  });
  root.addEventListener("pointercancel", () => { from = null; if (chosen) chosen.remove(); });
  root.addEventListener("keydown", (event) => {
    const span = last - first, share = (at() - first) / span;
    if (event.key === "+" || event.key === "=") set(at() - (share * span) / 2, at() + ((1 - share) * span) / 2);
    else if (event.key === "-") set(at() - share * span * 2, at() + (1 - share) * span * 2);
    else if (event.shiftKey && ["ArrowLeft", "ArrowRight"].includes(event.key)) set(...[first, last].map((x) => x + ((event.key === "ArrowLeft" ? -1 : 1) * span) / 4));
    else if (event.key === "Escape" && zoom.range) zoom.set(null);
    else return;
    event.preventDefault();
    event.stopImmediatePropagation();
  });
  return () => moved; // the click at the end of a drag opens nothing
}
