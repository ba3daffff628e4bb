// Blocks in address space at the moment: addresses run along rows, like words on a page.
class AddressMap {
  constructor(canvas) {
    this.canvas = canvas;
    this.blocks = data.map.blocks;
    this.picked = -1;
    canvas.addEventListener("pointermove", event => this.pick(this.under(event)));
    canvas.addEventListener("pointerdown", event => this.pick(this.under(event)));
    canvas.addEventListener("keydown", event => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (!step || !this.live.length) return;
      event.preventDefault();
      const place = this.live.indexOf(this.picked);
      const next = place < 0 ? (step > 0 ? 0 : this.live.length - 1) : Math.min(Math.max(place + step, 0), this.live.length - 1);
      this.pick(this.live[next]);
    });
    new ResizeObserver(() => this.draw()).observe(canvas);
    view.listeners.push(() => { if (this.moment !== view.moment || this.by !== this.coloring()) this.draw(); });
  }

  // What colors blocks.
  coloring() { return owned.chosen.by; }

  // The blocks that are live after the moment, the lowest first.
  liveBlocks() {
    const { born, freed, offset } = this.blocks, live = [];
    for (let block = 0; block < born.length && born[block] <= view.moment; block += 1) {
      if (view.moment < freed[block]) live.push(block);
    }
    return live.sort((left, right) => offset[left] - offset[right]);
  }

  // What the pool held, as it was last looked at.
  held() {
    const held = data.map.held;
    let found = held[0] ?? { at: 0, ranges: [] };
    for (const one of held) { if (one.at > view.moment) break; found = one; }
    return found;
  }

  layout(width, height) {
    const rows = Math.max(1, Math.min(20, Math.floor(height / 14)));
    return { rows, perRow: Math.max(data.map.end / rows, 1), rowHeight: height / rows, width };
  }

  // Calls draw with each row's part of a range.
  parts({ rows, perRow, rowHeight, width }, start, size, draw) {
    const end = start + size;
    for (let row = Math.floor(start / perRow); row < rows && row * perRow < end; row += 1) {
      const from = Math.max(start - row * perRow, 0) / perRow, to = Math.min(end - row * perRow, perRow) / perRow;
      draw(from * width, row * rowHeight + 1, Math.max((to - from) * width, 0.6), rowHeight - 2);
    }
  }

  draw() {
    this.moment = view.moment;
    this.by = this.coloring();
    const { pen, width, height } = context(this.canvas), layout = this.layout(width, height);
    this.live = this.liveBlocks();
    pen.fillStyle = color("never");
    this.parts(layout, 0, data.map.end, (x, y, w, h) => pen.fillRect(x, y, w, h));
    pen.fillStyle = color("held");
    for (const [start, size] of this.held().ranges) this.parts(layout, start, size, (x, y, w, h) => pen.fillRect(x, y, w, h));
    const fills = new Map(), { offset, bytes: sizes } = this.blocks;
    pen.strokeStyle = color("block-line");
    pen.lineWidth = 1;
    for (const block of this.live) {
      const look = this.look(block);
      if (!fills.has(look)) fills.set(look, this.fill(pen, block));
      pen.fillStyle = fills.get(look);
      this.parts(layout, offset[block], sizes[block], (x, y, w, h) => {
        pen.fillRect(x, y, w, h);
        if (w > 3) pen.strokeRect(x + 0.5, y + 0.5, w - 1, h - 1);
      });
    }
    if (this.live.includes(this.picked)) {
      pen.strokeStyle = color("pick");
      pen.lineWidth = 2.5;
      this.parts(layout, offset[this.picked], sizes[this.picked], (x, y, w, h) => pen.strokeRect(x + 1, y + 1, Math.max(w - 2, 2), h - 2));
    }
    this.say();
  }

  // What blocks of one fill have in common: their owner, and the hatching of their stream.
  look(block) { return owned.chosen.map[block] * 5 + this.hatching(block); }

  // Plain for the first stream, hatched in another way for each of the next ones.
  hatching(block) {
    const stream = this.blocks.stream[block];
    return stream === 0 ? 0 : 1 + (stream - 1) % 4;
  }

  fill(pen, block) {
    const hatching = this.hatching(block), paint = color(owned.color(owned.chosen.map[block]));
    if (hatching === 0) return paint;
    const size = 8, tile = document.createElement("canvas");
    tile.width = tile.height = size;
    const ink = tile.getContext("2d");
    ink.fillStyle = paint;
    ink.fillRect(0, 0, size, size);
    ink.strokeStyle = color("paper");
    ink.lineWidth = 1.2;
    ink.beginPath();
    if (hatching === 1) { ink.moveTo(0, size); ink.lineTo(size, 0); }
    if (hatching === 2) { ink.moveTo(0, 0); ink.lineTo(size, size); }
    if (hatching === 3) { ink.moveTo(0, size / 2); ink.lineTo(size, size / 2); }
    if (hatching === 4) { ink.moveTo(size / 2, 0); ink.lineTo(size / 2, size); }
    ink.stroke();
    return pen.createPattern(tile, "repeat");
  }

  under(event) {
    const box = this.canvas.getBoundingClientRect(), layout = this.layout(box.width, box.height);
    const row = Math.floor((event.clientY - box.top) / layout.rowHeight);
    const at = (row + (event.clientX - box.left) / layout.width) * layout.perRow;
    const { offset, bytes: sizes } = this.blocks;
    return this.live.find(block => offset[block] <= at && at < offset[block] + sizes[block]) ?? -1;
  }

  pick(block) {
    if (block === this.picked) return;
    this.picked = block;
    this.draw();
  }

  say() {
    const { bytes: sizes, stream, born, freed, label: labels } = this.blocks;
    const drawn = this.live.reduce((sum, block) => sum + sizes[block], 0);
    const held = this.held().ranges.reduce((sum, range) => sum + range[1], 0);
    const time = axis.clock ? `, ${clockTime(axis.timeOf(view.moment))}` : "";
    byId("map-readout").textContent = `After event ${count(view.moment)}${time}: ${counted(this.live.length, "block")} drawn with ${bytes(drawn)}; the pool held ${bytes(held)}, by the last of 128 looks at it.`;
    this.canvas.dataset.blocks = this.live.length;
    this.canvas.setAttribute("aria-label", byId("map-readout").textContent);
    const scrub = byId("scrub");
    if (Number(scrub.value) !== view.moment) scrub.value = view.moment;
    scrub.setAttribute("aria-valuetext", `event ${count(view.moment)}`);
    const block = this.picked;
    if (!this.live.includes(block)) { byId("map-block").textContent = ""; return; }
    const end = freed[block] > last ? "never freed" : `freed by event ${count(freed[block])}`;
    const text = label(labels[block]);
    byId("map-block").textContent = `${bytes(sizes[block])} on stream ${stream[block]}, allocated by event ${count(born[block])}, ${end}${text ? `\n${text}` : ""}`;
  }
}
