// The page: a head with what came of all claims, and a section for each figure.

const data = JSON.parse(document.getElementById("data").textContent);
const CLASS = { holds: "holds", "no effect above 1 %": "none", "does not hold": "fails", "cannot tell": "open" };
const SIGN = { holds: "✓", "no effect above 1 %": "=", "does not hold": "✗", "cannot tell": "?" };
const charts = [];

function verdict(word) {
  return make("span", { class: `verdict ${CLASS[word]}` }, `${SIGN[word]} ${word}`);
}

function listed(environment) {
  return Object.entries(environment).map(([key, value]) => `${key} ${value}`).join(", ");
}

/** The number of claims by verdict, of one source and scale. */
function counted(whose, claims) {
  const counts = Object.keys(CLASS).map((word) => [word, claims.filter((c) => c.verdict === word).length]);
  const parts = counts.filter(([, n]) => n).flatMap(([word, n], i) => [i ? ", " : "", verdict(word), ` ${n}`]);
  return make("p", {}, `Of ${whose}: `, ...parts, ".");
}

function head() {
  const claims = data.figures.flatMap((figure) => figure.claims);
  const root = document.getElementById("head");
  root.append(make("h1", {}, data.title));
  for (const scale of new Set(claims.map((claim) => claim.scale ?? ""))) {
    for (const [whose, own] of [["the paper's", false], ["our own", true]]) {
      const said = claims.filter((claim) => (claim.by !== "paper") === own && (claim.scale ?? "") === scale);
      if (said.length) root.append(counted(`${whose} ${said.length} claims${scale ? ` at ${scale} scale` : ""}`, said));
    }
  }
  if (claims.length) {
    const terms = Object.entries(data.thresholds ?? {}).map(([word, meaning]) =>
      make("tr", {}, make("td", {}, word), make("td", {}, meaning)));
    root.append(make("p", { class: "faint" },
      "Each claim is measured seed by seed. The 95 % confidence interval (Student's t, paired over seeds) decides. A claim "
      + "holds if the interval of each of its numbers is where the claim predicts it. It does not hold if one is wholly "
      + "elsewhere (with Holm's correction). It has no effect above 1 % if it has a direction and the interval excludes "
      + "any effect that would matter. Otherwise one cannot tell."),
    make("details", {}, make("summary", {}, "what the words of the claims mean in numbers"),
      make("div", { class: "wide" }, make("table", { class: "finals" }, make("tbody", {}, ...terms)))));
  }
  root.append(make("p", { class: "faint" }, `This page was made with ${listed(data.environment)}.`));
  const links = data.figures.map((figure) => {
    const words = figure.claims.map((claim) =>
      make("span", { class: CLASS[claim.verdict], title: `${claim.name}: ${claim.verdict}` }, SIGN[claim.verdict]));
    return make("li", {}, make("a", { href: `#${figure.name}` }, figure.name), " ", ...words);
  });
  root.append(make("nav", { "aria-label": "figures" }, make("ul", {}, ...links)));
}

function region([low, high]) {
  if (low === null) return `below ${short(high)}`;
  return high === null ? `above ${short(low)}` : `between ${short(low)} and ${short(high)}`;
}

/** A mean and its interval. */
function within({ mean, low, high }) {
  return short(mean) + (low === null || low === high ? "" : ` [${short(low)}, ${short(high)}]`);
}

function measurement(m) {
  const value = m.mean === null ? "not finite (never reached, or diverged)" : within(m);
  return make("li", {}, make("span", { class: CLASS[m.verdict], title: m.verdict }, SIGN[m.verdict]), ` ${m.what}: `, make("span", { class: "number" }, value),
    make("span", { class: "faint" }, `, claimed ${region(m.claimed)}`));
}

function table(name, headings, rows) {
  return make("table", { class: name },
    make("thead", {}, make("tr", {}, ...headings.map((text) => make("th", { scope: "col" }, text)))),
    make("tbody", {}, ...rows));
}

function claimsTable(claims) {
  const rows = claims.map((claim) => make("tr", {},
    make("td", {}, claim.text, " ", make("span", { class: "by" }, claim.by === "paper" ? "the paper's" : "ours")),
    make("td", {}, make("ul", {}, ...claim.measured.map(measurement))),
    make("td", { "data-name": "seeds" }, String(claim.seeds)),
    make("td", {}, verdict(claim.verdict), claim.reason ? make("p", { class: "faint" }, claim.reason) : null)));
  return table("claims", ["claim", "measured: mean [95 % interval]", "seeds", "verdict"], rows);
}

/** What each curve's runs end at: what the charts show, and what it cost. */
function finals(figure) {
  const shown = figure.axes.flatMap((axes) => axes.keys ?? []);
  const keys = [...new Set(["round", ...shown, ...data.costs])]
    .filter((key) => Object.values(figure.finals).some((ends) => ends[key]));
  const labels = Object.keys(figure.finals), name = (key) => data.names[key] ?? key;
  const cell = (label, key) => make("td", {}, figure.finals[label][key] ? within(figure.finals[label][key]) : "–");
  const row = (title, cells) => make("tr", {}, make("th", { scope: "row" }, title), ...cells);
  if (labels.length > keys.length) { // the longer list goes down the page
    return table("finals", ["at the end", ...keys.map(name)],
      labels.map((label) => row(label, keys.map((key) => cell(label, key)))));
  }
  return table("finals", ["at the end", ...labels],
    keys.map((key) => row(name(key), labels.map((label) => cell(label, key)))));
}

/** All numbers of a figure: a line for each curve and evaluated round. */
function csv(figure) {
  const keys = [...new Set(Object.values(figure.columns).flatMap(Object.keys))].filter((key) => key !== "round");
  const quoted = (text) => `"${text.replaceAll('"', '""')}"`;
  const lines = [["curve", "round", ...keys.flatMap((key) => [key, `${key}_low`, `${key}_high`])].join(",")];
  for (const [label, columns] of Object.entries(figure.columns)) {
    columns.round.mean.forEach((t) => {
      const cells = keys.flatMap((key) => {
        const i = columns[key] ? columns[key].round.indexOf(t) : -1;
        return i < 0 ? ["", "", ""] : ["mean", "low", "high"].map((part) => columns[key][part][i]);
      });
      lines.push([quoted(label), t, ...cells].join(","));
    });
  }
  return `${lines.join("\n")}\n`;
}

function download(figure) {
  const link = make("a", { href: "#", download: `${figure.name}.csv` }, "numbers as CSV");
  link.addEventListener("click", () => { link.href = `data:text/csv;charset=utf-8,${encodeURIComponent(csv(figure))}`; });
  return link;
}

function section(figure) {
  const own = figure.axes.map((axes) => new Chart(figure, axes, data));
  charts.push(...own);
  const configs = Object.entries(figure.configs).map(([label, text]) =>
    make("details", {}, make("summary", {}, label), make("pre", {}, text)));
  const made = listed(figure.environment);
  const pictures = figure.pictures.map(({ label, source }) =>
    make("figure", {}, make("img", { src: source, alt: `pictures of ${label}` }), make("figcaption", { class: "faint" }, label)));
  return make("section", { id: figure.name, "aria-label": figure.title },
    make("h2", {}, figure.title),
    figure.about ? make("p", {}, figure.about) : null,
    make("div", { class: "charts" }, ...own.map((chart) => chart.root)),
    make("p", { class: "faint" }, `${figure.caption}. ${figure.seconds < 60 ? `${figure.seconds} s` : `${Math.round(figure.seconds / 60)} min`} of runs, one core each. `
      + "Drag to zoom, double click to reset, click a name to hide its curve. ", download(figure)),
    figure.claims.length ? claimsTable(figure.claims) : null,
    make("details", { open: figure.claims.length ? null : "" },
      make("summary", {}, "last values: mean [95 % interval] over seeds"), make("div", { class: "wide" }, finals(figure))),
    pictures.length ? make("div", { class: "pictures" }, ...pictures) : null,
    make("details", {}, make("summary", {}, "configurations"),
      made ? make("p", { class: "faint" }, `This figure was made with ${made}.`) : null, ...configs));
}

document.title = `fedzo: ${data.title}`;
head();
document.getElementById("main").replaceChildren(...data.figures.map(section));
const drawAll = () => charts.forEach((chart) => chart.draw());
drawAll(); // now that they have a width
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
