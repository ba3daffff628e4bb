'use strict';
// Asks for /json every second and shows it. All text goes in as text, never as HTML.
const SVG = 'http://www.w3.org/2000/svg';
const MOMENTS = 240;
const before = new Map();
const moments = new Map();

function element(name, text, ...classes) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  made.classList.add(...classes);
  return made;
}

function bytes(count) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];
  let unit = 0;
  while (count >= 1024 && unit + 1 < units.length) { count /= 1024; unit += 1; }
  return `${unit ? count.toFixed(2) : count} ${units[unit]}`;
}

function short(rate) {
  for (const [unit, name] of [[1e9, 'G'], [1e6, 'M'], [1e3, 'k']]) if (rate >= unit) return `${(rate / unit).toFixed(1)} ${name}`;
  return rate.toFixed(0);
}

function shape(of, width, height, kind) {
  const svg = document.createElementNS(SVG, 'svg');
  svg.setAttribute('viewBox', `0 0 ${width} ${height}`);
  svg.setAttribute('preserveAspectRatio', 'none');
  svg.setAttribute('class', kind);
  svg.setAttribute('role', 'img');
  const label = document.createElementNS(SVG, 'title');
  label.textContent = of;
  svg.append(label);
  return svg;
}

function rectangle(svg, kind, width) {
  const part = document.createElementNS(SVG, 'rect');
  part.setAttribute('class', kind);
  part.setAttribute('width', Math.max(0, Math.min(1000, width)));
  part.setAttribute('height', 10);
  svg.append(part);
}

function bar(live, held, whole) {
  const percent = part => whole ? 1000 * part / whole : 0;
  const svg = shape(`${bytes(live)} live, ${bytes(held)} held of ${bytes(whole)}`, 1000, 10, 'bar');
  rectangle(svg, 'held', percent(held));
  rectangle(svg, 'live', percent(live));
  return svg;
}

function overTime(kept) {
  const most = Math.max(1, ...kept.map(one => one.held));
  const svg = shape('live and held over time', MOMENTS, 100, 'time');
  for (const kind of ['held', 'live']) {
    const path = document.createElementNS(SVG, 'path');
    path.setAttribute('class', kind);
    const first = MOMENTS - kept.length;
    const points = kept.map((one, at) => `L${first + at} ${100 - 100 * one[kind] / most} h1`);
    path.setAttribute('d', `M${first} 100 ${points.join(' ')} L${MOMENTS} 100 Z`);
    svg.append(path);
  }
  return svg;
}

function figures(pairs) {
  const list = element('dl', undefined, 'figures');
  for (const [name, value] of pairs) {
    const pair = element('div');
    pair.append(element('dt', name), element('dd', value));
    list.append(pair);
  }
  return list;
}

function pool(process, of, rates) {
  const key = `${process.pid}/${process.copy}/${of.pool}`;
  const now = { at: process.taken_unix_ms, allocations: of.allocations, live: of.live_bytes, held: of.held_bytes };
  const then = before.get(key);
  const kept = moments.get(key) || [];
  let rate = then ? then.rate : undefined;
  if (!then || then.at !== now.at) {
    if (then && now.at > then.at) rate = 1000 * (now.allocations - then.allocations) / (now.at - then.at);
    kept.push(now);
    if (kept.length > MOMENTS) kept.shift();
    moments.set(key, kept);
    before.set(key, { ...now, rate });
  }
  const card = element('div', undefined, 'card');
  if (of.limit_bytes && of.group_held_bytes > 0.9 * of.limit_bytes) card.classList.add('tight');
  const name = of.name ? ` ${of.name}` : '';
  card.append(element('h3', `pool ${of.pool}${name} on ${of.kind}:${of.ordinal} ${of.device}`));
  card.append(bar(of.live_bytes, of.held_bytes, of.limit_bytes), overTime(kept));
  const window = rates.waste_window_ms ? ` over ${Math.ceil(rates.waste_window_ms / 1000)} s` : '';
  card.append(figures([
    ['live', bytes(of.live_bytes)], ['held', bytes(of.held_bytes)], ['limit', bytes(of.limit_bytes)],
    ['peak held', bytes(of.peak_held_bytes)], [`waste${window}`, `${(100 * rates.waste).toFixed(1)} %`], ['blocks', String(of.blocks)],
    ['allocations a second', rate === undefined ? '-' : short(rate)], ['misses', String(of.misses)],
    ['driver calls', String(of.driver_calls)], ['pressure', of.pressure],
  ]));
  const tags = of.tags.map(one => `${one.tag} ${bytes(one.live_bytes)}`);
  if (tags.length) card.append(element('p', `tags: ${tags.join(', ')}`));
  const streams = of.streams.map(one => `0x${one.stream.toString(16)} ${one.allocations}`);
  if (streams.length > 1) card.append(element('p', `allocations by stream: ${streams.join(', ')}`));
  return card;
}

function others(process) {
  const lines = process.engines.map(of =>
    `transfers ${of.kind}:${of.ordinal}: ${bytes(of.uploads.bytes)} to the device, ${bytes(of.downloads.bytes)} to the host`);
  for (const of of process.buffers) {
    if (of.created + of.shared) lines.push(`${of.buffers} buffers: ${bytes(of.host_bytes)} on the host, ${bytes(of.device_bytes)} on the device`);
  }
  return lines.map(line => element('p', line));
}

function device(of) {
  const card = element('div', undefined, 'card');
  const busy = of.busy_percent === null ? '' : `, ${of.busy_percent} % busy`;
  card.append(element('h3', `GPU ${of.index} ${of.name}`), bar(of.used_bytes, of.used_bytes, of.total_bytes));
  card.append(element('p', `${bytes(of.used_bytes)} of ${bytes(of.total_bytes)} used${busy}`));
  return card;
}

function show(sample) {
  const by = id => document.getElementById(id);
  by('state').textContent = new Date(sample.taken_unix_ms).toLocaleTimeString();
  by('warnings').replaceChildren(...sample.warnings.map(warning => element('li', warning)));
  by('devices').replaceChildren(...sample.devices.map(device));
  if (sample.devices_missing) by('devices').append(element('p', sample.devices_missing));
  const shown = sample.processes.flatMap(process =>
    [element('h3', `${process.pid} ${process.title}${process.rank === null ? '' : `, rank ${process.rank}`}`),
      ...process.pools.map((one, at) => pool(process, one, process.rates[at])), ...others(process)]);
  shown.push(...sample.unreadable.map(one => element('p', one.reason)));
  if (!shown.length) shown.push(element('p', 'no process of this user can be watched: start it with FOREBAY_MONITOR=on'));
  by('processes').replaceChildren(...shown);
  const known = new Set(sample.processes.flatMap(process => process.pools.map(one => `${process.pid}/${process.copy}/${one.pool}`)));
  for (const key of before.keys()) if (!known.has(key)) { before.delete(key); moments.delete(key); }
  document.documentElement.dataset.ready = 'yes';
}

// Numbers of streams have 64 bits, and a number here has 53.
function exact(name, value, from) {
  return name === 'stream' && from && from.source ? BigInt(from.source) : value;
}

async function ask() {
  try {
    const answer = await fetch('/json', { cache: 'no-store' });
    show(JSON.parse(await answer.text(), exact));
  } catch (error) {
    document.getElementById('state').textContent = `no answer: ${error.message}`;
  }
  setTimeout(ask, 1000);
}

ask();
