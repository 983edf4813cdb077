/**
 * A canvas to draw on with a mouse, a finger or the keyboard: arrow keys move the pen, space lowers or lifts
 * it, Delete clears. The ink is the canvas's alpha; `pixels()` gives it as bytes.
 */

import { colour, onTheme } from "../kit/chart.mjs";

const WIDTH = 22; // of the pen, on 280×280: about what MNIST's digits have
const STEP = 14; // of an arrow key

export class Pad {
  #at = null; // where the line goes on, while the pen is down
  #key = { x: 140, y: 140, down: false };

  constructor(place, { status, onChange }) {
    this.place = place;
    this.canvas = place.querySelector("canvas");
    this.pen = place.querySelector(".pen");
    this.status = status;
    this.onChange = onChange;
    this.ink = this.canvas.getContext("2d", { willReadFrequently: true });
    this.empty = true;
    const { canvas } = this;
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      canvas.setPointerCapture(event.pointerId);
      this.#line(...this.#place(event));
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!this.#at || !canvas.hasPointerCapture(event.pointerId)) return;
      const moves = event.getCoalescedEvents?.() ?? [];
      for (const move of moves.length ? moves : [event]) this.#line(...this.#place(move));
    });
    for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, () => (this.#at = null));
    canvas.addEventListener("keydown", (event) => this.#pressed(event));
    canvas.addEventListener("blur", () => this.#lift());
    onTheme(() => this.#recolour());
    place.classList.add("empty");
    this.#showPen();
  }

  clear() {
    this.ink.clearRect(0, 0, this.canvas.width, this.canvas.height);
    this.#changed(true);
  }

  /** Put a picture (a canvas whose alpha is the ink) on the pad. */
  put(picture) {
    this.ink.clearRect(0, 0, this.canvas.width, this.canvas.height);
    this.ink.imageSmoothingQuality = "high";
    this.ink.drawImage(picture, 0, 0, this.canvas.width, this.canvas.height);
    this.#recolour();
    this.#changed(false);
  }

  /** The ink, 0 to 255, row by row; its `shape` tells Python the size. */
  pixels() {
    const { width, height } = this.canvas;
    const { data } = this.ink.getImageData(0, 0, width, height);
    const ink = new Uint8Array(width * height);
    for (let i = 0; i < ink.length; i++) ink[i] = data[4 * i + 3];
    return Object.assign(ink, { shape: [height, width] });
  }

  #place({ clientX, clientY }) {
    const box = this.canvas.getBoundingClientRect();
    const scale = this.canvas.width / box.width;
    return [(clientX - box.left) * scale, (clientY - box.top) * scale];
  }

  #line(x, y) {
    const [fromX, fromY] = this.#at ?? [x, y];
    Object.assign(this.ink, { lineWidth: WIDTH, lineCap: "round", lineJoin: "round", strokeStyle: colour("--ink") });
    this.ink.beginPath();
    this.ink.moveTo(fromX, fromY);
    this.ink.lineTo(x, y + 0.01); // a line of no length would leave no dot
    this.ink.stroke();
    this.#at = [x, y];
    this.#changed(false);
  }

  #pressed(event) {
    const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    const key = this.#key;
    const edge = (value) => Math.min(this.canvas.width - STEP, Math.max(STEP, value));
    if (event.key in moves) {
      key.x = edge(key.x + moves[event.key][0] * STEP);
      key.y = edge(key.y + moves[event.key][1] * STEP);
      if (key.down) this.#line(key.x, key.y);
    } else if (event.key === " ") {
      key.down = !key.down;
      this.#at = key.down ? [key.x, key.y] : null;
      if (key.down) this.#line(key.x, key.y);
      this.status.textContent = key.down ? "pen down" : "pen up";
    } else if (event.key === "Delete" || event.key === "Backspace") {
      this.#lift();
      this.clear();
      this.status.textContent = "cleared";
    } else return;
    event.preventDefault();
    this.#showPen();
  }

  #lift() {
    this.#key.down = false;
    this.#at = null;
    this.#showPen();
  }

  #showPen() {
    const { x, y, down } = this.#key;
    this.pen.style.left = `${(100 * x) / this.canvas.width}%`;
    this.pen.style.top = `${(100 * y) / this.canvas.height}%`;
    this.pen.classList.toggle("down", down);
  }

  /** The same ink in the page's present colour. */
  #recolour() {
    this.ink.globalCompositeOperation = "source-in";
    this.ink.fillStyle = colour("--ink");
    this.ink.fillRect(0, 0, this.canvas.width, this.canvas.height);
    this.ink.globalCompositeOperation = "source-over";
  }

  #changed(empty) {
    this.empty = empty;
    this.place.classList.toggle("empty", empty);
    this.onChange();
  }
}
