"""Try the nodes of examples/comfyui in the real ComfyUI, without a window and on the CPU.

    PYTHON scripts/try_comfyui.py CHECKOUT [--rounds 3] [--screenshot graph.png] [--only NAME ...]

PYTHON has ComfyUI's requirements and this package, and playwright for a screenshot, which takes Chromium. CHECKOUT, a
clone of ComfyUI, is not changed: models, inputs and outputs are in a temporary folder. What comes back is compared with
what the commands of this package write. The first difference ends the script.
"""

import argparse
import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from functools import partial
from pathlib import Path

import aiohttp
import av
import mlx.core as mx
import numpy as np
from comfyui_browser import check_browser
from comfyui_folder import AUDIO_VAE, PACK, make_folder
from comfyui_program import CLIENT, ComfyUI, Nodes
from safetensors.numpy import load_file

from mlx_ltx_vae import AudioVAE, VideoReader, VideoVAE, demo, load_audio_latents, load_latents

BT2020, HLG = 9, 18  # in ITU-T H.273
VAE = {"vae": "vae/demo.safetensors", "memory_budget": "auto"}


def own_command(name: str, *arguments: object) -> None:
    """Run a command of the package, as a user would."""
    command = [sys.executable, "-m", f"mlx_ltx_vae.{name}", *map(str, arguments), "-q", "-y"]
    subprocess.run(command, cwd=PACK, check=True)


def frames_of(video: Path) -> np.ndarray:
    """All frames of a video (F, H, W, 3)."""
    with VideoReader(video, multiple=1) as reader:
        return np.concatenate(list(reader))


def latent(name: str) -> tuple[str, dict]:
    """Return a loader of one of the inputs, as an entry of a workflow."""
    return "LoadLatent", {"latent": f"{name}.latent"}


def to_video(name: str, codec: str = "h264", **more: object) -> Nodes:
    """Return a workflow that decodes an input into a video and saves it."""
    return {
        "latent": latent(name),
        "decode": ("LTXDecodeToVideoMLX", {"latent": ["latent", 0], **VAE, "codec": codec, "fps": 24.0, **more}),
        "save": ("SaveVideo", {"video": ["decode", 0], "filename_prefix": "clip", "format": "auto"}),
    }


def to_latent(nodes: Nodes) -> Nodes:
    """Return a workflow that encodes the output of its node `frames` and saves it."""
    return nodes | {
        "encode": ("LTXEncodeMLX", {"frames": ["frames", 0], **VAE}),
        "save": ("SaveLatent", {"samples": ["encode", 0], "filename_prefix": "latent"}),
    }


def pair(name: str = "clip") -> Nodes:
    """Return a workflow whose node `pair` has latents of video and audio."""
    inputs = {"video_latent": ["latent", 0], "audio_latent": ["audio", 0]}
    return {"latent": latent(name), "audio": latent("audio"), "pair": ("LTXVConcatAVLatent", inputs)}


def check_videos(program: ComfyUI) -> str:
    """Decoded videos equal the command's, frame by frame."""
    for codec, ending, depth in (("h264", "mp4", 8), ("hevc", "mp4", 10), ("ffv1", "mkv", 8)):
        reference = program.folder / "input" / f"own-{codec}.{ending}"
        options = ["-m", demo.VAE, "-o", reference, "--codec", codec, "--bit-depth", depth]
        own_command("decode", program.folder / "input" / "clip.latent", *options)
        for graph in (to_video("clip", codec), to_video("clip", codec, latent=["pair", 0]) | pair()):
            (video,) = program.run(graph)
            assert np.array_equal(frames_of(video), frames_of(reference)), f"{codec}: other frames than the command's"
    return "videos of plain and of nested latents in 3 codecs have the frames that the command writes, all 73 of them"


def decoder_options(**more: object) -> tuple[str, dict]:
    """LTX Decoder Options (MLX), as an entry of a workflow."""
    defaults = {
        "decoder_seed": 0,
        "timestep": -1.0,
        "noise_scale": -1.0,
        "convention": "ltx-video",
        "keyframe_frames": "",
    }
    return "LTXDecoderOptionsMLX", {**defaults, "hdr": "no", "audio_length": "fit", **more}


def save_video(name: str, **more: object) -> Nodes:
    """Return a workflow that decodes an input straight into a file of the outputs."""
    inputs = {"latent": ["latent", 0], **VAE, "filename_prefix": "saved/clip", "fps": 24.0, **more}
    return {"latent": latent(name), "save": ("LTXSaveVideoMLX", inputs)}


def check_saved_videos(program: ComfyUI) -> str:
    """LTX Save Video writes what the command writes, under the next name, with its audio and its tags."""
    for number, (format_, ending, codec, depth, hdr) in enumerate(
        (
            ("mp4, h264", "mp4", "h264", 8, "no"),
            ("mp4, hevc (10 bits)", "mp4", "hevc", 10, "no"),
            ("mp4, hevc (10 bits)", "mp4", "hevc", 10, "acescct"),
            ("mov, prores (10 bits)", "mov", "prores", 10, "logc3"),
            ("mov, prores (10 bits)", "mov", "prores", 10, "no"),
            ("mkv, ffv1 (lossless)", "mkv", "ffv1", 8, "no"),
            ("webm, vp9", "webm", "vp9", 8, "no"),
        ),
        1,
    ):
        reference = program.folder / f"own-{codec}-{hdr}.{ending}"
        options = ["-m", demo.VAE, "-o", reference, "--codec", codec, "--bit-depth", depth]
        options += [] if hdr == "no" else ["--hdr", hdr]
        own_command("decode", program.folder / "input" / "clip.latent", *options)
        more = {"latent": ["pair", 0], "audio_vae": AUDIO_VAE, "options": ["options", 0]}
        graph = save_video("clip", format=format_, **more) | pair() | {"options": decoder_options(hdr=hdr)}
        (video,) = program.run(graph)
        assert video == program.folder / "output" / "saved" / f"clip_{number:05}_.{ending}", video
        assert np.array_equal(frames_of(video), frames_of(reference)), f"{format_}: other frames than the command's"
        with av.open(str(video)) as container:
            (pictures,), (audio,) = container.streams.video, container.streams.audio
            assert codec != "hevc" or pictures.codec_tag == "hvc1", pictures.codec_tag
            tags = pictures.codec_context.color_primaries, pictures.codec_context.color_trc
            assert (tags == (BT2020, HLG)) == (hdr != "no"), tags
            heard = sum(frame.samples for frame in container.decode(audio)) / audio.sample_rate
            assert abs(heard - 73 / 24) < 0.1, f"{heard} s of audio"
            entries = {key.lower() for key in container.metadata}
            assert {"prompt", "workflow"} <= entries, entries
    previews = program.temporary("ltx_*")  # of ProRes twice and of ffv1
    assert [len(frames_of(preview)) for preview in previews] == [73] * 3, previews
    (video,) = program.run(save_video("clip", format="mp4, h264", save_metadata=False))
    with av.open(str(video)) as container:
        assert "prompt" not in container.metadata
    return "LTX Save Video writes the command's frames in 5 formats, with audio, metadata and hvc1, and masters of HDR"


def check_taken_name(program: ComfyUI) -> str:
    """Check that another program's file with the name of a running decode stays; the video gets the next number."""
    folder = program.folder / "output" / "taken"
    graph = save_video("clip", format="mp4, h264", filename_prefix="taken/clip", fps=25.0)
    prompt = program.post(graph)
    program.wait_until(lambda: any(folder.glob(".*")))
    taken = folder / "clip_00001_.mp4"
    taken.write_text("of another program")
    assert program.wait(prompt)["status"]["status_str"] == "success"
    assert taken.read_text() == "of another program"
    assert len(frames_of(folder / "clip_00002_.mp4")) == 73 and len(list(folder.iterdir())) == 2
    return "a name that is taken during a decode costs the video no more than the number"


def check_audio(program: ComfyUI) -> str:
    """Audio is decoded and encoded as by the package."""
    vae = AudioVAE.from_pretrained(program.folder / "models" / AUDIO_VAE)
    latents = load_file(program.folder / "input" / "audio.latent")["latent_tensor"]
    decode: Nodes = pair() | {"decode": ("LTXDecodeAudioMLX", {"latent": ["pair", 0], "audio_vae": AUDIO_VAE})}
    save = ("SaveAudio", {"audio": ["decode", 0], "filename_prefix": "audio"})
    encode = ("LTXEncodeAudioMLX", {"audio": ["decode", 0], "audio_vae": AUDIO_VAE})
    keep = ("SaveLatent", {"samples": ["encode", 0], "filename_prefix": "audio"})
    files = program.run(decode | {"save": save, "encode": encode, "keep": keep})
    audio, saved = sorted(files, key=lambda file: file.suffix != ".flac")
    expected = np.array(vae.decode(latents))
    with av.open(str(audio)) as container:
        heard = np.concatenate([frame.to_ndarray() for frame in container.decode(audio=0)], axis=1)
    heard = heard.reshape(-1, 2).T / np.float32(2 ** (8 * heard.itemsize - 1))
    assert heard.shape == expected.shape[1:], heard.shape
    assert np.abs(heard - expected[0]).max() < 1e-4
    encoded = np.array(vae.encode(expected, vae.sample_rate))
    assert np.allclose(load_file(saved)["latent_tensor"], encoded, atol=1e-3)
    return "LTX Decode Audio and LTX Encode Audio make the audio and the latents of the package"


def check_languages(program: ComfyUI) -> str:
    """Check that the page gets the texts of all inputs in the languages that the pack has."""
    texts = program.request("/i18n")
    for file in (PACK / "locales").glob("*/nodeDefs.json"):
        for name, node in json.loads(file.read_text()).items():
            assert texts[file.parent.name]["nodeDefs"][name] == node, name
            (schema,) = program.request(f"/object_info/{name}").values()
            inputs = [key for kind in ("required", "optional") for key in schema["input"].get(kind, {})]
            assert sorted(inputs) == sorted(node.get("inputs", {})), name
    return f"the page gets the texts of all nodes in {' and '.join(sorted(texts))}"


def check_memory(program: ComfyUI) -> str:
    """`POST /free`, which "Unload models" sends, frees the networks of the pack."""

    def kept() -> int:
        outputs = program.wait(program.post({"count": ("TrialNetworks", {})}))["outputs"]
        return int(outputs["count"]["text"][0])

    program.run(save_video("clip", format="mp4, h264", fps=23.0))
    before = kept()
    program.request("/free", {"unload_models": True, "free_memory": True})
    program.wait_until(lambda: kept() == 0, 30)
    assert before > 0
    return f"Unload models frees the {before} networks that the pack keeps"


def check_sampling_preview(program: ComfyUI) -> str:
    """Check that a sampler shows pictures after each step, and its result stays as it is."""
    sample = {"noise": ["noise", 0], "guider": ["guider", 0], "sampler": ["sampler", 0], "sigmas": ["sigmas", 0]}
    graph: Nodes = {
        "model": ("TrialModel", {}),
        "preview": ("LTXSamplingPreviewMLX", {"model": ["model", 0], "decoder": "vae/tiny.safetensors", "pictures": 4}),
        "guider": ("BasicGuider", {"conditioning": ["model", 1]}),
        "noise": ("RandomNoise", {"noise_seed": 1}),
        "sampler": ("KSamplerSelect", {"sampler_name": "euler"}),
        "sigmas": ("ManualSigmas", {"sigmas": "1.0, 0.7, 0.4, 0.0"}),
        "empty": ("EmptyLTXVLatentVideo", {"width": 128, "height": 96, "length": 17, "batch_size": 1}),
        "sample": ("SamplerCustomAdvanced", {**sample, "latent_image": ["empty", 0]}),
        "save": ("SaveLatent", {"samples": ["sample", 0], "filename_prefix": "sampled"}),
    }
    results, pictures = [], []
    for model in ("model", "preview"):
        graph["guider"][1]["model"] = [model, 0]
        counts = count_messages(program.address)
        (file,) = program.run(graph)
        results.append(load_file(file)["latent_tensor"])
        pictures.append(counts["picture"])
    assert np.array_equal(*results), "the preview changes what is sampled"
    assert np.isfinite(results[0]).all() and results[0].shape == (1, 128, 3, 3, 4)
    assert pictures[1] >= pictures[0] + 3, pictures
    return f"a sampler of 3 steps shows {pictures[1] - pictures[0]} pictures more, and samples the same latents"


def check_audio_and_metadata(program: ComfyUI) -> str:
    """Audio is in the file, and so are the prompt and the workflow."""
    earlier = set(program.temporary("ltx_*"))
    graph = to_video("clip", audio=["tone", 0]) | {"tone": ("LoadAudio", {"audio": "tone.wav"})}
    program.run(graph)
    (video,) = set(program.temporary("ltx_*")) - earlier
    with av.open(str(video)) as container:
        (audio,) = container.streams.audio
        seconds = float(audio.duration * audio.time_base)
        assert abs(seconds - 73 / 24) < 0.1, f"{seconds} s of audio"
        assert json.loads(container.metadata["prompt"])["decode"]["class_type"] == "LTXDecodeToVideoMLX"
        assert json.loads(container.metadata["workflow"]) == {"nodes": sorted(graph)}
    return "the file has the audio, cut at its end, the prompt and the workflow"


def check_frames_and_encode(program: ComfyUI) -> str:
    """Frames and latents equal the command's."""
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

    reference, video_file = program.folder / "own.safetensors", program.folder / "input" / "own.mkv"
    load: Nodes = {"frames": ("LoadVideo", {"file": video_file.name})}
    own_command("decode", program.folder / "input" / "clip.latent", "-m", demo.VAE, "-o", video_file, "--codec", "ffv1")
    own_command("encode", video_file, "-m", demo.VAE, "-o", reference)
    (file,) = program.run(to_latent(load))
    encoded = load_file(file)["latent_tensor"]
    assert np.array_equal(encoded, np.array(load_latents(reference)[0].astype(mx.float32)))
    cut: Nodes = {"video": load["frames"], "frames": ("Video Slice", {"video": ["video", 0], "start_time": 0.0})}
    cut["frames"][1].update(duration=1.05, strict_duration=False)  # 25 frames
    (file,) = program.run(to_latent(cut))
    part = load_file(file)["latent_tensor"]
    assert part.shape[2] == 4
    assert np.abs(part - encoded[:, :, :4]).mean() < 0.02  # ComfyUI reads ffv1 with an error of half a level
    return "frames are the decode's; images, videos in memory, in files and parts of them are encoded as by the command"


def check_saved_latents(program: ComfyUI) -> str:
    """Files that SaveLatent writes of the parts of a pair are read as they are, and LoadLatent reads the command's."""
    graph: Nodes = pair() | {"parts": ("LTXVSeparateAVLatent", {"av_latent": ["pair", 0]})}
    graph |= {
        name: ("SaveLatent", {"samples": ["parts", index], "filename_prefix": name})
        for index, name in enumerate(("pictures", "tones"))
    }
    files = {file.name.partition("_")[0]: file for file in program.run(graph)}
    for name, latents in (
        ("clip", load_latents(files["pictures"])[0]),
        ("audio", load_audio_latents(files["tones"], alone=True)),
    ):
        expected = load_file(program.folder / "input" / f"{name}.latent")["latent_tensor"]
        assert np.array_equal(np.array(latents.astype(mx.float32)), expected), f"{name}: other latents than were saved"
    own_command("convert", demo.LATENTS, "-o", program.folder / "input" / "converted.latent")
    (file,) = program.run(
        {
            "latent": latent("converted"),
            "save": ("SaveLatent", {"samples": ["latent", 0], "filename_prefix": "converted"}),
        }
    )
    expected = np.array(load_latents(demo.LATENTS)[0].astype(mx.float32))
    assert np.array_equal(load_file(file)["latent_tensor"], expected), "LoadLatent reads other values"
    return "SaveLatent writes a pair as two files, after LTXVSeparateAVLatent, both read; LoadLatent reads convert's"


def check_replaced_file(program: ComfyUI) -> str:
    """Check that a workflow whose VAE was replaced on disk is run again."""
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
        reference = program.folder / name
        own_command("preview", program.folder / "input" / "clip.latent", "-m", demo.LATENT_RGB, "-o", reference)
        (preview,) = program.run({"latent": latent("clip"), "preview": ("LTXPreviewMLX", {**inputs, "show": show})})
        assert np.array_equal(frames_of(preview), frames_of(reference)), f"{show}: other pictures than the command's"
    return "a preview shows the contact sheet and the clip of the command"


def check_refusals(program: ComfyUI) -> str:
    """Errors reach the user as the package words them."""
    with_options, seed = {"options": ["options", 0]}, decoder_options(decoder_seed=3)
    other = ("VAELoader", {"vae_name": "pixel_space"})
    short, refuse = {"audio": ["tone", 0], **with_options}, decoder_options(audio_length="refuse")
    tone: Nodes = {"tone": ("LoadAudio", {"audio": "tone.wav"})}
    for graph, words in (
        (to_video("two"), "these are the latents of 2 videos"),
        (to_video("audio"), "these are latents of audio alone"),
        (to_video("two", latent=["pair", 0]) | pair("two"), "separate video and audio with LTXVSeparateAVLatent"),
        (save_video("clip", format="mov, prores (10 bits)", crf=3), "prores_ks has no crf"),
        (save_video("clip", format="mp4, h264", **with_options) | {"options": seed}, "this VAE takes no seed"),
        (to_video("clip", memory_budget="1MB"), "a memory budget of 1.0 MB is too small"),
        (to_video("clip", loaded_vae=["other", 0]) | {"other": other}, "loaded_vae is no LTX video VAE"),
        (save_video("clip", format="mp4, h264", **short) | tone | {"options": refuse}, "set audio_length to fit"),
    ):
        text = json.dumps(program.wait(program.post(graph))["status"])
        assert words in text, text
    return "a batch of two, audio alone, a small budget, a VAE of another model and a long audio are errors in words"


def check_loaded_vaes(program: ComfyUI) -> str:
    """VAEs that ComfyUI has loaded give what their files give, and what ComfyUI's own nodes do."""
    vae = {"vae": "demo VAE", "loaded_vae": ["vae", 0], "memory_budget": "auto"}
    load: Nodes = {"latent": latent("narrow"), "vae": ("VAELoader", {"vae_name": "narrow.safetensors"})}
    ways = {
        "own": ("VAEDecode", {"samples": ["latent", 0], "vae": ["vae", 0]}),
        "file": ("LTXDecodeFramesMLX", {"latent": ["latent", 0], **VAE, "vae": "vae/narrow.safetensors"}),
        "loaded": ("LTXDecodeFramesMLX", {"latent": ["latent", 0], **vae}),
    }
    results = {}
    for name, decode in ways.items():
        save = ("SaveImage", {"images": ["decode", 0], "filename_prefix": f"{name}/frame"})
        pictures = program.run(load | {"decode": decode, "save": save})
        with VideoReader(pictures[0].parent) as reader:
            results[name] = np.concatenate(list(reader)).astype(int)
    assert np.array_equal(results["loaded"], results["file"])
    assert np.abs(results["loaded"] - results["own"]).max() <= 1, np.abs(results["loaded"] - results["own"]).max()

    latents = []
    for inputs in (vae, {**VAE, "vae": "vae/narrow.safetensors"}):
        encode = {"encode": ("LTXEncodeMLX", {"frames": ["frames", 0], **inputs, "resize": "fit"})}
        frames = {"frames": ("EmptyImage", {"width": 90, "height": 50, "batch_size": 9, "color": 0x804020})}
        keep = {"save": ("SaveLatent", {"samples": ["encode", 0], "filename_prefix": "narrow"})}
        (file,) = program.run(load | encode | frames | keep)
        latents.append(load_file(file)["latent_tensor"])
    assert np.array_equal(*latents) and latents[0].shape == (1, 128, 2, 2, 3)

    audio_tracks = []
    audio: Nodes = pair() | {"vae": ("LTXVAudioVAELoader", {"ckpt_name": "audio.safetensors"})}
    for inputs in ({}, {"loaded_audio_vae": ["vae", 0]}):
        decode = ("LTXDecodeAudioMLX", {"latent": ["pair", 0], "audio_vae": AUDIO_VAE, **inputs})
        keep = ("SaveAudio", {"audio": ["decode", 0], "filename_prefix": "loaded"})
        (file,) = program.run(audio | {"decode": decode, "save": keep})
        with av.open(str(file)) as container:
            audio_tracks.append(np.concatenate([frame.to_ndarray() for frame in container.decode(audio=0)], axis=1))
    assert np.array_equal(*audio_tracks)
    return "VAEs of pictures and of audio that ComfyUI has loaded give what their files give, and its own decoder"


def check_interrupt(program: ComfyUI) -> str:
    """Interrupting ends a decode, and the one queued after it runs."""
    earlier = set(program.temporary("*"))
    prompt, queued = program.post(to_video("long")), program.post(to_video("clip", fps=25.0))
    program.wait_for_decode()
    start = time.monotonic()
    program.request("/interrupt", {})
    history = program.wait(prompt)
    seconds = time.monotonic() - start
    assert "execution_interrupted" in json.dumps(history["status"]), history["status"]
    assert program.wait(queued)["status"]["status_str"] == "success"
    assert len(set(program.temporary("*")) - earlier) == 1, "a partial file is left"
    return f"an interrupted decode ends after {seconds:.2f} s and leaves nothing, and the one queued after it works"


def count_messages(address: str) -> Counter:
    """Return counts of what the page of ComfyUI gets from now on, by kind."""
    counts, is_on = Counter(), threading.Event()
    kinds = {1: "picture", 3: "text", 4: "picture"}
    url = f"ws://{address}/ws?clientId={CLIENT}"

    async def listen() -> None:
        async with aiohttp.ClientSession() as session, session.ws_connect(url, max_msg_size=0) as socket:
            is_on.set()
            async for message in socket:
                if message.type is aiohttp.WSMsgType.BINARY:
                    counts[kinds.get(int.from_bytes(message.data[:4], "big"))] += 1
                elif message.type is aiohttp.WSMsgType.TEXT:
                    counts[json.loads(message.data)["type"]] += 1

    threading.Thread(target=lambda: asyncio.run(listen()), daemon=True).start()
    assert is_on.wait(30)
    return counts


def check_progress(program: ComfyUI) -> str:
    """Progress reaches the page."""
    counts = count_messages(program.address)
    program.run(to_video("clip", fps=30.0))
    assert counts["text"] >= 1 and counts["picture"] >= 3 and counts["progress_state"] >= 3, counts
    return f"a decode shows its plan, {counts['picture']} pictures and its progress"


def main() -> None:
    """Try what the command line asks for."""
    parser = argparse.ArgumentParser(description="Try the nodes of examples/comfyui in the real ComfyUI.")
    parser.add_argument("checkout", type=Path, help="a clone of ComfyUI")
    parser.add_argument("--rounds", type=int, default=3, help="how often each way to end ComfyUI is tried (default: 3)")
    parser.add_argument(
        "--screenshot", type=Path, metavar="FILE", help="a picture of the demo's workflow, run in a browser"
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", help="some of the checks, such as loaded_vaes refusals")
    arguments = parser.parse_args()
    checks = [check_saved_videos, check_videos, check_audio_and_metadata, check_audio, check_frames_and_encode]
    checks += [
        check_preview,
        check_sampling_preview,
        check_memory,
        check_languages,
        check_refusals,
        check_taken_name,
        check_loaded_vaes,
        check_interrupt,
        check_progress,
        check_saved_latents,
        check_replaced_file,
    ]
    checks = [
        check for check in checks if not arguments.only or check.__name__.removeprefix("check_") in arguments.only
    ]
    if arguments.screenshot:
        checks.append(partial(check_browser, workflows=PACK / "example_workflows", target=arguments.screenshot))
    warnings.filterwarnings("ignore", ".* is HDR")  # its codes are compared
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
