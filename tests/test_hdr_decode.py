"""`decode --hdr`: what other programs find in the files, against formulas in float64 and the reference's planes."""

import json
import re
import struct
import subprocess
import sys

import mlx.core as mx
import numpy as np
import pytest
from imageio_ffmpeg import get_ffmpeg_exe

from commands import decode as main
from commands import preview
from conftest import FIXTURES, active_memory
from hdr_formulas import (
    ACESCG_TO_REC709,
    CHROMATICITIES,
    bt2020_planes,
    decode_acescct,
    encode_acescct,
    exr_attributes,
    exr_pixels,
    hlg,
    pq,
    sdr,
    to_rec709,
)
from mlx_ltx_vae import FrameChunk, HDROptions, PreviewVAE, VideoVAE, WriterError, demo, load_latents, save_latents
from tolerances import PEAK_MARGIN
from video_files import OutputOptions, change_listings, open_sink, output_files, run_ffmpeg, write_tone

PATCH = 16
ROWS, COLUMNS = 8, 12
SIGNALS = {"hlg": hlg, "pq": pq, "sdr": sdr}


def patches():
    """Codes (H, W, 3): a gray ramp from black to far above white, and colors, in patches of 16x16 pixels."""
    rng = np.random.default_rng(0)
    grays = np.repeat(np.linspace(0.05, 0.8, 48)[:, None], 3, axis=1)
    colors = rng.uniform(0.2, 0.65, (48, 3))
    values = np.concatenate([grays, colors]).reshape(ROWS, COLUMNS, 3)
    return values.repeat(PATCH, axis=0).repeat(PATCH, axis=1)


def write_codes(path, codes, hdr, num_frames=1, **given):
    """Write a clip of one picture, of which a decoder has made the codes."""
    ((name, options),) = output_files(str(path), hdr.choose_frames(OutputOptions(**given))).items()
    pixels = mx.repeat(mx.array((2 * codes - 1).astype(np.float32))[None, None], num_frames, axis=1)
    with open_sink(name, size=codes.shape[1::-1], fps=24, options=options) as sink:
        sink.write(FrameChunk(0, pixels).to_frames(options.frames))
    return path


def read_rgb(path, height, width, pixel_format="gbrp16le"):
    """The first frame, unconverted, (H, W, 3)."""
    data = run_ffmpeg("-i", path, "-frames:v", 1, "-f", "rawvideo", "-pix_fmt", pixel_format, "-")
    planes = np.frombuffer(data, np.uint8 if pixel_format == "gbrp" else np.uint16).reshape(3, height, width)
    return planes.transpose(1, 2, 0)[..., [2, 0, 1]].astype(np.float64)


def read_planes(path, height, width):
    """The 10-bit planes of the first frame, unconverted."""
    data = np.frombuffer(
        run_ffmpeg("-i", path, "-frames:v", 1, "-f", "rawvideo", "-pix_fmt", "yuv420p10le", "-"), "<u2"
    )
    luma, chroma = height * width, height * width // 4
    parts = data[:luma], data[luma : luma + chroma], data[luma + chroma :]
    sizes = (height, width), (height // 2, width // 2), (height // 2, width // 2)
    return [part.reshape(size).astype(np.float64) for part, size in zip(parts, sizes, strict=True)]


@pytest.mark.parametrize("signal", ["hlg", "pq"])
@pytest.mark.parametrize("transfer", ["acescct", "logc3"])
def test_patches_are_the_formula_within_one_code_losslessly(signal, transfer, tmp_path):
    codes = patches()
    hdr = HDROptions(transfer, signal)
    expected = SIGNALS[signal](to_rec709(codes, transfer))
    rgb = write_codes(tmp_path / "rgb.mkv", codes, hdr, codec="ffv1")
    found = read_rgb(rgb, *codes.shape[:2]) / 65535 * 1023
    assert np.abs(found - expected * 1023).max() < 0.5
    yuv = write_codes(tmp_path / "yuv.mkv", codes, hdr, codec="ffv1", pix_fmt="yuv420p10le")
    for plane, wanted in zip(read_planes(yuv, *codes.shape[:2]), bt2020_planes(expected), strict=True):
        assert np.abs(plane - wanted).max() <= 1


def test_planes_are_those_of_the_reference_within_one_code(tmp_path):
    frame = json.loads((FIXTURES / "hdr" / "hdr.json").read_text())["hlg"]["frame"]
    codes = encode_acescct(np.array(frame["linear_rec709"]) @ np.linalg.inv(ACESCG_TO_REC709).T)
    path = write_codes(tmp_path / "a.mkv", codes, HDROptions("acescct"), codec="ffv1", pix_fmt="yuv420p10le")
    for plane, name in zip(read_planes(path, *codes.shape[:2]), "yuv", strict=True):
        assert np.abs(plane - frame[name]).max() <= 1


@pytest.mark.parametrize("signal", ["hlg", "pq"])
def test_patches_survive_hevc_within_three_codes(signal, tmp_path):
    codes = patches()
    path = write_codes(tmp_path / "a.mp4", codes, HDROptions("acescct", signal), num_frames=5)
    expected = bt2020_planes(SIGNALS[signal](to_rec709(codes, "acescct")))
    for plane, wanted in zip(read_planes(path, *codes.shape[:2]), expected, strict=True):
        side = plane.shape[0] // ROWS
        means = [each.reshape(ROWS, side, COLUMNS, side).mean(axis=(1, 3)) for each in (plane, wanted)]
        assert np.abs(means[0] - means[1]).max() <= 3


@pytest.mark.parametrize("exposure", [0, 1.5])
@pytest.mark.parametrize("bit_depth", [8, 10])
def test_sdr_is_tone_mapped(exposure, bit_depth, tmp_path):
    codes = patches()
    path = write_codes(tmp_path / "a.png", codes, HDROptions("acescct", "sdr", exposure), bit_depth=bit_depth)
    levels, pixel_format = (255, "gbrp") if bit_depth == 8 else (65535, "gbrp16le")
    found = read_rgb(path, *codes.shape[:2], pixel_format)
    expected = sdr(to_rec709(codes, "acescct"), exposure)
    assert np.abs(found - expected * levels).max() < (0.51 if bit_depth == 8 else 2)


@pytest.mark.parametrize("signal", SIGNALS)
def test_steps_take_no_more_memory_than_they_say(signal):
    options = HDROptions("acescct", signal, exr_space="acescg").choose_frames(OutputOptions())
    frames = mx.random.uniform(shape=(3, 200, 320, 3))
    mx.eval(frames)
    for output in (options.frames, options.exr, options.sheet_frames):
        (step,) = output.steps
        mx.reset_peak_memory()
        before = mx.get_active_memory()
        mx.eval(step.apply(frames, output.format))
        assert mx.get_peak_memory() - before <= PEAK_MARGIN * step.pixel_bytes * frames.size // 3


def log(*arguments):
    """What ffmpeg says of a file."""
    command = [get_ffmpeg_exe(), "-v", "verbose", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, check=False).stderr.decode()


def video_stream(path):
    """The line of the video stream."""
    return next(line for line in log("-i", path).splitlines() if "Video:" in line)


def stream_headers(path):
    """The fields of the first packet's headers by name, as the stream itself has them."""
    text = log("-i", path, "-map", "0:v", "-c", "copy", "-frames:v", 1, "-bsf:v", "trace_headers", "-f", "null", "-")
    return {name: int(value) for name, value in re.findall(r"\] \d+ +(\w+) +[01]+ = (\d+)", text)}


@pytest.mark.parametrize("ending", [".mp4", ".mov", ".mkv"])
@pytest.mark.parametrize(("signal", "number", "name"), [("hlg", 18, "arib-std-b67"), ("pq", 16, "smpte2084")])
def test_stream_and_container_are_tagged(ending, signal, number, name, tmp_path):
    path = write_codes(tmp_path / f"a{ending}", patches(), HDROptions("acescct", signal))
    container, headers = video_stream(path), stream_headers(path)
    assert re.search(rf"hevc \(Main 10\).*yuv420p10le\(tv, bt2020nc/bt2020/{name}, progressive, center\)", container)
    expected = {
        "colour_primaries": 9,
        "transfer_characteristics": number,
        "matrix_coefficients": 9,
        "video_full_range_flag": 0,
        "chroma_sample_loc_type_top_field": 1,
    }
    if signal == "pq":
        expected |= {"max_content_light_level": 10000, "max_pic_average_light_level": 400}
        assert "Content light level metadata: MaxCLL=10000, MaxFALL=400" in log("-i", path)
    else:
        assert "max_content_light_level" not in headers
    assert {key: headers.get(key) for key in expected} == expected
    data = path.read_bytes()
    if ending != ".mkv":
        kind, full_range = (b"nclx", b"\0") if ending == ".mp4" else (b"nclc", b"")
        assert b"colr" + kind + struct.pack(">3H", 9, number, 9) + full_range in data
        assert b"hvc1" in data and b"hev1" not in data
        assert (b"clli" + struct.pack(">2H", 10000, 400) in data) == (signal == "pq")


@pytest.mark.parametrize(
    ("ending", "codec", "format"),
    [
        (".mov", "prores", "yuv422p10le(tv, bt2020nc/bt2020/arib-std-b67, progressive"),
        (".mkv", "ffv1", "gbrp16le(pc, gbr/bt2020/arib-std-b67, progressive"),
        (".mp4", "h264", "yuv420p10le(tv, bt2020nc/bt2020/arib-std-b67, progressive, center"),
        (".webm", None, "yuv420p10le(tv, bt2020nc/bt2020/arib-std-b67, progressive, center"),
        (".mkv", "av1", "yuv420p10le(tv, bt2020nc/bt2020/arib-std-b67, progressive, center"),
    ],
)
def test_other_codecs_are_tagged(ending, codec, format, tmp_path):
    path = write_codes(tmp_path / f"a{ending}", patches(), HDROptions("acescct"), codec=codec)
    assert format in video_stream(path)


def test_a_png_of_hdr_is_tagged(tmp_path):
    path = write_codes(tmp_path / "a.png", patches(), HDROptions("acescct"))
    assert re.search(r"rgb48be\(pc, gbr/bt2020/arib-std-b67", video_stream(path))


@pytest.mark.parametrize(("space", "name"), [("srgb", "sRGB"), ("acescg", "ACEScg"), ("acescct", "ACEScct")])
@pytest.mark.parametrize("transfer", ["acescct", "logc3"])
def test_exr_has_light_or_codes(transfer, space, name, tmp_path):
    codes = patches()
    path = write_codes(tmp_path / "a.exr", codes, HDROptions(transfer, exr_space=space))
    light = to_rec709(codes, transfer)
    in_acescg = decode_acescct(codes) if transfer == "acescct" else light @ np.linalg.inv(ACESCG_TO_REC709).T
    in_acescg = np.maximum(in_acescg, 0)
    same = codes if transfer == "acescct" else encode_acescct(in_acescg)
    expected = {"srgb": light, "acescg": in_acescg, "acescct": same}[space]
    found = exr_pixels(path, codes.shape[1], codes.shape[0]).astype(np.float64)
    np.testing.assert_allclose(found, expected, rtol=2**-11 + 1e-5, atol=1e-6)  # half a unit of 11 bits
    attributes = exr_attributes(path)
    assert attributes["colorSpace"] == ("string", name.encode())
    assert attributes["chromaticities"][1] == struct.pack("<8f", *CHROMATICITIES[name])


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    """Latents of the demo for 9 frames of 128x96, and these as codes (F, H, W, 3), decoded in float32."""
    latents = load_latents(demo.LATENTS)[0][:, :, :2, :3, :4]
    path = tmp_path_factory.mktemp("latents") / "clip.safetensors"
    save_latents(path, latents, fps=24)
    frames = VideoVAE.from_pretrained(demo.VAE, dtype="float32").decode(latents)
    return path, (np.array(frames[0].transpose(1, 2, 3, 0)).astype(np.float64) + 1) / 2


def decode(path, *arguments):
    return main([str(path), "-m", str(demo.VAE), *map(str, arguments), "--json"])


@pytest.mark.quick(1)
@pytest.mark.parametrize("order", ["rows", "time"])
def test_video_and_exr_come_from_one_decode_in_float32(order, clip, tmp_path, capsys):
    path, codes = clip
    video, folder = tmp_path / "a.mkv", tmp_path / "light"
    options = ["--hdr", "acescct", "--codec", "ffv1", "--exr", folder, "--order", order]
    others = active_memory()
    mx.reset_peak_memory()
    assert decode(path, *options, "-o", video) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["frames"], report["output"], report["exr"]) == (9, str(video), f"{folder}/")
    assert report["peak_memory_bytes"] - others <= PEAK_MARGIN * report["plan"]["peak_bytes"]
    images = sorted(path.name for path in folder.iterdir())
    assert images == [f"{number:05d}.exr" for number in range(9)]
    _, height, width, _ = codes.shape
    for image, frame in zip(images, codes, strict=True):
        found = exr_pixels(folder / image, width, height).astype(np.float64)
        np.testing.assert_allclose(found, to_rec709(frame, "acescct"), rtol=1e-3, atol=1e-4)
    expected = hlg(to_rec709(codes[0], "acescct"))
    assert np.abs(read_rgb(video, height, width) / 65535 - expected).max() * 1023 < 0.6


def test_every_order_makes_the_same_files_up_to_rounding(clip, tmp_path):
    for order in ("time", "rows", "columns"):
        (tmp_path / order).mkdir()
        outputs = ["--exr", tmp_path / order / "exr", "-o", tmp_path / order / "a.npy"]
        assert decode(clip[0], "--hdr", "logc3", "--order", order, *outputs) == 0
    levels, *others = (np.load(tmp_path / order / "a.npy").astype(int) for order in ("time", "rows", "columns"))
    for other in others:
        assert np.abs(other - levels).max() <= 1  # of 65535, by rounding
    for name in ("00000.exr", "00008.exr"):
        paths = (tmp_path / order / "exr" / name for order in ("time", "rows", "columns"))
        light, *others = (exr_pixels(path, levels.shape[2], levels.shape[1]).astype(float) for path in paths)
        for other in others:
            np.testing.assert_allclose(other, light, rtol=2**-10)  # half precision's step


def test_exr_may_be_the_only_output(clip, tmp_path):
    given = [clip[0], "--hdr", "acescct", "--frames"]
    assert decode(*given, "0:2", "-o", tmp_path / "a.exr" / "%05d.exr") == 0
    assert decode(*given, "0:2", "--exr", tmp_path / "b") == 0
    assert decode(*given, "0:2", "-o", tmp_path / "c_%03d.exr") == 0
    assert decode(*given, "1:2", "-o", tmp_path / "d.exr") == 0
    one = (tmp_path / "d.exr").read_bytes()
    for name in ("a.exr/00001.exr", "b/00001.exr", "c_001.exr"):
        assert (tmp_path / name).read_bytes() == one
    assert sorted(path.name for path in (tmp_path / "b").iterdir()) == ["00000.exr", "00001.exr"]


@pytest.mark.slow
def test_decode_to_file_writes_what_the_command_writes(clip, tmp_path):
    given = ["--hdr", "acescct", "--hdr-output", "pq", "--exr-space", "acescg", "--crf", 30]
    assert decode(clip[0], *given, "--exr", tmp_path / "a", "-o", tmp_path / "a.mov") == 0
    latents = load_latents(clip[0])[0]
    options = HDROptions("acescct", "pq", exr=tmp_path / "b", exr_space="acescg")
    vae = VideoVAE.from_pretrained(demo.VAE, dtype="float32")
    report = vae.decode_to_file(latents, tmp_path / "b.mov", fps=24, crf=30, hdr=options)
    assert report.frames == 9
    assert (tmp_path / "a.mov").read_bytes() == (tmp_path / "b.mov").read_bytes()
    assert (tmp_path / "a/00003.exr").read_bytes() == (tmp_path / "b/00003.exr").read_bytes()
    vae.decode_to_file(iter([latents]), tmp_path / "c.npy", hdr="acescct")  # latents that arrive, without a plan
    codes = np.load(tmp_path / "c.npy")[4] / 65535
    assert np.abs(codes - hlg(to_rec709(clip[1][4], "acescct"))).max() < 1e-3
    with pytest.warns(UserWarning, match="HDR is decoded in bfloat16, which shows as bands; load the VAE with dtype"):
        VideoVAE.from_pretrained(demo.VAE, dtype="bfloat16").decode_to_file(latents, tmp_path / "d.npy", hdr="logc3")


def test_several_inputs_and_batches_have_a_folder_of_exr_each(clip, tmp_path):
    latents = load_latents(clip[0])[0][:, :, :1]
    for name, batch in (("a", 1), ("b", 2)):
        save_latents(tmp_path / f"{name}.safetensors", mx.repeat(latents, batch, axis=0), fps=24)
    given = ["--hdr", "acescct", "--exr", tmp_path / "exr"]
    out = tmp_path / "out"
    sources = [str(tmp_path / f"{name}.safetensors") for name in ("a", "b")]
    assert main([*sources, "-m", str(demo.VAE), *map(str, given), "-o", f"{out}/", "-q"]) == 0
    assert sorted(path.name for path in out.iterdir()) == ["a.mp4", "b-0.mp4", "b-1.mp4"]
    assert sorted(path.relative_to(tmp_path / "exr").as_posix() for path in (tmp_path / "exr").rglob("*.exr")) == [
        "a/00000.exr",
        "b-0/00000.exr",
        "b-1/00000.exr",
    ]
    assert main([*sources, "-m", str(demo.VAE), *map(str, given), "-q"]) == 1  # alone, where these are


def test_contact_sheets_are_sdr_and_audio_goes_with_the_video(clip, tmp_path, capsys):
    video, audio = tmp_path / "a.mp4", write_tone(tmp_path / "a.wav", 0.375)
    given = ["--hdr", "acescct", "--exr", tmp_path / "exr", "--audio", audio, "--contact-sheet"]
    assert decode(clip[0], *given, "-o", video) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["contact_sheet"], report["exr"]) == (str(tmp_path / "a.png"), f"{tmp_path}/exr/")
    assert "Audio: aac" in log("-i", video)
    assert len(list((tmp_path / "exr").iterdir())) == 9
    assert decode(clip[0], "--hdr", "acescct", "--hdr-output", "sdr", "--contact-sheet", "-o", tmp_path / "b.png") == 0
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


@pytest.mark.parametrize("command", ["diffusion", "preview"])
def test_other_decoders_take_hdr_too(command, golden, tmp_path):
    if command == "diffusion":
        case = golden("ltx2_5_diffusion")
        vae = VideoVAE.from_pretrained(case.checkpoint, dtype="float32")
        latents = mx.random.normal((1, vae.config.latent_channels, 2, 3, 3), key=mx.random.key(0))
        options, main_of, model = {"steps": 1}, main, case.checkpoint
    else:
        vae = PreviewVAE.from_pretrained(demo.LATENT_RGB, dtype="float32")
        latents, options, main_of, model = load_latents(demo.LATENTS)[0][:, :, :3], {}, preview, demo.LATENT_RGB
    path, out = tmp_path / "clip.npy", tmp_path / "a.npy"
    np.save(path, np.array(latents))
    arguments = [str(path), "-m", str(model), "-o", str(out), "--hdr", "logc3", "-q"]
    steps = ["--steps", "1"] if options else []
    assert main_of([*arguments, *steps, "--exr", str(tmp_path / "exr")]) == 0
    pixels = np.array(vae.decode(latents, **options))[0].transpose(1, 2, 3, 0).astype(np.float64)
    light = to_rec709((pixels + 1) / 2, "logc3")
    assert np.abs(np.load(out) / 65535 - hlg(light)).max() < 1e-3
    found = exr_pixels(tmp_path / "exr/00001.exr", light.shape[2], light.shape[1])
    np.testing.assert_allclose(found.astype(np.float64), light[1], rtol=2e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-o", "a/%d.exr"], "EXR has light, or codes of ACEScct, which these frames are not; add --hdr acescct"),
        (["-o", "a.mp4", "--exr", "b"], "--exr is for HDR latents; add --hdr acescct or logc3"),
        (["--exr", "b"], "--exr is for HDR latents; add --hdr acescct or logc3"),
        (["-o", "a.mp4", "--hdr-output", "pq"], "--hdr-output is for HDR latents"),
        (["-o", "a.mp4", "--exposure", "0"], "--exposure is for HDR latents"),
        (["-o", "a.mp4", "--hdr", "logc3", "--exposure", "1"], "--exposure is for --hdr-output sdr, not hlg"),
        (["-o", "a.mp4", "--hdr", "logc3", "--hdr-output", "sdr", "--exposure", "nan"], "nan stops is not within 20"),
        (
            ["-o", "a/", "--stills", "--hdr", "logc3", "--exr", "./a"],
            "./a/: is the folder of other stills; name another one",
        ),
        (["-o", "a/%d.png", "--hdr", "logc3", "--exr", "a"], "a/: is the folder of other stills; name another one"),
        (["-o", "a.gif", "--hdr", "logc3"], "frames have 16 bits per color, and it takes 8 bits; use --hdr-output sdr"),
        (["-o", "a.mp4", "--hdr", "logc3", "--codec", "h264_videotoolbox"], "has 8 bits per color, not 10"),
        (["-o", "a/%d.exr", "--hdr", "logc3", "--codec", "hevc"], "a/%d.exr: takes no codec"),
    ],
)
def test_options_that_do_not_fit_are_wrong_usage(arguments, message, capsys):
    with pytest.raises(SystemExit) as error:
        main(["clip.npy", "-m", "vae", *arguments])
    assert error.value.code == 2
    assert message in capsys.readouterr().err


def test_without_the_library_nothing_is_decoded(clip, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "OpenImageIO", None)
    assert decode(clip[0], "--hdr", "acescct", "--exr", tmp_path / "exr", "-o", tmp_path / "a.mp4") == 1
    assert capsys.readouterr().err.endswith('install it with: pip install "mlx_ltx_vae[exr]".\n')
    assert list(tmp_path.iterdir()) == []


def test_an_ffmpeg_without_light_levels_writes_no_pq(clip, tmp_path, monkeypatch):
    change_listings(
        monkeypatch, lambda rows: [row for row in rows if not "".join(row[:1]).startswith("-content_light")]
    )
    with pytest.raises(WriterError, match="this ffmpeg cannot state the light level of PQ"):
        write_codes(tmp_path / "a.mp4", patches(), HDROptions("acescct", "pq"))
    write_codes(tmp_path / "b.mp4", patches(), HDROptions("acescct", "hlg"))
    assert [path.name for path in tmp_path.iterdir()] == ["b.mp4"]


@pytest.mark.parametrize("hdr", [{"transfer": "slog3"}, {"transfer": "logc3", "signal": "HLG"}])
def test_unknown_names_are_refused(hdr):
    with pytest.raises(WriterError, match="expected one of"):
        HDROptions(**hdr)


@pytest.mark.slow
def test_frames_of_1088_lines_are_decoded_by_rows_within_their_plan(tmp_path, capsys):
    np.save(tmp_path / "clip.npy", np.array(mx.random.normal((1, 64, 2, 34, 60), key=mx.random.key(0))))
    others = active_memory()
    mx.reset_peak_memory()
    given = ["--hdr", "acescct", "--order", "rows", "--exr", tmp_path / "exr", "--encoder-preset", "ultrafast"]
    assert decode(tmp_path / "clip.npy", *given, "-o", tmp_path / "a.mp4") == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["width"], report["height"], report["frames"]) == (1920, 1088, 9)
    assert report["peak_memory_bytes"] - others <= PEAK_MARGIN * report["plan"]["peak_bytes"]
