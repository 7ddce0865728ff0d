// Long texts: only their beginning stands on the page, which alone scrolls; all of one opens over the page, and Esc closes it.
"use strict";

const LONG = 500, LONG_LINES = 12;
let reader = null;

const isLong = (text) => text.length > LONG || text.split("\n", LONG_LINES + 1).length > LONG_LINES;

// A text, or the beginning of a long one with a button that opens all of it
function long(text, title = "Text") {
  if (!isLong(text)) return words(text);
  return h("span", { class: "cut" }, h("span", { class: "text long" }, text),
    opener(`Read all ${thousands(text.length)} characters`, title, () => words(text)));
}

function opener(label, title, draw) {
  return h("button", { type: "button", class: "opener", "aria-haspopup": "dialog", onclick: () => openReader(title, draw()) }, label);
}

// What lies over the page: a title, a link to it if it has an address, and one scroller
function openReader(title, content, closed = null) {
  closeReader();
  const before = document.activeElement;
  const close = h("button", { type: "button", onclick: () => dialog.close() }, "Close ", h("kbd", {}, "Esc"));
  const dialog = h("dialog", { class: "reader", "aria-labelledby": "reader-title" },
    h("div", { class: "reader-head" }, h("h2", { id: "reader-title" }, words(title)), close), h("div", { class: "reader-body" }, content));
  dialog.addEventListener("close", () => {
    if (reader !== dialog) return; // another view has taken it away
    closeReader();
    if (closed) closed();
    else if (before && before.isConnected) before.focus();
  });
  document.body.append(dialog);
  reader = dialog;
  dialog.showModal();
}

function closeReader() {
  const open = reader;
  reader = null;
  if (open) { open.close(); open.remove(); }
}
