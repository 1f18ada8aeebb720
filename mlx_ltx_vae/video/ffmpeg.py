"""ffmpeg: imageio-ffmpeg's, or the one in IMAGEIO_FFMPEG_EXE. It runs here only, and its output is read here.

The `write_frames` of imageio-ffmpeg raises nothing for an unknown codec, and does not tell why ffmpeg fails.
"""

import errno
import io
import os
import re
import secrets
import select
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import IO

from ..errors import LTXVAEError, ReaderError, WriterError, excerpt
from ..files import expand_path
from ..process import Cleanup, kill_program, uninterrupted

MAX_SILENCE = 60  # seconds without a sign of life, before it counts as dead
TICK = 1.0  # seconds between two looks for one
PIPE_BYTES = 1 << 16  # what a pipe holds
_PIPES = 4  # of a program: its standard streams, and one for an error of its start
_PROGRAM_VARIABLE = "IMAGEIO_FFMPEG_EXE"  # read by imageio-ffmpeg
# The oldest ffmpeg that is tried. Older ones describe frames otherwise, have no -stats_enc_pre, or shift live audio.
_LEAST_VERSION, _LEAST_YEAR = 7, 2024
_REMEDIES = {
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.EAGAIN: "end other programs, or raise the limit of processes (ulimit -u)",
}
_SILENT = "ffmpeg failed: it has not responded for {} seconds."
_GLOBAL_OPTIONS = ("-hide_banner", "-nostdin", "-y", "-nostats")

_NUM_LAST = 50  # lines that are kept of a log without marks
_MAX_LINE = 1 << 13  # bytes of a line of ffmpeg's log; it may name two files
_MAX_DUMP = 10_000  # lines of the log before the input, and of that from the first output on
_ADDRESS = re.compile(r"^(\[[^\]]*\] )+")  # "[vost#0:0/libx264 @ 0x55cb] [enc:libx264 @ 0x55cc] "
# After the cause, ffmpeg logs its consequences, one line for each of its threads.
_CONSEQUENCE = re.compile(
    r"Task finished|Terminating thread|Error sending frames|Nothing was written|Could not open encoder"
    r"|Decoding error|Error (processing|submitting) packet"
    r"|Error while opening encoder|Error selecting an encoder|Error opening (in|out)put files?\b|Conversion failed"
    r"|Failed to configure input pad|Error reinitializing filters|To ignore this|Failed to set value|Error parsing op"
)
#: Stands in ffmpeg's arguments for a random word: the lines of a filter of this name are its own.
MARK = "<mark>"
_MARK_BYTES = 6
_MISSING = re.compile(r"(\[out#\d+/\w+ @ \w+\] )?Stream map '[\w:]*' matches no streams\.")
_STREAM = re.compile(r"\[info\]   Stream #0:\d+\S*: (.*)")
_FILTER = re.compile(r"\[\w+@(\w+) @ \w+\] \[info\] (.*)")
_NO_TEXT = ("-map_metadata", "-1", "-map_chapters", "-1")
#: The longest end of a stream that is read to find its length, in seconds and packets.
_LAST_SECONDS, _MAX_PACKETS = "1", 10_000
_NO_TIME = -(2**63)  # of a packet, as ffmpeg writes it
# "#tb 0: 1/90000", and for each packet its stream, when it is decoded and shown, its duration, and more.
_UNIT = re.compile(r"#tb \d+: (\d+/[1-9]\d*)")
_PACKET = re.compile(r"\d+, +(-?\d+), +(-?\d+), +(-?\d+),(.*)")
_FLAGS, _DISCARDED = re.compile(r"F=0x(\w+)"), 4  # of a packet that is not only a key frame
_TIME = "{ni} {pts} {tb}"  # for each frame: its number in the file and its time, in units of the time base
# Formats that are lists, scripts and descriptions of other files and addresses, which ffmpeg would open.
_REFERRING = {
    "hls", "dash", "webm_dash_manifest", "concat", "imf", "sdp", "sap", "rtp", "rtsp", "avisynth", "vapoursynth",
    "vobsub", "dvdvideo", "svg_pipe",
}  # fmt: skip


class FfmpegProcess:
    """Running ffmpeg. Its log is kept, as the reason of a failure. Raises `error` if it cannot start.

    If it `writes_output`, that is its standard output (`pipe:1`, the last of its arguments), which is read here, and it
    writes its progress, twice a second and at the end, to a pipe of its own. Otherwise its standard input is open, and
    its standard output has the progress. It also gets the `inherited` open files. The `marks` are a `LogReader`'s.
    Relative paths among the arguments are in the `folder`.
    """

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        inherited: Sequence[int] = (),
        error: type[LTXVAEError] = ReaderError,
        *,
        marks: Sequence[str] = (),
        writes_output: bool = True,
        folder: Path | None = None,
    ) -> None:
        self.name, self._error = name, error
        self._owner = os.getpid()
        level = "repeat+level+info" if marks else "repeat+error"
        stdin = subprocess.DEVNULL if writes_output else subprocess.PIPE
        with ExitStack() as stack:
            progress, end = stack.enter_context(pipe_from_ffmpeg(error)) if writes_output else (None, 1)
            if writes_output:
                arguments, inherited = [*arguments, "pipe:1"], [*inherited, end]
            options = [*_GLOBAL_OPTIONS, "-loglevel", level, "-progress", f"pipe:{end}"]
            self.process, self._end = _start([*options, *arguments], error, self, stdin, inherited, folder)
        assert self.process.stdout is not None and self.process.stderr is not None
        self._stdout = self.process.stdout
        self._progress = LogReader(progress or self._stdout)
        # Read all the time: an ffmpeg whose log pipe is full stops.
        self._log = LogReader(self.process.stderr, marks)

    def kill(self) -> None:
        """End ffmpeg at once; a transfer on another thread fails. Call `release` when no transfer is running."""
        if self._owner == os.getpid():
            self.process.kill()
            self.process.wait()

    def release(self) -> None:
        self._end.cancel()
        self._log.join()
        self._progress.join()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()

    def close(self) -> None:
        self.kill()
        self.release()

    def wait_for_end(self) -> tuple[int, list[str]]:
        """Wait until ffmpeg has ended: its return code, and the lines of its log."""
        self._wait_until(lambda: self._log.has_ended(TICK))  # at once; `Popen.wait` looks now and then
        self._wait_until(self._has_ended)
        return self.process.returncode, self._log.join()

    def read_into(self, buffer: memoryview) -> int:
        """Fill a buffer of bytes and return their number, which is less than its length only at the end."""
        if self._owner != os.getpid():
            raise ReaderError(f"{self.name}: is read by the process that opened it; open it again in this one.")
        descriptor, filled = self._stdout.fileno(), 0
        while filled < len(buffer):
            self._wait_for_transfer(descriptor, select.POLLIN)
            count = os.readv(descriptor, [buffer[filled:]])
            if not count:
                break
            filled += count
        return filled

    def read(self, size: int) -> bytes:
        """Read `size` bytes, or fewer at the end."""
        data = bytearray(size)
        return bytes(data[: self.read_into(memoryview(data))])

    def wait(self) -> tuple[int, str]:
        """Wait for ffmpeg, whose output has ended: its return code, and the cause that it logged, "" if nothing."""
        code, log = self.wait_for_end()
        return code, find_reason(log, code) if code or self._log.count else ""

    def _wait_until(self, is_done: Callable[[], object]) -> None:
        """Call `is_done`, which waits for a tick at most, until it is true.

        An ffmpeg that gives no sign of life meanwhile is ended: one that is stopped, or that got SIGTERM and waits for
        more audio, which only comes with more frames.
        """
        if not lives_until(is_done, self._signs):
            self.kill()
            raise self._error(f"{self.name}: {_SILENT.format(MAX_SILENCE)}")

    def _wait_for_transfer(self, descriptor: int, event: int) -> None:
        pipe = select.poll()
        pipe.register(descriptor, event)
        self._wait_until(lambda: pipe.poll(1000 * TICK))

    def _signs(self) -> object:
        """Return a value that changes while ffmpeg works."""
        return self._progress.count, self._log.count

    def _has_ended(self) -> bool:
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(TICK)
        return self.process.returncode is not None


class LogReader:
    """Reads a pipe to its end on a thread, and closes it. It keeps the last lines, or those that only ffmpeg writes.

    A log of the level "info" has all text in the file: tags and their names, chapters, languages, with line breaks
    where they have some. It is between the lines in which ffmpeg names the input and the first output. With `marks`,
    which these lines have, what is between them is left out. The marks are random, so no author of a file knows them.
    """

    def __init__(self, pipe: IO[bytes], marks: Sequence[str] = ()) -> None:
        self.count = 0  # of lines that are not empty
        self._pipe = pipe
        self._lines: deque[str] = deque(maxlen=None if marks else _NUM_LAST)
        lines = _leave_out_text(self._read(), marks) if marks else self._read()
        self._thread = threading.Thread(target=self._lines.extend, args=(lines,), name="ffmpeg-reader", daemon=True)
        self._thread.start()

    def join(self) -> list[str]:
        """Wait for the end, and return the beginnings of the lines that are kept."""
        self._thread.join()
        return self.lines

    @property
    def lines(self) -> list[str]:
        """Beginnings of the lines that are kept so far."""
        return list(self._lines.copy())

    def has_ended(self, timeout: float) -> bool:
        """Return whether ffmpeg ends within this many seconds."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _read(self) -> Iterator[str]:
        is_new = True
        with io.BufferedReader(self._pipe) as log:  # type: ignore[type-var]  # the pipe is not buffered
            while part := log.readline(_MAX_LINE):
                if is_new:
                    line = part.decode(errors="replace").rstrip()
                    self.count += bool(line)
                    yield line
                is_new = part.endswith(b"\n")


def _leave_out_text(lines: Iterable[str], marks: Sequence[str]) -> Iterator[str]:
    """Yield the lines of a log without those after the input's marked one and before the first output's."""
    is_open, room = True, _MAX_DUMP
    for line in lines:
        if any(mark in line for mark in marks):
            if line.startswith(("[info] Input #", "[info] Output #")):
                is_open, room = line.startswith("[info] Output #"), _MAX_DUMP
        elif not is_open:
            continue
        if room:
            yield line
            room -= 1


def find_reason(lines: Sequence[str], return_code: int) -> str:
    """Return the last line that names a cause, without the addresses before it."""
    if return_code == -signal.SIGXFSZ:
        return "the file would be larger than the limit of this process (ulimit -f)"
    texts = [_ADDRESS.sub("", line.lstrip()).rstrip(".") for line in lines if line]
    causes = [text for text in texts if not _CONSEQUENCE.match(text)]
    if texts:
        return excerpt(causes[-1] if causes else texts[0], 1000)
    if return_code < 0:
        return f"it was ended by signal {-return_code}"
    return f"it returned {return_code} and logged nothing"


def _start(
    arguments: Sequence[str],
    error: type[LTXVAEError],
    owner: object,
    stdin: int,
    inherited: Sequence[int],
    folder: Path | None,
) -> tuple[subprocess.Popen[bytes], Cleanup]:
    """Start ffmpeg. It is ended with its owner, and at the latest with this process."""
    with uninterrupted(), _ffmpeg_program(error) as program:
        process = subprocess.Popen(
            [os.path.abspath(program) if os.path.dirname(program) else program, *arguments],
            cwd=folder,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env=os.environ | {"SVT_LOG": "1"},  # SVT-AV1 ignores ffmpeg's log level; 1 is errors only
            start_new_session=True,  # Ctrl-C on a terminal reaches this process only, which then ends ffmpeg
            pass_fds=inherited,
        )
        return process, Cleanup(owner, kill_program, process)


@contextmanager
def pipe_from_ffmpeg(error: type[LTXVAEError]) -> Iterator[tuple[io.FileIO, int]]:
    """Yield a pipe to read, and the number of its other end, which an ffmpeg gets that is started in the with-block."""
    read_end, write_end = make_pipe(error)
    pipe = io.FileIO(read_end)
    try:
        yield pipe, write_end
    except BaseException:
        pipe.close()
        raise
    finally:
        os.close(write_end)  # ffmpeg has its own, whose end is the end of the pipe


def make_pipe(error: type[LTXVAEError]) -> tuple[int, int]:
    """Return the read and write ends of a pipe. ffmpeg gets one of them."""
    with _ffmpeg_program(error):
        return os.pipe()


@contextmanager
def _ffmpeg_program(error: type[LTXVAEError]) -> Iterator[str]:
    """Yield the path of ffmpeg. Raises `error` if it is not found, or cannot be started in the with-block."""
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        raise error(
            "this program ignores SIGCHLD, so that it cannot tell whether ffmpeg has failed; let it call "
            "signal.signal(signal.SIGCHLD, signal.SIG_DFL)."
        )
    is_chosen = _PROGRAM_VARIABLE in os.environ
    remedy = f"correct or unset {_PROGRAM_VARIABLE}" if is_chosen else "reinstall imageio-ffmpeg"
    try:
        program, version = _look_up(_find_ffmpeg())
        if not version:
            raise RuntimeError(f"{program}: is another program")
        if _is_too_old(version):
            number = version.split()[1]
            raise error(f"{program}: is ffmpeg {number}, and at least {_LEAST_VERSION}.0 is needed; {remedy}.")
        yield program
    except OSError as problem:
        is_limit = problem.filename is None or problem.errno in _REMEDIES  # and has nothing to do with the program
        if is_limit:
            remedy = _REMEDIES.get(problem.errno or 0, "end other programs")
        reason = ": ".join(filter(None, [None if is_limit else problem.filename, problem.strerror]))
        raise error(f"ffmpeg cannot be started ({reason}); {remedy}.") from problem
    except ImportError as problem:
        raise error(f"ffmpeg cannot be started ({problem}); install imageio-ffmpeg, which brings it.") from problem
    except RuntimeError as problem:
        raise error(f"ffmpeg cannot be started ({problem}); {remedy}.") from problem


def _find_ffmpeg() -> str:
    """Return its path. Raises an `OSError` if fewer files are left to open than any program needs that is started.

    imageio-ffmpeg starts it the first time, and otherwise remembers that there is none.
    """
    with ExitStack() as stack:
        for descriptor in (end for _ in range(_PIPES) for end in os.pipe()):
            stack.callback(os.close, descriptor)
    from imageio_ffmpeg import get_ffmpeg_exe  # which decodes to arrays do not need

    return get_ffmpeg_exe()


@lru_cache
def _look_up(program: str) -> tuple[str, str]:
    """Return the path of ffmpeg, and what it says of its version and its year; "" for another program."""
    path = expand_path(program, ReaderError)
    line = (_ask(path, "-version") or "").partition("\n")[0]
    return path, line.removeprefix("ffmpeg ") if line.startswith("ffmpeg ") else ""


def _ask(program: str, *options: str) -> str | None:
    """Return what ffmpeg prints about itself for some options, or `None` if it does not respond."""
    command, limit = [program, *options], MAX_SILENCE
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=limit)
    except subprocess.TimeoutExpired:
        return None
    return done.stdout.decode(errors="replace")


def _is_too_old(version: str) -> bool:
    """Return whether a version is known to lack what is needed. Development builds have no number, but a year."""
    number, year = re.match(r"version n?(\d+)\.", version), re.search(r"\(c\) 2000-(\d+)", version)
    return int(number[1]) < _LEAST_VERSION if number else year is not None and int(year[1]) < _LEAST_YEAR


def lives_until(is_done: Callable[[], object], signs: Callable[[], object]) -> bool:
    """Call `is_done`, which waits for a tick at most, until it is true; false if the signs have stayed as they are.

    Ticks are counted rather than seconds: this process may have been stopped itself.
    """
    now, silence = None, 0
    while not is_done():
        before, now = now, signs()
        silence = silence + 1 if now == before else 0
        if silence * TICK >= MAX_SILENCE:
            return False
    return True


class FfmpegDecoder(FfmpegProcess):
    """Running ffmpeg that writes raw frames."""

    def __init__(self, name: str, arguments: Sequence[str]) -> None:
        self._num_timed = 0
        in_order = ["-bsf:v", "setts=ts=N"]  # ffmpeg refuses to write frames whose times do not increase
        with pipe_from_ffmpeg(ReaderError) as (pipe, write_end):
            times = ["-enc_time_base", "demux", "-stats_enc_pre", f"pipe:{write_end}", "-stats_enc_pre_fmt", _TIME]
            # -xerror stops at the first error. (-err_detect explode finds no more errors, and hangs.)
            super().__init__(name, ["-xerror", *arguments, *times, *in_order], [write_end])
        self._times = io.BufferedReader(pipe)

    def read_times(self, num_frames: int) -> list[Fraction]:
        """Return the times in seconds of the next frames; the last one has been read."""
        return [self._time(self._times.readline()) for _ in range(num_frames)]  # written before the frame itself

    def _time(self, line: bytes) -> Fraction:
        number, time, unit = line.decode().split()
        if int(number) != self._num_timed:
            lost = f"{self.name}: ffmpeg has lost frame {self._num_timed}"
            raise ReaderError(f"{lost}; convert the video first: ffmpeg -i VIDEO -c:v ffv1 NEW.mkv.")
        self._num_timed += 1
        return int(time) * Fraction(unit)

    def finish(self, *, is_enough: bool = False) -> None:
        """Wait for ffmpeg, whose output has ended, or end it if it `is_enough`. Any error in its log is raised."""
        if is_enough:
            self.kill()
        code, reason = self.wait()
        if (code and not is_enough) or self._log.count:  # of a truncated file it only logs
            raise ReaderError(f"{self.name}: is damaged or truncated; ffmpeg says: {reason}.")

    def close(self) -> None:
        self._times.close()
        super().close()


def read_output(arguments: Sequence[str], max_bytes: int = sys.maxsize, name: str = "ffmpeg") -> str:
    """Return the standard output of ffmpeg, or its beginning, also if ffmpeg fails."""
    return run_ffmpeg(name, arguments, ReaderError, max_bytes=max_bytes)[1]


def _read_all(reader: FfmpegProcess, max_bytes: int = sys.maxsize) -> bytes:
    content = bytearray()
    while len(content) < max_bytes and (part := reader.read(PIPE_BYTES)):
        content += part
    return bytes(content[:max_bytes])


@lru_cache
def listing(*options: str, error: type[LTXVAEError]) -> list[list[str]]:
    """Return the words of each line that ffmpeg prints for options such as `-encoders`."""
    with _ffmpeg_program(error) as program:
        text = _ask(program, *_GLOBAL_OPTIONS, *options)
    if text is None:
        raise error(f"ffmpeg: {_SILENT.format(MAX_SILENCE)}")
    return [line.split() for line in text.splitlines()]


def check_encoder(name: str, encoder: str, needs: str, alternatives: Mapping[str, str]) -> None:
    """Raise a `WriterError` if this ffmpeg lacks an encoder. It lists the `alternatives` that ffmpeg has."""
    built = {row[1] for row in listing("-encoders", error=WriterError) if len(row) > 1}
    if encoder not in built:
        there = [name for name, other in alternatives.items() if other in built]
        use = f"use {' or '.join(there)}, which it has" if there else "use the ffmpeg of imageio-ffmpeg"
        raise WriterError(f"{name}: this ffmpeg was built without {encoder}, {needs}; {use}.")


def run_ffmpeg(
    name: str,
    arguments: Sequence[str],
    error: type[LTXVAEError],
    marks: Sequence[str] = (),
    max_bytes: int = sys.maxsize,
) -> tuple[int, str, list[str]]:
    """Run an ffmpeg that writes to its standard output: its return code, output and log, or the first `max_bytes`."""
    with closing(FfmpegProcess(name, arguments, error=error, marks=marks)) as reader:
        output = _read_all(reader, max_bytes)
        code, log = reader.wait_for_end() if len(output) < max_bytes else (0, [])
        return code, output.decode(errors="replace"), log


@dataclass(frozen=True)
class Description:
    """ffmpeg's description of an input, without text from the file, which could imitate it."""

    demuxer: str
    streams: list[list[str]]  # first those with pictures; of each a line, and the lines of its side data
    filtered: list[str]  # what filters with the name `MARK` say
    output: str


def describe(
    name: str, kind: str, arguments: Sequence[str], stream: str, output: Sequence[str], error: type[LTXVAEError]
) -> Description | None:
    """Read an input, which the last of the `arguments` names, as far as an output of this stream does.

    The arguments of the output end in its format, and may have filters with the name `MARK`. All streams take part, so
    that times are the file's: for MPEG-TS and the like, ffmpeg would let them begin with the streams that it
    reads. None if the stream is missing. Raises `error` if the input cannot be read.
    """
    mark = secrets.token_hex(_MARK_BYTES)
    path = arguments[-1].removeprefix("file:")
    path = path if os.path.isabs(path) else os.path.join(os.getcwd(), path)
    # Before ffmpeg's name of the format there is no text of the file, and after it the mark replaces the path's /.
    slashes = "".join("/." if bit == "1" else "/" for bit in f"{int(mark, 16):b}") + "/"
    url, marks = [*arguments[:-1], f"file:{slashes}{path}"], (f", from 'file:{slashes}", mark)
    output = [word.replace(MARK, mark) for word in (*output[:-2], *_NO_TEXT, *output[-2:])]
    for streams in (["-map", "0:v?", "-map", "0:a?"], ["-map", stream]):  # a stream may be too damaged to take part
        # Copied streams are described before anything is read, and no other thread writes into the log.
        all_streams = [*streams, "-c", "copy", "-frames", "0", *_NO_TEXT, "-f", "null", mark]
        words = [*url, *all_streams, *output]
        code, content, log = run_ffmpeg(name, words, error, marks)
        if not code and (description := _parse(log, content, *marks)):
            return description
    code, _, log = run_ffmpeg(name, words, error)  # whose log has errors only, and no text of the file
    if any(map(_MISSING.fullmatch, log)):
        return None
    if any("Format not on whitelist" in line for line in log):
        raise error(
            f"{name}: is a playlist or the like, which names other files; they are never followed, so name the "
            f"{kind} itself."
        )
    raise error(f"{name}: contains no {kind} that ffmpeg can read: {find_reason(log, code)}.")


def _parse(log: list[str], output: str, mark_of_input: str, mark: str) -> Description | None:
    opened = next((index for index, line in enumerate(log) if mark_of_input in line), None)
    copied = f"[info] Output #0, null, to '{mark}':"
    if opened is None or copied not in log:
        return None
    start = log.index(copied) + 1
    streams: list[list[str]] = []
    for line in log[start:]:
        if not line.startswith("[info]   "):
            break
        stream = _STREAM.fullmatch(line)
        if stream:
            streams.append([stream[1]])
        elif streams:
            streams[-1].append(line.removeprefix("[info]").strip())
    filtered = [line[2] for line in map(_FILTER.fullmatch, log[start:]) if line and line[1] == mark]
    demuxer = log[opened].split(", ")[1]
    return Description(demuxer, streams, filtered, output)


@dataclass(frozen=True, order=True, slots=True)
class Packet:
    """Time and duration of a packet in seconds. The time is when it is decoded, if the file does not say more."""

    time: Fraction
    length: Fraction
    is_shown: bool  # an edit list leaves out packets at the start, which only later ones need


def read_times(arguments: Sequence[str]) -> tuple[list[Fraction], Fraction | None]:
    """Return the times of a stream's packets in seconds, in the order of display, and when the last one ends.

    The file is read, and nothing decoded: headers state the duration of the longest stream, or estimate it.
    """
    packets = parse_packets(read_output([*arguments, "-c", "copy", "-f", "framecrc"]))
    return [packet.time for packet in packets], max((packet.time + packet.length for packet in packets), default=None)


def parse_packets(text: str) -> list[Packet]:
    """Parse the packets that ffmpeg lists as "framecrc", by their times: a line for each, without text of the file.

    Other lines are passed over, such as the last one of an ffmpeg that was ended.
    """
    unit, packets = Fraction(1), []
    for line in text.splitlines():
        if match := _UNIT.fullmatch(line):
            unit = Fraction(match[1])
        elif match := _PACKET.fullmatch(line):
            decoding_time, display_time, length = map(int, match.groups()[:3])
            time = decoding_time if display_time == _NO_TIME else display_time
            flags = _FLAGS.search(match[4])
            is_shown = flags is None or not int(flags[1], 16) & _DISCARDED
            packets.append(Packet(time * unit, length * unit, is_shown))
    return sorted(packets)


def read_length(name: str, arguments: Sequence[str], stream: str) -> tuple[Fraction | None, list[Packet]]:
    """Return how long a stream takes from its first packet on, `None` if that is unknown, and its packets.

    There are no packets if not all are read. Only the end is read, if the file says where that is, and nothing decoded.
    """
    copied = ["-c", "copy", "-copyinkf", "-f", "framecrc"]
    with pipe_from_ffmpeg(ReaderError) as (pipe, write_end):
        first = ["-map", f"0:{stream.removeprefix('0:')}", "-frames", "1", *copied, f"pipe:{write_end}"]
        last = ["-map", f"1:{stream.removeprefix('0:')}", "-frames", str(_MAX_PACKETS), *copied]
        both = ["-copyts", *arguments, "-sseof", f"-{_LAST_SECONDS}", *arguments]
        reader = FfmpegProcess(name, [*both, *first, *last], [write_end])
    with closing(reader), pipe:
        end = parse_packets(_read_all(reader).decode())
        code, _ = reader.wait()
        start = parse_packets(pipe.readall().decode())  # a line, which the pipe holds
    if not start or not end or code or len(end) == _MAX_PACKETS:
        return None, []
    shown_packets = [packet for packet in end if packet.is_shown]
    begin = start[0].time if start[0].is_shown else Fraction(0)  # where an edit list begins
    # Times of a stream without a container may be wrong, and its packets are all read.
    lengths = sum((packet.length for packet in shown_packets), Fraction(0))
    length = max([lengths, *(packet.time + packet.length - begin for packet in shown_packets)])
    return length, end if end[0].time == start[0].time else []


def input_arguments(path: str | os.PathLike) -> list[str]:
    """Return the arguments for ffmpeg to read a file, and no other file, address or device that the file may name."""
    rows = listing("-demuxers", error=ReaderError)  # "D", "d" for a device, names separated by commas, a description
    names = [row[1] for row in rows if row[:1] == ["D"] and len(row) > 2 and row[1] != "d"]
    formats = ",".join(name for name in names if name not in _REFERRING)
    # As a URL, the path may have colons, dashes and percent signs.
    return ["-protocol_whitelist", "file,pipe", "-format_whitelist", formats, "-i", f"file:{path}"]
