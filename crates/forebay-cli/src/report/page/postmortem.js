// The post-mortem of a refused request, and the state of a pool at any other moment.
const refusal = data.refusal;
const hex = value => `0x${value.toString(16)}`;
const stackAt = index => index === null ? "" : data.stacks[index] ?? "";
const age = value => value === null ? "\u2013" : value < 1000 ? `${value} ms` : value < 60e3 ? `${(value / 1e3).toFixed(1)} s` : value < 36e5 ? `${(value / 60e3).toFixed(1)} min` : `${(value / 36e5).toFixed(1)} h`;

function figures() {
  const { figures: of, device } = data;
  const all = [
    ["limit", bytes(of.limit_bytes), refusal && refusal.held_by_group_bytes ? `${bytes(refusal.held_by_group_bytes)} held by pools that share it` : "the most the pool may hold"],
    ["held", bytes(of.held_bytes), "taken from the device"],
    ["live", bytes(of.live_bytes), counted(of.blocks, "block")],
    ["free", bytes(of.free_bytes), `${bytes(of.cached_bytes)} in thread caches`],
    ["largest hole", bytes(of.largest_free_bytes), `of ${counted(data.holes.count, "hole")}`],
    ["device", device.free_bytes === null ? "\u2013" : `${bytes(device.free_bytes)} free`, `${device.total_bytes === null ? "" : `of ${bytes(device.total_bytes)}, `}${device.kind}:${device.ordinal} ${device.name}`],
  ];
  if (refusal) all.unshift(["requested", bytes(refusal.requested_bytes), `${count(refusal.requested_bytes)} B, refused`]);
  byId("figures").append(...all.map(([name, value, more]) => element("div", {}, element("dt", {}, name), element("dd", {}, value, element("small", {}, more)))));
}

function request() {
  byId("why").textContent = data.why;
  if (!refusal) return;
  const said = stackAt(refusal.stack);
  table(byId("request"), "The request", [
    number("requested", row => row.requested_bytes, row => bytes(row.requested_bytes)),
    number("needed, contiguous", row => row.needed_bytes, row => bytes(row.needed_bytes)),
    number("alignment", row => row.alignment_bytes, row => bytes(row.alignment_bytes)),
    { title: "stream", value: row => hex(row.stream) },
    { title: "tag", value: row => data.refused_tag },
    number("would have fit", row => row.fits_bytes, row => bytes(row.fits_bytes)),
    number("limit that is enough", row => row.enough_limit_bytes ?? 0, row => row.enough_limit_bytes === null ? "none" : bytes(row.enough_limit_bytes)),
  ], [refusal]);
  byId("request").append(said ? element("pre", { className: "stack" }, said) : element("p", { className: "note" }, "No call stack: the program has no names, or the call came from a thread of the library."));
}

function remedies() {
  byId("remedies-section").hidden = !refusal;
  if (!refusal) return;
  const items = refusal.remedies.map(text => element("li", {}, element("p", {}, text)));
  byId("remedies").append(...(items.length ? items : [element("li", {}, "Nothing that these figures show.")]));
}

// Blocks and holes at their addresses. In the columns of the map, stream 1 stands for a hole.
class MomentMap extends AddressMap {
  // All of them, the lowest first.
  liveBlocks() {
    const { offset } = this.blocks;
    return this.sorted ??= offset.map((_, block) => block).sort((left, right) => offset[left] - offset[right]);
  }

  look(block) { return paint(block); }
  fill(pen, block) { return color(paint(block)); }
  coloring() { return "tag"; }

  draw() {
    super.draw();
    const { width, height } = this.canvas.getBoundingClientRect(), pen = this.canvas.getContext("2d"), layout = this.layout(width, height);
    pen.fillStyle = color("ink");
    for (const region of data.map.regions.slice(1)) this.parts(layout, region.offset, 1, (x, y, w, h) => pen.fillRect(x - 1, y, 2, h));
  }

  address(offset) {
    const region = data.map.regions.findLast(region => region.offset <= offset) ?? { offset: 0, address: 0 };
    return region.address + offset - region.offset;
  }

  say() {
    const { bytes: sizes, offset, stream: kinds, label: rows } = this.blocks;
    const sum = kind => this.live.reduce((all, block) => kinds[block] === kind ? all + sizes[block] : all, 0);
    byId("map-readout").textContent = `${bytes(sum(0))} in blocks and ${bytes(sum(1))} in holes drawn, of ${bytes(data.figures.held_bytes)} held.`;
    this.canvas.dataset.blocks = this.live.length;
    this.canvas.setAttribute("aria-label", byId("map-readout").textContent);
    const block = this.picked;
    if (!this.live.includes(block)) { byId("map-block").textContent = ""; return; }
    const at = hex(this.address(offset[block]));
    if (kinds[block] === 1) { byId("map-block").textContent = `A hole of ${bytes(sizes[block])} at ${at}`; return; }
    const row = data.blocks[rows[block]], said = stackAt(row.stack);
    byId("map-block").textContent = `${bytes(sizes[block])} at ${at}, ${row.tag}${row.stream === null ? "" : `, stream ${hex(row.stream)}`}${row.age_ms === null ? "" : `, ${age(row.age_ms)} old`}${said ? `\n${said}` : ""}`;
  }
}

// The color of a block's tag, or of a hole: the largest tags have one of their own.
const colored = data.owners.by_tag.map(row => row.owner).filter(owner => owner !== "(no tag)" && !/^\(\d+ others\)$/.test(owner)).slice(0, 7);
const tagColor = tag => tag === "(no tag)" ? "unowned" : colored.includes(tag) ? `o${colored.indexOf(tag)}` : "others";
function paint(block) {
  const { stream: kinds, label: rows } = data.map.blocks;
  return kinds[block] === 1 ? "hole" : tagColor(data.blocks[rows[block]].tag);
}

function addressMap() {
  const names = [...colored, ...data.owners.by_tag.map(row => row.owner).filter(owner => !colored.includes(owner))];
  byId("map-owners").append(...names.slice(0, 9).map(name => element("li", {}, swatch(tagColor(name)), element("span", { className: "name" }, name))));

  const { spans_left_out: spans, holes_left_out: holes, blocks_left_out: blocks } = data.map;
  const left = [[blocks, "block"], [holes, "hole"], [spans, "span"]].filter(([out]) => out).map(([out, what]) => counted(out, `smaller ${what}`));
  byId("map-note").textContent = `Addresses along rows, like words on a page; those without memory are left out. ${left.length ? `Not drawn: ${left.join(", ")}.` : "Everything is drawn."}`;
  return new MomentMap(byId("map"));
}

function owners() {
  const parent = byId("owners"), live = Math.max(data.figures.live_bytes, 1);
  const known = data.blocks.some(block => block.age_ms !== null);
  byId("owners-note").textContent = `Each table adds up to the ${bytes(data.figures.live_bytes)} in live blocks.${known ? "" : " Ages and call stacks are known with the setting stacks on."}`;
  const common = [
    number("bytes", row => row.bytes, row => bytes(row.bytes)),
    number("of live", row => row.bytes / live, row => percent(row.bytes / live)),
    number("blocks", row => row.blocks, row => count(row.blocks)),
    number("oldest", row => row.oldest_ms ?? -1, row => age(row.oldest_ms)),
  ];
  const named = title => ({ title, value: row => row.owner, text: row => stack(row.owner), stack: true });
  table(parent, "By tag", [...common, named("tag")], data.owners.by_tag, { sort: 0 });
  table(parent, "By call stack", [...common, named("call stack")], data.owners.by_stack, { sort: 0 });
  table(parent, "Largest blocks", [
    { title: "address", value: row => hex(row.address) },
    number("size", row => row.size_bytes, row => bytes(row.size_bytes)),
    number("requested", row => row.requested_bytes, row => bytes(row.requested_bytes)),
    { title: "tag", value: row => row.tag },
    { title: "stream", value: row => row.stream === null ? "\u2013" : hex(row.stream) },
    number("age", row => row.age_ms ?? -1, row => age(row.age_ms)),
    { title: "call stack", value: row => stackAt(row.stack), text: row => stack(stackAt(row.stack)), stack: true },
  ], data.blocks.slice(0, 200), { sort: 1 });
}

function holes() {
  const { count: all, bytes: free, largest, sizes } = data.holes;
  byId("holes-note").textContent = `${bytes(free)} in ${counted(all, "hole")}. A request is served by one hole, by whole free pages that the pool maps together, or by new memory.`;
  bars(byId("hole-sizes"), "Sizes", sizes, from => `from ${bytes(from)}`, "Holes by size, in powers of two.");
  table(byId("holes"), "Largest holes", [
    { title: "address", value: row => hex(row.address) },
    number("size", row => row.size_bytes, row => bytes(row.size_bytes)),
    { title: "among", value: row => `${row.side} blocks` },
  ], largest, { sort: 1 });
}

function pools() {
  const others = refusal ? refusal.other_pools : [];
  byId("pools-section").hidden = !others.length;
  if (!others.length) return;
  table(byId("pools"), "Pools", [
    number("pool", row => row.pool),
    number("held", row => row.held_bytes, row => bytes(row.held_bytes)),
    number("in no live block", row => row.free_bytes, row => bytes(row.free_bytes)),
    { title: "limit", value: row => row.shares_limit ? "the same" : "its own" },
  ], others, { sort: 1 });
}

figures();
request();
remedies();
const map = addressMap();
owners();
holes();
pools();
// A date has its limits, which a file need not keep.
const taken = new Date(data.taken_unix_ms);
const when = isNaN(taken) ? `${data.taken_unix_ms} ms after 1970` : taken.toISOString();
byId("when").textContent = `Taken ${when}`;
const settings = data.settings.map(({ name, value }) => `${name}:${value}`).join(", ");
byId("source").textContent = `Pool ${data.pool} (${data.class}), ${when}. ${settings ? `Settings that are not the defaults: ${settings}. ` : ""}forebay ${data.forebay}, ${data.schema}.`;
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => map.draw());
requestAnimationFrame(() => { map.draw(); document.documentElement.dataset.ready = "yes"; });
