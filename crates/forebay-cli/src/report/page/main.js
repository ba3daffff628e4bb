// Puts the page together.
const forebay = data.policies.find(row => row.policy === "forebay");
const run = data.run;

// When it was recorded, for how long, and under which name.
function when() {
  const day = ms => { const date = new Date(ms); return isNaN(date) ? null : `${date.toISOString().slice(0, 16).replace("T", ", ")} UTC`; };
  const began = run.began_unix_ms === null ? null : day(run.began_unix_ms);
  const said = [began ? `Recorded ${began}` : `Date of the recording unknown, report made ${day(data.made_unix_ms)}`];
  if (axis.clock) said.push(`over ${clockTime(axis.clock.at(-1), axis.clock.at(-1) / 50)}`);
  if (run.file !== null && run.name !== run.file && run.name) said.push(`as \u201c${run.name}\u201d`);
  byId("when").textContent = said.join(", ");
}

function figures() {
  const all = [
    ["requested at the peak", bytes(run.peak_requested_bytes), `${counted(run.peak_blocks, "block")}, after event ${count(run.peak_at)}`],
    ["held by forebay", bytes(forebay.peak_reserved_bytes), `ratio ${forebay.ratio.toFixed(4)}`],
    ["events", count(run.events), `${counted(run.allocations, "allocation")}, ${counted(run.frees, "free")}`],
    ["never freed", count(run.never_freed), run.never_freed === 1 ? "block" : "blocks"],
    ["streams", count(run.stream_count), `largest block ${bytes(run.largest_bytes)}`],
  ];
  if (run.failed_allocations) all.push(["failed when recorded", count(run.failed_allocations), "allocations"]);
  if (data.capacity_bytes !== null) all.push(["device", bytes(data.capacity_bytes), forebay.ooms ? `${counted(forebay.ooms, "allocation")} failed` : "the run fits"]);
  const boxes = all.map(([name, value, more]) => element("div", {}, element("dt", {}, name), element("dd", {}, value, element("small", {}, more))));
  byId("figures").append(...boxes);
}

function timeChart() {
  const { events_per_bucket: per, series } = data.timeline;
  const lines = series.map((one, index) => ({
    name: one.name, text: one.name === "requested" ? "requested" : one.name === "forebay" ? "held by forebay" : one.name,
    range: bucketed(one, per), fill: false, shown: !["pow2", "direct"].includes(one.name), color: `s${index % 6}`, dash: DASHES[index % 6],
  }));
  byId("along-choice").hidden = !axis.clock;
  byId("along").addEventListener("change", event => axis.turn(event.target.value === "clock"));
  const ways = { tag: "tag", site: "call site", size: "size" };
  const choices = [...document.querySelectorAll(".by")];
  for (const choice of choices) {
    choice.append(...owned.all.map(({ by }) => element("option", { value: by }, ways[by])));
    choice.addEventListener("change", () => {
      choices.forEach(other => { other.value = choice.value; });
      owned.choose(choice.value);
    });
  }
  owned.list(byId("time-owners"), true);
  const peak = { at: series[0].peak_at, value: series[0].peak_bytes, line: lines[0] };
  const chart = new Chart(byId("time"), byId("time-readout"), lines, { say: value => bytes(Math.round(value)), peak, bands: owned });
  legend(byId("legend"), chart);
  const perBand = data.timeline.events_per_band_bucket;
  byId("time-note").textContent = `Areas: what the program requested, by owner; they add up to the line \u201crequested\u201d${perBand > 1 ? `, at the highest of each ${count(perBand)} events` : ""}. Lines: what each allocator held, with nothing cached before. Along the axis: ${counted(run.events, "event")}, that is allocations and frees in order${per > 1 ? `; each point of a line shows the least and the most of ${count(per)}` : ""}${axis.clock ? "; below it the clock" : ""}.`;
  byId("zoom-in").addEventListener("click", () => view.zoom(0.6, Math.min(Math.max(axis.place(view.moment), view.from), view.to)));
  byId("zoom-out").addEventListener("click", () => view.zoom(1 / 0.6));
  byId("zoom-all").addEventListener("click", () => view.all());
  byId("zoom-peak").addEventListener("click", () => view.peak());
  return chart;
}

function fragmentChart() {
  const pool = data.pool, unused = pool.held_bytes.map((held, index) => held > 0 ? 1 - pool.live_bytes[index] / held : null);
  const lines = [
    { text: "unused", range: sampled(pool.at, unused), fill: false, shown: true, color: "s1", dash: [] },
    { text: "scattered", range: sampled(pool.at, pool.fragmentation), fill: false, shown: true, color: "s2", dash: [5, 3] },
  ];
  const chart = new Chart(byId("fragments"), byId("fragments-readout"), lines, { say: value => `${Math.round(value * 1000) / 10} %`, most: 1, base: 10 });
  legend(byId("fragments-legend"), chart);
  return chart;
}

function addressMap() {
  const left = data.map.blocks_left_out;
  byId("map-note").textContent = `Where forebay's pool put blocks in the first pass. ${left ? `${counted(left, "block")} that were small or short-lived are not drawn; the largest of them has ${bytes(data.map.largest_left_out_bytes)}.` : "Every block is drawn."}`;
  owned.list(byId("map-owners"), false);
  owned.mark();
  const scrub = byId("scrub");
  scrub.max = last;
  scrub.value = view.moment;
  scrub.addEventListener("input", () => view.pick(Number(scrub.value)));
  byId("step-back").addEventListener("click", () => view.pick(view.moment - 1));
  byId("step-on").addEventListener("click", () => view.pick(view.moment + 1));
  byId("map-peak").addEventListener("click", () => view.pick(run.peak_at));
  const play = byId("play");
  let playing = 0;
  const stop = () => { clearInterval(playing); playing = 0; play.textContent = "Play"; };
  play.addEventListener("click", () => {
    if (playing) { stop(); return; }
    if (view.moment >= last) view.pick(0);
    play.textContent = "Stop";
    playing = setInterval(() => {
      view.pick(view.moment + Math.max(1, Math.round(last / 300)));
      if (view.moment >= last) stop();
    }, 50);
  });
  return new AddressMap(byId("map"));
}

function advice() {
  const items = data.advice.map(one => {
    const head = element("b", {}, one.title), item = element("li", {}, head);
    if (one.gain) item.append(element("span", { className: "gain" }, `measured: ${one.gain}`));
    item.append(element("p", {}, one.text));
    return item;
  });
  byId("advice").append(...(items.length ? items : [element("li", {}, "Nothing stands out in this run.")]));
}

when();
figures();
timeChart();
advice();
const map = addressMap();
owners();
bars(byId("sizes"), "Sizes", data.sizes, from => `from ${bytes(from)}`, "Requests by size, in powers of two.");
bars(byId("lifetimes"), "Lifetimes", data.lifetimes, from => `from ${count(from)}`, "Blocks by the number of events from their allocation to their free, or to the end of the run.");
fragmentChart();
happenings();
transfers();
policies();
const settings = Object.entries(forebay.settings ?? {}).map(([key, value]) => `${key}:${value}`).join(", ");
byId("source").textContent = `${settings ? `Settings of forebay's pool that are not the defaults: ${settings}. ` : ""}forebay ${data.forebay}, ${data.schema}. Every figure comes from replaying the recording on a simulated device.`;
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { view.listeners.forEach(listener => listener()); map.draw(); });
view.changed();
document.documentElement.dataset.ready = "yes";
