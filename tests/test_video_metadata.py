"""Metadata: every entry comes back from the file, and ComfyUI's workflow goes with the video."""

import json
import re
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from mlx_ltx_vae import save_latents
from mlx_ltx_vae.decode import main
from mlx_ltx_vae.errors import WriterError
from mlx_ltx_vae.video import SinkOptions, VideoWriter, open_sink
from mlx_ltx_vae.video.metadata import read_metadata
from test_video_audio import make_audio, sound
from video_files import noise, read, run_ffmpeg

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


@pytest.mark.parametrize("name", ["out.mp4", "out.mov", "out.mkv", "out.webm", "live.mp4", "live.mov"])
@pytest.mark.parametrize("has_audio", [False, True])
def test_entries_come_back_from_videos(tmp_path: Path, name: str, has_audio: bool) -> None:
    assert len(LONG) > 100_000
    audio = make_audio(tmp_path / "a.wav", 0.2) if has_audio else None
    is_live = name.startswith("live")
    entries = {**ENTRIES, "prompt": LONG[:18_000]} if is_live else ENTRIES
    options = {"fragmented": is_live, "audio": audio, "metadata": entries}
    with VideoWriter(tmp_path / name, size=SIZE, fps=24, **options) as out:
        out.write(noise(6, SIZE))
    is_matroska = name in ("out.mkv", "out.webm")
    expected = {key.upper().replace(" ", "_") if is_matroska else key: text for key, text in entries.items()}
    found = read_metadata(tmp_path / name)
    assert {key: found.get(key) for key in expected} == expected
    assert len(read(tmp_path / name)) == 6
    if has_audio:
        assert len(sound(tmp_path / name)) > 8000


def test_ffmpeg_reads_the_entries_that_it_is_given(tmp_path: Path) -> None:
    with VideoWriter(tmp_path / "out.mp4", size=SIZE, fps=24, metadata={"prompt": LONG[:500], "a=b"[0]: "1"}) as out:
        out.write(noise(2, SIZE))
    found = ffmetadata(tmp_path / "out.mp4")
    assert (found["prompt"], found["a"]) == (LONG[:500], "1")


keys = st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="="), min_size=1, max_size=79)
values = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)


@given(entries=st.dictionaries(keys, values, max_size=5))
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_comes_back(tmp_path: Path, entries: dict) -> None:
    for name in ("out.mov", "out/"):
        for old in (tmp_path / "out").glob("*"):
            old.unlink()
        with open_sink(f"{tmp_path}/{name}", size=SIZE, fps=24, options=SinkOptions(metadata=entries)) as out:
            out.write(noise(1, SIZE))
        found = read_metadata(tmp_path / ("out.mov" if name == "out.mov" else "out/00000.png"))
        assert {key: found.get(key) for key in entries} == entries


@pytest.mark.parametrize(("bit_depth", "dtype"), [(8, np.uint8), (10, np.uint16)])
def test_entries_come_back_from_stills(tmp_path: Path, bit_depth: int, dtype: type) -> None:
    options = SinkOptions(metadata=ENTRIES, bit_depth=bit_depth)
    with open_sink(f"{tmp_path}/new/", size=SIZE, fps=24, options=options) as out:
        out.write(noise(2, SIZE, dtype))
    for still in sorted((tmp_path / "new").iterdir()):
        assert read_metadata(still) == ENTRIES
        with Image.open(still) as image:
            image.load()
            assert image.text == ENTRIES
    np.testing.assert_array_equal(read(tmp_path / "new"), noise(2, SIZE, dtype))


def test_compressed_entries_of_other_programs_are_read(tmp_path: Path) -> None:
    from PIL.PngImagePlugin import PngInfo

    text = PngInfo()
    text.add_text("a", "long é " * 999, zip=True)
    text.add_itxt("b", "漢字" * 999, "ja", "B", zip=True)
    Image.fromarray(noise(1, SIZE)[0]).save(tmp_path / "a.png", pnginfo=text)
    assert read_metadata(tmp_path / "a.png") == {"a": "long é " * 999, "b": "漢字" * 999}


@pytest.mark.parametrize("key", ["", "a=b", " a", "é", "a" * 80, "a\nb"])
def test_keys_that_not_all_formats_have_are_refused(tmp_path: Path, key: str) -> None:
    with pytest.raises(WriterError, match="1 to 79 ASCII characters"):
        VideoWriter(tmp_path / "out.mp4", size=SIZE, fps=24, metadata={key: "1"})


@pytest.mark.parametrize("value", ["a\0", "\ud800"])
def test_values_that_are_no_text_are_refused(tmp_path: Path, value: str) -> None:
    with pytest.raises(WriterError, match="the metadata a has a NUL or is not Unicode"):
        open_sink(f"{tmp_path}/new/", size=SIZE, fps=24, options=SinkOptions(metadata={"a": value}))


@pytest.fixture
def comfyui_latents(golden, tmp_path: Path) -> tuple[Path, Path]:
    """A file as ComfyUI's SaveLatent writes it, and its VAE."""
    latents = mx.random.normal((1, 8, 1, 2, 2), key=mx.random.key(1))
    tensors = {"latent_tensor": latents, "latent_format_version_0": mx.array([])}
    path = tmp_path / "clip.latent.safetensors"
    mx.save_safetensors(str(path), tensors, {"prompt": LONG, "workflow": '{"nodes": []}', "other": "stays"})
    return path, golden("ltx2_3").checkpoint


@pytest.mark.parametrize("output", ["out.mp4", "out/", "%03d.png"])
def test_the_workflow_of_comfyui_goes_with_the_video(comfyui_latents, tmp_path: Path, output: str) -> None:
    latents, vae = comfyui_latents
    out = f"{tmp_path}/{output}"
    own = ["--metadata", "workflow=mine=1", "--metadata", "a=b"]
    assert main([str(latents), "-m", str(vae), "-o", out, "-q", *own]) == 0
    still = "out/00000.png" if output == "out/" else "000.png"
    found = read_metadata(Path(out) if output == "out.mp4" else tmp_path / still)
    assert found["a"] == "b"
    assert found["prompt"] == LONG
    assert found["workflow"] == "mine=1"
    assert "other" not in found


@pytest.mark.parametrize("output", ["out.gif", "out.npy"])
def test_other_formats_leave_the_workflow_out_and_refuse_entries(
    comfyui_latents, tmp_path: Path, capsys: pytest.CaptureFixture, output: str
) -> None:
    latents, vae = comfyui_latents
    command = [str(latents), "-m", str(vae), "-o", str(tmp_path / output), "-q"]
    assert main(command) == 0
    assert capsys.readouterr().err == ""
    with pytest.raises(SystemExit):
        main([*command, "--metadata", "a=b"])
    assert f"{output}: takes no metadata; only .mp4, .mov, .mkv, .webm and PNG stills do." in capsys.readouterr().err


def test_a_live_video_goes_without_a_long_workflow(
    comfyui_latents, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    latents, vae = comfyui_latents
    command = [str(latents), "-m", str(vae), "-o", str(tmp_path / "out.mp4"), "-q", "--live"]
    assert main(command) == 0
    assert capsys.readouterr().err.count("prompt and workflow of the latents take more than 20,000 bytes") == 1
    assert "prompt" not in read_metadata(tmp_path / "out.mp4")
    assert len(read(tmp_path / "out.mp4")) == 1
    with pytest.raises(SystemExit):
        main([*command, "--metadata", f"a={LONG[:20_001]}"])
    assert "a live video takes 20,000 bytes of metadata" in capsys.readouterr().err


def test_an_entry_needs_a_key_and_a_value(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit):
        main(["--demo", "--metadata", "comment", "-o", str(tmp_path / "out.mp4")])
    assert "'comment' is not KEY=VALUE" in capsys.readouterr().err


def test_latents_of_this_package_have_no_workflow(golden, tmp_path: Path) -> None:
    save_latents(tmp_path / "clip.safetensors", mx.zeros((1, 8, 1, 2, 2)), fps=24)
    vae = str(golden("ltx2_3").checkpoint)
    assert main([str(tmp_path / "clip.safetensors"), "-m", vae, "-o", f"{tmp_path}/out/", "-q"]) == 0
    assert read_metadata(tmp_path / "out/00000.png") == {}
