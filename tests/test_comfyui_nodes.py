"""The nodes of examples/comfyui for video, with stand-ins for ComfyUI's modules."""

import ast
import json
import os
import re
import sys
import threading
import time
import wave
from fractions import Fraction
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from PIL import Image

from checkpoint_files import tiny_decoder_tensors
from comfyui_cases import FRAMES, LATENTS, PACK, frames_of, freed, latent
from mlx_ltx_vae import CheckpointError, LatentsError, PlanError, ReaderError, VideoReader, VideoVAE, VideoWriter, demo
from test_security import calls
from video_files import read_metadata, run_ffmpeg


def test_a_latent_becomes_a_video_file_with_the_frames_of_the_decode(comfy, execute, vae):
    deep = execute("LTXDecodeToVideoMLX", latent=latent(comfy), codec="hevc")
    assert frames_of(deep.get_stream_source()).dtype == np.uint16
    video = execute("LTXDecodeToVideoMLX", latent=latent(comfy), codec="ffv1", fps=23.976)
    path = Path(video.get_stream_source())
    assert (path.parent, path.suffix) == (comfy.temp, ".mkv")
    np.testing.assert_array_equal(frames_of(path), vae.decode_uint8(LATENTS))
    with VideoReader(path) as reader:
        assert reader.fps.as_integer_ratio() == (24000, 1001)


def test_the_prompt_and_the_workflow_go_into_the_file(comfy, execute, monkeypatch):
    hidden = {"prompt": {"1": {"inputs": {"text": "a = b; ü"}}}, "extra_pnginfo": {"workflow": {"nodes": [1]}}}
    video = execute("LTXDecodeToVideoMLX", hidden, latent=latent(comfy))
    entries = read_metadata(Path(video.get_stream_source()))
    assert json.loads(entries["prompt"]) == hidden["prompt"]
    assert json.loads(entries["workflow"]) == {"nodes": [1]}
    video = execute("LTXDecodeToVideoMLX", hidden, latent=latent(comfy), save_metadata=False)
    assert read_metadata(Path(video.get_stream_source())) == {}
    monkeypatch.setattr(comfy.args, "disable_metadata", True)
    video = execute("LTXDecodeToVideoMLX", hidden, latent=latent(comfy))
    assert "prompt" not in read_metadata(Path(video.get_stream_source()))


def test_audio_is_added_and_cut_at_the_end_of_the_video(comfy, execute):
    audio = {"waveform": comfy.torch.Tensor(np.full((1, 2, 48000), 2.0, np.float32)), "sample_rate": 16000}
    video = execute("LTXDecodeToVideoMLX", latent=latent(comfy), audio=audio)
    samples = run_ffmpeg("-i", video.get_stream_source(), "-map", "0:a:0", "-f", "s16le", "-ac", 1, "-ar", 16000, "-")
    assert abs(len(samples) / 2 / 16000 - FRAMES / 24) < 0.1
    assert not list(comfy.temp.glob("*.wav"))


def test_audio_is_written_as_it_is(comfy, tmp_path):
    samples = np.array([[0, 0.5, -1, 1], [0.25, -0.5, 2, -2]], np.float32)
    for length in (3, 4, 6):
        comfy.latents.write_audio(str(tmp_path / "a.wav"), samples, 44100, length)
        with wave.open(str(tmp_path / "a.wav")) as file:
            assert (file.getnchannels(), file.getframerate(), file.getnframes()) == (2, 44100, length)
            levels = np.frombuffer(file.readframes(length), "<i4").reshape(length, 2).T / 2**31
        expected = np.pad(np.clip(samples, -1, 1), ((0, 0), (0, 2)))[:, :length]
        np.testing.assert_allclose(levels, expected, atol=1e-9)


def test_frames_are_images_and_their_memory_is_said_before(comfy, execute, vae):
    images = execute("LTXDecodeFramesMLX", latent=latent(comfy)).array
    assert (images.shape, images.dtype) == ((FRAMES, 64, 96, 3), np.float32)
    pixels = np.array(vae.decode(LATENTS))[0].transpose(1, 2, 3, 0)
    np.testing.assert_allclose(images, np.clip((pixels + 1) / 2, 0, 1), atol=1e-6)
    node, text = comfy.texts[-1]
    assert node == "7"
    assert re.fullmatch(r"17 frames of 96x64 within [\d.]+ [MG]B\n1\.3 MB for the images", text)


def test_warnings_are_lines_in_the_node_in_each_run(comfy, execute, recwarn):
    for node in 2 * ("LTXDecodeFramesMLX", "LTXDecodeToVideoMLX"):
        execute(node, latent=latent(comfy, 0 * LATENTS + 1))
        lines = [line for line in comfy.texts[-1][1].splitlines() if "standard deviation" in line]
        assert len(lines) == 1 and lines[0].startswith("latents: most channels")
        assert "=" not in lines[0]
        comfy.texts.clear()
    execute(
        "LTXDecodeFramesMLX",
        latent=latent(comfy),
        options={"keyframes": latent(comfy, LATENTS[:, :, :1]), "keyframe_frames": "3"},
    )
    assert "this VAE's decoder takes no keyframes, so they are ignored" in comfy.texts[-1][1]
    assert not recwarn.list


def test_images_and_videos_become_latents(comfy, execute, vae):
    images = np.random.default_rng(1).random((17, 64, 96, 4)).astype(np.float32)  # with alpha
    expected = np.array(vae.encode((images[..., :3] * 2 - 1).transpose(3, 0, 1, 2)[None]))
    encoded = execute("LTXEncodeMLX", frames=comfy.torch.Tensor(images))["samples"].array
    assert (encoded.shape, encoded.dtype) == ((1, 8, 3, 2, 3), np.float32)
    np.testing.assert_allclose(encoded, expected, atol=1e-5)

    video = execute("LTXDecodeToVideoMLX", latent=latent(comfy), codec="ffv1")
    expected = np.array(vae.encode(vae.decode_uint8(LATENTS)))
    np.testing.assert_array_equal(execute("LTXEncodeMLX", frames=video)["samples"].array, expected)
    part = comfy.video(video.get_stream_source(), start_time=0, duration=9)
    encoded = execute("LTXEncodeMLX", frames=part)["samples"].array
    np.testing.assert_allclose(encoded, expected[:, :, :2], atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        ((2, 8, 1, 2, 2), "latents of 2 videos; take one with LatentFromBatch"),
        ((1, 4, 8, 8), "5 axes, and these have the shape (1, 4, 8, 8)"),
        ((1, 8, 20, 16), "latents of audio alone; connect the video's"),
    ],
)
def test_latents_that_are_not_one_video_are_refused_in_words(comfy, execute, shape, text):
    for node in ("LTXDecodeToVideoMLX", "LTXDecodeFramesMLX"):
        with pytest.raises(LatentsError, match=re.escape(text)):
            execute(node, latent=latent(comfy, np.zeros(shape, np.float32)))


@pytest.mark.quick(1)
@pytest.mark.parametrize("kind", ["images", "video"])
def test_images_of_other_sizes_are_cropped_or_scaled(comfy, execute, vae, tmp_path, kind):
    rows, columns = np.mgrid[0:50, 0:90].astype(np.float32)
    picture = np.stack([rows / 50, columns / 90, (rows + columns) / 140], axis=2)
    images = comfy.torch.Tensor(np.tile(picture, (9, 1, 1, 1)))
    if kind == "video":
        levels = np.rint(images.array * 255).astype(np.uint8)
        with VideoWriter(tmp_path / "a.mkv", size=(90, 50), fps=24, codec="ffv1") as writer:
            writer.write(levels)
        images = comfy.video(str(tmp_path / "a.mkv"))
    for resize, size in (("crop", (64, 32)), ("fit", (96, 64))):
        if resize == "crop":
            expected = picture[9:41, 13:77]
        else:  # linear, but for the edges
            y, x = (np.arange(64) + 0.5) * 50 / 64 - 0.5, (np.arange(96) + 0.5) * 90 / 96 - 0.5
            y, x = np.meshgrid(y.clip(0, 49), x.clip(0, 89), indexing="ij")
            expected = np.stack([y / 50, x / 90, (y + x) / 140], axis=2)
        clip = np.tile(expected * 2 - 1, (9, 1, 1, 1)).transpose(3, 0, 1, 2)[None].astype(np.float32)
        found = execute("LTXEncodeMLX", frames=images, resize=resize)["samples"].array
        assert found.shape == (1, 8, 2, size[1] // 32, size[0] // 32)
        np.testing.assert_allclose(found, np.array(vae.encode(clip)), atol=0.1 if resize == "fit" else 0.03)
        assert comfy.texts[-1][1].startswith(f"frames of 90x50 are made {size[0]}x{size[1]}\n")
    small = comfy.torch.Tensor(np.zeros((1, 20, 90, 3), np.float32))
    with pytest.raises(ReaderError, match=r"resize it to 96x32 \(resize: fit\) or"):
        execute("LTXEncodeMLX", frames=small)


def test_frames_that_fill_no_latent_frame_are_left_out_in_words(comfy, execute):
    for count, end in ((12, r"12 frames are not 1 \+ 8\*k; the last 3 are left out .*"), (9, "9 frames .*B")):
        comfy.texts.clear()
        assert execute("LTXEncodeMLX", frames=images(comfy, count))["samples"].shape == (1, 8, 2, 2, 3)
        lines = comfy.texts[-1][1].splitlines()
        assert lines[0].startswith("9 frames of 96x64 within ") and re.fullmatch(end, lines[-1])


def test_a_budget_is_kept(comfy, execute):
    with pytest.raises(PlanError, match="1 kB"):
        execute("LTXDecodeToVideoMLX", latent=latent(comfy), memory_budget="1kB")
    with pytest.raises(PlanError, match="needs a unit"):
        execute("LTXEncodeMLX", frames=images(comfy, 1), memory_budget="8")


@pytest.mark.quick(1)
@pytest.mark.parametrize("seconds", [0.001, 60])  # the second has the last report only
def test_progress_has_pictures_and_comes_from_the_thread_of_the_node(comfy, execute, monkeypatch, seconds):
    monkeypatch.setattr(comfy.host, "POLL_SECONDS", seconds)
    video = execute("LTXDecodeToVideoMLX", latent=latent(comfy, np.tile(LATENTS, (1, 1, 6, 1, 1))), codec="ffv1")
    frames = frames_of(video.get_stream_source())
    done = [value for _, value, *_ in comfy.bars.updates]
    assert done == sorted(done) and done[-1] == len(frames)
    node, value, total, (kind, picture, size), _ = comfy.bars.updates[-1]
    assert (node, total, kind, size) == ("7", len(frames), "JPEG", 512)
    np.testing.assert_array_equal(np.asarray(picture), frames[value - 1])
    threads = {each[-1] for each in comfy.bars.updates} | {call[1] for call in comfy.management.calls}
    assert threads == {threading.current_thread().name}


def write_tiny_decoder(path):
    mx.save_safetensors(str(path), tiny_decoder_tensors(16, 16, 8, 8))


@pytest.mark.quick(1)
@pytest.mark.parametrize(("decoder", "fps", "size"), [("rgb", Fraction(16 * 3, 17), (8, 8)), ("tiny", 16, (32, 32))])
def test_a_preview_is_a_contact_sheet_and_a_clip(comfy, execute, decoder, fps, size):
    path = comfy.base / "models" / "vae_approx" / f"{decoder}.safetensors"
    path.parent.mkdir(exist_ok=True)
    write_tiny_decoder(path) if decoder == "tiny" else path.symlink_to(demo.LATENT_RGB)
    latents = np.zeros((1, 128 if decoder == "tiny" else 64, 3, 4, 5), np.float32)
    for show in ("contact sheet", "clip"):
        given = {"show": show, "decoder": f"vae_approx/{path.name}", "fps": 16.0}
        output = execute("LTXPreviewMLX", latent=latent(comfy, latents), **given)
        (shown,) = output.ui.values if show == "clip" else output.ui.results
        assert (shown["subfolder"], shown["type"]) == ("", "temp")
        sheet, clip = output.args[0].array, output.args[1].get_stream_source()
        if show == "clip":
            assert shown["filename"] == Path(clip).name
        else:
            picture = np.asarray(Image.open(comfy.temp / shown["filename"]), np.float32)[None] / 255
            np.testing.assert_array_equal(sheet, picture)
        with VideoReader(clip, multiple=1) as reader:
            frames = np.concatenate(list(reader))
            assert reader.fps == fps
        assert frames.shape == (3 if decoder == "rgb" else 17, 4 * size[0], 5 * size[1], 3)
        assert sheet.shape[2] > 2 * 384  # pictures beside each other
    assert not freed(comfy)  # the models may go on to sample


def test_an_interruption_ends_a_decode_or_encode_and_leaves_nothing(comfy, execute, monkeypatch):
    long, before = latent(comfy, np.tile(LATENTS, (1, 1, 300, 1, 1))), set(comfy.temp.glob("*"))
    monkeypatch.setattr(comfy.bars, "updates", Interrupting(comfy.management))
    audio = {"waveform": comfy.torch.Tensor(np.zeros((1, 1, 16000), np.float32)), "sample_rate": 16000}
    with pytest.raises(comfy.management.InterruptProcessingException):
        execute("LTXDecodeToVideoMLX", latent=long, audio=audio)
    assert set(comfy.temp.glob("*")) == before
    assert comfy.bars.updates[-1][1] < 300 * 24
    encoded, encode_stream = [], VideoVAE.encode_stream
    monkeypatch.setattr(
        VideoVAE, "encode_stream", lambda *given: (encoded.append(1) or part for part in encode_stream(*given))
    )
    for node, more in (("LTXDecodeFramesMLX", {"latent": long}), ("LTXEncodeMLX", {"frames": images(comfy, 801)})):
        monkeypatch.setattr(comfy.bars, "updates", Interrupting(comfy.management))
        with pytest.raises(comfy.management.InterruptProcessingException):
            execute(node, **more)
    assert 0 < len(encoded) < 101
    monkeypatch.setattr(comfy.bars, "updates", [])
    assert frames_of(execute("LTXDecodeToVideoMLX", latent=latent(comfy)).get_stream_source()).shape[0] == FRAMES


def test_an_interruption_ends_what_shows_no_progress(comfy):
    def work(job):
        for _ in range(1000):
            job.check()
            time.sleep(0.01)

    comfy.management.interrupt_current_processing()
    with pytest.raises(comfy.management.InterruptProcessingException):
        comfy.host.run(work, node_id="7")
    assert comfy.host.run(lambda job: "next", node_id="7") == "next"


class Interrupting(list):
    """The updates of progress bars. The first one with a frame interrupts ComfyUI."""

    def __init__(self, management):
        self._management = management

    def append(self, update):
        super().append(update)
        if update[1] > 0:
            self._management.interrupt_current_processing()


def images(comfy, count):
    return comfy.torch.Tensor(np.zeros((count, 64, 96, 3), np.float32))


def test_a_vae_is_loaded_once_until_its_file_is_another(comfy, execute, monkeypatch, checkpoint):
    loaded, from_pretrained = [], VideoVAE.from_pretrained
    monkeypatch.setattr(
        VideoVAE, "from_pretrained", lambda path, **given: (loaded.append(given), from_pretrained(path, **given))[1]
    )
    file = comfy.base / "models" / "vae" / "own.safetensors"
    file.write_bytes(checkpoint.read_bytes())
    for _ in range(2):
        execute("LTXDecodeToVideoMLX", latent=latent(comfy), vae="vae/own.safetensors")
        execute("LTXEncodeMLX", frames=images(comfy, 1), vae="vae/own.safetensors")
    networks = [(given["encoder"], given["decoder"], given["dtype"]) for given in loaded]
    assert networks == [(False, True, None), (True, False, None)]
    nodes = {node.__name__: node for node in comfy.nodes}
    fingerprint = nodes["LTXDecodeToVideo"].fingerprint_inputs
    before = fingerprint(latent=None, vae="vae/own.safetensors", fps=24.0)
    assert fingerprint(latent=None, vae="vae/own.safetensors", fps=25.0) == before != []
    copy = file.with_suffix(".new")
    copy.write_bytes(checkpoint.read_bytes())
    os.utime(copy, ns=(file.stat().st_atime_ns, file.stat().st_mtime_ns))  # as cp -p
    copy.replace(file)
    assert fingerprint(latent=None, vae="vae/own.safetensors", fps=24.0) != before
    as_lists = nodes["LTXSaveVideo"].fingerprint_inputs(latent=(None,), vae=["vae/own.safetensors"], fps=[24.0])
    assert as_lists == fingerprint(latent=None, vae="vae/own.safetensors")
    linked = nodes["LTXPreview"].fingerprint_inputs(decoder=None)  # any file, from another node
    assert set(linked) >= set(fingerprint(latent=None, vae="vae/own.safetensors")) != set()
    execute("LTXDecodeToVideoMLX", latent=latent(comfy), vae="vae/own.safetensors")
    assert len(loaded) == 3
    file.unlink()


def test_files_are_chosen_from_the_folders_of_comfyui(comfy):
    models = comfy.base / "models"
    (models / "checkpoints" / "ltx").mkdir(parents=True)
    for name in ("checkpoints/ltx/whole.safetensors", "checkpoints/old.ckpt", "vae/a.pt", "vae/b.sft"):
        (models / name).touch()
    (node,) = [node for node in comfy.nodes if node.__name__ == "LTXEncode"]
    (widget,) = [each for each in node.define_schema().inputs if each.id == "vae"]
    files = ["vae/b.sft", "vae/ltx/small.safetensors", "checkpoints/ltx/whole.safetensors"]
    assert widget.options == [*files, "demo VAE"]
    assert comfy.host.full_path("demo VAE") == str(demo.VAE)
    assert comfy.host.full_path(files[-1]) == str(models / "checkpoints" / "ltx" / "whole.safetensors")
    with pytest.raises(FileNotFoundError):
        comfy.host.full_path("vae/missing.safetensors")
    for name in ("b.sft", "/b.sft", "input/b.sft", ""):
        with pytest.raises(CheckpointError, match="names no folder of models; write folder/name, as vae/x.safetens"):
            comfy.host.full_path(name)


@pytest.mark.parametrize("file", sorted((PACK / "example_workflows").glob("*.json")), ids=lambda file: file.stem)
def test_the_example_workflows_have_the_widgets_of_the_nodes(comfy, file):
    workflow = json.loads(file.read_text())
    schemas = {schema.node_id: schema for schema in (node.define_schema() for node in comfy.nodes)}
    used = [node for node in workflow["nodes"] if node["type"] in schemas]
    assert used and file.with_suffix(".jpg").exists()
    for node in used:
        widgets = [each for each in schemas[node["type"]].inputs if hasattr(each, "default")]
        assert [each["name"] for each in node["inputs"] if "widget" in each] == [widget.id for widget in widgets]
        values = node.get("widgets_values", [])
        assert len(values) == len(widgets)
        for widget, value in zip(widgets, values, strict=True):
            assert value in getattr(widget, "options", [value]) or ".safetensors" in value


def test_each_node_is_explained(comfy):
    schemas = [node.define_schema() for node in comfy.nodes]
    assert {file.stem for file in (PACK / comfy.pack.WEB_DIRECTORY / "docs").iterdir()} == {
        schema.node_id for schema in schemas
    }
    for schema in schemas:
        assert schema.description and schema.search_aliases
        assert all(each.tooltip for each in (*schema.inputs, *schema.outputs)), schema.node_id


@pytest.mark.parametrize("file", sorted((PACK / "locales").glob("*/nodeDefs.json")), ids=lambda file: file.parent.name)
def test_each_language_has_all_inputs_and_outputs(comfy, file):
    nodes, texts = json.loads(file.read_text()), {}
    schemas = {schema.node_id: schema for schema in (node.define_schema() for node in comfy.nodes)}
    assert set(nodes) == set(schemas)
    for name, schema in schemas.items():
        assert all(nodes[name][key] for key in ("display_name", "description"))
        own = {"inputs": {each.id: each for each in schema.inputs}}
        own["outputs"] = {str(index): each for index, each in enumerate(schema.outputs)}
        for kind, known in own.items():
            given = nodes[name].get(kind, {})
            assert list(given) == list(known), f"{name}: {kind}"
            for key, each in known.items():
                assert set(given[key]) == {"name", "tooltip"} and all(given[key].values())
                assert not set("{}@|") & set("".join(given[key].values())), "what the page's messages interpret"
                texts.setdefault(each.tooltip, set()).add(given[key]["tooltip"])
    assert [group for group in texts.values() if len(group) > 1] == [], "one text is translated in two ways"


@pytest.mark.parametrize("name", ["mlx.core", "mlx_ltx_vae"])
def test_without_mlx_there_are_no_nodes_and_one_line_says_why(comfy, monkeypatch, caplog, name):
    monkeypatch.setitem(sys.modules, name, None)
    pack, module = PACK / "__init__.py", {"__name__": "ltx_mlx", "__package__": "ltx_mlx"}
    with caplog.at_level("WARNING"):
        exec(compile(pack.read_text(), pack, "exec"), module)
    assert module["NODES"] == []
    (record,) = caplog.records
    assert f"no nodes (import of {name} halted" in record.getMessage()
    assert record.getMessage().endswith(": run `python -m pip install .` in its clone with this Python.")


def test_no_message_in_a_node_names_an_argument_of_python(comfy):
    """Each option of the package is an input there, or an option of the command."""
    given = [call.args for _, function, call in calls() if function == "option" and len(call.args) == 2]
    found = [comfy.host.name_option(*(ast.unparse(each).strip("'\"") for each in arguments)) for arguments in given]
    assert len(found) > 20 and {"fps", "memory_budget"} <= set(found)
    assert [name for name in found if re.search(r"\w=|\bNone\b|True|False", name)] == []
