/**
 * The digits demo's page: digits.py computes in a worker, this file draws what it publishes.
 *
 * In the address: ?model=mlp|cnn, &seed=0, and &steps=N for a training shorter than its epochs.
 */

import { openApp, showFailure } from "../kit/app.mjs";
import { Chart, History, onTheme } from "../kit/chart.mjs";
import { showSource } from "../kit/source.mjs";
import { Training } from "../kit/training.mjs";
import { Pad } from "./pad.mjs";
import { drawInk, drawLayer } from "./pictures.mjs";

const $ = (id) => document.getElementById(id);
const percent = (share, digits = 1) => `${(100 * share).toFixed(digits)} %`;

const SHOWN = 60; // tiles
const MNIST = new URL("../../web/vendor/mnist/", import.meta.url);
const FILES = {
  "mnist/train-images": "train-images-idx3-ubyte",
  "mnist/train-labels": "train-labels-idx1-ubyte",
  "mnist/test-images": "t10k-images-idx3-ubyte",
  "mnist/test-labels": "t10k-labels-idx1-ubyte",
};
const query = new URLSearchParams(location.search);
const [seed, steps] = [Number(query.get("seed") ?? 0), Number(query.get("steps") ?? 0)];

const losses = new Chart($("losses"), {
  series: [{ label: "loss", colour: "--accent", width: 1.5 }],
  y: { log: true },
});
const accuracies = new Chart($("accuracies"), {
  series: [
    { label: "training batch", colour: "--accent", width: 1.5, alpha: 0.7 },
    { label: "held out", colour: "--second", width: 2.5, points: true },
  ],
  y: { range: [0.5, 1], format: (value) => `${Math.round(100 * value)} %`, size: 52 },
});

const histories = { mlp: new History(4), cnn: new History(4) }; // step, loss, batch accuracy, held-out accuracy
const reports = {}; // the last report of each network
let model = query.get("model") in histories ? query.get("model") : "mlp";
let examples, guesses; // the held-out images shown, and what the network takes them for
const tiles = []; // by the image's index, made at first use
let seen = null; // what it last made of the drawing
let looked = 0; // when that was
let [looking, lookAgain] = [false, false];

document.querySelector(`input[value=${model}]`).checked = true;
showSource($("source"), "digits.py");
const bars = Array.from({ length: 10 }, (_, digit) => {
  const row = document.createElement("li");
  row.innerHTML = `<b>${digit}</b><span class="track"><span></span></span><span></span>`;
  return row;
});
$("probabilities").append(...bars);

const files = Object.fromEntries(Object.entries(FILES).map(([path, name]) => [path, new URL(name, MNIST)]));
const [app, about] = await openApp({ python: "digits.py", files }, async (app) => {
  app.on("guesses", showGuesses);
  app.on("step", showStep);
  app.on("done", showDone);
  examples = await app.call("examples");
  return app.call("choose", model, seed, steps);
});
showModel(about);

const pad = new Pad($("pad"), { status: $("pad-status"), onChange: look });
const training = new Training(app, { toggle: $("toggle"), reset: $("reset"), onReset: forget });
$("clear").addEventListener("click", () => pad.clear());
$("example").addEventListener("click", () => putExample(Math.floor(Math.random() * examples.labels.length)));
$("mistakes").addEventListener("change", showTiles);
$("tiles").addEventListener("click", ({ target }) => {
  const tile = target.closest("li");
  if (tile) putExample(Number(tile.dataset.index));
});
$("model").addEventListener("change", ({ target }) =>
  training.whilePaused(async () => {
    for (const control of [$("model"), $("toggle"), $("reset")]) control.disabled = true;
    $("epoch").textContent = `compiling the ${target.value.toUpperCase()} …`;
    const chosen = await app.call("choose", target.value, seed, steps);
    model = target.value;
    showModel(chosen);
    look();
    for (const control of [$("model"), $("toggle"), $("reset")]) control.disabled = false;
  }),
);
$("model").disabled = $("clear").disabled = $("example").disabled = false;
putExample(2);
onTheme(() => {
  tiles.forEach(drawTile);
  showSeen();
});
globalThis.demo = { app, report: () => reports[model] }; // for the console, and for demo/train.py

// --- training -----------------------------------------------------------------------------------------

function showStep(report) {
  histories[model].add(report.step, report.loss, report.accuracy, report.held_out);
  reports[model] = { ...reports[model], ...report };
  showReport();
  if (performance.now() - looked > 400) look();
}

function showDone(report) {
  reports[model] = { ...reports[model], ...report };
  showReport();
  look();
}

function showReport() {
  const { step = 0, goal, epoch = 0, loss, speed, lr, held_out: heldOut, test } = reports[model] ?? {};
  const text = (value, format) => (value === undefined ? "–" : format(value));
  $("step").textContent = step.toLocaleString("en");
  $("loss").textContent = text(loss, (value) => value.toPrecision(3));
  $("speed").textContent = text(speed, (value) => value.toFixed(value < 10 ? 1 : 0));
  $("lr").textContent = text(lr, (value) => value.toPrecision(2));
  $("held-out").textContent = text(heldOut, percent);
  $("test").textContent = text(test, (value) => percent(value, 2));
  $("plan").value = goal ? step / goal : 0;
  $("epoch").textContent = step ? `epoch ${epoch.toFixed(1)} of ${((epoch * goal) / step).toFixed(1)}` : "not trained yet";
  const [steps, loss_, batch, held] = histories[model].data;
  losses.show([steps, loss_]);
  accuracies.show([steps, batch, held]);
}

function forget() {
  histories[model].clear();
  delete reports[model];
  showReport();
}

function showModel({ parameters }) {
  const names = { mlp: "128 hidden units", cnn: "8 feature maps" };
  $("layer-note").textContent = `${names[model]} · ${parameters.toLocaleString("en")} parameters in all`;
  showReport();
}

// --- the drawing --------------------------------------------------------------------------------------

/** Show the network the drawing: one question at a time, and the last one always. */
async function look() {
  if (looking) {
    lookAgain = true;
    return;
  }
  looking = true;
  try {
    do {
      lookAgain = false;
      seen = pad.empty ? null : await app.call("look", pad.pixels());
      looked = performance.now();
      showSeen();
    } while (lookAgain);
  } catch (error) {
    showFailure(error);
  } finally {
    looking = false;
  }
}

function showSeen() {
  const shown = seen ?? { image: new Float32Array(784), probabilities: new Float32Array(10) };
  drawInk($("seen"), shown.image, 28, 28);
  const top = shown.probabilities.indexOf(Math.max(...shown.probabilities));
  bars.forEach((row, digit) => {
    const share = shown.probabilities[digit];
    row.classList.toggle("chosen", Boolean(seen) && digit === top);
    row.children[1].firstChild.style.width = percent(share).replace(" ", "");
    row.children[2].textContent = percent(share, 0);
  });
  $("answer").textContent = seen ? `${top}, ${percent(shown.probabilities[top], 0)} sure` : "–";
  if (!seen) return;
  drawLayer($("layer"), seen.layer);
  const active = seen.layer.reduce((count, value) => count + (value > 0), 0);
  const what = model === "mlp" ? "units" : "pixels of the maps";
  $("active").textContent = `${active} of ${seen.layer.length} ${what} are active; the stronger the colour, the larger.`;
}

function putExample(index) {
  const picture = document.createElement("canvas");
  drawInk(picture, examples.images.subarray(784 * index, 784 * (index + 1)), 28, 28, { most: 255 });
  pad.put(picture);
}

// --- the examples -------------------------------------------------------------------------------------

function showGuesses(found) {
  guesses = found;
  showTiles();
}

function showTiles() {
  const { labels } = examples;
  const all = Array.from(labels.keys());
  const wrong = all.filter((index) => guesses[index] !== labels[index]);
  $("score").textContent = `${all.length - wrong.length} of these ${all.length} right`;
  const shown = ($("mistakes").checked ? wrong : all).slice(0, SHOWN);
  for (const index of shown) {
    const tile = (tiles[index] ??= makeTile(index));
    const right = guesses[index] === labels[index];
    tile.className = right ? "right" : "wrong";
    tile.lastChild.textContent = `${guesses[index]} ${right ? "✓" : "✗"}`;
  }
  const present = Array.from($("tiles").children, (tile) => Number(tile.dataset.index));
  if (present.join() !== shown.join()) $("tiles").replaceChildren(...shown.map((index) => tiles[index]));
}

function makeTile(index) {
  const tile = document.createElement("li");
  tile.dataset.index = index;
  const picture = document.createElement("canvas");
  picture.setAttribute("role", "img");
  picture.setAttribute("aria-label", `a ${examples.labels[index]}`);
  tile.append(picture, document.createElement("span"));
  drawTile(tile, index);
  return tile;
}

function drawTile(tile, index) {
  const image = examples.images.subarray(784 * index, 784 * (index + 1));
  drawInk(tile.firstChild, image, 28, 28, { most: 255 });
}
