#!/usr/bin/env python3
"""Makes the small tokenizers under tokenizers/ and the ids of their reference implementations (expected.json).

Needs the packages tokenizers and sentencepiece. Usage: make_tokenizers.py
"""
import base64
import io
import json
import os
import shutil

import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tokenizers")
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace("{1,3}", "")

CORPUS = [
    "The keeper of the light walked down to the shore every morning, and every morning the sea had taken a little more.",
    "She counted 1, 22, 333, 4444 and 55555 steps; it's what they'd always done, she said, and we'll do it again.",
    "\u4f60\u597d\uff0c\u4e16\u754c\u3002\u4eca\u5929\u7684\u5929\u6c14\u5f88\u597d\u3002\u6211\u4eec\u53bb\u6d77\u8fb9\u3002",
    "L'\u00e9t\u00e9 \u00e0 la plage, le caf\u00e9 \u00e9tait ferm\u00e9; na\u00efve, \u00fcber, Stra\u00dfe.",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440! \u0421\u0435\u0433\u043e\u0434\u043d\u044f \u0445\u043e\u0440\u043e\u0448\u0430\u044f \u043f\u043e\u0433\u043e\u0434\u0430.",
    "if (x == 0) {\n    return y;\n}\n\n\tfor (int i = 0; i < 10; ++i) total += i;\n",
    "the the the and and with without within morning mornings light lights shore shores    spaces     here",
]

TEXTS = [
    "", " ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", " \r\n \n", "\t\n", "Hello world", " Hello  world ", "hello   world    !",
    "The keeper's light", "IT'S THEY'LL WE'RE I'M you'd 'S 'T", "it\u2019s \u017f '\u017f a'\u017fb", "1 12 123 1234 12345 1234567890", "3.14159e-10",
    "\u4f60\u597d\uff0c\u4e16\u754c\uff01", "\u65e5\u672c\u8a9e\u30c6\u30b9\u30c8 \ud55c\uad6d\uc5b4", "\u0663\u0664\u0665 \u00bd \u2167 \u00b2", "e\u0301 \u00e9 a\u0328\u0301 \u1e9b\u0323 \u212b \u1100\u1161\u11a8",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 \U0001f3f3\ufe0f\u200d\U0001f308 \U0001f44d\U0001f3fd",
    "\u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627 \u202bRTL\u202c", "a\u0000b\u0001\u001f\u007f\u0085c", "\u180e x \u200b y \ufeff z",
    "\u00a0nbsp\u2003em\u3000wide\u2028line", "<|end|>", "a<|end|>b <|end|> c<|en", "<s>one</s> two <s> three", "  <mask>  x <mask>\n\nplain<extra>plain",
    "<0x41><0x-1>", "\u2581\u2581under", "caf\u00e9 Stra\u00dfe \u041f\u0440\u0438\u0432\u0435\u0442", "if (x == 0) {\n    return y;\n}\n", "\u0928\u092e\u0938\u094d\u0924\u0947 \u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35",
    "mornings within   lights", "!!!???...\n\n--==", "a" * 300, "the shore " * 40, "\U0001d54f\U0001d550 \U00010348",
]


def save(name, tokenizer, config):
    path = os.path.join(OUT, name)
    os.makedirs(path, exist_ok=True)
    text = json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False)
    with open(os.path.join(path, "tokenizer.json"), "w") as file:
        file.write(text + "\n")
    write_json(os.path.join(path, "tokenizer_config.json"), config)
    return path


def write_json(path, value):
    with open(path, "w") as file:
        json.dump(value, file, ensure_ascii=True, indent=1)
        file.write("\n")


def byte_bpe(pre_tokenizer, normalizer=None, ignore_merges=False, size=600):
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def split_then_bytes(pattern):
    return pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])


def expected(tokenizer):
    ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in TEXTS]
    return {
        "ids": ids,
        "with_bos": [tokenizer.encode(text).ids for text in TEXTS],
        "decoded": [tokenizer.decode(x, skip_special_tokens=False) for x in ids],
    }


def make_llama3():
    """Split + ByteLevel, BOS from a template, added tokens of every kind; and the same ranks in tiktoken's format."""
    tokenizer = byte_bpe(split_then_bytes(LLAMA3), ignore_merges=True)
    tokenizer.add_special_tokens(["<|begin|>", "<|end|>"])
    tokenizer.add_tokens([AddedToken("<mask>", lstrip=True, rstrip=True, normalized=False), AddedToken("<extra>"),
                          AddedToken("<|end|> c", normalized=False)])
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<|begin|> $A", special_tokens=[("<|begin|>", tokenizer.token_to_id("<|begin|>"))]),
    ])
    save("llama3-json", tokenizer, {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|begin|>", "eos_token": "<|end|>"})
    return tokenizer


def make_tiktoken():
    tokenizer = byte_bpe(split_then_bytes(LLAMA3), ignore_merges=True)
    to_byte = {c: b for b, c in byte_alphabet().items()}
    # tiktoken has no merge list: a piece's id is its rank, so bytes come first and merged pieces in order of merging.
    pieces = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    path = os.path.join(OUT, "tiktoken")
    os.makedirs(path, exist_ok=True)
    with open(os.path.join(path, "tokenizer.model"), "wb") as file:
        for piece, rank in pieces:
            file.write(base64.b64encode(bytes(to_byte[c] for c in piece)) + b" %d\n" % rank)
    names = ["<|begin_of_text|>", "<|end_of_text|>"]
    tokenizer.add_special_tokens(names)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|begin_of_text|> $A", special_tokens=[(names[0], tokenizer.token_to_id(names[0]))])
    return tokenizer


def byte_alphabet():
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    return {**{b: chr(b) for b in printable}, **{b: chr(256 + i) for i, b in enumerate(others)}}


def make_qwen2():
    tokenizer = byte_bpe(split_then_bytes(QWEN2), normalizers.NFC())
    path = os.path.join(OUT, "qwen2")
    os.makedirs(path, exist_ok=True)
    tokenizer.model.save(path)
    tokenizer.add_special_tokens(["<|end|>"])
    tokenizer.add_tokens(["<extra>"])
    end, extra = (tokenizer.token_to_id(token) for token in ("<|end|>", "<extra>"))
    flags = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False, "special": True}
    write_json(os.path.join(path, "tokenizer_config.json"), {
        "tokenizer_class": "Qwen2Tokenizer", "bos_token": None, "eos_token": "<|end|>",
        "added_tokens_decoder": {str(end): {"content": "<|end|>", **flags}}})
    write_json(os.path.join(path, "added_tokens.json"), {"<|end|>": end, "<extra>": extra})
    write_json(os.path.join(path, "config.json"), {"bos_token_id": end, "eos_token_id": end})
    return tokenizer


def make_gpt2():
    """ByteLevel with its own pattern and a prefix space; merges as strings."""
    tokenizer = byte_bpe(pre_tokenizers.ByteLevel(add_prefix_space=True))
    path = save("gpt2-json", tokenizer, {})
    file = os.path.join(path, "tokenizer.json")
    with open(file) as stream:
        value = json.load(stream)
    value["model"]["merges"] = [merge if isinstance(merge, str) else " ".join(merge) for merge in value["model"]["merges"]]
    with open(file, "w") as stream:
        stream.write(json.dumps(value, ensure_ascii=False) + "\n")
    return tokenizer


def train_sentencepiece():
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS), model_writer=model, model_type="bpe", vocab_size=520, byte_fallback=True,
        character_coverage=0.98, normalization_rule_name="identity", remove_extra_whitespaces=False, split_digits=True,
        user_defined_symbols=["<extra>"], minloglevel=2, num_threads=1)
    return model.getvalue()


def make_sentencepiece(model):
    path = os.path.join(OUT, "sentencepiece")
    os.makedirs(path, exist_ok=True)
    with open(os.path.join(path, "tokenizer.model"), "wb") as file:
        file.write(model)
    return sentencepiece.SentencePieceProcessor(model_proto=model)


def llama2_base(processor):
    """Converts the model to a BPE of the tokenizers library: every split of a piece into two pieces is a merge."""
    size = processor.get_piece_size()
    vocab = {processor.id_to_piece(i): i for i in range(size)}
    merges = []
    for piece, rank in vocab.items():
        if processor.is_byte(rank) or processor.is_control(rank) or piece == "<extra>":
            continue
        merges += [(rank, vocab[piece[:i]], vocab[piece[i:]], piece[:i], piece[i:])
                   for i in range(1, len(piece)) if piece[:i] in vocab and piece[i:] in vocab]
    merges = [(left, right) for *_, left, right in sorted(merges)]
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in ("<unk>", "<s>", "</s>")])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(),
                                           decoders.Strip(" ", 1, 0)])
    return tokenizer


def make_llama2(processor):
    tokenizer = llama2_base(processor)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    save("llama2-json", tokenizer, {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>"})
    return tokenizer


def make_metaspace(processor):
    tokenizer = llama2_base(processor)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=True)
    # transformers 5 does not read this flag with a tokenizer.json: its template adds BOS.
    save("metaspace-json", tokenizer, {"bos_token": {"content": "<s>"}, "eos_token": "</s>", "add_bos_token": False})
    return tokenizer


def sentencepiece_expected(processor):
    """SentencePiece on the parts of a text between its control and user-defined tokens, each part with its own prefix space."""
    def encode(text):
        ids = []
        while text:
            at, token = min(((text.find(t), t) for t in ("<s>", "</s>", "<unk>", "<extra>") if t in text), default=(len(text), ""))
            ids += processor.encode(text[:at]) + ([processor.piece_to_id(token)] if token else [])
            text = text[at + len(token):]
        return ids

    ids = [encode(text) for text in TEXTS]
    return {"ids": ids, "with_bos": [[1, *x] for x in ids], "decoded": None}


def main():
    shutil.rmtree(OUT, ignore_errors=True)
    processor = make_sentencepiece(train_sentencepiece())
    result = {"texts": TEXTS, "tokenizers": {
        "llama3-json": expected(make_llama3()),
        "tiktoken": expected(make_tiktoken()),
        "qwen2": expected(make_qwen2()),
        "gpt2-json": expected(make_gpt2()),
        "llama2-json": expected(make_llama2(processor)),
        "metaspace-json": expected(make_metaspace(processor)),
        "sentencepiece": sentencepiece_expected(processor),
    }}
    with open(os.path.join(OUT, "expected.json"), "w") as file:
        json.dump(result, file, ensure_ascii=True, separators=(",", ":"))
        file.write("\n")


if __name__ == "__main__":
    main()
