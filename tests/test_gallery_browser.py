"""Galleries in a real browser: marks, keys, the command, the list, reloads, and pages of every width."""

import json
import os
import re
import shlex
import shutil
import time
from contextlib import ExitStack
from pathlib import Path

import firefox
import pytest
from chromium import PROGRAM, browser

from commands import decode, preview
from gallery_pages import RGB, read_cards, read_picks, save_clip, write_cards
from many_files import VAE, run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason="needs Chromium, which apt-get install chromium brings"),
]

HOSTILE = "<img src=x onerror='hacked=1'></script><script>hacked=1</script><a href=http://127.0.0.1:9/>$(`hacked`)"


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    """A page of one browser, for all tests."""
    with browser(tmp_path_factory.mktemp("browser")) as page:
        page.call("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
        yield page
        assert page.problems == []


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with a gallery of ten clips of two generations, one with hostile texts, and of one that is broken."""
    folder = tmp_path_factory.mktemp("gallery")
    for number in range(10):
        generation = "LTX-2.3" if number % 2 else "LTX-2"
        texts = {"prompt": HOSTILE if number == 1 else f"prompt {number}", "seed": str(number)}
        save_clip(folder / "latents" / f"it's {number}.safetensors", generation=generation, **texts)
    hostile_name = HOSTILE.replace("/", "∕")
    (folder / "latents" / f"z {hostile_name}.npy").write_text("broken")
    before = Path.cwd()
    os.chdir(folder)
    try:
        assert run(preview, "latents", *RGB, "-o", "gallery.html", "-q") == 1
    finally:
        os.chdir(before)
    return folder


@pytest.fixture
def page(made, tmp_path, monkeypatch, chromium):
    """The browser, with a copy of the gallery in which nothing is marked, in the working folder."""
    monkeypatch.chdir(made)
    shutil.copy("gallery.html", tmp_path)
    chromium.requests.clear()
    chromium.open(tmp_path / "gallery.html")
    return chromium


def text(page, selector):
    return page.eval(f"document.querySelector({json.dumps(selector)})?.textContent")


def marked(page):
    """The names of the marked clips."""
    return page.eval("[...document.querySelectorAll('.marked .name')].map(name => name.textContent)")


def names_of(page, selector):
    return page.eval(f"[...document.querySelectorAll({json.dumps(selector)})].map(element => element.textContent)")


def name(number):
    return f"it's {number}.safetensors"


def wait_for_focus(page, number):
    """Wait until a clip has the focus, which a dialog gives back a moment after it closes."""
    page.wait(f"document.activeElement.ariaLabel === {json.dumps(name(number))}")


@pytest.mark.slow
def test_keys_move_mark_and_enlarge(page):
    columns = page.eval("getComputedStyle(document.querySelector('main')).gridTemplateColumns.split(' ').length")
    assert columns == 4
    page.press("ArrowRight", " ", "ArrowDown", " ")
    assert marked(page) == [name(1), name(5)]
    assert text(page, "#count") == "2 marked, 0 rejected"
    wait_for_focus(page, 5)
    assert page.eval("getComputedStyle(document.activeElement).outlineWidth") == "3px"
    page.press(" ", "ArrowUp", "ArrowLeft", "ArrowLeft")  # no further than the first
    assert marked(page) == [name(1)]
    wait_for_focus(page, 0)
    page.press("Enter")
    page.wait("document.querySelector('#large video')?.currentTime > 0")
    page.press("ArrowRight", "ArrowRight", " ")
    assert text(page, "#large .name") == name(2)
    assert text(page, "#large .main") == "Unmark"
    page.press("Escape")
    assert not page.eval("document.querySelector('#large').open")
    assert marked(page) == [name(1), name(2)]
    wait_for_focus(page, 2)
    page.press("Home")
    wait_for_focus(page, 0)
    page.press("End", "ArrowLeft")
    wait_for_focus(page, 9)
    page.press("Enter", "Home")
    assert text(page, "#large .name") == name(0)
    page.press("ArrowRight", "ArrowRight", "Escape")
    wait_for_focus(page, 2)
    page.press("?")
    page.press("ArrowRight")  # belongs to the help
    page.press("Escape", "ArrowRight")
    wait_for_focus(page, 3)


def test_the_mouse_marks_and_enlarges(page):
    page.click("article", 2)
    page.click("article .mark", 4)
    assert marked(page) == [name(2), name(4)]
    page.click("article .mark", 4)
    page.click("article .larger", 3)
    assert text(page, "#large .name") == name(3)
    page.click("#large .main")
    page.press("Escape")
    assert marked(page) == [name(2), name(3)]
    page.click("article", 10)  # it cannot be decoded
    assert marked(page) == [name(2), name(3)]
    page.click("#clear")
    assert marked(page) == []
    assert page.eval("document.querySelector('#copy').disabled")


def test_the_command_is_copied_and_names_each_model(page):
    page.press(" ", "ArrowRight", " ", "ArrowRight", " ", "c")
    page.wait("document.querySelector('#note').textContent.startsWith('Copied')")
    command = page.eval("navigator.clipboard.readText()")
    assert command == text(page, "pre")
    assert [shlex.split(line) for line in command.splitlines()] == [
        ["mlx_ltx_vae", "decode", f"latents/{name(0)}", f"latents/{name(2)}", "-m", "ltx-2", "-o", "picks/"],
        ["mlx_ltx_vae", "decode", f"latents/{name(1)}", "-m", "ltx-2.3", "-o", "picks/"],
    ]
    assert text(page, "#note") == f"Copied. Run it in {os.getcwd()}."


def wait_for_file(path):
    end = time.monotonic() + 20
    while not path.exists():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_decode_takes_the_list_that_is_saved(page, tmp_path, monkeypatch):
    page.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    page.click("article", 1)
    page.click("article", 3)
    page.press("s")
    wait_for_file(tmp_path / "picks.txt")
    paths = [os.path.join(os.getcwd(), "latents", name(number)) for number in (1, 3)]
    assert (tmp_path / "picks.txt").read_text().splitlines() == paths
    assert "mlx_ltx_vae decode --list picks.txt -m ltx-2.3 -o picks/" in text(page, "#note")
    monkeypatch.chdir(tmp_path)
    assert run(decode, "--list", "picks.txt", *VAE, "-o", "picks/", "--dry-run", "-q") == 0


def test_each_model_has_its_list_and_its_command(page, tmp_path):
    page.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    for number in (4, 1, 6):
        page.click("article", number)
    page.press("s")
    for model, numbers in (("ltx-2.3", [1]), ("ltx-2", [4, 6])):
        wait_for_file(tmp_path / f"picks-{model}.txt")
        paths = [os.path.join(os.getcwd(), "latents", name(number)) for number in numbers]
        assert (tmp_path / f"picks-{model}.txt").read_text().splitlines() == paths
    assert text(page, "#note").splitlines() == [
        "Saved 3 of 3. --picks reads the lists back.",
        "Decode them in the folder of the lists:",
        "mlx_ltx_vae decode --list picks-ltx-2.3.txt -m ltx-2.3 -o picks/",
        "mlx_ltx_vae decode --list picks-ltx-2.txt -m ltx-2 -o picks/",
    ]
    assert page.eval("document.querySelector('#note').offsetHeight") > 50
    assert not (tmp_path / "picks.txt").exists()


def luminance(color):
    """The relative luminance of a color, as WCAG 2 defines it."""
    levels = [int(level) / 255 for level in re.findall(r"\d+", color)[:3]]
    light = [level / 12.92 if level <= 0.04045 else ((level + 0.055) / 1.055) ** 2.4 for level in levels]
    return 0.2126 * light[0] + 0.7152 * light[1] + 0.0722 * light[2]


def contrast(first, second):
    dark, bright = sorted(map(luminance, (first, second)))
    return (bright + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_marks_and_focus_differ_and_are_seen_as_ticks_are(page, tmp_path, scheme):
    def style(selector, field):
        return page.eval(f"getComputedStyle(document.querySelector({json.dumps(selector)})).{field}")

    page.open(tmp_path / "gallery.html", scheme=scheme)
    page.press("ArrowRight", " ")
    wait_for_focus(page, 1)
    focus, mark = style("article:focus", "outlineColor"), style("article.marked", "borderTopColor")
    background, card = style("body", "backgroundColor"), style("article", "backgroundColor")
    red, _, blue = (int(level) for level in re.findall(r"\d+", focus))
    mark_red, _, mark_blue = (int(level) for level in re.findall(r"\d+", mark))
    assert red > blue + 100 and mark_blue > mark_red + 100
    for color in (focus, mark):
        assert contrast(color, background) > 3
    assert contrast(style("article:not(.marked) .mark", "color"), card) > 3
    assert contrast(style("article.marked .mark", "color"), style("article.marked .mark", "backgroundColor")) > 3


@pytest.fixture(params=["chromium", "firefox"])
def any_page(request, made, tmp_path, tmp_path_factory, monkeypatch):
    """The page in each browser that there is, which saves to the folder of the test."""
    if request.param == "firefox" and firefox.PROGRAM is None:
        pytest.skip("needs Firefox, which apt-get install firefox-esr brings, or FIREFOX=PROGRAM")
    monkeypatch.chdir(made)
    shutil.copy("gallery.html", tmp_path)
    with ExitStack() as stack:
        if request.param == "firefox":
            page = stack.enter_context(firefox.browser(tmp_path_factory.mktemp("firefox"), tmp_path))
        else:
            page = request.getfixturevalue("chromium")
            page.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
        page.open(tmp_path / "gallery.html")
        yield page


@pytest.mark.slow
def test_a_night_is_culled_by_keys_alone(any_page, tmp_path, monkeypatch):
    page = any_page
    page.press("P", "X", "x", "ArrowRight", "p", "u", "Enter", "P", "X")  # the fifth clip is enlarged now
    assert text(page, "#large .name") == name(5)
    page.press("Escape")
    assert marked(page) == [name(0), name(3)]
    assert names_of(page, ".rejected .name") == [name(number) for number in (1, 2, 4)]
    assert text(page, "#count") == "2 marked, 3 rejected"
    page.press("f")
    assert names_of(page, "main .name") == [name(0), name(3)]
    assert text(page, "#total") == "Clips: 2 of 11"
    page.press("Home", "x")  # it leaves what is shown, and the next one has the focus
    assert names_of(page, "main .name") == [name(3)]
    wait_for_focus(page, 3)
    page.press("z", "f")
    assert names_of(page, "main .name") == [name(number) for number in (1, 2, 4)]
    page.press("f", "End")
    assert text(page, "#total") == "Clips: 6 of 11"  # the clip that is broken is undecided
    page.press("f", "s")
    wait_for_file(tmp_path / "picks-ltx-2.txt")
    wait_for_file(tmp_path / "picks-ltx-2.3.txt")
    paths = [os.path.join(os.getcwd(), "latents", name(number)) for number in range(5)]
    lists = [(tmp_path / f"picks-{model}.txt").read_text().splitlines() for model in ("ltx-2", "ltx-2.3")]
    rejected = [f"# rejected: {paths[number]}" for number in (1, 2, 4)]
    assert lists == [[paths[0], *rejected], [paths[3]]]
    monkeypatch.chdir(tmp_path)
    assert run(decode, "--list", "picks-ltx-2.txt", *VAE, "-o", "picks/", "--dry-run", "-q") == 0
    assert read_picks(["picks-ltx-2.txt", "picks-ltx-2.3.txt"]) == {
        path: "pick" if number in (0, 3) else "reject" for number, path in enumerate(paths)
    }


def test_marks_of_a_list_are_in_a_page_that_is_made_with_it(made, chromium, tmp_path):
    cards = [card | {"data": [], "videos": [], "stills": []} for card in read_cards(made / "gallery.html")[:4]]
    page, (first, second, third, _) = tmp_path / "moved.html", [card["path"] for card in cards]

    def make(marks):
        write_cards(page, cards, is_watched=False, marks=marks)
        chromium.open(page)
        return names_of(chromium, ".marked .name"), names_of(chromium, ".rejected .name")

    assert make({first: "pick", second: "reject"}) == ([name(0)], [name(1)])
    chromium.press("u", "ArrowRight", "ArrowRight", "p")
    assert make({first: "pick", second: "reject"}) == ([name(2)], [name(1)])  # the same list is not read again
    assert make({second: "pick", third: "pick"}) == ([name(1), name(2)], [])


def test_clips_are_sorted_and_undone(page):
    page.eval("clips.forEach((clip, index) => { clip.seconds = 20 - index; clip.date = `2026-11-${10 + index % 3}` })")
    page.press("o")  # by name
    assert names_of(page, "main .name")[:3] == [name(0), name(1), name(2)]
    page.press("o")
    assert names_of(page, "main .name")[:4] == [name(0), name(3), name(6), name(9)]
    page.press("o")
    assert names_of(page, "main .name")[-2:] == [name(1), name(0)]
    page.call("Page.reload")
    page.wait("document.readyState === 'complete' && document.querySelector('#sort').value === 'length'")
    page.press("o", "p", "ArrowRight", "p")
    page.click("#clear")
    assert marked(page) == []
    page.click("#undo")
    assert marked(page) == [name(0), name(1)]
    page.press("z", "z")
    assert marked(page) == []
    assert page.eval("document.querySelector('#undo').disabled")


def test_a_still_is_there_before_a_video_and_the_pointer_scrubs(page, tmp_path):
    assert page.eval("document.querySelector('video').poster.slice(0, 23)") == "data:image/jpeg;base64,"
    page.eval(
        "new Promise((done, failed) => Object.assign(new Image(), "
        "{ onload: done, onerror: failed, src: document.querySelector('video').poster }))"
    )
    page.wait("document.querySelector('video').duration > 0")
    box = page.eval("document.querySelector('.well').getBoundingClientRect().toJSON()")
    assert abs(box["width"] / box["height"] - 16 / 9) < 0.05
    for share in (0.75, 0.25):
        place = {"x": box["x"] + share * box["width"], "y": box["y"] + box["height"] / 2}
        page.call("Input.dispatchMouseEvent", type="mouseMoved", **place)
        page.wait("document.querySelector('video').paused && !document.querySelector('video').seeking")
        position = "document.querySelector('video').currentTime / document.querySelector('video').duration"
        assert abs(page.eval(position) - share) < 0.05
    page.call("Input.dispatchMouseEvent", type="mouseMoved", x=2, y=2)
    page.wait("!document.querySelector('video').paused")


def test_two_clips_are_in_step_and_frames_are_stepped(page):
    page.press("Enter", "2")
    assert names_of(page, "#large .name") == [name(0), name(1)]
    page.press("ArrowRight")
    assert names_of(page, "#large .name") == [name(0), name(2)]
    videos = "[...document.querySelectorAll('#large video')]"
    page.wait(f"{videos}.every(video => video.readyState > 2)")
    page.eval(f"{videos}[0].pause()")
    page.wait(f"{videos}[1].paused")
    page.eval(f"{videos}[0].currentTime = 0.2")
    page.wait(f"{videos}.every(video => Math.abs(video.currentTime - 0.2) < 0.07)")
    before = page.eval(f"{videos}[0].currentTime")
    page.press(",")
    assert page.eval(f"{videos}[0].currentTime") == pytest.approx(before - 1 / page.eval("clips[2].fps"), abs=0.001)
    page.press(".")
    assert page.eval(f"{videos}[1].currentTime") == pytest.approx(before, abs=0.07)
    page.press("x", "2")
    assert names_of(page, "#large .name") == [name(2)]
    page.press("Escape")
    assert names_of(page, ".rejected .name") == [name(2)]


def test_buttons_have_names_for_screen_readers(page):
    labels = page.eval("[...document.querySelectorAll('article:first-child button')].map(button => button.ariaLabel)")
    assert labels == [f"{verb} {name(0)}" for verb in ("Mark", "Reject", "Enlarge")]


def test_marks_survive_a_reload_and_belong_to_one_page(page, tmp_path):
    page.press("ArrowRight", " ")
    page.call("Page.reload")
    page.wait("document.readyState === 'complete' && document.querySelectorAll('.marked').length === 1")
    assert marked(page) == [name(1)]
    shutil.copy("gallery.html", tmp_path / "other.html")
    page.open(tmp_path / "other.html")
    assert marked(page) == []


def test_texts_are_texts_and_nothing_is_asked_for(page, tmp_path):
    page.press("ArrowRight", " ", "Enter")
    assert text(page, "#large .prompt") == HOSTILE
    assert HOSTILE.split("/")[0] in text(page, "article:last-child .well p")
    assert HOSTILE[:20] in text(page, "article:last-child .name")
    assert not page.eval("'hacked' in window")
    assert page.eval("document.querySelectorAll('img, a, article script, dialog script').length") == 0
    assert page.requests == [(tmp_path / "gallery.html").as_uri()]


def test_a_page_refuses_scripts_and_requests_that_are_not_its_own(page):
    """If a text became markup after all, it would do nothing."""
    page.eval("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=hacked=1>')")
    page.eval("document.body.append(Object.assign(document.createElement('script'), { text: 'hacked = 1' }))")
    page.eval("fetch('http://127.0.0.1:9/').catch(() => 0)")
    time.sleep(0.2)
    assert not page.eval("'hacked' in window")
    assert page.problems
    assert all("Content Security Policy" in problem for problem in page.problems)
    page.problems.clear()


def test_videos_play_where_they_are_seen(page, tmp_path):
    page.open(tmp_path / "gallery.html", height=500)
    page.wait("document.querySelector('video').currentTime > 0.1")
    assert page.eval("document.querySelector('video').muted && document.querySelector('video').loop")
    page.open(tmp_path / "gallery.html", width=400, height=500)
    page.wait("document.querySelector('video').currentTime > 0")
    videos = "[...document.querySelectorAll('video')].map(video => Boolean(video.getAttribute('src')))"
    assert page.eval(videos)[0]
    assert not page.eval(videos)[-1]
    page.eval("scrollTo(0, document.body.scrollHeight)")
    page.wait(f"{videos}.at(-1) && !{videos}[0]")


@pytest.mark.quick(2)
@pytest.mark.parametrize(("width", "columns"), [(400, 1), (1600, 6)])
@pytest.mark.parametrize(("scheme", "is_light"), [("light", True), ("dark", False)])
def test_pages_fit_narrow_and_wide_windows_in_light_and_dark(page, tmp_path, width, columns, scheme, is_light):
    page.open(tmp_path / "gallery.html", width=width, scheme=scheme)
    for _ in range(8):
        page.press(" ", "ArrowRight")
    assert len(marked(page)) == 8
    assert page.eval("document.documentElement.scrollWidth <= innerWidth")
    grid = "getComputedStyle(document.querySelector('main')).gridTemplateColumns.split(' ').length"
    assert page.eval(grid) == columns
    for element in ("#copy", "#save", "#clear", "pre", "#count"):
        box = page.eval(f"document.querySelector('{element}').getBoundingClientRect().toJSON()")
        assert 0 <= box["left"] < box["right"] <= width
        assert box["bottom"] <= 800
    assert page.eval("document.querySelector('#bar').offsetHeight") < 300
    color = page.eval("getComputedStyle(document.body).backgroundColor")
    assert (int(color.split("(")[1].split(",")[0]) > 128) is is_light


@pytest.mark.slow
def test_a_watched_page_reloads_itself_and_keeps_marks(made, tmp_path, chromium):
    cards = [card | {"videos": []} for card in read_cards(made / "gallery.html")]
    page = tmp_path / "a b#c?.html"
    write_cards(page, cards[:3])
    chromium.open(page)
    chromium.press("ArrowRight", " ")
    write_cards(page, cards[:4])
    chromium.wait("document.querySelectorAll('article').length === 4")
    assert marked(chromium) == [name(1)]
    assert chromium.eval("document.querySelector('article[tabindex=\"0\"]').ariaLabel") == name(1)
    chromium.press("ArrowRight", "Enter")
    write_cards(page, cards[1:5])
    time.sleep(2.5)  # a clip that is enlarged stays
    assert text(chromium, "#large .name") == name(2)
    chromium.press("Escape")
    chromium.wait("document.querySelector('article .name')?.textContent.includes('1')")
    assert marked(chromium) == [name(1)]
    assert not any("http" in request for request in chromium.requests)


def test_an_empty_page_says_so(tmp_path, chromium):
    page = tmp_path / "empty.html"
    write_cards(page, [], is_watched=False)
    chromium.open(page)
    chromium.press("ArrowRight", " ", "Enter", "c")
    assert text(chromium, "#total") == "Clips: 0"
