# SPDX-License-Identifier: Apache-2.0
"""The program prunes and corrects models and exports them; transformers, peft and the gguf package load the exports.

Logits and texts are compared with those of the plan, as the program itself runs it.
"""
import copy
import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from program import DEMO, Program, largest, logits
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

VOCABULARY = json.loads((DEMO / "config.json").read_text())["vocab_size"]
SHAPE = {"vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 8, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 2048, "initializer_range": 0.1,
         "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
RANDOM = {
    "qwen2": ("qwen2", {"tie_word_embeddings": True, "rope_theta": 1e6}),
    "qwen3": ("qwen3", {"tie_word_embeddings": False, "rope_theta": 1e6}),
    "llama3.1": ("llama", {"rope_theta": 500000.0, "rope_scaling": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 512}}),
}
PROMPT = "It is a truth universally acknowledged, that"
CASES = [("hf", "pruned"), ("hf", "replaceme"), ("hf-lra", "low-rank"), ("hf-lra", "full"), ("hf-lra", "halves"),
         ("hf", "portable"), ("hf", "halves-alone"), ("hf-lra", "portable")]
# `hf` writes these plans as layers of a Llama, for some families alone.
AS_LLAMA = ("portable", "halves-alone")


def random_model(name, directory):
    family, entries = RANDOM[name]
    torch.manual_seed(11)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **SHAPE, **entries))
    for key, tensor in model.state_dict().items():  # norms and biases that do something
        if key.endswith("bias") or "norm" in key:
            tensor.add_(torch.randn_like(tensor) / 8)
    model.save_pretrained(directory)
    for file in DEMO.glob("tokenizer*"):
        shutil.copy(file, directory)


@pytest.fixture(scope="session")
def program(pytestconfig, tmp_path_factory):
    path = pytestconfig.getoption("--shiftrt")
    if not path:
        pytest.skip("needs --shiftrt PROGRAM")
    return Program(path, tmp_path_factory.mktemp("exports"))


@pytest.fixture(scope="session")
def random_models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    for name in RANDOM:
        random_model(name, folder / name)
    return folder


@pytest.fixture(scope="session", params=[*RANDOM, "demo", "real"])
def model(request, random_models):
    if request.param == "demo":
        return DEMO
    if request.param == "real":
        path = request.config.getoption("--real-model")
        return Path(path).resolve() if path else pytest.skip("needs --real-model DIRECTORY")
    return random_models / request.param


@pytest.fixture(scope="session", params=CASES, ids=lambda case: "-".join(case))
def case(request, model):
    form, plan = request.param
    if form == "hf" and plan in AS_LLAMA and json.loads((model / "config.json").read_text())["model_type"] == "qwen3":
        pytest.skip("hf holds adapters and half blocks of Llama, Mistral and Qwen 2")
    return request.param


@pytest.fixture
def export(program, model, case):
    form, plan = case
    return program.exported(model, plan, form)


def load(export, **options):
    """Stock transformers where that is what the format is for."""
    options = {"dtype": torch.float32, **options}
    return AutoModelForCausalLM.from_pretrained(export, trust_remote_code="-hf-lra" in export.name, **options).eval()


def prompt(export):
    return AutoTokenizer.from_pretrained(export)(PROMPT)["input_ids"]


def test_logits_and_greedy_text(program, model, case, export, compared):
    saved = program.saved(model, case[1])
    theirs = load(export)
    tokens = prompt(export)
    generated = {cache: theirs.generate(torch.tensor([tokens]), attention_mask=torch.ones(1, len(tokens), dtype=torch.long),
                                        max_new_tokens=64, min_new_tokens=64, do_sample=False, use_cache=cache,
                                        pad_token_id=0)[0].tolist() for cache in (True, False)}
    assert generated[True] == generated[False]
    text = generated[True]
    expected = program.logits(saved, text)
    got = logits(theirs, text)
    # In a model without its first block the rounding errors of float32 alone can be larger than 1e-4; transformers' own count.
    limit = max(1e-4, 2 * largest(got, logits(copy.deepcopy(theirs).double(), text)))
    compared(f"logits of {len(text)} tokens, largest difference", largest(got, expected), limit)
    greedy = expected[len(tokens) - 1:-1].clone()
    banned = theirs.generation_config.eos_token_id  # min_new_tokens forbids the end of the text
    if banned is not None:
        greedy[:, banned] = -torch.inf
    wrong = (greedy.argmax(-1) != torch.tensor(text[len(tokens):])).sum().item()
    compared("greedy tokens that differ, of 64", wrong, 0)
    with torch.no_grad():
        cache = theirs(torch.tensor([text[:20]]), use_cache=True)
        steps, past = [cache.logits[0]], cache.past_key_values
        for token in text[20:]:
            out = theirs(torch.tensor([[token]]), past_key_values=past, use_cache=True)
            steps.append(out.logits[0])
    compared("logits with the cache, largest difference", largest(torch.cat(steps), expected), limit)


def test_text_of_generate(program, model, case, export):
    """The program's own decoding, tokenizer and text on one side, those of transformers on the other."""
    theirs, tokenizer = load(export), AutoTokenizer.from_pretrained(export)
    inputs = tokenizer(PROMPT, return_tensors="pt")
    tokens = theirs.generate(inputs.input_ids, attention_mask=inputs.attention_mask, max_new_tokens=64, do_sample=False,
                             pad_token_id=0)[0]
    text = program.run("generate", "--model", program.saved(model, case[1]), "--dtype", "float32", "--prompt", PROMPT,
                       "--max-tokens", 64, "--quiet")
    assert text.rstrip("\n") == tokenizer.decode(tokens, skip_special_tokens=True).rstrip("\n")


def test_stored_type(program, model, case, compared):
    """bfloat16: the differences are those of 16-bit activations, which the program keeps in float32."""
    export = program.exported(model, case[1], case[0], "--dtype", "bfloat16")
    theirs = load(export, dtype="auto")
    assert theirs.dtype == torch.bfloat16
    tokens = prompt(export)
    expected = program.logits(export, tokens, "bfloat16")
    got = logits(theirs, tokens).float()
    compared("bfloat16: |difference| / |logits|", ((got - expected).norm() / expected.norm()).item(), 0.05)


def test_save_and_load(export, tmp_path, compared):
    theirs = load(export)
    tokens = prompt(export)
    before = logits(theirs, tokens)
    out = tmp_path / f"again{'-hf-lra' if '-hf-lra' in export.name else ''}"
    theirs.save_pretrained(out)
    compared("after save_pretrained, largest difference", largest(logits(load(out), tokens), before), 0)


def test_program_reads_what_transformers_saved(program, export, tmp_path, compared):
    theirs = load(export)
    theirs.save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(export).save_pretrained(tmp_path)
    tokens = prompt(export)
    compared("program on what transformers saved", largest(program.logits(tmp_path, tokens), logits(theirs, tokens)), 1e-4)


def test_peft(export, compared):
    from peft import LoraConfig, get_peft_model
    torch.manual_seed(3)
    theirs = load(export)
    theirs.gradient_checkpointing_enable()
    theirs = get_peft_model(theirs, LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")).train()
    tokens = torch.tensor([prompt(export)])
    optimizer = torch.optim.AdamW([p for p in theirs.parameters() if p.requires_grad], lr=1e-3)
    losses = []
    for _ in range(3):
        loss = theirs(tokens, labels=tokens, use_cache=False).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    compared("change of the loss by two LoRA steps", losses[2] - losses[0], -1e-4)


def random_lora(base, modules, **options):
    """peft's LoRA on a model, with factors that do something."""
    from peft import LoraConfig, get_peft_model
    torch.manual_seed(5)
    model = load(base, **options)
    return get_peft_model(model, LoraConfig(r=4, lora_alpha=2, target_modules=modules, init_lora_weights=False,
                                            task_type="CAUSAL_LM")).eval()


def rounding(theirs, tokens, expected):
    """The effect of rounding on the logits: that of activations, and that of the merged weights, as in peft's own merge."""
    merged = logits(copy.deepcopy(theirs).merge_and_unload(), tokens)
    return max(1e-4, 4 * (largest(expected, logits(copy.deepcopy(theirs).double(), tokens)) + largest(expected, merged)))


@pytest.mark.parametrize("modules", ["all-linear", ["q_proj", "down_proj"]], ids=["all", "some"])
def test_lora_of_peft(program, model, modules, tmp_path, compared):
    """Factors that peft saved, merged by the program, and kept in a saved model as fine-tuning keeps it."""
    saved, base = program.saved(model, "pruned"), program.exported(model, "pruned", "hf")
    theirs = random_lora(base, modules)
    theirs.save_pretrained(tmp_path / "adapter")
    tokens = prompt(base)
    expected = logits(theirs, tokens)
    limit = rounding(theirs, tokens, expected)
    assert largest(logits(load(base), tokens), expected) > 1e-2, "the factors do nothing"
    compared("peft's LoRA with --lora, largest difference",
             largest(program.logits(saved, tokens, "float32", "--lora", tmp_path / "adapter"), expected), limit)
    program.run("export", "--model", saved, "--lora", tmp_path / "adapter", "--format", "hf", "--save", tmp_path / "merged",
                "--dtype", "float32", "--quiet")
    compared("the same exported, largest difference", largest(logits(load(tmp_path / "merged"), tokens), expected), limit)

    tuned = tmp_path / "tuned"
    shutil.copytree(saved, tuned)
    shutil.copytree(tmp_path / "adapter", tuned / "lora")
    plan = json.loads((tuned / "shiftrt.json").read_text())
    projections = modules if modules != "all-linear" else ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    for stage in plan["plan"]:
        stage["lora"] = [f"{'mlp' if name in ('gate_proj', 'up_proj', 'down_proj') else 'self_attn'}.{name}.weight"
                         for name in projections]
    (tuned / "shiftrt.json").write_text(json.dumps(plan | {"version": 3}))
    compared("the same in a saved model, largest difference", largest(program.logits(tuned, tokens), expected), limit)
    program.run("export", "--model", tuned, "--no-lora", "--format", "hf", "--save", tmp_path / "base", "--dtype", "float32",
                "--quiet")
    compared("its base, largest difference", largest(logits(load(tmp_path / "base"), tokens), logits(load(base), tokens)), 0)


@pytest.mark.parametrize("targets", ["q,k,v,o,gate,up,down", "v,down"], ids=["all", "some"])
def test_finetuned_lora_in_peft(program, model, targets, tmp_path, compared):
    """Factors that fine-tuning wrote, loaded by peft on the export of the pruned model."""
    from peft import PeftModel
    saved, base = program.saved(model, "pruned"), program.exported(model, "pruned", "hf")
    tuned = tmp_path / "tuned"
    program.run("finetune", "--model", saved, "--method", "lora", "--targets", targets, "--calib", DEMO / "calibration.txt",
                "--samples", 8, "--length", 64, "--batch", 2, "--steps", 3, "--rate", 0.01, "--dtype", "float32",
                "--text", DEMO / "heldout.txt", "--text-tokens", 128, "--save", tuned, "--quiet")
    theirs = PeftModel.from_pretrained(load(base), tuned / "lora").eval()
    tokens = prompt(base)
    expected = logits(theirs, tokens)
    limit = rounding(theirs, tokens, expected)
    assert largest(logits(load(base), tokens), expected) > 1e-2, "the training did nothing"
    compared("fine-tuned LoRA in peft, largest difference", largest(program.logits(tuned, tokens), expected), limit)


def test_lora_is_merged_as_peft_merges_it(program, model, tmp_path, compared):
    """In bfloat16 both round the sum; that of the product may differ in the last place of float32, and so flip a rounding."""
    base = program.exported(model, "pruned", "hf", "--dtype", "bfloat16")
    theirs = random_lora(base, "all-linear", dtype=torch.bfloat16)
    theirs.save_pretrained(tmp_path / "adapter")
    before = {name: tensor.float() for name, tensor in load(base, dtype=torch.bfloat16).state_dict().items()}
    merged = theirs.merge_and_unload().state_dict()
    program.run("export", "--model", base, "--lora", tmp_path / "adapter", "--format", "hf", "--save", tmp_path / "merged", "--quiet")
    worst, changed = 0.0, 0
    for name, tensor in load(tmp_path / "merged", dtype="auto").state_dict().items():
        assert tensor.dtype == torch.bfloat16
        peft, ours = merged[name].float(), tensor.float()
        changed += (peft != before[name]).sum().item()
        rounding = (peft.abs() + ours.abs()) * 2.0 ** -9
        worst = max(worst, ((peft - ours).abs() / rounding.clamp(min=1e-30)).max().item())
    assert changed > 1000
    compared("merged in bfloat16, differences in roundings", worst, 1.05)


def test_shards(program, model, case, compared):
    size = 100_000 if model.name in RANDOM else 2_000_000 if model == DEMO else 100_000_000
    export = program.exported(model, case[1], case[0], "--shard-size", size)
    index = json.loads((export / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) > 1
    tokens = prompt(export)
    whole = logits(load(program.exported(model, case[1], case[0])), tokens)
    compared("in several files, largest difference", largest(logits(load(export), tokens), whole), 0)


def test_needs_trust(program, model):
    with pytest.raises(ValueError, match="trust_remote_code"):
        AutoModelForCausalLM.from_pretrained(program.exported(model, "full", "hf-lra"), trust_remote_code=False)


def test_mergekit(program, model, tmp_path, compared):
    """The recipe, read here as mergekit's documentation describes it, gives the tensors of the pruned model. So does mergekit,
    where it is installed."""
    out = program.exported(model, "pruned", "mergekit")
    recipe = yaml.safe_load((out / "mergekit.yaml").read_text())
    assert recipe["merge_method"] == "passthrough"
    layers = []
    for part in recipe["slices"]:
        (source,) = part["sources"]
        assert Path(source["model"]).samefile(model)
        layers += range(*source["layer_range"])
    original = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).state_dict()
    expected = {key: tensor for key, tensor in original.items() if ".layers." not in key}
    for new, old in enumerate(layers):
        start = f"model.layers.{old}."
        expected |= {key.replace(start, f"model.layers.{new}."): t for key, t in original.items() if key.startswith(start)}
    pruned = load(program.exported(model, "pruned", "hf"))
    tensors = pruned.state_dict()
    assert tensors.keys() == expected.keys()
    compared("tensors of the recipe, largest difference", max(largest(t, expected[key]) for key, t in tensors.items()), 0)
    # mergekit 0.1.5 does not shorten the list of layer types, which Qwen's configuration has, and stops there.
    if importlib.util.find_spec("mergekit") and getattr(pruned.config, "layer_types", None) is None:
        subprocess.run([sys.executable, "-m", "mergekit.scripts.run_yaml", out / "mergekit.yaml", tmp_path / "merged"], check=True)
        tokens = prompt(model)
        compared("logits of what mergekit made, largest difference",
                 largest(logits(load(tmp_path / "merged"), tokens), logits(pruned, tokens)), 0)


@pytest.mark.skipif(not (shutil.which("llama-quantize") and shutil.which("llama-perplexity")), reason="needs llama.cpp in PATH")
def test_llama_quantize(program, model, tmp_path):
    """The script makes the tensors of the program's own export of a GGUF file of the original, and llama.cpp loads them."""
    from gguf import GGUFReader
    recipe = program.exported(model, "pruned", "mergekit")
    program.run("export", "--model", model, "--format", "gguf", "--save", tmp_path / "original", "--dtype", "float32")
    (original,) = (tmp_path / "original").rglob("*.gguf")
    subprocess.run(["sh", recipe / "llama-quantize.sh", original, tmp_path / "pruned.gguf"], check=True)
    (ours,) = program.exported(model, "pruned", "gguf").rglob("*.gguf")
    made, expected = ({tensor.name: tensor.data for tensor in GGUFReader(file).tensors} for file in (tmp_path / "pruned.gguf", ours))
    assert made.keys() == expected.keys()
    assert all((made[name] == expected[name]).all() for name in expected)
    shutil.copy(DEMO / "heldout.txt", tmp_path / "text")
    subprocess.run(["llama-perplexity", "-m", tmp_path / "pruned.gguf", "-f", tmp_path / "text", "-c", "128", "--chunks", "1"], check=True)


@pytest.mark.parametrize("plan", ["pruned", "replaceme"])
def test_gguf(program, model, plan, compared):
    """The gguf package reads the file, and transformers dequantises it to a model with the logits of the plan."""
    from gguf import GGUFReader
    if "gguf" not in program.run("export", "--help"):
        pytest.skip("the program has no format gguf")
    (file,) = program.exported(model, plan, "gguf").rglob("*.gguf")
    config = json.loads((program.exported(model, plan, "hf") / "config.json").read_text())
    reader = GGUFReader(file)
    architecture = reader.fields["general.architecture"].contents()
    assert architecture == config["model_type"]
    assert reader.fields[f"{architecture}.block_count"].contents() == config["num_hidden_layers"]
    assert sum(tensor.name.startswith("blk.") and tensor.name.endswith("attn_q.weight") for tensor in reader.tensors) \
        == config["num_hidden_layers"]
    if "rope_freqs.weight" in {tensor.name for tensor in reader.tensors}:
        return  # transformers does not read the frequencies of Llama 3.1 from GGUF
    if architecture == "qwen3" and config["head_dim"] != 128:
        return  # nor the size of Qwen3's heads, which is 128 in all released models
    theirs = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32).eval()
    tokens = prompt(model)
    compared("GGUF in transformers, largest difference", largest(logits(theirs, tokens), program.logits(program.saved(model, plan), tokens)),
             1e-4)
