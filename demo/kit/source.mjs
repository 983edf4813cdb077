/** Shows the page's own Python, highlighted (Prism, loaded by the page as a classic script), with line numbers. */

export async function showSource(details, address) {
  const pre = details.querySelector("pre");
  const response = await fetch(address);
  const text = response.ok ? (await response.text()).trimEnd() : `${address} answered ${response.status}`;
  const numbers = document.createElement("span");
  numbers.className = "lines";
  numbers.setAttribute("aria-hidden", "true");
  numbers.textContent = text.split("\n").map((_, i) => i + 1).join("\n");
  const code = document.createElement("code");
  const { Prism } = globalThis;
  if (Prism?.languages.python) code.innerHTML = Prism.highlight(text, Prism.languages.python, "python");
  else code.textContent = text;
  pre.replaceChildren(numbers, code);
}
