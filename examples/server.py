"""A web server that decodes an uploaded latent file and streams the video while it decodes.

    pip install "mlx_ltx_vae[server]"
    python examples/server.py --demo        # or: -m VAE; then open http://127.0.0.1:8000

    curl --data-binary @clip.safetensors http://127.0.0.1:8000/video/clip.safetensors | ffplay -

`POST /video/NAME` takes a latent file and answers with an mp4 in fragments, or with 400 and one line that says what is
wrong with the file. A decode waits for a client that reads slowly, and ends when its client disconnects.
"""

import argparse
import asyncio
import io
import os
import tempfile
import threading
import traceback
from collections.abc import AsyncIterator, Awaitable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import mlx.core as mx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from mlx_ltx_vae import LatentsError, LTXVAEError, VideoVAE, VideoWriter, demo, load_latents

PAGE = Path(__file__).with_name("server.html")
MAX_UPLOAD = 1 << 30  # bytes
READ_AT_ONCE = 1 << 16


class Decode:
    """A decode on a thread of its own, and the pipe through which its video comes.

    The pipe holds little, so the decode waits while nobody reads. `done` is its end, with its error.
    """

    @classmethod
    async def start(cls, slots: threading.Semaphore, vae: VideoVAE, upload: Path, memory_budget: str) -> "Decode":
        """Decode as soon as one of the slots is free."""
        read_end, write_end = os.pipe()
        self = cls()
        self._reader = asyncio.StreamReader(limit=READ_AT_ONCE)
        protocol, pipe = asyncio.StreamReaderProtocol(self._reader), io.FileIO(read_end)
        self._pipe, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, pipe)
        self._stream, self._cancelled = None, False
        thread = ThreadPoolExecutor(1, "decode")
        self.done = thread.submit(self._run, slots, io.FileIO(write_end, "w"), vae, upload, memory_budget)
        thread.shutdown(wait=False)
        return self

    async def read(self) -> bytes:
        """The next bytes of the video; none at its end. Raises the error that has ended the decode."""
        data = await self._reader.read(READ_AT_ONCE)
        if not data:
            await asyncio.wrap_future(self.done)
        return data

    def cancel(self) -> None:
        """End the decode, at the end of the step that runs. Does nothing if it has ended."""
        self._cancelled = True
        if self._stream is not None:
            self._stream.cancel()
        self._pipe.close()  # a writer that waits for the pipe fails

    def _run(self, slots: threading.Semaphore, file: io.FileIO, *arguments: Any) -> None:
        try:
            with file, slots:
                self._decode(file, *arguments)
        except BaseException as error:
            traceback.clear_frames(error.__traceback__)  # `done` keeps the error, which would keep the decode's memory
            raise
        finally:
            mx.clear_streams()  # a thread that has used MLX does this before it ends

    def _decode(self, file: io.FileIO, vae: VideoVAE, upload: Path, memory_budget: str) -> None:
        latents, info = load_latents(upload, latent_channels=vae.config.latent_channels)
        if latents.shape[0] != 1:
            raise LatentsError(f"{upload}: has {latents.shape[0]} videos; upload one at a time.")
        plan = vae.plan(latents.shape, memory_budget=memory_budget)
        self._stream = vae.stream(latents, plan, bit_depth=8)
        if self._cancelled:  # when there was no stream yet
            return
        writer = VideoWriter(file, size=plan.frame_size, fps=info.fps or 24, fragmented=True)
        with self._stream, writer:
            for chunk in self._stream:
                writer.write(chunk.to_uint8())


class VideoResponse(StreamingResponse):
    """The video of a decode, which ends with the response, for whatever reason."""

    def __init__(self, decode: Decode, first: bytes) -> None:
        super().__init__(self._parts(first), media_type="video/mp4", headers={"Cache-Control": "no-store"})
        self._decode = decode

    async def _parts(self, data: bytes) -> AsyncIterator[bytes]:
        while data:
            yield data
            data = await self._decode.read()

    async def __call__(self, *arguments: Any) -> None:
        try:
            await super().__call__(*arguments)
        finally:
            self._decode.cancel()


async def unless_disconnected(request: Request, awaitable: Awaitable) -> Any:
    """The awaitable's result. Raises `ClientDisconnect` if the client disconnects first. The body has been read."""
    work, gone = asyncio.ensure_future(awaitable), asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise ClientDisconnect
        return work.result()
    finally:
        work.cancel()
        gone.cancel()


def make_app(vae: VideoVAE, *, decodes: int = 2) -> Starlette:
    """The server. Up to `decodes` videos are decoded at the same time, and further requests wait."""
    slots = threading.Semaphore(decodes)

    async def page(_: Request) -> Response:
        return FileResponse(PAGE)

    async def video(request: Request) -> Response:
        name = request.path_params["name"]
        with tempfile.TemporaryDirectory() as folder:
            upload = Path(folder) / "upload"
            with upload.open("wb") as file:
                async for part in request.stream():
                    file.write(part)
                    if file.tell() > MAX_UPLOAD:
                        return PlainTextResponse(f"{name}: is larger than {MAX_UPLOAD} bytes.", 413)
            decode = await Decode.start(slots, vae, upload, f"{50 // decodes}%")
            try:
                return VideoResponse(decode, await unless_disconnected(request, decode.read()))
            except BaseException as error:
                decode.cancel()
                if not isinstance(error, LTXVAEError):
                    raise
                return PlainTextResponse(str(error).replace(str(upload), name), 400)

    async def disconnected(_: Request, __: Exception) -> Response:
        return Response(status_code=499)  # nobody reads it

    return Starlette(
        routes=[Route("/", page), Route("/video/{name}", video, methods=["POST"])],
        exception_handlers={ClientDisconnect: disconnected},
    )


def main() -> None:
    """Run the server."""
    parser = argparse.ArgumentParser(description="Decode uploaded latents and stream the video while it decodes.")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("-m", "--model", metavar="VAE", help="checkpoint file, folder, or hub repository id")
    source.add_argument("--demo", action="store_true", help="the small VAE that ships with the package")
    parser.add_argument("--host", default="127.0.0.1", help="default: 127.0.0.1, which other machines cannot reach")
    parser.add_argument("--port", type=int, default=8000, help="default: 8000")
    parser.add_argument("--decodes", type=int, default=2, help="decodes at the same time; others wait (default: 2)")
    arguments = parser.parse_args()
    vae = VideoVAE.from_pretrained(demo.VAE if arguments.demo else arguments.model, encoder=False)
    if arguments.demo:
        print(f"Latents to try: {demo.LATENTS}")
    app = make_app(vae, decodes=arguments.decodes)
    uvicorn.run(app, host=arguments.host, port=arguments.port, timeout_graceful_shutdown=3)
    mx.clear_streams()


if __name__ == "__main__":
    main()
