#!/usr/bin/env python3
"""Drives the page of `strata serve` in Chromium and leaves screenshots: with a model that reads text, and with one that sees.

    python tests/tools/page.py target/release/strata OUT_DIR [CHROMIUM]

Needs `pip install playwright` and a Chromium; says so and ends with 77 (skipped) where they are missing.
"""

import pathlib
import shutil
import sys

from serving import PICTURES, SEEING, serving

try:
    from playwright.sync_api import expect, sync_playwright
except ImportError as error:
    print(f"skipped: {error}; pip install playwright")
    sys.exit(77)


def ask(page, text):
    page.fill("#input", text)
    page.press("#input", "Enter")


def until(page, expression, seconds=60):
    """The page forbids evaluating text, which Playwright's own waiting needs."""
    for _ in range(seconds * 10):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(100)
    raise AssertionError(f"not in time: {expression}")


def idle(page):
    expect(page.locator("#send")).to_have_text("Send", timeout=90_000)


def chat(page, out):
    page.screenshot(path=out / "empty.png")
    ask(page, "What is the capital of France?")
    idle(page)
    expect(page.locator(".message.assistant .body").last).to_contain_text("Paris")
    expect(page.locator(".message.assistant .numbers").last).to_contain_text("tokens")
    page.locator(".message.assistant").get_by_role("button", name="Regenerate").click()
    idle(page)
    expect(page.locator(".message.assistant .body")).to_have_count(1)
    page.locator(".message.user").hover()
    page.locator(".message.user").get_by_role("button", name="Edit").click()
    page.fill(".edit", "What is 12 + 30?")
    page.press(".edit", "Control+Enter")
    idle(page)
    expect(page.locator(".message.user .body")).to_have_text(["What is 12 + 30?"])
    page.check("#think")
    ask(page, "What is 17 + 25?")
    idle(page)
    expect(page.locator("details.thinking")).to_have_count(1)
    page.uncheck("#think")
    page.screenshot(path=out / "chat.png")


def stop_and_keep(page):
    ask(page, "Tell me a story.")
    expect(page.locator("#send")).to_have_text("Stop")
    until(page, "/^(?!Reading).{10}/.test(document.querySelector('.waiting')?.textContent ?? '')")
    page.keyboard.press("Escape")
    idle(page)
    expect(page.locator(".message").last).to_have_class("message assistant")
    count = page.locator(".message").count()
    page.reload()
    page.locator("#list button.open").nth(1).click()
    expect(page.locator(".message")).to_have_count(count)


def settings_and_theme(page, out):
    page.click("#settings-open")
    page.fill("#max_tokens", "3")
    page.press("#max_tokens", "Tab")
    ask(page, "Tell me a story.")
    idle(page)
    expect(page.locator(".message.assistant .numbers").last).to_contain_text("3 tokens")
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.click("#theme")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before
    page.screenshot(path=out / "settings-other-theme.png")
    page.click("#settings-open")
    page.click("#theme")


def markdown(page, out):
    text = (
        "# Head\n\nSome **bold**, *soft*, `code`, ~~gone~~ and a [link](https" + "://example.org).\n\n"
        "- one\n  - inner\n- two\n\n1. first\n2. second\n\n> quoted\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n"
        "```rust\nfn main() {\n    println!(\"<b>&amp;</b>\");\n}\n```\n\n<img src=x onerror=alert(1)> ![p](javascript:alert(1))"
    )
    script = """async (text) => {
        const { renderMarkdown } = await import("/web/markdown.js");
        const article = document.createElement("article");
        article.className = "message assistant";
        const body = document.createElement("div");
        body.className = "body";
        article.append(body);
        document.getElementById("log").replaceChildren(article);
        renderMarkdown(body, text);
        return [...body.querySelectorAll("*")].map((e) => e.tagName.toLowerCase());
    }"""
    tags = set(page.evaluate(script, text))
    assert {"h3", "strong", "em", "code", "del", "a", "ul", "ol", "li", "blockquote", "table", "pre"} <= tags, tags
    assert not tags & {"img", "script", "iframe", "b"}, "what a model writes never becomes markup"
    page.screenshot(path=out / "markdown.png")


def files_are_refused(page):
    expect(page.locator("#notice")).to_be_hidden()
    page.evaluate("""() => {
        const data = new DataTransfer();
        data.items.add(new File(["x"], "cat.png", { type: "image/png" }));
        document.getElementById("input").dispatchEvent(new ClipboardEvent("paste", { clipboardData: data, bubbles: true }));
    }""")
    expect(page.locator("#notice")).to_contain_text("Only text")
    expect(page.locator("#attach")).to_be_hidden()
    page.fill("#input", "a")
    expect(page.locator("#notice")).to_be_hidden()
    page.fill("#input", "")


def give(page, kind, name="cat.png", media="image/png"):
    """Pastes or drops a file; its bytes are a picture drawn on the spot."""
    page.evaluate("""async ([kind, name, media]) => {
        const canvas = document.createElement("canvas");
        [canvas.width, canvas.height] = [300, 200];
        const paper = canvas.getContext("2d");
        paper.fillStyle = "#c33";
        paper.fillRect(40, 40, 120, 90);
        const blob = await new Promise((done) => canvas.toBlob(done, "image/png"));
        const data = new DataTransfer();
        data.items.add(new File([blob], name, { type: media }));
        const event = kind === "paste"
            ? new ClipboardEvent("paste", { clipboardData: data, bubbles: true })
            : new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true });
        document.getElementById("input").dispatchEvent(event);
    }""", [kind, name, media])


def pictures(page, out):
    """The requests that the page makes are looked at as well."""
    bodies = []
    page.on("request", lambda r: bodies.append(r.post_data_json) if r.url.endswith("/chat/completions") else None)
    attached, shown = page.locator("#attached img"), page.locator(".message.user .thumbs img")
    expect(page.locator("#attach")).to_be_visible()
    page.set_input_files("#files", [PICTURES / "photo.png", PICTURES / "photo.jpg"])
    expect(attached).to_have_count(2)
    give(page, "paste")
    expect(attached).to_have_count(3)
    give(page, "drop", "dog.png")
    expect(attached).to_have_count(4)
    page.get_by_role("button", name="Remove photo.jpg").click()
    expect(attached).to_have_count(3)
    give(page, "drop", "notes.txt", "text/plain")
    expect(page.locator("#notice")).to_contain_text("notes.txt")
    page.screenshot(path=out / "pictures-attached.png")
    ask(page, "What is this?")
    idle(page)
    expect(attached).to_have_count(0)
    expect(shown).to_have_count(3)
    assert not page.locator(".failure").count(), page.locator(".failure").inner_text()
    parts = bodies[-1]["messages"][-1]["content"]
    assert [part["type"] for part in parts] == ["image_url"] * 3 + ["text"], parts
    # Far more pixels than the model takes in are not sent.
    assert all(len(part["image_url"]["url"]) < 60_000 for part in parts[:3])
    page.screenshot(path=out / "pictures.png")
    # A picture alone is a question too, and the keyboard reaches everything.
    page.set_input_files("#files", [PICTURES / "lossy.webp"])
    expect(attached).to_have_count(1)
    page.focus("#attached button")
    page.keyboard.press("Enter")
    expect(attached).to_have_count(0)
    page.set_input_files("#files", [PICTURES / "lossy.webp"])
    expect(attached).to_have_count(1)
    page.press("#input", "Enter")
    idle(page)
    assert [part["type"] for part in bodies[-1]["messages"][-1]["content"]] == ["image_url"]
    # What was said is kept with its pictures, and an edited question keeps them.
    page.reload()
    page.locator("#list button.open").nth(1).click()
    expect(shown).to_have_count(4)
    page.locator(".message.user").first.hover()
    page.locator(".message.user").first.get_by_role("button", name="Edit").click()
    page.get_by_role("button", name="Remove dog.png").click()
    page.fill(".edit", "And now?")
    page.press(".edit", "Control+Enter")
    idle(page)
    assert [part["type"] for part in bodies[-1]["messages"][-1]["content"]] == ["image_url"] * 2 + ["text"]
    page.get_by_role("tab", name="About").click()
    expect(page.locator("#about-model")).to_contain_text("PNG, JPEG, WebP, GIF")


def monitor(page, out):
    page.get_by_role("tab", name="Monitor").click()
    expect(page.locator("#tiles")).to_contain_text("ready")
    first = page.locator("#tiles").inner_text()
    expect(page.locator("#tiles")).not_to_have_text(first, timeout=20_000)
    expect(page.locator("#recent")).to_contain_text("end token")
    page.wait_for_timeout(1500)
    page.screenshot(path=out / "monitor.png", full_page=True)
    page.get_by_role("tab", name="About").click()
    expect(page.locator("#about-config")).to_contain_text("parallel")
    expect(page.locator("#about-model")).to_contain_text("pictures")
    page.screenshot(path=out / "about.png")


def interface(page, out, address):
    page.goto(f"{address}/docs")
    expect(page.locator("#routes h2").first).to_be_visible()
    expect(page.locator("#routes")).to_contain_text("POST /v1/chat/completions")
    expect(page.locator("#routes")).to_contain_text("messages (needed)")
    page.screenshot(path=out / "docs.png")


def watched(page, address, problems):
    """The page, whose errors and requests to others become problems."""
    page.on("console", lambda m: problems.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda e: problems.append(str(e)))
    page.on("request", lambda r: None if r.url.startswith((address, "blob:", "data:")) else problems.append(r.url))
    return page


def main():
    binary, out = sys.argv[1], pathlib.Path(sys.argv[2])
    found = [shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome")]
    chromium = sys.argv[3] if len(sys.argv) > 3 else next((path for path in found if path), None)
    if chromium is None:
        print("skipped: no Chromium")
        sys.exit(77)
    out.mkdir(parents=True, exist_ok=True)
    with serving(binary, "--temp", "0", "--threads", "2") as address, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        problems = []
        page = watched(browser.new_page(viewport={"width": 1200, "height": 780}), address, problems)
        page.goto(address)
        chat(page, out)
        stop_and_keep(page)
        files_are_refused(page)
        settings_and_theme(page, out)
        monitor(page, out)
        page.get_by_role("tab", name="Chat").click()
        markdown(page, out)
        interface(page, out, address)
        phone = browser.new_page(viewport={"width": 390, "height": 780}, color_scheme="dark", has_touch=True)
        phone.goto(address)
        ask(phone, "What is the capital of France?")
        idle(phone)
        assert phone.evaluate("document.documentElement.scrollWidth <= innerWidth"), "nothing sticks out on a phone"
        phone.screenshot(path=out / "phone.png")
        assert not problems, problems
        browser.close()
    with serving(binary, "--temp", "0", "--threads", "2", "-n", "30", *SEEING) as address, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = watched(browser.new_page(viewport={"width": 1200, "height": 780}), address, problems)
        page.goto(address)
        pictures(page, out)
        phone = browser.new_page(viewport={"width": 390, "height": 780}, color_scheme="dark", has_touch=True)
        phone.goto(address)
        phone.set_input_files("#files", [PICTURES / "photo.png", PICTURES / "photo.jpg", PICTURES / "grey.png"])
        expect(phone.locator("#attached img")).to_have_count(3)
        assert phone.evaluate("document.documentElement.scrollWidth <= innerWidth"), "nothing sticks out on a phone"
        phone.screenshot(path=out / "phone-pictures.png")
        assert not problems, problems
        browser.close()
    print("ok")


if __name__ == "__main__":
    main()
