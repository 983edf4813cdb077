/** Line charts by uPlot, in the page's colours, as large as their place, in light and in dark. */

import uPlot from "../../web/vendor/uplot/uPlot.esm.js";

const dark = matchMedia("(prefers-color-scheme: dark)");
const colours = new Map(); // in the present theme
dark.addEventListener("change", () => colours.clear());

/** A CSS colour of the page, like "--accent", as a canvas wants it. */
export function colour(name) {
  if (!colours.has(name)) {
    const probe = document.createElement("i");
    probe.style.color = `var(${name})`;
    document.body.append(probe);
    colours.set(name, getComputedStyle(probe).color);
    probe.remove();
  }
  return colours.get(name);
}

/** Call `redraw` when the page changes between light and dark. */
export function onTheme(redraw) {
  dark.addEventListener("change", redraw);
}

/**
 * A chart in `place`. `series` are {label, colour: "--accent", width, alpha, points}; the data is [x, ...ys].
 * `y` may have {log: true}, a fixed `range`, and `format(value)`.
 */
export class Chart {
  constructor(place, { series, x = {}, y = {} }) {
    this.place = place;
    this.settings = { series, x, y };
    this.data = [[], ...series.map(() => [])];
    place.classList.add("empty");
    this.#build();
    new ResizeObserver(() => this.plot.setSize(this.#size())).observe(place);
    onTheme(() => {
      this.plot.destroy();
      this.#build();
    });
  }

  /** Draw [x, ...ys]. */
  show(data) {
    this.data = data;
    this.place.classList.toggle("empty", !data[0].length);
    this.plot.setData(data);
  }

  #size() {
    return { width: Math.max(120, this.place.clientWidth), height: Math.max(80, this.place.clientHeight) };
  }

  #build() {
    const { series, x, y } = this.settings;
    const axis = (more) => ({
      stroke: colour("--soft"),
      font: "12px system-ui, sans-serif",
      grid: { stroke: colour("--line"), width: 1 },
      ticks: { show: false },
      ...more,
    });
    const format = y.format ?? ((value) => String(value));
    // A logarithmic axis has ten ticks a decade; show the powers of ten alone.
    const filter = y.log ? (_, ticks) => ticks.map((tick) => (Math.log10(tick) % 1 === 0 ? tick : null)) : (_, ticks) => ticks;
    const grid = { stroke: colour("--line"), width: 1, filter };
    const options = {
      ...this.#size(),
      padding: [8, 10, 0, 0],
      legend: { show: false },
      cursor: { show: false },
      scales: { x: { time: false, range: x.range }, y: { distr: y.log ? 3 : 1, range: y.range } },
      axes: [
        axis({ size: 28, space: 60 }),
        axis({
          size: y.size ?? 48,
          space: 40,
          grid,
          filter,
          values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : format(tick))),
        }),
      ],
      series: [
        {},
        ...series.map((line) => ({
          label: line.label,
          stroke: colour(line.colour),
          width: line.width ?? 2,
          alpha: line.alpha ?? 1,
          spanGaps: true,
          points: { show: Boolean(line.points), size: 5, fill: colour(line.colour) },
        })),
      ],
    };
    this.plot = new uPlot(options, this.data, this.place);
  }
}

/** Columns of numbers over time that stay short: beyond `most` rows, every second one is forgotten. */
export class History {
  constructor(columns, most = 1200) {
    this.columns = columns;
    this.most = most;
    this.clear();
  }

  clear() {
    this.data = Array.from({ length: this.columns }, () => []);
  }

  add(...row) {
    this.data.forEach((column, i) => column.push(row[i] ?? null));
    if (this.data[0].length <= this.most) return;
    const sparse = this.data.filter((column) => column.filter((value) => value !== null).length < column.length / 4);
    const kept = (_, i) => i % 2 === 1 || sparse.some((column) => column[i] !== null); // a rare value stays
    this.data = this.data.map((column) => column.filter(kept));
  }
}
