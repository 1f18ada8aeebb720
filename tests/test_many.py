"""decode of many inputs, end to end."""

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from PIL import Image

from commands import decode, encode, info, preview
from conftest import file_size_limit
from many_files import VAE, failed, names, run
from mlx_ltx_vae import VideoVAE, demo, load_latents, save_latents
from terminals import run_on_terminal


@pytest.fixture
def clips(tmp_path, monkeypatch):
    """A folder with latents of 1, 9 and 17 frames of 64x64, a batch of two, and a file that is not latents."""
    monkeypatch.chdir(tmp_path)
    latents, _ = load_latents(demo.LATENTS)
    for name, frames in (("one", 1), ("two", 2), ("three", 3)):
        save_latents(f"{name}.safetensors", latents[:, :, :frames, :2, :2], fps=24)
    pair = mx.concatenate([latents[:, :, :1, :2, :2], latents[:, :, 1:2, :2, :2]])
    save_latents("pair.safetensors", pair, fps=24)
    Path("broken.npy").write_text("not latents")
    return tmp_path


def test_many_files_become_the_videos_that_each_becomes_alone_with_one_load(clips, loads, capsys):
    sources = ["one.safetensors", "two.safetensors", "three.safetensors"]
    assert run(decode, *sources, *VAE, "-o", "out/{name}.npy") == 0
    assert len(loads) == 1
    captured = capsys.readouterr()
    assert captured.err == ""
    *lines, frames, peak, vae, summary = captured.out.splitlines()
    assert [re.sub(r"[\d.]+ s$", "S", line) for line in lines] == [
        "one.safetensors -> out/one.npy: 1 frame, S",
        "two.safetensors -> out/two.npy: 9 frames, S",
        "three.safetensors -> out/three.npy: 17 frames, S",
    ]
    assert summary == "Inputs: 3 done, 0 skipped, 0 failed"
    assert re.fullmatch(r"Frames: 27, [\d.]+ frames per second", frames)
    assert re.fullmatch(r"Peak MLX memory: [\d.]+ MB", peak)
    assert vae == "VAE: vae.safetensors (custom, convolutional decoder)"
    assert names("out") == ["one.npy", "three.npy", "two.npy"]
    for source in sources:
        assert run(decode, source, *VAE, "-o", "alone.npy", "-q", "-y") == 0
        assert np.array_equal(np.load("alone.npy"), np.load(f"out/{Path(source).stem}.npy"))


def test_a_folder_holds_files_named_after_the_inputs_whatever_their_number(clips):
    assert run(decode, "one.safetensors", "two.safetensors", *VAE, "-o", "out/", "-q") == 0
    assert names("out") == ["one.mp4", "two.mp4"]
    assert run(decode, "two.safetensors", *VAE, "-o", "new/", "-q") == 0
    Path("there").mkdir()
    assert run(decode, "two.safetensors", *VAE, "-o", "there", "-q") == 0
    assert names("new") == names("there") == ["two.mp4"]
    assert run(decode, "two.safetensors", *VAE, "-o", "deep/{name}/take.mkv", "-q") == 0
    assert names("deep") == ["two/take.mkv"]
    assert run(decode, "one.safetensors", *VAE, "-o", "out/{name}.gif", "-q") == 0
    assert (clips / "out" / "one.gif").exists()


def test_stills_are_a_pattern_or_an_option(clips):
    stills = [f"{index:05d}.png" for index in range(9)]
    assert run(decode, "two.safetensors", *VAE, "-o", "stills/", "--stills", "-q") == 0
    assert names("stills") == stills
    assert run(decode, "two.safetensors", *VAE, "--stills", "-q") == 0
    assert names("two") == stills
    Path("00000.png").write_text("kept")  # in a folder above, which says nothing about one that is not there yet
    for output in (["shots/", "--stills"], ["more/{name}/%05d.png"]):
        assert run(decode, "one.safetensors", "two.safetensors", *VAE, "-q", "-o", *output) == 0
        assert names(output[0].split("/")[0]) == ["one/00000.png", *(f"two/{name}" for name in stills)]


def test_without_an_output_the_name_of_the_input_is_used_and_nothing_is_replaced(clips, capsys):
    assert run(decode, "two.safetensors", *VAE, "-q") == 0
    Path("one.mp4").write_text("kept")
    assert run(decode, "one.safetensors", "three.safetensors", *VAE, "--frames", ":1") == 0
    captured = capsys.readouterr()
    assert "warning: one.mp4: already exists, so the output is one-1.mp4; -y replaces it." in captured.err
    assert "one.safetensors -> one-1.mp4: 1 frame" in captured.out
    assert run(decode, "one.safetensors", *VAE, "--codec", "prores", "-q") == 0
    assert [name for name in names(".") if name.endswith((".mp4", ".mov"))] == [
        "one-1.mp4", "one.mov", "one.mp4", "three.mp4", "two.mp4"
    ]  # fmt: skip
    assert Path("one.mp4").read_text() == "kept"


def test_a_folder_of_latents_is_an_input(clips, capsys):
    Path("takes").mkdir()
    for name, clip in {"take10": "one", "take9": "two"}.items():
        os.rename(f"{clip}.safetensors", f"takes/{name}.safetensors")
    Path("takes/notes.txt").write_text("no latents")
    assert run(decode, "takes/", *VAE, "-o", "out/", "--json") == 0
    items = json.loads(capsys.readouterr().out)["items"]
    assert [(item["source"], item["output"], item["frames"]) for item in items] == [
        ("takes/take9.safetensors", "out/take9.mp4", 9), ("takes/take10.safetensors", "out/take10.mp4", 1)
    ]  # fmt: skip
    assert names("out") == ["take10.mp4", "take9.mp4"]
    assert run(preview, "takes", "-m", demo.LATENT_RGB, "-o", "small/", "-q") == 0
    assert names("small") == ["take10.mp4", "take9.mp4"]
    capsys.readouterr()
    assert run(info, "takes") == 0
    assert capsys.readouterr().out == (
        "takes/take9.safetensors: latents of 9 frames of 64x64, 24 fps; for a VAE with 64 channels\n"
        "takes/take10.safetensors: latents of 1 frame of 64x64, 24 fps; for a VAE with 64 channels\n"
    )
    os.rename("broken.npy", "takes/broken.npy")
    assert run(info, "takes") == 1
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 2
    assert [line.partition(": ")[2][:14] for line in err.splitlines()] == ["takes/broken.n", "1 of 3 files c"]
    os.rename("takes/broken.npy", "broken.npy")
    assert run(info, "takes", "--all") == 0
    assert capsys.readouterr().out.count("\nkind: latents\n") == 2
    assert run(info, "takes", "--json") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["name"] for line in lines] == ["takes/take9.safetensors", "takes/take10.safetensors"]
    assert run(encode, "out/", "--demo", "-o", "again/", "-q") == 0
    assert names("again") == ["take10.safetensors", "take9.safetensors"]
    Path("empty").mkdir()
    assert "empty: this folder has no latent files (" in failed(capsys, "empty", *VAE)


@pytest.mark.quick(1)
@pytest.mark.parametrize(("answer", "code"), [("y", 0), ("n", 1), ("", 1)])
def test_a_terminal_is_asked_before_a_file_is_replaced(clips, answer, code):
    Path("one.mp4").write_text("kept")
    command = ["mlx_ltx_vae.decode", "one.safetensors", *VAE, "-o", "one.mp4", "-q"]
    assert run_on_terminal(100, *command, typed=f"{answer}\n")[0] == code
    assert (Path("one.mp4").read_bytes() == b"kept") is (code == 1)
    _, _, shown = run_on_terminal(100, *command, typed="n\n")
    assert "one.mp4: already exists; replace it? [y/N] " in shown
    assert shown.rstrip().endswith("one.mp4: already exists; choose another name, or add -y to replace it.")


@pytest.mark.quick(1)
@pytest.mark.parametrize(("answer", "code"), [("all", 0), ("n", 1), ("y", 0), ("", 1)])
def test_a_terminal_is_asked_once_for_all_outputs_that_exist(clips, answer, code):
    for name in ("one", "two"):
        Path(f"{name}.mp4").write_text("kept")
    sources = [f"{name}.safetensors" for name in ("one", "two", "three")]
    command = ["mlx_ltx_vae.decode", *sources, *VAE, "-o", "./", "-q", "--frames", ":1"]
    result, _, shown = run_on_terminal(100, *command, typed=f"{answer}\n\n\n")
    assert result == code
    assert shown.count("[y/N]") == 1
    assert "2 of 3 outputs already exist, such as ./one.mp4; replace all of them? [y/N] " in shown
    kept = [Path(f"{name}.mp4").read_bytes() == b"kept" for name in ("one", "two")]
    assert kept == [code == 1] * 2
    assert Path("three.mp4").exists() is (code == 0)


def test_a_free_name_is_said_once_and_after_all_errors(clips, capsys):
    for name in ("one", "two", "three"):
        Path(f"{name}.mp4").write_text("kept")
    for arguments in (["missing.npy"], ["one.safetensors", "--memory-budget", "1MB"], ["one.safetensors", "-m", "no"]):
        assert failed(capsys, *VAE, *arguments)
    sources = [f"{name}.safetensors" for name in ("one", "two", "three")]
    assert run(decode, *sources, *VAE, "-q", "--frames", ":1") == 0
    assert capsys.readouterr().err == (
        "warning: one.mp4 and 2 more outputs already exist, so new ones get the next free number, such as one-1.mp4; "
        "-y replaces them.\n"
    )


def test_inputs_may_come_before_and_after_the_options(clips):
    assert run(decode, "one.safetensors", *VAE, "two.safetensors", "-o", "out/", "-q", "three.safetensors") == 0
    assert names("out") == ["one.mp4", "three.mp4", "two.mp4"]


def test_names_behind_two_dashes_may_begin_with_a_dash(clips, capsys):
    for name in ("-i.safetensors", "--help"):
        os.link("one.safetensors", name)
    assert run(decode, *VAE, "-o", "out.npy", "-q", "--", "-i.safetensors") == 0
    assert (
        run(decode, "two.safetensors", *VAE, "-o", "out/", "-q", "--", "--help", "-i.safetensors", "three.safetensors")
        == 0
    )
    assert names("out") == ["--help.mp4", "-i.mp4", "three.mp4", "two.mp4"]
    with pytest.raises(SystemExit, match="2"):
        run(decode, *VAE, "-o", "out.npy", "--")
    assert "LATENTS is missing" in capsys.readouterr().err


def test_a_broken_file_does_not_stop_the_others_and_the_exit_code_is_1(clips, capsys):
    sources = ["one.safetensors", "broken.npy", "missing.npy", "two.safetensors"]
    assert run(decode, *sources, *VAE, "-o", "out/") == 1
    captured = capsys.readouterr()
    assert "Inputs: 2 done, 0 skipped, 2 failed" in captured.out
    broken, missing, last = captured.err.splitlines()
    assert broken.startswith("error: broken.npy: is neither safetensors nor .npy nor .npz")
    assert missing == "error: missing.npy: there is no such file."
    assert last == "error: 2 of 4 inputs failed."
    assert names("out") == ["one.mp4", "two.mp4"]
    assert run(decode, *sources, *VAE, "-o", "out/", "-q", "-y") == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [broken, missing, last]


def test_an_error_in_the_middle_of_a_decode_leaves_nothing_of_that_file(clips, capsys):
    with file_size_limit(10 * 64 * 64 * 3):  # bytes of 10 frames
        assert run(decode, "three.safetensors", "one.safetensors", *VAE, "-o", "out/{name}.npy", "-q") == 1
    assert capsys.readouterr().err.startswith("error: three.safetensors: out/three.npy: cannot be written ")
    assert names("out") == ["one.npy"]


@pytest.mark.parametrize("options", [[], ["--dry-run"]])
def test_values_of_a_file_and_of_its_whole_batch_are_checked_before_anything_is_decoded(clips, capsys, loads, options):
    values = np.random.default_rng(0).standard_normal((2, 64, 20, 2, 2)).astype(np.float32)
    values[1, 5, 19, 1, 1] = np.inf
    np.save("batch.npy", values)
    np.save("clip.npy", values[1:])
    for source in ("batch.npy", "clip.npy"):
        for main, model in ((decode, VAE), (preview, ["-m", demo.LATENT_RGB])):
            line = failed(capsys, source, *model, "-o", "out.mp4", *options, main=main)
            assert line.startswith(f"error: {source}: 1 of ")
            assert f"(b, c, f, h, w) = ({int(source == 'batch.npy')}, 5, 19, 1, 1)" in line
    assert loads == []
    part = ["--frames", "0:9", "-q", "-o", "part.npy"]
    assert run(decode, "clip.npy", *VAE, *part, *options) == 0  # which needs no later latent frames


def test_values_of_all_files_are_checked_before_the_first_is_decoded(clips, capsys, before_loads):
    values = np.array(load_latents("two.safetensors")[0])
    np.save("good.npy", values)
    values[0, 0, -1] = np.nan
    np.save("spoiled.npy", values)
    before_loads(lambda _: Path("good.npy").replace("spoiled.npy"))
    assert run(decode, "one.safetensors", "two.safetensors", "spoiled.npy", *VAE, "-o", "out/", "-q") == 1
    assert capsys.readouterr().err.startswith("error: spoiled.npy: 4 of ")
    assert names("out") == ["one.mp4", "two.mp4"]


def test_errors_that_do_not_name_their_file_are_shown_with_it_and_that_of_the_checkpoint_once(clips, capsys):
    assert run(decode, "one.safetensors", "two.safetensors", *VAE, "-o", "out/", "--memory-budget", "1MB") == 1
    first, second, last = capsys.readouterr().err.splitlines()
    assert first.startswith("error: one.safetensors: ")
    assert second.startswith("error: two.safetensors: ")
    assert "the least that works" in first
    assert last == "error: 2 of 2 inputs failed."
    assert not (clips / "out").exists()
    line = failed(capsys, "one.safetensors", "two.safetensors", "-m", "nothing", "-o", "out/")
    assert line.startswith("error: nothing: there is no such file")


def test_inputs_that_fail_are_told_before_the_first_one_runs_and_before_the_question(clips, capsys):
    words = "one.safetensors", "broken.npy", "nothing.npy", *VAE, "-o", "out/"
    with redirect_stdout(StringIO()) as shown, redirect_stderr(shown):
        assert run(decode, *words) == 1
    lines = [line.partition(" ->")[0].partition(": is")[0] for line in shown.getvalue().splitlines()]
    first = ["error: broken.npy", "error: nothing.npy: there is no such file.", "one.safetensors"]
    assert lines[:3] == first
    _, _, text = run_on_terminal(200, "mlx_ltx_vae.decode", *words, typed="n\n")
    assert 0 < text.index("nothing.npy: there is no such file") < text.index("replace it? [y/N]")
    assert text.count("nothing.npy") == 1


def test_outputs_of_lists_lie_flat_in_the_folder_and_a_table_may_state_others(clips, capsys):
    for folder, name in (("x", "one"), ("y", "two")):
        (clips / "set" / folder).mkdir(parents=True)
        os.rename(f"{name}.safetensors", f"set/{folder}/{name}.safetensors")
    Path("set/clips.txt").write_text("x/one.safetensors\n\n# later\ny/two.safetensors\n")
    Path("clips.csv").write_text('path,output,caption,width\nthree.safetensors,z/last.mkv,"a, b",640\n')
    assert run(decode, "@set/clips.txt", "clips.csv", *VAE, "-o", "out/", "-q") == 0
    assert names("out") == ["one.mp4", "two.mp4", "z/last.mkv"]
    capsys.readouterr()
    assert run(decode, "set/x/", "@set/clips.txt", *VAE, "-o", "out/", "-n") == 1  # one.safetensors twice
    assert "set/x/one.safetensors: is among the inputs twice; leave one out" in capsys.readouterr().err
    assert run(decode, "set/x/", "set/y/two.safetensors", "clips.csv", *VAE, "-o", "out/", "-n", "--json") == 0
    assert json.loads(capsys.readouterr().out)["skipped"] == 3, "each input has the same name, however it is given"
    assert run(decode, "clips.csv", *VAE, "-q") == 0  # relative to the table
    assert names("z") == ["last.mkv"]
    os.rename("set/y/two.safetensors", "set/y/one.safetensors")
    line = failed(capsys, "set/x/one.safetensors", "set/y/one.safetensors", *VAE, "-o", "new/")
    assert line == (
        "error: set/x/one.safetensors and set/y/one.safetensors would both be written to new/one.mp4; rename one, or "
        "give each an output in a table (clips.csv, with the columns path and output)."
    )
    Path("both.csv").write_text("path,output\nset/x/one.safetensors,x.mp4\nset/y/one.safetensors,y.mp4\n")
    assert run(decode, "both.csv", *VAE, "-o", "new/", "-q") == 0
    assert names("new") == ["x.mp4", "y.mp4"]
    assert "no such list" in failed(capsys, "@nothing.txt", *VAE, "-o", "out/")
    Path("clips.csv").write_text("path\nthree.safetensors\n")
    assert "has no output" in failed(capsys, "clips.csv", *VAE)


def test_same_outputs_are_refused_before_anything_runs(clips, capsys):
    save_latents("pair-0.safetensors", load_latents("one.safetensors")[0])
    line = failed(capsys, "one.safetensors", "pair-0.safetensors", "pair.safetensors", *VAE, "-o", "out/")
    assert line.startswith("error: pair-0.safetensors and pair.safetensors would both be written to out/pair-0.mp4")


@pytest.mark.parametrize("output", ["../precious.npy", "./", "%05d.png", "link.npy"])
def test_a_table_writes_nowhere_but_into_the_folder_of_outputs(clips, capsys, output, loads):
    """The batch of two would become `out-0/` and `out-1/`, beside `out/`."""
    Path("precious.npy").write_text("kept")
    Path("out").mkdir()
    Path("out/link-1.npy").symlink_to(clips / "precious.npy")
    two, _ = load_latents("two.safetensors")
    save_latents("pair.safetensors", mx.concatenate([two, two]))
    Path("clips.csv").write_text(f"path,output\none.safetensors,one.mp4\npair.safetensors,{output}\n")
    line = failed(capsys, "clips.csv", *VAE, "-o", "out/")
    assert line.startswith("error: clips.csv, line 3: its output ")
    assert "is not inside the folder out; " in line
    assert Path("precious.npy").read_text() == "kept"
    assert loads == []


@pytest.mark.quick(1)
@pytest.mark.parametrize("output", ["stills/", "stills/%05d.tif"])
def test_a_batch_of_single_frames_becomes_stills_in_one_folder(clips, output, capsys):
    """Each is the still of its latents alone, also beside stills of other names."""
    latents = mx.random.normal((3, 64, 1, 2, 2), key=mx.random.key(1))
    save_latents("batch.safetensors", latents)
    command = ["batch.safetensors", *VAE, "-o", output, *(["--stills"] if output == "stills/" else [])]
    assert run(decode, *command) == 0
    ending, folder = ".tif" if "tif" in output else ".png", "stills"
    assert names(folder) == [f"{index:05d}{ending}" for index in range(3)]
    assert f"/00000{ending} to {folder}/00002{ending}: 3 stills of 64x64, in " in capsys.readouterr().out
    vae = VideoVAE.from_pretrained(demo.VAE)
    for index in range(3):
        (expected,) = vae.decode_uint8(latents[index : index + 1])
        assert np.array_equal(np.array(Image.open(f"{folder}/{index:05d}{ending}")), expected)
    assert failed(capsys, *command).endswith("or add -y to replace it.")
    assert run(decode, "batch.safetensors", *VAE, "-o", "clip.npy", "-q") == 0
    assert len(np.load("clip-2.npy")) == 1


def test_a_batch_in_a_file_becomes_several_videos(clips, capsys):
    assert run(decode, "one.safetensors", "pair.safetensors", *VAE, "-o", "out/", "--json") == 0
    one, pair = json.loads(capsys.readouterr().out)["items"]
    assert (one["frames"], one["output"]) == (1, "out/one.mp4")
    assert (pair["frames"], pair["output"]) == (2, ["out/pair-0.mp4", "out/pair-1.mp4"])
    assert names("out") == ["one.mp4", "pair-0.mp4", "pair-1.mp4"]


def test_existing_outputs_are_skipped_and_nothing_is_loaded_for_them(clips, loads, capsys):
    arguments = ["one.safetensors", "pair.safetensors", "two.safetensors", *VAE, "-o", "out/", "--skip-existing"]
    (clips / "out").mkdir()
    for name in ("one", "pair-0"):
        Path(f"out/{name}.mp4").write_text("kept")
    assert run(decode, *arguments) == 0
    first, *_, summary = capsys.readouterr().out.splitlines()
    assert first == "one.safetensors: skipped, found out/one.mp4"
    assert summary == "Inputs: 2 done, 1 skipped, 0 failed"
    assert Path("out/one.mp4").read_text() == "kept"
    assert Path("out/pair-0.mp4").read_text() == "kept"
    assert Path("out/pair-1.mp4").stat().st_size > 100, "the missing half of a batch is decoded"
    loads.clear()
    before = {path: path.stat().st_mtime_ns for path in (clips / "out").iterdir()}
    assert run(decode, *arguments, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["skipped"] == 3
    assert report["items"][1] == {
        "source": "pair.safetensors",
        "output": ["out/pair-0.mp4", "out/pair-1.mp4"],
        "skipped": True,
    }
    assert loads == []
    assert {path: path.stat().st_mtime_ns for path in (clips / "out").iterdir()} == before


def test_a_single_input_can_be_skipped_too(clips, loads, capsys):
    arguments = ["two.safetensors", *VAE, "-o", "stills/", "--stills", "--skip-existing"]
    assert run(decode, *arguments) == 0
    assert len(loads) == 1
    capsys.readouterr()
    assert run(decode, *arguments) == 0
    assert capsys.readouterr().out == "two.safetensors: skipped, found stills/\n"
    assert run(decode, *arguments, "--json") == 0
    skipped = {"source": "two.safetensors", "output": "stills/", "skipped": True}
    assert json.loads(capsys.readouterr().out) == skipped
    assert len(loads) == 1


def test_outputs_are_not_replaced_where_that_is_unwanted(clips, loads, capsys):
    Path("pair-1.mp4").write_text("kept")
    assert run(decode, "pair.safetensors", *VAE, "-o", "pair.mp4", "--dry-run", "--json") == 0
    capsys.readouterr()
    assert failed(capsys, "pair.safetensors", *VAE, "-o", "pair.mp4").startswith("error: pair-1.mp4: already exists; ")
    assert run(decode, "one.safetensors", *VAE, "-o", "pair-1.mp4", "-q") == 1
    assert loads == []
    (clips / "out").mkdir()
    for name in ("one.mp4", "pair-0.mp4"):
        Path("out", name).write_text("kept")
    Path("two.mp4").write_text("a file of that name in a folder above is none")
    sources = ["one.safetensors", "two.safetensors", "pair.safetensors"]
    capsys.readouterr()
    existing = (
        "error: out/one.mp4: already exists, and 1 more of 4 outputs; add -y to replace them, or -n to skip them."
    )
    assert failed(capsys, *sources, "broken.npy", *VAE, "-o", "out/", "--json") == existing
    assert loads == []
    assert failed(capsys, *sources[:2], *VAE, "-o", "out/") == (
        "error: out/one.mp4: already exists; add -y to replace it, or -n to skip it."
    )
    assert run(decode, *sources, *VAE, "-o", "out/", "-q", "-n") == 0
    assert names("out") == ["one.mp4", "pair-0.mp4", "pair-1.mp4", "two.mp4"]
    assert Path("out/pair-0.mp4").read_text() == "kept"
    stills = [*sources[:2], *VAE, "-o", "stills/", "--stills"]
    assert run(decode, *stills, "-q") == 0
    assert failed(capsys, *stills).startswith("error: stills/one/00000.png: already exists, and 1 more of 2 outputs; ")
    assert run(decode, "two.safetensors", "three.safetensors", *VAE, "-o", "a/b/{name}.mp4", "-q") == 0
    for _ in range(2):  # stills replace nothing, whatever else is in the folder
        assert run(decode, "one.safetensors", *VAE, "-o", "out/%05d.png", "-q") == 0
        os.rename("out/00000.png", "out/first.png")


def test_json_of_many_has_the_report_of_each_and_its_error(clips, capsys):
    assert run(decode, "two.safetensors", *VAE, "-o", "alone.mp4", "--json") == 0
    alone = json.loads(capsys.readouterr().out)
    sources = ("two.safetensors", "broken.npy", "one.safetensors")
    assert run(decode, *sources, *VAE, "--mode", "single", "-o", "out/", "--json") == 1  # memory grows with the clip
    captured = capsys.readouterr()
    report = json.loads(captured.out)
    two, broken, one = report["items"]
    assert set(two) == {"source", *alone}
    for key in ("frames", "width", "height", "fps"):
        assert two[key] == alone[key]
    assert two["plan"]["latent_shape"] == alone["plan"]["latent_shape"]
    assert set(broken) == {"source", "output", "error"}
    assert broken["error"].startswith("broken.npy: is neither")
    assert (report["frames"], report["done"], report["failed"], report["skipped"]) == (10, 2, 1, 0)
    assert report["seconds"] >= one["seconds"] + two["seconds"]
    assert report["peak_memory_bytes"] == max(one["peak_memory_bytes"], two["peak_memory_bytes"])
    assert one["peak_memory_bytes"] < two["peak_memory_bytes"], "each of its own item"


def test_dry_run_plans_each_and_makes_no_folder(clips, loads, capsys):
    arguments = ["one.safetensors", "pair.safetensors", "broken.npy", *VAE, "-o", "a/b/", "--dry-run"]
    assert run(decode, *arguments) == 1
    one, pair, vae, summary = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"one.safetensors -> a/b/one.mp4: 1 frame of 64x64, exact by time, peak [\d.]+ MB", one)
    assert pair.startswith("pair.safetensors -> a/b/pair-0.mp4, a/b/pair-1.mp4: 1 frame")
    assert summary == "Inputs: 2 planned, 0 skipped, 1 failed"
    assert vae == "VAE: vae.safetensors (custom, convolutional decoder)"
    assert run(decode, *arguments, "--json") == 1
    report = json.loads(capsys.readouterr().out)
    assert report["items"][0]["plan"]["mode"] == "exact"
    assert set(report) == {"items", "planned", "skipped", "failed", "vae"}
    assert report["vae"] == {"file": str(demo.VAE), "generation": "custom", "decoder": "convolutional"}
    assert run(decode, "one.safetensors", "two.safetensors", *VAE, "--dry-run") == 0
    assert capsys.readouterr().out.startswith("one.safetensors: 1 frame of 64x64")
    assert not (clips / "a").exists()
    assert loads == []


def test_pipes_are_refused_among_many_and_read_when_alone(clips, capsys):
    os.mkfifo("pipe")
    assert run(decode, "pipe", "one.safetensors", *VAE, "-o", "out/", "-q") == 1
    assert capsys.readouterr().err.startswith("error: pipe: is a pipe, which can be read only once; ")
    with subprocess.Popen(["sh", "-c", "cat one.safetensors > pipe"]) as writer:
        assert run(decode, "pipe", *VAE, "-o", "out.mp4", "-q", "--skip-existing") == 0
    assert writer.returncode == 0
    assert (clips / "out.mp4").exists()


def test_a_clock_that_stands_still_is_no_error(clips, capsys, monkeypatch):
    monkeypatch.setattr("time.perf_counter", lambda: 5.0)
    assert run(decode, "two.safetensors", *VAE, "-o", "alone.mkv") == 0
    assert run(decode, "one.safetensors", "two.safetensors", *VAE, "-o", "out/") == 0
    assert run(encode, "alone.mkv", *VAE, "-o", "alone.safetensors") == 0
    assert capsys.readouterr().out.count("speed unknown") == 1
    assert (clips / "alone.safetensors").exists()


def test_debug_shows_the_traceback_of_an_item(clips, capsys):
    assert run(decode, "broken.npy", "one.safetensors", *VAE, "-o", "out/", "--debug") == 1
    assert capsys.readouterr().err.count("Traceback") == 2


def test_what_exists_is_skipped_before_it_is_read(clips, capsys):
    Path("out").mkdir()
    Path("out/broken.mp4").write_bytes(b"a video")
    assert run(decode, "broken.npy", "one.safetensors", *VAE, "-o", "out/", "--skip-existing") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "broken.npy: skipped, found out/broken.mp4"
    assert lines[1].startswith("one.safetensors -> out/one.mp4: 1 frame")
    assert Path("out/broken.mp4").read_bytes() == b"a video"


def test_one_progress_bar_counts_the_frames_of_all(clips):
    sources = ["one.safetensors", "two.safetensors", "broken.npy"]
    code, out, shown = run_on_terminal(100, "mlx_ltx_vae.decode", *sources, *VAE, "-o", "out/")
    assert code == 1
    assert "10/10" in shown
    assert "2 of 3 two.mp4 " in shown
    assert out.splitlines()[0].startswith("one.safetensors -> out/one.mp4: 1 frame")


_DECODE_AND_ANNOUNCE = """
import sys
from mlx_ltx_vae.decode import main
from mlx_ltx_vae import FrameChunk
convert = FrameChunk.to_frames
calls = []
def announced(chunk, *given):
    print("decoding", flush=True)
    calls.append(chunk.start)
    if len(calls) == 2:
        sys.stdin.read()  # until the signal has come
    return convert(chunk, *given)
FrameChunk.to_frames = announced
sys.exit(main())
"""


def test_interrupted_keeps_what_is_whole_and_leaves_nothing_partial(clips):
    latents, _ = load_latents(demo.LATENTS)
    save_latents("long.safetensors", latents, fps=24)
    arguments = ["one.safetensors", "long.safetensors", "two.safetensors", *VAE, "-o", "out/", "-q"]
    process = subprocess.Popen(
        [sys.executable, "-c", _DECODE_AND_ANNOUNCE, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    for _ in range(2):  # the frame of the first, and the first frames of the second
        assert process.stdout.readline() == "decoding\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.strip() == "interrupted"
    assert names("out") == ["one.mp4"]
