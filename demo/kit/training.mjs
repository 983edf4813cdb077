/**
 * Start, pause and reset, for the person and for the tab: training pauses while the tab is hidden.
 *
 * Python's half is three functions: `train` (runs until `pause`; returns true when there is nothing left to
 * do), `pause` and `reset`. What state training is in stands in `document.body.dataset.training`:
 * "paused", "training", "hidden" (paused until the tab is shown again), "done" or "failed".
 */

import { showFailure } from "./app.mjs";

const LABELS = { paused: "Start", training: "Pause", hidden: "Pause", done: "Train on", failed: "Start" };

export class Training {
  #run = null; // the promise of Python's `train`, while it runs
  #waiting = Promise.resolve(); // pauses, resets and what else must come one after the other

  /**
   * @param {import("../../web/boot.mjs").App} app
   * @param {{toggle: HTMLButtonElement, reset: HTMLButtonElement, onReset?: () => void}} page
   */
  constructor(app, { toggle, reset, onReset = () => {} }) {
    this.app = app;
    this.toggle = toggle;
    this.state = "paused";
    toggle.addEventListener("click", () => (this.state === "training" ? this.pause() : this.start()));
    reset.addEventListener("click", () =>
      this.whilePaused(async () => {
        onReset();
        await app.call("reset");
      }),
    );
    document.addEventListener("visibilitychange", () => {
      if (document.hidden && this.state === "training") this.pause("hidden");
      else if (!document.hidden && this.state === "hidden") this.start();
    });
    toggle.disabled = reset.disabled = false;
    this.#show("paused");
  }

  /** Train until `pause`, or until Python says that it is done. */
  async start() {
    await this.#waiting;
    if (this.#run || this.state === "failed") return;
    this.#show("training");
    this.#run = this.app.call("train");
    try {
      const done = await this.#run;
      if (done) this.#show("done");
    } catch (error) {
      this.#show("failed");
      showFailure(error);
    } finally {
      this.#run = null;
    }
  }

  /** Stop after the step that is being computed. */
  pause(state = "paused") {
    return this.#inTurn(async () => {
      if (!this.#run) return;
      this.#show(state);
      await this.app.call("pause");
      await this.#run.catch(() => {});
    });
  }

  /** Pause, then do something that must not meet a training step. Training stays paused. */
  async whilePaused(work) {
    await this.pause();
    return this.#inTurn(async () => {
      if (this.state === "failed") return;
      this.#show("paused");
      try {
        await work();
      } catch (error) {
        this.#show("failed");
        showFailure(error);
      }
    });
  }

  #inTurn(work) {
    this.#waiting = this.#waiting.then(work);
    return this.#waiting;
  }

  #show(state) {
    this.state = state;
    this.toggle.textContent = LABELS[state];
    if (state === "failed") this.toggle.disabled = true;
    document.body.dataset.training = state;
  }
}
