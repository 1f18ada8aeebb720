"""`decode --keyframes`: which keyframes reach the decoder, and what reports say of them."""

import json

import mlx.core as mx
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from commands import decode as main
from commands import preview
from mlx_ltx_vae import FrameChunk, Keyframes, VideoVAE, demo, opened_vae
from mlx_ltx_vae.latents.keyframes import describe_keyframes
from mlx_ltx_vae.pipeline.decode import DecodePipeline
from mlx_ltx_vae.pipeline.execution import ExecutionState

RNG = np.random.default_rng(0)
LATENTS = RNG.normal(size=(2, 8, 2, 1, 1)).astype(np.float32)
STILLS = RNG.normal(size=(2, 8, 2, 1, 1)).astype(np.float32)
FRAMES = (8, 3)


@pytest.fixture(scope="module")
def model(golden):
    return str(golden("ltx2_5_keyframes_gated").checkpoint)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """clip.npy without keyframes, own.safetensors with some, others.npz with others, and two.safetensors of a batch."""
    monkeypatch.chdir(tmp_path)
    numbers = np.array(FRAMES, np.int64)
    np.save("clip.npy", LATENTS[:1])
    own = {"latents": LATENTS[:1], "keyframe_latents": STILLS[:1], "keyframe_frame_indices": numbers}
    save_file(own, "own.safetensors")
    save_file({"latents": LATENTS, "keyframe_latents": STILLS, "keyframe_frame_indices": numbers}, "two.safetensors")
    np.savez("others.npz", keyframe_latents=STILLS[1:, :, :1].astype(np.float16), keyframe_frame_indices=[5])
    return tmp_path


class BlackStream(list):
    """In place of a decode, which takes time."""

    def __init__(self, chunks):
        super().__init__(chunks)
        self.state = ExecutionState()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


@pytest.fixture
def seen(monkeypatch):
    """The keyframes of each stream, as (latents, frame numbers), or None; and those of its plan."""
    found = []

    def stream(self, latents, plan):
        keyframes = self.options.keyframes
        found.append((keyframes and (np.array(keyframes.latents), keyframes.frames), plan.keyframes))
        return BlackStream([FrameChunk(0, mx.zeros((1, plan.num_frames, plan.height, plan.width, 3)))])

    monkeypatch.setattr(DecodePipeline, "stream", stream)
    return found


def run(*arguments, code=0):
    assert main([*map(str, arguments), "--steps", "1", "-y"]) == code


def assert_seen(found, stills, frames):
    (latents, numbers), planned = found
    assert numbers == planned == frames
    np.testing.assert_allclose(latents, stills, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "stills", "frames", "said"),
    [
        (["clip.npy", "--keyframes", "own.safetensors"], STILLS[:1], FRAMES, ", 2 keyframes at frames 8, 3, in "),
        (["own.safetensors"], STILLS[:1], FRAMES, ", 2 keyframes at frames 8, 3, in "),
        (
            ["own.safetensors", "--keyframes", "others.npz"],
            STILLS[1:, :, :1].astype(np.float16),
            (5,),
            ", 1 keyframe at frame 5, in ",
        ),
        (["own.safetensors", "--frames", "2:4"], STILLS[:1], FRAMES, "2 frames of 32x32, 0.08 s at 24 fps, 2 keyfram"),
    ],
)
def test_keyframes_are_those_of_the_option_or_of_the_latent_file(
    model, seen, capsys, tmp_path, arguments, stills, frames, said
):
    run(*arguments, "-m", model, "-o", "out.npy")
    assert said in capsys.readouterr().out
    assert_seen(seen[0], stills, frames)
    assert len(np.load("out.npy")) == (2 if "--frames" in arguments else 9)
    run(*arguments, "-m", model, "-o", "out.npy", "--json")
    assert json.loads(capsys.readouterr().out)["keyframes"] == list(frames)


def test_a_decode_with_keyframes_is_that_of_python(model, capsys):
    np.save("short.npy", LATENTS[:1, :, :1])
    run("short.npy", "--keyframes", "own.safetensors", "-m", model, "-o", "out.npy", "--mode", "single")
    assert "1 frame of 32x32, 0.04 s at 24 fps, 2 keyframes at frames 8, 3, in " in capsys.readouterr().out
    vae, keyframes = VideoVAE.from_pretrained(model, encoder=False), Keyframes(STILLS[:1], FRAMES)
    plan = vae.plan((1, 8, 1, 1, 1), mode="single", steps=1, keyframes=keyframes)
    expected = vae.decode_uint8(LATENTS[:1, :, :1], plan, keyframes=keyframes)
    assert np.abs(np.load("out.npy").astype(int) - expected).max() <= 1
    without = vae.decode_uint8(LATENTS[:1, :, :1], vae.plan((1, 8, 1, 1, 1), mode="single", steps=1))
    assert np.abs(without.astype(int) - expected).max() > 20


def test_without_keyframes_nothing_is_said_of_them(model, seen, capsys):
    run("clip.npy", "-m", model, "-o", "out.npy")
    assert "keyframes" not in capsys.readouterr().out.replace("ltx2_5_keyframes_gated", "")
    run("clip.npy", "-m", model, "-o", "out.npy", "--json")
    assert json.loads(capsys.readouterr().out)["keyframes"] == []
    assert seen == [(None, ())] * 2


def test_each_video_of_a_batch_has_its_own(model, seen, capsys):
    run("two.safetensors", "-m", model, "-o", "out.npy")
    assert "2 videos of 9 frames of 32x32" in (said := capsys.readouterr().out)
    assert ", 2 keyframes at frames 8, 3, " in said
    for index, found in enumerate(seen):
        assert_seen(found, STILLS[index : index + 1], FRAMES)
    assert len(seen) == 2


def test_each_of_several_inputs_has_those_of_its_file(model, seen, capsys):
    run("clip.npy", "own.safetensors", "-m", model, "-o", "{name}-out.npy")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("clip.npy -> clip-out.npy: 9 frames, ")
    assert lines[1].startswith("own.safetensors -> own-out.npy: 9 frames, 2 keyframes, ")
    assert seen[0] == (None, ())
    assert_seen(seen[1], STILLS[:1], FRAMES)
    run("clip.npy", "own.safetensors", "-m", model, "-o", "{name}-out.npy", "--json")
    items = json.loads(capsys.readouterr().out)["items"]
    assert [item["keyframes"] for item in items] == [[], list(FRAMES)]


@pytest.mark.parametrize("says_so", ["--unnormalized", "the files"])
def test_unnormalized_keyframes_are_normalized_with_the_statistics_of_the_vae(model, seen, says_so):
    tensors = load_file(model)
    mean, std = (
        tensors[f"vae.per_channel_statistics.{name}-of-means"].reshape(-1, 1, 1, 1) for name in ("mean", "std")
    )
    metadata = {"normalized": "false"} if says_so == "the files" else {}
    save_file({"latents": LATENTS[:1] * std + mean}, "clip.safetensors", metadata)
    stills = {"keyframe_latents": STILLS[:1] * std + mean, "keyframe_frame_indices": np.array(FRAMES)}
    save_file(stills, "keys.safetensors", metadata)
    more = [says_so] if says_so == "--unnormalized" else []
    run("clip.safetensors", "--keyframes", "keys.safetensors", "-m", model, "-o", "out.npy", *more)
    assert_seen(seen[0], STILLS[:1], FRAMES)


def test_a_dry_run_plans_for_the_keyframes(model, monkeypatch, capsys):
    plans, plan_decode = [], opened_vae.plan_decode
    monkeypatch.setattr(opened_vae, "plan_decode", lambda *args: plans.append(plan_decode(*args)) or plans[-1])
    for source, more in (("clip.npy", []), ("own.safetensors", []), ("clip.npy", ["--keyframes", "others.npz"])):
        run(source, "-m", model, "--dry-run", *more)
        assert ("keyframes at " in capsys.readouterr().out) is (plans[-1].keyframes != ())
    run("clip.npy", "own.safetensors", "-m", model, "--dry-run")  # of one shape, whose plans are not shared
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("clip.npy: 9 frames of 32x32, exact by ")
    assert lines[1].startswith("own.safetensors: 9 frames of 32x32, 2 keyframes, exact by ")
    assert [plan.keyframes for plan in plans] == [(), FRAMES, (5,), (), FRAMES]


def test_a_decoder_that_takes_no_keyframes_says_that_they_are_ignored(golden, capsys):
    conv = ["-m", str(golden("small_ltx2_3").checkpoint), "-y", "-o", "out.npy"]
    for arguments, name in (
        (["own.safetensors"], "own.safetensors"),
        (["clip.npy", "--keyframes", "others.npz"], "others.npz"),
    ):
        assert main([*arguments, *conv]) == 0
        said = capsys.readouterr()
        assert said.err.count(f"warning: {name}: this VAE's decoder takes no keyframes, so they are ignored") == 1
        assert "keyframe" not in said.out
    assert main(["clip.npy", *conv]) == 0
    assert capsys.readouterr().err == ""


def test_a_preview_says_that_it_ignores_keyframes(capsys):
    latents = RNG.normal(size=(1, 64, 1, 2, 2)).astype(np.float32)
    save_file({"latents": latents, "keyframe_latents": np.ones(3, np.float32)}, "bad.safetensors")
    assert preview(["bad.safetensors", "-m", str(demo.LATENT_RGB), "-o", "out.npy"]) == 0
    said = capsys.readouterr().err
    assert said.startswith("warning: bad.safetensors: this VAE's decoder takes no keyframes, so they are ignored")
    assert said.count("\n") == 1


def test_a_decode_and_its_dry_run_tell_of_a_checkpoint_that_does_not_tag_keyframes(model, capsys):
    tensors = {name: array for name, array in load_file(model).items() if not name.endswith("type_emb")}
    with safe_open(model, "np") as file:
        save_file(tensors, "untagged.safetensors", file.metadata())
    np.savez("short.npz", latents=LATENTS[:1, :, :1], keyframe_latents=STILLS[:1], keyframe_frame_indices=FRAMES)
    for more in (["--dry-run"], ["-o", "out.npy"]):
        run("short.npz", "-m", "untagged.safetensors", *more)
        assert capsys.readouterr().err.count("this checkpoint has no type_emb") == 1
        run("short.npz", "-m", model, *more)
        assert capsys.readouterr().err == ""


def test_own_keyframes_that_others_replace_are_named(model, seen, capsys):
    run("own.safetensors", "--keyframes", "others.npz", "-m", model, "-o", "out.npy")
    said = capsys.readouterr().err
    assert said == "warning: own.safetensors: its keyframes are not used, since --keyframes names others.\n"


@pytest.mark.parametrize("ending", ["npz", "safetensors"])
def test_what_a_pipeline_returns_is_decoded_without_its_padding(model, seen, capsys, ending):
    """By the names of diffusers' output. The canvas is padded to a keyframe behind the video."""
    canvas = {"frames": np.repeat(LATENTS[:1], 2, axis=2), "keyframes": STILLS[:1], "audio": np.ones((1, 8, 4, 16))}
    canvas["keyframe_positions"] = np.array([4, 20])
    name = f"canvas.{ending}"
    for stated in ({"num_frames": "17"}, {}):
        save_file(canvas, name, stated) if ending == "safetensors" else np.savez(name, **canvas, **stated)
        run(name, "-m", model, "-o", "out.npy")
        said = capsys.readouterr().err
        assert ("states no num_frames, so padding at the end that its pipeline" in said) is (not stated)
        for text in (
            "states 17 frames, which leaves out 1",
            "the 17 frames of its video leave out 1",
        ):
            assert (f"{name}: {text}" in said) is bool(stated)
        assert len(np.load("out.npy")) == (17 if stated else 25)
        assert_seen(seen.pop(), STILLS[:1, :, : 1 if stated else 2], (4,) if stated else (4, 20))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["two.safetensors", "--keyframes", "own.safetensors"],
            r"own.safetensors: keyframe latents have the shape (1,",
        ),
        (["clip.npy", "--keyframes", "missing.npz"], "missing.npz: there is no such file."),
        (
            ["clip.npy", "--keyframes", "clip.npy"],
            "clip.npy: has no keyframes in the video; name a file with the tensors",
        ),
        (["bad.safetensors"], "bad.safetensors: has keyframe_latents and no keyframe_frame_indices"),
        (["infinite.npz"], "infinite.npz: keyframe latents: 5 of 16 values are not finite"),
        (["others.npz"], "others.npz: has keyframes and no latents; give it as --keyframes beside the latents of a"),
    ],
)
def test_bad_keyframes_are_an_error_of_one_line_and_leave_no_file(model, capsys, folder, arguments, words):
    save_file({"latents": LATENTS[:1], "keyframe_latents": STILLS[:1]}, "bad.safetensors")
    np.savez("infinite.npz", latents=LATENTS[:1], keyframe_latents=np.where(STILLS > 1, np.inf, STILLS)[:1],
             keyframe_frame_indices=FRAMES)  # fmt: skip
    before = sorted(folder.iterdir())
    run(*arguments, "-m", model, "-o", "out.npy", code=1)
    said = capsys.readouterr().err
    assert said.startswith(f"error: {words}")
    assert said.count("\n") == 1
    assert sorted(folder.iterdir()) == before


def test_the_file_of_the_keyframes_is_not_replaced(model, capsys, folder):
    folder.joinpath("out.npy").symlink_to("others.npz")
    before = folder.joinpath("others.npz").read_bytes()
    run("clip.npy", "--keyframes", "others.npz", "-m", model, "-o", "out.npy", code=1)
    assert "out.npy: is one of the inputs, which are never replaced" in capsys.readouterr().err
    assert folder.joinpath("others.npz").read_bytes() == before


def test_the_first_frame_numbers_of_many_keyframes_are_shown():
    assert describe_keyframes(range(24, 192, 24)) == "7 keyframes at frames 24, 48, 72, 96, 120, 144, ..."
    assert describe_keyframes(range(24, 168, 24)) == "6 keyframes at frames 24, 48, 72, 96, 120, 144"
