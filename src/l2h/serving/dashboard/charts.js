/* Draws curves over the slots of a span; under a pointer the legend tells the values of that moment.

curves: [{ name, colour, values, show }], one value per slot; null leaves a gap. */
function drawCurves(place, slots, step, curves) {
  const width = Math.max(place.clientWidth - 8, 240), height = 150, left = 46, bottom = 20, top = 8, right = 6;
  const values = curves.flatMap((curve) => curve.values.filter((value) => value !== null && value !== undefined));
  const most = roundUp(Math.max(...values, 0));
  const x = (i) => left + (width - left - right) * i / Math.max(slots.length - 1, 1);
  const y = (value) => top + (height - top - bottom) * (1 - value / most);
  const svg = element("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": curves.map((curve) => curve.name).join(", ") });
  for (const part of [0, 0.5, 1]) {
    svg.append(element("line", { class: "grid", x1: left, x2: width - right, y1: y(part * most), y2: y(part * most) }),
      element("text", { x: left - 6, y: y(part * most) + 4, "text-anchor": "end" }, curves[0].show(part * most)));
  }
  for (const [part, anchor] of [[0, "start"], [0.5, "middle"], [1, "end"]]) {
    const i = Math.round(part * (slots.length - 1));
    svg.append(element("text", { x: x(i), y: height - 4, "text-anchor": anchor }, ago(slots, i, step)));
  }
  for (const curve of curves) {
    let path = "", gap = true;
    curve.values.forEach((value, i) => {
      const missing = value === null || value === undefined;
      if (!missing) path += `${gap ? "M" : "L"}${x(i).toFixed(1)} ${y(value).toFixed(1)}` + (gap ? "h.01" : "");
      gap = missing;
    });
    svg.append(element("path", { class: "curve " + curve.colour, d: path }));
  }
  const mark = element("line", { class: "mark", y1: top, y2: height - bottom, x1: -9, x2: -9 });
  const legend = element("p", { class: "legend" });
  const tell = (i) => legend.replaceChildren(...curves.map((curve) => element("span", null,
    element("i", { class: curve.colour }), `${curve.name} ${curve.show(curve.values[i])}`)), element("span", { class: "when" }, ago(slots, i, step)));
  const point = (event) => {
    const at = (event.clientX - svg.getBoundingClientRect().left) * width / svg.getBoundingClientRect().width;
    const i = Math.min(Math.max(Math.round((at - left) / (width - left - right) * (slots.length - 1)), 0), slots.length - 1);
    place.dataset.at = i;
    mark.setAttribute("x1", x(i));
    mark.setAttribute("x2", x(i));
    tell(i);
  };
  const leave = () => { delete place.dataset.at; mark.setAttribute("x1", -9); mark.setAttribute("x2", -9); tell(slots.length - 1); };
  svg.append(mark);
  svg.addEventListener("pointermove", point);
  svg.addEventListener("pointerdown", point);
  svg.addEventListener("pointerleave", leave);
  place.replaceChildren(legend, svg);
  const at = place.dataset.at === undefined ? slots.length - 1 : Number(place.dataset.at);
  tell(at);
  if (place.dataset.at !== undefined) { mark.setAttribute("x1", x(at)); mark.setAttribute("x2", x(at)); }
}

/* The next number with one digit, or 1.5, 2.5: what an axis ends with. */
function roundUp(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10].map((digit) => digit * power).find((bound) => bound >= value * 0.9999);
}

function ago(slots, i, step) {
  if (step > 1) return clock(slots[i].t);
  const seconds = slots[slots.length - 1].t - slots[i].t;
  return seconds ? `${seconds} s ago` : "now";
}

/* Draws bars that lie: [[name, value, text]]; as long as their share of the largest, or of `most`. */
function drawBars(place, bars, most) {
  const largest = most || Math.max(...bars.map((bar) => bar[1]), 0);
  place.replaceChildren(...bars.map(([name, value, text]) => element("div", { class: "bar" },
    element("span", null, name), meter(largest ? value / largest : 0), element("b", null, text))));
}

/* A bar for a share; beyond 1 it is full and marked. */
function meter(share, mark) {
  const filled = element("i", { class: mark || "" });
  filled.style.width = `${Math.min(Math.max(share, 0), 1) * 100}%`;
  return element("div", { class: "meter" }, filled);
}
