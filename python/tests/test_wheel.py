# SPDX-License-Identifier: Apache-2.0
"""The installed wheel: its package, its command, and that both give the same numbers."""
import ast
import importlib.metadata
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import shiftrt
from shiftrt import _installed

PROMPT = "It is a truth universally acknowledged, that"


@pytest.fixture(scope="module")
def model():
    return shiftrt.open("demo")


@pytest.fixture(scope="module")
def heldout(model):
    return os.path.join(model.directory, "heldout.txt")


@pytest.fixture(scope="module")
def repair(model):
    return model.repair("bi:0.25", rank=16, text=os.path.join(model.directory, "calibration.txt"), samples=16, tokens=64)


def command(*arguments):
    done = subprocess.run(["shiftrt", *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def tensors(file):
    """{name: array} of a file of safetensors in float32."""
    data = Path(file).read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    return {name: np.frombuffer(data[8 + size:][slice(*entry["data_offsets"])], np.float32).reshape(entry["shape"])
            for name, entry in header.items() if name != "__metadata__" and entry["dtype"] == "F32"}


def test_the_example(model, tmp_path):
    repair = model.repair(prune="bi:0.25", recipe="stock", samples=16, tokens=64)
    assert len(repair.corrected.removed_layers) == 4 and repair.corrected.blocks == 12
    assert repair.corrected.generate(PROMPT, max_tokens=8).text
    repair.corrected.export("hf", tmp_path / "exported")
    again = shiftrt.open(tmp_path / "exported")
    assert again.generate(PROMPT, max_tokens=8).tokens == repair.corrected.generate(PROMPT, max_tokens=8).tokens


def test_versions_agree():
    assert command("--version").strip() == shiftrt.__version__ == importlib.metadata.version("shiftrt")


def test_perplexity_is_that_of_the_command(model, heldout, tmp_path):
    command("ppl", "--model", "demo", "--text", heldout, "--protocol", "seq128", "--text-tokens", 4096, "--json", tmp_path / "json")
    measured = model.perplexity(heldout, protocol="seq128", tokens=4096)
    expected = json.loads((tmp_path / "json").read_text())
    assert (measured.mean_nll, measured.predicted) == (expected["mean_nll"], expected["predicted"])
    assert float(measured) == expected["perplexity"]


def test_documents_score_as_with_the_command(model, heldout, tmp_path):
    text = tmp_path / "part.txt"
    text.write_text(Path(heldout).read_text()[:20000])
    command("ppl", "--model", "demo", "--text", text, "--protocol", "harness", "--json", tmp_path / "json")
    evaluation = model.evaluate("wikitext", data=[f"wikitext={text}"])
    expected = json.loads((tmp_path / "json").read_text())
    scores = evaluation["wikitext"].scores["model"]
    assert scores and all(value == expected[metric] for metric, (value, _) in scores.items())


def test_a_repair_is_that_of_the_command(model, repair, tmp_path):
    command("run", "--model", "demo", "--prune", "bi:0.25", "--lra", 16, "--calib",
            os.path.join(model.directory, "calibration.txt") + ":16x64", "--text-tokens", 512, "--max-tokens", 1, "--save",
            tmp_path / "command", "--quiet")
    repair.corrected.save(tmp_path / "package")
    assert (tmp_path / "command/adapters.safetensors").read_bytes() == (tmp_path / "package/adapters.safetensors").read_bytes()


@pytest.mark.parametrize("options", [{}, {"temperature": 0.8, "top_p": 0.9, "seed": 3}])
def test_a_generation_is_that_of_the_command(model, options):
    flags = [word for name, value in options.items() for word in ("--" + name.replace("_", "-"), value)]
    said = command("generate", "--model", "demo", "--prompt", PROMPT, "--max-tokens", 24, "--quiet", *flags)
    assert said == PROMPT + model.generate(PROMPT, max_tokens=24, **options).text + "\n"


@pytest.mark.parametrize("options", [{}, {"temperature": 0.8, "top_p": 0.9}])
def test_many_generations_are_those_of_each_prompt(model, options):
    prompts = [PROMPT, model.encode("the sea"), "It was"]
    many = model.generate_many(prompts, max_tokens=12, batch=2, seed=5, **options)
    for i, (prompt, reply) in enumerate(zip(prompts, many)):
        alone = model.generate(prompt, max_tokens=12, seed=5 + i, **options)
        assert (reply.text, list(reply.tokens)) == (alone.text, list(alone.tokens))


def test_logits_and_streams_are_those_of_the_command(model, repair, tmp_path):
    ids = model.encode(PROMPT)
    repair.corrected.save(tmp_path / "saved")
    command("dump", "--model", tmp_path / "saved", "--tokens", " ".join(map(str, ids)), "--logits", "--out", tmp_path / "dump")
    logits = repair.corrected.logits(ids)
    assert logits.dtype == np.float32 and logits.shape == (len(ids), model.vocabulary)
    np.testing.assert_array_equal(logits, tensors(tmp_path / "dump")["logits"])
    assert not logits.flags.owndata and logits.base is not None  # it is the library's own memory


def test_hidden_states(model, repair):
    ids = model.encode(PROMPT)
    streams = model.hidden(ids)
    assert list(streams) == list(range(model.layers + 1))
    assert all(stream.shape == (len(ids), model.hidden_size) for stream in streams.values())
    some = model.hidden(PROMPT, [2, model.layers])
    assert list(some) == [2, model.layers]
    np.testing.assert_array_equal(some[2], streams[2])
    kept = sorted(set(range(model.layers + 1)) - set(repair.corrected.removed_layers))
    assert list(repair.corrected.hidden(ids)) == kept
    with pytest.raises(shiftrt.UsageError) as refused:
        repair.corrected.hidden(ids, repair.corrected.removed_layers)
    assert refused.value.field == "layers"


def test_float32_products_are_the_default(model):
    same = shiftrt.open("demo", products="float32")
    assert np.array_equal(model.logits(model.encode(PROMPT)), same.logits(same.encode(PROMPT)))


def test_scores_are_sums_of_log_probabilities(model):
    ids = model.encode(PROMPT)
    continued = ids + model.generate(ids, max_tokens=3).tokens
    (total, greedy), (other, other_greedy) = model.score([(continued, 3), (ids, 2)])
    logits = model.logits(continued).astype(np.float64)
    rows = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    expected = sum(rows[len(ids) - 1 + i, continued[len(ids) + i]] for i in range(3))
    assert greedy and total == pytest.approx(expected, abs=1e-3)
    assert model.score_texts([(PROMPT, " a")])[0][0] == model.score([(model.encode(PROMPT + " a"), 1)])[0][0]
    one, two = model.score_documents([PROMPT, PROMPT + " a"])
    assert two < one < 0
    assert other < 0 and other_greedy == all(rows[len(ids) - 3 + i].argmax() == ids[len(ids) - 2 + i] for i in range(2))


def test_texts_have_their_numbers_as_on_the_command_line(model):
    text = os.path.join(model.directory, "calibration.txt")
    counted, named = (model.repair("layers=1", rank=4, **settings).report["calibration"]
                      for settings in ({"text": text + ":16x64"}, {"text": text, "samples": 16, "tokens": 64}))
    assert counted == named
    with pytest.raises(shiftrt.UsageError, match="16"):
        model.repair("layers=1", text=text + ":16x64", samples=8)


def test_the_default_device_is_that_of_the_command(model):
    assert shiftrt.open("demo", device="auto").generate(PROMPT, max_tokens=4).text == model.generate(PROMPT, max_tokens=4).text


def test_what_is_no_text_or_prompt_says_what_to_pass(model):
    with pytest.raises(shiftrt.UsageError, match=r"in a list, \[text\]"):
        model.perplexity("It is a truth")
    with pytest.raises(shiftrt.UsageError, match="a list of texts"):
        model.perplexity(3)
    with pytest.raises(shiftrt.UsageError, match="list of str"):
        model.perplexity([3])
    for prompt in (3, None, b"Hello", {"a": 1}, np.zeros((1, 2), np.int32)):
        with pytest.raises(shiftrt.UsageError, match=r"a list such as \[3\]") as error:
            model.generate(prompt)
        assert error.value.field == "prompt"


def test_texts_may_be_given_themselves(model, heldout):
    text = Path(heldout).read_text()[:20000]
    assert model.perplexity([text], protocol="seq128").predicted > 0
    documents = [text[i:i + 2000] for i in range(0, 20000, 2000)]
    repair = model.repair([5, "6.mlp"], rank=4, text=documents, samples=8, tokens=64)
    assert repair.corrected.removed_layers == [5] and repair.corrected.blocks == 15
    assert "given-text.jsonl" in repair.report["calibration"]["source"]


def test_stops_and_pieces_of_text(model):
    whole = model.generate(PROMPT, max_tokens=24)
    stop = whole.text[8:11]
    pieces = []
    stopped = model.generate(PROMPT, max_tokens=24, stop=[stop], on_text=pieces.append)
    assert stopped.text == whole.text[:whole.text.find(stop)]
    assert len(stopped.tokens) < len(whole.tokens) and "".join(pieces).startswith(stopped.text)


def test_finetune_learns_and_saves(repair, heldout, tmp_path):
    steps = []
    tuned = repair.corrected.finetune("lora", text=heldout, steps=4, batch=2, length=64, validation=2, validate_every=2, rank=4,
                                      rate=1e-3, progress=steps.append)
    assert [step.done for step in tuned.steps] == [1, 2, 3, 4] and len(tuned.losses) == 4
    assert all(step.total == 4 and step.gradient_norm > 0 and step.loss == loss for step, loss in zip(tuned.steps, tuned.losses))
    assert [(step.done, step.validation) for step in tuned.steps if step.validation is not None] == tuned.validations[1:]
    assert [done for done, _ in tuned.validations] == [0, 2, 4]
    assert steps[-1] == tuned.steps[-1] and {step.done: step for step in steps} == {step.done: step for step in tuned.steps}
    assert tuned.validations[-1][1] < tuned.validations[0][1]
    tuned.model.save(tmp_path / "tuned")
    assert (tmp_path / "tuned/lora").is_dir()
    assert shiftrt.open(tmp_path / "tuned").generate(PROMPT, max_tokens=8).tokens == tuned.model.generate(PROMPT, max_tokens=8).tokens


def test_recover_is_that_of_the_command(model, heldout, tmp_path):
    calibration, budget = tmp_path / "calibration.txt", "tokens=2k"
    calibration.write_text(Path(model.directory, "calibration.txt").read_text()[:12000])
    command("run", "--model", "demo", "--prune", "layers=5,9", "--lra", 4, "--calib", f"{calibration}:16x64", "--text", heldout,
            "--text-tokens", 512, "--max-tokens", 1, "--recover", budget, "--save", tmp_path / "command", "--save-weights", "--quiet")
    calls = []
    arguments = dict(prune=[5, 9], rank=4, text=calibration, samples=16, tokens=64, recover=budget, keep=tmp_path / "kept")
    repair = model.repair(**arguments, progress=lambda phase, done, total: calls.append((phase, done, total)))
    repair.recovered.save(tmp_path / "package", with_weights=True)
    assert repair.models["recovered"] is repair.recovered and len(repair.recovery.steps) == calls[-1][1] == calls[-1][2] > 0
    assert calls[-1][0] == "recover"
    files = sorted(path.name for path in (tmp_path / "command").glob("*.safetensors"))
    assert "adapters.safetensors" in files and len(files) > 1
    for file in files:
        assert (tmp_path / "command" / file).read_bytes() == (tmp_path / "package" / file).read_bytes(), file
    phases = set()
    again = model.repair(**arguments, progress=lambda phase, done, total: phases.add(phase))
    # The second call takes the finished training from what the first one kept, and does no step of it.
    assert "recover" not in phases and again.recovery.losses == repair.recovery.losses
    # Other settings of the training have no state there.
    assert len(model.repair(**{**arguments, "recover": "tokens=1k"}).recovery.steps) < len(repair.recovery.steps)
    assert model.repair("layers=5", rank=4, samples=8, tokens=64).recovered is None


def test_a_recipe_may_have_a_training(model, tmp_path):
    calibration = tmp_path / "calibration.txt"
    calibration.write_text(Path(model.directory, "calibration.txt").read_text()[:12000])
    arguments = dict(prune=[5, 9], text=calibration, samples=16, tokens=64)
    named = model.repair(**arguments, recipe="recover", recover="tokens=1k")
    spelled = model.repair(**arguments, correction="joint", rank=64, recover="tokens=1k")
    assert named.recovery.losses == spelled.recovery.losses
    assert shiftrt._native.recipe_budget("recover") == "tokens=640k" and shiftrt._native.recipe_budget("stock") == ""


def test_the_preset_recover_takes_a_model_without_adapters(model, heldout):
    tuned = model.without([5, 9]).finetune(preset="recover", text=heldout, steps=3, batch=2, length=64, validation=8)
    assert len(tuned.steps) == 3 and tuned.model.adapters == 0
    assert tuned.validations[-1][1] < tuned.validations[0][1]
    with pytest.raises(shiftrt.UsageError) as refused:  # asked for by name, they must exist
        model.without([5]).finetune(preset="recover", text=heldout, steps=1, adapters=True)
    assert refused.value.field == "adapters"


TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"


def test_chats_are_encoded_as_the_template_says(model, tmp_path):
    shutil.copytree(model.directory, tmp_path / "chat")
    (tmp_path / "chat/chat_template.jinja").write_text(TEMPLATE)
    chat = shiftrt.open(tmp_path / "chat")
    assert chat.decode(chat.encode_message("hi", system="be brief")) == "system: be brief\nuser: hi\nassistant:"
    assert chat.encode_message("hi") == chat.encode_chat([{"role": "user", "content": "hi"}]) == chat.encode_chat([("user", "hi")])
    turns = [("user", "hi"), ("assistant", "Well?"), ("user", "sing")]
    assert chat.decode(chat.encode_chat(turns)) == "user: hi\nassistant: Well?\nuser: sing\nassistant:"
    said = command("generate", "--model", tmp_path / "chat", "--chat", "--prompt", "hi", "--max-tokens", 8, "--quiet")
    assert said == chat.generate(chat.encode_message("hi"), max_tokens=8).text + "\n"
    with pytest.raises(shiftrt.Error, match="chat template"):
        model.encode_message("hi")


def test_tasks_have_names(model, heldout, tmp_path):
    tasks = {task.name: task for task in shiftrt.tasks()}
    assert tasks["piqa"].title == "PIQA" and tasks["piqa"].items == 1838 and tasks["piqa"].quoted in ("acc", "acc_norm")
    (tmp_path / "part.txt").write_text(Path(heldout).read_text()[:5000])
    evaluation = model.evaluate(["wikitext"], data=[f"wikitext={tmp_path}/part.txt"])
    assert [result.task for result in evaluation] == ["wikitext"] and evaluation["wikitext"].quoted == tasks["wikitext"].quoted


def test_a_function_receives_the_progress(model):
    calls = []
    model.repair("layers=5", rank=4, samples=8, tokens=64, progress=lambda phase, done, total: calls.append((phase, done, total)))
    assert calls[0][1] == 0 < calls[-1][1] == calls[-1][2] and all(phase for phase, _, _ in calls)


def test_exceptions_by_kind(model, repair, tmp_path):
    with pytest.raises(shiftrt.Error, match="/nowhere"):
        shiftrt.open("/nowhere")
    with pytest.raises(shiftrt.UsageError) as refused:
        model.repair("bi:0.25", rank="many")
    assert refused.value.field == "rank" and "many" in refused.value.reason
    assert isinstance(refused.value, ValueError) and isinstance(refused.value, shiftrt.Error)
    with pytest.raises(shiftrt.UsageError, match="colour"):
        model.repair("bi:0.25", colour="red")
    with pytest.raises(shiftrt.UsageError) as refused:
        model.finetune("lora", steps="several")
    assert refused.value.field == "steps"
    with pytest.raises(shiftrt.UsageError) as refused:
        model.finetune(budget="soon")
    assert refused.value.field == "budget"
    with pytest.raises(shiftrt.UsageError) as refused:
        model.repair("bi:0.25", recover="soon")
    assert refused.value.field == "budget"
    for field, call in {"recover_text": lambda: model.repair("bi:0.25", recover_text="c4"),
                        "recover_loss": lambda: model.repair("bi:0.25", recover_loss="ce"),
                        "prune": lambda: model.repair(0.25),
                        "samples": lambda: model.repair("bi:0.25", samples=0),
                        "tokens": lambda: model.repair("bi:0.25", tokens=0),
                        "preset": lambda: model.finetune(preset="best"),
                        "device": lambda: shiftrt.open("demo", device="tpu"),
                        "stop": lambda: model.generate(PROMPT, stop=[""]),
                        "temperature": lambda: model.generate(PROMPT, temperature=float("nan")),
                        "max_tokens": lambda: model.generate(PROMPT, max_tokens=0),
                        "replacement": lambda: model.finetune("replacement", replacement="half"),
                        "rate": lambda: model.finetune("replacement", replacement="block", rate=-1)}.items():
        with pytest.raises(shiftrt.UsageError) as refused:
            call()
        assert refused.value.field == field and str(refused.value) == f"{field}: {refused.value.reason}"
    # Every setting of a training is an argument, and the list of an unknown one names it.
    with pytest.raises(shiftrt.UsageError) as refused:
        model.finetune(colour="red")
    names = refused.value.reason.split("it has ")[1].split(", ")
    assert {"method", "rate", "lora.rank", "validation_text", "checkpoint_seconds"} <= set(names) and len(names) > 30
    for name in set(names) - {"text", "validation_text"}:
        with pytest.raises(shiftrt.UsageError, match="cannot be its value") as refused:
            model.finetune(**{name: object()})
        assert refused.value.field == name
    # A setting that nothing reads would be a mistake that goes unseen.
    for field, call in {"rank": lambda: model.repair("layers=5", correction="refit", rank=8),
                        "lora.rank": lambda: model.finetune("partial", rank=3),
                        "layers": lambda: model.finetune("lora", layers="first:1")}.items():
        with pytest.raises(shiftrt.UsageError) as refused:
            call()
        assert refused.value.field == field
    with pytest.raises(shiftrt.Error, match="there is no file .a long text") as refused:
        model.perplexity("a long text " * 1000)
    assert len(str(refused.value)) < 5000
    with pytest.raises(shiftrt.UsageError, match='prune.*"bi:0.25"'):
        model.repair(0.25)
    with pytest.raises(shiftrt.UsageError, match="hf-lra"):
        repair.corrected.export("hf", tmp_path / "none")
    with pytest.raises(shiftrt.UsageError):
        shiftrt.open("demo", device="cuda:12345")
    with pytest.raises(shiftrt.UsageError) as refused:
        shiftrt.open("demo", products="bf16")
    assert refused.value.field == "products"
    with pytest.raises(shiftrt.UsageError, match="callback"):
        model.generate(PROMPT, on_text=lambda text: model.logits([1]))
    with pytest.raises(ZeroDivisionError):  # of a callback, through the library
        model.perplexity([PROMPT * 200], protocol="seq128", progress=Failing())
    assert model.generate(PROMPT, max_tokens=2).tokens


@pytest.mark.parametrize("ids", [np.array([2**32 + 5, 7]), np.array([5.5, 7]), [5.0, 7.0], [5, 2**31], [5, -1], [5, 2**70], [True],
                                 np.array([2**64 - 1], dtype=np.uint64)], ids=str)
def test_numbers_that_are_no_token_ids_are_refused(model, ids):
    for call in (model.logits, model.hidden, model.decode, model.generate, lambda given: model.generate_many([given]),
                 lambda given: model.score([(given, 1)])):
        with pytest.raises(shiftrt.UsageError):
            call(ids)


def test_token_ids_come_in_any_integer_type(model):
    ids = model.encode(PROMPT)
    expected = model.logits(ids)
    for given in (np.array(ids), np.array(ids, dtype=np.uint16), tuple(ids), iter(ids)):
        np.testing.assert_array_equal(model.logits(given), expected)
    assert model.decode([]) == ""


class Failing:
    def begin(self, phase, total):
        1 / 0


@pytest.mark.parametrize("call", ["perplexity", "encode"])
def test_the_gil_is_released(model, heldout, call):
    """Another thread goes on while a computation runs."""
    text = Path(heldout).read_text()
    target, given = (model.perplexity, [text[:100000]]) if call == "perplexity" else (model.encode, text * 60)
    done = threading.Thread(target=target, args=(given,))
    start = last = time.monotonic()
    longest = 0.0
    done.start()
    while done.is_alive():
        time.sleep(0.001)
        longest, last = max(longest, time.monotonic() - last), time.monotonic()
    assert longest < 0.5 * (last - start), f"a gap of {longest:.3f} s in {last - start:.3f} s"


def test_threads_share_a_model(model):
    alone = model.generate(PROMPT, max_tokens=16).tokens
    results = []
    threads = [threading.Thread(target=lambda: results.append(model.generate(PROMPT, max_tokens=16).tokens)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [alone] * 4


def test_threads_make_one_runner():
    fresh, runners, start = shiftrt.open("demo"), [], threading.Barrier(4)

    def use():
        start.wait()
        runners.append(fresh._run())

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(runners) == 4 and all(runner is runners[0] for runner in runners)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_a_training_that_its_listener_stops_continues(model, heldout, tmp_path, error):
    arguments = dict(text=heldout, steps=4, batch=2, length=64, validation=2, rank=4, checkpoint=tmp_path / "checkpoint")
    whole = model.finetune(**{**arguments, "checkpoint": ""})

    def stop(step):
        if step.done == 2:
            raise error

    with pytest.raises(error):
        model.finetune(**arguments, progress=stop)
    done = []
    continued = model.finetune(**arguments, progress=lambda step: done.append(step.done))
    assert done[0] == 3 and continued.losses == whole.losses


def run_for_ever(model, heldout, call):
    if call == "perplexity":
        model.perplexity([Path(heldout).read_text() * 50], protocol="seq128")
    elif call == "generate":
        for _ in range(1000):
            model.generate(PROMPT, max_tokens=400, stop_at_end=False)
    else:
        model.finetune("lora", text=heldout, steps=10000, epochs=10000, batch=2, length=64)


@pytest.fixture
def interrupts():
    """SIGINT raises KeyboardInterrupt, also in a process that a shell has started in the background."""
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, handler)


@pytest.mark.parametrize("call", ["perplexity", "generate", "finetune"])
def test_ctrl_c_ends_a_computation(model, heldout, call, interrupts):
    timer = threading.Timer(0.7, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_for_ever(model, heldout, call)
    assert time.monotonic() - begun < 20
    assert model.generate(PROMPT, max_tokens=2).tokens  # the interrupted model can be used


def test_results_print_as_tables_and_html(model, repair, heldout, tmp_path):
    text = str(repair)
    assert "removed " + ", ".join(map(str, repair.corrected.removed_layers)) in text.splitlines()[0]
    assert len(text.splitlines()) == 2 + len(repair.report["sites"]) and "R2 held out" in text.splitlines()[1]
    page = repair._repr_html_()
    assert page.count("<tr>") == 1 + len(repair.report["sites"]) and "<th>rank</th>" in page
    (tmp_path / "part.txt").write_text(Path(heldout).read_text()[:10000])
    evaluation = repair.evaluate("wikitext", data=[f"wikitext={tmp_path}/part.txt"])
    assert list(evaluation["wikitext"].scores) == ["original", "pruned", "corrected"]
    assert "corrected" in str(evaluation) and "<td>wikitext</td>" in evaluation._repr_html_()
    assert "16 of 16 blocks" in repr(model)
    measured = shiftrt.Perplexity(2.0, 0.69, 1, 2, 3, 3, "<b>.txt", 0.1)
    assert "&lt;b&gt;.txt" in measured._repr_html_()


def test_stubs_and_docstrings():
    package = Path(shiftrt.__file__).parent
    assert (package / "py.typed").exists()
    stub = ast.parse((package / "_native.pyi").read_text())
    names = {node.name for node in stub.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
    assert {"LanguageModel", "Runner", "open", "repair", "perplexity"} <= names
    undocumented = [f"{kind.__name__}.{name}" for kind in (shiftrt.Model, shiftrt.Repair, shiftrt.Finetuned)
                    for name, member in vars(kind).items() if not name.startswith("_") and not getattr(member, "__doc__", "")]
    undocumented += [name for name in shiftrt.__all__ if not getattr(shiftrt, name).__doc__]
    assert not undocumented
    assert "(tokens, vocabulary)" in shiftrt.Model.logits.__doc__ and "(tokens, hidden_size)" in shiftrt.Model.hidden.__doc__
    arrays = {node.name: ast.unparse(node.returns) for kind in stub.body if isinstance(kind, ast.ClassDef) and kind.name == "Runner"
              for node in kind.body if isinstance(node, ast.FunctionDef) and node.returns}
    assert "shape=(None, None)" in arrays["logits"] and "shape=(None, None)" in arrays["hidden"]


def test_cuda_libraries_of_pip_are_found(tmp_path, monkeypatch):
    # As the packages have them, and besides them those of CUDA 12, which other packages need.
    for name in ("cu13/lib/libcublas.so.13", "cu13/lib/libcublasLt.so.13", "cu13/lib/libcusolver.so.12", "nccl/lib/libnccl.so.2",
                 "cublas/lib/libcublas.so.12", "cublas/lib/libcublasLt.so.12", "cusolver/lib/libcusolver.so.11"):
        file = tmp_path / "nvidia" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    names = [os.path.basename(file) for file in _installed.cuda_libraries([str(tmp_path)])]
    assert names == ["libcublasLt.so.13", "libcublas.so.13", "libcusolver.so.12", "libnccl.so.2"]
    monkeypatch.setattr(sys, "path", [str(tmp_path)])  # the environment may have these packages, too
    monkeypatch.setenv("LD_LIBRARY_PATH", "/before")
    monkeypatch.delenv("SHIFTRT_DEMO", raising=False)
    variables = _installed.environment("/package")
    assert variables["SHIFTRT_DEMO"] == "/package/demo"
    assert variables["LD_LIBRARY_PATH"].split(":") == ["/before", f"{tmp_path}/nvidia/cu13/lib", f"{tmp_path}/nvidia/nccl/lib"]
