/** Shows what `tiny.py` publishes: the fitted curve over the wanted one, the step and the loss. */

const element = (id) => document.getElementById(id);

export function showStage({ stage, fraction, message }) {
  element("status").textContent = stage === "ready" ? "training" : `${message} …`;
  element("bar").value = stage === "ready" ? 0 : (fraction ?? element("bar").value);
}

export function showFit({ step, steps, loss, x, y }) {
  element("bar").value = step / steps;
  element("status").textContent = `step ${step}`;
  element("loss").textContent = loss.toFixed(5);
  const point = (x, y) => `${(100 + 90 * x).toFixed(1)},${(60 - 45 * y).toFixed(1)}`;
  const path = (ys) => Array.from(x, (value, i) => point(value, ys[i])).join(" ");
  element("goal").setAttribute("points", path(Array.from(x, (value) => Math.sin(3 * value))));
  element("fit").setAttribute("points", path(y));
}

export function showDone(loss) {
  element("bar").value = 1;
  element("status").textContent = `done, loss ${loss.toFixed(5)}`;
  document.body.dataset.state = "done";
}

export function showError(error) {
  element("status").textContent = `${error.name}: ${error.message}`;
  document.body.dataset.state = "failed";
}
