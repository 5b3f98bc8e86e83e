// A picture by keyboard: arrows from bar to bar (of the followed request, where there is one), Enter follows, + - 0 zoom.
"use strict";
const cursors = new Map(); // figure id -> place among its points
const HOVER_MS = 80; // plotly shows a tooltip at most every 50 ms

function pointsOf(figure) {
  const { followed, shown } = figure.group;
  const isOverTime = figure.panel !== null;
  return figure.data
    .flatMap((trace, curveNumber) => trace.x.map((x, pointNumber) => {
      const [at, row] = [trace.base?.[pointNumber] ?? x, trace.y[pointNumber]];
      return { curveNumber, pointNumber, at, row, sequence: sequenceOf(figure, curveNumber, pointNumber) };
    }))
    .filter((point) => followed === null || point.sequence === undefined || point.sequence === followed)
    .filter((point) => shown.has(figure.data[point.curveNumber].meta.panel ?? [...shown][0]))
    .sort((a, b) => (isOverTime ? a.at - b.at || a.row - b.row : a.curveNumber - b.curveNumber || a.row - b.row));
}

// The tooltip, and its words for those who hear the page.
function hover(figure, by) {
  const points = pointsOf(figure);
  if (!points.length) return;
  const before = cursors.get(figure.id) ?? (by > 0 ? -1 : points.length);
  const place = Math.min(Math.max(before + by, 0), points.length - 1);
  cursors.set(figure.id, place);
  const { curveNumber, pointNumber } = points[place];
  Plotly.Fx.hover(figure.node, [{ curveNumber, pointNumber }]);
  setTimeout(() => {
    const texts = [...figure.node.querySelectorAll(".hoverlayer text")].map((text) => {
      const lines = [...text.querySelectorAll("tspan.line")].map((line) => line.textContent);
      return lines.join(", ") || text.textContent;
    });
    document.getElementById("said").textContent = texts.filter(Boolean).join("; ");
  }, HOVER_MS);
}

function zoomBy(figure, factor) {
  const [low, high] = figure.group.range ?? figure.layout.xaxis.range;
  const middle = pointsOf(figure)[cursors.get(figure.id)]?.at ?? (low + high) / 2;
  zoom(figure.group, [middle - (middle - low) * factor, middle + (high - middle) * factor]);
}

for (const figure of figures.values()) {
  figure.node.addEventListener("keydown", (event) => {
    const isOverTime = figure.panel !== null;
    const acts = {
      ArrowRight: () => hover(figure, 1),
      ArrowLeft: () => hover(figure, -1),
      Enter: () => {
        const point = pointsOf(figure)[cursors.get(figure.id)];
        cursors.delete(figure.id);
        if (point) follow(figure.group, point.sequence);
      },
      Escape: () => {
        cursors.delete(figure.id);
        Plotly.Fx.unhover(figure.node);
        follow(figure.group, null);
      },
      "+": () => isOverTime && zoomBy(figure, 0.5),
      "-": () => isOverTime && zoomBy(figure, 2),
      "0": () => isOverTime && zoom(figure.group, null),
    };
    if (event.ctrlKey || event.metaKey || event.altKey || !(event.key in acts)) return;
    event.preventDefault();
    acts[event.key]();
  });
}
