// Who has memory: blocks by tag, call site or size, by the reader's choice. An owner has one color, in the chart, on the
// map and in the tables.
const owned = {
  all: data.timeline.owners,
  chosen: data.timeline.owners[0],
  lists: [],
  choose(by) {
    this.chosen = this.all.find(one => one.by === by) ?? this.all[0];
    this.lists.forEach(list => this.fill(list));
    this.mark();
    view.changed();
  },
  // What kind of band it is, by its place in the list.
  color(index, { bands, by } = this.chosen) {
    const band = bands[index];
    if (!band || (band.groups === 1 && band.key === 0 && by !== "size")) return "unowned";
    return band.groups > 1 ? "others" : `o${index}`;
  },
  name(band, by = this.chosen.by) {
    if (band.groups > 1) return `${count(band.groups)} others`;
    if (by === "size") return `blocks of ${bytes(band.key)}`;
    return band.key > 0 ? label(band.key) : by === "tag" ? "untagged" : "no call stack";
  },
  // Tables show colors while these are the ones of the chart and the map.
  mark() { document.body.dataset.by = this.chosen.by; },
  swatch(row, by) {
    const made = swatch(this.colorOf(row, by));
    made.classList.add(`by-${by}`);
    return made;
  },
  // The color of a row of a table.
  colorOf(row, by) {
    const way = this.all.find(one => one.by === by);
    const index = way ? way.bands.findIndex(band => band.key === row.key && (band.groups > 1) === (row.groups > 1)) : -1;
    return index < 0 ? "others" : this.color(index, way);
  },
  // The bucket of an event, and the sum of its bands.
  bucket(event) { return Math.floor(event / data.timeline.events_per_band_bucket); },
  sum(bucket) {
    this.chosen.sums ??= (this.chosen.bands[0]?.bytes ?? []).map((_, at) => this.chosen.bands.reduce((all, band) => all + band.bytes[at], 0));
    return this.chosen.sums[bucket] ?? 0;
  },
  // A list of the owners; with figures, what each had at the moment that is told.
  list(parent, hasFigures) {
    const list = { parent, hasFigures, figures: [] };
    this.lists.push(list);
    this.fill(list);
  },
  fill(list) {
    list.figures = this.chosen.bands.map(() => element("span", { className: "figure" }));
    list.parent.replaceChildren(...this.chosen.bands.map((band, index) => element("li", {},
      swatch(this.color(index)), element("span", { className: "name" }, this.name(band)), ...(list.hasFigures ? [list.figures[index]] : []))));
  },
  tell(event) {
    const bucket = this.bucket(event);
    for (const { hasFigures, figures } of this.lists) {
      if (hasFigures) this.chosen.bands.forEach((band, index) => { figures[index].textContent = bytes(band.bytes[bucket] ?? 0); });
    }
  },
};
