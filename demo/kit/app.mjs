/**
 * Starts a demo's Python in a worker and shows how that goes: the stages of loading, which adapter
 * computes, and, in plain words, whatever fails.
 *
 * It expects in the page: `#loader` (an empty section) and `#adapter` (the chip).
 */

import { boot } from "../../web/boot.mjs";

const STEPS = [
  // [the stages of boot() that it covers, what the list says, its share of the bar]
  [["download"], "Download", 0.35],
  [["runtime"], "Python", 0.25],
  [["numpy"], "NumPy", 0.1],
  [["webgrad", "program"], "webgrad", 0.1],
  [["compile"], "Compile", 0.2],
];

const element = (tag, properties = {}, ...children) => {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
};

/**
 * Boot, then run `prepare(app)` (what compiles), all under the loading panel.
 * Resolves with [app, what prepare returned]; after a failure, which is shown, never.
 */
export async function openApp(options, prepare) {
  const loader = new Loader(document.getElementById("loader"));
  try {
    const app = await boot({
      worker: new URLSearchParams(location.search).get("worker") !== "0",
      onProgress: (progress) => loader.show(progress),
      ...options,
    });
    const prepared = await prepare(app);
    showAdapter(prepared);
    loader.fold();
    document.body.dataset.state = "ready";
    return [app, prepared];
  } catch (error) {
    loader.close();
    showFailure(error);
    return new Promise(() => {});
  }
}

class Loader {
  constructor(panel) {
    this.panel = panel;
    this.reached = -1;
    this.bar = element("progress", { className: "bar", max: 1, value: 0, ariaLabel: "Loading" });
    this.message = element("span", { className: "note" });
    this.items = STEPS.map(([, label]) => element("li", { textContent: label }));
    panel.append(
      element("header", {}, element("h2", { textContent: "Getting ready" }), this.message),
      this.bar,
      element("ol", { className: "stages" }, ...this.items),
    );
    this.message.setAttribute("role", "status");
    panel.hidden = false;
  }

  show({ stage, fraction = 0, message }) {
    const index = STEPS.findIndex(([stages]) => stages.includes(stage));
    if (index < this.reached || index < 0) return; // "ready" is the page's to say
    this.reached = index;
    const before = STEPS.slice(0, index).reduce((sum, [, , share]) => sum + share, 0);
    this.bar.value = before + fraction * STEPS[index][2];
    this.message.textContent = message;
    this.items.forEach((item, i) => {
      item.dataset.state = i < index ? "done" : i === index ? "now" : "";
      item.toggleAttribute("aria-current", i === index);
    });
  }

  close() {
    this.panel.hidden = true;
  }

  /** Close without making the page jump. */
  async fold() {
    const { panel } = this;
    if (!matchMedia("(prefers-reduced-motion: reduce)").matches) {
      panel.style.overflow = "hidden";
      const gone = { height: 0, paddingBlock: 0, marginBottom: 0, borderWidth: 0, opacity: 0 };
      const from = { height: `${panel.offsetHeight}px`, opacity: 1 };
      await panel.animate([from, gone], { duration: 350, easing: "ease-in-out" }).finished;
    }
    this.close();
  }
}

/** Say what computes; when it is not a GPU adapter, say so clearly and how to get one. */
function showAdapter({ device, adapter }) {
  const chip = document.getElementById("adapter");
  const gpu = device === "webgpu";
  const software = adapter.isFallback || /swiftshader|llvmpipe|lavapipe/i.test(adapter.architecture);
  const names = [adapter.description || [adapter.vendor, adapter.architecture].filter(Boolean).join(" ")];
  if (gpu) chip.textContent = `WebGPU: ${names[0] || "unnamed adapter"}${software ? " (software)" : ""}`;
  else chip.textContent = "NumPy, no GPU";
  chip.dataset.kind = gpu ? "gpu" : "cpu";
  chip.hidden = false;
  if (!gpu) {
    document.querySelector("main").prepend(
      element(
        "p",
        { className: "notice" },
        element("strong", { textContent: "No WebGPU here. " }),
        "This browser gave no adapter, so the same program runs on NumPy, on the processor: right, but slower. " +
          "WebGPU needs https or localhost, a recent Chrome, Edge, Safari or Firefox, and a driver the browser trusts.",
      ),
    );
  }
}

/** Show an error where nobody overlooks it, with Python's traceback for those who want it. */
export function showFailure(error) {
  console.warn(error);
  document.body.dataset.state = "failed";
  const panel = element(
    "section",
    { className: "failure" },
    element("p", { className: "what" }, element("strong", { textContent: `${error.name}: ` }), error.message),
  );
  panel.setAttribute("role", "alert");
  if (error.traceback) {
    const details = element("details", {}, element("summary", { textContent: "Python's traceback" }));
    details.append(element("pre", { textContent: error.traceback, tabIndex: 0 }));
    panel.append(details);
  }
  panel.append(
    element("p", { className: "note" }, element("a", { href: "", textContent: "Reload the page" }), " to start afresh."),
  );
  document.querySelector(".failure")?.remove();
  document.querySelector("main").prepend(panel);
  panel.scrollIntoView({ block: "nearest" });
}
