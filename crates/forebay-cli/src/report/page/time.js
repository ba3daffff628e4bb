const last = Math.max(data.run.events - 1, 0);

// The part of time that charts show, and the moment that everything is about. Whoever draws listens.
const view = {
  from: 0, to: last + 1, moment: data.run.peak_at, listeners: [],
  show(from, to) {
    const least = Math.min(8, last + 1);
    const width = Math.min(Math.max(to - from, least), last + 1);
    this.from = Math.min(Math.max(from, 0), last + 1 - width);
    this.to = this.from + width;
    this.changed();
  },
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
    const around = data.run.peak_at, half = (last + 1) / 40;
    this.moment = around;
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
