/** Small pictures from arrays: ink on nothing, so that they fit a light and a dark page. */

import { colour } from "../kit/chart.mjs";

const channels = (name) => colour(name).match(/[\d.]+/g).slice(0, 3).map(Number);

/** Draw values (0 to `most`) as the alpha of one colour, a pixel each. */
export function drawInk(canvas, values, width, height, { most = 1, name = "--ink" } = {}) {
  [canvas.width, canvas.height] = [width, height];
  canvas.getContext("2d").putImageData(inked(values, width, height, most, channels(name)), 0, 0);
}

function inked(values, width, height, most, [red, green, blue]) {
  const image = new ImageData(width, height);
  for (let i = 0; i < width * height; i++) image.data.set([red, green, blue, Math.round((255 * values[i]) / most)], 4 * i);
  return image;
}

/** Draw a layer: a vector as a grid of cells, maps (C, H, W) side by side. */
export function drawLayer(canvas, layer) {
  const most = layer.reduce((top, value) => Math.max(top, value), 1e-6);
  const [count, height, width] = layer.shape.length === 3 ? layer.shape : [layer.length, 1, 1];
  const columns = count > 16 ? 16 : 4;
  const rows = Math.ceil(count / columns);
  const cell = Math.floor(640 / columns); // canvas pixels, gap included
  const gap = count > 16 ? 6 : 12;
  [canvas.width, canvas.height] = [columns * cell, rows * cell];
  const pen = canvas.getContext("2d");
  pen.imageSmoothingEnabled = false;
  const [accent, ground] = [channels("--accent"), colour("--sunk")];
  const tile = new OffscreenCanvas(width, height);
  for (let i = 0; i < count; i++) {
    const [x, y] = [(i % columns) * cell + gap / 2, Math.floor(i / columns) * cell + gap / 2];
    const size = cell - gap;
    const values = layer.subarray(i * width * height, (i + 1) * width * height);
    tile.getContext("2d").putImageData(inked(values, width, height, most, accent), 0, 0);
    pen.save();
    pen.beginPath();
    pen.roundRect(x, y, size, size, 6);
    pen.clip();
    pen.fillStyle = ground;
    pen.fillRect(x, y, size, size);
    pen.drawImage(tile, x, y, size, size);
    pen.restore();
  }
}
