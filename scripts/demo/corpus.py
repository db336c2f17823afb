#!/usr/bin/env python3
"""Builds the demo model's corpus from two Debian packages of public-domain books.

    apt-get install bible-kjv        # King James Version, 1611
    apt-get download r-cran-janeaustenr && dpkg -x r-cran-janeaustenr*.deb austen   # R itself is not needed
    python3 corpus.py --austen austen --out corpus

Writes corpus/train.txt, corpus/calibration.txt and corpus/heldout.txt: paragraphs
separated by one blank line, UTF-8. The split is by position inside each book, so no
held-out paragraph has a neighbour in the training text except at the cut.
"""
import argparse
import gzip
import lzma
import bz2
import re
import struct
import subprocess
import zlib
from pathlib import Path


class RReader:
    """Enough of R's binary serialization (XDR, version 2 and 3) to read character vectors and named lists."""

    def __init__(self, raw: bytes):
        if raw[:2] != b"X\n":
            raise ValueError("not an XDR R serialization")
        self.raw, self.at, self.refs = raw, 2, []
        version = self.int()
        self.at += 8
        if version == 3:
            encoding = self.int()
            self.at += encoding

    def int(self) -> int:
        (value,) = struct.unpack_from(">i", self.raw, self.at)
        self.at += 4
        return value

    def item(self):
        flags = self.int()
        kind, has_attr, has_tag = flags & 0xFF, bool(flags & 0x200), bool(flags & 0x400)
        if kind == 254:  # NILVALUE
            return None
        if kind == 255:  # REFSXP
            return self.refs[(flags >> 8) - 1]
        if kind == 1:  # symbol
            name = self.item()
            self.refs.append(name)
            return name
        if kind == 9:  # CHARSXP
            n = self.int()
            if n == -1:
                return None
            text = self.raw[self.at:self.at + n]
            self.at += n
            return text.decode("utf-8", "replace")
        if kind == 2:  # pairlist, returned as a dict of its tags
            attributes = self.item() if has_attr else None
            del attributes
            tag = self.item() if has_tag else ""
            value = self.item()
            rest = self.item() or {}
            return {tag: value, **rest}
        if kind in (10, 13):  # logical, integer
            n = self.int()
            value = list(struct.unpack_from(f">{n}i", self.raw, self.at))
            self.at += 4 * n
        elif kind in (16, 19):  # character vector, list
            value = [self.item() for _ in range(self.int())]
        else:
            raise ValueError(f"R type {kind} is not supported here")
        if has_attr:
            names = (self.item() or {}).get("names")
            if names:
                return dict(zip(names, value))
        return value


def r_decompress(block: bytes) -> bytes:
    """R's lazy-load block: big-endian length, then gzip data, or a type letter first."""
    body = block[4:]
    if body[:1] == b"2":
        return bz2.decompress(body[1:])
    if body[:1] == b"Z":
        return lzma.decompress(body[1:], format=lzma.FORMAT_RAW,
                               filters=[{"id": lzma.FILTER_LZMA2, "preset": 6 | lzma.PRESET_EXTREME}])
    return zlib.decompress(body)


def austen_books(root: Path) -> dict[str, str]:
    data = root / "usr/lib/R/site-library/janeaustenr/data"
    index = RReader(zlib.decompress((data / "Rdata.rdx").read_bytes(), 47)).item()
    blob = (data / "Rdata.rdb").read_bytes()
    books = {}
    for name, (offset, length) in index["variables"].items():
        lines = RReader(r_decompress(blob[offset:offset + length])).item()
        books[name] = "\n".join(lines)
    return books


def bible_book() -> str:
    query = subprocess.run(["bible", "-f", "Genesis1:1-Revelation22:21"], check=True,
                           capture_output=True, text=True).stdout
    chapters, last = [], None
    for line in query.splitlines():
        match = re.match(r"^(\w+?)(\d+):(\d+) (.*)$", line.strip())
        if not match:
            continue
        chapter, verse = (match[1], match[2]), match[4]
        if chapter != last:
            chapters.append([])
            last = chapter
        chapters[-1].append(verse)
    # Five verses per paragraph, because chapters are too long and single verses too short.
    return "\n\n".join(" ".join(c[i:i + 5]) for c in chapters for i in range(0, len(c), 5))


def paragraphs(text: str) -> list[str]:
    """Unwraps hard line breaks; drops headings, underscores for italics, and the spacing around doubled hyphens."""
    out = []
    for block in re.split(r"\n\s*\n", text):
        line = re.sub(r"\s+", " ", block).strip().replace("_", "")
        if len(line) >= 20 and not re.match(r"^(CHAPTER|VOLUME|Chapter|Volume)\b", line):
            out.append(line)
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--austen", type=Path, required=True, help="the directory into which r-cran-janeaustenr was unpacked")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    books = austen_books(args.austen)
    books["kjv"] = bible_book()
    train, calibration, heldout = [], [], []
    for name in sorted(books):
        text = paragraphs(books[name])
        size = sum(len(p) for p in text)
        # The last 3% of each book is held out, and the 7% before it is calibration text; neither is trained on.
        seen = 0
        for p in text:
            seen += len(p)
            share = seen / size
            (train if share < 0.90 else calibration if share < 0.97 else heldout).append(p)
        print(f"{name}: {len(text)} paragraphs, {size} characters")
    for name, part in (("train", train), ("calibration", calibration), ("heldout", heldout)):
        (args.out / f"{name}.txt").write_text("\n\n".join(part) + "\n", encoding="utf-8")
        print(name, sum(len(p) for p in part))


if __name__ == "__main__":
    main()
