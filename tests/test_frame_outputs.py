"""What becomes of frames between decoder and file: formats, steps and sinks, each an entry of a table."""

import re

import mlx.core as mx
import numpy as np
import pytest
from PIL import Image

from commands import decode
from conftest import active_memory
from mlx_ltx_vae import DecodeError, FrameChunk, PlanError, VideoVAE, WriterError, demo, load_latents
from mlx_ltx_vae.commands import options
from mlx_ltx_vae.commands.parsers import decode_parser
from mlx_ltx_vae.frame_format import RGB8, RGB16
from mlx_ltx_vae.pipeline.frames import write_chunk
from mlx_ltx_vae.video import FrameFormat, FrameOutput, FrameStep, frame_endings, sink_table
from toy_sink import PPM
from toy_step import RAMP, make_ramp
from video_files import OutputOptions, open_sink

HALF, SINGLE = FrameFormat("rgbf16le"), FrameFormat("rgbf32le")


@pytest.fixture
def tables(monkeypatch):
    monkeypatch.setattr(sink_table, "SINKS", (*sink_table.SINKS, PPM))
    monkeypatch.setattr(options, "STEP_OPTIONS", (RAMP,))


@pytest.fixture(scope="module")
def vae():
    return VideoVAE.from_pretrained(demo.VAE, encoder=False, dtype="float32")


@pytest.fixture(scope="module")
def latents():
    return load_latents(demo.LATENTS)[0][:, :, :3, :3, :4]


@pytest.fixture(scope="module")
def pixels(vae, latents):
    """(F, H, W, 3), float64 in [-1, 1]."""
    return np.array(vae.decode(latents))[0].transpose(1, 2, 3, 0).astype(np.float64)


def brightened(pixels, strength):
    _, height, width, _ = pixels.shape
    ramps = np.arange(height)[:, None, None] / height + np.arange(width)[:, None] / width
    return (pixels + 1) / 2 + strength * ramps


def assert_levels(found, signal, peak):
    """Up to the rounding of float32, by which the last bit may differ."""
    assert found.shape == signal.shape
    assert np.abs(found - np.clip(signal, 0, 1) * peak).max() < 0.5 + peak * 1e-5


@pytest.mark.quick(1)
@pytest.mark.parametrize(("depth", "options"), [(8, []), (10, ["--order", "rows"]), (8, ["--order", "columns"])])
def test_a_new_step_and_a_new_sink_are_an_entry_each(tables, latents, pixels, tmp_path, depth, options, capsys):
    np.save(tmp_path / "clip.npy", np.array(latents))
    files = [str(tmp_path / "clip.npy"), "-m", str(demo.VAE), "--dtype", "float32"]
    command = [*files, "--bit-depth", str(depth), "-q", *options]
    assert decode([*command, "--ramp", "0.25", "-o", str(tmp_path / "%d.ppm"), "--frames", "3:5"]) == 0
    assert decode([*command, "-o", str(tmp_path / "plain.ppm" / "%05d.ppm"), "--frames", "3:5"]) == 0
    for number in range(2):
        for folder, strength in ((tmp_path, 0.25), (tmp_path / "plain.ppm", 0)):
            name = folder / (f"{number}.ppm" if strength else f"{number:05d}.ppm")
            if depth == 8:
                found = np.array(Image.open(name))
            else:
                found = np.frombuffer(name.read_bytes()[-pixels[0].size * 2 :], ">u2").reshape(pixels[0].shape)
            expected = brightened(pixels[3 + number : 4 + number], strength)[0]
            assert_levels(found.astype(float), expected, 255 if depth == 8 else 65535)
    with pytest.raises(SystemExit):
        decode([*command, "--ramp", "much", "-o", str(tmp_path / "%d.ppm")])
    assert "--ramp" in capsys.readouterr().err


@pytest.mark.parametrize("options", [{}, {"order": "rows"}, {"order": "columns"}, {"mode": "single"}])
def test_steps_get_whole_frames_in_order_and_the_format_of_the_output(vae, latents, pixels, tmp_path, options):
    seen = []

    def look(frames, target):
        seen.append((np.array(frames), target))
        return 1 - frames

    steps = (FrameStep(look), make_ramp("0.25"))
    plan = vae.plan(latents.shape, outputs=[FrameOutput(RGB16, steps)], **options)
    vae.decode_to_file(latents, tmp_path / "a.npy", plan, bit_depth=10, frame_steps=steps)
    frames = np.concatenate([frames for frames, _ in seen])
    assert frames.dtype == np.float32 and frames.shape == pixels.shape
    assert max(len(frames) for frames, _ in seen) <= 8
    assert {target for _, target in seen} == {RGB16}
    assert np.abs(frames - (pixels + 1) / 2).max() < 1e-5
    assert_levels(np.load(tmp_path / "a.npy").astype(float), brightened(-pixels, 0.25), 65535)


def test_a_step_that_returns_other_frames_is_an_error():
    chunk = FrameChunk(0, mx.zeros((1, 2, 4, 6, 3)))
    step = FrameStep(lambda frames, _: frames[:, ::2])
    with pytest.raises(DecodeError, match=r"returned float32 \(2, 2, 6, 3\); expected .* float32 \(2, 4, 6, 3\)"):
        chunk.to_frames(FrameOutput(RGB8, (step,)))


@pytest.mark.quick(1)
@pytest.mark.parametrize("options", [{}, {"order": "rows"}, {"mode": "single"}])
def test_the_plan_counts_steps_and_its_peak_holds(vae, latents, tmp_path, options):
    def greedy(frames, target):
        copies = [frames + number for number in range(64)]
        mx.eval(copies)
        return sum(copies) / 64

    memory = {}
    for pixel_bytes in (0, 66 * 12):
        output = FrameOutput(RGB8, (FrameStep(greedy, pixel_bytes),))
        plan = vae.plan(latents.shape, outputs=[output], **options)
        memory[pixel_bytes] = plan.peak_bytes
    mx.eval(vae.decoder)
    others = active_memory() - plan.memory.weights
    mx.reset_peak_memory()
    vae.decode_to_file(latents, tmp_path / "a.npy", plan, frame_steps=output.steps)
    assert memory[0] < mx.get_peak_memory() - others < plan.peak_bytes


def test_without_steps_plans_and_chunks_are_those_of_the_bit_depth(vae, latents):
    # A budget, since free memory changes from one plan to the next.
    plan = vae.plan(latents.shape, bit_depth=10, memory_budget="8GB")
    assert plan.as_dict() == vae.plan(latents.shape, outputs=[FrameOutput(RGB16)], memory_budget="8GB").as_dict()
    assert plan.format == RGB16
    chunk = next(vae.stream(latents, plan))
    assert chunk.frames.dtype == mx.uint16
    assert vae.plan(latents.shape).format is None
    assert vae.plan(latents.shape, outputs=[FrameOutput(RGB8, (make_ramp("1"),))]).format is None
    assert vae.plan(latents.shape, outputs=[FrameOutput(RGB8), FrameOutput(RGB16)]).format is None


def test_a_plan_of_levels_runs_nothing_else(vae, latents, tmp_path):
    plan = vae.plan(latents.shape, bit_depth=8)
    with pytest.raises(PlanError, match="made for levels"):
        vae.decode(latents, plan)
    with pytest.raises(PlanError, match="another bit depth"):
        vae.stream(latents, plan, bit_depth=10)
    with pytest.raises(PlanError, match="made for other frames"):
        vae.decode_to_file(latents, tmp_path / "a.npy", plan, frame_steps=[make_ramp("1")])
    with pytest.raises(PlanError, match="a bit depth of 12 is not supported; use 8 or 10"):
        vae.plan(latents.shape, bit_depth=12)


def test_outputs_with_different_frames_are_converted_once_each(tmp_path):
    calls = []

    def invert(frames, target):
        calls.append(target)
        return 1 - frames

    values = np.random.default_rng(0).uniform(-1.2, 1.2, (1, 2, 4, 6, 3)).astype(np.float32)
    signal = (values[0].astype(np.float64) + 1) / 2
    chunk = FrameChunk(0, mx.array(values))
    steps = (FrameStep(invert),)
    outputs = {"a": RGB8, "b": RGB8, "c": HALF, "d": SINGLE}
    opened = {
        open_sink(
            tmp_path / f"{name}.npy", size=(6, 4), fps=24, options=OutputOptions(frames=FrameOutput(target, steps))
        ): FrameOutput(target, steps)
        for name, target in outputs.items()
    }
    write_chunk(chunk, opened)
    for sink in opened:
        sink.close()
    assert calls == [RGB8, HALF, SINGLE]
    found = {name: np.load(tmp_path / f"{name}.npy") for name in outputs}
    assert {name: array.dtype for name, array in found.items()} == {
        name: target.dtype for name, target in outputs.items()
    }
    np.testing.assert_array_equal(found["a"], found["b"])
    assert_levels(found["a"].astype(float), 1 - signal, 255)
    np.testing.assert_allclose(found["d"], 1 - signal, atol=1e-6)  # also below 0 and above 1
    np.testing.assert_allclose(found["c"], 1 - signal, atol=1e-3)


@pytest.mark.parametrize(
    ("name", "takes"), [("a.mp4", "8 bits or 16 bits"), ("a.gif", "8 bits"), ("a.png", "8 bits or")]
)
def test_frames_that_an_output_does_not_take_are_an_error(tmp_path, name, takes):
    with pytest.raises(WriterError, match=f"frames have half floats per color, and it takes {takes}"):
        open_sink(f"{tmp_path}/{name}", size=(6, 4), fps=24, options=OutputOptions(frames=FrameOutput(HALF)))


def test_the_help_names_all_endings():
    shown = decode_parser().format_help()
    missing = [ending for ending in frame_endings() if not re.search(rf"{re.escape(ending)}\b", shown)]
    assert not missing
