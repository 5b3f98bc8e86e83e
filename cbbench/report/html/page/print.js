// On paper: laid out at the width of a sheet before the browser prints, in light colours, everything drawn and unfolded.
"use strict";
let beforePaper = null; // what to put back

// On a screen all columns are folded below the first table; on paper the pictures come first.
function moveColumns(toEnd) {
  for (const section of document.querySelectorAll(".group")) {
    const columns = section.querySelector(".columns");
    if (toEnd) section.querySelector(".configuration").before(columns);
    else section.querySelector(".folded").append(columns);
  }
}

function toPaper() {
  if (beforePaper) return;
  const root = document.documentElement;
  const folded = [...document.querySelectorAll("details:not([open])")];
  beforePaper = { theme: root.dataset.theme, folded };
  for (const details of folded) details.open = true;
  root.classList.add("paper");
  moveColumns(true);
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
  moveColumns(false);
  for (const { firstElementChild: table } of document.querySelectorAll(".scroll")) table.style.zoom = "";
  useTheme(theme);
  showTheme();
  refresh();
}

addEventListener("beforeprint", toPaper);
addEventListener("afterprint", fromPaper);
