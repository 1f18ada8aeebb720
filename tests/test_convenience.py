"""What makes the API pleasant: one call to a file, progress, pictures of chunks, and short descriptions."""

import io
import json
import subprocess

import imageio.v3 as iio
import imageio_ffmpeg
import mlx.core as mx
import numpy as np
import pytest
from safetensors.numpy import load_file

import mlx_ltx_vae
from commands import decode
from latent_files import rescue_latents
from mlx_ltx_vae import (
    AudioChunk,
    CheckpointError,
    Keyframes,
    LatentsError,
    PlanError,
    VideoReader,
    VideoVAE,
    VideoWriter,
    WriterError,
    load_latents,
    save_latents,
)

LATENTS = mx.random.normal((1, 8, 3, 2, 3), key=mx.random.key(0))


@pytest.fixture(scope="module")
def vae(golden):
    return VideoVAE.from_pretrained(golden("small_ltx2_3").checkpoint)


def test_a_clip_is_decoded_to_a_file_as_to_an_array(vae, tmp_path):
    done = []
    path = tmp_path / "clip.mkv"
    vae.decode_to_file(
        LATENTS, path, fps=12, codec="ffv1", memory_budget="1GB", progress=lambda *counts: done.append(counts)
    )
    with VideoReader(path) as video:
        assert video.fps == 12
        frames = np.concatenate(list(video))
    assert np.array_equal(frames, vae.decode_uint8(LATENTS))
    assert done[-1] == (17, 17) and sorted(done) == done and {total for _, total in done} == {17}


def test_a_decode_to_a_file_reports_what_the_command_prints(vae, golden, tmp_path, capsys):
    path, latents = tmp_path / "clip.mkv", tmp_path / "clip.safetensors"
    plan = vae.plan(LATENTS.shape, chunk=2, bit_depth=8)
    options = {"codec": "ffv1", "pix_fmt": "gbrp10le", "metadata": {"title": "a film"}}
    report = vae.decode_to_file(LATENTS, path, plan, fps="24000/1001", **options)
    assert report.plan is plan
    assert (report.output, report.frames, report.width, report.height) == (str(path), 17, 96, 64)
    assert 0 < report.first_frame_seconds <= report.seconds
    found = subprocess.run([imageio_ffmpeg.get_ffmpeg_exe(), "-i", path], capture_output=True, text=True).stderr
    assert "gbrp10le" in found and "a film" in found
    save_latents(latents, LATENTS, fps="24000/1001")
    command = [
        str(latents),
        "-m",
        str(golden("small_ltx2_3").checkpoint),
        "-y",
        "-o",
        str(path),
        "--json",
        "--chunk",
        "2",
    ]
    assert decode(command) == 0
    printed, value = json.loads(capsys.readouterr().out), report.as_dict()
    assert json.loads(json.dumps(value)) == value and value.keys() == printed.keys() - {"vae"}
    for key in value.keys() - {"seconds", "first_frame_seconds", "peak_memory_bytes", "plan"}:
        assert value[key] == printed[key], key


@pytest.mark.parametrize("name", ["decode", "decode_uint8", "decode_to_file"])
def test_an_unknown_option_of_a_decode_is_refused_by_its_name(vae, name):
    arguments = (LATENTS, "a.mp4") if name == "decode_to_file" else (LATENTS,)
    with pytest.raises(TypeError, match=r"^a decode has no option 'seeds' \(did you mean seed\?\)$"):
        getattr(vae, name)(*arguments, seeds=1)


@pytest.mark.parametrize("name", ["encode", "encode_stream"])
def test_an_unknown_option_of_an_encode_is_refused_by_its_name(vae, name):
    with pytest.raises(TypeError, match=r"^an encode has no option 'tilng' \(did you mean tiling\?\)$"):
        getattr(vae, name)(np.zeros((1, 64, 96, 3), np.uint8), tilng=None)


def test_dtypes_are_names_or_those_of_mlx(golden):
    for dtype in (mx.float32, mx.bfloat16, mx.float16):
        assert VideoVAE.from_pretrained(golden("small_ltx2_3").checkpoint, dtype=dtype, encoder=False).dtype == dtype
    with pytest.raises(CheckpointError, match="dtype 'int32' is not known; expected float32, bfloat16, float16"):
        VideoVAE.from_pretrained(golden("small_ltx2_3").checkpoint, dtype=mx.int32)


def test_streams_and_readers_describe_themselves(vae, tmp_path):
    stream = vae.stream(LATENTS)
    assert repr(stream) == "DecodeStream(not started)"
    next(stream)
    assert repr(stream) == "DecodeStream(started)"
    stream.close()
    assert repr(stream) == "DecodeStream(ended)"
    stream.cancel()
    assert repr(stream) == "DecodeStream(cancelled)"
    with VideoWriter(tmp_path / "a.mkv", size=(96, 64), fps=24, codec="ffv1") as out:
        out.write(vae.decode_uint8(LATENTS))
        assert repr(out) == f"VideoWriter('{tmp_path}/a.mkv', 17 frames of 96x64 written)"
    with VideoReader(tmp_path / "a.mkv") as video:
        assert repr(video) == f"VideoReader('{tmp_path}/a.mkv', 17 frames of 96x64 at 24 fps)"


def test_ten_bits_and_an_existing_file(vae, tmp_path):
    path = tmp_path / "clip.npy"
    vae.decode_to_file(LATENTS, path, bit_depth=10)
    expected = np.concatenate([chunk.to_uint16() for chunk in vae.stream(LATENTS)])
    assert np.array_equal(np.load(path), expected)
    with pytest.raises(WriterError, match="exists"):
        vae.decode_to_file(LATENTS, path, overwrite=False)


def test_a_bar_shows_the_frames(vae, capsys):
    vae.decode(LATENTS, progress=True)
    assert "17/17" in capsys.readouterr().err
    vae.decode(LATENTS)
    assert capsys.readouterr().err == ""


def test_progress_counts_the_frames_of_a_part(vae):
    done = []
    vae.decode(LATENTS, vae.plan(LATENTS.shape, frames=(9, 12)), progress=lambda *counts: done.append(counts))
    assert done[-1] == (3, 3)


def test_a_budget_replaces_a_plan(vae):
    with pytest.raises(PlanError, match="1 kB is too small"):
        vae.decode(LATENTS, memory_budget="1KB")
    with pytest.raises(PlanError, match="the plan has its memory_budget already; leave that out, or the plan"):
        vae.decode(LATENTS, vae.plan(LATENTS.shape), memory_budget="1GB")
    with pytest.raises(PlanError, match="1 kB is too small"):
        vae.decode(iter([LATENTS]), memory_budget="1KB")
    rows = vae.decode(LATENTS, order="rows", frames=(9, 12))
    assert mx.array_equal(rows, vae.decode(LATENTS, vae.plan(LATENTS.shape, order="rows", frames=(9, 12))))


def test_a_batch_becomes_a_file_for_each_video(vae, tmp_path):
    batch = mx.concatenate([LATENTS, LATENTS * 0.5])
    report = vae.decode_to_file(batch, tmp_path / "clip.npy", steps=None)
    assert report.output == [str(tmp_path / f"clip-{index}.npy") for index in range(2)]
    assert report.frames == 2 * 17
    for index in range(2):
        expected = vae.decode_uint8(batch[index : index + 1])
        assert np.array_equal(np.load(tmp_path / f"clip-{index}.npy"), expected)
    with pytest.raises(LatentsError, match="is one video, and the plan is for 2; plan one of them"):
        vae.decode_to_file(batch, tmp_path / "a.npy", vae.plan(batch.shape))
    with pytest.raises(LatentsError, match="is one video, and these latents are 2; write each"):
        vae.decode_to_file(iter([batch]), tmp_path / "a.npy")


def test_latents_in_memory_are_in_a_file_if_their_decode_fails(vae, tmp_path, monkeypatch):
    def full(*_):
        raise WriterError("clip.npy: cannot be written (No space left on device).")

    monkeypatch.setattr("mlx_ltx_vae.pipeline.output.write_chunk", full)
    for path in (tmp_path / "clip.latents.safetensors", tmp_path / "clip.latents-1.safetensors"):
        with pytest.raises(WriterError) as caught:
            vae.decode_to_file(LATENTS, tmp_path / "clip.npy", fps=25)
        assert str(caught.value) == (
            f"clip.npy: cannot be written (No space left on device); its latents are in {path} "
            f"(mlx_ltx_vae decode {path} -m VAE -o clip.mp4)."
        )
        latents, info = load_latents(path)
        assert mx.array_equal(latents, LATENTS) and info.fps == 25
    with pytest.raises(WriterError, match=r"device\)\.$"):
        vae.decode_to_file(iter([LATENTS]), tmp_path / "clip.npy")


def test_latents_go_to_the_working_folder_where_the_output_has_none(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "a.latents.safetensors"
    assert rescue_latents(LATENTS[0], "missing/a.mp4", None).startswith(f"its latents are in {path} (")
    assert mx.array_equal(load_latents(path)[0], LATENTS)


def test_latents_are_rescued_with_their_keyframes_or_without_those_that_do_not_fit(tmp_path):
    keyframes = Keyframes(LATENTS[:, :, :2], [0, 16])
    text = rescue_latents(LATENTS, tmp_path / "a.mp4", None, keyframes)
    tensors = load_file(tmp_path / "a.latents.safetensors")
    assert text.startswith("its latents are in ") and tensors["keyframe_frame_indices"].tolist() == [0, 16]
    assert np.array_equal(tensors["keyframe_latents"], LATENTS[:, :, :2])
    text = rescue_latents(LATENTS, tmp_path / "b.mp4", None, Keyframes(LATENTS[..., :2], [0, 8, 16]))
    assert text.startswith("its latents, without the keyframes, are in ")
    assert load_file(tmp_path / "b.latents.safetensors").keys() == {"latents"}


def test_latents_that_arrive_may_be_longer_than_their_plan(vae, tmp_path):
    plan = vae.plan((*LATENTS.shape[:2], 2, *LATENTS.shape[3:]), order="time")
    report = vae.decode_to_file(iter([LATENTS]), tmp_path / "clip.npy", plan)
    assert report.frames == 17
    assert np.array_equal(np.load(tmp_path / "clip.npy"), vae.decode_uint8(LATENTS))


def test_a_chunk_is_saved_and_shown_as_a_picture(vae, tmp_path):
    chunks = list(vae.stream(LATENTS, vae.plan(LATENTS.shape, mode="single")))
    frames = chunks[0].to_uint8()
    chunks[0].save(tmp_path / "frame.png", 5)
    assert np.array_equal(iio.imread(tmp_path / "frame.png"), frames[5])
    assert np.array_equal(iio.imread(io.BytesIO(chunks[0]._repr_png_())), frames[0])
    with pytest.raises(WriterError, match=r"frame\.foo"):
        chunks[0].save(tmp_path / "frame.foo")


def test_descriptions_are_one_line(vae):
    plan = vae.plan(LATENTS.shape)
    first = next(vae.stream(LATENTS, plan))
    assert repr(vae).startswith("VideoVAE(custom, decoder + encoder, float32, ")
    assert repr(plan).startswith("DecodePlan(exact by time, 17 frames of 96x64, ")
    assert repr(first) == "FrameChunk(frame 0, 96x64, float32)"
    assert repr(vae.config) == "VAEConfig(custom, 8 latent channels, 8x32x32 frames and pixels a cell)"
    assert ", 1 frame of 96x64, " in repr(vae.plan(LATENTS.shape, frames=(3, 4)))
    assert repr(Keyframes(LATENTS[:, :, :2], [0, 9])) == "Keyframes(latents (1, 8, 2, 2, 3), frames [0, 9])"
    assert repr(AudioChunk(160, mx.zeros((1, 2, 80)))) == "AudioChunk(samples 160 to 239)"
    with pytest.raises(PlanError, match="frames are the first and one more than the last, such as .24, 48., not 5"):
        vae.plan(LATENTS.shape, frames=5)
    assert not any(name.startswith("_") for name in [*dir(vae), *dir(mlx_ltx_vae)])
    assert {"stream", "decode_to_file", "config"} <= set(dir(vae))
