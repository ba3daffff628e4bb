// Lines over time: the least and the most of what falls into each pixel.

// A line of buckets: what is least and most from one event to another.
function bucketed(series, perBucket) {
  const { min, max } = series;
  return (from, to) => {
    const first = Math.max(Math.floor(from / perBucket), 0);
    const end = Math.min(Math.max(Math.ceil(to / perBucket), first + 1), max.length);
    let least = Infinity, most = -Infinity;
    for (let bucket = first; bucket < end; bucket += 1) {
      if (min[bucket] < least) least = min[bucket];
      if (max[bucket] > most) most = max[bucket];
    }
    return most < least ? null : [least, most];
  };
}

// A line of samples: each holds until the next.
function sampled(at, values) {
  const before = event => {
    let low = 0, high = at.length;
    while (low < high) { const middle = (low + high) >> 1; if (at[middle] <= event) low = middle + 1; else high = middle; }
    return Math.max(low - 1, 0);
  };
  return (from, to) => {
    const first = before(from);
    let least = Infinity, most = -Infinity;
    for (let index = first; index < at.length && (at[index] < to || index === first); index += 1) {
      const value = values[index];
      if (value === null) continue;
      if (value < least) least = value;
      if (value > most) most = value;
    }
    return most < least ? null : [least, most];
  };
}

// A round step for an axis of about so many parts.
function niceStep(most, parts, base) {
  const rough = most / parts, power = base ** Math.floor(Math.log(rough) / Math.log(base));
  const choices = base === 10 ? [1, 2, 5, 10] : [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024];
  return power * (choices.find(choice => choice * power >= rough) ?? base);
}

// A round step of nanoseconds: decimal below a minute, then as clocks have it.
function niceTime(most, parts) {
  const rough = most / parts, steps = [6e10, 1.2e11, 3e11, 6e11, 9e11, 1.8e12, 3.6e12, 7.2e12, 2.16e13, 4.32e13, 8.64e13];
  return rough > 3e10 ? steps.find(step => step >= rough) ?? niceStep(most, parts, 10) : Math.max(niceStep(most, parts, 10), 1);
}

class Chart {
  // lines: { name, text, range, fill, shown, color, dash }; say: words for a value; bands: owners beneath the lines.
  constructor(canvas, readout, lines, { say, most = null, base = 1024, peak = null, bands = null }) {
    Object.assign(this, { canvas, readout, lines, say, most, base, peak, bands });
    this.inset = { left: 66, right: 10, top: 14, bottom: axis.clock ? 42 : 26 };
    this.pointers = new Map();
    this.listen();
    view.listeners.push(() => this.draw());
  }

  get plot() {
    const { width, height } = this.canvas.getBoundingClientRect();
    const { left, right, top, bottom } = this.inset;
    return { left, top, width: Math.max(width - left - right, 1), height: Math.max(height - top - bottom, 1) };
  }

  placeAt(clientX) {
    const { left, width } = this.plot, box = this.canvas.getBoundingClientRect();
    return view.from + (clientX - box.left - left) / width * (view.to - view.from);
  }

  eventAt(clientX) {
    const { left, width } = this.plot, box = this.canvas.getBoundingClientRect();
    return axis.eventAt(this.placeAt(clientX));
  }

  listen() {
    const canvas = this.canvas;
    canvas.addEventListener("wheel", event => {
      if (!event.ctrlKey && !event.metaKey && document.activeElement !== canvas) return;
      event.preventDefault();
      if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) view.pan(event.deltaX / this.plot.width);
      else view.zoom(Math.exp(Math.sign(event.deltaY) * Math.min(Math.abs(event.deltaY), 100) * 0.004), this.placeAt(event.clientX));
    }, { passive: false });
    canvas.addEventListener("pointerdown", event => {
      canvas.setPointerCapture(event.pointerId);
      this.pointers.set(event.pointerId, event.clientX);
      this.moved = 0;
    });
    canvas.addEventListener("pointermove", event => {
      if (!this.pointers.has(event.pointerId)) { this.hover = this.eventAt(event.clientX); this.tell(); return; }
      const before = [...this.pointers.values()];
      const step = event.clientX - this.pointers.get(event.pointerId);
      this.pointers.set(event.pointerId, event.clientX);
      this.moved += Math.abs(step);
      if (this.pointers.size === 1) { if (this.moved > 3) view.pan(-step / this.plot.width); return; }
      const now = [...this.pointers.values()], spread = pair => Math.max(Math.abs(pair[0] - pair[1]), 8);
      view.zoom(spread(before) / spread(now), this.placeAt((now[0] + now[1]) / 2));
    });
    const up = event => {
      const single = this.pointers.size === 1;
      if (this.pointers.delete(event.pointerId) && single && this.moved <= 3 && event.type === "pointerup") view.pick(this.eventAt(event.clientX));
    };
    canvas.addEventListener("pointerup", up);
    canvas.addEventListener("pointercancel", up);
    canvas.addEventListener("pointerleave", () => { this.hover = undefined; this.tell(); });
    canvas.addEventListener("dblclick", event => view.zoom(0.5, this.placeAt(event.clientX)));
    canvas.addEventListener("keydown", event => {
      const acts = {
        ArrowLeft: () => event.shiftKey ? view.pick(view.moment - 1) : view.pan(-0.15),
        ArrowRight: () => event.shiftKey ? view.pick(view.moment + 1) : view.pan(0.15),
        "+": () => view.zoom(0.6), "=": () => view.zoom(0.6), "-": () => view.zoom(1 / 0.6),
        0: () => view.all(), Home: () => view.all(), p: () => view.peak(), P: () => view.peak(),
      };
      if (!acts[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      acts[event.key]();
    });
    new ResizeObserver(() => this.draw()).observe(canvas);
  }

  // The most of what is shown, so that the lines fill the chart.
  top() {
    if (this.most !== null) return this.most;
    const [from, to] = [view.from, view.to].map(place => axis.eventAt(place));
    const shown = this.lines.filter(line => line.shown).map(line => line.range(from, to));
    return Math.max(1, ...shown.filter(Boolean).map(range => range[1])) * 1.08;
  }

  draw() {
    const { pen } = context(this.canvas), plot = this.plot, most = this.top();
    const y = value => plot.top + plot.height * (1 - value / most);
    const x = place => plot.left + (place - view.from) / (view.to - view.from) * plot.width;
    pen.font = "12px system-ui, sans-serif";
    this.axes(pen, plot, most, x, y);
    pen.save();
    pen.beginPath();
    pen.rect(plot.left, plot.top - 2, plot.width, plot.height + 4);
    pen.clip();
    if (this.bands) this.areas(pen, plot, y);
    for (const line of this.lines) if (line.shown) this.line(pen, plot, line, y);
    this.marks(pen, plot, x, y);
    pen.restore();
    this.canvas.dataset.from = view.from;
    this.canvas.dataset.to = view.to;
    this.tell();
  }

  axes(pen, plot, most, x, y) {
    pen.strokeStyle = color("line");
    pen.fillStyle = color("soft");
    pen.lineWidth = 1;
    pen.textBaseline = "middle";
    pen.textAlign = "right";
    const step = niceStep(most, 5, this.base);
    for (let value = 0; value <= most; value += step) {
      pen.beginPath();
      pen.moveTo(plot.left, Math.round(y(value)) + 0.5);
      pen.lineTo(plot.left + plot.width, Math.round(y(value)) + 0.5);
      pen.stroke();
      pen.fillText(this.say(value).replace(".00 ", " "), plot.left - 6, y(value));
    }
    pen.textBaseline = "top";
    pen.textAlign = "center";
    // The axis that the chart is along first; below it, at the same places, the other one.
    const parts = Math.max(plot.width / 110, 1), wide = view.to - view.from, floor = plot.top + plot.height;
    const mark = axis.isClock ? niceTime(wide, parts) : Math.max(niceStep(wide, parts, 10), 1);
    const write = (text, place, below) => {
      const half = pen.measureText(text).width / 2;
      pen.fillText(text, Math.min(Math.max(x(place), half), plot.left + plot.width + 8 - half), floor + below);
    };
    for (let place = Math.ceil(view.from / mark) * mark; place <= view.to; place += mark) {
      const event = Math.min(axis.eventAt(place), last);
      pen.fillStyle = color("ink");
      write(axis.isClock ? clockTime(place, mark) : count(place), place, 8);
      if (!axis.clock) continue;
      pen.fillStyle = color("soft");
      const times = axis.timeOf(Math.min(axis.eventAt(view.to), last)) - axis.timeOf(axis.eventAt(view.from));
      write(axis.isClock ? `event ${count(Math.floor(event))}` : clockTime(axis.timeOf(event), Math.max(times / parts / 10, 1)), place, 24);
    }
  }

  // Owners on top of one another, up to what was requested: of each pixel its highest moment.
  areas(pen, plot, y) {
    const { events_per_band_bucket: per } = data.timeline, { bands } = this.bands.chosen;
    if (!bands.length) return;
    const per_pixel = (view.to - view.from) / plot.width, buckets = bands[0].bytes.length;
    const columns = [];
    for (let pixel = 0; pixel < plot.width; pixel += 1) {
      const from = axis.eventAt(view.from + pixel * per_pixel), to = axis.eventAt(view.from + (pixel + 1) * per_pixel);
      const first = Math.min(Math.max(Math.floor(from / per), 0), buckets - 1), end = Math.min(Math.max(Math.ceil(to / per), first + 1), buckets);
      let best = first;
      for (let bucket = first + 1; bucket < end; bucket += 1) if (this.bands.sum(bucket) > this.bands.sum(best)) best = bucket;
      columns.push(best);
    }
    const floor = columns.map(() => 0);
    bands.forEach((band, index) => {
      pen.fillStyle = color(this.bands.color(index));
      const area = new Path2D();
      area.moveTo(plot.left, y(0));
      columns.forEach((bucket, pixel) => {
        const top = y(floor[pixel] + band.bytes[bucket]);
        area.lineTo(plot.left + pixel, top);
        area.lineTo(plot.left + pixel + 1, top);
      });
      for (let pixel = columns.length - 1; pixel >= 0; pixel -= 1) {
        area.lineTo(plot.left + pixel + 1, y(floor[pixel]));
        area.lineTo(plot.left + pixel, y(floor[pixel]));
        floor[pixel] += band.bytes[columns[pixel]];
      }
      pen.fill(area);
    });
  }

  line(pen, plot, line, y) {
    const per = (view.to - view.from) / plot.width, path = new Path2D(), area = new Path2D();
    let before = null, first = null;
    for (let pixel = 0; pixel < plot.width; pixel += 1) {
      const range = line.range(axis.eventAt(view.from + pixel * per), axis.eventAt(view.from + (pixel + 1) * per));
      if (!range) { before = null; continue; }
      const left = plot.left + pixel, [low, high] = [y(range[0]), y(range[1])];
      if (before === null) path.moveTo(left, high); else path.lineTo(left, before < high ? high : Math.min(before, low));
      if (first === null) { first = left; area.moveTo(left, y(0)); }
      path.lineTo(left, low);
      path.lineTo(left, high);
      path.lineTo(left + 1, high);
      area.lineTo(left, high);
      area.lineTo(left + 1, high);
      before = high;
    }
    pen.strokeStyle = color(line.color);
    if (line.fill && first !== null) {
      area.lineTo(plot.left + plot.width, y(0));
      pen.globalAlpha = 0.18;
      pen.fillStyle = color(line.color);
      pen.fill(area);
      pen.globalAlpha = 1;
    }
    pen.lineWidth = line.fill || line.name === "requested" ? 1.2 : 1.6;
    pen.setLineDash(line.dash);
    pen.stroke(path);
    pen.setLineDash([]);
  }

  marks(pen, plot, x, y) {
    pen.strokeStyle = color("ink");
    pen.fillStyle = color("ink");
    const moment = Math.round(x(axis.place(view.moment))) + 0.5;
    pen.setLineDash([3, 3]);
    pen.beginPath();
    pen.moveTo(moment, plot.top);
    pen.lineTo(moment, plot.top + plot.height);
    pen.stroke();
    pen.setLineDash([]);
    if (!this.peak || !this.peak.line.shown) return;
    const at = x(axis.place(this.peak.at)), top = y(this.peak.value);
    pen.beginPath();
    pen.moveTo(at, top);
    pen.lineTo(at - 5, top - 8);
    pen.lineTo(at + 5, top - 8);
    pen.fill();
    pen.textBaseline = "top";
    const text = `peak ${this.say(this.peak.value)}`, right = at + pen.measureText(text).width + 12 < plot.left + plot.width;
    pen.textAlign = right ? "left" : "right";
    const place = [text, at + (right ? 8 : -8), Math.max(top - 13, plot.top - 2)];
    pen.strokeStyle = color("paper");
    pen.lineWidth = 4;
    pen.strokeText(...place);
    pen.fillText(...place);
  }

  // Says the figures under the pointer, or else at the moment.
  tell() {
    const event = Math.min(Math.max(Math.floor(this.hover ?? view.moment), 0), last);
    const said = this.lines.filter(line => line.shown).map(line => {
      const range = line.range(event, event + 1);
      if (!range) return `${line.text}: none`;
      const [low, high] = range.map(this.say);
      return `${line.text}: ${low === high ? high : `${low} to ${high}`}`;
    });
    const time = axis.clock ? `, ${clockTime(axis.timeOf(event))}` : "";
    this.readout.textContent = `After event ${count(event)}${time}: ${said.join("; ")}`;
    this.bands?.tell(event);
    const [from, to] = [view.from, view.to].map(place => axis.eventAt(place));
    this.canvas.setAttribute("aria-label", `${this.readout.textContent}. Shown: events ${count(Math.floor(from))} to ${count(Math.ceil(to))}.`);
  }
}

// Boxes that show and hide lines, each with a sample of its line.
function legend(parent, chart) {
  for (const line of chart.lines) {
    const box = element("input", { type: "checkbox", checked: line.shown });
    box.addEventListener("change", () => { line.shown = box.checked; chart.draw(); });
    const made = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    made.setAttribute("viewBox", "0 0 32 12");
    made.setAttribute("aria-hidden", "true");
    const stroke = document.createElementNS("http://www.w3.org/2000/svg", "line");
    for (const [key, value] of Object.entries({ x1: 0, x2: 32, y1: 6, y2: 6, "stroke-width": line.fill ? 6 : 2.4, "stroke-dasharray": line.dash.join(" ") })) stroke.setAttribute(key, value);
    stroke.style.stroke = `var(--${line.color})`;
    if (line.fill) stroke.style.opacity = 0.5;
    made.append(stroke);
    parent.append(element("label", {}, box, made, line.text));
  }
}
