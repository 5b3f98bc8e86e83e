// Before anything is painted: the system's colours, unless the reader has chosen others on this page.
"use strict";
const darkScheme = matchMedia("(prefers-color-scheme: dark)");
const useTheme = (name) => { document.documentElement.dataset.theme = name; };
useTheme(darkScheme.matches ? "dark" : "light");
