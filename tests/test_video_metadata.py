"""Metadata: every entry comes back from the file, and ComfyUI's workflow goes with the video."""

import json
import re
import tracemalloc
from contextlib import suppress
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from commands import decode as main
from commands import encode, info
from mlx_ltx_vae import ReaderError, VideoWriter
from mlx_ltx_vae.inspect import inspect_video
from mlx_ltx_vae.video import metadata
from test_video_audio import make_audio, samples_in
from video_files import OutputOptions, noise, open_sink, open_video, read, read_metadata, run_ffmpeg, write

SIZE = (32, 32)
LONG = json.dumps(
    {"quote": "'\"", "signs": "a=b; #c \\ \\\\", "line": "1\n2\r\n3", "other": "漢字 é"}, ensure_ascii=False
)
LONG = f"{LONG}\n\n[STREAM]\r\n;# {LONG * 1400}"
ENTRIES = {
    "prompt": LONG,
    "comment": "take 3",
    "workflow": "{}",
    "with space": "= ",
    "[CHAPTER]": "x",
    "empty line": "\n",
    "folder": "C:\\a\\",
}


def ffmetadata(path: Path) -> dict[str, str]:
    """What ffmpeg itself reads, by another parser than the package's."""
    text = run_ffmpeg("-i", path, "-f", "ffmetadata", "-").decode()
    lines = re.split(r"(?<!\\)(?:\\\\)*\n", text)
    pairs = [re.split(r"(?<!\\)=", line, maxsplit=1) for line in lines if re.search(r"(?<!\\)=", line)]
    return {
        re.sub(r"\\(.)", r"\1", key, flags=re.S): re.sub(r"\\(.)", r"\1", value, flags=re.S) for key, value in pairs
    }


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    ("name", "has_audio"),
    [
        ("out.mp4", True), ("out.mov", False), ("out.mkv", True), ("out.webm", False), ("live.mp4", True),
    ],
)  # fmt: skip
def test_entries_come_back_from_videos(tmp_path: Path, name: str, has_audio: bool) -> None:
    assert len(LONG) > 100_000
    audio = make_audio(tmp_path / "a.wav", 0.2) if has_audio else None
    is_live = name.startswith("live")
    entries = {**ENTRIES, "prompt": LONG[:18_000]} if is_live else ENTRIES
    options = {"fragmented": is_live, "audio": audio, "metadata": entries}
    with open_video(tmp_path / name, size=SIZE, fps=24, **options) as out:
        out.write(noise(6, SIZE))
    is_matroska = name in ("out.mkv", "out.webm")
    expected = {key.upper().replace(" ", "_") if is_matroska else key: text for key, text in entries.items()}
    found = read_metadata(tmp_path / name)
    assert {key: found.get(key) for key in expected} == expected
    assert len(read(tmp_path / name)) == 6
    if has_audio:
        assert len(samples_in(tmp_path / name)) > 8000


def test_ffmpeg_reads_the_entries_that_it_is_given(tmp_path: Path) -> None:
    write(tmp_path / "out.mp4", noise(2, SIZE), metadata={"prompt": LONG[:500], "a": "1"})
    found = ffmetadata(tmp_path / "out.mp4")
    assert (found["prompt"], found["a"]) == (LONG[:500], "1")


keys = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=90)
values = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)


@pytest.mark.filterwarnings("ignore:.* is written without the metadata")
@given(entries=st.dictionaries(keys, values, max_size=8))
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_comes_back_or_is_left_out(tmp_path: Path, entries: dict) -> None:
    for name in ("out.mov", "out.mkv", "out/"):
        for old in (tmp_path / "out").glob("*"):
            old.unlink()
        with open_sink(f"{tmp_path}/{name}", size=SIZE, fps=24, options=OutputOptions(metadata=entries)) as out:
            out.write(noise(1, SIZE))
        path = tmp_path / ("out/00000.png" if name == "out/" else name)
        kept = metadata.keep_metadata(name, path.suffix, entries, warns=False)
        found, is_matroska = read_metadata(path), name == "out.mkv"
        found = {as_matroska(key): value for key, value in found.items()} if is_matroska else found
        assert found == {as_matroska(key) if is_matroska else key: value for key, value in kept.items()}


def as_matroska(key: str) -> str:
    return key.upper().replace(" ", "_")


@pytest.mark.parametrize(("bit_depth", "dtype"), [(8, np.uint8), (10, np.uint16)])
def test_entries_come_back_from_stills(tmp_path: Path, bit_depth: int, dtype: type) -> None:
    options = OutputOptions(metadata=ENTRIES, bit_depth=bit_depth)
    with open_sink(f"{tmp_path}/new/", size=SIZE, fps=24, options=options) as out:
        out.write(noise(2, SIZE, dtype))
    for still in sorted((tmp_path / "new").iterdir()):
        assert read_metadata(still) == ENTRIES
        with Image.open(still) as image:
            image.load()
            assert image.text == ENTRIES
    np.testing.assert_array_equal(read(tmp_path / "new"), noise(2, SIZE, dtype))


def test_compressed_entries_of_other_programs_are_read(tmp_path: Path) -> None:
    text = PngInfo()
    text.add_text("a", "long é " * 999, zip=True)
    text.add_itxt("b", "漢字" * 999, "ja", "B", zip=True)
    Image.fromarray(noise(1, SIZE)[0]).save(tmp_path / "a.png", pnginfo=text)
    assert read_metadata(tmp_path / "a.png") == {"a": "long é " * 999, "b": "漢字" * 999}


#: Names that ffmpeg, or a container, has a use for.
KEYS = [
    "DURATION", "BPS", "NUMBER_OF_FRAMES", "alpha_mode", "album", "album_artist", "artist", "author", "comment",
    "com.apple.quicktime.artwork", "com.apple.quicktime.make", "company_name", "compatible_brands", "compilation",
    "composer", "copyright", "creation_time", "date", "description", "disc", "encoded_by", "encoder", "encoder-eng",
    "encoder_options", "encoding_tool", "episode_id", "filename", "gapless_playback", "genre", "grouping",
    "handler_name", "hd_video", "keyint-min", "keywords", "language", "lead_performer", "location", "lyrics",
    "major_brand", "make", "media_type", "mimetype", "minor_version", "model", "network", "part_number", "performer",
    "product_name", "product_version", "publisher", "rating", "reel_name", "rotate", "service_name", "show",
    "stereo_mode", "synopsis", "tempo", "timecode", "title", "track", "variant_bitrate", "vendor_id", "year",
]  # fmt: skip
OF_ALL = {"company_name", "creation_time", "encoder", "encoder-eng", "product_name", "product_version"}
OF_MP4 = {*OF_ALL, "com.apple.quicktime.artwork", "compatible_brands", "location", "major_brand", "minor_version"}
OF_MATROSKA = {*OF_ALL, "DURATION", "encoding_tool", "lead_performer", "part_number", "stereo_mode"}
#: Keys of other shapes, and what each container drops of all of them.
SHAPES = ["日本", "a=b", "é", " a", "a\nb", "a" * 80, "b" * 1024, "with-de", "with-deu", "with-eng", "a;b", "[STREAM]"]
LEFT_OUT = {
    ".mp4": OF_MP4,
    ".mov": OF_MP4,
    ".mkv": {*OF_MATROSKA, "b" * 1024, "with-de", "with-deu"},
    ".webm": {*OF_MATROSKA, "b" * 1024, "with-de", "with-deu"},
    ".png": {"日本", "é", " a", "a\nb", "a" * 80, "b" * 1024},
    ".gif": {*KEYS, *SHAPES},
    ".webp": {*KEYS, *SHAPES},
    ".avif": {*KEYS, *SHAPES},
    ".npy": {*KEYS, *SHAPES},
}


@pytest.mark.parametrize("ending", LEFT_OUT)
def test_what_a_container_does_not_keep_is_left_out_with_one_line_and_the_rest_comes_back(
    tmp_path: Path, ending: str
) -> None:
    """Of nothing in the entries a file is refused. The rest is compared with what ffmpeg reads."""
    entries = dict.fromkeys([*KEYS, *SHAPES], "+12.3-45.6/")
    path, size = tmp_path / f"out{ending}", (64, 64)
    with pytest.warns(UserWarning, match="is written without the metadata") as said:
        sink = open_sink(path, size=size, fps=24, options=OutputOptions(metadata=entries))
        with sink as out:
            out.write(noise(1, size))
    lines = [str(each.message) for each in said if "metadata" in str(each.message)]
    assert len(lines) == 1
    assert lines[0].startswith(f"{path}: is written without the metadata '")
    assert lines[0].endswith(f", which {ending} files do not keep.")
    assert len(lines[0]) < 400
    kept = entries.keys() - LEFT_OUT[ending]
    if ending == ".npy":
        return
    if ending == ".png":
        with Image.open(path) as image:
            image.load()
            assert image.text == dict.fromkeys(kept, "+12.3-45.6/")
        return
    change = as_matroska if ending in (".mkv", ".webm") else str
    found = {change(key): value for key, value in ffmetadata(path).items()}
    assert {change(key) for key, value in found.items() if value == "+12.3-45.6/"} == {change(key) for key in kept}


@pytest.mark.quick(4)
@pytest.mark.parametrize(
    ("value", "is_live"),
    [
        *((value, False) for value in ["", " ", "\n", "\x01", "\ufffe", "\U0001f600", "\ufeffx"]),
        *((value, True) for value in ["", "\r\n", "x" * 15_000]),
    ],
)
def test_every_text_is_a_value(tmp_path: Path, value: str, is_live: bool) -> None:
    with open_video(tmp_path / "out.mp4", size=SIZE, fps=24, metadata={"a": value}, fragmented=is_live) as out:
        out.write(noise(2, SIZE))
    assert read_metadata(tmp_path / "out.mp4") == {"a": value}


@pytest.mark.parametrize(
    ("name", "second"), [("out.mp4", "A B"), ("out.mkv", "a_b"), ("out.mkv", "A B"), ("out.mov", "a B")]
)
def test_of_keys_that_a_container_takes_for_one_the_first_is_kept(tmp_path: Path, name: str, second: str) -> None:
    with pytest.warns(UserWarning, match=f"is written without the metadata '{second}', which "):
        writer = VideoWriter(tmp_path / name, size=SIZE, fps=24, metadata={"a b": "1", second: "2"})
    with writer as out:
        out.write(noise(2, SIZE))
    assert list(read_metadata(tmp_path / name).values()) == ["1"]


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    ("entries", "kept"),
    [
        ({"日本": 1}, {"日本": "1"}),
        ({"a=b": "C:\\"}, {}),
        ({"a": "x" * 30_000 + "\\"}, {}),
        ({"a": "b\\"}, {"a": "b\\"}),
        ({"a": "\0"}, {}),
        ({"a": "\ud800"}, {}),
        ({"": "1"}, {}),
    ],
)
@pytest.mark.filterwarnings("ignore:.* is written without the metadata")
def test_no_entry_is_a_refusal(tmp_path: Path, entries: dict, kept: dict) -> None:
    write(tmp_path / "out.mp4", noise(2, SIZE), metadata=entries)
    assert read_metadata(tmp_path / "out.mp4") == kept


@pytest.mark.quick(1)
@pytest.mark.parametrize("output", ["out.mp4", "out.gif"])
def test_a_command_says_once_what_it_leaves_out(tmp_path: Path, capsys: pytest.CaptureFixture, output: str) -> None:
    command = ["--demo", "--frames", ":1", "--metadata", "creation_time=now", "-o", str(tmp_path / output), "-q"]
    assert main(command) == 0
    err = capsys.readouterr().err
    assert err.count("is written without the metadata 'creation_time', which ") == 1
    assert (tmp_path / output).exists()


def peak_of_reading(path: Path) -> int:
    tracemalloc.start()
    try:
        with suppress(ReaderError):
            inspect_video(path, None)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", ["out.mp4", "out.mkv"])
def test_long_text_takes_little_more_memory_than_its_length(tmp_path: Path, name: str) -> None:
    value = json.dumps([{"text": 'a = b; #1\n"c"', "numbers": [1, 2]}] * 5_000, indent=1)
    write(tmp_path / name, noise(1, SIZE), metadata={"workflow": value})
    assert peak_of_reading(tmp_path / name) < 8 * len(value) + metadata.MAX_TEXT  # which is a buffer
    assert value in read_metadata(tmp_path / name).values()


def test_a_png_with_more_text_than_is_read_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    text = PngInfo()
    for index in range(12):
        text.add_text(f"key {index}", "a" * 2**23, zip=True)
    (tmp_path / "images").mkdir()
    path = tmp_path / "images" / "a.png"
    Image.fromarray(noise(1, SIZE)[0]).save(path, pnginfo=text)
    assert path.stat().st_size < 200_000
    assert peak_of_reading(path) < 2 * metadata.MAX_TEXT
    output = ["--demo", "-o", f"{tmp_path}/x.safetensors"]
    for command, *arguments in ([info, str(path)], [encode, str(path), *output], [encode, str(path.parent), *output]):
        assert command(arguments) == 1
        assert f"{path}: has more than 32 MB of compressed text; save it without." in capsys.readouterr().err


def test_text_beyond_the_limit_is_left_out_with_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a.mp4", noise(1, SIZE), metadata={"a": "x" * 3000, "b": "y" * 3000})
    monkeypatch.setattr(metadata, "MAX_TEXT", 4000)
    with pytest.warns(UserWarning, match=r"a\.mp4: has more than .* MB of text; not all of it is shown"):
        assert read_metadata(tmp_path / "a.mp4") == {"a": "x" * 3000}


@pytest.mark.parametrize("name", ["a.mp4", "a.mov", "a.mkv", "a.webm"])
def test_what_ffmpeg_says_of_itself_is_no_entry(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / name, noise(1, SIZE))
    assert "encoder" in {key.lower() for key in ffmetadata(tmp_path / name)}
    assert read_metadata(tmp_path / name) == {}
    monkeypatch.setattr(metadata, "read_output", lambda *_, **__: ";FFMETADATA1\nmajor_brand=isom\nencoder=HandBrake\n")
    assert read_metadata(tmp_path / name) == {"encoder": "HandBrake"}


@pytest.fixture
def comfyui_latents(golden, tmp_path: Path) -> tuple[Path, Path]:
    """A file as ComfyUI's SaveLatent writes it, and its VAE."""
    latents = mx.random.normal((1, 8, 1, 2, 2), key=mx.random.key(1))
    tensors = {"latent_tensor": latents, "latent_format_version_0": mx.array([])}
    path = tmp_path / "clip.latent.safetensors"
    mx.save_safetensors(str(path), tensors, {"prompt": LONG, "workflow": '{"nodes": []}', "other": "stays"})
    return path, golden("small_ltx2_3").checkpoint


@pytest.mark.parametrize("output", ["out.mp4", "%03d.png"])
def test_the_workflow_of_comfyui_goes_with_the_video(comfyui_latents, tmp_path: Path, output: str) -> None:
    latents, vae = comfyui_latents
    out = f"{tmp_path}/{output}"
    own = ["--metadata", "WORKFLOW=mine=1", "--metadata", "a=b"]
    assert main([str(latents), "-m", str(vae), "-o", out, "-q", *own]) == 0
    found = read_metadata(tmp_path / output.replace("%03d", "000"))
    assert found == {"a": "b", "prompt": LONG, "WORKFLOW": "mine=1"}, "the entry of the command, in any case"


@pytest.mark.parametrize("output", ["out.gif", "out.npy"])
def test_other_formats_leave_the_workflow_out(
    comfyui_latents, tmp_path: Path, capsys: pytest.CaptureFixture, output: str
) -> None:
    latents, vae = comfyui_latents
    command = [str(latents), "-m", str(vae), "-o", str(tmp_path / output), "-q"]
    assert main(command) == 0
    assert capsys.readouterr().err == ""


def test_a_live_video_goes_without_a_long_workflow(
    comfyui_latents, tmp_path: Path, capfdbinary: pytest.CaptureFixture
) -> None:
    latents, vae = comfyui_latents
    assert main([str(latents), "-m", str(vae), "-o", "-", "-q", "--live"]) == 0
    said = b"without the metadata 'prompt', which live videos (at most 20,000 bytes) do not keep"
    captured = capfdbinary.readouterr()
    assert captured.err.count(said) == 1
    (tmp_path / "out.mp4").write_bytes(captured.out)
    assert read_metadata(tmp_path / "out.mp4") == {"workflow": '{"nodes": []}'}
    assert len(read(tmp_path / "out.mp4")) == 1


@pytest.mark.quick(2)
@pytest.mark.parametrize("output", ["out.mp4", "out.mkv", "frame.png", "out/%05d.png"])
def test_the_workflow_is_said_and_can_be_left_out(
    comfyui_latents, tmp_path: Path, capsys: pytest.CaptureFixture, output: str
) -> None:
    """It may have keys and paths in it, which the person who sends the video does not see."""
    latents, vae = comfyui_latents
    for extra, is_copied in (([], True), (["--no-workflow"], False)):
        folder = tmp_path / f"copied {is_copied}"
        folder.mkdir()
        assert main([str(latents), "-m", str(vae), "-o", f"{folder}/{output}", *extra]) == 0
        last = capsys.readouterr().out.splitlines()[-1]
        assert ("with the prompt and workflow of ComfyUI (--no-workflow leaves them out)" in last) is is_copied
        found = read_metadata(folder / output.replace("%05d", "00000"))
        assert {key.lower() for key in found} == ({"prompt", "workflow"} if is_copied else set())
