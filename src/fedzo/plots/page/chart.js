// One pair of axes: curves with bands and markers, a cursor that reads them, zoom.

const SVG = "http://www.w3.org/2000/svg";
let chartCount = 0;

/** Make an element; attributes whose value is false or null are left out. */
function make(name, attributes = {}, ...children) {
  const svg = ["svg", "g", "path", "line", "rect", "text", "clipPath"].includes(name);
  const node = svg ? document.createElementNS(SVG, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== false && value !== null && value !== undefined) node.setAttribute(key, value);
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}

/** The outline of a marker, of about 4 pixels around a point. */
function markerPath(kind, x, y) {
  const r = 3.6;
  const shapes = {
    o: `M${x - r} ${y}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0z`,
    s: `M${x - r} ${y - r}h${2 * r}v${2 * r}h${-2 * r}z`,
    "^": `M${x} ${y - r - 1}l${r + 1} ${2 * r}h${-2 * r - 2}z`,
    D: `M${x} ${y - r - 1}l${r + 1} ${r + 1}l${-r - 1} ${r + 1}l${-r - 1} ${-r - 1}z`,
    v: `M${x} ${y + r + 1}l${r + 1} ${-2 * r}h${-2 * r - 2}z`,
    P: `M${x - r} ${y}h${2 * r}M${x} ${y - r}v${2 * r}`,
    X: `M${x - r} ${y - r}l${2 * r} ${2 * r}M${x - r} ${y + r}l${2 * r} ${-2 * r}`,
  };
  return shapes[kind];
}

class Chart {
  constructor(axes, style, hidden) {
    Object.assign(this, { axes, style, hidden });
    this.kind = { x: axes.log_x ? "log" : "linear", y: axes.log_y ? "log" : "linear" };
    this.clip = `clip${chartCount++}`;
    this.svg = make("svg", {
      class: "plot", tabindex: 0, role: "application",
      "aria-roledescription": "chart",
      "aria-label": `${axes.title} ${axes.y} against ${axes.x}. Arrow keys read the curves, `
        + "plus and minus zoom, 0 resets.",
    });
    this.tip = make("div", { class: "tip", hidden: "" });
    this.spoken = make("div", { class: "hidden-text", "aria-live": "polite" });
    this.root = make("div", { class: "chart" }, this.bar(), this.svg, this.tip, this.spoken);
    this.view = null;
    this.listen();
    new ResizeObserver(() => requestAnimationFrame(() => {
      if (this.root.clientWidth !== this.drawnWidth) this.draw();
    })).observe(this.root);
  }

  bar() {
    const button = (text, label, action) => {
      const node = make("button", { type: "button", "aria-label": label, title: label }, text);
      node.addEventListener("click", action);
      return node;
    };
    const toggle = (which) => {
      const node = button(`log ${which}`, `logarithmic ${which} axis`, () => {
        this.kind[which] = this.kind[which] === "log" ? "linear" : "log";
        node.setAttribute("aria-pressed", this.kind[which] === "log");
        this.reset();
      });
      node.setAttribute("aria-pressed", this.kind[which] === "log");
      return node;
    };
    return make("div", { class: "bar" }, make("h3", {}, this.axes.title),
      toggle("x"), toggle("y"),
      button("+", "zoom in", () => this.zoom(0.6)),
      button("−", "zoom out", () => this.zoom(1 / 0.6)),
      button("reset", "show everything", () => this.reset()));
  }

  shown() { return this.axes.series.filter((curve) => !this.hidden.has(curve.label)); }

  /** The ends of what is there, on the axes' own scales. */
  extent() {
    const range = (which, lists) => {
      const numbers = lists.flat().map(scales[this.kind[which]].to).filter(Number.isFinite);
      if (!numbers.length) return [0, 1];
      let [low, high] = [Math.min(...numbers), Math.max(...numbers)];
      if (low === high) [low, high] = [low - 0.5, high + 0.5];
      const room = (high - low) * (which === "x" ? 0.02 : 0.05);
      return [low - room, high + room];
    };
    const curves = this.shown();
    return { x: range("x", curves.map((c) => c.x)),
             y: range("y", curves.flatMap((c) => [c.mean, c.low, c.high])) };
  }

  reset() { this.view = null; this.draw(); }

  zoom(factor, at = null) {
    const view = this.view ?? this.extent();
    for (const which of ["x", "y"]) {
      const [low, high] = view[which];
      const centre = at ? at[which] : (low + high) / 2;
      view[which] = [centre + (low - centre) * factor, centre + (high - centre) * factor];
    }
    this.view = view;
    this.draw();
  }

  place(which, value) {
    const [low, high] = this.shownView[which];
    const share = (scales[this.kind[which]].to(value) - low) / (high - low);
    const { left, top, width, height } = this.box;
    return which === "x" ? left + share * width : top + (1 - share) * height;
  }

  /** The position of a pixel on the axes' own scales. */
  at(which, pixel) {
    const [low, high] = this.shownView[which];
    const { left, top, width, height } = this.box;
    const share = which === "x" ? (pixel - left) / width : 1 - (pixel - top) / height;
    return low + share * (high - low);
  }

  draw() {
    const outer = this.root.clientWidth;
    if (!outer) return;
    this.drawnWidth = outer;
    const total = Math.max(240, Math.min(360, outer * 0.68));
    this.box = { left: 58, top: 10, width: outer - 58 - 12, height: total - 10 - 44 };
    this.shownView = this.view ?? this.extent();
    this.svg.setAttribute("viewBox", `0 0 ${outer} ${total}`);
    this.svg.setAttribute("height", total);
    const { left, top, width, height } = this.box;
    const clip = make("clipPath", { id: this.clip }, make("rect", { x: left, y: top, width, height }));
    const curves = make("g", { "clip-path": `url(#${this.clip})` });
    for (const curve of this.shown()) curves.append(this.drawCurve(curve));
    this.mark = make("g", {});
    this.svg.replaceChildren(clip, this.drawAxes(), curves, this.mark);
    this.tip.hidden = true;
  }

  drawAxes() {
    const { left, top, width, height } = this.box;
    const group = make("g", {});
    const line = (x1, y1, x2, y2) => make("line", { class: "grid", x1, y1, x2, y2 });
    for (const which of ["x", "y"]) {
      const [low, high] = this.shownView[which];
      const count = which === "x" ? width / 75 : height / 48;
      const ticks = this.kind[which] === "log" ? logTicks : linearTicks;
      for (const value of ticks(low, high, count)) {
        const p = this.place(which, value);
        if (which === "x") {
          group.append(line(p, top, p, top + height),
            make("text", { x: p, y: top + height + 17, "text-anchor": "middle" }, short(value)));
        } else {
          group.append(line(left, p, left + width, p),
            make("text", { x: left - 7, y: p + 4, "text-anchor": "end" }, short(value)));
        }
      }
    }
    const middle = top + height / 2;
    group.append(make("path", { class: "frame", d: `M${left} ${top}v${height}h${width}` }),
      make("text", { x: left + width / 2, y: top + height + 37, "text-anchor": "middle" }, this.axes.x),
      make("text", { x: 13, y: middle, "text-anchor": "middle", transform: `rotate(-90 13 ${middle})` },
        this.axes.y));
    return group;
  }

  drawCurve(curve) {
    const { colour, marker } = this.style(curve);
    const points = (values) => curve.x.map((x, i) => [this.place("x", x), this.place("y", values[i])])
      .filter((point) => point.every(Number.isFinite));
    const path = (list) => list.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(2)} ${y.toFixed(2)}`).join("");
    const mean = points(curve.mean);
    const group = make("g", { "data-curve": curve.label });
    if (curve.seeds > 1) {
      const low = points(curve.low), high = points(curve.high);
      group.append(make("path", { class: "band", d: `${path([...high, ...low.reverse()])}Z`,
        fill: colour, "fill-opacity": 0.18 }));
    }
    const every = Math.max(1, Math.floor(mean.length / 8));
    const outlines = mean.filter((_, i) => i % every === 0).map(([x, y]) => markerPath(marker, x, y));
    group.append(
      make("path", { class: "mean", d: path(mean), fill: "none", stroke: colour, "stroke-width": 2,
        "stroke-dasharray": curve.dashed ? "7 4" : null }),
      make("path", { d: outlines.join(""), stroke: colour, "stroke-width": 1.6,
        fill: curve.dashed || "PX".includes(marker) ? "var(--paper)" : colour }));
    return group;
  }

  /** Show all curves' values where one of them has a point, nearest to x on the axis' scale. */
  read(x, y = null) {
    const to = scales[this.kind.x].to;
    const [low, high] = this.shownView.x;
    const all = this.shown().flatMap((curve) => curve.x).filter((v) => to(v) >= low && to(v) <= high);
    if (!all.length) return;
    const near = all.reduce((best, v) => (Math.abs(to(v) - x) < Math.abs(to(best) - x) ? v : best));
    this.cursor = near;
    const p = this.place("x", near);
    const { top, height } = this.box;
    this.mark.replaceChildren(make("line", { class: "cursor", x1: p, x2: p, y1: top, y2: top + height }));
    const rows = this.shown().map((curve) => {
      const value = valueAt(curve.x, curve.mean, near);
      return { curve, value, low: valueAt(curve.x, curve.low, near), high: valueAt(curve.x, curve.high, near) };
    }).filter((row) => row.value !== null).sort((a, b) => b.value - a.value);
    this.showTip(near, rows, p, y);
  }

  showTip(x, rows, p, y) {
    const body = rows.map(({ curve, value, low, high }) => make("tr", {},
      make("td", {}, swatch(this.style(curve), curve.dashed)), make("td", {}, curve.label),
      make("td", {}, short(value)),
      make("td", { class: "faint" }, curve.seeds > 1 ? `${short(low)} … ${short(high)}` : "")));
    this.tip.replaceChildren(make("div", { class: "faint" }, `${this.axes.x} ${short(x)}`),
      make("table", {}, make("tbody", {}, ...body)));
    this.tip.hidden = false;
    const room = this.root.clientWidth, wide = this.tip.offsetWidth;
    const side = p + 14 + wide <= room ? p + 14 : p - 14 - wide;
    this.tip.style.left = `${Math.max(0, Math.min(side, room - wide))}px`;
    this.tip.style.top = `${this.svg.offsetTop + (y === null ? 16 : Math.max(0, y - 20))}px`;
    const said = rows.map(({ curve, value }) => `${curve.label} ${short(value)}`).join(", ");
    this.said = `${this.axes.x} ${short(x)}: ${said}`;
  }

  leave() { this.tip.hidden = true; this.mark?.replaceChildren(); }

  listen() {
    const inside = (event) => {
      const box = this.svg.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    let from = null;
    this.svg.addEventListener("pointerdown", (event) => {
      if (event.pointerType === "touch" || event.button) return;
      from = inside(event);
      try { this.svg.setPointerCapture(event.pointerId); } catch { /* a pointer that is gone */ }
    });
    this.svg.addEventListener("pointermove", (event) => {
      const [x, y] = inside(event);
      if (from && Math.hypot(x - from[0], y - from[1]) > 6) {
        const r = this.rectangle(from, [x, y]);
        this.tip.hidden = true;
        this.mark.replaceChildren(make("rect", { class: "selected", x: r.x[0], y: r.y[0],
          width: r.x[1] - r.x[0], height: r.y[1] - r.y[0] }));
      } else {
        this.read(this.at("x", x), y);
      }
    });
    this.svg.addEventListener("pointerup", (event) => {
      if (!from) return;
      const to = inside(event), start = from;
      from = null;
      if (Math.abs(to[0] - start[0]) < 8) return;
      const r = this.rectangle(start, to);
      this.view = { x: r.x.map((v) => this.at("x", v)), y: r.y.map((v) => this.at("y", v)).reverse() };
      this.draw();
    });
    this.svg.addEventListener("pointercancel", () => { from = null; this.leave(); });
    this.svg.addEventListener("pointerleave", () => { if (!from) this.leave(); });
    this.svg.addEventListener("dblclick", () => this.reset());
    // The wheel scrolls the page until a chart is chosen by a click or a key.
    this.svg.addEventListener("wheel", (event) => {
      if (document.activeElement !== this.svg && !event.ctrlKey) return;
      event.preventDefault();
      const [x, y] = inside(event);
      this.zoom(event.deltaY > 0 ? 1.25 : 0.8, { x: this.at("x", x), y: this.at("y", y) });
    }, { passive: false });
    this.svg.addEventListener("keydown", (event) => this.key(event));
    this.svg.addEventListener("blur", () => this.leave());
  }

  /** What a drag has chosen; one that is flat chooses the whole height. */
  rectangle(a, b) {
    const { left, top, width, height } = this.box;
    const sorted = (u, v, low, high) => [u, v].map((w) => Math.min(high, Math.max(low, w))).sort((p, q) => p - q);
    const flat = Math.abs(a[1] - b[1]) < 12;
    return { x: sorted(a[0], b[0], left, left + width),
             y: flat ? [top, top + height] : sorted(a[1], b[1], top, top + height) };
  }

  key(event) {
    const actions = {
      ArrowRight: () => this.step(1), ArrowLeft: () => this.step(-1),
      "+": () => this.zoom(0.8), "=": () => this.zoom(0.8), "-": () => this.zoom(1.25),
      0: () => this.reset(), Escape: () => this.reset(),
    };
    if (!actions[event.key] || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    actions[event.key]();
  }

  /** Move the cursor to the next point, and say what is there. */
  step(by) {
    const points = [...new Set(this.shown().flatMap((curve) => curve.x))].sort((a, b) => a - b);
    if (!points.length) return;
    const here = points.indexOf(this.cursor);
    const next = here < 0 ? (by > 0 ? 0 : points.length - 1) : Math.max(0, Math.min(points.length - 1, here + by));
    this.read(scales[this.kind.x].to(points[next]));
    this.spoken.textContent = this.said ?? "";
  }
}

/** A piece of a curve for legends. */
function swatch({ colour, marker }, dashed) {
  return make("svg", { width: 30, height: 12, viewBox: "0 0 30 12", "aria-hidden": "true" },
    make("path", { d: "M1 6h28", stroke: colour, "stroke-width": 2, "stroke-dasharray": dashed ? "7 4" : null }),
    make("path", { d: markerPath(marker, 15, 6), stroke: colour, "stroke-width": 1.6,
      fill: dashed || "PX".includes(marker) ? "var(--paper)" : colour }));
}
