"""A web server that decodes an uploaded latent file and streams the video while it decodes.

    pip install "mlx_ltx_vae[server]"
    python examples/server.py --demo        # or: -m VAE; then open http://127.0.0.1:8000

    curl --data-binary @clip.safetensors http://127.0.0.1:8000/video/clip.safetensors | ffplay -

`POST /video/NAME` takes a latent file and answers with an mp4 in fragments, with sound if the file has audio latents
and the server an audio VAE, or with 400 and one line that says what is wrong with the file. A decode waits for a client
that reads slowly, and ends when its client disconnects or reads nothing for a minute.
"""

import argparse
import asyncio
import io
import os
import secrets
import sys
import tempfile
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
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

from mlx_ltx_vae import (
    AudioStream,
    AudioVAE,
    DecodeError,
    DecodeStream,
    LatentsError,
    LatentsInfo,
    LTXVAEError,
    VideoVAE,
    VideoWriter,
    demo,
    load_audio_latents,
    load_latents,
)
from mlx_ltx_vae.audio_vae import find_sound_decoder

PAGE = Path(__file__).with_name("server.html")
MAX_UPLOAD = 1 << 30  # bytes
MAX_CONNECTIONS = 200
READ_AT_ONCE = 1 << 16
RETRY_AFTER = "30"  # seconds
ENDING = "the server is ending."
MAX_PIXELS = 2_000_000_000  # 960 frames of 1920x1088
MAX_SECONDS = 3600
MEDIA_TYPE, SOUND_TYPE = 'video/mp4; codecs="avc1.640033"', 'video/mp4; codecs="avc1.640033, mp4a.40.2"'
LOCAL = ("localhost", "127.0.0.1", "[::1]")


class Stalled(Exception):
    """A client has not read for too long."""


class Pool:
    """The threads that decode, as many as videos at a time, and the places of clients that use them or wait for them.

    Threads live as long as the server: one that has used MLX leaves a thread of the system when it ends. A client that
    waits takes none. `uploads` is the folder of the files that are decoded.
    """

    def __init__(self, decodes: int, waiting: int) -> None:
        self.places = decodes + waiting
        self.threads, self.free = ThreadPoolExecutor(decodes, "decode"), asyncio.Semaphore(decodes)
        self.uploads = tempfile.TemporaryDirectory()
        self.decodes: set[Decode] = set()
        self.is_closed = False

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

    @contextmanager
    def upload(self) -> Iterator[Path]:
        """The name of a file, which is removed at the end of the block."""
        path = Path(self.uploads.name, secrets.token_hex())
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)

    async def close(self) -> None:
        """End the decodes, each at the end of its step, and then the threads."""
        self.is_closed = True
        for decode in tuple(self.decodes):
            decode.cancel()
        await asyncio.to_thread(self.threads.shutdown)  # the loop must run on: it closes the pipes
        self.uploads.cleanup()

    @asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        yield
        await self.close()


@dataclass(frozen=True)
class VAEs:
    """The networks. Without `audio`, videos have no sound."""

    video: VideoVAE
    audio: AudioVAE | None


@dataclass(frozen=True)
class Limits:
    """What a decode may take.

    Attributes:
        memory_budget: as of `VideoVAE.plan`.
        pixels: of all frames of the video.
        seconds: from the start of the decode to its last byte, the waits for the client included.
    """

    memory_budget: str
    pixels: int
    seconds: float


class Decode:
    """A decode on a thread of the pool, and the pipe through which its video comes.

    The pipe holds little, so the decode waits while nobody reads. `done` is its end, with its error.
    """

    @classmethod
    async def start(cls, pool: Pool, vaes: VAEs, upload: Path, limits: Limits) -> "Decode":
        """Decode as soon as one of the threads is free."""
        await pool.free.acquire()
        self = cls()
        self._upload, self._limits = upload, limits
        self._streams: list[DecodeStream | AudioStream] = []
        self._pipe, self._is_cancelled, self._is_late = None, False, False
        self._kept = ExitStack()
        try:
            if pool.is_closed:
                raise HTTPException(503, ENDING)
            read_end, write_end = os.pipe()
        except BaseException:
            pool.free.release()
            raise
        self.done = pool.threads.submit(self._run, io.FileIO(write_end, "w"), vaes)
        pool.decodes.add(self)
        with ExitStack() as work:
            work.callback(pool.free.release)
            work.callback(pool.decodes.discard, self)
            work.callback(asyncio.get_running_loop().call_later(limits.seconds, self._expire).cancel)
            self.keep(work)
        await self._connect(io.FileIO(read_end))
        return self

    async def _connect(self, pipe: io.FileIO) -> None:
        self._reader = asyncio.StreamReader(limit=READ_AT_ONCE)
        protocol = asyncio.StreamReaderProtocol(self._reader)
        try:
            self._pipe, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, pipe)
        except BaseException:
            pipe.close()  # which ends the decode
            raise
        if self._is_cancelled:
            self.cancel()

    def keep(self, resources: ExitStack) -> None:
        """Close `resources` when the decode has ended, before `read` returns no more bytes."""
        self._kept.enter_context(resources.pop_all())
        asyncio.wrap_future(self.done).add_done_callback(self._release)

    def _release(self, ended: asyncio.Future) -> None:
        ended.exception()  # which `read` raises, if it is called
        self._kept.close()

    async def read(self) -> bytes:
        """The next bytes of the video; none at its end. Raises the error that has ended the decode."""
        data = await self._reader.read(READ_AT_ONCE)
        if self._is_late:
            raise DecodeError(f"{self._upload}: took more than {self._limits.seconds:g} s, the limit of this server.")
        if not data:
            ended = asyncio.wrap_future(self.done)
            await asyncio.wait({ended})
            self._release(ended)  # callbacks of other futures may come later than this wait ends
            ended.result()
        return data

    def cancel(self) -> None:
        """End the decode, at the end of the step that runs. Does nothing if it has ended."""
        self._is_cancelled = True
        for stream in self._streams:
            stream.cancel()
        if self._pipe is not None:
            self._pipe.close()  # a writer that waits for the pipe fails

    def _expire(self) -> None:
        self._is_late = True
        self.cancel()

    def _run(self, file: io.FileIO, vaes: VAEs) -> None:
        try:
            with file:
                self._decode(file, vaes)
        except BaseException as error:
            traceback.clear_frames(error.__traceback__)  # `done` keeps the error, which would keep the decode's memory
            raise

    def _decode(self, file: io.FileIO, vaes: VAEs) -> None:
        latents, info = load_video_latents(self._upload, vaes.video)
        heard = None if vaes.audio is None else load_sound_latents(self._upload, vaes.audio)
        sound = () if heard is None else (vaes.audio.plan(heard.shape[-2]),)
        plan = vaes.video.plan(latents.shape, memory_budget=self._limits.memory_budget, sound=sound)
        width, height = plan.frame_size
        if plan.num_frames * width * height > self._limits.pixels:
            raise LatentsError(
                f"{self._upload}: decodes to {plan.num_frames} frames of {width}x{height}; this server's limit is "
                f"{self._limits.pixels:,} pixels in all."
            )
        frames = vaes.video.stream(latents, plan, bit_depth=8)
        audio = None if heard is None else vaes.audio.stream(heard, plan.sound)
        self._streams = [frames] if audio is None else [frames, audio]
        self.media_type = MEDIA_TYPE if audio is None else SOUND_TYPE
        if self._is_cancelled:  # when there were no streams yet
            return
        file.name = str(self._upload)  # in errors
        video = {"size": plan.frame_size, "num_frames": plan.num_frames, "fps": info.fps or 24}
        with frames, VideoWriter(file, **video, audio=audio, fragmented=True) as writer:
            for chunk in frames:
                writer.write(chunk.to_uint8())


def load_video_latents(path: Path, vae: VideoVAE) -> tuple[mx.array, LatentsInfo]:
    """The latents of one video. Raises `LatentsError` for others."""
    channels = vae.config.latent_channels
    takes = f"this server takes those of one video, (1, {channels}, F', H', W')."
    try:
        latents, info = load_latents(path, latent_channels=channels, statistics=(vae.mean, vae.std))
    except LatentsError as error:
        found, is_audio, _ = str(error).partition(" are audio latents;")  # the rest is advice for the command
        if not is_audio:
            raise
        raise LatentsError(f"{found}{is_audio} {takes}") from None
    if latents.shape[0] != 1:
        raise LatentsError(f"{path}: has the latents of {latents.shape[0]} videos; {takes}")
    return latents, info


def load_sound_latents(path: Path, vae: AudioVAE) -> mx.array | None:
    """The audio latents beside those of one video; None if there are none. Raises `LatentsError` for others."""
    latents = load_audio_latents(path, statistics=(vae.mean, vae.std))
    if latents is not None and latents.shape[0] != 1:
        raise LatentsError(f"{path}: has the sound of {latents.shape[0]} videos; this server takes that of one.")
    return latents


class VideoResponse(StreamingResponse):
    """The video of a decode. When it has ended, for whatever reason, `resources` are closed.

    Args:
        timeout: seconds for which the client may read nothing.
    """

    def __init__(self, decode: Decode, first: bytes, timeout: float, resources: ExitStack) -> None:
        super().__init__(self._parts(first), media_type=decode.media_type, headers={"Cache-Control": "no-store"})
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
            except (Stalled, asyncio.CancelledError):  # or the server ends
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


async def show_page(_: Request) -> Response:
    return FileResponse(PAGE)


async def close_quietly(_: Request, __: Exception) -> Response:
    return Response(status_code=499)  # nobody reads it


def make_app(
    vae: VideoVAE,
    *,
    audio_vae: AudioVAE | None = None,
    decodes: int = 2,
    waiting: int = 8,
    client_timeout: float = 60,
    max_pixels: int = MAX_PIXELS,
    max_seconds: float = MAX_SECONDS,
    allowed_hosts: Sequence[str] = LOCAL,
) -> Starlette:
    """The server. Up to `decodes` videos are decoded at the same time, `waiting` clients wait, and others get a 503.

    Where an app mounts it, await `state.pool.close()` of it at the end of that app.

    Args:
        audio_vae: decodes the audio latents of files that have some; without it, videos have no sound.
        client_timeout: seconds for which a client may neither send nor read.
        max_pixels, max_seconds: of all frames of a video; of a decode, with the waits for its client.
        allowed_hosts: names under which browsers reach it, without port.
    """
    pool, limits = Pool(decodes, waiting), Limits(f"{50 / decodes:.2f}%", max_pixels, max_seconds)

    async def video(request: Request) -> Response:
        with ExitStack() as resources:
            work = resources.enter_context(ExitStack())
            work.enter_context(pool.place())
            upload = work.enter_context(pool.upload())

            async def begin() -> tuple[Decode, bytes]:
                decode = await Decode.start(pool, VAEs(vae, audio_vae), upload, limits)
                resources.callback(decode.cancel)
                decode.keep(work)
                return decode, await decode.read()

            try:
                await save_upload(request, upload, client_timeout)
                decode, first = await unless_disconnected(request, begin())
            except asyncio.CancelledError:
                raise HTTPException(503, ENDING) from None
            except LTXVAEError as error:
                return PlainTextResponse(str(error).replace(str(upload), request.path_params["name"]), 400)
            return VideoResponse(decode, first, client_timeout, resources.pop_all())

    app = Starlette(
        routes=[Route("/", show_page), Route("/video/{name}", video, methods=["POST"])],
        exception_handlers={ClientDisconnect: close_quietly},
        middleware=[Middleware(Guard, allowed_hosts=[name.lower() for name in allowed_hosts])],
        lifespan=pool.lifespan,
    )
    app.state.pool = pool
    return app


class Server(uvicorn.Server):
    """Ends at the first signal when its decodes have ended, and at the second at once."""

    def __init__(self, config: uvicorn.Config, pool: Pool) -> None:
        super().__init__(config)
        self._pool = pool

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:
            self._pool.uploads.cleanup()
            os._exit(128 + sig)  # a step of a decode cannot be interrupted; its ffmpeg ends with its input
        super().handle_exit(sig, frame)


def at_least(least: int, kind: Callable[[str], float] = int) -> Callable[[str], float]:
    """What argparse calls for a number that is not smaller."""

    def number(text: str) -> float:
        if not (value := kind(text)) >= least:
            raise argparse.ArgumentTypeError(f"{text} is less than {least}")
        return value

    return number


def parse_arguments() -> argparse.Namespace:
    """The options of the command."""
    parser = argparse.ArgumentParser(description="Decode uploaded latents and stream the video while it decodes.")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("-m", "--model", metavar="VAE", help="checkpoint file, folder, or hub repository id")
    source.add_argument("--demo", action="store_true", help="the small VAE that ships with the package")
    parser.add_argument(
        "--audio-model",
        metavar="AUDIO",
        help="checkpoint of the audio VAE, for videos with sound (default: that of --model, if it has one)",
    )
    parser.add_argument("--host", default="127.0.0.1", help="default: 127.0.0.1, which other machines cannot reach")
    parser.add_argument("--port", type=int, default=8000, help="default: 8000")
    parser.add_argument("--decodes", type=at_least(1), default=2, help="at the same time; others wait (default: 2)")
    parser.add_argument("--waiting", type=at_least(0), default=8, help="clients; others get a 503 (default: 8)")
    parser.add_argument(
        "--client-timeout",
        type=at_least(1, float),
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
    parser.add_argument(
        "--max-pixels",
        type=at_least(1),
        default=MAX_PIXELS,
        metavar="N",
        help=f"frames times width times height of a video (default: {MAX_PIXELS:,}, 960 frames of 1920x1088)",
    )
    parser.add_argument(
        "--max-seconds",
        type=at_least(1, float),
        default=MAX_SECONDS,
        metavar="SECONDS",
        help="that a decode may take, with the waits for its client (default: 3600)",
    )
    parser.add_argument(
        "--grace",
        type=at_least(0),
        default=3,
        metavar="SECONDS",
        help="that decodes have left after Ctrl-C (default: 3); a second Ctrl-C ends the server at once",
    )
    return parser.parse_args()


def load_vaes(arguments: argparse.Namespace) -> VAEs:
    """The networks that the command names."""
    model = str(demo.VAE) if arguments.demo else arguments.model
    sound = find_sound_decoder(arguments.audio_model, model)
    audio_vae = None if sound is None else AudioVAE.from_pretrained(sound, encoder=False)
    return VAEs(VideoVAE.from_pretrained(model, encoder=False), audio_vae)


def main() -> None:
    """Run the server."""
    arguments = parse_arguments()
    try:
        vaes = load_vaes(arguments)
    except LTXVAEError as error:
        sys.exit(f"error: {error}")
    if arguments.demo:
        print(f"Latents to try: {demo.LATENTS}")
    app = make_app(
        vaes.video,
        audio_vae=vaes.audio,
        decodes=arguments.decodes,
        waiting=arguments.waiting,
        client_timeout=arguments.client_timeout,
        max_pixels=arguments.max_pixels,
        max_seconds=arguments.max_seconds,
        allowed_hosts=[*LOCAL, arguments.host, *arguments.allowed_host],
    )
    config = uvicorn.Config(
        app,
        host=arguments.host,
        port=arguments.port,
        timeout_graceful_shutdown=arguments.grace,
        limit_concurrency=MAX_CONNECTIONS,
    )
    server = Server(config, app.state.pool)
    with suppress(KeyboardInterrupt):
        server.run()
    mx.clear_streams()
    if not server.started:
        sys.exit(1)  # its log says why


if __name__ == "__main__":
    main()
