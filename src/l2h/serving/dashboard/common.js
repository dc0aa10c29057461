"use strict";

const SVG = new Set(["svg", "path", "line", "text", "g", "rect"]);

/* Makes an element; what it holds is put in as text, never as HTML. */
function element(tag, attributes, ...children) {
  const node = SVG.has(tag) ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/* Fills a table; a cell is a text or a node. On a telephone each row is a block with the columns' names. */
function fillTable(table, columns, rows) {
  const head = element("tr", null, ...columns.map((name) => element("th", { scope: "col" }, name)));
  const body = rows.map((cells) => element("tr", null, ...cells.map((cell, i) =>
    element(i ? "td" : "th", { "data-label": columns[i], scope: i ? null : "row" }, cell))));
  table.classList.add("stack");
  table.replaceChildren(element("thead", null, head), element("tbody", null, ...body));
}

const whole = (value) => Math.round(value).toLocaleString("en");

/* Three digits, and more for whole numbers. */
function rounded(value) {
  if (value === null || value === undefined) return "–";
  if (Number.isInteger(value) || Math.abs(value) >= 100) return whole(value);
  return String(Number(value.toPrecision(3)));
}

const milliseconds = (value) => value === null || value === undefined ? "–" : rounded(value * 1e3) + " ms";
const clock = (seconds) => new Date(seconds * 1e3).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hour12: false });
const day = (seconds) => new Date(seconds * 1e3).toLocaleDateString([], { day: "numeric", month: "short" });
