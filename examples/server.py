"""A web server that decodes an uploaded latent file and streams the video while it decodes.

    pip install "mlx_ltx_vae[server]"
    python examples/server.py --demo        # or: -m VAE; then open http://127.0.0.1:8000

    curl --data-binary @clip.safetensors http://127.0.0.1:8000/video/clip.safetensors | ffplay -

`POST /video/NAME` takes a latent file and answers with an mp4 in fragments, or with 400 and one line that says what is
wrong with the file. A decode waits for a client that reads slowly, and ends when its client disconnects or reads
nothing for a minute.
"""

import argparse
import asyncio
import io
import os
import tempfile
import traceback
from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import mlx.core as mx
import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from mlx_ltx_vae import LatentsError, LTXVAEError, VideoVAE, VideoWriter, demo, load_latents

PAGE = Path(__file__).with_name("server.html")
MAX_UPLOAD = 1 << 30  # bytes
MAX_CONNECTIONS = 200
READ_AT_ONCE = 1 << 16
RETRY_AFTER = "30"  # seconds
LOCAL = ("localhost", "127.0.0.1", "[::1]")


class Stalled(Exception):
    """A client has not read for too long."""


class Pool:
    """The threads that decode, as many as videos at a time, and the places of clients that use them or wait for them.

    Threads live as long as the server: one that has used MLX leaves a thread of the system when it ends. A client that
    waits takes none.
    """

    def __init__(self, decodes: int, waiting: int) -> None:
        self.places = decodes + waiting
        self.threads, self.free = ThreadPoolExecutor(decodes, "decode"), asyncio.Semaphore(decodes)

    @contextmanager
    def place(self) -> Iterator[None]:
        """A place until the end of the block, from before the upload on. Raises 503 if there is none."""
        if not self.places:
            raise HTTPException(503, "too many clients are waiting; try again later.", {"Retry-After": RETRY_AFTER})
        self.places -= 1
        try:
            yield
        finally:
            self.places += 1

    def close(self) -> None:
        """End the threads, when their decodes have ended."""
        self.threads.shutdown()


class Decode:
    """A decode on a thread of the pool, and the pipe through which its video comes.

    The pipe holds little, so the decode waits while nobody reads. `done` is its end, with its error.
    """

    @classmethod
    async def start(cls, pool: Pool, vae: VideoVAE, upload: Path, memory_budget: str) -> "Decode":
        """Decode as soon as one of the threads is free."""
        await pool.free.acquire()
        self = cls()
        self._stream, self._cancelled = None, False
        try:
            read_end, write_end = os.pipe()
        except OSError:
            pool.free.release()
            raise
        self.done = pool.threads.submit(self._run, io.FileIO(write_end, "w"), vae, upload, memory_budget)
        asyncio.wrap_future(self.done).add_done_callback(lambda done: (done.exception(), pool.free.release()))
        self._reader = asyncio.StreamReader(limit=READ_AT_ONCE)
        protocol, pipe = asyncio.StreamReaderProtocol(self._reader), io.FileIO(read_end)
        try:
            self._pipe, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, pipe)
        except BaseException:
            pipe.close()  # which ends the decode
            raise
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

    def _run(self, file: io.FileIO, *arguments: Any) -> None:
        try:
            with file:
                self._decode(file, *arguments)
        except BaseException as error:
            traceback.clear_frames(error.__traceback__)  # `done` keeps the error, which would keep the decode's memory
            raise

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
    """The video of a decode. When it has ended, for whatever reason, `resources` are closed.

    Args:
        timeout: seconds for which the client may read nothing.
    """

    def __init__(self, decode: Decode, first: bytes, timeout: float, resources: ExitStack) -> None:
        super().__init__(self._parts(first), media_type="video/mp4", headers={"Cache-Control": "no-store"})
        self._decode, self._timeout, self._resources = decode, timeout, resources

    async def _parts(self, data: bytes) -> AsyncIterator[bytes]:
        while data:
            yield data
            data = await self._decode.read()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def send_in_time(message: Any) -> None:
            try:
                await asyncio.wait_for(send(message), self._timeout)
            except asyncio.TimeoutError:
                raise Stalled from None

        with self._resources:
            try:
                await super().__call__(scope, receive, send_in_time)
            except Stalled:
                return  # uvicorn closes the connection of a response that is not complete


class Guard:
    """Refuses what a page of another site can make a browser send.

    Such a page can post, though it cannot read the answer; and it can read it under a host name of its own that it lets
    point to this machine (DNS rebinding). Programs other than browsers send neither Sec-Fetch-Site nor Origin.
    """

    def __init__(self, app: Any, allowed_hosts: Sequence[str]) -> None:
        self._app, self._allowed_hosts = app, allowed_hosts

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and (problem := self._problem(Headers(scope=scope), scope["method"])):
            await PlainTextResponse(problem, 403)(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _problem(self, headers: Headers, method: str) -> str | None:
        host = headers.get("host", "")
        name = host[: host.rfind("]") + 1] or host.partition(":")[0]  # without the port; [::1] has colons
        if name.lower() not in self._allowed_hosts:
            return "this server does not go by that name; start it with --allowed-host NAME."
        if method in ("GET", "HEAD"):
            return None
        origin = headers.get("origin")
        is_other = origin is not None and urlsplit(origin).netloc != host
        if is_other or headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return "pages of other sites may not use this server."
        return None


async def save_upload(request: Request, path: Path, timeout: float) -> None:
    """Write a request's body to a file. Raises 413 for one that is too large, and 408 for a client that stalls."""
    name = request.path_params["name"]
    too_large = HTTPException(413, f"{name}: is larger than {MAX_UPLOAD} bytes.")
    if int(request.headers.get("content-length", 0)) > MAX_UPLOAD:
        raise too_large
    is_whole = False
    with path.open("wb") as file:
        while not is_whole:
            try:
                message = await asyncio.wait_for(request.receive(), timeout)
            except asyncio.TimeoutError:
                raise HTTPException(408, f"{name}: was not sent for {timeout:g} s.") from None
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            file.write(message.get("body", b""))
            if file.tell() > MAX_UPLOAD:
                raise too_large
            is_whole = not message.get("more_body", False)


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
        await asyncio.wait({work})


def make_app(
    vae: VideoVAE,
    *,
    decodes: int = 2,
    waiting: int = 8,
    client_timeout: float = 60,
    allowed_hosts: Sequence[str] = LOCAL,
) -> Starlette:
    """The server. Up to `decodes` videos are decoded at the same time, `waiting` clients wait, and others get a 503.

    Where an app mounts it, call `state.pool.close()` of it at the end of that app.

    Args:
        client_timeout: seconds for which a client may neither send nor read.
        allowed_hosts: names under which browsers reach it, without port.
    """
    pool = Pool(decodes, waiting)

    async def page(_: Request) -> Response:
        return FileResponse(PAGE)

    async def video(request: Request) -> Response:
        with ExitStack() as resources:
            resources.enter_context(pool.place())
            folder = resources.enter_context(tempfile.TemporaryDirectory())
            upload = Path(folder) / "upload"
            await save_upload(request, upload, client_timeout)

            async def begin() -> tuple[Decode, bytes]:
                decode = await Decode.start(pool, vae, upload, f"{50 // decodes}%")
                resources.callback(decode.cancel)
                return decode, await decode.read()

            try:
                decode, first = await unless_disconnected(request, begin())
            except LTXVAEError as error:
                return PlainTextResponse(str(error).replace(str(upload), request.path_params["name"]), 400)
            return VideoResponse(decode, first, client_timeout, resources.pop_all())

    async def disconnected(_: Request, __: Exception) -> Response:
        return Response(status_code=499)  # nobody reads it

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        pool.close()

    app = Starlette(
        routes=[Route("/", page), Route("/video/{name}", video, methods=["POST"])],
        exception_handlers={ClientDisconnect: disconnected},
        middleware=[Middleware(Guard, allowed_hosts=[name.lower() for name in allowed_hosts])],
        lifespan=lifespan,
    )
    app.state.pool = pool
    return app


def main() -> None:
    """Run the server."""
    parser = argparse.ArgumentParser(description="Decode uploaded latents and stream the video while it decodes.")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("-m", "--model", metavar="VAE", help="checkpoint file, folder, or hub repository id")
    source.add_argument("--demo", action="store_true", help="the small VAE that ships with the package")
    parser.add_argument("--host", default="127.0.0.1", help="default: 127.0.0.1, which other machines cannot reach")
    parser.add_argument("--port", type=int, default=8000, help="default: 8000")
    parser.add_argument("--decodes", type=int, default=2, help="decodes at the same time; others wait (default: 2)")
    parser.add_argument("--waiting", type=int, default=8, help="clients that wait; others get a 503 (default: 8)")
    parser.add_argument(
        "--client-timeout",
        type=float,
        default=60,
        metavar="SECONDS",
        help="a client that neither sends nor reads for this long loses its place (default: 60)",
    )
    parser.add_argument(
        "--allowed-host",
        action="append",
        metavar="NAME",
        default=[],
        help=f"a name under which browsers reach the server, besides {', '.join(LOCAL)} and that of --host; may be "
        "repeated",
    )
    arguments = parser.parse_args()
    vae = VideoVAE.from_pretrained(demo.VAE if arguments.demo else arguments.model, encoder=False)
    if arguments.demo:
        print(f"Latents to try: {demo.LATENTS}")
    app = make_app(
        vae,
        decodes=arguments.decodes,
        waiting=arguments.waiting,
        client_timeout=arguments.client_timeout,
        allowed_hosts=[*LOCAL, arguments.host, *arguments.allowed_host],
    )
    uvicorn.run(
        app,
        host=arguments.host,
        port=arguments.port,
        timeout_graceful_shutdown=3,
        limit_concurrency=MAX_CONNECTIONS,
    )
    mx.clear_streams()


if __name__ == "__main__":
    main()
