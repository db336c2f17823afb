#!/usr/bin/env python3
"""Makes the vocabularies under converter/ as llama.cpp's converter writes them, and the ids that other programs give (expected.json).

Each NAME.gguf has a tokenizer and no tensors. The converter (convert_hf_to_gguf.py) types every special entry of
added_tokens_decoder as a control token, the unknown piece too, writes the spaces of the other entries as they are, and gives
names to ids without a piece. expected.json has the ids of transformers for the directory that the file was made from, and
those of llama.cpp (xllamacpp) for the file with the tensors of a small model.

Needs the packages gguf, numpy, protobuf, sentencepiece, tokenizers, transformers and xllamacpp. Usage: make_converter.py
"""
import io
import json
import os
import shutil
import tempfile
import urllib.request

import gguf
import numpy
import sentencepiece

os.environ["HF_HUB_OFFLINE"] = "1"
GOLDENS = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(GOLDENS, "converter")
NORMAL, CONTROL, USER, UNUSED, BYTE = 1, 3, 4, 5, 6

CORPUS = [
    "The keeper of the light walked down to the shore every morning, and the sea had taken a little more.",
    "She counted 1, 22, 333, 4444 and 55555 steps; it's what they'd always done, and we'll do it again.",
    "if (x == 0) {\n    return y;\n}\n\n\tfor (int i = 0; i < 10; ++i) total += i;\n",
    "L'\u00e9t\u00e9 \u00e0 la plage, le caf\u00e9 \u00e9tait ferm\u00e9; \u4f60\u597d\uff0c\u4e16\u754c\u3002\u4eca\u5929\u7684\u5929\u6c14\u5f88\u597d\u3002",
    "the the the and and with without within morning mornings light lights shore shores    spaces     here",
]
TEXTS = [
    "", "a", " ", "  ", "   ", "    ", "     ", "         ", "\n", "\n\n", "\n\n\n", "\n\n\n\n", "\t", "\t\t", "\r\n", "\r\n\r\n",
    " \n", "\n ", "  \n\n  ", "the keeper", " the keeper", "  the keeper", "   the keeper   ", "the  keeper   of    the     light",
    "the\nshore\n\nand\n\n\nthe sea", "line one\r\nline two\r\n\r\nline three", "if (x == 0) {\n    return y;\n}\n", "\tfor\t\ti\n\t\t++i",
    "\u4f60\u597d\uff0c\u4e16\u754c\u3002", "\u4f60\u597d \u4e16\u754c\n\u4eca\u5929  \u5929\u6c14", "caf\u00e9 Stra\u00dfe", "\U0001f600 \U0001f468\u200d\U0001f469 ok\U0001f44d\U0001f3fd",
    "1 22 333 4444 55555 1234567890", "it's they'd WE'LL i'M", "!!!???...\n\n--==", "\u00a0nbsp\u3000wide", "\u2581under\u2581\u2581lines",
    "SPECIAL", "aSPECIALb", "a SPECIAL b", "SPECIAL a\n", "SPECIALSPECIAL the", "a\nSPECIAL\n", "  SPECIAL  ", "aUSERb", "a USER b", "USER\n\nUSER",
    "SPECIALuser\nthe lightEND\nSPECIALmodel\n", "<s>a</s> <unk> <pad>", "<0x41><0x0A>", "<|not_a_token|> <tool", "the shore " * 20,
]


def added(content, special=True):
    return {"content": content, "lstrip": False, "rstrip": False, "normalized": False, "single_word": False, "special": special}


def write_json(path, value):
    with open(path, "w") as file:
        json.dump(value, file, ensure_ascii=True, indent=1)
        file.write("\n")


class Case:
    """A directory for transformers, and what the converter makes of it."""

    def __init__(self, name, special, end, user):
        self.name, self.directory = name, tempfile.mkdtemp()
        self.texts = [text.replace("SPECIAL", special).replace("END", end).replace("USER", user) for text in TEXTS]
        self.title = None  # general.name
        self.keys = {}  # of tokenizer.ggml
        self.pieces, self.types, self.scores = [], [], None

    def path(self, name):
        return os.path.join(self.directory, name)

    def write(self, path, tensors):
        writer = gguf.GGUFWriter(path, "llama")
        if self.title:
            writer.add_name(self.title)
        for key, value in {"context_length": 4096, "embedding_length": 32, "block_count": 1, "feed_forward_length": 32,
                           "attention.head_count": 1, "attention.head_count_kv": 1, "rope.dimension_count": 32,
                           "vocab_size": len(self.pieces)}.items():
            writer.add_uint32("llama." + key, value)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_token_list([piece.encode() for piece in self.pieces])
        writer.add_token_types(self.types)
        if self.scores is not None:
            writer.add_token_scores(self.scores)
        for key, value in self.keys.items():
            add = {bool: writer.add_bool, int: writer.add_uint32, str: writer.add_string, list: writer.add_array}[type(value)]
            add("tokenizer.ggml." + key, value)
        if tensors:
            def add(name, *shape):
                writer.add_tensor(name + ".weight", numpy.ones(shape, numpy.float32))
            add("token_embd", len(self.pieces), 32)
            add("output_norm", 32)
            for name in ["attn_norm", "ffn_norm"]:
                add("blk.0." + name, 32)
            for name in ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"]:
                add("blk.0." + name, 32, 32)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()

    def expected(self):
        from transformers import AutoTokenizer
        tokenizer = AutoTokenizer.from_pretrained(self.directory)
        result = {"texts": self.texts, "transformers": [tokenizer.encode(text, add_special_tokens=False) for text in self.texts],
                  "transformers_with_bos": [tokenizer.encode(text) for text in self.texts]}
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "model.gguf")
            self.write(path, tensors=True)
            result.update(llama_cpp(path, self.texts))
        shutil.rmtree(self.directory)
        return result


def llama_cpp(path, texts):
    import xllamacpp
    parameters = xllamacpp.CommonParams()
    parameters.model.path = path
    parameters.n_ctx, parameters.n_parallel, parameters.warmup = 256, 1, False
    server = xllamacpp.Server(parameters)

    def ids(text, add_special):
        body = json.dumps({"content": text, "add_special": add_special, "parse_special": True}).encode()
        request = urllib.request.Request(server.listening_address + "/tokenize", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)["tokens"]

    return {"llama_cpp": [ids(text, False) for text in texts], "llama_cpp_with_bos": [ids(text, True) for text in texts]}


def train(size, user_defined, **settings):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS), model_writer=model, model_type="bpe", vocab_size=size, byte_fallback=True,
        character_coverage=0.98, normalization_rule_name="identity", remove_extra_whitespaces=False, split_digits=True,
        user_defined_symbols=user_defined, minloglevel=2, num_threads=1, **settings)
    return model.getvalue()


def sentencepiece_case(name, model, config, tokens, rows, special, end, user):
    """`tokens`: added_tokens_decoder by id; `rows`: the number of rows of the embedding."""
    case = Case(name, special, end, user)
    with open(case.path("tokenizer.model"), "wb") as file:
        file.write(model)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    write_json(case.path("tokenizer_config.json"), {**config, "added_tokens_decoder": {str(id): token for id, token in tokens.items()}})
    write_json(case.path("config.json"), {"model_type": "gemma" if "Gemma" in config["tokenizer_class"] else "llama"})
    size = processor.get_piece_size()
    case.pieces = [processor.id_to_piece(id) for id in range(size)] + [f"[PAD{id}]" for id in range(size, rows)]
    case.types = [BYTE if processor.is_byte(id) else USER if processor.id_to_piece(id) in user_pieces(processor, tokens) else
                  CONTROL if processor.is_control(id) else NORMAL for id in range(size)] + [UNUSED] * (rows - size)
    case.scores = [processor.get_score(id) for id in range(size)] + [-10000.0] * (rows - size)
    for id, token in tokens.items():
        case.pieces[id] = token["content"] if token["special"] else token["content"].replace("\u2581", " ")
        case.types[id] = CONTROL if token["special"] else USER
        case.scores[id] = -1000.0
    case.keys = {"model": "llama", "pre": "default", "bos_token_id": processor.bos_id(), "eos_token_id": processor.eos_id(),
                 "unknown_token_id": processor.unk_id(), "add_bos_token": True, "add_eos_token": False}
    return case


def user_pieces(processor, tokens):
    """The user-defined pieces of the model that added_tokens_decoder does not repeat; the converter keeps their type."""
    from sentencepiece import sentencepiece_model_pb2
    model = sentencepiece_model_pb2.ModelProto.FromString(processor.serialized_model_proto())
    return {piece.piece for piece in model.pieces if piece.type == 4}


def gemma():
    runs = ["\u2581" * length for length in (2, 3, 4, 5)] + ["\n", "\n\n", "\n\n\n", "\t\t"]
    model = train(470, ["<mask>", "<start_of_turn>", "<end_of_turn>", *runs], add_dummy_prefix=False, pad_id=0, eos_id=1, bos_id=2,
                  unk_id=3, eos_piece="<eos>", bos_piece="<bos>")
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    tokens = {processor.piece_to_id(piece): added(piece) for piece in ("<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>")}
    tokens.update({processor.piece_to_id(piece): added(piece, special=False) for piece in ("<mask>", *runs)})
    config = {"tokenizer_class": "GemmaTokenizer", "bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>", "pad_token": "<pad>",
              "add_bos_token": True, "add_eos_token": False}
    case = sentencepiece_case("gemma", model, config, tokens, processor.get_piece_size(), "<start_of_turn>", "<end_of_turn>", "<mask>")
    case.keys["add_space_prefix"] = False
    return case


def llama2():
    model = train(460, ["<extra>"], add_dummy_prefix=True)
    size = sentencepiece.SentencePieceProcessor(model_proto=model).get_piece_size()
    tokens = {0: added("<unk>"), 1: added("<s>"), 2: added("</s>"), size: added("<|im_start|>"), size + 1: added("<|im_end|>"),
              size + 2: added("<tool_call>", special=False)}
    config = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "legacy": True,
              "add_bos_token": True, "add_eos_token": False}
    return sentencepiece_case("llama2", model, config, tokens, size + 8, "<|im_start|>", "<|im_end|>", "<tool_call>")


def phi3():
    """The special tokens of Phi-3 take the space after them, which llama.cpp knows from the model's name."""
    model = train(450, [], add_dummy_prefix=True)
    size = sentencepiece.SentencePieceProcessor(model_proto=model).get_piece_size()
    stripping = [added("</s>", special=False)] + [added(content) for content in ("<|assistant|>", "<|user|>", "<|end|>")]
    for token in stripping:
        token["rstrip"] = True
    tokens = {0: added("<unk>"), 1: added("<s>"), 2: stripping[0], size: added("<|endoftext|>")}
    tokens.update({size + 1 + i: token for i, token in enumerate(stripping[1:])})
    config = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "<|endoftext|>", "unk_token": "<unk>", "legacy": True,
              "add_bos_token": True, "add_eos_token": False}
    case = sentencepiece_case("phi3", model, config, tokens, size + 8, "<|user|>", "<|end|>", "<|assistant|>")
    case.title = "Phi-3-mini-4k-instruct"
    case.keys["eos_token_id"] = size
    return case


def bpe_case(name, source, pre, special, end, user, bos):
    """`source`: a tokenizer.json of the tokenizers library; `bos`: the token that is put before a text, or None."""
    case = Case(name, special, end, user)
    from tokenizers import AddedToken, processors
    source.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in ["<|endoftext|>", special, end] + ([bos] if bos else [])])
    source.add_tokens([AddedToken(user, normalized=False)])
    if bos:
        source.post_processor = processors.TemplateProcessing(single=bos + " $A", special_tokens=[(bos, source.token_to_id(bos))])
    source.save(case.path("tokenizer.json"))
    write_json(case.path("tokenizer_config.json"), {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": bos, "eos_token": "<|endoftext|>"})
    write_json(case.path("config.json"), {"model_type": "llama"})
    with open(case.path("tokenizer.json")) as file:
        root = json.load(file)
    size = source.get_vocab_size()
    case.pieces = [source.id_to_token(id) for id in range(size)] + [f"[PAD{id}]" for id in range(size, size + 5)]
    case.types = [NORMAL] * size + [UNUSED] * 5
    for token in root["added_tokens"]:
        case.types[token["id"]] = CONTROL if token["special"] else USER
    case.keys = {"model": "gpt2", "pre": pre, "merges": [" ".join(merge) for merge in root["model"]["merges"]],
                 "eos_token_id": source.token_to_id("<|endoftext|>"), "add_bos_token": bos is not None}
    if bos:
        case.keys["bos_token_id"] = source.token_to_id(bos)
    return case


def byte_bpe(steps, ignore_merges=False, normalizer=None):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def bpe_cases():
    from tokenizers import Regex, normalizers, pre_tokenizers
    llama3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
              r"|\s+(?!\S)|\s+")

    def split(pattern):
        return [pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]

    words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    return [
        bpe_case("qwen2", byte_bpe(split(llama3.replace("{1,3}", "")), normalizer=normalizers.NFC()), "qwen2", "<|im_start|>", "<|im_end|>",
                 "<tool_call>", None),
        bpe_case("llama-bpe", byte_bpe(split(llama3), ignore_merges=True), "llama-bpe", "<|start_header_id|>", "<|eot_id|>", "<tool_call>",
                 "<|begin_of_text|>"),
        bpe_case("smollm", byte_bpe([pre_tokenizers.Digits(individual_digits=True), words]), "smollm", "<|im_start|>", "<|im_end|>",
                 "<file_sep>", None),
        bpe_case("gpt-2", byte_bpe([words]), "gpt-2", "<|im_start|>", "<|im_end|>", "<extra>", None),
    ]


def main():
    shutil.rmtree(OUT, ignore_errors=True)
    os.makedirs(OUT)
    expected = {}
    for case in [gemma(), llama2(), phi3(), *bpe_cases()]:
        case.write(os.path.join(OUT, case.name + ".gguf"), tensors=False)
        expected[case.name] = case.expected()
    with open(os.path.join(OUT, "expected.json"), "w") as file:
        json.dump(expected, file, ensure_ascii=True, separators=(",", ":"))
        file.write("\n")


if __name__ == "__main__":
    main()
