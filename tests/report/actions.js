// What a reader may do to the first chart of a page, in turn; what came of it is the title.
const said = {}, chart = document.querySelector("svg.plot"), tip = document.querySelector(".tip");
const box = () => chart.getBoundingClientRect();
const d = (label) => document.querySelector(`[data-curve="${label}"] .mean`)?.getAttribute("d") ?? null;
const at = (type, x, y, kind = PointerEvent, more = {}) => chart.dispatchEvent(new kind(type,
  {clientX: box().left + x, clientY: box().top + y, bubbles: true, cancelable: true, ...more}));
const key = (name) => chart.dispatchEvent(new KeyboardEvent("keydown", {key: name, cancelable: true}));
const point = (label, i) => d(label).split(/[ML]/)[i + 1].split(" ").map(Number);
const later = (action) => requestAnimationFrame(() => requestAnimationFrame(action));
later(() => {
  said.start = d("one");
  at("pointermove", point("one", 1)[0] + 3, 50);
  said.tip = tip.innerText; said.tipHidden = tip.hidden;
  at("pointerleave", 0, 0); said.left = tip.hidden;
  at("wheel", 200, 100, WheelEvent, {deltaY: -100}); said.wheelUnchosen = d("one") === said.start;
  chart.focus();
  at("wheel", 200, 100, WheelEvent, {deltaY: -100}); said.wheel = d("one");
  at("dblclick", 200, 100, MouseEvent); said.reset = d("one") === said.start;
  const [a, b] = [point("one", 1)[0], point("one", 2)[0]];
  at("pointerdown", a, 100); at("pointermove", b, 102);
  said.selecting = document.querySelectorAll(".selected").length;
  at("pointerup", b, 102); said.dragged = [point("one", 1)[0], point("one", 2)[0]];
  said.frame = document.querySelector("clipPath rect").getAttribute("x");
  said.wide = document.querySelector("clipPath rect").getAttribute("width");
  key("0"); said.keyReset = d("one") === said.start;
  key("+"); said.keyZoom = d("one") !== said.start; key("Escape");
  key("ArrowRight"); key("ArrowRight"); said.spoken = document.querySelector("[aria-live]").textContent;
  document.querySelector(".legend button").click(); said.hidden = d("one"); said.other = d("two");
  said.pressed = document.querySelector(".legend button").getAttribute("aria-pressed");
  document.querySelector(".legend button").click(); said.again = d("one") === said.start;
  document.querySelector('[aria-label="logarithmic y axis"]').click();
  said.log = [0, 1, 2, 3].map((i) => point("one", i)[1]);
  document.title = JSON.stringify(said);
});
