"""Decode in an app that generates latents: progress, frames as they become final, and a button that cancels.

    python examples/generation_app.py demo.mp4

The decode runs on a thread of its own, so that the app stays responsive. `Decode.cancel` may be called from any thread;
nothing partial remains of the video.
"""

import sys
import threading
from collections.abc import Callable

import mlx.core as mx

from mlx_ltx_vae import DecodeCancelled, VideoVAE, VideoWriter, demo, load_latents


class Decode:
    """A decode in the background. `show(done, total)` is called with the number of frames after each chunk."""

    def __init__(self, vae: VideoVAE, latents: mx.array, output: str, show: Callable[[int, int], None]) -> None:
        mx.eval(latents)  # in the thread that has made them
        self.was_cancelled = False
        self.error: Exception | None = None
        self._plan = vae.plan(latents.shape)
        self._stream = vae.stream(latents, self._plan, bit_depth=8)
        self._thread = threading.Thread(target=self._run, args=(output, show))
        self._thread.start()

    def cancel(self) -> None:
        """End the decode soon."""
        self._stream.cancel()

    def wait(self) -> None:
        """Wait until the video is whole or removed. Raises the error that has ended the decode."""
        self._thread.join()
        if self.error is not None:
            raise self.error

    def _run(self, output: str, show: Callable[[int, int], None]) -> None:
        try:
            with VideoWriter(output, size=self._plan.frame_size, fps=24) as video:
                for chunk in self._stream:
                    frames = chunk.to_uint8()
                    video.write(frames)
                    show(chunk.start + len(frames), self._plan.num_frames)
        except DecodeCancelled:
            self.was_cancelled = True
        except Exception as error:  # for the thread that waits
            self.error = error


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    vae = VideoVAE.from_pretrained(demo.VAE, encoder=False)  # once, when the app starts
    latents, _ = load_latents(demo.LATENTS)  # in an app: latents of the last denoising step
    decode = Decode(vae, latents, sys.argv[1], lambda done, total: print(f"{done} of {total} frames", flush=True))
    try:
        decode.wait()
    except KeyboardInterrupt:
        decode.cancel()
        decode.wait()


if __name__ == "__main__":
    main()
