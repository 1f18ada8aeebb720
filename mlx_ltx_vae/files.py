"""Files: only regular files are opened, changes during a read are noticed, and outputs are complete or absent."""

import errno
import fcntl
import io
import json
import os
import re
import secrets
import shlex
import shutil
import stat
import sys
import tempfile
import unicodedata
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import Enum
from itertools import chain, count, islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, NamedTuple

from safetensors import SafetensorError, deserialize

from .errors import LTXVAEError, OutputExists, WriterError, excerpt, option, quote, warn
from .process import Cleanup, remove_file, remove_folder, uninterrupted
from .units import format_bytes

if TYPE_CHECKING:
    import numpy as np

_COPY_BYTES = 2**20  # that are in memory at once
START_BYTES = 32  # of a file, which `find_format` needs; a file may have fewer


class Format(Enum):
    """First bytes of a file of each format. A safetensors file starts with the length of its header."""

    SAFETENSORS = b"{"
    NPY = b"\x93NUMPY"
    ZIP = b"PK"  # also .npz, and what torch.save writes
    PICKLE = b"\x80"
    GIT_LFS = b"version https://git-lfs"
    GGUF = b"GGUF"
    WEB_PAGE = b"<"


def expand_path(path: object, error: type[LTXVAEError]) -> str:
    """Return a caller's path with "~" as the user's home, if it begins with that: "./~.npy" is the name of a file.

    Raises `error` for what cannot be the path of a file.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise error(
            f"expected the path of a file, a str or a Path, and found {type(path).__name__}; check the arguments."
        )
    text = os.fspath(path)
    # A Path of it would drop the "./", and be expanded where it is passed on.
    return os.path.join(os.getcwd(), text[2:]) if text.startswith("./~") else os.path.expanduser(text)


def find_format(start: bytes) -> Format | None:
    """Return the format of a file that starts with these bytes. `None` means another format."""
    # The length may begin as any other format does, but a header follows it.
    if start[8:9] == Format.SAFETENSORS.value:
        return Format.SAFETENSORS
    formats = [format for format in Format if format is not Format.SAFETENSORS]
    return next((format for format in formats if start.lstrip().startswith(format.value)), None)


# Keeps other entries than tensors (fps, sizes) as metadata, where `load_latents` finds it.
_CONVERT = (
    "import sys, torch; from safetensors.torch import save_file; "
    "d = torch.load(sys.argv[1], 'cpu', weights_only=True); d = d if isinstance(d, dict) else {'latents': d}; "
    "d = d.get('state_dict', d); t = {k: v.contiguous() for k, v in d.items() if torch.is_tensor(v)}; "
    "save_file(t, sys.argv[2], {k: str(v) for k, v in d.items() if k not in t and v is not None})"
)


def torch_conversion(source: str | os.PathLike) -> str:
    """Return the end of an error about a file of `torch.save`, which is never read: the command that converts it."""
    path = Path(source)
    target = path.with_suffix(".safetensors")
    if target == path:
        target = target.with_stem(f"{target.stem}-converted")
    files = (path, target) if os.path.isfile(path) else ("file.pt", "file.safetensors")  # it may be a pipe
    return f'convert it to safetensors: python -c "{_CONVERT}" {" ".join(shlex.quote(str(name)) for name in files)}'


#: Device, inode, size, and time of the last change in nanoseconds.
FileState = tuple[int, int, int, int]


def file_state(file: int | str | os.PathLike) -> FileState:
    """Return the state of an open file or of a path's file.

    It changes when the file is written to, and that of a path also when the file is replaced.
    """
    status = os.stat(file)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def open_file(path: str | os.PathLike, *, pipes: bool = False) -> IO[bytes]:
    """Open a regular file, also through links, or a pipe if `pipes` are allowed. Anything else is an `OSError`."""
    mode = os.stat(path).st_mode  # looked at first, since opening a device may have effects
    if stat.S_ISFIFO(mode) and not pipes:
        raise OSError(errno.EINVAL, "a pipe instead of a file", os.fspath(path))
    if not stat.S_ISREG(mode) and not stat.S_ISFIFO(mode) and not stat.S_ISDIR(mode):
        raise OSError(errno.EINVAL, "a device or a socket instead of a file", os.fspath(path))
    return Path(path).open("rb")


def is_pipe(path: str | os.PathLike) -> bool:
    """Return whether the path is a named pipe. A path that cannot be looked at is none."""
    try:
        return stat.S_ISFIFO(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False


def standard_input(content: str, error: type[LTXVAEError]) -> IO[bytes]:
    """Return standard input, from which `content` is read; raise an `error` if it is closed or a terminal."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):  # None, replaced, or closed
        raise error(f"standard input is closed; pipe {content} into it, or name one.") from None
    if stat.S_ISCHR(mode):
        raise error(f"standard input is a terminal or another device; pipe {content} into it, or name one.")
    return sys.stdin.buffer


def copy_stream(stream: IO[bytes], path: Path, source: str, error: type[LTXVAEError], start: bytes = b"") -> None:
    """Copy a stream, whose first bytes `start` were read already, to a file in a temporary folder."""
    try:
        with path.open("wb") as copy:
            copy.write(start)
            shutil.copyfileobj(stream, copy, _COPY_BYTES)
    except OSError as reason:
        text = f"{source}: cannot be copied to {path.parent.parent} ({reason.strerror or reason})"
        raise error(f"{text}; set TMPDIR to a larger disk, or name a file.") from reason


def find_temporary_folder() -> str:
    """Return the folder for temporary files. Raises an `LTXVAEError` if none can be written."""
    try:
        return tempfile.gettempdir()
    except FileNotFoundError as error:
        raise LTXVAEError(
            "no folder for temporary files can be written, neither /tmp nor /var/tmp; set the environment variable "
            "TMPDIR to one that can."
        ) from error


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Yield an empty folder in the folder for temporary files, until the end of the block."""
    with uninterrupted():
        folder = Path(tempfile.mkdtemp(prefix="mlx_ltx_vae-", dir=find_temporary_folder()))
        remove = Cleanup(None, remove_folder, folder)
    try:
        yield folder
    finally:
        remove()


def explain_missing(path: str | os.PathLike, kind: str) -> str:
    """Return the end of a sentence: why a file cannot be found. It is missing, or a folder above it cannot be read."""
    try:
        os.stat(path)
    except (OSError, ValueError) as error:
        if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
            return f"cannot be read ({getattr(error, 'strerror', None) or error})."
    return f"there is no such {kind}."


def explain_unwritable(folder: str | os.PathLike) -> str:
    """Return the end of a sentence: why no file can be made in a folder."""
    return "is read-only" if os.path.isdir(folder) else "is not a folder" if os.path.exists(folder) else "is missing"


def read_small_file(path: str | os.PathLike, max_bytes: int, *, pipes: bool = False) -> bytes:
    """Return the content of a file, opened as by `open_file`. More than `max_bytes` are an `OSError`."""
    with open_file(path, pipes=pipes) as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise OSError(errno.EFBIG, f"more than {format_bytes(max_bytes)}", os.fspath(path))
    return content


_DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "C64": "complex64", "BOOL": "bool",
    "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8",
    "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8",
}  # fmt: skip
# Limits on the files of users, for every format.
MAX_HEADER_BYTES, MAX_MEMBERS = 2**24, 2**16  # more than ten times the largest model's
MAX_WHOLE_BYTES = 2**31  # of values that can only be read all at once: an hour of video at 768x512
MAX_INSPECTED_VALUES = 2**26  # for statistics in a report: seven minutes of video at 768x512
MAX_DEFLATION, UNSUSPECTED_BYTES = 100, 10**8  # deflate makes noise 1 to 2 times smaller, and zeros 1,000 times


def check_header(num_bytes: int, num_members: int) -> None:
    """Raise a `ValueError` for a header that would take seconds and gigabytes to parse."""
    if num_bytes > MAX_HEADER_BYTES or num_members > MAX_MEMBERS:
        limits = f"{MAX_HEADER_BYTES >> 20} MB and {MAX_MEMBERS} tensors"
        raise ValueError(f"header too large; expected at most {limits}")


class TensorHeader(NamedTuple):
    """Dtype, shape and position of a tensor in a file, or in the decompressed member of an archive."""

    dtype: str  # "float32", "bfloat16", "uint8"; the file's name for dtypes of neither numpy nor MLX, such as "F8_E4M3"
    shape: tuple[int, ...]
    begin: int  # position of the first byte of its values
    end: int  # position after their last byte
    numpy_dtype: "np.dtype | None" = None  # if the file has numpy's dtypes, which have a byte order
    order: Literal["C", "F"] = "C"

    @property
    def num_bytes(self) -> int:
        return self.end - self.begin

    @property
    def has_objects(self) -> bool:
        """Flag: its values are pickled Python objects, of any size."""
        return self.numpy_dtype is not None and self.numpy_dtype.hasobject


def read_header(stream: IO[bytes] | io.RawIOBase) -> tuple[dict[str, TensorHeader], dict[str, str]]:
    """Return the tensors of a safetensors file by name, in the order of their data, and its metadata.

    Raises a `ValueError` for a file that is damaged, or of another format.
    """
    size, start = stream.seek(0, os.SEEK_END), 8
    stream.seek(0)
    text = stream.read(start)
    length = int.from_bytes(text, "little")
    text += stream.read(min(length, MAX_HEADER_BYTES + 1))
    start += length
    check_header(len(text) - 8, text.count(b'"data_offsets"'))
    try:
        deserialize(text)  # it checks that the values are there last, after everything else
    except SafetensorError as error:
        if "file not fully covered" not in str(error):
            raise ValueError(excerpt(str(error).removeprefix("Error while deserializing: "), 120)) from error
    entries = json.loads(text[8:], object_pairs_hook=_unique)
    metadata = entries.pop("__metadata__", None) or {}
    tensors = {}
    for name, entry in sorted(entries.items(), key=lambda item: item[1]["data_offsets"]):
        dtype, (begin, end) = entry["dtype"], entry["data_offsets"]
        tensors[name] = TensorHeader(_DTYPES.get(dtype, dtype), tuple(entry["shape"]), start + begin, start + end)
    if size != max((tensor.end for tensor in tensors.values()), default=start):
        raise ValueError(f"it has {size} bytes, not as many as its header says: it is truncated or damaged")
    return tensors, metadata


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object; raise a `ValueError` for repeated names."""
    entries = dict(pairs)
    if len(entries) < len(pairs):
        name = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise ValueError(f"it has {quote(name, 40)} twice")
    return entries


_STANDARD_STREAM = "-"


def file_key(path: str | os.PathLike) -> str:
    """Return a key that is equal for names of one file: through links, or in another case, which most Macs ignore."""
    return unicodedata.normalize("NFC", os.path.realpath(path)).casefold()


def check_distinct(outputs: Iterable[str | os.PathLike], inputs: Sequence[str | os.PathLike]) -> None:
    """Raise a `WriterError` if an output is an input, by name or by device and inode. "-" is a standard stream."""
    names = {file_key(path) for path in inputs if path != _STANDARD_STREAM}
    identities = {_identity(0 if path == _STANDARD_STREAM else path) for path in inputs}
    for output in outputs:
        is_stream = output == _STANDARD_STREAM
        identity = _identity(1 if is_stream else output)
        if (not is_stream and file_key(output) in names) or (identity is not None and identity in identities):
            name = "standard output" if is_stream else output
            raise WriterError(f"{name}: is one of the inputs, which are never replaced; choose another output.")


def _identity(file: str | os.PathLike | int) -> tuple[int, int] | None:
    """Return the device and the inode of a regular file. `None` means another file, where nothing is lost."""
    with suppress(OSError, ValueError):  # ValueError: a NUL in the name, which is an error where it is opened
        status = os.stat(file)
        if stat.S_ISREG(status.st_mode):
            return status.st_dev, status.st_ino
    return None


_SUBFOLDER = "output"  # of a folder that exists, see `PartFolder`
_REPLACED = ".replaced"  # folder in a part, of files whose place the new ones take
_MAX_STEM = 200  # bytes
_MAX_NUMBERS = 1000  # that are tried for an output
_WRITABLE = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH
_MAX_ENDING = 20  # characters
_NO_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)  # of file systems without fsync
LOST = "another program has moved, removed or replaced it"
_MAX_PATH = 1024  # bytes, of macOS
_LOCK_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW  # follows no link, waits for no pipe


@contextmanager
def writing_to(name: str | os.PathLike, errors: type[Exception] = OSError) -> Iterator[None]:
    """Turn errors, by default the operating system's, into a `WriterError` that names the target."""
    try:
        yield
    except WriterError:
        raise
    except errors as error:
        reason = getattr(error, "strerror", None) or error
        raise WriterError(f"{name}: cannot be written ({reason}).") from error


def make_folder(output: str) -> None:
    """Make the folder of an output. Links are written through, also to a folder that is missing."""
    with writing_to(output):
        os.makedirs(os.path.realpath(Path(output).parent), exist_ok=True)


def check_name(target: str | os.PathLike) -> None:
    """Raise a `WriterError` for a name that the file system cannot have, since it is too long or has a NUL."""
    with writing_to(target), writing_to(target, ValueError), suppress(FileNotFoundError, NotADirectoryError):
        os.lstat(target)


def check_replaceable(target: str | os.PathLike, *, overwrite: bool) -> None:
    """Raise a `WriterError` for a file that is read-only, or without `overwrite` an `OutputExists` for any file.

    Named pipes, devices and folders are never replaced anyway.
    """
    if not overwrite and os.path.isfile(target):
        way = option("pass overwrite=True", "add -y")
        text = f"{target}: already exists; choose another name, or {way} to replace it."
        raise OutputExists(text, os.fspath(target))
    if is_read_only(target):
        raise WriterError(f"{target}: already exists and is read-only; choose another name, or make it writable.")


def check_file(target: Path, *, overwrite: bool) -> None:
    """Raise the errors of a `PartFile`, except those of its folder."""
    if os.path.isdir(target):
        raise WriterError(f"{target}: cannot be written (it is a folder).")
    check_name(target)
    check_replaceable(target, overwrite=overwrite)


def check_folder(name: str, target: Path, *, makes_folders: bool = False) -> None:
    """Raise a `WriterError` if no file can be made in the folder of a target, or in the target if it is a folder.

    With `makes_folders` those that are missing can be made.
    """
    folder = target if os.path.isdir(target) else Path(os.path.realpath(target)).parent
    while makes_folders and not os.path.exists(folder):
        folder = folder.parent
    is_special = os.path.exists(target) and not os.path.isfile(target) and not os.path.isdir(target)  # a named pipe
    if not is_special and not os.access(folder, os.W_OK | os.X_OK):
        raise WriterError(f"{name}: cannot be written (the folder {folder} {explain_unwritable(folder)}).")


def is_read_only(path: str | os.PathLike) -> bool:
    """Return whether there is a file that its permissions protect, also from root."""
    return os.path.isfile(path) and not (os.stat(path).st_mode & _WRITABLE and os.access(path, os.W_OK))


def numbered_names(path: Path, *, is_folder: bool = False) -> Iterator[Path]:
    """Yield the names that follow one: clip.mp4 -> clip-1.mp4, clip-2.mp4; LTX_00009_.mp4 -> LTX_00010_.mp4."""
    stem, suffix = (path.name, "") if is_folder else (path.stem, path.suffix)
    match = re.fullmatch(r"(.*[-_])([0-9]{1,9})(_?)", stem, re.DOTALL)
    head, number, tail = match.groups() if match else (f"{_cut(stem)}-", "0", "")
    for value in count(int(number) + 1):
        yield path.with_name(f"{head}{value:0{len(number)}}{tail}{suffix}")


def _cut(stem: str) -> str:
    """Return the beginning of a long name, which leaves room for more characters."""
    return os.fsencode(stem)[:_MAX_STEM].decode(sys.getfilesystemencoding(), "ignore")


def create_part(target: Path, create: Callable[[Path], object]) -> tuple[Path, int]:
    """Create a hidden, partial file or folder beside `target`, so that a rename stays on one file system.

    It is locked until `remove_part` or the end of this process. A part that nobody has locked is removed when the next
    part for the same target is created. Its name has the same ending and at most 255 bytes.
    """
    head, tail = _part_affixes(target)
    _remove_abandoned(target)
    while True:
        path = target.with_name(head + secrets.token_hex(4) + tail)
        create(path)
        with suppress(FileNotFoundError):
            lock = os.open(path, _LOCK_FLAGS)
            with suppress(OSError):  # on file systems without locks, no process removes abandoned parts
                fcntl.flock(lock, fcntl.LOCK_EX)
            if path.exists():  # another process may have removed it before it was locked
                return path, lock
            os.close(lock)


def _part_affixes(target: Path) -> tuple[str, str]:
    return f".{_cut(target.stem)}.", f".part{target.suffix if len(target.suffix) <= _MAX_ENDING else ''}"


def _part_pattern(target: Path) -> re.Pattern[str]:
    """Return a pattern for the names of parts of a target."""
    return re.compile("[0-9a-f]{8}".join(map(re.escape, _part_affixes(target))))


def leads_to(path: Path, descriptor: int) -> bool:
    """Return whether a path leads to this open file or folder. A path that cannot be looked at does not."""
    with suppress(OSError):  # while the file is open, no other one gets its number
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    return False


def find_open(path: Path, descriptor: int) -> Path:
    """Return the path of an open file or folder, also after a folder above it was moved or renamed.

    Raises a `FileNotFoundError` if it has another name, is on another disk, or was removed.
    """
    if leads_to(path, descriptor):
        return path
    with suppress(OSError):
        get_path = getattr(fcntl, "F_GETPATH", None)  # of macOS
        if get_path is None:
            name = os.readlink(f"/proc/self/fd/{descriptor}")
        else:
            name = os.fsdecode(fcntl.fcntl(descriptor, get_path, bytes(_MAX_PATH)).rstrip(b"\0"))
        if os.path.basename(name) == path.name and leads_to(Path(name), descriptor):
            return Path(name)
    raise FileNotFoundError(errno.ENOENT, f"{LOST} meanwhile")


def remove_part(path: Path, lock: int) -> None:
    """Remove what `create_part` has created, unless it has been renamed, and unlock it."""
    with suppress(OSError):
        path = find_open(path, lock)
    if os.path.isdir(path):
        remove_folder(path)
    else:
        remove_file(path)
    with suppress(OSError):
        os.close(lock)


def _remove_abandoned(target: Path) -> None:
    """Remove the parts of a target that no process has locked."""
    is_part = _part_pattern(target).fullmatch
    with suppress(OSError):
        for name in os.listdir(target.parent):
            if is_part(name):
                with suppress(OSError):  # it belongs to another user
                    path = target.with_name(name)
                    lock = os.open(path, _LOCK_FLAGS)
                    try:
                        is_kept = bool(os.fstat(lock).st_mode & stat.S_ISVTX)  # see `_Part._keep`
                        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    except OSError:
                        is_kept = True
                    if is_kept:
                        os.close(lock)
                    else:
                        remove_part(path, lock)


def sync(descriptor: int, *, drive: bool = True) -> None:
    """Wait until an open file or folder is on the disk, with `drive` also the data in the drive's cache."""
    full = getattr(fcntl, "F_FULLFSYNC", None)  # of macOS, whose fsync leaves data in that cache
    if full is not None and drive:
        with suppress(OSError):  # network file systems have only fsync
            fcntl.fcntl(descriptor, full)
            return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise


def check_not_empty(file: Path) -> None:
    """Raise an `OSError` for a finished file that is empty: its writer failed without an error."""
    if not os.stat(file).st_size:
        raise OSError("what was written is empty; check the free disk space")


def sync_folder(folder: Path) -> None:
    """Wait until the names of the files in a folder are on the disk."""
    with suppress(PermissionError):  # a folder may be writable and not readable
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            sync(descriptor)
        finally:
            os.close(descriptor)


def keep_mode(old: Path, new: Path, more: int = 0) -> None:
    """Give a file the permissions of the one that it replaces, if there is one, and `more`."""
    if os.path.isfile(old):
        with suppress(OSError):  # a file system without permissions
            os.chmod(new, os.stat(old).st_mode & 0o777 | more)


def _rename(path: Path, target: Path, *, overwrite: bool) -> None:
    """Rename a file or a folder. Without `overwrite`, a name that is taken is a `FileExistsError`."""
    if overwrite:
        keep_mode(target, path)
        os.replace(path, target)
        return
    # The name is reserved, since a rename replaces a file, or an empty folder, that another program has just created.
    is_folder = path.is_dir()
    if is_folder:
        target.mkdir()
    else:
        descriptor = os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
        with suppress(OSError):  # nothing was written to it
            os.close(descriptor)
    try:
        os.replace(path, target)
    except OSError:
        remove = remove_folder if is_folder else remove_file
        remove(target)
        raise


def take_name(path: Path, target: Path, *, overwrite: bool) -> Path:
    """Rename a finished file or folder to `target`, or else to the next free number, and return its name.

    A file replaces another one if `overwrite` is true and the system allows it. An `OSError` leaves it where it is.
    """
    names = islice(numbered_names(target, is_folder=path.is_dir()), _MAX_NUMBERS)
    for name in chain([target], names):
        replaces = overwrite and name == target and not is_read_only(name)
        try:
            _rename(path, name, overwrite=replaces)
        except FileExistsError:
            continue
        except OSError:
            if not replaces or not os.path.lexists(name):
                raise  # the next number would fail too
        else:
            return name
    raise FileExistsError(errno.EEXIST, f"its name and the next {_MAX_NUMBERS} are taken")


def _move_entries(source: Path, folder: Path, names: Iterable[str], *, overwrite: bool = False) -> bool:
    """Move files of a folder to another one. Returns False, with all of them in `source`, if a name is taken."""
    names = sorted(names)
    if overwrite and any((folder / name).is_dir() or is_read_only(folder / name) for name in names):
        return False
    moved: list[str] = []
    try:
        for name in names:
            _rename(source / name, folder / name, overwrite=overwrite)
            moved.append(name)
    except OSError as error:
        try:
            for name in moved:
                os.replace(folder / name, source / name)
        except OSError:
            raise OSError(error.errno, f"{error.strerror}, after some files were moved to {folder}") from error
        if isinstance(error, FileExistsError):
            return False
        raise
    return True


def warn_of_name(name: str | os.PathLike, other: str | os.PathLike, *, has_moved: bool = False) -> None:
    """Report that an output has another name than its own: see `take_name`, or its folder `has_moved`."""
    reason = "its folder was moved or renamed" if has_moved else "the name was taken"
    warn(f"{os.fspath(name)}: {reason} meanwhile, so the output is {other}.")


class _Part(ABC):
    """Hidden file or folder in the folder of an output, where it is filled and then named.

    It is removed with this object. It is created at once, so that a missing or read-only folder is refused before any
    work is done. Links are written through. If a folder above it is moved or renamed, the output goes there, too.
    """

    _content = Path()  # of the part, which becomes the output

    def __init__(self, target: Path, name: str, place: Path, create: Callable[[Path], object]) -> None:
        self.target, self._label = target, name  # which errors show
        self._folder = place.parent
        with uninterrupted(), writing_to(name):
            self._part, self._lock = create_part(place, create)
            self._remove = Cleanup(self, remove_part, self._part, self._lock)

    @property
    def path(self) -> Path:
        """Path to write to, which is another one after a folder above it was moved. `find_open` has the errors."""
        try:
            self._part = find_open(self._part, self._lock)
        except FileNotFoundError:
            if not os.path.exists(self._part):  # otherwise the file system gives open files other numbers
                raise
        return self._part / self._content

    @property
    def has_moved(self) -> bool:
        """Flag: a folder above it was moved or renamed."""
        return self._part.parent != self._folder

    def write(self, write: Callable[..., object], *arguments: Any, name: str = "") -> None:
        """Call `write(path, *arguments)` for the file, or the one of this name in the folder.

        It is called again if it fails because a folder above was moved meanwhile.
        """
        path = self.path
        try:
            write(path / name, *arguments)
        except Exception:
            if self.path == path:
                raise
            write(self.path / name, *arguments)

    def _give_name(self) -> Path:
        """Move the part to its name, and return that.

        Before, the files are on the disk; afterwards, their names are too: a power cut leaves the old file or the whole
        new one. If a step fails, the output is kept, and a `WriterError` says where.
        """
        with writing_to(self._label):
            for path in self._files():
                check_not_empty(path)
        try:
            for path in (files := self._files()):
                with path.open("rb") as file:
                    sync(file.fileno(), drive=path == files[-1])
            with uninterrupted():
                name, folder = self._move()
        except OSError as error:
            problem = f"cannot be written ({error.strerror or error}); the finished output is kept as {self._keep()}"
            raise WriterError(f"{self._label}: {problem}.") from error
        try:
            sync_folder(folder)
        except OSError as error:
            warn(f"{name}: is complete, and a power cut may still remove it ({error.strerror or error}).")
        self._remove()
        return name

    def _files(self) -> list[Path]:
        """Return the files that have been written."""
        return [self.path]

    @abstractmethod
    def _move(self) -> tuple[Path, Path]:
        """Give the part its name. Returns that, and the folder that has changed."""

    def _keep(self) -> Path:
        """Keep the part, under a name that is not hidden if it can be renamed. Returns the path of the output."""
        with suppress(OSError):
            self._part = find_open(self._part, self._lock)
        path = self._part.with_name(self._part.name[1:])  # which `_remove_abandoned` leaves alone, too
        try:
            os.replace(self._part, path)
        except OSError:
            path = self._part
            with suppress(OSError):  # marks it for `_remove_abandoned`
                os.chmod(path, os.stat(path).st_mode | stat.S_ISVTX)
        self._remove.cancel()
        with suppress(OSError):
            os.close(self._lock)
        return path / self._content

    def discard(self) -> None:
        """Remove the part, unless it has its name or is kept."""
        self._remove()


class PartFile(_Part):
    """Empty file in the folder of `target`, to be filled and then renamed. It is removed with this object.

    A symbolic link stays, and the file that it points to is replaced; the new one keeps its permissions. A named pipe
    or a device stays too, and gets the bytes of the file when it is whole, which until then is in the folder for
    temporary files. Without `overwrite`, a file at `target` is refused, and a read-only one always; for one that
    appears meanwhile see `take_name`. A file that `is_inner` is in a `PartFolder`, which warns of its own other name.
    """

    def __init__(self, target: Path, *, overwrite: bool = True, is_inner: bool = False) -> None:
        check_file(target, overwrite=overwrite)
        self._overwrite, self._is_inner = overwrite, is_inner
        self._real = Path(os.path.realpath(target))
        self._is_special = os.path.exists(target) and not os.path.isfile(target)
        place = self._real.with_suffix(target.suffix)
        if self._is_special:
            place = Path(find_temporary_folder(), target.name)
        super().__init__(target, os.fspath(target), place, lambda path: path.open("xb").close())
        if not self._is_special:
            keep_mode(self._real, self.path, stat.S_IRUSR | stat.S_IWUSR)  # what is private is so at once

    def complete(self) -> Path | None:
        """Move the file to its target. Returns another name if it has got that, see `take_name`."""
        if self._is_special:
            with writing_to(self.target):
                check_not_empty(self.path)
                with self.path.open("rb") as content, self.target.open("wb") as target:
                    shutil.copyfileobj(content, target)
            self._remove()
            return None
        path = self._give_name()
        if path == Path(os.path.realpath(self.target)):  # also of a working folder that was moved
            return None
        moved = path if self.has_moved or self.target.is_symlink() else self.target.with_name(path.name)
        if not self._is_inner:
            warn_of_name(self.target, moved, has_moved=self.has_moved)
        return moved

    def _move(self) -> tuple[Path, Path]:
        part = self.path
        path = take_name(part, part.with_name(self._real.name), overwrite=self._overwrite)
        return path, path.parent


class PartFolder(_Part):
    """Empty folder, to be filled with files and then moved to `target`. It is removed with this object.

    It is beside a new folder, and renamed. It is inside a folder that exists, which keeps its permissions and may be
    the root of a disk or have a read-only parent, and its files are moved up.

    Args:
        clashes: tells the names of files that may not be in the folder; by default, all.
        overwrite: files replace others of their names, and nothing clashes.
        name: of the target in errors, if it is another one.
        subfolder: name of the folder in a folder that exists, if the files cannot be moved up.
        replaced: names of files of the target, which are removed when the new ones are moved there.
    """

    def __init__(
        self,
        target: Path,
        clashes: Callable[[str], object] = bool,
        *,
        overwrite: bool = False,
        name: str | None = None,
        subfolder: str = _SUBFOLDER,
        replaced: Collection[str] = (),
    ) -> None:
        check_name(target)
        self._clashes, self._overwrite, self._replaced = clashes, overwrite, replaced
        real = Path(os.path.realpath(target))
        self._is_inside = os.path.isdir(real)
        self._place = real / subfolder if self._is_inside else real
        super().__init__(target, name or os.fspath(target), self._place, Path.mkdir)
        self._content = Path(self._place.name)  # errors show its name
        with writing_to(self._label):
            self.path.mkdir()

    @property
    def _real(self) -> Path:
        """Path of the target, which is another one after a folder above it was moved."""
        return self._part.parent if self._is_inside else self._part.with_name(self._place.name)

    def complete(self) -> Path | None:
        """Move the folder, or its files, to the target. Returns another name if it has got that, see `take_name`."""
        path = self._give_name()
        if path == Path(os.path.realpath(self.target)):  # also of a working folder that was moved
            return None
        is_beside = path.parent == self._real.parent and not self.has_moved and not self.target.is_symlink()
        return self.target.with_name(path.name) if is_beside and self.target.name not in ("", "..") else path

    def _files(self) -> list[Path]:
        return sorted(self.path.iterdir())

    def _move(self) -> tuple[Path, Path]:
        folder, real, is_part = self.path, self._real, _part_pattern(self._place).fullmatch
        if os.path.isdir(real):
            names = [] if self._overwrite else [name for name in os.listdir(real) if not is_part(name)]
            move = self._exchange if self._replaced else self._move_up
            if not any(map(self._clashes, names)) and move(folder):
                return real, real
        sync_folder(folder)
        path = take_name(folder, self._part.with_name(self._place.name), overwrite=False)
        return path, path.parent

    def _move_up(self, folder: Path) -> bool:
        return _move_entries(folder, self._real, os.listdir(folder), overwrite=self._overwrite)

    def _exchange(self, folder: Path) -> bool:
        """Move the replaced files into the part, and the new ones up; or put the old ones back and return False."""
        old, is_moved = folder.with_name(_REPLACED), False
        old.mkdir()
        try:
            _move_entries(self._real, old, [name for name in self._replaced if os.path.lexists(self._real / name)])
            is_moved = self._move_up(folder)
        finally:
            if not is_moved:
                _move_entries(old, self._real, os.listdir(old))
                old.rmdir()
        return is_moved


def check_empty_folder(target: Path, replaced: Collection[str] = ()) -> None:
    """Raise a `WriterError` for what exists and is not an empty folder.

    Files whose names are `replaced`, and hidden parts of other outputs, do not count.
    """
    check_name(target)
    with writing_to(target):
        names = os.listdir(target) if os.path.isdir(target) else []
    is_taken = os.path.exists(target) and not os.path.isdir(target)
    is_part = _part_pattern(target / _SUBFOLDER).fullmatch
    if is_taken or not all(name in replaced or is_part(name) for name in names):
        raise WriterError(f"{target}: already exists and is not an empty folder; remove it or choose another name.")


def check_new_folder(name: str, replaced: Collection[str] = (), *, makes_folders: bool = False) -> None:
    """Raise a `WriterError` if a folder cannot be made, or filled if it is empty but for `replaced` files.

    With `makes_folders` those above it that are missing can be made.
    """
    check_empty_folder(Path(name), replaced)
    check_folder(name, Path(name), makes_folders=makes_folders)


@contextmanager
def part_folder(target: Path, replaced: Collection[str] = ()) -> Iterator[PartFolder]:
    """Yield a `PartFolder` for a folder that is new, or empty but for `replaced` files.

    It is named on success, when the replaced files are removed, and else removed.
    """
    check_empty_folder(target, replaced)
    part = PartFolder(target, overwrite=bool(replaced), replaced=replaced)
    try:
        yield part
        moved = part.complete()
        if moved is not None:
            part.target = moved
            warn_of_name(target, moved, has_moved=part.has_moved)
    finally:
        part.discard()
