"""Page of a gallery: an HTML file, which is also the record of its clips, with their previews in it or beside it."""

import fcntl
import hashlib
import json
import os
import re
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..errors import ItemsError, warn
from ..files import PartFile, check_replaceable, leads_to, make_folder, open_file, read_small_file, writing_to

PAGE_BYTES = 50_000_000  # of previews in a page; if they are more, they are files in a folder beside it

_MARK = b'<!doctype html><meta name="generator" content="mlx_ltx_vae gallery">\n'
_START, _END = '<script type="application/json" class="clip">', "</script>\n"
_PREVIEW = re.compile(r"[\w.-]{1,80}-[0-9a-f]{8}(-[0-9]+)?\.mp4", re.ASCII)
_ATTEMPTS = 100  # to make the folder of previews, which other galleries may remove
_REJECTED = "# rejected: "  # in a list, a comment for `decode --list`
_MAX_PICKS = 64_000_000  # bytes, of a list
_VERSION = "version.js"  # in the folder; tells a page that is watched that there is a newer one


@dataclass
class GalleryClip:
    """Card of the latent file with an absolute path. Without an error it has previews, several for a batch."""

    path: str
    argument: str  # the file as the user named it, quoted for a shell
    name: str
    date: str
    state: list[Any]  # of the file, and of the options, when the previews were made
    facts: str = ""
    prompt: str = ""
    seed: str = ""
    model: str = ""
    videos: tuple[str, ...] = ()  # names of the previews in the folder of the page
    stills: tuple[str, ...] = ()  # the first frame of each, as JPEG in base64
    fps: float = 0  # of the previews
    seconds: float = 0
    error: str = ""


def preview_folder(page: Path) -> Path:
    """Return the folder beside a page for its previews, which a complete page contains itself if it can."""
    return page.with_name(f"{page.stem}-clips")


def preview_of(page: Path, path: str) -> str:
    """Return the file of a clip's preview, with a name that any URL may have."""
    stem = re.sub(r"[^\w.-]", "_", Path(path).stem[:80], flags=re.ASCII)
    return str(preview_folder(page) / f"{stem}-{hashlib.sha256(os.fsencode(path)).hexdigest()[:8]}.mp4")


class PreviewFolder:
    """Folder beside a page for its previews. Of several galleries that use it, the last one removes what is left."""

    def __init__(self, page: Path) -> None:
        self.path = preview_folder(page)
        self._lock: int | None = None

    def use(self) -> None:
        """Make the folder if it is missing, and keep other galleries from removing its files until `clean`."""
        with writing_to(self.path):
            for _ in range(_ATTEMPTS):
                if self._lock is not None and leads_to(self.path, self._lock):
                    break
                self._release()
                self.path.mkdir(parents=True, exist_ok=True)
                with suppress(FileNotFoundError):  # another gallery has just removed it
                    self._lock = os.open(self.path, os.O_RDONLY)
                    with suppress(OSError):  # a file system without locks
                        fcntl.flock(self._lock, fcntl.LOCK_SH)

    def clean(self, names: Collection[str] | None = None) -> None:
        """End the use. If it was the last one, remove previews of other `names`, and the folder if it is empty."""
        if self._lock is None:
            return
        is_used = False
        try:
            fcntl.flock(self._lock, fcntl.LOCK_UN)  # so that of two galleries that end now, one removes them
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:  # another one is of a file system without locks
            is_used = isinstance(error, BlockingIOError)
        if not is_used:
            _remove_all_but(names, self.path)
        self._release()

    def has(self, names: Iterable[str]) -> bool:
        """Return whether all these previews are there, and none is empty."""
        with suppress(OSError):
            return all((self.path / name).stat().st_size for name in names)
        return False

    def _release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
        self._lock = None


def read_page(page: Path, may_replace: Callable[[list[str]], bool], *, is_dry_run: bool = False) -> list[GalleryClip]:
    """Return the clips of the page that is there, and unless `is_dry_run` write their previews to the folder.

    Another file is replaced if `may_replace` of its name returns true, and is a `WriterError` otherwise.
    """
    clips, folder = list[GalleryClip](), PreviewFolder(page)
    with suppress(FileNotFoundError), writing_to(page, IsADirectoryError), open_file(page) as file:
        if file.readline(len(_MARK)) != _MARK:
            check_replaceable(page, overwrite=may_replace([str(page)]))
            return []
        for line in filter(lambda line: line.startswith(_START.encode()), file):
            with suppress(ValueError, TypeError, LookupError, AttributeError):  # somebody has edited it
                values = json.loads(line[len(_START) : -len(_END)])
                data, clip = [b64decode(text) for text in values.pop("data")], GalleryClip(**values)
                names = [name for name in clip.videos if _PREVIEW.fullmatch(name)]
                for name, content in zip(names, data, strict=False):
                    if content and not is_dry_run:
                        _write(folder.path / name, [content])
                if names and (folder.has(names) or is_dry_run):
                    clips.append(clip)
    return clips


def read_picks(paths: Iterable[str]) -> dict[str, str]:
    """Return the marks of lists that a page has saved, by absolute paths: "pick" or "reject".

    Warns of a list that does not exist yet. Raises an `ItemsError` for one that cannot be read.
    """
    marks = dict[str, str]()
    for path in paths:
        try:
            text = read_small_file(path, _MAX_PICKS).decode()
        except FileNotFoundError:
            warn(f"{path}: there is no such list yet, so the page begins without its marks.")
            continue
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ItemsError(f"{path}: cannot be read as a list that a gallery has saved ({reason}).") from error
        for line in filter(None, map(str.strip, text.splitlines())):
            name, mark = (line[len(_REJECTED) :], "reject") if line.startswith(_REJECTED) else (line, "pick")
            if not name.startswith("#"):
                marks[os.path.abspath(os.path.join(os.path.dirname(path), os.path.expanduser(name)))] = mark
    return marks


def write_page(
    page: Path,
    clips: Sequence[GalleryClip],
    *,
    is_watched: bool,
    is_complete: bool,
    marks: Mapping[str, str],
) -> set[str]:
    """Write a page with the cards of clips. If it is watched, it loads itself again after it is written again.

    `marks` are those that it begins with, see `read_picks`. If it is complete and not watched, it contains the
    previews, unless they are too large. Returns the names of the files in the folder of previews that it needs.
    """
    folder, videos = preview_folder(page), {name for clip in clips for name in clip.videos}
    has_data, version = is_complete and not is_watched, str(time.time_ns())
    if has_data:  # otherwise previews may be missing, and are made later
        has_data = sum((folder / name).stat().st_size for name in videos) * 4 // 3 <= PAGE_BYTES  # in base64
    parts = _parts(page, clips, version, marks, is_watched=is_watched, has_data=has_data)
    _write(page, (part.encode() for part in parts))
    if is_watched:
        make_folder(str(folder / _VERSION))
        _write(folder / _VERSION, [f"changed({version!r})\n".encode()])
    return set() if has_data else videos | ({_VERSION} if is_watched else set())


def _parts(
    page: Path,
    clips: Iterable[GalleryClip],
    version: str,
    marks: Mapping[str, str],
    *,
    is_watched: bool,
    has_data: bool,
) -> Iterator[str]:
    """Yield the parts of a page."""
    folder = preview_folder(page)
    head, script = Path(__file__).with_name("gallery.html").read_text("utf-8").split("<!-- data -->\n")
    digest = hashlib.sha256(script.removeprefix("<script>").removesuffix(_END).encode()).digest()
    yield _MARK.decode() + head.replace("SCRIPT_DIGEST", b64encode(digest).decode())
    values = {"name": page.stem, "directory": os.getcwd(), "folder": folder.name, "version": version}
    picks = {"id": hashlib.sha256(_to_json(marks).encode()).hexdigest()[:8], "marks": marks}
    yield _START.replace("clip", "page") + _to_json({**values, "picks": picks, "watch": is_watched and _VERSION}) + _END
    for clip in clips:
        data = [b64encode((folder / name).read_bytes()).decode() for name in clip.videos if has_data]
        yield _START + _to_json({**asdict(clip), "data": data}) + _END
    yield script


def _remove_all_but(names: Collection[str] | None, folder: Path) -> None:
    """Remove other previews than these, if any are named, from a folder, and the folder if nothing is left in it."""
    with suppress(OSError):
        for name in os.listdir(folder) if names is not None else ():
            if name not in (names or ()) and (_PREVIEW.fullmatch(name) or name == _VERSION):
                (folder / name).unlink()
        folder.rmdir()


def _write(path: Path, parts: Iterable[bytes]) -> None:
    """Write a file that appears when it is whole."""
    part = PartFile(path)
    try:
        with writing_to(path), part.path.open("wb") as file:
            file.writelines(parts)
        part.complete()
    finally:
        part.discard()


def _to_json(value: object) -> str:
    """Return JSON that ends no element of HTML, whatever texts it has."""
    return json.dumps(value, default=dict).replace("<", "\\u003c")
