"""The curve demo, as a person uses it."""

from __future__ import annotations

import pytest
from playwright.async_api import Page, expect

from tests.browser import PageLog

BOOT = 90_000
STEP = "() => Number(document.querySelector('#step').textContent.replaceAll(',', ''))"
HIDE = """(hidden) => {
  Object.defineProperty(document, "hidden", { configurable: true, get: () => hidden });
  document.dispatchEvent(new Event("visibilitychange"));
}"""


async def opened(page: Page, address: str) -> None:
    """Open the page and wait until it can train."""
    await page.goto(address)
    await expect(page.get_by_role("button", name="Start")).to_be_enabled(timeout=BOOT)


async def steps_reach(page: Page, count: int) -> None:
    await page.wait_for_function(f"count => ({STEP})() >= count", arg=count)


async def stands_still(page: Page) -> int:
    """The step, after making sure that it does not move."""
    await page.wait_for_timeout(200)  # what was published before the pause may still arrive
    before = await page.evaluate(STEP)
    await page.wait_for_timeout(400)
    assert await page.evaluate(STEP) == before
    return before


async def test_the_curve_is_learnt_while_one_watches_and_plays(page: Page, base_url: str):
    stages = []
    await page.expose_function("heardStage", lambda stage: stages.append(stage))
    await page.add_init_script("""
      globalThis.blocks = [];
      new PerformanceObserver((list) => blocks.push(...list.getEntries().map(({ duration }) => duration)))
        .observe({ type: "longtask" });
      new MutationObserver(() => {
        const now = document.querySelector("#loader [aria-current]");
        if (now) heardStage(now.textContent);
      }).observe(document, { subtree: true, attributes: true });
    """)
    await opened(page, f"{base_url}demo/sine/")
    assert list(dict.fromkeys(stages)) == ["Download", "Python", "NumPy", "webgrad", "Compile"]
    await expect(page.locator("#loader")).to_be_hidden()
    await expect(page.locator("#adapter")).to_contain_text("WebGPU: google swiftshader (software)")

    await page.get_by_role("button", name="Start").click()
    await steps_reach(page, 100)
    assert float(await page.locator("#loss").inner_text()) < 0.1
    assert await page.locator("#fit canvas").count() == 1
    assert await page.locator("#losses canvas").count() == 1

    slider = page.get_by_role("slider", name="Learning rate")
    await slider.focus()
    for _ in range(6):
        await page.keyboard.press("ArrowLeft")
    await expect(page.locator("#lr-value")).to_have_text("0.0025")
    assert await slider.get_attribute("aria-valuetext") == "0.0025"
    at = await page.evaluate(STEP)
    await steps_reach(page, at + 5)  # it went on
    assert (await page.evaluate("demo.app.call('about')"))["lr"] == pytest.approx(0.0025, rel=0.01)

    await page.get_by_role("combobox", name="Curve").select_option("chirp")
    await page.wait_for_function("Number(document.querySelector('#loss').textContent) > 0.05")

    await page.get_by_role("button", name="Pause").click()
    await expect(page.get_by_role("button", name="Start")).to_be_visible()
    assert await stands_still(page) > 100

    await page.get_by_role("button", name="Reset").click()
    await expect(page.locator("#step")).to_have_text("0")
    await expect(page.locator("#loss")).to_have_text("–")

    await page.emulate_media(color_scheme="dark")  # the charts are drawn anew
    assert await page.locator("#fit canvas").count() == 1

    await page.get_by_text("The Python of this page").click()
    source = page.get_by_label("Source of sine.py")
    await expect(source).to_contain_text("await wg.compile_module(")
    assert await source.locator(".token.keyword").count() > 20

    blocks = await page.evaluate("blocks")
    assert max(blocks, default=0) < 300, f"the page was blocked for {blocks} ms"


async def test_a_phone_the_keyboard_alone_and_a_hidden_tab(page: Page, base_url: str):
    await page.set_viewport_size({"width": 390, "height": 844})
    await opened(page, f"{base_url}demo/sine/")
    assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")

    for _ in range(4):  # brand, two links, and the button
        await page.keyboard.press("Tab")
    await expect(page.get_by_role("button", name="Start")).to_be_focused()
    await page.keyboard.press("Enter")
    await steps_reach(page, 10)

    await page.evaluate(HIDE, True)
    await expect(page.locator("body")).to_have_attribute("data-training", "hidden")
    hidden_at = await stands_still(page)
    await page.evaluate(HIDE, False)
    await steps_reach(page, hidden_at + 5)

    await page.keyboard.press("Space")
    await expect(page.locator("body")).to_have_attribute("data-training", "paused")
    await page.evaluate(HIDE, True)
    await page.evaluate(HIDE, False)
    await expect(page.locator("body")).to_have_attribute("data-training", "paused")  # as the person left it
    await page.get_by_text("The Python of this page").click()
    assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")


async def test_without_webgpu_it_trains_on_numpy_and_says_so(page: Page, base_url: str):
    await page.add_init_script("delete Navigator.prototype.gpu")
    await opened(page, f"{base_url}demo/sine/?worker=0")
    await expect(page.locator("#adapter")).to_have_text("NumPy, no GPU")
    await expect(page.locator(".notice")).to_contain_text("No WebGPU here")
    await page.get_by_role("button", name="Start").click()
    await steps_reach(page, 5)
    await page.get_by_role("button", name="Pause").click()
    await stands_still(page)


async def test_what_fails_is_told(page: Page, page_log: PageLog, base_url: str):
    await page.route("**/pyodide.mjs", lambda route: route.fulfill(status=404))
    await page.goto(f"{base_url}demo/sine/")
    alert = page.get_by_role("alert")
    await expect(alert).to_contain_text("pyodide.mjs")
    await expect(alert.get_by_role("link", name="Reload the page")).to_be_visible()
    await expect(page.get_by_role("button", name="Start")).to_be_disabled()
    assert page_log.console, "the console has it too"


async def test_the_gallery_leads_to_every_demo(page: Page, base_url: str):
    await page.goto(base_url)
    await expect(page.locator("#adapter")).to_contain_text("WebGPU")
    addresses = await page.eval_on_selector_all("main a", "links => links.map(({href}) => href)")
    assert len(addresses) == 5
    for address in addresses:
        assert (await page.request.get(address)).ok, address
    await page.set_viewport_size({"width": 390, "height": 844})
    assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
