"""llama.cpp's C functions, called in the library that the package xllamacpp 2026.10.11549 has.

The layout of their parameters is that of this version.
"""
import contextlib
import ctypes as c
import time
from pathlib import Path

import numpy as np
import xllamacpp


def fields(kind, names):
    return [(name, kind) for name in names.split()]


class ModelParams(c.Structure):
    _fields_ = [*fields(c.c_void_p, "devices overrides_of_types"), *fields(c.c_int, "gpu_layers split load lazy main_gpu"),
                *fields(c.c_void_p, "tensor_split progress progress_data kv_overrides"),
                *fields(c.c_bool, "vocab_only check extra no_host no_alloc mtp")]


class ContextParams(c.Structure):
    _fields_ = [*fields(c.c_uint32, "n_ctx n_batch n_ubatch n_seq_max n_rs_seq n_outputs_max n_outputs_max_per_seq"),
                *fields(c.c_int, "n_threads n_threads_batch type rope_scaling pooling attention flash"),
                *fields(c.c_float, "rope_base rope_scale yarn_ext yarn_attn yarn_fast yarn_slow"), ("yarn_ctx", c.c_uint32),
                ("defrag", c.c_float), *fields(c.c_void_p, "eval eval_data"), *fields(c.c_int, "type_k type_v"),
                *fields(c.c_void_p, "abort abort_data"),
                *fields(c.c_bool, "embeddings offload no_perf op_offload swa_full unified"), ("samplers", c.c_void_p),
                ("n_samplers", c.c_size_t), ("other", c.c_void_p)]


class Batch(c.Structure):
    _fields_ = [("n_tokens", c.c_int32), ("token", c.POINTER(c.c_int32)), ("embd", c.c_void_p), ("pos", c.POINTER(c.c_int32)),
                ("n_seq_id", c.POINTER(c.c_int32)), ("seq_id", c.POINTER(c.POINTER(c.c_int32))),
                ("logits", c.POINTER(c.c_int8))]


class Override(c.Structure):
    _fields_ = [("tag", c.c_int), ("key", c.c_char * 128), ("padding", c.c_int), ("value", c.c_char * 128)]


class LlamaCpp:
    def __init__(self):
        library = next(Path(xllamacpp.__file__).parent.glob("xllamacpp*.so"))
        self.lib = c.CDLL(str(library), mode=c.RTLD_GLOBAL)
        signatures = {"llama_model_default_params": (ModelParams, []), "llama_context_default_params": (ContextParams, []),
                      "llama_model_load_from_file": (c.c_void_p, [c.c_char_p, ModelParams]),
                      "llama_init_from_model": (c.c_void_p, [c.c_void_p, ContextParams]),
                      "llama_batch_init": (Batch, [c.c_int32] * 3), "llama_decode": (c.c_int32, [c.c_void_p, Batch]),
                      "llama_get_logits_ith": (c.POINTER(c.c_float), [c.c_void_p, c.c_int32]),
                      "llama_model_get_vocab": (c.c_void_p, [c.c_void_p]), "llama_vocab_n_tokens": (c.c_int32, [c.c_void_p]),
                      "llama_get_memory": (c.c_void_p, [c.c_void_p]), "llama_memory_clear": (None, [c.c_void_p, c.c_bool]),
                      "llama_free": (None, [c.c_void_p]), "llama_model_free": (None, [c.c_void_p]),
                      "llama_batch_free": (None, [Batch])}
        for name, (result, arguments) in signatures.items():
            getattr(self.lib, name).restype, getattr(self.lib, name).argtypes = result, arguments
        log = c.CFUNCTYPE(None, c.c_int, c.c_char_p, c.c_void_p)
        self.said = []
        self.log = log(lambda level, text, data: self.said.append(text.decode(errors="replace")))
        self.lib.llama_log_set.argtypes = [log, c.c_void_p]
        self.lib.llama_log_set(self.log, None)
        self.lib.llama_backend_init()

    @contextlib.contextmanager
    def open(self, path, context, threads=None, exact=True, tokenizer=True):
        """Opens a file. `exact`: without flash attention, and with keys and values in float32, where the defaults round to
        float16. A file without a tokenizer needs `tokenizer` to be False."""
        of_model = self.lib.llama_model_default_params()
        of_model.gpu_layers = 0
        if not tokenizer:
            overrides = (Override * 2)()
            overrides[0].tag, overrides[0].key, overrides[0].value = 3, b"tokenizer.ggml.model", b"no_vocab"
            of_model.kv_overrides = c.cast(overrides, c.c_void_p)
        if exact:
            of_model.extra = False
        model = self.lib.llama_model_load_from_file(str(path).encode(), of_model)
        if not model:
            raise SystemExit("llama.cpp does not load the file: " + "".join(self.said)[-1000:])
        of_context = self.lib.llama_context_default_params()
        assert (of_context.n_batch, of_context.yarn_ext, of_context.type_k) == (2048, -1, 1), "another layout"
        of_context.n_ctx = context
        if exact:
            of_context.type_k = of_context.type_v = of_context.flash = 0
        if threads:
            of_context.n_threads = of_context.n_threads_batch = threads
        run = self.lib.llama_init_from_model(model, of_context)
        try:
            yield Opened(self.lib, model, run)
        finally:
            self.lib.llama_free(run)
            self.lib.llama_model_free(model)


class Opened:
    def __init__(self, lib, model, run):
        self.lib, self.run = lib, run
        self.vocab = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))

    def forget(self):
        self.lib.llama_memory_clear(self.lib.llama_get_memory(self.run), True)

    def decode(self, tokens, first=0, outputs="last"):
        """Runs tokens that stand at the positions from `first` on, and returns the seconds. `outputs`: "last" or "all"."""
        batch = self.lib.llama_batch_init(len(tokens), 0, 1)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0] = token, first + i, 1, 0
            batch.logits[i] = outputs == "all" or i + 1 == len(tokens)
        batch.n_tokens = len(tokens)
        start = time.perf_counter()
        status = self.lib.llama_decode(self.run, batch)
        if status == 0:
            self.lib.llama_get_logits_ith(self.run, len(tokens) - 1)  # waits for the result
        seconds = time.perf_counter() - start
        self.lib.llama_batch_free(batch)
        if status != 0:
            raise SystemExit(f"llama_decode: {status}")
        return seconds

    def row(self, i, vocab=None):
        """The logits of the i-th token of the last call of decode, without a copy."""
        return np.ctypeslib.as_array(self.lib.llama_get_logits_ith(self.run, i), shape=(vocab or self.vocab,))

    def logits(self, tokens, vocab=None):
        """The logits after each token (tokens, vocabulary)."""
        self.forget()
        self.decode(tokens, outputs="all")
        return np.stack([self.row(i, vocab).copy() for i in range(len(tokens))])
