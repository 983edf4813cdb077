"""The digits demo, as a person uses it."""

from __future__ import annotations

import pytest
from playwright.async_api import Page, expect

BOOT = 90_000
STEP = "() => Number(document.querySelector('#step').textContent.replaceAll(',', ''))"
INKED = """(id) => {
  const canvas = document.getElementById(id);
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  return data.some((value, i) => i % 4 === 3 && value > 0);
}"""


async def opened(page: Page, address: str) -> None:
    """Open the page and wait until it can train."""
    await page.goto(address)
    await expect(page.get_by_role("button", name="Start")).to_be_enabled(timeout=BOOT)


async def state(page: Page, name: str) -> None:
    await expect(page.locator("body")).to_have_attribute("data-training", name, timeout=60_000)


async def probabilities(page: Page) -> list[int]:
    """The ten percentages that the page shows."""
    texts = await page.locator("#probabilities li > :last-child").all_inner_texts()
    return [int(text.split()[0]) for text in texts]


async def test_train_draw_and_switch(page: Page, base_url: str):
    await page.add_init_script("""
      globalThis.blocks = [];
      new PerformanceObserver((list) => blocks.push(...list.getEntries().map(({ duration }) => duration)))
        .observe({ type: "longtask" });
    """)
    await opened(page, f"{base_url}demo/digits/?steps=150")
    await expect(page.locator("#adapter")).to_contain_text("WebGPU: google swiftshader (software)")
    await expect(page.locator("#tiles li")).to_have_count(60)
    await expect(page.locator("#test")).to_have_text("–")
    untrained = await page.locator("#score").inner_text()

    await page.get_by_role("button", name="Start").click()
    await state(page, "done")
    await expect(page.locator("#step")).to_have_text("150")
    accuracy = float((await page.locator("#test").inner_text()).split()[0])
    assert accuracy > 92
    assert await page.locator("#score").inner_text() != untrained
    assert await page.locator("#tiles .right").count() > 50

    wrong = page.get_by_role("checkbox", name="only mistakes")
    await wrong.check()
    assert await page.locator("#tiles .right").count() == 0
    assert await page.locator("#tiles .wrong").count() > 0
    await wrong.uncheck()

    # A one, by mouse: upright, off the middle, and long; the page centres and scales it.
    await page.get_by_role("button", name="Clear").click()
    await expect(page.locator("#answer")).to_have_text("–")
    assert await page.locator("#pad").evaluate("pad => pad.matches('.empty')")
    box = await page.locator("#pad canvas").bounding_box()
    assert box is not None
    await page.mouse.move(box["x"] + 0.7 * box["width"], box["y"] + 0.15 * box["height"])
    await page.mouse.down()
    await page.mouse.move(box["x"] + 0.68 * box["width"], box["y"] + 0.85 * box["height"], steps=6)
    await page.mouse.up()
    await expect(page.locator("#answer")).to_contain_text("1, ")
    shown = await probabilities(page)
    assert shown.index(max(shown)) == 1
    assert sum(shown) == pytest.approx(100, abs=5)
    assert await page.evaluate(INKED, "seen")
    assert await page.evaluate(INKED, "layer")
    await expect(page.locator("#active")).to_contain_text("of 128 units")

    # The CNN is another network, trained from the start; the MLP stays as trained as it was.
    await page.locator("#model").get_by_text("CNN").click()
    await expect(page.locator("#layer-note")).to_contain_text("8 feature maps", timeout=60_000)
    await expect(page.locator("#step")).to_have_text("0")
    await expect(page.locator("#active")).to_contain_text("of 1568 pixels")
    await page.get_by_role("button", name="Start").click()
    await page.wait_for_function(f"({STEP})() >= 5")
    await page.get_by_role("button", name="Pause").click()
    await state(page, "paused")
    await page.locator("#model").get_by_text("MLP").click()
    await expect(page.locator("#step")).to_have_text("150")
    await expect(page.locator("#test")).to_contain_text("%")

    await page.get_by_role("button", name="Reset").click()
    await expect(page.locator("#step")).to_have_text("0")
    await expect(page.locator("#test")).to_have_text("–")

    await page.get_by_text("The Python of this page").click()
    await expect(page.get_by_label("Source of digits.py")).to_contain_text("class CNN(nn.Module):")
    blocks = await page.evaluate("blocks")
    assert max(blocks, default=0) < 300, f"the page was blocked for {blocks} ms"


async def test_a_phone_the_keyboard_alone_and_a_hidden_tab(page: Page, base_url: str):
    await page.set_viewport_size({"width": 390, "height": 844})
    await opened(page, f"{base_url}demo/digits/")
    assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")

    for _ in range(5):  # brand, two links, the networks, and the button
        await page.keyboard.press("Tab")
    await expect(page.get_by_role("button", name="Start")).to_be_focused()
    await page.keyboard.press("Enter")
    await page.wait_for_function(f"({STEP})() >= 5")
    await page.evaluate("""() => {
      Object.defineProperty(document, "hidden", { configurable: true, get: () => true });
      document.dispatchEvent(new Event("visibilitychange"));
    }""")
    await state(page, "hidden")
    await page.wait_for_timeout(300)
    before = await page.evaluate(STEP)
    await page.wait_for_timeout(400)
    assert await page.evaluate(STEP) == before

    pad = page.get_by_role("application", name="Drawing pad")
    while not await pad.evaluate("pad => pad === document.activeElement"):
        await page.keyboard.press("Tab")
    await page.keyboard.press("Delete")
    await expect(page.locator("#answer")).to_have_text("–")
    for _ in range(7):
        await page.keyboard.press("ArrowUp")
    assert not await page.evaluate(INKED, "seen"), "the pen is up"
    await page.keyboard.press("Space")
    await expect(page.locator("#pad-status")).to_have_text("pen down")
    for _ in range(14):
        await page.keyboard.press("ArrowDown")
    await page.keyboard.press("Space")
    await expect(page.locator("#pad-status")).to_have_text("pen up")
    await expect(page.locator("#answer")).to_contain_text("sure")
    assert await page.evaluate(INKED, "seen")
    await page.keyboard.press("Tab")
    await expect(page.get_by_role("button", name="Clear")).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(page.locator("#answer")).to_have_text("–")
    await page.get_by_text("The Python of this page").click()
    assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
