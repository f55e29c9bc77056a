"""`dcnets models`, `recipes`, `data` and `bench`, and the tables that they print."""

import dataclasses
import hashlib
import io
import json
from pathlib import Path

import pytest
from command_line import call, ok, refused
from rich.console import Console
from test_data_cifar import binary, pack
from torch import cuda, device, randint

from dcnets.cli import supply
from dcnets.cli.output import drawn
from dcnets.experiments import bench, data, gpu_table, results
from dcnets.experiments.data.catalogue import CATALOGUE, Remote, names
from dcnets.experiments.recipe import Recipe
from dcnets.experiments.recipes import recipes
from dcnets.models import catalogue, create


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DCNETS_DATA", str(tmp_path / "data"))


# -- models ------------------------------------------------------------------------------------------------------------


def test_every_network_is_listed_with_its_size():
    rows = {line.split()[0]: line.split()[1:] for line in ok("models").splitlines()[1:-1]}
    assert list(rows) == catalogue.names()
    assert rows["cnn9"] == [f"{sum(p.numel() for p in create('cnn9').parameters()):,}", "100", "3×32×32"]
    assert rows["features2d"][1:] == ["10", "1×28×28"]
    assert rows["resnet32"][2] == "3×H×W"
    assert rows["vgg16"][2:] == ["3×H×W,", "from", "32", "on"]


def test_the_layers_of_a_network_and_what_decouples_them():
    *lines, last = ok("models", "resnet32").splitlines()
    rows = {line.split()[0]: line for line in lines[1:]}
    network = create("resnet32")
    plain = [name for name, module in network.named_modules() if type(module).__name__ in ("Conv2d", "Linear")]
    assert list(rows) == plain
    spatial = [name for name, row in rows.items() if "spatial" in row]
    decoupled = create("resnet32", operator="tanh-cosine")
    assert spatial == [name for name, module in decoupled.named_modules() if "Decoupled" in type(module).__name__]
    assert rows["classifier"].split() == ["classifier", "Linear", "100×384", "all"]
    assert last.startswith("resnet32: 16,736,736 parameters, images 3×H×W; own keywords: ")


def test_an_unknown_network():
    assert refused(2, "models", "rsnet32").startswith("error: unknown network 'rsnet32'; did you mean 'resnet32'?")


# -- recipes -----------------------------------------------------------------------------------------------------------


def listed(*arguments):
    *lines, last = ok("recipes", *arguments).splitlines()
    found = [line.split()[0] for line in lines[1:]]
    assert last == f"{len(found)} recipes; dcnets recipes NAME shows all fields of one"
    return found


def test_recipes_by_pattern():
    assert listed() == list(recipes())
    assert listed("attack") == [name for name in recipes() if "attack" in name]
    assert listed("cifar100-cnn9-tanh-cosine*") == [
        name for name in recipes() if name.startswith("cifar100-cnn9-tanh-cosine")
    ]
    assert listed("mnist-?eatures2d") == ["mnist-features2d"]
    assert refused(1, "recipes", "cifar100-cnn9-tanhcosine").startswith(
        "error: unknown recipe 'cifar100-cnn9-tanhcosine'; did you mean 'cifar100-cnn9-tanh-cosine'"
    )


def test_a_row_tells_what_differs():
    row = next(
        line for line in ok("recipes", "no_bn-sgd").splitlines() if line.startswith("cifar100-cnn9-tanh-cosine-no_bn")
    )
    assert row.split() == [
        "cifar100-cnn9-tanh-cosine-no_bn-sgd", "cnn9", "tanh-cosine", "batch_norm=false,", "optimiser=sgd,", "rate=0.1"
    ]  # fmt: skip


def test_all_fields_of_one_recipe():
    name = "imagenet-resnet18-tanh-cosine"
    shown = ok("recipes", name).splitlines()
    rows = {line.split()[0]: line.split()[1:] for line in shown[1:-1]}
    assert name in shown[0]
    assert rows["--drops"][:2] == ["200000,375000,550000", "*"]
    assert rows["--batch-norm"][:2] == ["true", "batch"]
    assert rows["--penalty"][:2] == ["none", "*"]
    assert rows["--data-set"][:2] == ["folder", "*"]
    assert len(rows) == len(dataclasses.fields(Recipe)) - 1
    written = [
        word for option, row in rows.items() if option in ("--rate", "--drops", "--batch") for word in (option, row[0])
    ]
    assert "unknown" not in refused(1, "train", name, *written, "--data", "nowhere")


# -- data --------------------------------------------------------------------------------------------------------------


def serve(monkeypatch, tmp_path, name, content):
    """Let the archive of a set be `content`, and the network have it."""
    entry = CATALOGUE[name]
    remote = Remote(entry.files[0].path, hashlib.md5(content).hexdigest(), ("http://there/archive",))
    monkeypatch.setitem(CATALOGUE, name, type(entry)(**{**vars(entry), "files": (remote,), "train": 20, "test": 5}))

    class Response(io.BytesIO):
        status, headers = 200, {"Content-Length": str(len(content))}

    monkeypatch.setattr("dcnets.experiments.data.download.urlopen", lambda *_, **__: Response(content))
    return tmp_path / "data" / remote.path


def archive(tmp_path):
    """CIFAR-100 with 20 + 5 images."""

    def part(count):
        images, fine, coarse = (randint(top, (count, *shape)) for top, shape in ((256, (3, 32, 32)), (100, ()), (20, ())))
        return binary("cifar100", images, fine, coarse)

    pack(tmp_path / "x.tar.gz", {"cifar-100-binary/train.bin": part(20), "cifar-100-binary/test.bin": part(5)})
    return (tmp_path / "x.tar.gz").read_bytes()


def test_what_there_is_and_where(tmp_path):
    (tmp_path / "data" / "train").mkdir(parents=True)
    (tmp_path / "data" / "val").mkdir()
    lines = ok("data").splitlines()
    rows = {line.split()[0]: " ".join(line.split()[1:]) for line in lines[1 : 1 + len(names())]}
    assert list(rows) == names()
    assert rows["mnist-subset"] == "6,000 1,000 10 1×28×28 inside the package"
    assert rows["cifar100"] == "50,000 10,000 100 3×32×32 not there"
    assert rows["folder"] == f"– – – of any size {tmp_path / 'data'}"
    assert rows["webdataset"].endswith("not there")
    assert lines[-1].startswith(f"looked for in {tmp_path / 'data'};")
    assert "looked for in elsewhere" in ok("data", "--data", "elsewhere")


def test_one_data_set(tmp_path):
    shown = ok("data", "cifar100")
    assert "CIFAR-100: 50,000 training and 10,000 test images, 3×32×32, 100 classes" in shown
    assert "classes: apple, aquarium_fish, baby" in shown
    remote = CATALOGUE["cifar100"].files[0]
    assert f"goes to {tmp_path / 'data' / remote.path}, from {remote.addresses[0]}, MD5 {remote.md5}" in shown
    assert "dcnets data cifar100 --download fetches it" in shown
    assert "where: inside the package" in ok("data", "mnist-subset")
    assert "train/<class>/" in ok("data", "folder")
    assert refused(2, "data", "cifar1000").startswith("error: unknown data set 'cifar1000'; did you mean 'cifar100'?")


def test_a_download_with_a_bar(monkeypatch, tmp_path):
    content = archive(tmp_path)
    place = serve(monkeypatch, tmp_path, "cifar100", content)
    shown = ok("data", "cifar100", "--download", "--verify")
    assert place.read_bytes() == content
    assert f"where: {place}" in shown
    assert "cifar100: 20 + 5 images read, all is well" in shown
    place.write_bytes(content[:-1] + b"x")
    assert "has MD5" in refused(1, "data", "cifar100", "--verify")


def test_training_downloads_what_is_missing_once(monkeypatch, tmp_path):
    place = serve(monkeypatch, tmp_path, "cifar100", archive(tmp_path))
    found = []

    def run(recipe, **_):
        found.append(len(data.load("cifar100", download=False).train))
        raise ValueError("enough")

    monkeypatch.setattr("dcnets.experiments.run.run", run)
    shown = call("train", "cifar100-cnn9", "--batch", "4").stderr.splitlines()
    assert shown[0].startswith("cifar-100-binary.tar.gz: MB 1/1")
    before = place.stat().st_mtime_ns
    assert refused(1, "train", "cifar100-cnn9", "--batch", "4") == "error: enough"
    assert place.stat().st_mtime_ns == before
    assert found == [20, 20]


def test_what_cannot_be_downloaded():
    for arguments in ([], ["mnist-subset"], ["folder"]):
        told = refused(2, "data", *arguments, "--download")
        assert told == "error: --download fetches one of mnist, fashion-mnist, cifar10, cifar100; name it"


def test_verify_reads_what_is_there():
    shown = ok("data", "--verify")
    assert shown.splitlines()[-1] == "mnist-subset: 6,000 + 1,000 images read, all is well"
    assert "no folder" in refused(1, "data", "folder", "--verify")
    assert "is not in" in refused(1, "data", "mnist", "--verify")


def test_where_sets_are_found(tmp_path):
    place = tmp_path / "data"
    assert [name for name in names() if supply.found(name, None)] == ["mnist-subset"]
    (place / "train").mkdir(parents=True)
    (place / "train" / "a.tar").touch()
    assert supply.found("webdataset", place) == place
    raw = place / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for kind in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        (raw / f"{kind}-ubyte.gz").touch()
    assert supply.found("mnist", None) == raw
    assert supply.found("fashion-mnist", None) is None


# -- bench -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def measured(monkeypatch):
    """What the benchmark is asked for; its rows are made up."""
    calls = []

    def measure(names, **keywords):
        calls.append((list(names), keywords))
        numbers = {
            "milliseconds": 12.345,
            "images_per_second": 10_368.2,
            "ratio": 1.234,
            "control": 1.01,
            "peak_mib": 2048.6,
        }
        return [{"recipe": name, **numbers} for name in names]

    monkeypatch.setattr(bench, "bench", measure)
    return calls


def test_a_benchmark_is_a_table_and_a_line_for_each_recipe(measured):
    name = "cifar100-cnn9-tanh-cosine"
    shown = ok("bench", name, "cifar100-cnn9", "--updates", "7", "--device", "cpu").splitlines()
    assert shown[1].split() == [name, "12.35", "10,368", "1.23", "1.01", "2,049"]
    assert measured[0] == ([name], {"updates": 7, "device": "cpu", "compiled": False, "captured": False})
    lines = [json.loads(line) for line in Path("results/bench.jsonl").read_text().splitlines()]
    assert [line["recipe"] for line in lines] == [name, "cifar100-cnn9"]
    assert lines[0]["ratio"] == 1.234
    assert lines[0]["device"] == results.environment("cpu")["device"]


def test_the_usual_benchmark(measured):
    ok("bench", "--device", "cpu", "--results", "mine.jsonl", "--compile")
    assert [names[0] for names, _ in measured] == [f"mnist-subset-features2d-{h}-cosine" for h in ("sphere", "ball", "tanh")]
    assert {(row["updates"], row["compiled"]) for _, row in measured} == {(10, True)}
    assert Path("mine.jsonl").exists()
    assert refused(2, "bench", "cifar100-cnn8").startswith("error: unknown recipe 'cifar100-cnn8'; did you mean")
    assert refused(2, "bench", "--updates", "0").startswith("error: --updates is a whole number, 1 or more")
    assert "CUDA graphs" in refused(1, "bench", "--device", "cpu", "--capture")


def test_a_real_benchmark(monkeypatch):
    monkeypatch.setattr(bench, "ROUNDS", 2)
    shown = ok("bench", "mnist-subset-features2d-tanh-cosine", "--updates", "1", "--device", "cpu")
    row = shown.splitlines()[1].split()
    assert row[0] == "mnist-subset-features2d-tanh-cosine"
    assert float(row[3]) > 0
    assert row[-1] == "–"


def test_the_table_of_a_gpu_is_shown_row_by_row_and_then_whole(monkeypatch):
    asked = []

    def table(*arguments):
        asked.append(arguments)
        row = {"what": "tanh-cosine", "baseline": 2.0, "measured": 2.2, "unit": "ms", "ratio": 1.1, "control": 1.0}
        yield {"row": "resnet32", **row, "bar": 1.2, "stretch": 1.08}
        yield {"row": "b-cos", **row, "bar": None, "stretch": None}

    monkeypatch.setattr(gpu_table, "table", table)
    monkeypatch.setattr(cuda, "is_available", lambda: True)
    result = call("bench", "--table", "--rows", "b-cos,resnet32")
    shown = result.stdout.splitlines()
    assert shown[0].split() == list(gpu_table.COLUMNS)
    assert shown[1].split() == ["resnet32", "tanh-cosine", "2", "ms", "2.2", "ms", "1.100", "1.000", "1.20", "1.08", "yes"]
    assert shown[2].split()[-3:] == ["–", "–", "–"]
    assert [line.split()[0] for line in result.stderr.splitlines()] == ["resnet32", "b-cos"]
    ok("bench", "--table", "--jobs", "3", "--results", "mine.jsonl")
    assert asked == [
        (["b-cos", "resnet32"], Path("results/bench-gpu.jsonl"), device("cuda"), None),
        (gpu_table.names(), Path("mine.jsonl"), device("cuda"), 3),
    ]


def test_a_table_that_cannot_be_measured_is_refused(monkeypatch):
    monkeypatch.setattr(cuda, "is_available", lambda: False)
    for where in ("auto", "cpu", "cuda"):
        assert "--table is measured on a GPU" in refused(1, "bench", "--table", "--device", where)
    assert refused(2, "bench", "--table", "--rows", "eagre").startswith("error: unknown row 'eagre'; did you mean 'eager'?")
    for only in (["--rows", "eager"], ["--jobs", "2"]):
        assert "add it" in refused(2, "bench", *only)
    for more in (["cifar100-cnn9"], ["--updates", "3"], ["--no-compile"], ["--capture"]):
        assert "networks of its own" in refused(2, "bench", "--table", *more)
    assert not Path("results").exists()


# -- tables ------------------------------------------------------------------------------------------------------------


def terminal(table, numbers=(), cut=(), width=60):
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(drawn(table, numbers, cut, width))
    return [line.rstrip() for line in console.file.getvalue().splitlines() if line.strip()]


def test_a_table_keeps_numbers_whole_and_folds_texts():
    table = [("network", "error"), ("a-name-that-is-much-too-long-for-so-narrow-a-terminal", "12.34 %")]
    lines = terminal(table, ["error"], width=40)
    assert all(len(line) <= 40 for line in lines)
    assert any(line.endswith("12.34 %") for line in lines)
    assert "".join(line.split("  ")[0].strip() for line in lines[2:]).startswith("a-name-that-is-much-too-long")


def test_a_cut_table_leaves_columns_out_and_never_a_name():
    table = [("recipe", "network", "operator", "differs in"), ("n" * 30, "network", "operator", "d" * 40)]
    cut = ("network", "operator")
    assert len(terminal(table, cut=cut, width=120)[2].split()) == 4
    assert terminal(table, cut=cut, width=90)[2].split() == ["n" * 30, "operator", "d" * 40]
    narrow = terminal(table, cut=cut, width=60)
    assert len(narrow) == 3
    name, rest = narrow[2].split()
    assert name == "n" * 30
    assert rest.endswith("d…")
    assert len(narrow[2]) <= 60
