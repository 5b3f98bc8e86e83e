// Times as results/durations.py says them, and round places on a piece of an axis of time.
"use strict";
const MINUTE_S = 60, HOUR_S = 3600, DAY_S = 86400;
const STEPS_S = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 432000, 864000];

function seconds(value) {
  const two = (count, size, large, small) => {
    const rest = count % size;
    return `${Math.floor(count / size).toLocaleString("en")} ${large}${rest ? ` ${rest} ${small}` : ""}`;
  };
  if (value < 0) return `-${seconds(-value)}`;
  if (value > 0 && value < 1e-6) return "< 0.001 ms";
  if (value < 0.00995) return `${Number((1000 * value).toPrecision(2))} ms`;
  if (value < 0.9995) return `${(1000 * value).toFixed(0)} ms`;
  if (value < 2 * MINUTE_S) return `${value.toFixed(2)} s`;
  if (Math.round(value) < HOUR_S) return two(Math.round(value), 60, "min", "s");
  if (Math.round(value / MINUTE_S) < DAY_S / MINUTE_S) return two(Math.round(value / MINUTE_S), 60, "h", "min");
  return two(Math.round(value / HOUR_S), 24, "d", "h");
}

const tickText = (value) => (value === 0 ? "0" : seconds(value).replace(/^(-?\d+)(?:\.0+|(\.\d*?[1-9])0*)? /, "$1$2 "));

// On the virtual clock a time is a number of steps.
function timeTicks([low, high], most, clock) {
  const wanted = (high - low) / most;
  const unit = clock === "s" && wanted > STEPS_S.at(-1) ? DAY_S : 1;
  const power = 10 ** Math.floor(Math.log10(wanted / unit)) * unit;
  const decimal = [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= wanted * (1 - 1e-9));
  const step = (clock === "s" && wanted > 0.5 && STEPS_S.find((known) => known >= wanted)) || decimal;
  const first = Math.ceil(low / step - 1e-9);
  const tickvals = Array.from({ length: Math.floor(high / step + 1e-9) - first + 1 }, (_, i) => Number(((first + i) * step).toPrecision(12)));
  const text = (value) => `${value.toLocaleString("en")} ${value === 1 ? "step" : "steps"}`;
  return { tickmode: "array", tickvals, ticktext: tickvals.map(clock === "s" ? tickText : text) };
}
