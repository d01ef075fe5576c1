// Tables that sort: a click on a heading, or Enter on it, sorts by that column; once more turns it round.

const byWords = new Intl.Collator("en", { numeric: true });

// Numbers before words, whichever way round: a cell without a number says that there is none yet.
function compareCells(one, other, sign) {
  const [a, b] = [one.dataset.number, other.dataset.number];
  if (a !== undefined && b !== undefined) return sign * (Number(a) - Number(b));
  if (a !== undefined || b !== undefined) return a === undefined ? 1 : -1;
  return sign * byWords.compare(one.textContent, other.textContent);
}

function makeSortable(table) {
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, column) => {
    const button = make("button", { type: "button" }, ...heading.childNodes);
    heading.replaceChildren(button);
    button.addEventListener("click", () => {
      const descending = heading.getAttribute("aria-sort") === "ascending";
      headings.forEach((each) => each.removeAttribute("aria-sort"));
      heading.setAttribute("aria-sort", descending ? "descending" : "ascending");
      const rows = [...table.tBodies[0].rows];
      rows.sort((a, b) => compareCells(a.cells[column], b.cells[column], descending ? -1 : 1));
      table.tBodies[0].append(...rows);
    });
  });
}

// The results have a row a group: each begins with the line that the charts draw it by.
function addKeys(table) {
  [...table.tBodies[0].rows].forEach((row, group) => row.cells[0].prepend(lineKey(group)));
}

// In a list of rows each cell needs the heading of its column.
function labelCells(table) {
  const headings = [...table.tHead.rows[0].cells].map((heading) => heading.textContent);
  for (const row of table.tBodies[0].rows) {
    [...row.cells].forEach((cell, column) => { cell.dataset.label = headings[column]; });
  }
}

// A table that does not fit gets narrower headings; where that is not enough, it becomes a list of rows.
function fitTable(region) {
  const table = region.querySelector("table");
  const fits = () => region.scrollWidth <= region.clientWidth + 1;
  table.classList.remove("compact", "stacked");
  if (fits()) return;
  table.classList.add("compact");
  if (fits()) return;
  table.classList.replace("compact", "stacked");
}
