"""Small changes to a file that its readers did not expect: in its bytes, or in what the bytes mean.

Each function takes a random generator and returns new content; the same generator gives the same content.
"""

import gzip
import io
import json
import random
import struct
import zipfile
import zlib
from contextlib import suppress
from typing import Any

INTEGERS = (0, 1, 2, 127, 128, 255, 256, 32767, 65535, 65536, 2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1)
PNG_CHUNKS = (b"tRNS", b"PLTE", b"gAMA", b"iCCP", b"zTXt", b"iTXt", b"eXIf", b"acTL", b"fcTL", b"pHYs")
DEEP = 3000  # levels: more than functions that call themselves can follow
STRINGS = (
    "",
    "\0",
    "a\nb",
    "../../x",
    "/dev/zero",
    "\ud800",
    "\udcff",
    "x" * 5000,
    "a/" * 3000,
    "9" * 5000,
    "NaN",
    "é",
)
NUMBERS = (-1, 0, 0.5, 1e308, -1e308, float("nan"), float("inf"), 10**10, 10**30, 10**400, 2**31, 2**63)
YAML = (
    "&a [*a]",
    "*a",
    "&b [1, 1]",
    "!!bool x",
    "!!int ''",
    "!!binary x",
    "? [1]",
    "{[1]: 2}",
    "1:1:1:1",
    "- - - -",
    "2020-99-99",
)


def change_bytes(rng: random.Random, content: bytes) -> bytes:
    """One to four bytes or runs of bytes changed, removed, inserted, repeated or cut off."""
    changed = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        # headers are short and matter most
        at = rng.randrange(min(len(changed), rng.choice((64, 512, 10**9))) + 1)
        kind = rng.choice(("byte", "integer", "integer", "cut", "remove", "insert", "repeat", "zeros"))
        if kind == "byte":
            changed[at : at + 1] = bytes([rng.randrange(256)])
        elif kind == "integer":
            size = rng.choice("BHIQ")
            value = rng.choice(INTEGERS) % 256 ** struct.calcsize(size)
            changed[at : at + struct.calcsize(size)] = struct.pack(rng.choice("<>") + size, value)
        elif kind == "cut":
            del changed[at:]
        elif kind == "remove":
            del changed[at : at + rng.randint(1, 16)]
        elif kind == "insert":
            changed[at:at] = rng.randbytes(rng.randint(1, 16))
        elif kind == "repeat":
            changed[at:at] = changed[at : at + rng.randint(1, 200)] * rng.randint(1, 20)
        else:
            length = rng.randint(1, 64)
            changed[at : at + length] = bytes(length)
    return bytes(changed)


def change_lines(rng: random.Random, content: bytes) -> bytes:
    """Lines of a text removed, repeated, exchanged, or with another word."""
    lines = content.split(b"\n")
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(lines))
        kind = rng.choice(("remove", "repeat", "exchange", "word", "word", "word", "yaml"))
        if kind == "remove" and len(lines) > 1:
            del lines[at]
        elif kind == "repeat":
            lines[at:at] = [lines[at]] * rng.choice((1, 3, 1000))
        elif kind == "exchange":
            lines[at] = lines[rng.randrange(len(lines))]
        elif kind == "yaml":
            lines[at] = lines[at].partition(b":")[0] + b": " + rng.choice(YAML).encode()
        else:
            words = lines[at].split(b" ")
            words[rng.randrange(len(words))] = _word(rng)
            lines[at] = b" ".join(words)
    return b"\n".join(lines)


def _word(rng: random.Random) -> bytes:
    value = rng.choice((*STRINGS, *NUMBERS, *YAML))
    return str(value).encode("utf-8", "surrogatepass")


def change_json(rng: random.Random, content: bytes) -> bytes:
    """Values of a JSON document replaced, removed, repeated, renamed, or nested in each other."""
    value = json.loads(content)
    for _ in range(rng.randint(1, 3)):
        value = _changed(rng, value)
    text = json.dumps(value, ensure_ascii=rng.random() < 0.7)
    if rng.random() < 0.05:
        text = text.replace("0", "[" * DEEP + "]" * DEEP, 1)
    if rng.random() < 0.05:
        text = text.replace("1", "1" * 5000, 1)
    encoded = text.encode("utf-8", "surrogatepass")
    return change_bytes(rng, encoded) if rng.random() < 0.1 else encoded


def _changed(rng: random.Random, root: Any) -> Any:
    """The document with one of its values changed."""
    places: list[tuple[Any, Any]] = []  # container and key of each value
    waiting = [root] if isinstance(root, dict | list) else []
    while waiting:
        container = waiting.pop()
        keys = container.keys() if isinstance(container, dict) else range(len(container))
        for key in keys:
            places.append((container, key))
            if isinstance(container[key], dict | list):
                waiting.append(container[key])
    if not places or rng.random() < 0.02:
        return _strange(rng)
    container, key = rng.choice(places)
    kind = rng.choice(("replace", "replace", "replace", "remove", "repeat", "rename", "nest", "exchange"))
    if kind == "remove":
        del container[key]
    elif kind == "repeat" and isinstance(container, list):
        container[key:key] = [container[key]] * rng.choice((1, 2, 50))
    elif kind == "rename" and isinstance(container, dict):
        container[rng.choice((*STRINGS, "wings"))] = container[key]
    elif kind == "nest":
        container[key] = rng.choice(([container[key]], {"a": container[key]}))
    elif kind == "exchange":
        other, other_key = rng.choice(places)
        if other_key in (other if isinstance(other, dict) else range(len(other))):
            container[key] = json.loads(json.dumps(other[other_key]))
    else:
        container[key] = _strange(rng)
    return root


def _strange(rng: random.Random) -> Any:
    value: Any = rng.choice((*STRINGS, *NUMBERS, None, True, False, [], {}, [[]], [None], {"a": 1}))
    if isinstance(value, int | float) and rng.random() < 0.3:
        return [value] * rng.choice((1, 2, 3, 100))
    if rng.random() < 0.05:
        for _ in range(rng.choice((5, 50, 90))):
            value = [value]
    return value


def change_png(rng: random.Random, content: bytes) -> bytes:
    """A chunk changed, removed, repeated or added, its checksum right, so that the decoder goes on."""
    chunks = []
    at = 8
    while at + 12 <= len(content):
        (length,) = struct.unpack_from(">I", content, at)
        chunks.append((content[at + 4 : at + 8], content[at + 8 : at + 8 + length]))
        at += 12 + length
    for _ in range(rng.randint(1, 2)):
        index = rng.randrange(len(chunks))
        kind, data = chunks[index]
        action = rng.choice(("change", "change", "remove", "repeat", "add"))
        if action == "change" and data:
            chunks[index] = (kind, _changed_data(rng, kind, data))
        elif action == "remove" and len(chunks) > 1:
            del chunks[index]
        elif action == "repeat":
            chunks.insert(index, chunks[index])
        else:
            name = rng.choice(
                (b"tRNS", b"PLTE", b"gAMA", b"iCCP", b"zTXt", b"iTXt", b"eXIf", b"acTL", b"fcTL", b"pHYs")
            )
            data = rng.randbytes(rng.choice((0, 4, 30)))
            if name in (b"zTXt", b"iCCP"):
                data = b"a\0\0" + zlib.compress(bytes(rng.choice((10, 10**6, 10**7))))
            chunks.insert(index, (name, data))
    result = bytearray(content[:8])
    for kind, data in chunks:
        result += struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    return bytes(result)


def _changed_data(rng: random.Random, kind: bytes, data: bytes) -> bytes:
    """The data of a chunk changed; pixels now and then before they are compressed."""
    if kind == b"IDAT" and rng.random() < 0.5:
        with suppress(zlib.error):  # changed once already
            return zlib.compress(change_bytes(rng, zlib.decompress(data)))
    return change_bytes(rng, data)


def change_tiff(rng: random.Random, content: bytes) -> bytes:
    """Number, type, count or value of a tag of the first directory changed."""
    changed = bytearray(content)
    order = "<" if changed[:2] == b"II" else ">"
    try:
        (begin,) = struct.unpack_from(f"{order}I", changed, 4)
        (count,) = struct.unpack_from(f"{order}H", changed, begin)
        for _ in range(rng.randint(1, 3)):
            at = begin + 2 + 12 * rng.randrange(max(1, count))
            tag, kind, length, value = struct.unpack_from(f"{order}HHII", changed, at)
            part = rng.choice(("tag", "kind", "length", "value", "value", "next"))
            if part == "tag":
                tag = rng.choice((256, 257, 258, 259, 262, 273, 274, 277, 278, 279, 282, 284, 317, 320, 322, 338, 339))
            elif part == "kind":
                kind = rng.choice((*range(19), 65535))
            elif part == "length":
                length = rng.choice(INTEGERS) % 2**32
            elif part == "value":
                value = rng.choice((*INTEGERS, *range(16), begin, len(changed))) % 2**32
            else:
                struct.pack_into(f"{order}I", changed, begin + 2 + 12 * count, rng.choice((begin, 8, len(changed))))
            struct.pack_into(f"{order}HHII", changed, at, tag, kind, length, value)
    except struct.error:
        return change_bytes(rng, content)
    return bytes(changed)


def change_inside_gzip(rng: random.Random, content: bytes) -> bytes:
    """What a gzip file holds changed; now and then it holds far more than it seems."""
    inside = change_bytes(rng, gzip.decompress(content))
    if rng.random() < 0.03:
        inside += bytes(2 * 10**7)
    return gzip.compress(inside, 1)


def change_safetensors(rng: random.Random, content: bytes) -> bytes:
    """The header changed, and its length right again."""
    (length,) = struct.unpack_from("<Q", content)
    header = change_json(rng, content[8 : 8 + length])
    return struct.pack("<Q", len(header)) + header + content[8 + length :]


def change_zip(rng: random.Random, content: bytes) -> bytes:
    """A member of a zip archive changed, and its checksum right again."""
    result = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(result, "w") as new:
        names = old.namelist()
        chosen = rng.choice(names)
        for name in names:
            data = old.read(name)
            if name == chosen and data:
                data = change_bytes(rng, data)
            new.writestr(name, data)
    return result.getvalue()
