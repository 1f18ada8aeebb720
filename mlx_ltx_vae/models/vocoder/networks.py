"""The networks of a vocoder. Checkpoint names are those of the original files."""

from functools import partial

import mlx.core as mx
import mlx.nn as nn

from ...streaming.axis import Axis
from ...streaming.chain import branches
from ...streaming.context import Stage, StreamContext
from .config import End, GeneratorConfig, VocoderConfig
from .layers import SLOPE, AntialiasedActivation, Conv1d, ResidualBlock, TransposedConv1d, conv_stage
from .specs import (
    BranchesSpec,
    SignalSpec,
    TransposedSpec,
    generator_layers,
    vocoder_spec,
)

_END_SLOPE = 0.01  # of leaky ReLU in front of the last convolution of a generator


class Generator(nn.Module):
    """A spectrogram (B, T, 1, 1, I) to samples (B, T*scale, 1, 1, 2), approximately in [-1, 1].

    Checkpoint keys: `conv_pre`, `ups.i`, `resblocks.j`, `conv_post`; if antialiased `act_post`.
    """

    def __init__(self, config: GeneratorConfig) -> None:
        super().__init__()
        first, *middle, last = generator_layers(config, "")
        antialiased = config.is_antialiased
        self.conv_pre = Conv1d(_signal(first))
        if antialiased:
            self.act_post = AntialiasedActivation(_signal(middle.pop()))
        slope = None if antialiased else SLOPE
        self.ups = [TransposedConv1d(spec, slope) for spec in middle if isinstance(spec, TransposedSpec)]
        self.resblocks = [
            ResidualBlock(chain, is_antialiased=antialiased)
            for spec in middle
            if isinstance(spec, BranchesSpec)
            for chain in spec.chains
        ]
        self.conv_post = Conv1d(_signal(last))
        self._end = config.end

    def stages(self, context: StreamContext) -> list[Stage]:
        """One stage per layer of the spec."""
        stages = [conv_stage(self.conv_pre)]
        count = len(self.resblocks) // len(self.ups)
        for index, up in enumerate(self.ups):
            stages += up.stages(context)
            blocks = self.resblocks[index * count : (index + 1) * count]
            stages.append(branches(Axis.TIME, [block.stages(context) for block in blocks], _mean))
        if "act_post" in self:
            stages += self.act_post.stages(context)
        end = conv_stage(self.conv_post, None if "act_post" in self else _END_SLOPE)
        return [*stages, _then(end, partial(_finish, end=self._end))]


def _signal(spec: object) -> SignalSpec:
    assert isinstance(spec, SignalSpec)
    return spec


def _mean(parts: list[mx.array]) -> mx.array:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total / len(parts)


def _finish(samples: mx.array, end: End) -> mx.array:
    if end is End.TANH:
        return mx.tanh(samples)
    return mx.clip(samples, -1, 1) if end is End.CLAMP else samples


def _then(stage: Stage, function: partial[mx.array]) -> Stage:
    """A stage and a function of each of its results."""

    def step(x: mx.array | None, last: bool) -> mx.array | None:
        result = stage.step(x, last)
        return function(result) if isinstance(result, mx.array) else None

    return Stage(step, stage)


class Vocoder(Generator):
    """The vocoder of LTX-2, one generator. Computes in float32, as everything here does."""

    statistics = None
    dtype = mx.float32

    def __init__(self, config: VocoderConfig) -> None:
        super().__init__(config.generator)
        self.spec = vocoder_spec(config)
