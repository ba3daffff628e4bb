// The tables of a run.

const HAPPENINGS = { growth: "growth", release: "release", page_moves: "pages moved", out_of_memory: "out of memory" };
function owners() {
  const all = (rows, figure) => rows.reduce((sum, row) => sum + row[figure], 0);
  const parent = byId("owners"), peak = Math.max(data.run.peak_requested_bytes, 1);
  const common = [
    { ...number("bytes", row => row.bytes, row => bytes(row.bytes)), sum: rows => bytes(all(rows, "bytes")) },
    { ...number("of the peak", row => row.bytes / peak, row => percent(row.bytes / peak)), sum: rows => percent(all(rows, "bytes") / peak) },
    { ...number("blocks", row => row.blocks, row => count(row.blocks)), sum: rows => count(all(rows, "blocks")) },
  ];
  // The rows of a table add up to the peak: blocks without a label, and the groups beyond the listed ones, are rows too.
  const rest = row => `(${count(row.groups)} others)`;
  const named = (title, text = row => row.key) => ({ title, value: row => row.groups > 1 ? -1 : row.key, text: row => row.groups > 1 ? rest(row) : text(row) });
  const labelled = (title, none, by) => {
    const text = row => row.groups > 1 ? rest(row) : row.key === 0 ? `(${none})` : label(row.key);
    return { title, value: text, text: row => stack(text(row), ...(by ? [owned.swatch(row, by)] : [])), stack: true };
  };
  if (data.owners.by_tag.length) table(parent, "By tag", [...common, labelled("tag", "untagged", "tag")], data.owners.by_tag, { sort: 0 });
  if (data.owners.by_site.length) {
    table(parent, "By call site", [...common, labelled("call site", "no call stack", "site")], data.owners.by_site, { sort: 0 });
    table(parent, "By call stack, or else by tag", [...common, labelled("call stack or tag", "no stack or tag")], data.owners.by_label, { sort: 0 });
  }
  if (data.owners.by_thread.length > 1) table(parent, "By thread", [named("thread"), ...common], data.owners.by_thread, { sort: 1 });
  const sizes = { ...named("size", row => bytes(row.key)), number: true };
  const size = sizes.text;
  sizes.text = row => element("span", {}, owned.swatch(row, "size"), size(row));
  table(parent, "By size", [sizes, ...common], data.owners.by_size, { sort: 1 });
  if (data.run.stream_count > 1) {
    const stream = named("stream", row => `${row.key} (handle ${handle(row.key)})`);
    table(parent, "By stream", [stream, ...common], data.owners.by_stream, { sort: 1 });
  }
  const columns = [
    number("size", row => row.bytes, row => bytes(row.bytes)),
    number("stream", row => row.stream),
    number("allocated by event", row => row.born, row => count(row.born)),
    number("lives for events", row => (row.freed ?? Infinity) - row.born, row => row.freed === null ? "to the end" : count(row.freed - row.born)),
  ];
  if (data.labels.length) columns.push({ title: "call stack or tag", value: row => label(row.label), text: row => stack(label(row.label)), stack: true });
  table(parent, "Largest blocks", columns, data.owners.largest, { sort: 0 });
}

const handle = index => index < data.run.streams.length ? `0x${data.run.streams[index].toString(16)}` : "not listed";

function happenings() {
  const all = data.happenings;
  byId("happenings-note").textContent = `First pass: grew ${counted(all.growths, "time")}, gave memory back ${counted(all.releases, "time")}, moved ${counted(all.moved_pages, "page")}, ran out of memory ${counted(all.out_of_memory, "time")}. Of each kind, the largest 150 are listed.`;
  const go = row => {
    const button = element("button", { type: "button" }, count(row.at));
    button.addEventListener("click", () => { view.pick(row.at); byId("map-title").scrollIntoView(); });
    return button;
  };
  table(byId("happenings"), "Events", [
    number("event", row => row.at, go),
    { title: "what", value: row => HAPPENINGS[row.kind], mark: row => row.kind === "out_of_memory" ? "fault" : "" },
    number("bytes", row => row.bytes, row => row.kind === "page_moves" ? "" : bytes(row.bytes)),
    number("pages", row => row.kind === "page_moves" ? row.count : 0, row => row.kind === "page_moves" ? count(row.count) : ""),
  ], all.listed, { sort: 0, descending: false });
}

// What was on its way between host and device.
function transfers() {
  const all = data.transfers;
  byId("transfers-section").hidden = !all;
  if (!all) return;
  const [up, down] = all.under_way, per = data.timeline.events_per_bucket;
  const line = (text, series, index) => ({ text, range: bucketed(series, per), fill: true, shown: true, color: `s${index}`, dash: [] });
  const lines = [line("to the device", up, 1), line("from the device", down, 2)];
  legend(byId("transfers-legend"), new Chart(byId("transfers"), byId("transfers-readout"), lines, { say: value => bytes(Math.round(value)) }));
  byId("transfers-note").textContent = `Bytes of the transfers under way: ${counted(all.counts[0], "transfer")} with ${bytes(all.bytes[0])} to the device, ${count(all.counts[1])} with ${bytes(all.bytes[1])} from it. The largest are listed.`;
  table(byId("transfers-table"), "Largest transfers", [
    { title: "way", value: row => row.direction },
    number("bytes", row => row.bytes, row => bytes(row.bytes)),
    number("after event", row => row.at, row => count(row.at)),
    number("begin", row => row.begin_ns, row => nanos(row.begin_ns)),
    number("time", row => row.took_ns, row => nanos(row.took_ns)),
    number("a second", row => row.bytes / Math.max(row.took_ns, 1), row => bytes(Math.round(row.bytes / Math.max(row.took_ns, 1) * 1e9))),
  ], all.listed, { sort: 1 });
}

function policies() {
  const rows = data.policies, least = Math.min(...rows.filter(row => row.ooms === 0).map(row => row.ratio));
  const fit = row => data.fits.find(fit => fit.policy === row.policy)?.smallest_bytes ?? Infinity;
  const columns = [
    { title: "allocator", value: row => row.policy },
    number("pass", row => row.pass),
    number("peak", row => row.peak_reserved_bytes, row => bytes(row.peak_reserved_bytes)),
    number("ratio", row => row.ratio, row => row.ratio.toFixed(4), row => row.ratio === least && row.ooms === 0 ? "best" : ""),
    number("driver calls", row => row.driver_calls, row => count(row.driver_calls)),
    number("driver time", row => row.driver_ns, row => nanos(row.driver_ns)),
    number("time per operation", row => row.mean_ns, row => nanos(row.mean_ns)),
    number("99th percentile", row => row.p99_ns, row => nanos(row.p99_ns)),
    number("out of memory", row => row.ooms, row => count(row.ooms), row => row.ooms ? "fault" : ""),
  ];
  if (data.fits.length) columns.splice(4, 0, number("smallest device", fit, row => fit(row) === Infinity ? "\u2013" : bytes(fit(row))));
  table(byId("policies"), "Ratio: the peak over the most requested; 1 is the best possible", columns, rows, { sort: 2, descending: false });
  if (!data.trials.length) return;
  byId("trials").append(element("h3", {}, "What changes would do"));
  table(byId("trials"), "forebay's pool, two passes together", [
    { title: "change", value: row => row.change },
    number("peak", row => row.peak_reserved_bytes, row => bytes(row.peak_reserved_bytes)),
    number("driver calls", row => row.driver_calls, row => count(row.driver_calls)),
    number("driver time", row => row.driver_ns, row => nanos(row.driver_ns)),
  ], [ours(), ...data.trials]);
}

// The pool as it is, in the form of a trial.
function ours() {
  const rows = data.policies.filter(row => row.policy === "forebay"), sum = key => rows.reduce((all, row) => all + row[key], 0);
  return { change: "none", peak_reserved_bytes: Math.max(...rows.map(row => row.peak_reserved_bytes)), driver_calls: sum("driver_calls"), driver_ns: sum("driver_ns") };
}
