const get = (id) => document.getElementById(id);
const WORDS = {
  started: (event) => `started with version ${event.version}`,
  stopped: () => "stopped",
  bundle_accepted: (event) => `version ${event.version} taken over, in the place of ${event.before}`,
  bundle_refused: (event) => `a new bundle was refused: ${event.error}`,
  worker_died: (event) => `a worker died${event.status === undefined ? "" : `, status ${event.status}`}`,
  worker_replaced: () => "a worker was replaced",
  worker_stuck: () => "a worker was stuck and is replaced",
  drain_overrun: () => "stopped before all requests were answered",
};
/* Milliseconds between two looks, for each span. */
const PAUSE = { minute: 1000, hour: 5000, day: 15000 };
let span = "minute", last = null, timer = null;

function show(data) {
  const { slots, now, span: over } = data, step = over.step;
  const per = (name) => slots.map((slot, i) => slot[name] / (i < slots.length - 1 ? step : over.last));
  const model = data.models[0] || { name: "", version: "" };
  get("about").textContent = `version ${model.version}, L2H ${data.l2h}`;
  get("trouble").hidden = !data.trouble && now.ledger_up !== 0;
  get("trouble").textContent = data.trouble || "The ledger cannot be written: requests are refused.";
  showTiles(data, (slots.length - 1) * step + over.last);
  drawCurves(get("traffic"), slots, step, [
    { name: "requests", colour: "blue", values: per("requests"), show: rounded },
    { name: "inputs", colour: "green", values: per("inputs"), show: rounded },
  ]);
  drawCurves(get("latency"), slots, step, ["p50", "p90", "p99"].map((name, i) =>
    ({ name, colour: ["green", "orange", "vermillion"][i], values: slots.map((slot) => slot.latency[name]), show: milliseconds })));
  drawCurves(get("queue"), slots, step, [
    { name: "inputs that wait", colour: "vermillion", values: slots.map((slot) => slot.queue), show: rounded },
    { name: "requests at hand", colour: "blue", values: slots.map((slot) => slot.in_flight), show: rounded },
  ]);
  drawCurves(get("refused"), slots, step, [{ name: "refused", colour: "vermillion", values: per("refused"), show: rounded }]);
  drawBars(get("batches"), over.batches.map((batch) => [batch.inputs, batch.calls, whole(batch.calls)]));
  const reasons = { ...Object.fromEntries(Object.keys(data.since_start.refused).map((reason) => [reason, 0])), ...over.refused };
  const bars = Object.entries(reasons).sort((a, b) => b[1] - a[1]);
  drawBars(get("reasons"), bars.map(([reason, count]) => [reason, count, `${whole(count)} (${whole(data.since_start.refused[reason] || 0)})`]));
  if (!bars.length) get("reasons").textContent = "none";
  showKeys(data);
  showCharges(data);
  get("events").replaceChildren(...data.events.map((event) => element("li", null,
    element("time", { datetime: new Date(event.time * 1e3).toISOString() }, `${day(event.time)} ${clock(event.time)}`), " ",
    (WORDS[event.event] || (() => event.event))(event))));
}

function showTiles(data, seconds) {
  const { now, span: over, since_start: all } = data;
  const refused = Object.values(over.refused).reduce((sum, count) => sum + count, 0);
  const reloads = `reloads: ${whole(all.reloads.taken || 0)} taken over, ${whole(all.reloads.refused || 0)} refused, as workers count`;
  const versions = data.models.map((model) => model.version);
  const tiles = [
    ["requests", "Requests", `${rounded(over.requests / seconds)} / s`, `${whole(over.requests)} in this ${over.name}, ${whole(all.requests)} since the start`],
    ["inputs", "Inputs", `${rounded(over.inputs / seconds)} / s`, `${whole(over.inputs)} in this ${over.name}, ${whole(all.inputs)} since the start`],
    ["p99", "Latency, p99", milliseconds(over.latency.p99), `p50 ${milliseconds(over.latency.p50)}, p90 ${milliseconds(over.latency.p90)}`],
    ["batch", "Inputs of a call", rounded(over.inputs_per_call), `${whole(over.calls)} calls in this ${over.name}`],
    ["waiting", "Queue", whole(now.queue || 0), `${whole(now.in_flight || 0)} requests at hand, ${whole(now.connections || 0)} connections`],
    ["errors", "Refused", whole(refused), `${rounded(over.requests ? 100 * refused / over.requests : 0)}% in this ${over.name}`],
    ["workers", "Workers", `${data.workers.able} of ${data.workers.all}`, data.workers.able < data.workers.all ? "some cannot answer" : "all answer"],
    ["version", "Version", versions.join(", "), versions.length > 1 ? "being taken over" : reloads],
  ];
  get("tiles").replaceChildren(...tiles.map(([id, name, value, more]) => element("div", { id: `tile-${id}` },
    element("dt", null, name), element("dd", null, value, element("small", null, more)))));
}

function showKeys(data) {
  const rows = data.keys.map((key) => {
    const { quota, rate } = key, over = quota && quota.projected > quota.count;
    const used = quota ? element("div", null, `${whole(quota.used)} of ${quota.text}`, meter(quota.used / quota.count, quota.used >= quota.count ? "bad" : over ? "warn" : "")) : "no quota";
    let end = "";
    if (quota && quota.used >= quota.count) {
      end = element("div", { class: "bad" }, "used up", element("small", null, `until ${clock(quota.ends)}`));
    } else if (quota) {
      const more = quota.runs_out ? `used up at ${clock(quota.runs_out)}` : `ends at ${clock(quota.ends)}`;
      end = element("div", null, quota.projected === null ? "too early to say" : whole(quota.projected), element("small", { class: over ? "bad" : "" }, more));
    }
    const speed = element("div", null, `${rounded(key.per_second)}${rate ? ` of ${rounded(rate.per_second)}` : ""}`, rate ? meter(key.per_second / rate.per_second, key.per_second > 0.9 * rate.per_second ? "warn" : "") : null);
    const name = element("div", null, key.name || key.id, element("small", null, key.name === key.id || !key.name ? "" : key.id, key.enabled ? "" : " not in use"));
    return [name, used, end, speed, whole(key.charged.requests), whole(key.charged.inputs), whole(key.charged.units)];
  });
  fillTable(get("keys"), ["Key", "Used in this period", "At its end, if it goes on", "Inputs per second, last minute", "Requests", "Inputs", "Units"], rows);
  get("more").textContent = data.more_keys ? `and ${whole(data.more_keys)} more keys, with less use` : "";
}

function showCharges(data) {
  if (!data.ledger) return;
  const { all, rows } = data.ledger, days = new Map();
  for (const row of rows) days.set(row.day, (days.get(row.day) || 0) + row.units);
  get("charged").textContent = `${whole(all.units)} units for ${whole(all.inputs)} inputs in ${whole(all.requests)} requests, ` +
    `of which ${whole(all.undelivered)} were not delivered and ${whole(all.unconfirmed)} are not confirmed.`;
  drawBars(get("days"), [...days].sort().reverse().map(([name, units]) => [name, units, whole(units)]));
  fillTable(get("ledger"), ["Day", "Key", "Requests", "Inputs", "Units", "Not delivered", "Not confirmed"], [...rows].reverse().map((row) =>
    [row.day, row.name || row.key, whole(row.requests), whole(row.inputs), whole(row.units), whole(row.undelivered), whole(row.unconfirmed)]));
}

async function look() {
  clearTimeout(timer);
  try {
    const [overview, devices] = await Promise.all([`/dashboard/data?span=${span}`, "/dashboard/devices"].map((path) => fetch(path, { headers: { Accept: "application/json" } })));
    if (overview.status === 401) return location.reload();
    if (!overview.ok || !devices.ok) throw new Error((await (overview.ok ? devices : overview).json()).error);
    last = await overview.json();
    show(last);
    drawDevices(get("devices"), await devices.json());
    get("state").textContent = `live, ${new Date(last.time * 1e3).toLocaleTimeString([], { hour12: false })}`;
    get("state").className = "";
    get("state").removeAttribute("role");
  } catch (error) {
    get("state").textContent = `no answer: ${error.message}`;
    get("state").className = "bad";
    get("state").setAttribute("role", "alert");
  }
  if (!document.hidden) timer = setTimeout(look, PAUSE[span]);
}

for (const button of document.querySelectorAll("#spans button")) {
  button.addEventListener("click", () => {
    span = button.dataset.span;
    for (const other of document.querySelectorAll("#spans button")) other.setAttribute("aria-pressed", other === button);
    look();
  });
}
document.addEventListener("visibilitychange", () => { if (!document.hidden) look(); });
addEventListener("resize", () => { if (last) show(last); });
look();
