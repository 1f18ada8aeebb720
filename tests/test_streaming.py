"""The streaming primitives by themselves: windows with each border rule, and delays."""

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlx_ltx_vae import LatentsError
from mlx_ltx_vae.backend.mlx_utils import take
from mlx_ltx_vae.shapes import Axis, WindowSpec
from mlx_ltx_vae.streaming.context import Stage, pointwise
from mlx_ltx_vae.streaming.driver import run_stream, run_whole
from mlx_ltx_vae.streaming.window import Delay, Window
from tolerances import tolerance

LENGTH = 9


def clip_of(length=LENGTH, channels=4, axis=Axis.TIME):
    shape = [2, 3, 3, 3, channels]
    shape[axis] = length
    return mx.random.normal(shape, key=mx.random.key(length))


def cut(clip, edges, axis=Axis.TIME):
    edges = [0, *sorted(edges), clip.shape[axis]]
    return [take(clip, axis, start, stop) for start, stop in zip(edges, edges[1:], strict=False) if start < stop]


def attend(frames, starts, axis, kernel):
    """Every position attends to `kernel` positions from its start on: a toy of neighborhood attention."""
    results = []
    for start, index in starts:
        seen = mx.moveaxis(take(frames, axis, start, start + kernel), axis, -2)
        query = mx.moveaxis(take(frames, axis, index, index + 1), axis, -2)
        weights = mx.softmax(query @ seen.swapaxes(-1, -2), axis=-1)
        results.append(mx.moveaxis(weights @ seen, -2, axis))
    return mx.concatenate(results, axis=axis)


def shifted_attention(axis, kernel):
    """A stage of that attention whose windows shift inwards at the ends of the clip."""
    window = Window(axis, WindowSpec(kernel, shifts=True))

    def step(x, last):
        view = window.push(x, last)
        if view is None:
            return None
        own = range(view.output - view.start, view.output - view.start + view.num_outputs)
        return attend(view.frames, zip(view.window_starts, own, strict=True), axis, kernel)

    return Stage(step, window)


def full_attention(clip, axis, kernel):
    """The same over a whole clip, written out."""
    length = clip.shape[axis]
    starts = [(min(max(0, index - kernel // 2), length - kernel), index) for index in range(length)]
    return attend(clip, starts, axis, kernel)


@settings(max_examples=30)
@given(
    cuts=st.sets(st.integers(1, LENGTH - 1)),
    step=st.integers(1, 4),
    kernel=st.sampled_from([3, 5]),
    axis=st.sampled_from(list(Axis)),
)
def test_attention_with_shifted_windows_streams_exactly(cuts, step, kernel, axis):
    clip = clip_of(axis=axis)
    stages = [shifted_attention(axis, kernel), shifted_attention(axis, 3)]
    result = mx.concatenate(list(run_stream(stages, cut(clip, cuts, axis), axis=axis, steps=[step, step])), axis=axis)
    expected = full_attention(full_attention(clip, axis, kernel), axis, 3)
    assert result.shape == expected.shape
    assert mx.abs(result - expected).max().item() < tolerance(1e-5)


def test_a_shifted_window_keeps_no_more_than_its_kernel_and_refuses_shorter_clips():
    window = Window(Axis.TIME, WindowSpec(3, shifts=True))
    for index in range(LENGTH):
        window.push(clip_of()[:, index : index + 1], False)
        assert sum(array.shape[1] for array in window.arrays) <= window.spec.cached == 3
    with pytest.raises(LatentsError, match="sees 3 positions, and the clip has 2"):
        run_whole([shifted_attention(Axis.TIME, 3)], clip_of(2))


@given(kernel=st.integers(1, 5), data=st.data())
def test_a_window_spec_counts_what_a_window_does(kernel, data):
    stride = data.draw(st.integers(1, kernel))
    before = data.draw(st.integers(0, kernel - 1))
    spec = WindowSpec(kernel, stride, before, kernel - 1 - before)
    window = Window(Axis.TIME, spec)
    done = 0
    for index in range(LENGTH):
        view = window.push(mx.zeros((1, 1, 1, 1, 1)), index == LENGTH - 1)
        done += 0 if view is None else view.num_outputs
        if index < LENGTH - 1:
            assert (done == 0 or spec.needed(done) <= index + 1) and index + 1 < spec.needed(done + 1)
    assert done == spec.num_outputs(LENGTH)


@settings(max_examples=30)
@given(cuts=st.sets(st.integers(1, LENGTH - 1)), lag=st.integers(1, 4))
def test_a_delay_hands_each_position_on_when_the_other_path_has_it(cuts, lag):
    """x(t) + mean of the next `lag` positions: the delay waits for the window, with and without sharing its memory."""
    clip = clip_of()

    def stage(shared):
        window = Window(Axis.TIME, WindowSpec(lag + 1, before=0, after=0))
        delay = Delay(Axis.TIME, window if shared else None)

        def step(x, last):
            if x is not None and not shared:
                delay.push(x)
            view = window.push(x, last)
            if view is None:
                return None
            if shared:
                delay.push_view(view)
            mean = sum(view.frames[:, at : at + view.num_outputs] for at in range(1, lag + 1)) / lag
            return delay.take(view.output, view.num_outputs) + mean

        return Stage(step, window, delay), delay

    count = LENGTH - lag
    expected = clip[:, :count] + sum(clip[:, at : at + count] for at in range(1, lag + 1)) / lag
    for shared in (True, False):
        delayed, delay = stage(shared)
        result = mx.concatenate(list(run_stream([delayed], cut(clip, cuts))), axis=1)
        assert mx.abs(result - expected).max().item() < tolerance(1e-6)
        held = sum(array.shape[1] for array in delay.arrays)
        assert held <= (0 if shared else 2 * lag), "with a window, positions that it keeps are not kept twice"


@pytest.mark.parametrize("prefetch", [1, 2])
def test_a_stream_waits_for_all_steps_but_those_that_are_prefetched(monkeypatch, prefetch):
    """Also for those of stages without caches."""
    under_way, counts = [], []
    start, wait = mx.async_eval, mx.eval

    def begin(*arrays):
        start(*arrays)
        under_way.append(True)
        counts.append(len(under_way))

    def end(*arrays):
        wait(*arrays)
        under_way.pop()

    monkeypatch.setattr(mx, "async_eval", begin)
    monkeypatch.setattr(mx, "eval", end)
    stages = [pointwise(mx.abs), shifted_attention(Axis.TIME, 3), pointwise(mx.abs), pointwise(mx.abs)]
    pieces = list(run_stream(stages, cut(clip_of(), range(LENGTH)), prefetch=prefetch))
    assert sum(piece.shape[1] for piece in pieces) == LENGTH
    assert len(counts) > 3 * LENGTH and max(counts) == prefetch + 1
