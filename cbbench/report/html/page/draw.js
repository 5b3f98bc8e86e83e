// Draws the figures: paints traces by what they mean (`meta`), in the colours of the style sheet, when they come into view.
"use strict";
const groups = JSON.parse(document.getElementById("data").textContent);
const NUM_REQUEST_COLOURS = 5, NUM_ARM_COLOURS = 6;
// With six colours as many lines as a page draws arms, no two alike.
const DASHES = ["", "8px,4px", "2px,4px", "10px,4px,2px,4px", "16px,5px", "6px,3px,2px,3px,2px,3px", "2px,9px", "14px,4px,6px,4px"];
const figures = new Map(); // id -> {id, group, kind, panel, data, layout, node, isDrawn, isStale}
for (const group of Object.values(groups)) {
  Object.assign(group, { followed: null, range: null, showFree: true });
  group.shown = new Set(group.shown);
  for (const [id, figure] of Object.entries(group.figures)) {
    figures.set(id, { id, group, ...figure, node: document.getElementById(id), isDrawn: false, isStale: true });
  }
}

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const channels = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
function mixed(one, other, share) {
  const [a, b] = [channels(one), channels(other)];
  return `rgb(${a.map((value, i) => Math.round(value * share + b[i] * (1 - share))).join(",")})`;
}
const requestColour = (sequence) => colour(sequence === null ? "many" : `r${sequence % NUM_REQUEST_COLOURS}`);
// `styles` gives each arm its number among the lines: those seen at first have the first, so their colours differ.
const armColour = (group, panel) => colour(`r${group.styles[panel] % NUM_ARM_COLOURS}`);
const armDash = (group, panel) => DASHES[Math.floor(group.styles[panel] / NUM_ARM_COLOURS) % DASHES.length];

// kind -> the marker of one bar of a request, for timeline and waterfall alike.
function requestMarker(kind, sequences) {
  const paper = colour("paper"), deep = colour("deep");
  const cache = new Map();
  const each = (share, other) => sequences.map((sequence) => {
    const key = sequence === null ? null : sequence % NUM_REQUEST_COLOURS;
    if (!cache.has(key)) cache.set(key, mixed(requestColour(sequence), other, share));
    return cache.get(key);
  });
  const hatch = (shape, fgcolor, background, solidity = 0.3, size = 6) => (
    { color: background, pattern: { shape, fillmode: "overlay", fgcolor, size, solidity, fgopacity: 1 } }
  );
  const woven = (shape, color, solidity, size) => (
    { color, pattern: { shape, fillmode: "replace", bgcolor: paper, size, solidity, fgopacity: 1 } }
  );
  switch (kind) {
    case "prefill": return { color: each(0.8, deep) };
    case "decode": return { color: each(0.5, paper) };
    case "recompute": return woven("x", each(0.8, deep), 0.55, 6);
    case "stalled": return woven("-", each(1, paper), 0.35, 4);
    case "held": case "finished, held": return hatch("/", colour("held"), paper, 0.35, 5);
    case "starved": return hatch(".", colour("starved"), colour("drained"), 0.3, 5);
    case "preempted": return hatch("/", colour("preempted"), paper, 0.3, 5);
    case "not told": return hatch("|", colour("queued"), paper, 0.4, 5);
    case "queued": return { color: colour("queued") };
    default: return { color: colour("drained") };
  }
}

const PLAIN = { "token states": "token", "prefill padding": "padprefill", "decode padding": "paddecode", "output tok/s": "throughput" };

function painted(trace, figure) {
  const { paint, kind, panel } = trace.meta;
  const group = figure.group;
  const plain = colour(PLAIN[kind] ?? kind);
  if (paint === "slots" || paint === "requests") {
    const sequences = trace.customdata.map((row) => row[0]);
    const marker = { line: { width: 0 }, ...requestMarker(kind, sequences) };
    return { ...trace, marker, ...followedPoints(trace, group, { marker: { opacity: 0.13 } }) };
  }
  if (paint === "arm") {
    const line = { ...trace.line, color: armColour(group, panel), dash: armDash(group, panel) || "solid", width: 2 };
    const marker = { color: armColour(group, panel), size: group.followed === null && trace.x.length <= 60 ? 5 : 2 };
    const select = followedPoints(trace, group, { marker: { opacity: 0.0 } }, { marker: { size: 12, opacity: 1 } });
    return { ...trace, line, marker, ...select, visible: group.shown.has(panel) };
  }
  if (paint === "interval") {
    return { ...trace, marker: { size: 1, color: colour("ink") }, error_x: { ...trace.error_x, color: colour("ink") } };
  }
  if (trace.type === "scatter") {
    return { ...trace, fillcolor: plain, line: { ...trace.line, color: plain }, visible: kind !== "free" || group.showFree };
  }
  const marker = ["finished, held", "starved", "drained"].includes(kind) ? requestMarker(kind, []) : { color: plain };
  return { ...trace, marker: { line: { width: 0 }, ...marker } };
}

// Plotly's own selection: what belongs to the followed request stays, the rest fades.
function followedPoints(trace, group, unselected, selected = {}) {
  if (group.followed === null) return { selectedpoints: null };
  const selectedpoints = trace.customdata.flatMap((row, i) => (row[0] === group.followed ? [i] : []));
  return { selectedpoints, selected, unselected };
}

// In an arm's other pictures the followed request is the span of its life.
function life(figure) {
  const { group, panel, kind } = figure;
  if (group.followed === null || !["memory", "steps"].includes(kind)) return [];
  let [start, end] = [Infinity, -Infinity];
  const waterfall = Object.values(group.figures).find((other) => other.kind === "requests" && other.panel === panel);
  for (const trace of waterfall.data) {
    trace.customdata.forEach((row, i) => {
      if (row[0] === group.followed) [start, end] = [Math.min(start, trace.base[i]), Math.max(end, trace.base[i] + trace.x[i])];
    });
  }
  const line = { color: colour("ink"), width: 1.5, dash: "dot" };
  const edge = (x) => ({ type: "line", x0: x, x1: x, y0: 0, y1: 1, yref: "paper", line });
  return end < start ? [] : [edge(start), edge(end)];
}

function dressed(figure) {
  const ink = colour("ink"), rule = colour("rule"), quiet = colour("quiet");
  const axis = { gridcolor: rule, linecolor: rule, tickcolor: rule, tickfont: { color: quiet, size: 11 }, automargin: false };
  const { layout, group } = figure;
  const font = { family: getComputedStyle(document.body).fontFamily, size: 12, color: ink };
  const titled = ({ title, ...rest }) => ({ ...axis, ...rest, ...(title && { title: { ...title, font: { ...font, color: quiet } } }) });
  const xaxis = titled(layout.xaxis);
  if (figure.panel !== null && group.range) xaxis.range = [...group.range];
  if (["ttft", "tpot", "itl", "e2e"].includes(figure.kind) && xaxis.type !== "log") xaxis.range = [0, longestShown(figure) * 1.05];
  if (xaxis.range && !xaxis.tickvals && !xaxis.tickformat) {
    Object.assign(xaxis, timeTicks(xaxis.range, Math.max(Math.floor(figure.node.clientWidth / 110), 2), group.clock));
  }
  return {
    ...layout, xaxis, font, shapes: life(figure), showlegend: false, autosize: true,
    yaxis: titled(layout.yaxis),
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    hoverlabel: { bgcolor: colour("tint"), bordercolor: quiet, font, align: "left", namelength: -1 },
    dragmode: figure.panel === null || matchMedia("(pointer: coarse)").matches ? false : "zoom",
    annotations: [...captions(layout.annotations ?? [], figure.node.clientWidth), ...lineNumbers(figure, font)],
  };
}

// The name of an arm, cut where its number would stand on it.
function captions(annotations, width) {
  const values = new Map(annotations.filter((note) => note.name === "value").map((note) => [note.y, note.text.length]));
  return annotations.map((note) => {
    const room = Math.floor((width - 24) / 6.8) - (values.get(note.y) ?? 0) - 2;
    const isLong = note.name === "arm" && note.text.length > room;
    return isLong ? { ...note, text: `${note.text.slice(0, Math.max(room - 1, 6)).replace(/&[a-z]*$/, "")}…` } : note;
  });
}

const longestShown = ({ data, group }) => (
  Math.max(...data.map(({ x, meta: { panel } }) => (group.shown.has(panel) ? x.at(-1) : 0)), 0) || 1
);

// The number that an arm has in the key, on its line; each at another height, so that none lies over another.
function lineNumbers({ data, layout, group }, font) {
  const lines = data.filter((trace) => trace.meta.paint === "arm" && group.shown.has(trace.meta.panel));
  const isLog = layout.xaxis.type === "log";
  const middle = ({ x, y }) => x[y.findIndex((share) => share >= 0.5)];
  const inOrder = lines.length > 1 ? lines.toSorted((a, b) => middle(b) - middle(a)) : [];
  return inOrder.map(({ meta: { panel }, x, y }, place) => {
    const height = (place + 0.7) / (inOrder.length + 0.4);
    const at = x[y.findIndex((share) => share >= height - 1e-9)];
    return {
      x: isLog ? Math.log10(at) : at, y: height, text: `<b>${panel + 1}</b>`, showarrow: false, borderpad: 1,
      bgcolor: colour("paper"), font: { ...font, size: 10, color: armColour(group, panel) },
    };
  });
}

// Whose a point is: null of nobody in particular, undefined in pictures that are not of requests.
function sequenceOf(figure, curveNumber, pointNumber) {
  const { meta, customdata } = figure.data[curveNumber];
  return ["slots", "requests", "arm"].includes(meta.paint) ? customdata[pointNumber][0] : undefined;
}

function draw(figure) {
  figure.isStale = false;
  figure.drawing = redrawn(figure);
  return figure.drawing;
}

async function redrawn(figure) {
  const config = { displayModeBar: false, responsive: true, doubleClick: "reset", showTips: false };
  await Plotly.react(figure.node, figure.data.map((trace) => painted(trace, figure)), dressed(figure), config);
  if (figure.isDrawn) return;
  figure.isDrawn = true;
  figure.node.on("plotly_click", ({ points: [point] }) => follow(figure.group, sequenceOf(figure, point.curveNumber, point.pointNumber)));
  figure.node.on("plotly_relayout", (change) => {
    if (figure.panel === null) return;
    if ("xaxis.range[0]" in change) zoom(figure.group, [change["xaxis.range[0]"], change["xaxis.range[1]"]]);
    else if ("xaxis.autorange" in change || change["xaxis.range"]) zoom(figure.group, null);
  });
}

const isInView = (node) => {
  const box = node.getBoundingClientRect();
  return box.height > 0 && box.top < innerHeight + 400 && box.bottom > -400;
};

// One after the other, with a breath between: the first is seen before the last is made.
async function drawStale(chosen) {
  for (const figure of chosen) {
    if (!figure.isStale) continue;
    await draw(figure);
    await new Promise((next) => setTimeout(next));
  }
}

// After a choice of the reader; whoever is out of sight is drawn when it comes near.
function refresh(group = null) {
  const changed = [...figures.values()].filter((figure) => !group || figure.group === group);
  for (const figure of changed) figure.isStale = true;
  return drawStale(changed.filter((figure) => isInView(figure.node)));
}

async function drawAll() {
  const visible = [...figures.values()].filter((figure) => figure.node.clientWidth);
  await drawStale(visible);
  await Promise.all(visible.map((figure) => figure.drawing));
}

const watcher = new IntersectionObserver((entries) => {
  drawStale(entries.filter((entry) => entry.isIntersecting).map((entry) => figures.get(entry.target.id)));
}, { rootMargin: "400px" });
