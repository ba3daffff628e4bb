const last = Math.max(data.run.events - 1, 0);

// The axis of time that all charts share: events in their order, or the clock of the recording. Places on it are event
// numbers or nanoseconds; events may be fractions.
const axis = {
  isClock: false,
  clock: data.timeline.clock_ns,
  get begin() { return this.isClock ? this.clock[0] : 0; },
  get end() { return this.isClock ? this.clock.at(-1) : last + 1; },
  // The event of a point of the clock.
  event(point) { return Math.min(point * data.timeline.events_per_bucket, last); },
  timeOf(event) {
    const per = data.timeline.events_per_bucket, clock = this.clock;
    const point = Math.min(Math.max(Math.floor(event / per), 0), clock.length - 1), next = Math.min(point + 1, clock.length - 1);
    const width = this.event(next) - this.event(point);
    return width > 0 ? clock[point] + (clock[next] - clock[point]) * Math.min(Math.max((event - this.event(point)) / width, 0), 1) : clock[point];
  },
  eventAtTime(time) {
    const clock = this.clock;
    let low = 0, high = clock.length;
    while (low < high) { const middle = (low + high) >> 1; if (clock[middle] <= time) low = middle + 1; else high = middle; }
    const point = Math.max(low - 1, 0), next = Math.min(point + 1, clock.length - 1), passed = clock[next] - clock[point];
    const part = passed > 0 ? Math.min(Math.max((time - clock[point]) / passed, 0), 1) : 0;
    return this.event(point) + (this.event(next) - this.event(point)) * part;
  },
  // The middle of an event, and the event at a place.
  place(event) { return this.isClock ? this.timeOf(event) : event + 0.5; },
  eventAt(place) { return this.isClock ? this.eventAtTime(place) : place; },
  // Other places, from the same ones on the other axis.
  turn(isClock) {
    if (isClock === this.isClock) return;
    const [from, to] = [view.from, view.to].map(place => this.eventAt(place)), isAll = view.from <= this.begin && view.to >= this.end;
    this.isClock = isClock;
    if (isAll) view.show(this.begin, this.end);
    else view.show(isClock ? this.timeOf(from) : from, isClock ? this.timeOf(to) : to);
  },
};

// Nanoseconds as a clock says them, as fine as a step of the axis needs.
function clockTime(ns, step = 1e6) {
  const seconds = ns / 1e9, digits = Math.min(Math.max(-Math.floor(Math.log10(step / 1e9)), 0), 9);
  if (seconds < 60 && step < 1e3) return `${Number((ns / 1e3).toFixed(3))} \u00b5s`;
  if (seconds < 1 && step < 1e6) return `${Number((ns / 1e6).toFixed(3))} ms`;
  if (seconds < 60) return `${seconds.toFixed(digits)} s`;
  const [hours, minutes] = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60], rest = (seconds % 60).toFixed(digits).padStart(digits ? digits + 3 : 2, "0");
  return hours ? `${hours}:${String(minutes).padStart(2, "0")}:${rest}` : `${minutes}:${rest}`;
}

// The part of the axis that charts show, and the moment that everything is about. Whoever draws listens.
const view = {
  from: 0, to: last + 1, moment: data.run.peak_at, listeners: [],
  show(from, to) {
    const all = axis.end - axis.begin, least = axis.isClock ? Math.min(all, Math.max(all / 1e6, 1e3)) : Math.min(8, all);
    const width = Math.min(Math.max(to - from, least), all);
    this.from = Math.min(Math.max(from, axis.begin), axis.end - width);
    this.to = this.from + width;
    this.changed();
  },
  all() { this.show(axis.begin, axis.end); },
  zoom(factor, around = (this.from + this.to) / 2) {
    this.show(around - (around - this.from) * factor, around + (this.to - around) * factor);
  },
  pan(share) {
    const by = (this.to - this.from) * share;
    this.show(this.from + by, this.to + by);
  },
  pick(moment) {
    this.moment = Math.min(Math.max(Math.round(moment), 0), last);
    this.changed();
  },
  peak() {
    this.moment = data.run.peak_at;
    const around = axis.place(this.moment), half = (axis.end - axis.begin) / 40;
    this.show(around - half, around + half);
  },
  changed() {
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => {
      this.pending = false;
      this.listeners.forEach(listener => listener());
    });
  },
};
