// The numbers of the page, and what the reader has chosen to see of them.

const report = JSON.parse(document.getElementById("numbers").textContent);

const groupOf = [];
report.groups.forEach((group, number) => group.runs.forEach((run) => { groupOf[run] = number; }));

const chosen = {
  hidden: new Set(), // runs that are switched off
  means: report.runs.length > 12 && report.groups.length < report.runs.length,
  logarithmic: false,
  run: report.runs.findIndex((run) => run.layers), // whose layers are shown one by one
};

const titleOf = (run) => `${report.groups[groupOf[run]].label}, seed ${report.runs[run].seed}`;

const visible = (run) => !chosen.hidden.has(run);

// Seven colours in four kinds of line; the eighth colour of the palette is for what recedes.
const COLOURS = 7;
const DASHES = [[], [8, 3], [2, 2], [8, 3, 2, 3]];

const lineOf = (group) => ({ series: group % COLOURS, dash: DASHES[Math.floor(group / COLOURS) % DASHES.length] });

const colour = (series) =>
  getComputedStyle(document.documentElement).getPropertyValue(`--series-${series}`).trim();

const token = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

// An element with text, which is never read as HTML, and children.
function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

const SVG = "http://www.w3.org/2000/svg";

// The stretch of line by which a legend or a table says which group is meant.
function lineKey(group) {
  const { series, dash } = lineOf(group);
  const svg = document.createElementNS(SVG, "svg");
  const line = document.createElementNS(SVG, "line");
  for (const [name, value] of Object.entries({ viewBox: "0 0 26 8", class: "key", "aria-hidden": "true" })) {
    svg.setAttribute(name, value);
  }
  const drawn = { x1: 0, y1: 4, x2: 26, y2: 4, class: `s${series}`, "stroke-dasharray": dash.join(" ") };
  for (const [name, value] of Object.entries(drawn)) line.setAttribute(name, value);
  svg.append(line);
  return svg;
}
