// Tables that sort, and bars.

// columns: { title, value, text, number, mark }; a press on a heading sorts by its values.
function table(parent, caption, columns, rows, { sort = null, descending = true } = {}) {
  const body = element("tbody");
  const heads = columns.map((column, index) => {
    const head = element("th", { scope: "col", className: column.number ? "n" : "" });
    const button = element("button", { type: "button" }, column.title);
    button.addEventListener("click", () => {
      const now = head.getAttribute("aria-sort");
      order(index, now ? now === "ascending" : Boolean(column.number));
    });
    head.append(button);
    return head;
  });
  function order(index, down) {
    heads.forEach((head, other) => {
      if (other === index) head.setAttribute("aria-sort", down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    const { value } = columns[index];
    const sorted = [...rows].sort((left, right) => {
      const [a, b] = [value(left), value(right)];
      const way = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
      return down ? -way : way;
    });
    fill(sorted);
  }
  function fill(sorted) {
    body.replaceChildren(...sorted.map(row => element("tr", {}, ...columns.map(column => {
      const shown = column.text ? column.text(row) : column.value(row);
      const mark = column.mark ? column.mark(row) : "";
      return element("td", { className: `${column.number ? "n" : ""} ${column.stack ? "stack" : ""} ${mark}`.trim() }, shown instanceof Node ? shown : String(shown));
    }))));
  }
  const made = element("table", {}, element("caption", {}, caption), element("thead", {}, element("tr", {}, ...heads)), body);
  parent.append(element("div", { className: "scroll", tabIndex: 0, role: "region", "aria-label": caption }, made));
  if (sort === null) fill(rows); else order(sort, descending);
}

// A stack: its first line, and the rest on demand.
function stack(text) {
  if (!text.includes("\n")) return text || "\u2013";
  return element("details", {}, element("summary", {}, firstLine(text)), text.slice(text.indexOf("\n") + 1));
}

// One bar for each power of two.
function bars(parent, title, list, say, note) {
  const most = Math.max(1, ...list.map(bar => bar.count));
  const lines = list.flatMap(bar => {
    const part = element("i");
    part.style.width = bar.count ? `max(1px, ${bar.count / most * 100}%)` : 0;
    return [
      element("dt", {}, say(bar.from)),
      element("dd", { className: "fill", "aria-hidden": "true" }, part),
      element("dd", {}, `${count(bar.count)} (${bytes(bar.bytes)})`),
    ];
  });
  parent.append(element("h3", {}, title), element("p", { className: "note" }, note), element("dl", { className: "hist" }, ...lines));
}

const HAPPENINGS = { growth: "growth", release: "release", page_moves: "pages moved", out_of_memory: "out of memory" };
const number = (title, value, text, mark) => ({ title, value, text, mark, number: true });

function owners() {
  const parent = byId("owners"), peak = Math.max(data.run.peak_requested_bytes, 1);
  const common = [
    number("bytes", row => row.bytes, row => bytes(row.bytes)),
    number("of the peak", row => row.bytes / peak, row => percent(row.bytes / peak)),
    number("blocks", row => row.blocks, row => count(row.blocks)),
  ];
  const named = (title, text) => ({ title, value: row => row.key, text });
  if (data.owners.by_label.length) {
    const call = { title: "call stack or tag", value: row => label(row.key), text: row => stack(label(row.key)), stack: true };
    table(parent, "By call stack or tag", [...common, call], data.owners.by_label, { sort: 0 });
  }
  const text = title => ({ title, value: row => label(row.key), text: row => stack(label(row.key)), stack: true });
  if (data.owners.by_site.length) table(parent, "By call site", [...common, text("call site")], data.owners.by_site, { sort: 0 });
  if (data.owners.by_tag.length && data.owners.by_site.length) table(parent, "By tag", [...common, text("tag")], data.owners.by_tag, { sort: 0 });
  if (data.owners.by_thread.length > 1) table(parent, "By thread", [named("thread"), ...common], data.owners.by_thread, { sort: 1 });
  const sizes = { ...named("size", row => bytes(row.key)), number: true };
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
