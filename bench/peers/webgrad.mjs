/** webgrad in Pyodide, in this very page. Its loops run in Python (bench/page.py), as its users' do. */
import { boot } from "/web/boot.mjs";

let app;

/** Start Python. The wheel is the run's own copy, so sources that change meanwhile change nothing. */
export async function open({ wheel }) {
  const here = (name) => new URL(`../${name}`, import.meta.url);
  app = await boot({
    python: here("page.py"),
    files: { "bench/__init__.py": "", "bench/workloads.py": here("workloads.py") },
    pyodideURL: "/web/vendor/pyodide/",
    wheel,
  });
}

export const connect = () => app.call("connect");
export const prepare = (name, { params, batches }) => app.call("prepare", name, params, batches);

export async function create(name) {
  const stages = await app.call("create", name);
  return {
    stages,
    steps: (count, budget) => app.call("steps", name, count, budget),
    profile: (repeat) => app.call("profile", name, repeat),
    destroy: () => app.call("destroy", name),
  };
}

export async function createProduct(product, [left, right], count) {
  const key = `${product.name} ${count}`;
  await app.call("create_product", key, product.chained, left, right, count);
  return { run: (wanted) => app.call("run_product", key, wanted), destroy: () => app.call("destroy", key) };
}
