// One chart: its lines drawn by uPlot, its values told by the tooltip. Whatever changes, it is drawn anew.

const PRINTED = { width: 330, height: 210, density: 2 }; // on paper a bitmap needs more dots than on a screen

const WHOLE = [1, 2, 5].flatMap((step) => [1, 10, 100, 1000].map((size) => step * size)).sort((a, b) => a - b);

class Chart {
  constructor(box) {
    this.box = box;
    this.share = "share" in box.dataset;
    this.tooltip = new Tooltip(box);
    this.cursor = null;
    box.addEventListener("keydown", (event) => this.#walk(event));
    box.addEventListener("focusout", () => this.tooltip.hide());
  }

  draw(printing = false) {
    const zoomed = this.plot && !printing ? this.#zoom() : null;
    this.plot?.destroy();
    this.tooltip.hide();
    const { kind, chart } = this.box.dataset;
    this.drawn = this.#onScreen(KINDS[kind](chart));
    this.density = printing ? PRINTED.density : 1;
    const width = printing ? PRINTED.width : this.box.clientWidth;
    const plain = printing ? PRINTED.height : Math.min(340, Math.max(220, width * 0.56));
    const height = plain + (this.drawn.layered ? namesHeight() - 40 : 0);
    this.box.dataset.lines = this.drawn.lines.filter((line) => !line.edge).length;
    this.plot = new uPlot(
      { ...this.#options(), width: width * this.density, height: height * this.density },
      [this.drawn.x, ...this.drawn.lines.map((line) => line.values)],
      this.box,
    );
    if (zoomed) this.plot.setScale("x", zoomed);
  }

  resize() {
    if (this.plot && this.density === 1 && this.box.clientWidth !== this.plot.width) this.draw();
  }

  // Shares as percentages; every list as long as x.
  #onScreen(drawn) {
    const factor = this.share ? 100 : 1;
    const value = (given) => (given === null || given === undefined ? null : given * factor);
    const lines = drawn.lines.map((line) => ({ ...line, values: drawn.x.map((_, place) => value(line.values[place])) }));
    return { ...drawn, lines };
  }

  #zoom() {
    const { min, max } = this.plot.scales.x;
    return this.#covers(min, max) ? null : { min, max };
  }

  #covers(min, max) {
    const { x } = this.drawn;
    return min === null || !x.length || (min <= x[0] && max >= x.at(-1));
  }

  #range() {
    const { x, layered } = this.drawn;
    const margin = layered || x.length < 2 ? 0.5 : (x.at(-1) - x[0]) * 0.02;
    return x.length ? [x[0] - margin, x.at(-1) + margin] : [0, 1];
  }

  #options() {
    const { lines, bands } = this.drawn;
    const logarithmic = chosen.logarithmic && "loss" in this.box.dataset;
    return {
      legend: { show: false },
      padding: [10, 14, 0, 0].map((side) => side * this.density),
      cursor: { points: { show: false }, drag: { x: true, y: false }, y: false, move: atPlace },
      scales: {
        x: { time: false, range: (_, min, max) => (this.#covers(min, max) ? this.#range() : [min, max]) },
        y: logarithmic ? { distr: 3 } : { range: (_, min, max) => roomy(min, max) },
      },
      axes: [this.#places(), this.#values(logarithmic)],
      series: [{}, ...lines.map((line) => this.#series(line))],
      bands: bands.map(({ between: [high, low], group, strength }) => ({
        series: [high + 1, low + 1],
        fill: () => faded(colour(lineOf(group).series), strength),
      })),
      hooks: { setCursor: [(plot) => this.#pointed(plot)] },
    };
  }

  #series(line) {
    const { series, dash } = lineOf(line.group);
    const alone = line.values.filter((value) => value !== null).length === 1;
    const stroke = () => faded(colour(series), line.faint ? 0.55 : 1);
    return {
      stroke: line.edge ? undefined : stroke,
      width: (line.edge ? 0 : line.width ?? 1) * this.density,
      dash: dash.map((length) => length * this.density),
      paths: line.joined ? undefined : () => null,
      spanGaps: "budgets" === this.box.dataset.kind,
      points: { show: !line.edge && (line.dots || alone), size: (line.joined ? 6 : 5) * this.density, fill: stroke },
    };
  }

  #font() {
    return `${12 * this.density}px ${token("sans")}`;
  }

  #axis(rest) {
    const { density } = this;
    return {
      stroke: () => token("muted"),
      font: this.#font(),
      grid: { stroke: () => token("grid"), width: density },
      ticks: { show: false },
      ...rest,
    };
  }

  #places() {
    const { layered, ticks, x, places } = this.drawn;
    const { density } = this;
    if (layered) {
      const room = (plot) => Math.max(1, Math.ceil(x.length / Math.max(1, plot.bbox.width / uPlot.pxRatio / density / 16)));
      return this.#axis({
        rotate: longestName() > FLAT ? -90 : 0,
        size: namesHeight() * density,
        gap: 6 * density,
        splits: (plot) => x.filter((place) => place % room(plot) === 0),
        values: (_, splits) => splits.map(places),
      });
    }
    const labelled = { label: "epoch", labelSize: 18 * density, labelFont: this.#font(), labelGap: -2 * density };
    const axis = this.#axis({ size: 30 * density, space: 44 * density, incrs: WHOLE, ...labelled });
    return ticks ? { ...axis, splits: () => ticks } : axis;
  }

  #values(logarithmic) {
    const { density } = this;
    const shown = (value) => (value === null ? "" : String(Number(value.toPrecision(6))));
    const axis = this.#axis({ size: 52 * density, space: 36 * density });
    return logarithmic ? axis : { ...axis, values: (_, splits) => splits.map(shown) };
  }

  #pointed(plot) {
    const { idx, top, left } = plot.cursor;
    if (idx === null || idx === undefined || left < 0) return this.tooltip.hide();
    this.cursor = idx;
    this.tooltip.show(plot, this.drawn, idx, top, (value) => this.#written(value));
  }

  #written(value) {
    return this.share ? `${value.toFixed(2)}%` : String(Number(value.toPrecision(4)));
  }

  // Arrow keys go from place to place and up and down between the lines; Escape ends it.
  #walk(event) {
    const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -14], ArrowDown: [0, 14] };
    if (event.key === "Escape") return this.plot.setCursor({ left: -10, top: -10 });
    if (!(event.key in steps) || !this.drawn.x.length) return undefined;
    event.preventDefault();
    const [across, down] = steps[event.key];
    const { plot, drawn } = this;
    const last = drawn.x.length - 1;
    const place = Math.min(last, Math.max(0, this.cursor === null ? (across < 0 ? last : 0) : this.cursor + across));
    const top = Math.max(0, plot.cursor.top >= 0 ? plot.cursor.top + down : plot.over.clientHeight / 2);
    return plot.setCursor({ left: plot.valToPos(drawn.x[place], "x"), top: Math.min(top, plot.over.clientHeight) });
  }
}

// Some air above and below; zero where it is near; and a constant as a line in the middle, not as noise.
function roomy(min, max) {
  if (min === null) return [0, 1];
  const air = max > min ? (max - min) * 0.08 : Math.abs(max) * 0.1 || 0.5;
  const low = min >= 0 && min <= (max - min) * 0.25 ? 0 : min - air;
  return [min >= 0 ? Math.max(0, low) : low, max + air];
}

// The cursor stands where there are values.
function atPlace(plot, left, top) {
  return left < 0 ? [left, top] : [plot.valToPos(plot.data[0][plot.posToIdx(left)], "x"), top];
}

const FLAT = 4; // letters that fit below a place without being turned

const longestName = () => Math.max(...report.layers.map((name) => name.length));

const namesHeight = () => Math.min(170, Math.max(34, longestName() * 6.2 + 14));

// #rrggbb with an alpha.
function faded(hex, alpha) {
  return hex + Math.round(alpha * 255).toString(16).padStart(2, "0");
}
