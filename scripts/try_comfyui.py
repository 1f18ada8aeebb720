"""Try the nodes of examples/comfyui in the real ComfyUI, without a window and on the CPU.

    PYTHON scripts/try_comfyui.py CHECKOUT [--rounds 3] [--screenshot graph.png]

PYTHON has ComfyUI's requirements and this package, and playwright for a screenshot, which takes Chromium. CHECKOUT, a
clone of ComfyUI, is not changed: models, inputs and outputs are in a temporary folder. What comes back is compared with
what the commands of this package write. The first difference ends the script.
"""

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import wave
from collections import Counter
from functools import partial
from pathlib import Path

import aiohttp
import av
import mlx.core as mx
import numpy as np
from comfyui_program import CLIENT, ComfyUI, Nodes
from safetensors.numpy import load_file, save_file

from mlx_ltx_vae import VideoReader, VideoVAE, demo, load_latents
from mlx_ltx_vae.latents.audio import open_audio_latents

PACK = Path(__file__).parents[1] / "examples" / "comfyui"
WORKFLOW = PACK / "example_workflows" / "decode_to_video.json"
VAE = {"vae": "vae/demo.safetensors", "memory_budget": "auto"}
AROUND_GRAPH = {"x": 140, "y": 240, "width": 1000, "height": 450}


def make_folder(folder: Path) -> None:
    """The folders of ComfyUI, with the pack, the demo VAE and inputs."""
    for name in ("custom_nodes", "models/vae", "models/vae_approx", "input", "output", "user"):
        (folder / name).mkdir(parents=True)
    (folder / "custom_nodes" / "ltx_mlx").symlink_to(PACK)
    shutil.copy(demo.VAE, folder / "models" / "vae" / "demo.safetensors")
    shutil.copy(demo.LATENT_RGB, folder / "models" / "vae_approx" / "rgb.safetensors")
    latents = np.array(load_latents(demo.LATENTS)[0].astype(mx.float32))
    inputs = {"clip": latents, "long": np.tile(latents, (1, 1, 60, 1, 1)), "two": np.tile(latents, (2, 1, 1, 1, 1))}
    inputs["sound"] = np.random.default_rng(0).normal(size=(1, 8, 20, 16)).astype(np.float32)
    for name, array in inputs.items():
        tensors = {"latent_tensor": array, "latent_format_version_0": np.zeros(0, np.float32)}
        save_file(tensors, folder / "input" / f"{name}.latent")
    with wave.open(str(folder / "input" / "tone.wav"), "wb") as tone:
        tone.setparams((1, 2, 16000, 0, "NONE", ""))
        tone.writeframes((np.sin(np.arange(80000) / 5) * 9000).astype("<i2").tobytes())  # 5 s


def own_command(name: str, *arguments: object) -> None:
    """Run a command of the package, as a user would."""
    subprocess.run([sys.executable, "-m", f"mlx_ltx_vae.{name}", *map(str, arguments), "-q"], cwd=PACK, check=True)


def frames_of(video: Path) -> np.ndarray:
    """All frames of a video (F, H, W, 3)."""
    with VideoReader(video, multiple=1) as reader:
        return np.concatenate(list(reader))


def latent(name: str) -> tuple[str, dict]:
    """A loader of one of the inputs, as an entry of a workflow."""
    return "LoadLatent", {"latent": f"{name}.latent"}


def to_video(name: str, codec: str = "h264", **more: object) -> Nodes:
    """A workflow that decodes an input into a video and saves it."""
    return {
        "latent": latent(name),
        "decode": ("LTXDecodeToVideoMLX", {"latent": ["latent", 0], **VAE, "codec": codec, "fps": 24.0, **more}),
        "save": ("SaveVideo", {"video": ["decode", 0], "filename_prefix": "clip", "format": "auto"}),
    }


def to_latent(nodes: Nodes) -> Nodes:
    """A workflow that encodes the output of its node `frames` and saves it."""
    return nodes | {
        "encode": ("LTXEncodeMLX", {"frames": ["frames", 0], **VAE}),
        "save": ("SaveLatent", {"samples": ["encode", 0], "filename_prefix": "latent"}),
    }


def pair() -> Nodes:
    """A workflow whose node `pair` has latents of video and sound."""
    inputs = {"video_latent": ["latent", 0], "audio_latent": ["sound", 0]}
    return {"latent": latent("clip"), "sound": latent("sound"), "pair": ("LTXVConcatAVLatent", inputs)}


def check_videos(program: ComfyUI) -> str:
    """Decoded videos are those of the command, frame by frame."""
    for codec, ending, depth in (("h264", "mp4", 8), ("hevc", "mp4", 10), ("ffv1", "mkv", 8)):
        own = program.folder / "input" / f"own-{codec}.{ending}"
        options = ["-m", demo.VAE, "-o", own, "--codec", codec, "--bit-depth", depth]
        own_command("decode", program.folder / "input" / "clip.latent", *options)
        for graph in (to_video("clip", codec), to_video("clip", codec, latent=["pair", 0]) | pair()):
            (video,) = program.run(graph)
            assert np.array_equal(frames_of(video), frames_of(own)), f"{codec}: other frames than the command's"
    return "videos of plain and of nested latents in 3 codecs have the frames that the command writes, all 73 of them"


def check_sound_and_metadata(program: ComfyUI) -> str:
    """Sound is in the file, and so are the prompt and the workflow."""
    known = set(program.temporary("ltx_*"))
    graph = to_video("clip", audio=["tone", 0]) | {"tone": ("LoadAudio", {"audio": "tone.wav"})}
    program.run(graph)
    (video,) = set(program.temporary("ltx_*")) - known
    with av.open(str(video)) as container:
        (sound,) = container.streams.audio
        seconds = float(sound.duration * sound.time_base)
        assert abs(seconds - 73 / 24) < 0.1, f"{seconds} s of sound"
        assert json.loads(container.metadata["prompt"])["decode"]["class_type"] == "LTXDecodeToVideoMLX"
        assert json.loads(container.metadata["workflow"]) == {"nodes": sorted(graph)}
    return "the file has the sound, cut at its end, the prompt and the workflow"


def check_frames_and_encode(program: ComfyUI) -> str:
    """Frames and latents are those of the command."""
    vae = VideoVAE.from_pretrained(demo.VAE)
    latents, _ = load_latents(program.folder / "input" / "clip.latent")
    decode: Nodes = {"latent": latent("clip"), "frames": ("LTXDecodeFramesMLX", {"latent": ["latent", 0], **VAE})}
    pictures = program.run(decode | {"save": ("SaveImage", {"images": ["frames", 0], "filename_prefix": "frame"})})
    with VideoReader(pictures[0].parent) as reader:
        frames = np.concatenate(list(reader))
    assert np.abs(frames.astype(int) - vae.decode_uint8(latents)).max() <= 1  # ComfyUI rounds down

    expected = np.array(vae.encode(mx.clip(vae.decode(latents).astype(mx.float32), -1, 1)).astype(mx.float32))
    video: Nodes = {"images": decode["frames"], "latent": decode["latent"]}
    video["frames"] = ("CreateVideo", {"images": ["images", 0], "fps": 24.0})
    for graph in (decode, video):
        (file,) = program.run(to_latent(graph))
        assert np.allclose(load_file(file)["latent_tensor"], expected, atol=1e-4)

    own = program.folder / "own.safetensors"
    load: Nodes = {"frames": ("LoadVideo", {"file": "own-ffv1.mkv"})}
    own_command("encode", program.folder / "input" / "own-ffv1.mkv", "-m", demo.VAE, "-o", own)
    (file,) = program.run(to_latent(load))
    encoded = load_file(file)["latent_tensor"]
    assert np.array_equal(encoded, np.array(load_latents(own)[0].astype(mx.float32)))
    cut: Nodes = {"video": load["frames"], "frames": ("Video Slice", {"video": ["video", 0], "start_time": 0.0})}
    cut["frames"][1].update(duration=1.05, strict_duration=False)  # 25 frames
    (file,) = program.run(to_latent(cut))
    part = load_file(file)["latent_tensor"]
    assert part.shape[2] == 4
    assert np.abs(part - encoded[:, :, :4]).mean() < 0.02  # ComfyUI reads ffv1 with an error of half a level
    return "frames are the decode's; images, videos in memory, in files and parts of them are encoded as by the command"


def check_saved_latents(program: ComfyUI) -> str:
    """What SaveLatent writes of the parts of a pair is read as it is."""
    graph: Nodes = pair() | {"parts": ("LTXVSeparateAVLatent", {"av_latent": ["pair", 0]})}
    graph |= {
        name: ("SaveLatent", {"samples": ["parts", index], "filename_prefix": name})
        for index, name in enumerate(("pictures", "tones"))
    }
    files = {file.name.partition("_")[0]: file for file in program.run(graph)}
    for name, found in (
        ("clip", load_latents(files["pictures"])[0]),
        ("sound", open_audio_latents(files["tones"], is_alone=True).read()),
    ):
        expected = load_file(program.folder / "input" / f"{name}.latent")["latent_tensor"]
        assert np.array_equal(np.array(found.astype(mx.float32)), expected), f"{name}: other latents than were saved"
    return "SaveLatent writes a pair as two files, after LTXVSeparateAVLatent, and both are read"


def check_replaced_file(program: ComfyUI) -> str:
    """A workflow whose VAE was replaced on disk is run again."""
    file = program.folder / "models" / "vae" / "demo.safetensors"
    are_cached = []
    for _ in range(2):
        for _ in range(2):
            messages = dict(program.wait(program.post(to_video("clip")))["status"]["messages"])
            are_cached.append("decode" in messages["execution_cached"]["nodes"])
        shutil.copy2(file, file.with_suffix(".new"))
        file.with_suffix(".new").replace(file)
    assert are_cached[1:] == [True, False, True], are_cached
    return "a decode whose VAE file was replaced is not taken from ComfyUI's cache"


def check_preview(program: ComfyUI) -> str:
    """Previews without and with a model."""
    inputs = {"latent": ["latent", 0], "decoder": "vae_approx/rgb.safetensors", "fps": 24.0}
    for show, name in (("contact sheet", "own.png"), ("clip", "own.mp4")):
        own = program.folder / name
        own_command("preview", program.folder / "input" / "clip.latent", "-m", demo.LATENT_RGB, "-o", own)
        (shown,) = program.run({"latent": latent("clip"), "preview": ("LTXPreviewMLX", {**inputs, "show": show})})
        assert np.array_equal(frames_of(shown), frames_of(own)), f"{show}: other pictures than the command's"
    return "a preview shows the contact sheet and the clip of the command"


def check_refusals(program: ComfyUI) -> str:
    """Errors reach the user as the package words them."""
    odd: Nodes = {"frames": ("EmptyImage", {"width": 90, "height": 50, "batch_size": 9, "color": 0})}
    for graph, words in (
        (to_video("two"), "these are the latents of 2 videos"),
        (to_video("sound"), "these are latents of audio alone"),
        (to_video("clip", memory_budget="1MB"), "a memory budget of 1.0 MB is too small"),
        (to_latent(odd), "resize them to 96x64"),
    ):
        text = json.dumps(program.wait(program.post(graph))["status"])
        assert words in text, text
    return "a batch of two, audio alone, a budget that is too small and sides of 90x50 are errors in words"


def check_interrupt(program: ComfyUI) -> str:
    """Interrupting ends a decode, and the one that is queued behind it runs."""
    known = set(program.temporary("*"))
    prompt, queued = program.post(to_video("long")), program.post(to_video("clip", fps=25.0))
    program.wait_for_decode()
    start = time.monotonic()
    program.request("/interrupt", {})
    history = program.wait(prompt)
    seconds = time.monotonic() - start
    assert "execution_interrupted" in json.dumps(history["status"]), history["status"]
    assert program.wait(queued)["status"]["status_str"] == "success"
    assert len(set(program.temporary("*")) - known) == 1, "a partial file is left"
    return f"an interrupted decode ends after {seconds:.2f} s and leaves nothing, and the one queued behind it works"


async def listen(address: str, counts: Counter, is_on: threading.Event) -> None:
    """Count what the page of ComfyUI would get."""
    kinds = {1: "picture", 3: "text", 4: "picture"}
    url = f"ws://{address}/ws?clientId={CLIENT}"
    async with aiohttp.ClientSession() as session, session.ws_connect(url, max_msg_size=0) as socket:
        is_on.set()
        async for message in socket:
            if message.type is aiohttp.WSMsgType.BINARY:
                counts[kinds.get(int.from_bytes(message.data[:4], "big"))] += 1
            elif message.type is aiohttp.WSMsgType.TEXT:
                counts[json.loads(message.data)["type"]] += 1


def check_progress(program: ComfyUI) -> str:
    """Progress reaches the page."""
    counts, is_on = Counter(), threading.Event()
    threading.Thread(target=lambda: asyncio.run(listen(program.address, counts, is_on)), daemon=True).start()
    assert is_on.wait(30)
    program.run(to_video("clip", fps=30.0))
    assert counts["text"] >= 1 and counts["picture"] >= 3 and counts["progress_state"] >= 3, counts
    return f"a decode shows its plan, {counts['picture']} pictures and its progress"


def example_workflow() -> dict:
    """The workflow of the example, with the files that there are."""
    text = WORKFLOW.read_text()
    for published, ours in (
        ("checkpoints/ltx-2-19b-dev.safetensors", VAE["vae"]),
        ("ComfyUI_00001_.latent", "clip.latent"),
    ):
        assert published in text
        text = text.replace(published, ours)
    return json.loads(text)


def check_screenshot(program: ComfyUI, target: Path) -> str:
    """Load the example's workflow as a user does, run it, and take a picture of it."""
    from playwright.sync_api import sync_playwright

    known = set(program.request("/history"))
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-background-networking", "--disable-component-update"]
        environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}  # not its BLAS
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=arguments, env=environment)
        page = browser.new_page(viewport={"width": 1280, "height": 960})
        page.goto(f"http://{program.address}/")
        page.wait_for_function("'LTXDecodeToVideoMLX' in (window.LiteGraph?.registered_node_types ?? {})")
        page.wait_for_timeout(3000)
        page.keyboard.press("Escape")  # the templates, which greet at a first visit
        page.evaluate("async workflow => await app.loadGraphData(workflow)", example_workflow())
        page.wait_for_timeout(1000)
        page.evaluate("async () => await app.queuePrompt(0)")
        program.wait_until(lambda: bool(set(program.request("/history")) - known))
        page.wait_for_timeout(8000)  # notices go away
        page.screenshot(path=str(target), clip=AROUND_GRAPH)
        browser.close()
    (prompt,) = set(program.request("/history")) - known
    assert program.wait(prompt)["status"]["status_str"] == "success"
    return f"the example's workflow runs in a browser; see {target}"


def main() -> None:
    """Try what the command line asks for."""
    parser = argparse.ArgumentParser(description="Try the nodes of examples/comfyui in the real ComfyUI.")
    parser.add_argument("checkout", type=Path, help="a clone of ComfyUI")
    parser.add_argument("--rounds", type=int, default=3, help="how often each way to end ComfyUI is tried (default: 3)")
    parser.add_argument("--screenshot", type=Path, metavar="FILE", help="a picture of the example's workflow")
    arguments = parser.parse_args()
    checks = [check_videos, check_sound_and_metadata, check_frames_and_encode, check_preview]
    checks += [check_refusals, check_interrupt, check_progress, check_saved_latents, check_replaced_file]
    if arguments.screenshot:
        checks.append(partial(check_screenshot, target=arguments.screenshot))
    with tempfile.TemporaryDirectory(prefix="comfyui-") as name:
        make_folder(Path(name))
        start = partial(ComfyUI, arguments.checkout, Path(name))
        with start() as program:
            for check in checks:
                print(f"ok: {check(program)}", flush=True)
            seconds = program.press_ctrl_c()
        print(f"ok: Ctrl-C after decodes ends it with 0, after {seconds:.1f} s", flush=True)
        for delay in np.linspace(0, 2, arguments.rounds):
            with start() as program:
                program.post(to_video("long"))
                program.wait_for_decode()
                time.sleep(delay)
                seconds = program.press_ctrl_c()
                assert not program.temporary("*")
            where = f"{delay:.1f} s after a decode's first frames"
            print(f"ok: Ctrl-C {where} ends it with 0, after {seconds:.1f} s", flush=True)
    mx.clear_streams()


if __name__ == "__main__":
    main()
