"""What a configuration and YAML files may say, and the sentence about what they may not."""

import re
from functools import partial
from pathlib import Path

import pytest
import refusals

from simulations.config.load import ConfigError, ExperimentConfig, TrainingConfig, load_config
from simulations.config.yaml_files import as_yaml, parsed, read_yaml

FILES = [
    ("rounds: yes", ["rounds is a number, got true, which YAML also reads in yes, on"]),
    ("seed: off", ["seed is a number, got false"]),
    ("local: {learning_rate: on}", ["local.learning_rate is a number, got true"]),
    ("clip: {weights: yes}", ["clip.weights is a number, got true"]),
    ("caps: {yes: 1.0}", ["a key of caps is a number, got true"]),
    ("normalise: {mean: [yes], std: [1]}", ["normalise.mean is a number, got true"]),
    ("hyperparameters: {affine: {initial: on}}", ["hyperparameters.affine.initial is a number, got true"]),
    ("sever: {learning_rate: 1}", ["'sever'", "did you mean 'server'?"]),
    ("local: {batchsize: 1}", ["'local.batchsize'", "did you mean 'batch_size'?"]),
    ("learning_rate: 1", ["'learning_rate'", "local.learning_rate"]),
    ("hyperparameters: {affine: {famly: minmax}}", ["affine.famly", "did you mean 'family'?"]),
    ("hyperparameters: {transforms: [{usee: a.b:c}]}", ["usee", "did you mean 'use'?"]),
    ("method: fedavgg", ["Unknown method 'fedavgg'", "did you mean 'fedavg'?"]),
    ("model: mnistcnn", ["Unknown model 'mnistcnn'", "did you mean 'mnist_cnn'?"]),
    ("data: digit", ["Unknown data set 'digit'", "did you mean 'digits'?"]),
    (
        "data: image_folder\ndata_options: {siz: 3}",
        ["the data set 'image_folder' has no option 'siz'", "'size'"],
    ),
    ("data: image_folder\ndata_options: {data_seed: 3}", ["data_dir and data_seed are keys: set them there"]),
    ("split: {recipe: perlabel}", ["Unknown split 'perlabel'", "did you mean 'per_label'?"]),
    ("likelihood: gausian", ["did you mean 'gaussian'?"]),
    ("model: no.such.package:build", ["'no.such.package:build'", "cannot be imported"]),
    ("method_options: {augerino: {wieght: 1}}", ["'wieght'", "did you mean 'weight'?"]),
    ("method_options: {augerinno: {}}", ["did you mean 'augerino'?"]),
    ("workers: 4\nthreads: 2", ["4 workers of engine local have one torch thread"]),
    ("rounds: 0", ["rounds cannot be 0", "greater than or equal to 1"]),
    ("rounds: many", ["rounds cannot be 'many'", "integer"]),
    ("rounds: 1.0e+30", ["rounds cannot be 1e+30", "a smaller whole number"]),
    ("1: 2", ["the key 1 is no name of a setting"]),
    ("local: {psi_batch: some}", ["local.psi_batch", "'shard' or a valid integer"]),
    ("precision: fp16", ["precision", "'fp32', 'fp64', 'bf16' or 'auto'"]),
    ("split: per_label", ["split cannot be 'per_label'", "section"]),
    ("chunks: [0.5, 0.6]", ["chunk proportions must sum to 1"]),
    ("chunks: [0.5, 0.5]\nparameters: [0.2, 0.3, 0.5]", ["2 chunk proportions but 3 parameter"]),
    ("clients: 5", ["cohort must be between 1 and the number of clients (5)"]),
    ("clients: 2\ncohort: 2", ["2 clients for 3 chunks", "fewer chunks"]),
    ("method: fedavg\ncaps: {1: 1.0}", ["the method 'fedavg' has one network for all", "leave caps out"]),
    ("caps: {4: 1.0}", ["as there are chunks, got 4", "use caps from 1 to 3"]),
    ("caps: [0.4, 0.6]", ["caps cannot be [0.4, 0.6]"]),
    ("evaluation_share: 0.5", ["evaluation_share is for evaluation: clients; set that, or leave"]),
    ("evaluation_share: null", ["evaluation_share is for evaluation: clients"]),
    ("evaluation: none\nmeasures: true", ["measures are taken on the test data", "leave measures out"]),
    ("split: {by: angle}", ["split.by is angle", "rotated: true"]),
    ("max_angle: .nan", ["max_angle", "finite"]),
    ("server: {name: sgd, eps: 1e-5}", ["sgd has no eps"]),
    ("devices: {speed: fast}", ["devices.speed cannot be 'fast'"]),
    ("trim: 0.1", ["unknown key 'trim': write defence: trim, and defence_options: {share: 0.1}."]),
    ("devices: {trace: a.csv}", ["unknown key 'devices.trace': write the file as devices: devices.csv."]),
    (
        "hyperparameters: {transforms: [noise, {use: blur, name: b}]}",
        ["unknown key 'hyperparameters.transforms.1.name': transforms have the names of their classes"],
    ),
    ("hyperparameters: {transforms: [blurr]}", ["Unknown transform 'blurr': did you mean 'blur'?", "Known"]),
    ("rounds: 1\nrounds: 2", ["'rounds' appears twice", "line 2"]),
    ("local: {<<: {steps: 1}, <<: {steps: 2}}", ["'<<' appears twice"]),
    ("local: {<<: {batch_size: 1}, batch_size: 2, batch_size: 3}", ["'batch_size' appears twice"]),
    ("caps: {1: 0.4, 01: 0.6}", ["'01' appears twice"]),
    ("seed: 1:30", ["seed cannot be '1:30'"]),
    ("seed: 190:20:30", ["seed cannot be '190:20:30'"]),
    ("seed: 1__0", ["seed cannot be '1__0'"]),
    ("server: {learning_rate: 1:30.5}", ["learning_rate cannot be '1:30.5'"]),
    ("rounds: [1,\nseed: }", ["not valid YAML", "line 2"]),
    ("rounds: 1\n[seed, rounds]: 2", ["not valid YAML, line 2", "unhashable key"]),
    ("- rounds", ["key: value"]),
]
TRAINING_FILES = [
    ("optimizer: {name: adam}", ["'optimizer'", "did you mean 'optimiser'?"]),
    ("optimiser: {name: adm}", ["optimiser.name", "'adam', 'adamw' or 'sgd'"]),
    ("optimiser: {name: adam, momentum: 0.9}", ["adam has no momentum"]),
    ("schedule: linear", ["'constant' or 'cosine'"]),
    ("schedule: {shape: cosine}", ["'constant' or 'cosine'"]),
    ("optimiser: {eps: 1e-5}", ["unknown key 'optimiser.eps': it is an argument of fedpart.AdamSettings"]),
    ("select: {values: [1], laplace: true}", ["'select.laplace': call fedpart select with --laplace"]),
    ("learning_rate: 1", ["optimiser.learning_rate", "optimiser_psi.learning_rate"]),
    ("iterations: 0", ["iterations cannot be 0"]),
    ("chunks: [0.5, 0.6]", ["chunk proportions must sum to 1"]),
    ("chunks: [0.5, 0.5]\nparameters: [0.2, 0.3, 0.5]", ["2 chunk proportions but 3 parameter"]),
    ("method: fedavg", ["'fedavg' is for federated", "fedpart run", "none", "fedpart train"]),
    ("hyperparameters: {mask: {keep: 3}}", ["mask.keep", "did you mean 'kept'?"]),
    ("select: {values: []}", ["select.values"]),
    ("rounds: 3", ["'rounds' is a key of federated experiments", "use fedpart run"]),
]
FILES_OF_TRAINING = [  # that fedpart run is given
    (
        "iterations: 3\ncorrupted: true",
        ["'iterations', 'corrupted' are keys of centralised training", "or leave them out"],
    ),
    ("iterations: 3", ["'iterations' is a key of centralised training", "use fedpart train"]),
    ("optimiser: {}", ["use fedpart train"]),
    ("batch_size: 3", ["did you mean 'local.batch_size'?"]),  # no key of its own, but here it means this
    ("method: validation", ["'validation' is for centralised", "fedpart train", "fedavg"]),
]
OVERRIDES = [
    ("rounds", "key=value"),
    ("=3", "key=value"),
    ("local..epochs=3", "key=value"),
    ("rounds.x=3", "rounds has no keys of its own"),
    ("chunks=[0.7, 0.3", "not valid YAML"),
    ("locl.epochs=3", "did you mean 'local'?"),
    ("workers=0", "workers"),
    # what people type of other programs
    ("lr=50", "unknown key 'lr': did you mean 'local.learning_rate' or 'server.learning_rate'"),
    ("method=fedyogi", "there is no method 'fedyogi'; it is called method: yogi"),
    ("method=apfl", "there is no method 'apfl'; fedrep and ditto are personal"),
    ("method=fedopt", "there is no method 'fedopt'; method: fedavg has a server that steps by Adam, at"),
]
BASES = [  # of a file that extends them
    ("extends: my.yaml", ["in a circle", "my.yaml extends", "base.yaml extends"]),
    ("extends: nowhere.yaml", ["base.yaml extends", "nowhere.yaml", "no such file"]),
    ("extends: {a: b}", ["base.yaml: extends cannot be {'a': 'b'}", "name of a YAML file"]),
    ("extends: [digits_affine.yaml, 3]", ["extends cannot be ['digits_affine.yaml', 3]"]),
    ("sever: 1", ["my.yaml extends", "base.yaml: unknown key 'sever'", "did you mean 'server'?"]),
]


def saying(*words):
    """A pattern of all these words, in any order, and none of pydantic's name."""
    return "^(?!.*pydantic)" + "".join(f"(?=.*{re.escape(word)})" for word in words)


def load(path, text, overrides=(), kind=ExperimentConfig):
    path.write_text(text)
    load_config(path, overrides, kind=kind)


@pytest.mark.slow
def test_files(tmp_path):
    path, rows = tmp_path / "my.yaml", []
    for kind, files in ((ExperimentConfig, FILES + FILES_OF_TRAINING), (TrainingConfig, TRAINING_FILES)):
        for text, words in files:
            call = partial(load, path, text, kind=kind)
            rows.append((f"{kind.__name__}: {text}", call, ConfigError, saying("my.yaml", *words)))
    refusals.check(rows)


def test_settings_of_the_command_line(tmp_path):
    path = tmp_path / "my.yaml"
    refusals.check(
        (text, partial(load, path, "rounds: 2", [text]), ConfigError, saying(words, f"--set {text}"))
        for text, words in OVERRIDES
    )


def extend(base, text):
    base.write_text(text)
    load(base.with_name("my.yaml"), "extends: base.yaml")


def test_what_a_file_cannot_extend(tmp_path):
    refusals.check(
        (text, partial(extend, tmp_path / "base.yaml", text), ConfigError, saying(*words))
        for text, words in BASES
    )


def test_files_that_cannot_be_read(tmp_path):
    (tmp_path / "image.yaml").write_bytes(b"\x89PNG\xff\xfe")
    says = {"nowhere.yaml": "no configuration file .*nowhere", "": "cannot be read", "image.yaml": "not text"}
    refusals.check(
        (f"{name} of the folder", partial(load_config, tmp_path / name), ConfigError, told)
        for name, told in says.items()
    )


NUMBERS = {"010": 10, "-007": -7, "08": 8, "0o10": 8, "0x1F": 31, "0b101": 5, "1_000": 1000}
NUMBERS |= {"010.5": 10.5, "010e1": 100.0, "+.5": 0.5, "-.5e1": -5.0, "1_000.5": 1000.5, "2.E+1": 20.0}
TEXTS = ["1:30", "190:20:30", "1:30.5", "1__0", "1_", "0x_f", "0o8", "1e", "._5", "10-20", "."]


@pytest.mark.parametrize(("text", "number"), [*NUMBERS.items(), *zip(TEXTS, TEXTS, strict=True)])
def test_a_number_is_what_it_looks_like_and_all_else_is_text(text, number, tmp_path):
    data = dict([parsed(f"a={text}")])
    (tmp_path / "a.yaml").write_text(f"a: {text}\nb: [{text}]\n")
    read = read_yaml(tmp_path / "a.yaml")
    for found in (data["a"], read["a"], read["b"][0]):
        assert found == number and type(found) is type(number)


def test_a_loop_over_padded_numbers_gives_as_many_seeds(tmp_path):
    (tmp_path / "a.yaml").write_text("")
    found = [load_config(tmp_path / "a.yaml", [f"seed={seed:03}"]).seed for seed in range(1, 121)]
    assert found == list(range(1, 121))


def test_what_is_written_is_read_as_it_was(tmp_path):
    texts = [*TEXTS, *NUMBERS, "1e3", "1E-3", ".5", "no", "~", "<<", "a, b", "2026-11-27", "", " a", "#"]
    data = {"texts": texts, "numbers": [1e-7, 1e16, 10, -0.5, True, None], "keys": dict.fromkeys(texts, 1)}
    for flow in (None, True, False):
        (tmp_path / "a.yaml").write_text(as_yaml(data, flow=flow))
        assert read_yaml(tmp_path / "a.yaml") == data


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("{<<: *a, x: 3}", {"x": 3, "y": 2}),
        ("{x: 3, <<: *a}", {"x": 3, "y": 2}),
        ("{<<: [*a, {x: 4, z: 5}], y: 6}", {"x": 1, "y": 6, "z": 5}),  # of several, the first wins
        ("{<<: {<<: *a, x: 7}, y: 8}", {"x": 7, "y": 8}),
        ("{<<: *a}", {"x": 1, "y": 2}),
        ("{<<: *a, d: *a}", {"x": 1, "y": 2, "d": {"x": 1, "y": 2}}),
        ("[{<<: *a, x: 3}, *a]", [{"x": 3, "y": 2}, {"x": 1, "y": 2}]),
    ],
)
def test_a_key_overrides_what_a_merge_key_brings(text, found, tmp_path):
    (tmp_path / "a.yaml").write_text(f"a: &a {{x: 1, y: 2}}\nb: {text}\n")
    assert read_yaml(tmp_path / "a.yaml") == {"a": {"x": 1, "y": 2}, "b": found}


def test_what_no_reader_can_take_is_refused(tmp_path):
    """Aliases that multiply are counted in full before anything is made of them."""
    ten = ", ".join(["*a{}"] * 10)
    bomb = "a0: &a0 [1]\n" + "".join(f"a{n}: &a{n} [{ten.replace('{}', str(n - 1))}]\n" for n in range(1, 9))
    many, deep = "more than 100,000 values", "nested too deeply"
    texts = {
        "eight levels of ten": (bomb, many),
        "merge keys that multiply": (bomb.replace("[1]", "{b: 1}") + "c: {<<: *a8}\n", many),
        "an alias in itself": ("a: &a [*a]\n", many),
        "a merge key in itself": ("a: &a\n  <<: *a\n", many),
        "deep lists": (f"a: {'[' * 200_000}{']' * 200_000}\n", deep),
        "deep mappings": (f"a: {'{b: ' * 1000}1{'}' * 1000}\n", deep),
        "5,000 digits": (f"seed: {'9' * 5000}\n", "beyond 64 bits"),
        "30 digits": (f"seed: {'9' * 30}\n", "beyond 64 bits"),
        "many bits": (f"seed: 0b{'1' * 65}\n", "beyond 64 bits"),
        "no month": ("a: 2001-13-01\n", "does not fit its type .*month"),
        "no time": ("a: !!timestamp x\n", "does not fit its type"),
        "no truth value": ("a: !!bool x\n", "does not fit its type"),
        "no number": ("a: !!int x\n", "does not fit its type"),
    }
    rows = []
    for name, (text, says) in texts.items():
        file = tmp_path / f"{name}.yaml"
        file.write_text(text)
        rows.append((name, partial(read_yaml, file), ConfigError, f"is not valid YAML.*{says}"))
    call = partial(parsed, f"seed={'9' * 5000}")
    rows.append(("a setting", call, ConfigError, "--set seed=9+ is not valid YAML.*beyond 64 bits"))
    rows.append(("NUL", partial(read_yaml, Path("a\0b")), ConfigError, "cannot be read: embedded null"))
    refusals.check(rows)
