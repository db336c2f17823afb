#!/usr/bin/env python3
"""Writes tokenizers/parts.json: parts of tokenizer.json and the ids that the library tokenizers gives with them.

Each case replaces parts of gpt2-json (byte-level) or llama2-json, which make_tokenizers.py makes. Needs the packages
tokenizers and sentencepiece. Usage: make_tokenizer_parts.py
"""
import io
import json
import os

import sentencepiece
import tokenizers
from make_tokenizers import CORPUS

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tokenizers")

TEXTS = [
    "", " ", "\n", " \n\n ", "Hello  world ", "  leading, and trailing   ", "it's THEY'LL 'S\u2019t", "1 12 123 1234 12345 1234567890", "3.14159e-10 -1,000.00 $5 50%",
    "\u4f60\u597d\uff0c\u4e16\u754c\uff01 \u65e5\u672c\u8a9e\u30c6\u30b9\u30c8\u3002", "\u0663\u0664\u0665 \u00bd \u2167 \u00b2\u00b3\u00b9", "e\u0301 \u00e9 \u00c5 \u212b \ufb01 \u1e9b\u0323 \uff21\uff42",
    "\u0130stanbul STRASSE Stra\u00dfe \u039f\u03a3 \u0410\u0411", "if (x == 0) {\n    return y[i++];\n}\r\n\r\n\t// `end` ^|~\n", "a--b- --c -\n--\n- -", "<s>one</s> two <s>", "caf\u00e9 na\u00efve \u041f\u0440\u0438\u0432\u0435\u0442",
    "\u00a0nbsp\u2003em\u3000wide\u2028line\n", "!!!???...\n\n--==", "\U0001f468\u200d\U0001f469 \U0001d54f x_y __init__", "mornings within   lights\t\tand  shores \n end",
]


def byte_level(use_regex):
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def split(pattern, behavior="Isolated", invert=False):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": invert}


def sequence(*steps):
    return {"type": "Sequence", "pretokenizers": list(steps)}


def punctuation(behavior):
    return {"type": "Punctuation", "behavior": behavior}


def digits(individual):
    return {"type": "Digits", "individual_digits": individual}


def template(before, after=()):
    special = lambda name: {"SpecialToken": {"id": name, "type_id": 0}}
    single = [*map(special, before), {"Sequence": {"id": "A", "type_id": 0}}, *map(special, after)]
    ids = {"<s>": 1, "</s>": 2, "<unk>": 0}
    return {"type": "TemplateProcessing", "single": single, "pair": single + [{"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {name: {"id": name, "ids": [ids[name]], "tokens": [name]} for name in {*before, *after}}}


CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
BYTES = {
    # The steps of the released Falcon 3, DeepSeek LLM (its letters shortened), DeepSeek Coder and DeepSeek V3.
    "falcon3": sequence(punctuation("Contiguous"), byte_level(True), digits(False), split("[0-9][0-9][0-9]")),
    "deepseek-llm": sequence(split("[\r\n]"), split("\\s?[A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u0400-\u0481]+"),
                             split("\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"), split("\\s+$"), split(CJK),
                             digits(True), byte_level(False)),
    "deepseek-coder": sequence(split("[\r\n]"), split("\\s?\\p{L}+"), split("\\s?\\p{P}+"), split(CJK), digits(True), byte_level(False)),
    "deepseek-v3": sequence(split("\\p{N}{1,3}"), split("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"),
                            split("[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
                                  "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"), byte_level(False)),
    # The steps of llama.cpp for a file that names no pre-tokenizer.
    "default": sequence(split("[\\p{P}\\$\\+<=>\\^~\\|]+"), split(GPT2), split("\\p{N}+"), split("[0-9][0-9][0-9]"), byte_level(False)),
    "cl100k": sequence(split(r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"),
                       byte_level(False)),
    "o200k": sequence(split(r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
                            r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
                            r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"), byte_level(False)),
    **{"punctuation-" + behavior: sequence(punctuation(behavior), byte_level(True))
       for behavior in ("Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous")},
    "digits-behind": sequence(byte_level(True), digits(True)),
    "alphabet-split": sequence(byte_level(False), split("\u0120+", "MergedWithNext"), digits(False)),
    "whitespace-split": sequence({"type": "WhitespaceSplit"}, byte_level(False)),
    "split-contiguous": sequence(split("-", "Contiguous"), byte_level(False)),
    "split-contiguous-inverted": sequence(split("-", "Contiguous", True), byte_level(False)),
    "line-ends": sequence(split(r"^\s+|[-\s]+$", "Isolated"), byte_level(False)),
    "line-begins": sequence(split(r"^[-a-z]", "MergedWithNext"), split(r"\n$", "MergedWithPrevious"), byte_level(False)),
}
NORMALIZERS = {
    **{form: {"type": form} for form in ("NFD", "NFKC", "NFKD", "Lowercase")},
    "strip": {"type": "Strip", "strip_left": True, "strip_right": True},
    "strip-left": {"type": "Strip", "strip_left": True, "strip_right": False},
    "strip-right": {"type": "Strip", "strip_left": False, "strip_right": True},
    "replace-pattern": {"type": "Replace", "pattern": {"Regex": " {2,}|[-!]+"}, "content": "_"},
    "several": {"type": "Sequence", "normalizers": [{"type": "NFKC"}, {"type": "Lowercase"}, {"type": "Strip", "strip_left": False, "strip_right": True}]},
}
TEMPLATES = {
    "two-before": template(["</s>", "<s>"]),
    "several-processors": {"type": "Sequence", "processors": [template(["<s>"]), template(["</s>"])]},
}


def cases():
    yield from ((name, "gpt2-json", {"pre_tokenizer": steps}) for name, steps in BYTES.items())
    yield from ((name, "gpt2-json", {"normalizer": step}) for name, step in NORMALIZERS.items())
    yield from ((name, "llama2-json", {"post_processor": step}) for name, step in TEMPLATES.items())


def make_unigram():
    """A SentencePiece Unigram model and the tokenizer.json that transformers would convert it to."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS), model_writer=model, model_type="unigram", vocab_size=370, byte_fallback=True,
        character_coverage=0.98, normalization_rule_name="identity", remove_extra_whitespaces=False, minloglevel=2, num_threads=1)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    pieces = [(processor.id_to_piece(i), processor.get_score(i)) for i in range(processor.get_piece_size())]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, 0, byte_fallback=True))
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.add_tokens(["<extra>"])
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = tokenizers.decoders.Sequence([
        tokenizers.decoders.Replace("\u2581", " "), tokenizers.decoders.ByteFallback(), tokenizers.decoders.Fuse(),
        tokenizers.decoders.Strip(" ", 1, 0)])
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    directory = os.path.join(HERE, "unigram")
    os.makedirs(directory, exist_ok=True)
    with open(os.path.join(directory, "tokenizer.model"), "wb") as file:
        file.write(model.getvalue())
    with open(os.path.join(directory, "tokenizer.json"), "w", encoding="utf-8") as file:
        file.write(json.dumps(json.loads(tokenizer.to_str())) + "\n")
    return {"name": "unigram", "base": "unigram", "parts": {}, "ids": [tokenizer.encode(text).ids for text in TEXTS]}


def main():
    result = {"version": tokenizers.__version__, "texts": TEXTS, "cases": []}
    for name, base, parts in cases():
        with open(os.path.join(HERE, base, "tokenizer.json"), encoding="utf-8") as file:
            root = {**json.load(file), **parts}
        tokenizer = tokenizers.Tokenizer.from_str(json.dumps(root))
        result["cases"].append({"name": name, "base": base, "parts": parts, "ids": [tokenizer.encode(text).ids for text in TEXTS]})
    result["cases"].append(make_unigram())
    with open(os.path.join(HERE, "parts.json"), "w", encoding="utf-8") as file:
        json.dump(result, file, ensure_ascii=True, separators=(",", ":"))
        file.write("\n")


if __name__ == "__main__":
    main()
