// From runs to lines: each kind of chart says which x it has, and which lines over it.
//
// A line: name, group and values; its width; whether its values are joined, marked by dots, faint; or whether it is nothing but the
// edge of a band. A band: the two lines it lies between, by number, and how strongly it is filled.

const numbers = (length, first) => Array.from({ length }, (_, index) => index + first);

const longest = (lists) => lists.reduce((most, list) => Math.max(most, list.length), 0);

function mean(values) {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}

function deviation(values) {
  if (values.length < 2) return 0;
  const centre = mean(values);
  return Math.sqrt(values.reduce((sum, value) => sum + (value - centre) ** 2, 0) / (values.length - 1));
}

// Values of several runs, place by place; a place that one of them lacks has none, so that no mean jumps where a run ends.
function placeByPlace(lists, measure) {
  return numbers(longest(lists), 0).map((place) => {
    const values = lists.map((list) => list[place] ?? null);
    return values.includes(null) ? null : measure(values);
  });
}

function everyRun(valuesOf, dots) {
  return report.runs.flatMap((run, number) => {
    const values = visible(number) && valuesOf(run);
    return values ? [{ name: titleOf(number), group: groupOf[number], values, width: 1.5, dots, joined: true }] : [];
  });
}

const MANY_BANDS = 12; // more of them would hide each other, and the lines

function meanOfGroups(valuesOf, dots) {
  const lines = [];
  const bands = [];
  const banded = report.groups.filter((group) => group.runs.some(visible)).length <= MANY_BANDS;
  report.groups.forEach((group, number) => {
    const lists = group.runs.filter(visible).map((run) => valuesOf(report.runs[run])).filter((list) => list?.length);
    if (!lists.length) return;
    const centre = placeByPlace(lists, mean);
    const spread = placeByPlace(lists, deviation);
    const name = lists.length === 1 ? group.label : `${group.label} (mean of ${lists.length})`;
    lines.push({ name, group: number, values: centre, width: 2, dots, joined: true });
    if (lists.length < 2 || !banded) return;
    for (const sign of [1, -1]) {
      const values = centre.map((value, place) => (value === null ? null : value + sign * spread[place]));
      lines.push({ group: number, values, edge: true, joined: true });
    }
    bands.push({ between: [lines.length - 2, lines.length - 1], group: number, strength: 0.16 });
  });
  return { lines, bands };
}

// Lines over any kind of place, as the legend has it: every run, or means.
const asChosen = (valuesOf, dots) =>
  chosen.means ? meanOfGroups(valuesOf, dots) : { lines: everyRun(valuesOf, dots), bands: [] };

function overEpochs(name) {
  const drawn = asChosen((run) => run.curves[name], false);
  return { ...drawn, x: numbers(longest(drawn.lines.map((line) => line.values)), 1), places: (epoch) => `epoch ${epoch}` };
}

function overLayers(name) {
  const drawn = asChosen((run) => run.layers?.[name], true);
  return { ...drawn, x: numbers(report.layers.length, 0), places: (layer) => report.layers[layer], layered: true };
}

// Final accuracy against the length of the schedule: a dot a run, a line through the means of runs that differ in it alone.
function overBudgets() {
  const finished = report.families.flatMap((family) => family.runs);
  const x = [...new Set(finished.map((run) => report.runs[run].epochs))].sort((a, b) => a - b);
  const last = (run) => report.runs[run].curves.test_accuracy.at(-1);
  const lines = report.families.flatMap((family) => {
    const runs = family.runs.filter(visible);
    const group = groupOf[family.runs[0]];
    const at = (members, epochs) => members.filter((run) => report.runs[run].epochs === epochs).map(last);
    const means = x.map((epochs) => (at(runs, epochs).length ? mean(at(runs, epochs)) : null));
    const dots = runs.map((run) => {
      const values = x.map((epochs) => at([run], epochs)[0] ?? null);
      return { name: titleOf(run), group, values, dots: true, faint: true };
    });
    return runs.length ? [...dots, { name: `${family.label} (mean)`, group, values: means, width: 2, dots: true, joined: true }] : [];
  });
  return { lines, bands: [], x, places: (epochs) => `${epochs} epochs`, ticks: x };
}

// Fan-in of the neurons of every layer of one run: quartiles, median and range, relative to the layer's mean.
function overQuantiles() {
  const group = groupOf[chosen.run];
  const told = report.runs[chosen.run].layers.quantiles;
  const quantile = (number) => told.map((layer) => layer?.[number] ?? null);
  const names = ["least", "lower quartile", "median", "upper quartile", "largest"];
  const lines = names.map((name, number) => ({
    name, group, values: quantile(number), joined: true, dots: true, width: name === "median" ? 2 : 0.75,
  }));
  const bands = [{ between: [4, 0], group, strength: 0.12 }, { between: [3, 1], group, strength: 0.28 }];
  return { lines, bands, x: numbers(report.layers.length, 0), places: (layer) => report.layers[layer], layered: true };
}

const KINDS = { epochs: overEpochs, layers: overLayers, budgets: overBudgets, quantiles: overQuantiles };
