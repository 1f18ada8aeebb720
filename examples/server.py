"""A web service around one `VideoVAE`: it decodes an uploaded latent file, and the video plays while it decodes.

    pip install "mlx_ltx_vae[server]"
    python examples/server.py --demo        # or: -m VAE; then open http://127.0.0.1:8000
    curl --data-binary @clip.safetensors http://127.0.0.1:8000/video | ffplay -

The VAE is loaded once. All decodes run on one thread, one after another (`VideoEndpoint`), and a step waits until the
client has read the last one (`encode_mp4`). Uploads and decodes have limits (`save_upload`, `respond`). A decode ends
when its client disconnects (`while_connected`), or when the server ends (`lifespan`, `Server`). An error of a video
that has begun is a line of the log, and its connection is closed (`respond`).
"""

import argparse
import asyncio
import logging
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from types import FrameType
from typing import Any, BinaryIO

import anyio
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from mlx_ltx_vae import DecodePlan, DecodeStream, LatentsError, LTXVAEError, VideoVAE, VideoWriter, demo, load_latents

MAX_UPLOAD = 64_000_000  # bytes
UPLOAD_SECONDS = 60  # for the whole upload
HEADER_SECONDS = 10  # for the headers before it
DECODE_SECONDS = 600  # from the start of a decode to the last byte that its client has read
GRACE_SECONDS, EXIT_SECONDS = 3, 12  # after Ctrl-C, SIGTERM or SIGHUP: of responses, and of the process
MAX_CONNECTIONS = 32  # others get a 503
LOG = logging.getLogger("uvicorn.error")


class Parts(SimpleQueue):
    """The file of a `VideoWriter`. `take` returns what was written since the last call."""

    def write(self, data: bytes) -> None:  # called by a thread of the writer
        self.put(bytes(data))  # a copy of its buffer

    def take(self) -> bytes:
        return b"".join(self.get() for _ in range(self.qsize()))


def open_video(vae: VideoVAE, path: str) -> tuple[DecodeStream, Iterator[bytes]]:
    """Plan a decode. Returns its stream, which any thread may cancel, and the parts of the mp4."""
    latents, info = load_latents(path, latent_channels=vae.config.latent_channels, statistics=(vae.mean, vae.std))
    if latents.shape[0] != 1:
        raise LatentsError(f"{path}: has the latents of {latents.shape[0]} videos; send one video.")
    plan = vae.plan(latents.shape, memory_budget="50%")
    stream = vae.stream(latents, plan, bit_depth=8)
    return stream, encode_mp4(stream, plan, info.fps or 24)


def encode_mp4(stream: DecodeStream, plan: DecodePlan, fps: Any) -> Iterator[bytes]:
    """Decode chunk by chunk, and yield after each what ffmpeg has written so far."""
    parts, video = Parts(), {"size": plan.frame_size, "fps": fps, "num_frames": plan.num_frames}
    with stream, VideoWriter(parts, **video, fragmented=True) as writer:
        for chunk in stream:
            writer.write(chunk.to_uint8())
            yield parts.take()
    yield parts.take()


async def save_upload(request: Request, file: BinaryIO) -> None:
    """Write a request's body to a file, within the limits of size and time."""
    origin = request.headers.get("origin")  # browsers let a page of any site post to this server
    if origin is not None and origin.partition("://")[2] != request.headers["host"]:
        raise HTTPException(403, "pages of other sites may not use this server.")
    try:
        with anyio.fail_after(UPLOAD_SECONDS):
            async for part in request.stream():
                file.write(part)
                if file.tell() > MAX_UPLOAD:
                    raise HTTPException(413, f"the file is larger than {MAX_UPLOAD} bytes.")
    except TimeoutError:
        raise HTTPException(408, f"the file has not arrived within {UPLOAD_SECONDS} s.") from None
    file.flush()


@asynccontextmanager
async def while_connected(receive: Receive) -> AsyncIterator[None]:
    """Cancel the block when the client disconnects. The request's body has been read."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        block.cancel()

    with anyio.CancelScope() as block:
        watcher = asyncio.create_task(watch())
        try:
            yield
        finally:
            watcher.cancel()


class VideoEndpoint:
    """Answers a latent file with its video. An ASGI app, so that its `with` blocks last until the last byte is sent."""

    def __init__(self, vae: VideoVAE) -> None:
        self.vae = vae
        self.turn = asyncio.Lock()  # clients get it in the order of their uploads
        self.thread = ThreadPoolExecutor(1, "decode")  # MLX keeps something of each thread that has used it

    def run(self, function: Callable, *arguments: Any) -> asyncio.Future:
        """Call a function on the thread of the decodes."""
        return asyncio.get_running_loop().run_in_executor(self.thread, function, *arguments)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(ClientDisconnect), tempfile.NamedTemporaryFile(prefix="latents-") as upload:
            try:
                await save_upload(Request(scope, receive), upload)
                async with while_connected(receive), self.turn:
                    await self.respond(upload.name, scope, receive, send)
            except LTXVAEError as error:
                raise HTTPException(400, str(error).replace(upload.name, "the file")) from error
            except asyncio.CancelledError:
                raise HTTPException(503, "the server is ending.") from None

    async def respond(self, path: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Decode a file and send the video. Until the first part is decoded, errors become responses."""
        is_started = False
        with anyio.move_on_after(DECODE_SECONDS) as limit:
            stream, parts = await self.run(open_video, self.vae, path)
            try:
                part = await self.run(next, parts)
                is_started = True

                async def body() -> AsyncIterator[bytes]:
                    nonlocal part
                    while part is not None:
                        yield part
                        part = await self.run(next, parts, None)

                response = StreamingResponse(body(), media_type='video/mp4; codecs="avc1.640033"')
                with suppress(asyncio.CancelledError):  # uvicorn closes the connection of an incomplete response
                    await response(scope, receive, send)
            except LTXVAEError as error:
                if not is_started:
                    raise
                LOG.error("A video ends early: %s", str(error).replace(path, "the file").replace("\n", " "))
            finally:
                stream.cancel()  # the step that runs ends soon
                self.thread.submit(parts.close)  # and then ffmpeg
        if not is_started:
            raise HTTPException(503, f"the first part was not decoded within {DECODE_SECONDS} s.")
        if limit.cancel_called:
            LOG.error("A video ends early: it was not decoded and read within %s s.", DECODE_SECONDS)

    @asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        yield
        async with self.turn:  # uvicorn has cancelled the requests
            await anyio.to_thread.run_sync(self.thread.shutdown)


def is_reason(record: logging.LogRecord) -> bool:
    """Return whether a line of the log is more than that a response is incomplete, which a line before it explains."""
    return record.msg != "ASGI callable returned without completing response."


def make_app(vae: VideoVAE, hosts: Sequence[str] = ()) -> Starlette:
    """Make the service at `/video`, and its page. `hosts` are the names under which other machines may reach it."""
    endpoint, page = VideoEndpoint(vae), Path(__file__).with_name("server.html")
    LOG.addFilter(is_reason)
    # Another site may let a name of its own point to this machine, and then read the answers (DNS rebinding).
    allowed_hosts = ["localhost", "127.0.0.1", "[::1]", *hosts]
    return Starlette(
        routes=[Route("/", lambda _: FileResponse(page)), Route("/video", endpoint, methods=["POST"])],
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=allowed_hosts)],
        lifespan=endpoint.lifespan,
    )


class Protocol(H11Protocol):
    """A connection that is closed when no whole headers arrive within some seconds."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.loop.call_later(HEADER_SECONDS, self._check, None)

    def _check(self, last: object) -> None:
        """Close a connection that waits for the headers after the request `last`, which has its response."""
        is_waiting = self.cycle is None or self.cycle.response_complete
        if is_waiting and self.cycle is last:
            self.transport.close()
        elif not self.transport.is_closing():
            self.loop.call_later(HEADER_SECONDS, self._check, self.cycle if is_waiting else self)


class Server(uvicorn.Server):
    """Ends the process some seconds after a signal, whatever runs then: a step of a decode cannot be interrupted."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        signal.alarm(1 if self.should_exit else EXIT_SECONDS)
        super().handle_exit(sig, frame)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle SIGHUP, of a closed terminal, as uvicorn handles Ctrl-C and SIGTERM, unless nohup ignores it."""
        with super().capture_signals():
            before = signal.getsignal(signal.SIGHUP)
            if before is not signal.SIG_IGN:
                signal.signal(signal.SIGHUP, self.handle_exit)
            try:
                yield
            finally:
                signal.signal(signal.SIGHUP, before)


def main() -> None:
    parser = argparse.ArgumentParser(description="Decode uploaded latents and stream the video while it decodes.")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("-m", "--model", metavar="VAE", help="checkpoint file, folder, or hub id")
    source.add_argument("--demo", action="store_true", help="the small VAE that ships with the package")
    parser.add_argument("--host", default="127.0.0.1", help="default: 127.0.0.1, which other machines cannot reach")
    parser.add_argument("--port", type=int, default=8000, help="default: 8000")
    arguments = parser.parse_args()
    try:
        vae = VideoVAE.from_pretrained(demo.VAE if arguments.demo else arguments.model, encoder=False)
    except LTXVAEError as error:
        parser.error(str(error))
    limits = {"limit_concurrency": MAX_CONNECTIONS, "timeout_graceful_shutdown": GRACE_SECONDS, "http": Protocol}
    with suppress(KeyboardInterrupt):
        Server(uvicorn.Config(make_app(vae, [arguments.host]), arguments.host, arguments.port, **limits)).run()


if __name__ == "__main__":
    main()
