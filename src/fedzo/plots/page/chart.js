"use strict";
// One chart: uPlot draws, hovers and zooms; here is what is drawn, and the choice of axes.

/** Make an element; attributes whose value is false or null are left out. */
function make(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== false && value !== null && value !== undefined) node.setAttribute(key, value);
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}

const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 4 });

/** A number in few characters, by k, M and G as in pictures: B would be read as bytes. */
function short(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && size < 1e-3) return value.toExponential(1).replace("e-", "e−").replace("-", "−");
  if (size >= 1e4) return compact.format(value).replace("K", "k").replace("B", "G");
  return String(Number(value.toPrecision(4))).replace("-", "−");
}

/** A colour of the page's own style, which a canvas cannot look up by itself. */
function css(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** For each curve how many of the later ones lie on it, by a hundredth of the height. */
function covered(curves, log) {
  const at = (v) => (log ? Math.log10(v) : v);
  const all = curves.flatMap((curve) => curve.mean.map(at)).filter(Number.isFinite);
  const near = 0.01 * (Math.max(...all) - Math.min(...all));
  const on = (upper, lower) => {
    const both = lower.x.map((x, i) => [lower.mean[i], upper.mean[upper.x.indexOf(x)]])
      .filter(([, y]) => y !== undefined);
    return both.length > 1 && both.every(([a, b]) => Math.abs(at(a) - at(b)) <= near);
  };
  // At most two: wider ones would be bars.
  return curves.map((curve, i) => Math.min(2, curves.slice(i + 1).filter((other) => on(other, curve)).length));
}

class Chart {
  constructor(figure, axes, settings) {
    Object.assign(this, { figure, axes, settings, plot: null });
    this.keys = axes.keys ? [...axes.keys] : null;
    this.log = [axes.log_x, axes.log_y];
    this.canvas = make("div", { class: "plot" });
    this.spoken = make("div", { class: "hidden-text", "aria-live": "polite" });
    this.root = make("div", { class: "chart" }, this.bar(), this.canvas, this.spoken);
    new ResizeObserver(() => {
      if (this.plot && this.root.clientWidth !== this.plot.width) this.plot.setSize(this.size());
    }).observe(this.root);
  }

  bar() {
    const bar = make("div", { class: "bar" }, make("h3", {}, this.axes.title));
    if (this.keys) {
      const { costs, names } = this.settings;
      const there = [...new Set(Object.values(this.figure.columns).flatMap(Object.keys))];
      const offered = [costs.filter((key) => there.includes(key)), there];
      ["x", "y"].forEach((which, i) => {
        const options = offered[i].map((key) =>
          make("option", { value: key, selected: key === this.keys[i] ? "" : null }, names[key]));
        const select = make("select", { "aria-label": `${which} axis` }, ...options);
        select.addEventListener("change", () => { this.keys[i] = select.value; this.draw(); });
        bar.append(make("label", {}, `${which} `, select));
      });
    }
    ["x", "y"].forEach((which, i) => {
      const button = make("button", { type: "button", "aria-pressed": String(this.log[i]),
        "aria-label": `logarithmic ${which} axis` }, `log ${which}`);
      button.addEventListener("click", () => {
        this.log[i] = !this.log[i];
        button.setAttribute("aria-pressed", this.log[i]);
        this.draw();
      });
      bar.append(button);
    });
    const reset = make("button", { type: "button", "aria-label": "show everything" }, "reset");
    reset.addEventListener("click", () => this.draw());
    bar.append(reset);
    return bar;
  }

  size() { return { width: this.root.clientWidth, height: 320 }; }

  labels() {
    const { names } = this.settings;
    return this.keys ? this.keys.map((key) => names[key]) : [this.axes.x, this.axes.y];
  }

  /** What is drawn: the panel's own curves, or the same runs on the axes that were chosen. */
  curves() {
    const [x, y] = this.keys ?? [null, null];
    let curves = this.axes.series;
    if (this.keys && (x !== this.axes.keys[0] || y !== this.axes.keys[1])) {
      curves = curves.flatMap((curve) => {
        const columns = this.figure.columns[curve.label];
        if (!columns?.[x] || !columns?.[y]) return [];
        const at = new Map(columns[x].round.map((t, i) => [t, columns[x].mean[i]]));
        const kept = columns[y].round.map((t, i) => i).filter((i) => at.has(columns[y].round[i]));
        const pick = (name) => kept.map((i) => columns[y][name][i]);
        return [{ ...curve, x: kept.map((i) => at.get(columns[y].round[i])),
          mean: pick("mean"), low: pick("low"), high: pick("high") }];
      });
    }
    return curves.map((curve) => this.positive(curve)).filter((curve) => curve.x.length);
  }

  /** A log axis has no place for what is not above zero. */
  positive(curve) {
    const kept = curve.x.map((_, i) => i).filter((i) =>
      (!this.log[0] || curve.x[i] > 0) && (!this.log[1] || curve.mean[i] > 0));
    const least = this.log[1] ? Number.MIN_VALUE : -Infinity;
    const band = (name) => kept.map((i) => {
      const value = curve[name][i] ?? curve.mean[i];
      return value > least ? value : curve.mean[i];
    });
    return { ...curve, x: kept.map((i) => curve.x[i]), mean: kept.map((i) => curve.mean[i]),
      low: band("low"), high: band("high") };
  }

  draw() {
    this.plot?.destroy();
    this.plot = null;
    const curves = this.drawn = this.curves();
    if (!curves.length || !this.root.clientWidth) return;
    // Bands before means, which would lie under them.
    const tables = [...curves.map((c) => [c.x, c.low, c.high]), ...curves.map((c) => [c.x, c.mean])];
    const [x, y] = this.labels();
    const under = covered(curves, this.log[1]);
    const series = [{ label: x, value: (_, v) => short(v) }], bands = [];
    curves.forEach((curve, i) => {
      for (const name of ["low", "high"]) {
        series.push({ label: `${curve.label}, ${name}`, class: "band", stroke: "transparent",
          points: { show: false } });
      }
      if (curve.seeds > 1) {
        bands.push({ series: [2 * i + 2, 2 * i + 1], fill: this.colour(curve, 0.18) });
      }
    });
    curves.forEach((curve, i) => series.push(this.series(curve, i, under[i])));
    const axis = { stroke: css("--faint"), grid: { stroke: css("--line"), width: 1 },
      ticks: { stroke: css("--line") }, font: "12px system-ui", labelFont: "12px system-ui",
      values: (_, values) => values.map((v) => (v === null ? "" : short(v))) };
    const scale = (i) => ({ time: false, distr: this.log[i] ? 3 : 1 });
    this.plot = new uPlot({
      ...this.size(), series, bands,
      scales: { x: scale(0), y: scale(1) },
      axes: [{ ...axis, label: x }, { ...axis, label: y, size: 64 }],
      cursor: { drag: { x: true, y: true, uni: 20 }, points: { size: 7 } },
      hooks: { setSeries: [(u, i, change) => this.follow(u, i, change)] },
    }, uPlot.join(tables), this.canvas);
    this.listen();
  }

  colour(curve, alpha = 1) {
    const hex = this.settings.colours[curve.colour % this.settings.colours.length];
    const seen = hex === "#000000" ? css("--ink") : hex; // black is seen on a light ground only
    return seen + Math.round(255 * alpha).toString(16).padStart(2, "0");
  }

  series(curve, i, under) {
    const colour = this.colour(curve, under ? 0.45 : 1);
    const step = Math.max(1, Math.floor(curve.x.length / 8));
    const marked = new Set(curve.x.filter((_, k) => k % step === i % step));
    return {
      label: curve.label, stroke: colour, width: 2 + 2 * under, dash: curve.dashed ? [7, 4] : null,
      value: (u, v, _, k) => this.told(u, v, k, curve, i),
      points: { show: true, size: 7 + 2 * under, stroke: colour,
        fill: curve.dashed ? css("--paper") : colour,
        filter: (u) => u.data[0].flatMap((x, k) => (marked.has(x) ? [k] : [])) },
    };
  }

  /** The mean at the cursor, and the range of seeds. */
  told(u, value, k, curve, i) {
    if (value === null || value === undefined) return "–";
    const [low, high] = [u.data[2 * i + 1][k], u.data[2 * i + 2][k]];
    const range = curve.seeds > 1 ? ` (${short(low)} … ${short(high)})` : "";
    return short(value) + range;
  }

  /** A curve that is hidden takes its band along. */
  follow(u, i, change) {
    const curve = i - 1 - 2 * this.drawn.length;
    if (i === null || curve < 0 || change.show === undefined) return;
    for (const band of [2 * curve + 1, 2 * curve + 2]) u.setSeries(band, { show: change.show }, false);
  }

  listen() {
    const over = this.plot.over;
    over.tabIndex = 0;
    over.setAttribute("role", "application");
    over.setAttribute("aria-label", `${this.axes.title} ${this.labels()[1]} against `
      + `${this.labels()[0]}. Arrow keys read the curves; the table below has the last values.`);
    over.addEventListener("keydown", (event) => {
      const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!by) return;
      event.preventDefault();
      this.step(by);
    });
  }

  /** Move the cursor to the next point, and say what is there. */
  step(by) {
    const { data, cursor } = this.plot;
    const here = cursor.idx ?? (by > 0 ? -1 : data[0].length);
    const next = Math.max(0, Math.min(data[0].length - 1, here + by));
    const left = this.plot.valToPos(data[0][next], "x");
    this.plot.setCursor({ left, top: this.plot.bbox.height / 2 / devicePixelRatio });
    const first = 1 + 2 * this.drawn.length;
    const said = this.drawn.map((curve, i) => `${curve.label} ${short(data[first + i][next])}`);
    this.spoken.textContent = `${this.labels()[0]} ${short(data[0][next])}: ${said.join(", ")}`;
  }
}
