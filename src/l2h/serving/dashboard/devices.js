let onlyFlagged = false, drawn = "";
const FLAGS = { drift: "drifts", offline: "offline", old_bundle: "old bundle" };
const UNITS = { d: 86400, h: 3600, min: 60, s: 1 };

/* Draws what devices reported, oldest news first; the section stays away while none did. */
function drawDevices(section, data) {
  section.hidden = !data.total && !data.trouble;
  const text = JSON.stringify([data, onlyFlagged]);
  if (text === drawn) return;
  drawn = text;
  if (data.trouble) return section.replaceChildren(element("h2", null, "Devices"), element("p", { class: "bad" }, data.trouble));
  const { total, flagged } = data, marked = data.devices.filter((device) => device.flags.length);
  const counts = `${whole(flagged.drift)} with drift, ${whole(flagged.offline)} offline, ${whole(flagged.old_bundle)} with an old bundle`;
  const toggle = element("button", { id: "flagged", "aria-pressed": String(onlyFlagged) }, "Only those");
  toggle.addEventListener("click", () => { onlyFlagged = !onlyFlagged; drawDevices(section, data); get("flagged").focus(); });
  const rows = onlyFlagged ? marked : data.devices, hidden = total - data.devices.length;
  const table = element("table", { id: "fleet" });
  fillTable(table, ["Device", "Last news", "Inputs", "Asked", "Answered by", "Why", "Expected saving", "Latency", "Bundle"], rows.map(deviceRow));
  section.replaceChildren(element("h2", null, "Devices"),
    element("div", { class: "bars" }, element("p", { id: "fleet-counts" }, `${whole(total)} ${total === 1 ? "device" : "devices"}: ${counts}.`), marked.length ? toggle : null),
    element("div", { class: "scroll" }, table),
    element("p", { class: "note" }, `Oldest news first, as of ${clock(Date.parse(data.now) / 1e3)}.` + (hidden ? ` ${whole(hidden)} more without a flag: l2h devices list.` : "")));
}

function deviceRow(device) {
  const name = element("div", null, device.device, element("small", null, device.key_name || device.key),
    ...device.flags.map((flag) => element("small", { class: "bad" }, FLAGS[flag] + (flag === "drift" ? ` (${device.drift})` : ""))));
  const share = device.inputs ? `${rounded(100 * device.asked / device.inputs)}%` : "–";
  const late = device.flags.includes("offline") ? "bad" : null;
  return [name, element("div", { class: late }, `${since(device.age)} ago`, element("small", null, `up ${since(device.uptime)}`)),
    whole(device.inputs), element("div", null, whole(device.asked), element("small", null, share)),
    counted(device.answerers), counted(device.reasons), rounded(device.expected_saving),
    element("div", null, milliseconds(device.latency && device.latency.p50), element("small", null, `p95 ${milliseconds(device.latency && device.latency.p95)}`)),
    element("div", { class: device.flags.includes("old_bundle") ? "bad" : null }, device.bundle.version, element("small", null, device.bundle.name))];
}

/* Counts by name, the largest first. */
function counted(counts) {
  const lines = Object.entries(counts).sort((a, b) => b[1] - a[1]).map(([name, count]) => element("small", null, `${name} ${whole(count)}`));
  return lines.length ? element("div", null, ...lines) : "–";
}

function since(seconds) {
  const [unit, length] = Object.entries(UNITS).find(([, length]) => seconds >= length) || ["s", 1];
  return `${Math.floor(seconds / length)} ${unit}`;
}
