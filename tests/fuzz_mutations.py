"""Damage to files that knows their structure: JSON values, headers, zip members, and bytes at random."""

import copy
import io
import json
import pickle
import random
import struct
import zipfile
from collections.abc import Callable
from typing import Any

from fuzz_corpus import HERE, Sample, Special, exr_header

#: JSON texts that readers get wrong: each is put in the place of a value.
VALUES = (
    "0", "1", "-1", "2", "3", "7", "64", "65", "1000", "1e300", "1e999", "-0.0", "0.5", "1.5", "NaN", "Infinity",
    "true", "false", "null", '""', '"x"', '"0"', '"-1"', '"9"', "[]", "{}", "[[]]", "[1,2]", "[0]", '{"a":1}',
    "2147483647", "2147483648", "4294967296", "9223372036854775807", "9223372036854775808", "18446744073709551616",
    "9" * 5000, '"' + "9" * 5000 + '"', '"' + "x" * 3000 + '"', "[" * 3000 + "]" * 3000, "[" * 100_000 + "]" * 100_000,
    '{"a":' * 3000 + "1" + "}" * 3000, '"\\ud800"', '"\\u0000"', '"\\u001b[2J"', '"a\\nb"', '"../x"', '"/etc/passwd"',
    '"320000x320000x320000"', '"1/0"', '"24/7"', '"inf"', '"F32"', '"BF16"', '"F4"', '"I64"', '"res_x"',
    '"compress_all"', '"attn"', '"uniform"', '"reflect"', '"CausalVideoAutoencoder"', '"AutoencoderKLLTXVideo"',
    "[1,8,2,3,4]",
    "[1,8,0,3,4]", "[320000,320000,320000,320000,320000]", "[1,8,-2,3,4]", "[0,768]", "[-8,8]",
    "[18446744073709551615,1]",
)  # fmt: skip
_PLACE = "\N{PLACE OF INTEREST SIGN}"
_NPY_WORDS = (
    b"'<f4'", b"'<f8'", b"'|O'", b"'V2'", b"'<U9999999999'", b"'S0'", b"'M8[s]'", b"[('a','<f4')]", b"'>f4'", b"'c16'",
    b"(1, 8, 2, 3, 4)", b"(320000, 320000, 320000)", b"(-1, 8)", b"(0,)", b"()", b"(1,)*9", b"(True,)", b"(1.5,)",
    b"(" + b"9" * 5000 + b",)", b"(9223372036854775808, 2)", b"(4294967296, 4294967296, 8)", b"None", b"True", b"False",
    b"'fortran_order'", b"'descr'", b"'shape'", b"(" * 300, b"-" * 3000 + b"1", b"'''", b"\\", b"{", b"}", b"\x00",
    b"__import__('os')", b"1L", b"'" + b"x" * 9000 + b"'",
)  # fmt: skip

_KEYS = (
    "", "x", "a" * 3000, "\x1b[2J", "\ud800", "a\nb", "latents", "fps", "config", "kernel_layout", "grid",
    "__metadata__", "vae", "blocks", "multiplier", "out_channels", "conv_in.conv.weight", "../x",
)  # fmt: skip
_MEMBERS = (
    "", "x.npy", "a/../b.npy", "fps.npy", "latents.npy", "grid.npy", "data.pkl", "\x1b[2J.npy", "a" * 3000 + ".npy",
)  # fmt: skip
_CONTENTS = (
    b"", b"no npy", b"\x93NUMPY", pickle.dumps([1]), bytes(10**6), b"\x93NUMPY\x01\x00" + bytes(10**6),
)  # fmt: skip
_FIELDS = (
    b"", b",", b'"', b"\x00", b"\xff", b"9" * 5000, b"x" * 200_000, b"path", b"-", b"#", b"~", b"../..", b"\x1b[2J",
    b"320000", b"1e5", b"24/0", b"\xef\xbb\xbf", b"\r", b"\xd9\xa3", "\x9b\u202e\u2066.npy".encode(), b'"a\nb\x1b.npy"',
    b"../x.npy", b"sub/../../x.npy", HERE + b"/x.npy", HERE + b"/out/x.npy", b"link/x.npy", b"link.npy", b"link-0.npy",
    b"link/", b"./", b"%05d.png", b"link/%05d.png", b"..", b"a/..", b"x/",
)  # fmt: skip


class Damage:
    """Changes files at random; the same seed makes the same changes."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def apply(self, sample: Sample) -> dict[str, bytes | Special]:
        """The files of a sample, one of them damaged in one to three ways, or in the place of one something else."""
        if self.random.random() < 0.03:
            return sample.files | {sample.target: self.random.choice(sample.specials)}
        content = sample.files[sample.target]
        for _ in range(self.random.choice((1, 1, 1, 2, 3))):
            content = self._change(sample.target, content)
        return sample.files | {sample.target: content}

    def _change(self, name: str, content: bytes) -> bytes:
        if self.random.random() < 0.15:
            return self._bytes(content)
        ways: dict[str, Callable[[bytes], bytes]] = {
            "safetensors": self._safetensors, "latent": self._safetensors, "json": self._json_file, "npy": self._npy,
            "npz": self._npz, "pt": self._npz, "csv": self._lines, "txt": self._lines, "exr": self._exr,
        }  # fmt: skip
        try:
            return ways[name.rpartition(".")[2]](content)
        except (
            Exception
        ):  # an earlier change has left nothing of the structure: parsers fail in as many ways as the package's
            return self._bytes(content)

    # Bytes

    def _bytes(self, content: bytes) -> bytes:
        way, position = self.random.randrange(6), self.random.randrange(len(content) + 1)
        rest = position + self.random.choice((1, 2, 4, 8, 64, 1000))
        if way == 0:
            return content[:position]
        if way == 1:
            return content[:position] + content[rest:]
        if way == 2:
            return content[:position] + self.random.randbytes(rest - position) + content[position:]
        if way == 3:
            return content[:position] + content[position:rest] * 2 + content[rest:]
        if way == 4:
            return (
                content[:position] + bytes([self.random.choice((0, 255, 127, 128, 34, 123))]) + content[position + 1 :]
            )
        changed = bytearray(content)
        for _ in range(self.random.choice((1, 2, 8))):
            place = self.random.randrange(min(len(changed), 2000) or 1)  # headers come first
            if changed:
                changed[place] ^= 1 << self.random.randrange(8)
        return bytes(changed)

    # JSON

    def _json_file(self, content: bytes) -> bytes:
        return self._json(json.loads(content)).encode("utf-8", "surrogatepass")

    def _json(self, value: Any) -> str:
        """A JSON text with one node replaced, removed, doubled or renamed."""
        root = [copy.deepcopy(value)]
        parents = list(_containers(root))
        parent = self.random.choice(parents)
        keys = list(parent.keys()) if isinstance(parent, dict) else list(range(len(parent)))
        raw = self.random.choice(VALUES)
        if not keys:
            return raw
        key = self.random.choice(keys)
        way = self.random.randrange(8)
        if way == 0 and parent is not root:
            del parent[key]
        elif way == 1 and isinstance(parent, dict):
            parent[self._key(keys)] = parent.pop(key)
        elif way == 2 and isinstance(parent, dict):
            parent[self._key(keys)] = copy.deepcopy(parent[key])
        elif way == 3 and isinstance(parent, list) and parent is not root:
            parent[key:key] = [copy.deepcopy(parent[key])] * self.random.choice((1, 2, 200))
        elif way == 4:
            other = self.random.choice(parents)
            other_keys = list(other.keys()) if isinstance(other, dict) else list(range(len(other)))
            if other_keys:
                parent[key] = copy.deepcopy(other[self.random.choice(other_keys)])
        elif isinstance(parent[key], str) and parent[key][:1] == "{" and way < 7:  # JSON in JSON: a metadata entry
            parent[key] = self._json(json.loads(parent[key]))
        else:
            parent[key] = _PLACE
        return json.dumps(root[0]).replace(json.dumps(_PLACE), raw)

    def _key(self, known: list[str]) -> str:
        return self.random.choice((self.random.choice(_KEYS), self.random.choice(known)))

    # Formats

    def _safetensors(self, content: bytes) -> bytes:
        size = struct.unpack("<Q", content[:8])[0]
        header, data = json.loads(content[8 : 8 + size]), content[8 + size :]
        way = self.random.randrange(10)
        if way == 0:
            lengths = (0, 1, size - 1, size + 1, 2**31, 2**32, 2**63, 2**64 - 1, 99_999_999, len(content))
            return struct.pack("<Q", self.random.choice(lengths)) + content[8:]
        if way == 1:
            data = data[: self.random.randrange(len(data) + 1)] + bytes(self.random.choice((0, 0, 1, 100)))
        elif way == 2:
            return _with_header(json.dumps(header), self._values(data))
        return _with_header(self._json(header), data)

    def _values(self, data: bytes) -> bytes:
        """The values overwritten with NaN, infinity, zeros or the largest numbers."""
        pattern = self.random.choice((b"\xff", b"\x00", b"\x00\x00\x80\x7f", b"\xff\xff\x7f\x7f", b"\x00\x7c"))
        start = self.random.randrange(len(data) + 1)
        return data[:start] + (pattern * (len(data) // len(pattern) + 1))[: len(data) - start]

    def _npy(self, content: bytes) -> bytes:
        version = content[6]
        width = 2 if version == 1 else 4
        size = int.from_bytes(content[8 : 8 + width], "little")
        header, data = content[8 + width : 8 + width + size], content[8 + width + size :]
        way = self.random.randrange(10)
        if way == 0:
            return content[:6] + bytes([self.random.choice((0, 1, 2, 3, 4, 255)), 0]) + content[8:]
        if way == 1:
            return content[:8] + struct.pack("<H", self.random.choice((0, 1, 65535, size + 1))) + content[10:]
        if way == 2:
            data = self._values(data)
        elif way == 3:
            data = data[: self.random.randrange(len(data) + 1)]
        elif way == 4:
            place = self.random.randrange(len(header))
            header = header[:place] + self.random.choice(_NPY_WORDS) + header[place:]
        else:
            header = self._replace_word(header)
        return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header) % 65536) + header + data

    def _replace_word(self, header: bytes) -> bytes:
        """A header of .npy with one of its values replaced."""
        key = self.random.choice((b"'descr': ", b"'fortran_order': ", b"'shape': ", b"'", b"("))
        start = header.index(key) + len(key)
        ends = [header.find(end, start) for end in (b", '", b", }", b"}")]
        end = min(place for place in ends if place >= 0)
        return header[:start] + self.random.choice(_NPY_WORDS) + header[end:]

    def _npz(self, content: bytes) -> bytes:
        way = self.random.randrange(10)
        if way < 2:  # local headers and the central directory
            changed = bytearray(content)
            marks = [
                place for mark in (b"PK\x01\x02", b"PK\x03\x04", b"PK\x05\x06") for place in _places(content, mark)
            ]
            place = self.random.choice(marks) + self.random.randrange(4, 46)
            changed[place % len(changed)] = self.random.choice((0, 1, 8, 12, 14, 99, 255))
            return bytes(changed)
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = [(entry.filename, archive.read(entry), entry.compress_type) for entry in archive.infolist()]
        place = self.random.randrange(len(members))
        name, data, method = members[place]
        if way == 2:
            members.pop(place)
        elif way == 3:
            members[place] = (self.random.choice(_MEMBERS), data, method)
        elif way == 4:
            members[place] = (name, self.random.choice(_CONTENTS), method)
        elif way == 5:
            methods = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
            members[place] = (name, data, self.random.choice(methods))
        elif way == 6:
            members.append((name, self._npy(data), method))
        else:
            members[place] = (name, self._npy(data), method)
        return _zip(members)

    def _exr(self, content: bytes) -> bytes:
        """An EXR image with an attribute removed, doubled, or of another name, type or value."""
        start, attributes = 8, list[tuple[bytes, bytes, bytes]]()
        while content[start]:
            name, kind, rest = content[start:].split(b"\0", 2)
            value = rest[4 : 4 + int.from_bytes(rest[:4], "little")]
            attributes.append((name, kind, value))
            start += len(name) + len(kind) + 6 + len(value)
        place = self.random.randrange(len(attributes))
        name, kind, value = attributes[place]
        other_name, other_kind, other_value = self.random.choice(attributes)
        attributes[place : place + 1] = self.random.choice(
            (
                [],
                [(name, kind, value)] * 2,
                [(other_name, kind, value)],
                [(name, self.random.choice((other_kind, b"float", b"int", b"string", b"v2f")), value[:4])],
                [(name, kind, other_value)],
                [(name, kind, self._values(value))],
                [(name, kind, self._bytes(value))],
            )
        )
        return exr_header(attributes) + content[start + 1 :]

    def _lines(self, content: bytes) -> bytes:
        lines = content.splitlines(keepends=True)
        place = self.random.randrange(len(lines))
        fields = lines[place].split(b",")
        fields[self.random.randrange(len(fields))] = self.random.choice(_FIELDS)
        lines[place] = b",".join(fields)
        return b"".join(lines)


def _containers(value: Any) -> Any:
    if isinstance(value, (dict, list)):
        yield value
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _containers(inner)


def _places(content: bytes, mark: bytes) -> list[int]:
    return [place for place in range(len(content)) if content.startswith(mark, place)]


def _with_header(header: str, data: bytes) -> bytes:
    encoded = header.encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(encoded)) + encoded + data


def _zip(members: list[tuple[str, bytes, int]]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, data, method in members:
            archive.writestr(zipfile.ZipInfo(name), data, method)
    return file.getvalue()
