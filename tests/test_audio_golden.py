"""The networks of audio against the reference implementation's results."""

import mlx.core as mx
import numpy as np
import pytest

from audio_cases import VAE_CASES, VOCODER_CASES, from_frames, to_frames, to_samples
from checkpoint_files import named_parameters
from mlx_ltx_vae import AudioVAE
from network_runs import StreamContext, run_network, run_pieces, run_whole
from tolerances import tolerance

FULL_WIDTH = ["full_width_ltx2", "full_width_ltx2_3", "full_width_encoder"]
pytestmark = pytest.mark.golden


def decode_mel(vae, latents):
    """The spectrogram (B, 2, T, bins) of latents (B, C, T, F), in one pass."""
    batch, channels, length, bins = latents.shape
    packed = mx.array(latents.transpose(0, 1, 3, 2).reshape(batch, channels * bins, length, 1, 1))
    return from_frames(vae.decoder(packed).astype(mx.float32).transpose(0, 2, 3, 4, 1))


def vocode_base(vae, mel):
    return to_samples(run_network(vae.vocoder.vocoder, to_frames(mel)))


def extension_of(vae, waveform, *, num_stages=None):
    """The first stages behind the first generator."""
    stages = vae.vocoder.extension_stages(StreamContext())[:num_stages]
    return run_whole(stages, mx.array(waveform.transpose(0, 2, 1)[:, :, None, None]))


def encode_mel(vae, mel):
    frames = mx.array(mel.transpose(0, 2, 3, 1)[:, :, :, None])
    packed = vae.encoder.to_latents(run_network(vae.encoder, frames))
    batch, _, length, *_ = packed.shape
    return np.array(packed).reshape(batch, 8, -1, length).transpose(0, 1, 3, 2)


RESULTS = {
    "decode_mel": decode_mel,
    "decode_base": lambda vae, latents: vocode_base(vae, decode_mel(vae, latents)),
    "decode": lambda vae, latents: np.array(vae.decode(latents)),
    "vocode_base": vocode_base,
    "vocode": lambda vae, mel: to_samples(run_network(vae.vocoder, to_frames(mel))),
    "bwe_mel": lambda vae, waveform: from_frames(extension_of(vae, waveform, num_stages=1)),
    "bwe_residual": lambda vae, mel: to_samples(run_network(vae.vocoder.bwe_generator, to_frames(mel))),
    "extend": lambda vae, waveform: to_samples(extension_of(vae, waveform)),
    "encode_mel": encode_mel,
}


def differences(case, vae):
    """The largest difference of each result, by what is expected of it."""
    return {
        check["expected"]: case.compare(RESULTS[check["op"]](vae, case.arrays[check["input"]]), check)
        for check in case.checks(*RESULTS)
    }


@pytest.mark.parametrize("name", [*VOCODER_CASES, *VAE_CASES, "encoder"])
def test_float32_agrees_with_the_reference_within_1e_4(audio_case, audio_vae, name):
    found = differences(audio_case(name), audio_vae(name))
    assert found and max(found.values()) < tolerance(1e-4), found


def test_audio_at_any_rate_encodes_to_the_latents_of_the_reference(audio_case, audio_vae):
    case, vae = audio_case("encoder"), audio_vae("encoder")
    for check in case.checks("encode"):
        latents = vae.encode(case.arrays[check["input"]], check["sample_rate"])
        assert case.compare(np.array(latents), check) < tolerance(1e-4), check["expected"]


def test_the_spectrogram_of_audio_at_any_rate_is_that_of_the_reference(audio_case, audio_vae):
    case, vae = audio_case("encoder"), audio_vae("encoder")
    for check in case.checks("waveform_to_mel"):
        rate = check["sample_rate"]
        pieces = list(vae.encoder.prepare([case.arrays[check["input"]]], rate))
        mel = np.concatenate([np.array(piece)[:, :, :, 0].transpose(0, 3, 1, 2) for piece in pieces], axis=2)
        assert case.compare(mel, check) < tolerance(5e-4 if rate == 44100 else 1e-4), check["expected"]


def test_a_vae_in_bfloat16_has_a_vocoder_in_float32(audio_case):
    case = audio_case("ltx2_3")
    vae = AudioVAE.from_pretrained(case.checkpoint, dtype="bfloat16")
    assert vae.decoder.dtype == mx.bfloat16
    assert {array.dtype for array in named_parameters(vae.vocoder).values()} == {mx.float32}
    latents = case.arrays["latents_t9"]
    (check,) = [check for check in case.checks("decode_mel") if check["input"] == "latents_t9"]
    mel = decode_mel(vae, latents)
    assert 1e-3 < case.compare(mel, check) < 0.1
    expected = RESULTS["vocode"](AudioVAE.from_pretrained(case.checkpoint), mel)
    assert np.abs(vae.decode(latents) - expected).max() < tolerance(1e-5)


@pytest.mark.full_width
@pytest.mark.parametrize("name", FULL_WIDTH)
def test_published_widths_agree_with_the_reference_within_1e_4(audio_case, name):
    case = audio_case(name)
    vae = AudioVAE.from_pretrained(case.checkpoint)
    found = differences(case, vae)
    assert all(difference < tolerance(1e-4) for difference in found.values()), found
    assert found or case.checks("encode")
    for check in case.checks("encode"):
        latents = vae.encode(case.arrays[check["input"]], check["sample_rate"])
        assert case.compare(np.array(latents), check) < tolerance(1e-4), check["expected"]


def test_an_encode_and_a_decode_in_pieces_are_those_in_one(audio_case, audio_vae):
    mel = audio_case("encoder").arrays["mel_frames33"]
    decoder = audio_vae("vae_width").decoder  # makes more frames than it keeps, which are cut off at the end
    packed = mx.random.normal((1, 7, 1, 1, decoder.spec.in_channels), key=mx.random.key(0))
    frames = mx.array(mel.transpose(0, 2, 3, 1)[:, :, :, None])
    for network, given in ((audio_vae("encoder").encoder, frames), (decoder, packed)):
        whole = run_network(network, given)
        for size in (1, 4, 7):
            pieces = (given[:, start : start + size] for start in range(0, given.shape[1], size))
            parts = run_pieces(network, pieces)
            assert mx.abs(mx.concatenate(parts, axis=1) - whole).max().item() < tolerance(1e-5), size
