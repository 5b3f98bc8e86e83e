// Tables sort by the header that is pressed: upwards, downwards, and as they came. What has no value stays last.
"use strict";
const UNIT_SIZES = { ms: 1e-3, s: 1, min: MINUTE_S, h: HOUR_S, d: DAY_S, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30 };
const NEXT_ORDER = { none: "ascending", ascending: "descending", descending: "none" };

// "7 min 12 s", "1,234", "31.2 %", "2.74 x (2.6 to 2.9)": the first amount, in seconds or bytes where it has such a unit.
function amount(text) {
  const [, number, unit, rest, small] = text.match(/(-?[\d,]*\.?\d+) ?([A-Za-z]*)(?: (\d+) (h|min|s)\b)?/) ?? [];
  if (number === undefined) return null;
  const large = Number(number.replaceAll(",", "")) * (UNIT_SIZES[unit] ?? 1);
  return rest && ["min", "h", "d"].includes(unit) ? large + Number(rest) * UNIT_SIZES[small] : large;
}

const compareText = new Intl.Collator("en", { numeric: true }).compare;

function sortRows(table, column, order, isText) {
  const rows = [...table.tBodies[0].rows];
  rows.forEach((row, place) => { row.dataset.place ??= place; });
  const value = (row) => (isText ? row.cells[column].textContent.trim() : amount(row.cells[column].textContent));
  const sign = order === "descending" ? -1 : 1;
  const asItCame = (a, b) => a.dataset.place - b.dataset.place;
  rows.sort((a, b) => {
    const [one, other] = [value(a), value(b)];
    if (order === "none" || one === other) return asItCame(a, b);
    if (one === null || other === null) return one === null ? 1 : -1;
    return sign * (isText ? compareText(one, other) : one - other) || asItCame(a, b);
  });
  table.tBodies[0].append(...rows);
}

for (const table of document.querySelectorAll("table.sortable")) {
  const headers = [...table.tHead.rows[0].cells];
  headers.forEach((header, column) => {
    const button = element("button", header.textContent, { type: "button" });
    header.replaceChildren(button);
    header.ariaSort = "none";
    button.addEventListener("click", () => {
      const order = NEXT_ORDER[header.ariaSort];
      for (const other of headers) other.ariaSort = "none";
      header.ariaSort = order;
      sortRows(table, column, order, header.classList.contains("text"));
    });
  });
}
