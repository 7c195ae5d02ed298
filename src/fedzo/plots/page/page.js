// The page: a head with what came of all claims, and a section for each figure.

const data = JSON.parse(document.getElementById("data").textContent);
const CLASS = { holds: "holds", "does not hold": "fails", "cannot tell": "open" };
const allCharts = [];
const SIGN = { holds: "✓", "does not hold": "✗", "cannot tell": "?" };

function style(curve) {
  const colour = data.colours[curve.colour % data.colours.length];
  // Black is seen on a light ground only.
  return { colour: colour === "#000000" ? "var(--ink)" : colour,
           marker: data.markers[curve.colour % data.markers.length] };
}

function verdict(word) {
  return make("span", { class: `verdict ${CLASS[word]}` }, `${SIGN[word]} ${word}`);
}

function listed(environment) {
  return Object.entries(environment).map(([key, value]) => `${key} ${value}`).join(", ");
}

function head() {
  const claims = data.figures.flatMap((figure) => figure.claims);
  const root = document.getElementById("head");
  root.append(make("h1", {}, data.title));
  if (claims.length) {
    const counts = Object.keys(CLASS).map((word) => [word, claims.filter((c) => c.verdict === word).length]);
    const parts = counts.filter(([, n]) => n).flatMap(([word, n], i) => [i ? ", " : "", verdict(word), ` ${n}`]);
    root.append(make("p", {}, `Of ${claims.length} claims: `, ...parts, "."),
      make("p", { class: "faint" },
        "Each claim is measured seed by seed. It holds if the whole 95 % confidence interval (Student's t, "
        + "paired over seeds) of each of its numbers is where the claim has it, does not hold if one lies "
        + "wholly elsewhere, and else one cannot tell."));
  }
  root.append(make("p", { class: "faint" }, `This page was made with ${listed(data.environment)}.`));
  const links = data.figures.map((figure) => {
    const words = figure.claims.map((claim) =>
      make("span", { class: CLASS[claim.verdict], title: `${claim.name}: ${claim.verdict}` }, SIGN[claim.verdict]));
    return make("li", {}, make("a", { href: `#${figure.name}` }, figure.name), " ", ...words);
  });
  root.append(make("nav", { "aria-label": "figures" }, make("ul", {}, ...links)));
}

function legend(figure, hidden, charts) {
  const curves = new Map(figure.axes.flatMap((axes) => axes.series).map((curve) => [curve.label, curve]));
  const items = [...curves.values()].map((curve) => {
    const button = make("button", { type: "button", "aria-pressed": "true" },
      swatch(style(curve), curve.dashed), curve.label);
    button.addEventListener("click", () => {
      const gone = !hidden.delete(curve.label);
      if (gone) hidden.add(curve.label);
      button.setAttribute("aria-pressed", !gone);
      charts.forEach((chart) => chart.draw());
    });
    return make("li", {}, button);
  });
  return make("ul", { class: "legend", "aria-label": "curves, press to hide or show" }, ...items);
}

function region([low, high]) {
  if (low === null) return `below ${short(high)}`;
  return high === null ? `above ${short(low)}` : `between ${short(low)} and ${short(high)}`;
}

function measurement(m) {
  const value = m.mean === null ? "not finite (never reached, or diverged)" : short(m.mean);
  const within = m.low === null ? "" : ` [${short(m.low)}, ${short(m.high)}]`;
  return make("li", {}, make("span", { class: CLASS[m.verdict], title: m.verdict }, SIGN[m.verdict]), ` ${m.what}: `, make("span", { class: "number" }, value + within),
    make("span", { class: "faint" }, `, claimed ${region(m.claimed)}`));
}

function claimsTable(claims) {
  const rows = claims.map((claim) => make("tr", {},
    make("td", {}, claim.text, " ", make("span", { class: "by" }, claim.by === "paper" ? "the paper's" : "ours")),
    make("td", {}, make("ul", {}, ...claim.measured.map(measurement))),
    make("td", { "data-name": "seeds" }, String(claim.seeds)),
    make("td", {}, verdict(claim.verdict), claim.reason ? make("p", { class: "faint" }, claim.reason) : null)));
  const names = ["claim", "measured: mean [95 % interval]", "seeds", "verdict"];
  return make("table", { class: "claims" },
    make("thead", {}, make("tr", {}, ...names.map((name) => make("th", { scope: "col" }, name)))),
    make("tbody", {}, ...rows));
}

function section(figure) {
  const hidden = new Set();
  const charts = figure.axes.map((axes) => new Chart(axes, style, hidden));
  allCharts.push(...charts);
  const configs = Object.entries(figure.configs).map(([label, text]) =>
    make("details", {}, make("summary", {}, label), make("pre", {}, text)));
  const made = listed(figure.environment);
  const pictures = figure.pictures.map(({ label, source }) =>
    make("figure", {}, make("img", { src: source, alt: `pictures of ${label}` }), make("figcaption", { class: "faint" }, label)));
  return make("section", { id: figure.name, "aria-label": figure.title },
    make("h2", {}, figure.title),
    figure.about ? make("p", {}, figure.about) : null,
    legend(figure, hidden, charts),
    make("div", { class: "charts" }, ...charts.map((chart) => chart.root)),
    make("p", { class: "faint" }, `${figure.caption}. ${Math.round(figure.seconds / 6) / 10} minutes of runs, one core each. `
      + "Drag, or click and scroll, to zoom; double click to reset."),
    figure.claims.length ? claimsTable(figure.claims) : null,
    pictures.length ? make("div", { class: "pictures" }, ...pictures) : null,
    make("details", {}, make("summary", {}, "configurations"),
      made ? make("p", { class: "faint" }, `This figure was made with ${made}.`) : null, ...configs));
}

document.title = `fedzo: ${data.title}`;
head();
document.getElementById("main").replaceChildren(...data.figures.map(section));
allCharts.forEach((chart) => chart.draw());  // now that they have a width
