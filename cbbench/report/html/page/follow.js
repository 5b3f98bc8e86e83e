// What the reader chooses: a request to follow, arms to see, a stretch of time, light or dark.
"use strict";
const sectionOf = (group) => document.getElementById(Object.keys(groups).find((id) => groups[id] === group));

function element(tag, text, attributes = {}) {
  const made = Object.assign(document.createElement(tag), attributes);
  made.textContent = text;
  return made;
}

// Following the one that is followed lets it go.
function follow(group, sequence) {
  if (sequence === undefined) return;
  const known = group.requests.find((request) => request.index === sequence);
  group.followed = known && group.followed !== sequence ? sequence : null;
  const section = sectionOf(group);
  section.querySelector(".follow").value = group.followed === null ? "" : String(group.followed);
  const account = group.followed === null ? [] : [element("p", `${known.name}: ${known.lengths}`), told(group, known)];
  section.querySelector(".followed").replaceChildren(...account);
  refresh(group);
}

// What became of a request in each arm shown.
function told(group, request) {
  const table = document.createElement("table");
  const head = table.createTHead().insertRow();
  head.append(element("th", "arm", { scope: "col", className: "text" }));
  head.append(...group.columns.map((title) => element("th", title, { scope: "col" })));
  const body = table.createTBody();
  request.told.forEach((values, panel) => {
    if (!group.shown.has(panel)) return;
    const row = body.insertRow();
    row.append(element("th", group.arms[panel], { scope: "row", className: "text" }));
    row.append(...(values ?? group.columns.map(() => "-")).map((value) => element("td", value)));
  });
  return table;
}

function zoom(group, range) {
  if (JSON.stringify(group.range) === JSON.stringify(range)) return;
  group.range = range;
  refresh(group);
}

function showArms(group) {
  const section = sectionOf(group);
  const boxes = [...section.querySelectorAll(".choose input")];
  if (boxes.length) group.shown = new Set(boxes.filter((box) => box.checked).map((box) => Number(box.value)));
  const count = section.querySelector(".count");
  if (count) count.textContent = group.shown.size;
  for (const node of section.querySelectorAll("[data-panel]")) node.hidden = !group.shown.has(Number(node.dataset.panel));
  const known = group.requests.find((request) => request.index === group.followed);
  if (known) section.querySelector(".followed table").replaceWith(told(group, known));
}

function showTheme() {
  const isDark = document.documentElement.dataset.theme === "dark";
  document.getElementById("theme").textContent = isDark ? "Light" : "Dark";
  for (const line of document.querySelectorAll(".line")) {
    const group = groups[line.closest(".group").id], panel = Number(line.dataset.arm);
    line.style.stroke = armColour(group, panel);
    line.style.strokeDasharray = armDash(group, panel).replaceAll("px", "");
  }
}

for (const group of Object.values(groups)) {
  const section = sectionOf(group);
  const select = section.querySelector(".follow");
  if (!select) continue;
  for (const { index, name } of group.requests) select.append(element("option", name, { value: String(index) }));
  const choose = (value) => { group.followed = null; follow(group, value === "" ? null : Number(value)); };
  select.addEventListener("change", () => choose(select.value));
  section.querySelector(".clear").addEventListener("click", () => choose(""));
  section.querySelector(".whole").addEventListener("click", () => zoom(group, null));
  section.querySelector(".free input").addEventListener("change", ({ target }) => { group.showFree = target.checked; refresh(group); });
  for (const box of section.querySelectorAll(".choose input")) box.addEventListener("change", () => { showArms(group); refresh(group); });
  showArms(group);
}
document.getElementById("theme").addEventListener("click", () => {
  useTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
  showTheme();
  refresh();
});
darkScheme.addEventListener("change", ({ matches }) => { useTheme(matches ? "dark" : "light"); showTheme(); refresh(); });
showTheme();
for (const figure of figures.values()) watcher.observe(figure.node);
