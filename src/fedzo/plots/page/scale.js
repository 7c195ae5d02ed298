"use strict";
// Axes: how numbers lie on a line, where its ticks are, and how they are written.

const scales = {
  linear: { to: (v) => v, from: (u) => u },
  log: { to: (v) => (v > 0 ? Math.log10(v) : NaN), from: (u) => 10 ** u },
};

/** Ticks of round numbers between two ends, about so many. */
function linearTicks(low, high, count) {
  const rough = (high - low) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough) ?? rough;
  const ticks = [];
  for (let k = Math.ceil(low / step); k * step <= high + step * 1e-9; k++) ticks.push(k * step);
  return ticks;
}

/** Ticks of a log axis whose ends are given as exponents: decades, or 1, 2 and 5 in them. */
function logTicks(low, high, count) {
  if (high - low < 0.7) {
    return linearTicks(10 ** low, 10 ** high, count).filter((v) => v > 0);
  }
  const every = Math.max(1, Math.ceil((high - low) / count));
  const parts = high - low < count / 2.5 ? [1, 2, 5] : [1];
  const ticks = [];
  for (let e = Math.floor(low); e <= high; e++) {
    if (((e % every) + every) % every) continue;
    for (const part of parts) {
      const exponent = e + Math.log10(part);
      if (exponent >= low - 1e-9 && exponent <= high + 1e-9) ticks.push(part * 10 ** e);
    }
  }
  return ticks;
}

const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 4 });

/** A number in few characters. */
function short(value) {
  if (value === null || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && size < 1e-3) return value.toExponential(1).replace("e-", "e−").replace("-", "−");
  if (size >= 1e4) return compact.format(value);
  return String(Number(value.toPrecision(4))).replace("-", "−");
}

/** Where a curve is at x, on the straight line between its points; null outside of them. */
function valueAt(xs, ys, x) {
  const last = xs.length - 1;
  if (last < 0 || x < xs[0] || x > xs[last]) return null;
  let i = 0;
  while (i < last && xs[i + 1] < x) i++;
  if (i === last || xs[i] === x) return ys[i];
  const share = (x - xs[i]) / (xs[i + 1] - xs[i]);
  return ys[i] + share * (ys[i + 1] - ys[i]);
}
