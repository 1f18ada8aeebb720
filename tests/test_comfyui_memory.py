"""Memory and sampling: what examples/comfyui shares with ComfyUI, with stand-ins for ComfyUI's modules."""

import gc
import logging
import sys
import threading

import numpy as np
import pytest
from PIL import Image

from comfyui_cases import LATENTS, freed, latent
from conftest import active_memory
from mlx_ltx_vae import Keyframes, LatentsError, PreviewVAE, VideoVAE
from test_comfyui_nodes import images, write_tiny_decoder
from video_files import FrameFormat, FrameOutput

SMALL = "vae/ltx/small.safetensors"


def test_comfyui_frees_as_much_as_the_plan_takes_when_all_is_checked(comfy, execute, loads, checkpoint):
    plan = VideoVAE.from_pretrained(checkpoint).plan(LATENTS.shape, bit_depth=8)
    loads.clear()
    execute("LTXDecodeToVideoMLX", latent=latent(comfy))
    assert freed(comfy) == [plan.peak_bytes]
    assert {call[1] for call in comfy.management.calls} == {threading.current_thread().name}
    execute("LTXEncodeMLX", frames=images(comfy, 1))
    execute("LTXDecodeFramesMLX", latent=latent(comfy))
    floats = [FrameOutput(FrameFormat("rgbf32le"))]
    plan = VideoVAE.from_pretrained(checkpoint).plan(LATENTS.shape, outputs=floats, joined=True)
    assert plan.memory.result == 17 * 64 * 96 * 3 * 4
    assert freed(comfy)[2:] == [plan.peak_bytes]
    assert len(loads) == 2  # what ComfyUI was asked for has not freed what is in use


def test_unloading_the_models_of_comfyui_frees_the_networks(comfy, execute, loads):
    gc.collect()
    before = active_memory()
    execute("LTXDecodeToVideoMLX", latent=latent(comfy))
    assert active_memory() > before + 10**6
    comfy.management.free_memory(2**29, "device")  # half of what is free
    assert comfy.host.networks
    comfy.management.unload_all_models()
    gc.collect()
    assert active_memory() <= before + 10**5
    assert freed(comfy)[1:] == [2**29, 1e30]  # ComfyUI's own models too
    execute("LTXDecodeToVideoMLX", latent=latent(comfy))
    assert len(loads) == 2


def test_networks_stay_as_long_as_their_bytes_fit(comfy, execute, monkeypatch):
    loaded, from_pretrained = [], VideoVAE.from_pretrained.__func__

    def load(kind, path, **options):
        loaded.append(kind.__name__ + (" encoder" if options["encoder"] else ""))
        return from_pretrained(kind, path, **options)

    monkeypatch.setattr(VideoVAE, "from_pretrained", classmethod(load))
    path = comfy.base / "models" / "vae" / "tiny.safetensors"
    write_tiny_decoder(path)

    def run():
        execute("LTXDecodeFramesMLX", latent=latent(comfy))
        execute("LTXEncodeMLX", frames=images(comfy, 1))
        shown = {"latent": latent(comfy, np.zeros((1, 128, 1, 2, 2), np.float32)), "fps": 24.0}
        execute("LTXPreviewMLX", decoder="vae/tiny.safetensors", show="clip", **shown)

    run()
    run()
    assert loaded == ["VideoVAE", "VideoVAE encoder", "PreviewVAE"]
    loaded.clear()
    monkeypatch.setattr(comfy.host.networks, "max_bytes", 1)  # of which one network stays
    run()
    run()
    assert loaded == ["VideoVAE encoder", "PreviewVAE", "VideoVAE", "VideoVAE encoder", "PreviewVAE"]
    path.unlink()


def test_a_cancelled_job_does_not_wait_for_its_call(comfy):
    with pytest.raises(comfy.management.InterruptProcessingException):
        comfy.host.run(lambda job: job.call(raise_interrupt, comfy.management), node_id=None)
    assert comfy.host.run(lambda job: job.call(threading.get_ident), node_id=None) == threading.get_ident()


def raise_interrupt(management):
    raise management.InterruptProcessingException


def test_noise_and_timestep_are_those_of_the_decode(comfy, execute, golden):
    path = comfy.base / "models" / "vae" / "old.safetensors"
    path.symlink_to(golden("small_ltxv_0_9_1").checkpoint)
    vae = VideoVAE.from_pretrained(path)
    latents = np.random.default_rng(0).normal(size=(1, vae.config.latent_channels, 2, 2, 2)).astype(np.float32)
    results = []
    for given, options in (
        ({}, {}),
        ({"decoder_seed": 5}, {"seed": 5}),
        ({"timestep": 0.3, "noise_scale": 0.2}, {"timestep": 0.3, "noise_scale": 0.2}),
        ({"timestep": 0.3, "convention": "diffusers"}, {"timestep": 0.3, "like": "diffusers"}),
    ):
        found = execute(
            "LTXDecodeFramesMLX", latent=latent(comfy, latents), vae="vae/old.safetensors", options=given
        ).array
        expected = np.array(vae.decode(latents, **options))[0].transpose(1, 2, 3, 0)
        np.testing.assert_allclose(found, np.clip((expected + 1) / 2, 0, 1), atol=1e-5)
        results.append(found)
    assert all(np.abs(other - results[0]).max() > 1e-3 for other in results[1:])
    path.unlink()


@pytest.mark.slow
def test_keyframes_are_those_of_the_decode(comfy, execute, golden):
    path = comfy.base / "models" / "vae" / "diffusion.safetensors"
    path.symlink_to(golden("ltx2_5_keyframes_gated").checkpoint)
    rng, vae = np.random.default_rng(0), VideoVAE.from_pretrained(path)
    latents, stills = rng.normal(size=(2, 1, 8, 2, 2, 2)).astype(np.float32)
    given = {"latent": latent(comfy, latents), "vae": "vae/diffusion.safetensors"}
    keyframes = {"keyframes": latent(comfy, stills), "keyframe_frames": "8, 0"}
    found = execute("LTXDecodeFramesMLX", **given, options=keyframes).array
    expected = np.array(vae.decode(latents, keyframes=Keyframes(stills, [8, 0])))[0].transpose(1, 2, 3, 0)
    np.testing.assert_allclose(found, np.clip((expected + 1) / 2, 0, 1), atol=1e-5)
    assert np.abs(found - execute("LTXDecodeFramesMLX", **given).array).max() > 1e-2
    with pytest.raises(LatentsError, match="keyframe_frames is '8; 0'; write frame numbers such as 24, 48, 72"):
        execute("LTXDecodeFramesMLX", **given, options=keyframes | {"keyframe_frames": "8; 0"})
    with pytest.raises(LatentsError, match="one frame number"):
        execute("LTXDecodeFramesMLX", **given, options=keyframes | {"keyframe_frames": ""})
    for node in ("LTXDecodeFramesMLX", "LTXDecodeToVideoMLX"):
        with pytest.raises(LatentsError, match=r"keyframe_frames has 9, and the last frame of the video is 8;"):
            execute(node, **given, options=keyframes | {"keyframe_frames": "0 9"})
    path.unlink()


class Sampler:
    """What ComfyUI samples with: it calls back after each step, as `CFGGuider.outer_sample` does."""

    def __init__(self, comfy, estimates, shapes):
        self.comfy, self.estimates, self.shapes, self.steps = comfy, estimates, shapes, []

    def __call__(self, noise, latent_image, sampler, sigmas, denoise_mask, callback, disable_pbar, seed, latent_shapes):
        assert (noise, sampler, denoise_mask, disable_pbar, seed, latent_shapes) == (1, 2, 3, True, 7, self.shapes)
        for step, estimate in enumerate(self.estimates):
            callback(step, self.comfy.torch.Tensor(estimate), None, len(self.estimates))
        return "sampled"

    def run(self, model):
        ((wrapper,),) = model.wrappers["outer_sample"].values()
        image, own = self.comfy.torch.Tensor(self.estimates[0]), lambda step, *_: self.steps.append(step)
        sigmas = [1.0] * (len(self.estimates) + 1)
        return wrapper(self, 1, image, 2, sigmas, 3, own, True, 7, latent_shapes=self.shapes)


def model_of(execute, decoder, pictures=4):
    from comfy.model_patcher import ModelPatcher

    before = ModelPatcher("ltx", "gpu", "cpu")
    model = execute("LTXSamplingPreviewMLX", model=before, decoder=decoder, pictures=pictures)
    assert not before.wrappers and model.model == "ltx"
    return model


@pytest.mark.parametrize("has_audio", [False, True])
def test_each_step_of_a_sampler_shows_pictures_of_the_estimate(comfy, execute, has_audio):
    path = comfy.base / "models" / "vae" / "tiny.safetensors"
    write_tiny_decoder(path)
    clips = np.random.default_rng(0).normal(size=(2, 1, 128, 5, 2, 3)).astype(np.float32)
    shapes, estimates = [clips[0].shape], clips
    if has_audio:  # as ComfyUI packs them
        shapes = [*shapes, (1, 8, 6, 16)]
        estimates = np.concatenate([clips.reshape(2, 1, 1, -1), np.ones((2, 1, 1, 8 * 6 * 16), np.float32)], axis=-1)
    sampler = Sampler(comfy, estimates, shapes if has_audio else None)
    assert sampler.run(model_of(execute, "vae/tiny.safetensors")) == "sampled"
    assert sampler.steps == [0, 1]
    for clip, (_, value, total, (kind, picture, _), thread), step in zip(
        clips, comfy.bars.updates, (1, 2), strict=True
    ):
        assert (value, total, kind, thread) == (step, 2, "JPEG", threading.current_thread().name)
        stills = np.array(PreviewVAE.from_pretrained(path).decode_stills(clip))[0].transpose(1, 2, 3, 0)
        first, second, third, fourth = (np.rint((stills[at] + 1) * 127.5) for at in (0, 1, 3, 4))
        expected = np.concatenate([np.concatenate([first, second], 1), np.concatenate([third, fourth], 1)])
        np.testing.assert_allclose(np.asarray(picture), expected, atol=1)
    assert not freed(comfy)
    path.unlink()


def test_a_projection_makes_pictures_too_and_a_decoder_that_does_not_fit_ends_no_sampling(comfy, execute, caplog):
    estimates = np.zeros((2, 1, 64, 3, 4, 5), np.float32)
    sampler = Sampler(comfy, estimates, None)
    assert sampler.run(model_of(execute, "demo preview", pictures=3)) == "sampled"
    (_, _, _, (_, picture, _), _), _ = comfy.bars.updates
    assert isinstance(picture, Image.Image) and picture.size == (2 * 5 * 8, 2 * 4 * 8)

    comfy.bars.updates.clear()
    sampler = Sampler(comfy, estimates[:, :, :32], None)
    with caplog.at_level(logging.WARNING):
        assert sampler.run(model_of(execute, "demo preview")) == "sampled"
    assert sampler.steps == [0, 1] and not comfy.bars.updates
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "LTX Sampling Preview (MLX) goes without pictures"
    ]
    node, text = comfy.texts[-1]
    assert node == "7" and text.startswith("no pictures: ") and "64" in text


def test_no_pictures_are_shown_to_who_wants_none(comfy, execute, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["main.py", "--preview-method", "none"])
    sampler = Sampler(comfy, np.zeros((1, 1, 64, 3, 4, 5), np.float32), None)
    assert sampler.run(model_of(execute, "demo preview")) == "sampled"
    assert comfy.texts == [("7", "no pictures: ComfyUI's preview method is none")] and not comfy.bars.updates
    execute("LTXDecodeToVideoMLX", latent=latent(comfy))
    assert comfy.bars.updates and not any(picture for *_, picture, _ in comfy.bars.updates)
    monkeypatch.setattr(comfy.args, "preview_method", "taesd")
    execute("LTXDecodeToVideoMLX", latent=latent(comfy))
    assert comfy.bars.updates[-1][3] is not None


def test_only_decoders_of_single_pictures_are_listed(comfy, execute):
    tiny = comfy.base / "models" / "vae" / "tiny.safetensors"
    (tiny.parent / "empty.safetensors").touch()
    for _ in range(2):
        write_tiny_decoder(tiny)
        for name in ("LTXPreview", "LTXSamplingPreview"):
            (node,) = [node for node in comfy.nodes if node.__name__ == name]
            (widget,) = [each for each in node.define_schema().inputs if each.id == "decoder"]
            assert widget.options == ["vae/tiny.safetensors", "demo preview"]
        tiny.unlink()
    (tiny.parent / "empty.safetensors").unlink()
