// Tables that sort, and bars.

// columns: { title, value, text, number, mark, sum }; a press on a heading sorts by its values. With sums the last row is
// what all rows come to. On a narrow screen call sites stand above their figures.
function table(parent, caption, columns, rows, { sort = null, descending = true } = {}) {
  const body = element("tbody"), kinds = column => `${column.number ? "n" : ""} ${column.stack ? "stack" : ""}`.trim();
  const heads = columns.map((column, index) => {
    const head = element("th", { scope: "col", className: kinds(column) });
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
      return element("td", { className: `${kinds(column)} ${mark}`.trim() }, shown instanceof Node ? shown : String(shown));
    }))));
  }
  const sums = columns.some(column => column.sum) ? [element("tfoot", {}, element("tr", {}, ...columns.map(column => {
    return element("td", { className: kinds(column) }, column.sum ? column.sum(rows) : column.number ? "" : "all");
  })))] : [];
  const kind = columns.some(column => column.stack) ? "stacked" : "";
  const made = element("table", { className: kind }, element("caption", {}, caption), element("thead", {}, element("tr", {}, ...heads)), body, ...sums);
  parent.append(element("div", { className: "scroll", tabIndex: 0, role: "region", "aria-label": caption }, made));
  if (sort === null) fill(rows); else order(sort, descending);
}

// A stack: its first line, and the rest on demand; behind a mark, if it has one.
function stack(text, ...mark) {
  if (!text.includes("\n")) return element("span", {}, ...mark, text || "\u2013");
  return element("details", {}, element("summary", {}, ...mark, firstLine(text)), text.slice(text.indexOf("\n") + 1));
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

const number = (title, value, text, mark) => ({ title, value, text, mark, number: true });
