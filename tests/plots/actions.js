// What a reader may do to the first chart of a page, in turn; what came of it is the title.
const said = {}, chart = charts[0], u = () => chart.plot, over = () => u().over;
const select = (which, key) => {
  const node = chart.root.querySelector(`[aria-label="${which} axis"]`);
  node.value = key; node.dispatchEvent(new Event("change"));
};
const ends = (scale) => [u().scales[scale].min, u().scales[scale].max];
const legend = (i) => u().root.querySelectorAll(".u-series")[i];
const spots = (points) => { // the colours of the picture where points are
  const {width, height} = u().ctx.canvas, {data} = u().ctx.getImageData(0, 0, width, height);
  return points.map(([x, y]) => {
    const [left, top] = [u().valToPos(x, "x", true), u().valToPos(y, "y", true)].map(Math.round);
    return [...data.slice(4 * (top * width + left), 4 * (top * width + left) + 4)];
  });
};
const drag = (from, to) => {
  const box = over().getBoundingClientRect();
  const at = (type, [x, y], target) => target.dispatchEvent(new MouseEvent(type,
    {clientX: box.left + x, clientY: box.top + y, bubbles: true, cancelable: true, button: 0, movementX: 5, movementY: 1, view: window}));
  at("mousemove", from, over()); at("mousedown", from, over());
  at("mousemove", to, document); at("mousemove", to, over()); at("mouseup", to, document);
};
const later = () => new Promise((done) => setTimeout(done, 50)); // uPlot draws after the event
(async () => {
  await later();
  said.spots = spots([[10, 4], [20, 2], [10, 6], [12.3, 6.1], [12.3, 7.7]]);
  said.data = u().data.map((row) => [...row]);
  said.start = ends("x");
  u().setCursor({left: u().valToPos(10, "x"), top: 50}); await later();
  said.hover = [5, 6].map((i) => legend(i).querySelector(".u-value").textContent);
  said.shown = [...u().root.querySelectorAll(".u-series")].filter((row) => getComputedStyle(row).display !== "none").length;
  drag([u().valToPos(10, "x"), 100], [u().valToPos(20, "x"), 102]); await later();
  said.dragged = ends("x");
  chart.root.querySelector('[aria-label="show everything"]').click(); await later();
  said.reset = ends("x");
  over().dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowLeft", cancelable: true}));
  said.spoken = chart.spoken.textContent;
  legend(5).querySelector("th").click(); await later();
  said.hidden = u().series.map((s) => s.show);
  legend(5).querySelector("th").click(); await later();
  said.again = u().series.every((s) => s.show);
  chart.root.querySelector('[aria-label="logarithmic y axis"]').click(); await later();
  said.log = [8, 4, 2, 1].map((y) => u().valToPos(y, "y"));
  chart.root.querySelector('[aria-label="logarithmic y axis"]').click();
  select("x", "queries"); await later();
  said.queries = u().data[0]; said.label = u().axes[0].label;
  select("y", "accuracy"); await later();
  said.accuracy = chart.drawn.map((c) => [c.label, c.x, c.mean]);
  const link = document.querySelector("a[download]");
  link.addEventListener("click", (event) => event.preventDefault()); link.click();
  said.csv = decodeURIComponent(link.href.split(",").slice(1).join(","));
  said.finals = [...document.querySelectorAll("table.finals")].at(-1).innerText;
  said.widths = charts.map((c) => c.plot.series.slice(1 + 2 * c.drawn.length).map((s) => s.width));
  document.title = JSON.stringify(said);
})();
