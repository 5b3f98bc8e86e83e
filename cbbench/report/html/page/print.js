// On paper: laid out at the width of a sheet before the browser prints, in light colours, everything drawn and unfolded.
"use strict";
let beforePaper = null; // what to put back

function toPaper() {
  if (beforePaper) return;
  const root = document.documentElement;
  const folded = [...document.querySelectorAll("details:not([open])")];
  beforePaper = { theme: root.dataset.theme, folded };
  for (const details of folded) details.open = true;
  root.classList.add("paper");
  useTheme("light");
  showTheme();
  for (const { firstElementChild: table, clientWidth } of document.querySelectorAll(".scroll")) {
    table.style.zoom = Math.min(1, clientWidth / table.scrollWidth);
  }
  for (const figure of figures.values()) {
    figure.isStale = true;
    if (figure.node.clientWidth) draw(figure); // at once: printing waits for nobody
  }
}

function fromPaper() {
  if (!beforePaper) return;
  const { theme, folded } = beforePaper;
  beforePaper = null;
  for (const details of folded) details.open = false;
  document.documentElement.classList.remove("paper");
  for (const { firstElementChild: table } of document.querySelectorAll(".scroll")) table.style.zoom = "";
  useTheme(theme);
  showTheme();
  refresh();
}

addEventListener("beforeprint", toPaper);
addEventListener("afterprint", fromPaper);
