"""The page of ComfyUI in Chromium, for scripts/try_comfyui.py: the pack's workflows, loaded and run as a user does."""

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from comfyui_program import ComfyUI

SIZE = {"width": 1920, "height": 1150}
SECONDS = 240  # the page takes long where the machine is busy
LOAD = "async workflow => { await app.loadGraphData(workflow) }"
#: Types of nodes that the page does not know: it draws them red.
UNKNOWN = "() => app.graph._nodes.map(node => node.type).filter(type => !(type in LiteGraph.registered_node_types))"
PREFIX = """prefix => {
    for (const node of app.graph._nodes)
        for (const widget of node.widgets ?? []) if (widget.name === "filename_prefix") widget.value = prefix
}"""
FIT = """() => {
    const nodes = app.graph._nodes, ends = nodes.map(node => [node.pos[0] + node.size[0], node.pos[1] + node.size[1]])
    const [left, top] = [0, 1].map(axis => Math.min(...nodes.map(node => node.pos[axis])) - 40 * (1 + axis))
    const [width, height] = [0, 1].map(axis => Math.max(...ends.map(end => end[axis])) + 40 - [left, top][axis])
    const scale = Math.min((innerWidth - 120) / width, (innerHeight - 120) / height, 1)
    app.canvas.ds.scale = scale
    app.canvas.ds.offset = [80 / scale - left, 60 / scale - top]
    app.canvas.setDirty(true, true)
}"""
#: Notes while a decode runs whether LTX Save Video shows pictures, beside no video of an earlier run.
WATCH = """() => {
    window.shown = []
    window.watching = setInterval(() => {
        const node = app.graph._nodes.find(({ type }) => type === "LTXSaveVideoMLX")
        const names = node.widgets.map(({ name }) => name)
        window.shown.push(names.filter(name => name === "$$canvas-image-preview" || name === "video-preview").join())
    }, 50)
}"""
STOP = """() => { clearInterval(window.watching); return window.shown }"""


@contextmanager
def open_page(program: ComfyUI) -> Iterator[Any]:
    """Yield the page once it has the nodes of the pack."""
    from playwright.sync_api import sync_playwright

    os.environ.pop("LD_PRELOAD", None)  # a BLAS, with which Playwright's node cannot start threads
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-background-networking", "--disable-component-update"]
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=arguments)
        page = browser.new_page(viewport=SIZE)
        page.set_default_timeout(1000 * SECONDS)
        page.goto(f"http://{program.address}/")
        page.wait_for_function("'LTXSaveVideoMLX' in (window.LiteGraph?.registered_node_types ?? {})")
        page.wait_for_function("window.app?.vueAppReady && window.app.graph")
        yield page
        browser.close()


def close_dialogs(page: Any) -> None:
    """Close the templates, which greet at a first visit, and whatever else lies over the graph."""
    dialogs = page.locator("[role=dialog]:visible")
    while dialogs.count():
        page.keyboard.press("Escape")
        page.wait_for_timeout(200)


def show(page: Any, workflow: Path) -> None:
    """Load a workflow, check that all its nodes are known, and fit it into the window."""
    graph = json.loads(workflow.read_text())
    types = sorted(node["type"] for node in graph["nodes"])
    for _ in range(SECONDS):
        page.evaluate(LOAD, graph)
        close_dialogs(page)  # of models that are missing, or of a first visit
        page.wait_for_timeout(1000)  # a page that starts may still load its own workflow
        if sorted(page.evaluate("() => app.graph._nodes.map(node => node.type)")) == types:
            break
    else:
        raise AssertionError(f"{workflow.name}: does not load")
    unknown = page.evaluate(UNKNOWN)
    assert not unknown, f"{workflow.name}: nodes that ComfyUI does not have: {unknown}"
    page.evaluate(FIT)


def check_browser(program: ComfyUI, workflows: Path, target: Path) -> str:
    """All workflows load without unknown nodes. The demo's is run as it is, shows its video, and is drawn."""
    files = sorted(workflows.glob("*.json"))
    with open_page(program) as page:
        for file in files:
            show(page, file)
            page.wait_for_timeout(1000)  # for the picture
            page.screenshot(path=str(target.with_stem(f"{target.stem}-{file.stem}")))
        show(page, workflows / "demo.json")
        run(program, page)
        page.wait_for_function("() => document.querySelector('video')?.readyState > 1")
        page.wait_for_timeout(2000)
        assert page.evaluate("() => document.querySelectorAll('video').length") == 1
        page.evaluate(FIT)
        page.wait_for_timeout(8000)  # notices go away
        page.screenshot(path=str(target))
        page.evaluate(PREFIX, "%date:yyyy-MM-dd%/%LTXPreviewMLX.decoder%_%width%")
        page.evaluate(WATCH)
        (video,) = run(program, page)["3"]["images"]
        page.wait_for_timeout(3000)
        elements = page.evaluate(STOP)
    assert elements[0] == elements[-1] == "video-preview", (elements[0], elements[-1])
    assert set(elements) >= {"$$canvas-image-preview"}, f"no pictures are shown: {set(elements)}"
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", video["subfolder"]), video
    assert video["filename"] == "demo preview_384_00001_.mp4", video
    return f"{len(files)} workflows load in a browser, and the demo's runs and shows its video; see {target}"


def run(program: ComfyUI, page: Any) -> dict:
    """Run the workflow on the page and return its outputs."""
    earlier_prompts = set(program.request("/history"))
    page.evaluate("async () => { await app.queuePrompt(0) }")
    program.wait_until(lambda: bool(set(program.request("/history")) - earlier_prompts))
    (prompt,) = set(program.request("/history")) - earlier_prompts
    history = program.wait(prompt)
    assert history["status"]["status_str"] == "success", history["status"]
    return history["outputs"]
