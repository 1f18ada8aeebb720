"""The example of a web service: a real server, a real client, and a decode that the tests can hold up."""

import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path

import httpx
import mlx.core as mx
import numpy as np
import pytest
import uvicorn

from conftest import active_memory
from examples import server
from mlx_ltx_vae import (
    DecodeCancelled,
    DecodeError,
    FrameChunk,
    VideoVAE,
    WriterError,
    demo,
    load_latents,
    save_latents,
)
from video_files import children, psnr, run_ffmpeg

PATIENCE = 60  # seconds, for what must happen at all
ROOT = Path(server.__file__).parents[1]
SIZE = (128, 96)
FRAMES = 33


class HeldStream(AbstractContextManager):
    """A stream that waits for `released` before the frames from `hold_at` on. Cancelling it ends the wait."""

    def __init__(self, vae, chunks):
        self._vae, self._chunks, self.frames = vae, chunks, 0
        self.released, self.cancelled, self.closed = threading.Event(), threading.Event(), threading.Event()

    def __iter__(self):
        for chunk in self._chunks:
            if chunk.start >= self._vae.hold_at:
                assert self.released.wait(3 * PATIENCE)
            if self.cancelled.is_set():
                raise DecodeCancelled("the run was cancelled.")
            self.frames = chunk.start + chunk.frames.shape[1]
            yield chunk

    def cancel(self):
        self.cancelled.set()
        self.released.set()

    def __exit__(self, *_):
        self._chunks.close()
        self.closed.set()


class HeldVAE:
    """The demo VAE, whose streams are held at `hold_at`, after the frames of the first fragment."""

    def __init__(self, vae):
        self.config, self.plan, self.mean, self.std = vae.config, vae.plan, vae.mean, vae.std
        self.make_chunks, self.hold_at = vae.stream, 16
        self.streams: list[HeldStream] = []

    def stream(self, *arguments, **options):
        self.streams.append(HeldStream(self, self.make_chunks(*arguments, **options)))
        return self.streams[-1]


@pytest.fixture(scope="module")
def demo_vae():
    return VideoVAE.from_pretrained(demo.VAE, encoder=False).load()  # tests measure what a decode adds


@pytest.fixture
def vae(demo_vae):
    return HeldVAE(demo_vae)


@pytest.fixture(scope="module")
def upload(demo_vae, tmp_path_factory):
    """A file of latents of 33 frames of the demo, which are not normalized."""
    path = tmp_path_factory.mktemp("upload") / "clip.safetensors"
    mean, std = (mx.reshape(each, (64, 1, 1, 1)) for each in (demo_vae.mean, demo_vae.std))
    latents = load_latents(demo.LATENTS)[0][:, :, :5, :3, :4] * std + mean
    mx.save_safetensors(str(path), {"latents": latents}, {"normalized": "false"})
    return path.read_bytes()


@contextmanager
def serving(vae, **options):
    """The address of the service, run by uvicorn on a thread."""
    app = server.make_app(vae, **options)
    limits = {"timeout_graceful_shutdown": 0, "http": server.Protocol}
    runner = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", **limits))
    thread = threading.Thread(target=runner.run)
    thread.start()
    try:
        until(lambda: runner.started)
        yield f"http://127.0.0.1:{runner.servers[0].sockets[0].getsockname()[1]}"
    finally:
        runner.should_exit = True
        thread.join()
        assert "decode_0" not in [thread.name for thread in threading.enumerate()] and children() == []


def until(condition):
    """Wait for what must happen."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def post(address, data, **options):
    return httpx.post(f"{address}/video", content=data, **{"timeout": PATIENCE} | options)


def posting(address, data, client=httpx):
    """A context manager: the response, of which only the status has been read."""
    return client.stream("POST", f"{address}/video", content=data, timeout=PATIENCE)


def send(address, data, length=None):
    """A connection on which a request has been sent, or its beginning."""
    url = httpx.URL(address)
    connection = socket.create_connection((url.host, url.port), PATIENCE)
    head = f"POST /video HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length or len(data)}\r\n\r\n"
    connection.sendall(head.encode() + data)
    return connection


def play(data):
    raw = run_ffmpeg("-i", "pipe:0", "-pix_fmt", "rgb24", "-f", "rawvideo", "-", data=data)
    return np.frombuffer(raw, np.uint8).reshape(-1, SIZE[1], SIZE[0], 3)


def test_the_video_plays_before_it_is_decoded_and_has_the_frames_of_a_decode(vae, demo_vae, upload, monkeypatch):
    def bytes_written(parts):  # waits for a slow ffmpeg
        until(lambda: not parts.empty() or vae.streams[0].frames < 16 or vae.streams[0].released.is_set())
        return server.SimpleQueue.qsize(parts)

    monkeypatch.setattr(server.Parts, "qsize", bytes_written)
    with serving(vae) as address, posting(address, upload) as response:
        assert response.status_code == 200
        assert response.headers["content-type"] == 'video/mp4; codecs="avc1.640033"'
        parts = response.iter_raw()
        data = b""
        while b"mdat" not in data:
            data += next(parts)
        early = play(data)
        assert vae.streams[0].frames < FRAMES
        vae.streams[0].released.set()
        data += b"".join(parts)
    expected = demo_vae.decode_uint8(load_latents(demo.LATENTS)[0][:, :, :5, :3, :4])
    result = play(data)
    assert result.shape == expected.shape == (FRAMES, 96, 128, 3)
    assert psnr(result, expected) > 35
    assert 0 < len(early) < FRAMES
    np.testing.assert_array_equal(early, result[: len(early)])


def test_a_client_that_disconnects_ends_the_decode_and_ffmpeg_and_frees_memory(vae, upload):
    before = active_memory()
    with serving(vae) as address:
        with posting(address, upload) as response:
            assert response.status_code == 200
            assert active_memory() > before
        assert vae.streams[0].closed.wait(PATIENCE)
        until(lambda: children() == [])
    assert vae.streams[0].frames < FRAMES
    vae.streams.clear()
    assert active_memory() <= before


def failing(error):
    def chunks(*_, **__):
        for chunk, _ in zip(noise(), range(3), strict=False):
            yield chunk
        raise error

    return chunks


@pytest.mark.parametrize(
    "error", [DecodeError("the network returned NaN\nin frame 24."), WriterError("no space is left.")]
)
def test_an_error_after_the_response_has_begun_is_one_line_of_the_log(vae, upload, capsys, error):
    vae.make_chunks, vae.hold_at = failing(error), 99
    with serving(vae) as address:
        for _ in range(2):
            with pytest.raises(httpx.RemoteProtocolError), posting(address, upload) as response:
                assert response.status_code == 200
                response.read()
        assert vae.streams[1].closed.wait(PATIENCE)
    lines = [line for line in capsys.readouterr().err.splitlines() if "graceful shutdown" not in line]  # of this server
    assert lines == [f"ERROR:    A video ends early: {error}".replace("\n", " ")] * 2


@pytest.mark.slow
def test_one_video_is_decoded_at_a_time_and_nothing_for_clients_that_have_left(vae, upload):
    with serving(vae) as address, posting(address, upload) as first:
        assert first.status_code == 200
        with pytest.raises(httpx.ReadTimeout):
            post(address, upload, timeout=httpx.Timeout(PATIENCE, read=1))
        with send(address, upload) as waiting:
            vae.hold_at = FRAMES
            vae.streams[0].released.set()
            assert len(play(first.read())) == FRAMES
            assert waiting.recv(12) == b"HTTP/1.1 200"
        assert post(address, upload).status_code == 200
        assert len(vae.streams) == 3
        assert len([thread for thread in threading.enumerate() if thread.name.startswith("decode")]) == 1


def noise(*_, **__):
    """A long clip, 80 MB as mp4."""
    frames = np.random.default_rng(0).integers(0, 256, (1, 8, SIZE[1], SIZE[0], 3), np.uint8)
    for start in range(0, 8000, 8):
        yield FrameChunk(start, mx.array(frames))


@pytest.mark.slow
def test_a_client_that_stops_reading_loses_its_turn(vae, upload, monkeypatch, capsys):
    vae.make_chunks, vae.hold_at = noise, 8000
    monkeypatch.setattr(server, "DECODE_SECONDS", 5)
    small = httpx.HTTPTransport(socket_options=[(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)])
    with serving(vae) as address, httpx.Client(transport=small) as client, posting(address, upload, client) as response:
        assert response.status_code == 200
        assert vae.streams[0].closed.wait(PATIENCE)
        assert vae.streams[0].frames < 4000
        monkeypatch.undo()
        with posting(address, upload) as second:
            assert second.status_code == 200
        line = "ERROR:    A video ends early: it was not decoded and read within 5 s."
        assert capsys.readouterr().err.splitlines()[0] == line


@pytest.mark.slow
def test_a_decode_that_takes_too_long_ends(vae, upload, monkeypatch):
    vae.hold_at = 0
    monkeypatch.setattr(server, "DECODE_SECONDS", 0.5)
    with serving(vae) as address:
        answer = post(address, upload)
        assert (answer.status_code, answer.text) == (503, "the first part was not decoded within 0.5 s.")
        monkeypatch.undo()
        vae.hold_at = FRAMES
        assert post(address, upload).status_code == 200


def test_a_file_that_cannot_be_decoded_is_one_line_and_400(vae, tmp_path):
    names = "\x1b[2J\x00\u202e", "b\x07"
    mx.save_safetensors(str(tmp_path / "bad.safetensors"), {name: mx.zeros((1, 64, 2, 3, 4)) for name in names})
    with serving(vae) as address:
        for data in (b"these are no latents", (tmp_path / "bad.safetensors").read_bytes()):
            answer = post(address, data)
            assert answer.status_code == 400
            assert re.fullmatch("the file: .*[.]", answer.text) and answer.text.isprintable()
            assert "latents-" not in answer.text  # no path of the server
    assert not vae.streams


def test_an_upload_that_is_too_large_is_413(vae, upload, monkeypatch):
    monkeypatch.setattr(server, "MAX_UPLOAD", 1000)
    with serving(vae) as address:
        for data in (upload, iter([upload])):  # with and without its length in the header
            answer = post(address, data)
            assert (answer.status_code, answer.text) == (413, "the file is larger than 1000 bytes.")
    assert not vae.streams


@pytest.mark.slow
def test_an_upload_that_is_too_slow_is_408(vae, upload, monkeypatch):
    vae.hold_at = FRAMES
    with serving(vae) as address:
        with send(address, b"", len(upload)):
            assert post(address, upload).status_code == 200
        monkeypatch.setattr(server, "UPLOAD_SECONDS", 1)
        with send(address, b"", len(upload)) as trickle:
            while not select.select([trickle], [], [], 0.2)[0]:  # the whole upload has one deadline
                trickle.sendall(b"x")
            assert trickle.recv(12) == b"HTTP/1.1 408"


@pytest.mark.slow
def test_headers_that_do_not_end_close_the_connection(vae, upload, monkeypatch):
    monkeypatch.setattr(server, "HEADER_SECONDS", 0.3)
    half = b"POST /video HTTP/1.1\r\nHost: localhost\r\nX: "
    page = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with serving(vae) as address:
        port = int(address.rpartition(":")[2])
        for start in (half, page + half):  # of the first request, and of a second one
            with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as client:
                client.sendall(start)
                with suppress(ConnectionError):
                    while not (ready := select.select([client], [], [], 0.05)[0]) or client.recv(9999):
                        client.sendall(b"" if ready else b"x")
        vae.hold_at = 16
        with send(address, upload) as client:  # a decode that takes longer stays
            assert client.recv(12) == b"HTTP/1.1 200"
            time.sleep(1)
            vae.streams[0].released.set()
            while part := client.recv(99999):
                end = part
            assert end.endswith(b"0\r\n\r\n")


#: What browsers send with a page's request, and what other programs send.
SAME_SITE = [{}, {"Host": "LOCALHOST"}, {"Host": "[::1]:8000"}, {"Host": "mac:8000", "Origin": "http://mac:8000"}]
OTHER_NAME = [{"Host": "rebound.example:8000"}, {"Host": ""}, {"Host": "["}, {"Host": "localhost.rebound.example"}]
OTHER_SITE = ["https://other.example", "http://localhost:3000", "null", "http://[", "localhost:8000"]


def test_pages_of_other_sites_and_other_names_of_the_server_are_refused(vae):
    with serving(vae, hosts=["mac"]) as address, httpx.Client(base_url=address, timeout=PATIENCE) as client:
        for headers in SAME_SITE:
            assert "the file" in client.post("/video", headers=headers).text
            assert client.get("/", headers=headers).status_code == 200
        for headers in OTHER_NAME:
            assert client.post("/video", headers=headers).text == "Invalid host header"
            assert client.get("/", headers=headers).status_code == 400
        for origin in OTHER_SITE:
            headers = {"Host": "localhost:8000", "Origin": origin}
            assert client.post("/video", headers=headers).status_code == 403


@contextmanager
def server_process(log, **options):
    """A server as users start it, and its address."""
    command = [sys.executable, server.__file__, "--demo", "--port", "0"]
    with log.open("w") as file:
        process = subprocess.Popen(command, stderr=file, cwd=ROOT, **options)
    try:
        until(lambda: "running on" in log.read_text())
        yield process, re.findall(r"running on (http://\S+)", log.read_text())[0]
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_a_signal_ends_the_server_and_its_decode(tmp_path):
    save_latents(path := tmp_path / "x.safetensors", mx.random.normal((1, 64, 4000, 3, 4), key=mx.random.key(0)))
    endless = path.read_bytes()
    with server_process(tmp_path / "log") as (process, address), ExitStack() as clients:
        decoded = clients.enter_context(send(address, endless))
        # MLX's CPU backend has compiled its kernels then, by `system`, during which the C library drops SIGINT.
        assert decoded.recv(12) == b"HTTP/1.1 200"
        (program,) = children(process.pid)
        waiting = clients.enter_context(send(address, endless))
        sending = clients.enter_context(send(address, endless[:1000], len(endless)))
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) in (0, -signal.SIGINT)
        until(lambda: subprocess.run(["ps", "-p", str(program)], capture_output=True).returncode)
        assert waiting.recv(12) == sending.recv(12) == b"HTTP/1.1 503"
    assert "Traceback" not in (tmp_path / "log").read_text()


@pytest.mark.slow
def test_a_terminal_that_closes_ends_the_server_and_leaves_no_upload(tmp_path):
    folder = tmp_path / "temporary"
    folder.mkdir()
    environment = os.environ | {"TMPDIR": str(folder)}
    with server_process(tmp_path / "log", env=environment) as (process, address), send(address, b"latents", 1000):
        until(lambda: list(folder.glob("latents-*")))
        process.send_signal(signal.SIGHUP)
        assert process.wait(PATIENCE) == -signal.SIGHUP
    assert list(folder.glob("latents-*")) == []
    assert "Traceback" not in (tmp_path / "log").read_text()
