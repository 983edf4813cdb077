/** The curve demo's page: sine.py computes in a worker, this file draws what it publishes. */

import { openApp, showFailure } from "../kit/app.mjs";
import { Chart, colour, History, onTheme } from "../kit/chart.mjs";
import { showSource } from "../kit/source.mjs";
import { Training } from "../kit/training.mjs";

const $ = (id) => document.getElementById(id);

const fit = new Chart($("fit"), {
  series: [
    { label: "target", colour: "--second", width: 6, alpha: 0.55 },
    { label: "network", colour: "--accent", width: 2.5 },
  ],
  x: { range: [-1, 1] },
  y: { range: [-1.4, 1.4], size: 36 },
});
const losses = new Chart($("losses"), {
  series: [{ label: "loss", colour: "--accent", width: 1.5 }],
  y: { log: true },
});
const history = new History(2);
let hidden; // the hidden units' last outputs

showSource($("source"), "sine.py");

const [app, about] = await openApp({ python: "sine.py" }, async (app) => {
  app.on("fit", showFit);
  const about = await app.call("about");
  await app.call("reset");
  return about;
});
$("parameters").textContent = about.parameters.toLocaleString("en");

new Training(app, { toggle: $("toggle"), reset: $("reset"), onReset: forget });

const slider = $("lr");
const showRate = () => {
  const rate = 10 ** slider.valueAsNumber;
  const text = rate.toPrecision(2);
  $("lr-value").textContent = text;
  slider.setAttribute("aria-valuetext", text);
  return rate;
};
const setRate = () => app.call("set_lr", showRate()).catch(showFailure);
const setCurve = () => app.call("set_curve", $("curve").value).catch(showFailure);
slider.addEventListener("input", setRate);
$("curve").addEventListener("change", setCurve);
slider.disabled = $("curve").disabled = false;
await Promise.all([setRate(), setCurve()]); // a reloaded page may keep them where they were

function showFit({ step, loss, speed, x, target, fit: fitted, hidden: units }) {
  fit.show([x, target, fitted]);
  $("step").textContent = step.toLocaleString("en");
  if (loss !== null) {
    $("loss").textContent = loss.toPrecision(3);
    $("speed").textContent = speed.toFixed(speed < 10 ? 1 : 0);
    history.add(step, loss);
    losses.show(history.data);
  }
  hidden = units;
  drawHidden();
}

function forget() {
  history.clear();
  losses.show(history.data);
  $("loss").textContent = $("speed").textContent = "–";
}

/** One thin line a unit. */
function drawHidden() {
  const canvas = $("hidden");
  const scale = devicePixelRatio;
  const [width, height] = [canvas.clientWidth * scale, canvas.clientHeight * scale];
  [canvas.width, canvas.height] = [width, height];
  if (!hidden) return;
  const [units, points] = hidden.shape;
  const pen = canvas.getContext("2d");
  pen.lineWidth = scale;
  pen.strokeStyle = colour("--accent");
  pen.globalAlpha = 0.35;
  for (let unit = 0; unit < units; unit++) {
    pen.beginPath();
    for (let i = 0; i < points; i += 2) {
      const value = hidden[unit * points + i];
      pen.lineTo((i / (points - 1)) * width, height * (0.5 - 0.48 * value)); // tanh: between -1 and 1
    }
    pen.stroke();
  }
}

new ResizeObserver(drawHidden).observe($("hidden"));
onTheme(drawHidden);
globalThis.demo = { app }; // for the console
