#!/usr/bin/env python3
"""Makes the small files of parquet/ and what their rows are (expected.json).

Needs the package pyarrow. Usage: make_parquet.py
"""
import json
import os

import pyarrow as pa
import pyarrow.parquet as pq

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "parquet")

ROWS = [
    {"flag": True, "small": -3, "big": 2**40, "part": 0.5, "number": -1.25e-300, "text": "caf\u00e9 \u4f60\u597d", "unsigned": 2**32 - 1,
     "list": ["a", None, ""], "numbers": [1, 2, 3], "choices": {"text": ["x", "y"], "label": ["A", "B"]},
     "answers": [{"at": 1, "words": ["p", "q"]}, {"at": None, "words": []}], "deep": [[1], [], [2, None]], "pair": {"a": {"b": 7}}},
    {"flag": None, "small": None, "big": None, "part": None, "number": None, "text": None, "unsigned": None, "list": None,
     "numbers": None, "choices": None, "answers": None, "deep": None, "pair": None},
    {"flag": False, "small": 0, "big": -1, "part": 2.0, "number": 0.0, "text": "", "unsigned": 0, "list": [], "numbers": [],
     "choices": {"text": [], "label": None}, "answers": [], "deep": [], "pair": {"a": None}},
    {"flag": True, "small": 7, "big": 8, "part": -0.0, "number": 3.0, "text": "the same text", "unsigned": 1, "list": [None],
     "numbers": [4], "choices": {"text": None, "label": ["C"]}, "answers": [None, {"at": 2, "words": None}], "deep": [None, [3]],
     "pair": {"a": {"b": None}}},
]
SCHEMA = pa.schema([
    ("flag", pa.bool_()), ("small", pa.int32()), ("big", pa.int64()), ("part", pa.float32()), ("number", pa.float64()),
    ("text", pa.string()), ("unsigned", pa.uint32()), ("list", pa.list_(pa.string())), ("numbers", pa.list_(pa.int64())),
    ("choices", pa.struct([("text", pa.list_(pa.string())), ("label", pa.list_(pa.string()))])),
    ("answers", pa.list_(pa.struct([("at", pa.int32()), ("words", pa.list_(pa.string()))]))),
    ("deep", pa.list_(pa.list_(pa.int32()))), ("pair", pa.struct([("a", pa.struct([("b", pa.int8())]))])),
])


def write(name, table, **options):
    pq.write_table(table, os.path.join(OUT, name), **options)
    return [row for row in table.to_pylist()]


def main():
    os.makedirs(OUT, exist_ok=True)
    table = pa.Table.from_pylist(ROWS, schema=SCHEMA)
    many = pa.Table.from_pylist([{"id": i, "text": f"line {i % 7}", "maybe": None if i % 3 else i, "tags": [str(i % 5)] * (i % 4)}
                                 for i in range(300)])
    required = pa.Table.from_pylist([{"n": 1, "t": "a"}, {"n": 2, "t": "b"}],
                                    schema=pa.schema([pa.field("n", pa.int64(), False), pa.field("t", pa.string(), False)]))
    expected = {
        "snappy.parquet": write("snappy.parquet", table),
        "v2.parquet": write("v2.parquet", table, data_page_version="2.0", version="2.6"),
        "plain.parquet": write("plain.parquet", table, compression="NONE", use_dictionary=False),
        "gzip.parquet": write("gzip.parquet", table, compression="GZIP", use_dictionary=False),
        "zstd.parquet": write("zstd.parquet", table, compression="ZSTD", data_page_version="2.0"),
        "groups.parquet": write("groups.parquet", many, row_group_size=70, data_page_size=64, write_batch_size=16),
        "pages.parquet": write("pages.parquet", many, compression="ZSTD", data_page_size=64, write_batch_size=16,
                               data_page_version="2.0", use_dictionary=False),
        "required.parquet": write("required.parquet", required),
        "empty.parquet": write("empty.parquet", required.slice(0, 0)),
    }
    with open(os.path.join(OUT, "../eval/data/arc_easy_test.jsonl")) as file:  # for the readers of eval/
        pq.write_table(pa.Table.from_pylist([json.loads(line) for line in file]), os.path.join(OUT, "arc_easy_test.parquet"))
    texts = pa.Table.from_pylist([{"text": " = Title = \n", "n": b"\xff"}, {"text": "", "n": None}, {"text": " a line\n", "n": None}])
    pq.write_table(texts, os.path.join(OUT, "lines.parquet"))
    with open(os.path.join(OUT, "expected.json"), "w") as file:
        json.dump(expected, file, ensure_ascii=True, indent=None, separators=(",", ":"))
        file.write("\n")
    one = pa.table({"x": ["a"] * 20})
    pq.write_table(pa.table({"x": pa.array([1, 2, 3])}), os.path.join(OUT, "delta.parquet"), use_dictionary=False,
                   column_encoding={"x": "DELTA_BINARY_PACKED"})
    pq.write_table(one, os.path.join(OUT, "brotli.parquet"), compression="BROTLI")
    pq.write_table(pa.table({"x": pa.array([b"\xff\xfe"])}), os.path.join(OUT, "bytes.parquet"))
    pq.write_table(pa.table({"x": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())), "y": [1]}), os.path.join(OUT, "map.parquet"))


if __name__ == "__main__":
    main()
