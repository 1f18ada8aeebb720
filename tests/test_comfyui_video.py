"""LTX Save Video, and audio in the nodes of examples/comfyui, with stand-ins for ComfyUI's modules."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from comfyui_cases import FRAMES, LATENTS, frames_of, freed, latent, pair
from commands import decode
from mlx_ltx_vae import AudioVAE, LatentsError, PlanError, VideoVAE, WriterError
from test_video_audio_track import heard
from test_video_writer import probe
from video_files import read_metadata, run_ffmpeg

AUDIO = np.random.default_rng(1).normal(size=(1, 8, 18, 16)).astype(np.float32)  # 0.7 s, as the frames
SAVED = {"fps": 24.0, "filename_prefix": "clips/take", "format": "mkv, ffv1 (lossless)"}
AUDIO_VAE = "vae/audio.safetensors"
WHOLE = "checkpoints/whole.safetensors"
RATE = 24000


@pytest.fixture(scope="module", autouse=True)
def models(comfy, audio_case, checkpoint, golden):
    """An audio VAE with an encoder among the models, and a whole model with both VAEs."""
    base, parts = comfy.base / "models", [audio_case(name) for name in ("ltx2", "encoder")]
    tensors = {name: array for part in parts for name, array in load_file(part.checkpoint).items()}
    config = parts[1].manifest["config"] | parts[0].manifest["config"]
    save_file(tensors, base / AUDIO_VAE, metadata={"config": json.dumps(config)})
    (base / "checkpoints").mkdir()
    config = parts[0].manifest["config"] | {"vae": golden("small_ltx2_3").manifest["vae_config"]}
    tensors = load_file(checkpoint) | load_file(parts[0].checkpoint)
    save_file(tensors, base / WHOLE, metadata={"config": json.dumps(config)})


@pytest.fixture(scope="module")
def audio_vae(comfy, models):
    return AudioVAE.from_pretrained(comfy.base / "models" / AUDIO_VAE)


def save(execute, **given):
    """Run LTX Save Video. Returns the path of the file, and what the page is told of it."""
    output = execute("LTXSaveVideoMLX", **{**SAVED, **given})
    (shown,) = output.ui["files"] if isinstance(output.ui, dict) else output.ui.values
    (video,) = output.args[0]
    return Path(video.get_stream_source()), shown


def test_a_video_is_saved_under_the_next_number_and_replaces_nothing(comfy, execute, checkpoint):
    (path, shown), (second, _) = [save(execute, latent=latent(comfy)) for _ in range(2)]
    assert path.relative_to(comfy.output) == Path("clips/take_00001_.mkv")
    assert second.name == "take_00002_.mkv"
    assert shown == {"filename": path.name, "subfolder": "clips", "type": "output"}
    assert comfy.bars.updates[-1][1] == FRAMES
    assert all(picture for *_, picture, _ in comfy.bars.updates)
    np.testing.assert_array_equal(frames_of(path), VideoVAE.from_pretrained(checkpoint).decode_uint8(LATENTS))
    with pytest.raises(Exception, match="outside the output folder"):
        save(execute, latent=latent(comfy), filename_prefix="../take")
    named, shown = save(execute, latent=latent(comfy), filename_prefix="%width%x%height%")
    assert (named.name, shown["subfolder"]) == ("96x64_00001_.mkv", "")


def test_a_file_that_appears_under_the_name_stays(comfy, execute, monkeypatch):
    name = comfy.host.next_file

    def late(*given):
        path = Path(name(*given))
        path.write_text("of another program")
        return str(path)

    monkeypatch.setattr(comfy.host, "next_file", late)
    with pytest.raises(WriterError, match="already exists"):
        save(execute, latent=latent(comfy), filename_prefix="late")
    assert [file.read_text() for file in comfy.output.glob("late*")] == ["of another program"]


def test_a_file_that_appears_while_it_decodes_costs_the_video_no_more_than_its_number(comfy, execute, monkeypatch):
    name, taken = comfy.host.next_file, comfy.output / "race_00001_.mkv"
    make_room = comfy.host.make_room

    def late(*given):
        taken.write_text("of another program")
        make_room(*given)

    monkeypatch.setattr(comfy.host, "make_room", late)
    path, shown = save(execute, latent=latent(comfy), filename_prefix="race")
    assert "race_00001_.mkv: the name was taken meanwhile" in comfy.texts[-1][1]
    assert (path.name, shown["filename"]) == ("race_00002_.mkv", "race_00002_.mkv")
    assert len(frames_of(path)) == FRAMES
    assert taken.read_text() == "of another program"
    assert Path(name("race", ".mkv", (96, 64))).name == "race_00003_.mkv"


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("format", "more", "stream"),
    [
        ("mp4, h264", {"crf": 40}, "h264 (High) (avc1"),
        ("mp4, h264", {"pixel_format": "yuv444p10le"}, "h264 (High 4:4:4 Predictive)"),
        ("mp4, hevc (10 bits)", {}, "hevc (Main 10) (hvc1"),
        ("mov, prores (10 bits)", {}, "prores (HQ) (apch"),
        ("mkv, ffv1 (lossless, 16 bits)", {}, "ffv1, gbrp16le"),
        ("webm, vp9", {}, "vp9 (Profile 0), yuv420p"),
        ("webm, av1", {}, "av1 (Main), yuv420p"),
    ],
)
def test_formats(comfy, execute, format, more, stream):
    path, _ = save(execute, latent=latent(comfy), format=format, filename_prefix="format", **more)
    assert path.suffix == f".{format[:3]}" or path.suffix == ".webm"
    line = probe(path)
    assert stream in line and more.get("pixel_format", "") in line and "96x64" in line
    assert len(frames_of(path)) == FRAMES


def test_latents_of_hdr_become_the_master_of_the_command(comfy, execute, checkpoint, tmp_path):
    np.save(tmp_path / "a.npy", LATENTS)
    own, clip = tmp_path / "own.mov", {"latent": latent(comfy), "format": "mov, prores (10 bits)"}
    arguments = [str(tmp_path / "a.npy"), "-m", str(checkpoint), "--hdr", "acescct", "-o", str(own)]
    assert decode([*arguments, "--codec", "prores", "--bit-depth", "10", "--fps", "24", "-q"]) == 0
    (path, _), (plain, _) = (
        save(execute, options={"hdr": hdr}, filename_prefix="hdr", **clip) for hdr in ("acescct", "no")
    )
    assert "bt2020nc/bt2020/arib-std-b67" in probe(path)
    assert "bt709" in probe(plain)
    planes = [run_ffmpeg("-i", file, "-f", "rawvideo", "-pix_fmt", "yuv422p10le", "-") for file in (own, path, plain)]
    assert planes[0] == planes[1] != planes[2]
    with pytest.raises(LatentsError, match="hdr is for files"):
        execute("LTXDecodeFramesMLX", latent=latent(comfy), options={"hdr": "logc3"})


def test_metadata_is_on_or_off(comfy, execute):
    hidden = {"prompt": {"1": {}}, "extra_pnginfo": {"workflow": {"nodes": [1]}}}
    for save_metadata in (True, False):
        path, _ = save(execute, hidden=hidden, latent=latent(comfy), format="mp4, h264", save_metadata=save_metadata)
        entries = read_metadata(path)
        assert ({"prompt", "workflow"} <= set(entries)) == save_metadata


def test_wrong_options_are_refused_before_anything_is_unloaded_or_written(comfy, execute):
    before = set(comfy.output.rglob("*"))
    for more, error, text in (
        ({"format": "mov, prores (10 bits)", "crf": 3}, WriterError, "prores_ks has no crf"),
        ({"format": "webm, vp9", "pixel_format": "yuv422p10le", "crf": 64}, WriterError, "a crf of 64"),
        ({"memory_budget": "1kB"}, PlanError, "1 kB"),
        ({"options": {"decoder_seed": 3}}, LatentsError, "takes no seed"),
        ({"options": {"timestep": 0.1}}, LatentsError, "timestep"),
    ):
        with pytest.raises(error, match=re.escape(text)):
            save(execute, latent=latent(comfy), **more)
    assert not freed(comfy) and set(comfy.output.rglob("*")) == before


@pytest.mark.quick(1)
@pytest.mark.parametrize(("vae", "audio_vae"), [("vae/ltx/small.safetensors", AUDIO_VAE), (WHOLE, "auto")])
def test_latents_of_video_and_audio_come_out_with_their_audio(comfy, execute, vae, audio_vae):
    path, _ = save(execute, latent=pair(comfy, LATENTS, AUDIO), vae=vae, audio_vae=audio_vae)
    decoder = AudioVAE.from_pretrained(comfy.base / "models" / (vae if audio_vae == "auto" else audio_vae))
    expected = np.array(decoder.decode(AUDIO))[0]
    found = heard(path, RATE)
    length = min(expected.shape[1], round(FRAMES / 24 * RATE))
    assert found.shape == (2, round(FRAMES / 24 * RATE))
    np.testing.assert_allclose(found[:, :length], expected[:, :length], atol=1e-4)  # flac has 24 bits
    video = execute("LTXDecodeToVideoMLX", latent=pair(comfy, LATENTS, AUDIO), vae=vae, audio_vae=audio_vae)
    assert heard(video.get_stream_source(), RATE).shape[1] >= found.shape[1]  # in whole frames of aac


def test_latents_without_an_audio_vae_come_out_silent_and_the_node_says_so(comfy, execute):
    for audio_vae, text in (
        ("auto", "without their audio: choose the audio_vae, or connect loaded_audio_vae"),
        ("no audio", "B"),
    ):
        comfy.texts.clear()
        path, _ = save(execute, latent=pair(comfy, LATENTS, AUDIO), audio_vae=audio_vae, format="mp4, h264")
        assert b"audio" not in run(path)
        assert comfy.texts[-1][1].endswith(text)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("kind", "fps", "end"),
    [
        ("latents", 12.0, "and the rest is silent"),
        ("latents", 48.0, "so its end is cut"),
        ("audio", 12.0, "and the rest is silent"),
    ],
)
def test_audio_of_another_length_becomes_as_long_as_the_video_or_is_refused(comfy, execute, audio_vae, kind, fps, end):
    own = np.array(audio_vae.decode(AUDIO))[0]
    audio = {"waveform": comfy.torch.Tensor(own[None]), "sample_rate": RATE}
    given = {"latent": pair(comfy, LATENTS, AUDIO), "audio_vae": AUDIO_VAE}
    given = given if kind == "latents" else {"latent": latent(comfy), "audio": audio}
    path, _ = save(execute, **given, fps=fps)
    lengths = f"the video takes {FRAMES / fps:.2f} s and its audio {own.shape[1] / RATE:.2f} s, {end}"
    assert comfy.texts[-1][1].splitlines()[-1] == lengths
    expected = np.zeros((2, round(FRAMES / fps * RATE)), np.float32)
    length = min(own.shape[1], expected.shape[1])
    expected[:, :length] = own[:, :length]
    np.testing.assert_allclose(heard(path, RATE), expected, atol=1e-4)
    before = set(comfy.output.rglob("*"))
    with pytest.raises(LatentsError, match="correct the fps, give the audio of this video, or set audio_length to fit"):
        save(execute, **given, fps=fps, options={"audio_length": "refuse"})
    assert set(comfy.output.rglob("*")) == before and not list(comfy.temp.glob("*.wav"))


def test_metadata_that_a_container_cannot_keep_ends_no_decode(comfy, execute):
    others = {"日本": 1, "a=b": 2, "k" * 90: 3, "creation_time": 4, "set": {5}, "workflow": {"nodes": ["\udc80"]}}
    for format in ("mp4, h264", "mkv, ffv1 (lossless)"):
        path, _ = save(
            execute, hidden={"prompt": {"1": {}}, "extra_pnginfo": others}, latent=latent(comfy), format=format
        )
        entries = {key.lower(): value for key, value in read_metadata(path).items()}
        assert json.loads(entries["prompt"]) == {"1": {}} and entries["日本"] == "1"
        (line,) = [line for line in comfy.texts[-1][1].splitlines() if "metadata" in line]
        assert line.startswith(str(path)) and "'creation_time'" in line and "'日本'" not in line


@pytest.mark.quick(1)
@pytest.mark.parametrize("format", ["mov, prores (10 bits)", "mp4, h264"])
def test_a_small_video_is_shown_in_place_of_one_that_browsers_do_not_play(comfy, execute, format):
    wide = np.tile(LATENTS, (1, 1, 1, 1, 8))  # 768 x 64
    before = set(comfy.temp.glob("*"))
    output = execute("LTXSaveVideoMLX", **{**SAVED, "format": format}, latent=latent(comfy, wide))
    (video,) = output.args[0]
    path = Path(video.get_stream_source())
    if format == "mp4, h264":
        assert output.ui.values[0]["filename"] == path.name and set(comfy.temp.glob("*")) == before
        return
    (shown,), (saved,) = output.ui["images"], output.ui["files"]
    assert output.ui["animated"] == (True,)
    assert (saved["filename"], saved["type"], shown["subfolder"], shown["type"]) == (path.name, "output", "", "temp")
    small = comfy.temp / shown["filename"]
    assert "h264 (High) (avc1" in probe(small) and "yuv420p" in probe(small)
    frames, whole = (frames_of(file, multiple=1).astype(float) for file in (small, path))
    whole = whole / 257 if whole.max() > 255 else whole
    means = whole.reshape(FRAMES, 32, 2, 384, 2, 3).mean(axis=(2, 4))
    assert frames.shape == means.shape
    luma = np.array([0.2126, 0.7152, 0.0722])  # of BT.709: colors are stored for four pixels at once
    assert np.abs((frames - means) @ luma).mean() < 8  # random colors in h264


def test_the_plan_has_the_memory_of_the_audio(comfy, execute):
    save(execute, latent=pair(comfy, LATENTS, AUDIO), audio_vae="no audio")
    save(execute, latent=pair(comfy, LATENTS, AUDIO), audio_vae=AUDIO_VAE)
    silent, with_audio = freed(comfy)
    assert (
        with_audio > silent + AudioVAE.from_pretrained(comfy.base / "models" / AUDIO_VAE).plan(18, chunk=1).memory.work
    )


def test_audio_latents_become_audio_and_audio_becomes_latents(comfy, execute, audio_vae):
    expected = np.array(audio_vae.decode(AUDIO))
    for given in (pair(comfy, LATENTS, AUDIO), latent(comfy, AUDIO)):
        audio = execute("LTXDecodeAudioMLX", latent=given, audio_vae=AUDIO_VAE)
        assert audio["sample_rate"] == RATE
        np.testing.assert_allclose(audio["waveform"].array, expected, atol=1e-5)
    two = np.concatenate([AUDIO, AUDIO[:, :, ::-1]])
    batch = execute("LTXDecodeAudioMLX", latent=latent(comfy, two), audio_vae=AUDIO_VAE)["waveform"].array
    assert batch.shape == (2, *expected.shape[1:])
    np.testing.assert_allclose(batch[0], expected[0], atol=1e-5)

    encoded = execute("LTXEncodeAudioMLX", audio=audio, audio_vae=AUDIO_VAE)
    assert encoded["type"] == "audio"
    np.testing.assert_allclose(encoded["samples"].array, np.array(audio_vae.encode(expected, RATE)), atol=1e-4)
    assert len(freed(comfy)) == 4


def audio_of(comfy, channels, samples, value=0):
    waveform = np.full((1, channels, samples), value, np.float32)
    return {"waveform": comfy.torch.Tensor(waveform), "sample_rate": RATE}


@pytest.mark.parametrize("join", [False, True])
def test_values_of_a_list_of_latents_are_checked_before_the_first_is_decoded(comfy, execute, join):
    bad = np.array(LATENTS)
    bad[0, 0, -1] = np.nan
    words = "window 2" if join else "LATENT 2 of the list"
    given = {**SAVED, "filename_prefix": "unsaved/clip", "join": join, "carry": 9}
    with pytest.raises(LatentsError, match=f"{words}: 6 of .* latent values are NaN or infinite"):
        execute("LTXSaveVideoMLX", **given, latent=[latent(comfy), latent(comfy, bad)])
    assert not list(comfy.output.glob("unsaved/*"))


def test_advice_for_what_cannot_be_used(comfy, execute):
    two = pair(comfy, np.tile(LATENTS, (2, 1, 1, 1, 1)), np.tile(AUDIO, (2, 1, 1, 1)))
    for node, given, text in (
        ("LTXSaveVideoMLX", {**SAVED, "latent": two}, "separate video and audio with LTXVSeparateAVLatent, and take"),
        ("LTXSaveVideoMLX", {**SAVED, "latent": latent(comfy), "audio": audio_of(comfy, 2, 0)}, "has no samples; dis"),
        ("LTXSaveVideoMLX", {**SAVED, "latent": latent(comfy), "audio": audio_of(comfy, 9, 9)}, "9 channels, and at"),
        ("LTXSaveVideoMLX", {**SAVED, "latent": latent(comfy), "audio": audio_of(comfy, 2, 9, np.nan)}, "that are NaN"),
        ("LTXEncodeAudioMLX", {"audio": audio_of(comfy, 1, 9, np.inf), "audio_vae": AUDIO_VAE}, "that are NaN"),
        ("LTXEncodeAudioMLX", {"audio": audio_of(comfy, 3, 9), "audio_vae": AUDIO_VAE}, "3 channels, and at most 2"),
        ("LTXEncodeAudioMLX", {"audio": audio_of(comfy, 1, 0), "audio_vae": AUDIO_VAE}, "has no samples"),
        ("LTXDecodeAudioMLX", {"latent": latent(comfy), "audio_vae": AUDIO_VAE}, "latents of video alone"),
    ):
        with pytest.raises(LatentsError, match=text):
            execute(node, **given)
    save(execute, latent=latent(comfy), audio=audio_of(comfy, 8, 4800))


def run(path):
    return run_ffmpeg("-i", path, "-c", "copy", "-f", "framehash", "-")


@pytest.mark.slow
def test_a_list_of_latents_becomes_a_video_each_or_one_film(comfy, execute, checkpoint, audio_vae):
    windows, audio_tracks = [LATENTS, -LATENTS], [AUDIO, -AUDIO]
    given = [pair(comfy, *each) for each in zip(windows, audio_tracks, strict=True)]
    film, _ = save(execute, latent=given, join=True, carry=9, blend=4, audio_vae=AUDIO_VAE, filename_prefix="film")
    vae = VideoVAE.from_pretrained(checkpoint)
    stream = vae.stream_joined(windows, carry=9, blend=4)
    expected = np.concatenate([chunk.to_uint8() for chunk in stream])
    np.testing.assert_array_equal(frames_of(film), expected)
    audio = audio_vae.stream_joined(audio_tracks, [FRAMES, FRAMES], fps=24, carry=9)
    waveform = np.concatenate([np.array(chunk.waveform)[0] for chunk in audio], axis=1)[:, : 25 * RATE // 24]
    assert np.abs(heard(film, RATE)[:, : waveform.shape[1]] - waveform).max() < 1e-4
    assert "2 windows: 25 frames of 96x64 within " in comfy.texts[0][1]
    output = execute("LTXSaveVideoMLX", **{**SAVED, "latent": [latent(comfy, each) for each in windows]})
    for window, video in zip(windows, output.args[0], strict=True):
        np.testing.assert_array_equal(frames_of(Path(video.get_stream_source())), vae.decode_uint8(window))
    with pytest.raises(LatentsError, match="shares the first 17 with the window before; correct carry, or leave"):
        save(execute, latent=[latent(comfy, each) for each in windows], join=True, carry=17)
    with pytest.raises(LatentsError, match="some of these latents have audio, and others none"):
        save(execute, latent=[given[0], latent(comfy, windows[1])], join=True, carry=9)
