// Everything in its place: charts when they come into sight, and all of them, in light colours, for paper.

const charts = [...document.querySelectorAll(".chart")].map((box) => new Chart(box));
const outdated = new Set(charts);
const inSight = new Set();
const chartOf = new Map(charts.map((chart) => [chart.box, chart]));
const paper = matchMedia("print");

function drawOutdated() {
  for (const chart of charts) {
    if (outdated.has(chart) && inSight.has(chart)) {
      outdated.delete(chart);
      chart.draw();
    }
  }
}

function redraw() {
  charts.forEach((chart) => outdated.add(chart));
  drawOutdated();
}

const sight = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    inSight[isIntersecting ? "add" : "delete"](chartOf.get(target));
  }
  drawOutdated();
}, { rootMargin: "300px" });

const sizes = new ResizeObserver((entries) => entries.forEach(({ target }) => chartOf.get(target).resize()));

function toPaper() {
  if (document.documentElement.classList.contains("printing")) return;
  document.documentElement.classList.add("printing");
  for (const details of document.querySelectorAll("details:not([open])")) {
    if (!details.parentElement.closest(".legend")) Object.assign(details, { open: true }).dataset.opened = "";
  }
  charts.forEach((chart) => chart.draw(true));
}

function toScreen() {
  document.documentElement.classList.remove("printing");
  for (const details of document.querySelectorAll("details[data-opened]")) {
    details.open = false;
    delete details.dataset.opened;
  }
  redraw();
}

function chooseRun(select) {
  report.runs.forEach((run, value) => {
    if (run.layers) select.append(make("option", { value, textContent: run.name }));
  });
  select.addEventListener("change", () => {
    chosen.run = Number(select.value);
    charts.filter((chart) => chart.box.dataset.kind === "quantiles").forEach((chart) => outdated.add(chart));
    drawOutdated();
  });
}

document.querySelectorAll(".scroll > table").forEach(labelCells);
document.querySelectorAll("table.sortable").forEach(makeSortable);
document.querySelectorAll("table.keyed").forEach(addKeys);
document.querySelectorAll(".legend > div").forEach((box) => fillLegend(box, redraw));
document.querySelectorAll("#run").forEach(chooseRun);
for (const legend of document.querySelectorAll(".legend")) legend.open = matchMedia("(min-width: 60rem)").matches;
const widths = new ResizeObserver((entries) => entries.forEach(({ target }) => requestAnimationFrame(() => fitTable(target))));
document.querySelectorAll(".scroll").forEach((region) => widths.observe(region));
charts.forEach((chart) => { sight.observe(chart.box); sizes.observe(chart.box); });

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
paper.addEventListener("change", (event) => (event.matches ? toPaper() : toScreen()));
addEventListener("beforeprint", toPaper);
addEventListener("afterprint", toScreen);
