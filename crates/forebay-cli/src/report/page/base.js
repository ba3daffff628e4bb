// What all pages share: the data, words for figures, elements, and drawing.
const data = JSON.parse(document.getElementById("data").textContent);
const byId = id => document.getElementById(id);

// Bytes as the command says them: binary units with two decimals.
function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
  let unit = 0;
  while (Math.abs(value) >= 1024 && unit < units.length - 1) { value /= 1024; unit += 1; }
  return unit === 0 ? `${value} B` : `${value.toFixed(2)} ${units[unit]}`;
}
const count = value => value.toLocaleString("en-US");
const percent = value => `${(value * 100).toFixed(1)} %`;
function nanos(value) {
  if (value < 1e3) return `${value.toFixed(0)} ns`;
  if (value < 1e6) return `${(value / 1e3).toFixed(1)} \u00b5s`;
  if (value < 1e9) return `${(value / 1e6).toFixed(1)} ms`;
  return `${(value / 1e9).toFixed(2)} s`;
}
const counted = (value, noun) => `${count(value)} ${noun}${value === 1 ? "" : "s"}`;
const label = number => number > 0 ? data.labels[number - 1] : "";
const firstLine = text => text.split("\n", 1)[0];

// An element with properties and children. Text is always set as text: nothing of the data is read as HTML.
function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key in made) made[key] = value; else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

// A square in a color of the style sheet.
function swatch(name) {
  const made = element("i", { className: "key", "aria-hidden": "true" });
  made.style.background = `var(--${name})`;
  return made;
}

// A color of the style sheet.
const color = name => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

// How lines are told apart besides their color.
const DASHES = [[], [], [8, 4], [2, 3], [10, 3, 2, 3], [5, 5]];

// The drawing context of a canvas, as sharp as the screen, cleared. Sizes are those of the style sheet.
function context(canvas) {
  const ratio = window.devicePixelRatio || 1;
  const { width, height } = canvas.getBoundingClientRect();
  const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== w || canvas.height !== h) { canvas.width = w; canvas.height = h; }
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  return { pen, width, height };
}
