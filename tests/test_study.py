"""The robustness study on small networks: who attacks whom, what is measured, what is there already, what is frozen."""

import dataclasses
import json

import pytest
import torch
from studied import DIGITS, line, recipe, train

from dcnets import attacks
from dcnets.experiments import checkpoint, data, recipes, results
from dcnets.experiments.rebuild import rebuild
from dcnets.experiments.robustness import lipschitz
from dcnets.experiments.robustness.evidence import Plan
from dcnets.experiments.robustness.setting import MAIN, Frozen, Setting, nearest
from dcnets.experiments.robustness.study import arena as arenas
from dcnets.experiments.robustness.study import lines, networks, tasks, work
from dcnets.experiments.robustness.study.arena import Arena
from dcnets.experiments.robustness.study.networks import Network
from dcnets.experiments.robustness.study.words import words_for
from dcnets.experiments.robustness.trials import Trial
from dcnets.experiments.study_parts import PARTS

TANH, FGSM = f"{DIGITS}-tanh-cosine", f"{DIGITS}-fgsm"
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A baseline and an operator, two seeds of each, both substitutes, a run that has not ended and one that diverged."""
    folder = tmp_path_factory.mktemp("runs")
    for name, seed in ((DIGITS, 0), (DIGITS, 1), (TANH, 0), (TANH, 1), (FGSM, 0), (DIGITS, 1000), (FGSM, 1000)):
        train(folder, name, seed)
    kept = checkpoint.latest(folder / f"{TANH}-seed0")
    checkpoint.save(folder / "young", 3, kept.tensors, kept.state)
    checkpoint.save(folder / "wild", kept.step, kept.tensors, kept.state | {"divergence": "the loss was not finite"})
    (folder / "empty").mkdir()
    return folder


@pytest.fixture(scope="module")
def found(runs):
    return networks.trained([runs])


@pytest.fixture
def arena():
    return Arena(data.load("mnist-subset"), CPU, batch=50, images=40)


def named(found, name):
    return next(each for each in found[0] if each.name == name)


def network(name, seed=0):
    """A network that is not on the disk."""
    made = dataclasses.replace(recipes.get(name), seed=seed)
    return Network(f"{name}-seed{seed}", None, None, made, 42_500, 10)


# -- networks ----------------------------------------------------------------------------------------------------------


def test_the_networks_of_a_folder_in_the_order_of_the_tables(found, runs):
    names = [each.name for each in found[0]]
    assert names == [
        f"{DIGITS}-seed0", f"{DIGITS}-seed1", f"{DIGITS}-seed1000", f"{TANH}-seed0", f"{TANH}-seed1", f"{FGSM}-seed0",
        f"{FGSM}-seed1000",
    ]  # fmt: skip
    assert sorted(found[1]) == [
        "wild is left out: it did not converge", "young is left out: it is at update 3 of 40",
    ]  # fmt: skip
    (one,), _ = networks.trained([runs / f"{TANH}-seed1"])
    assert (one.step, one.num_classes, one.recipe.seed) == (40, 10, 1)


def test_examples_by_statistics_that_lag_behind_make_a_variant():
    def variant(**changes):
        return words_for(dataclasses.asdict(recipes.get("cifar10-cnn9_attack-fgsm")) | changes).variant

    assert variant() == ""
    assert variant(bn_momentum=0.001) == "batch norm over 1,000 updates"
    assert variant(bn_momentum=0.0125, operator="tanh-cosine") == "batch norm over 80 updates"
    assert variant(bn_momentum=0.001, adversary=None) == ""  # natural training makes no examples
    assert variant(bn_momentum=0.001, batch_norm=False) == "without batch norm"


def test_what_a_network_is():
    tables = network("cifar10-cnn9_attack-tanh-cosine")
    assert (tables.variant, tables.training, tables.family) == ("", "natural", ("cifar10", "cnn9_attack", 1.0))
    assert network("cifar10-cnn9_attack-ball-cosine-absolute-fgsm").variant == "absolute radius"
    assert network("cifar10-cnn9_attack-no_bn").variant == "without batch norm"
    assert network("cifar10-cnn9_attack-no_augmentation").variant == "without augmentation"
    assert network("cifar10-cnn9_attack-fgsm").variant == network("cifar10-cnn9_attack").variant == ""
    some = (("", 0), ("", 1000), ("-no_bn", 0), ("-fgsm", 0), ("-tanh-cosine", 0))
    assert [network(f"cifar10-cnn9_attack{name}", seed).baseline for name, seed in some] == [True] + [False] * 4
    assert not network(DIGITS).baseline  # the paper's baseline sees photographs


def test_substitutes_are_baselines_of_their_own_seed(found):
    victim = named(found, f"{TANH}-seed0")
    assert [each.name for each in networks.substitutes_for(victim, found[0])] == [f"{DIGITS}-seed1000", f"{FGSM}-seed1000"]
    own = named(found, f"{FGSM}-seed1000")
    assert [each.name for each in networks.substitutes_for(own, found[0])] == [f"{DIGITS}-seed1000"]
    assert networks.substitutes_for(network("cifar10-cnn9_attack"), found[0]) == []  # of another data set


def test_no_network_of_the_matrix_attacks_itself(found):
    def makers(name):
        return [each.name for each in networks.makers_for(named(found, name), found[0])]

    assert makers(f"{DIGITS}-seed0") == [f"{DIGITS}-seed1", f"{TANH}-seed1"]
    assert makers(f"{TANH}-seed1") == [f"{DIGITS}-seed0", f"{TANH}-seed0"]
    assert makers(f"{FGSM}-seed0") == []  # trained alike there is none but itself
    assert makers(f"{DIGITS}-seed1000") == []
    alone = [network("cifar10-cnn9_attack"), network("cifar10-cnn9_attack-tanh-cosine")]
    assert networks.makers_for(alone[0], alone) == [alone[1]]  # one seed: the other operator's is no white box


# -- what is measured --------------------------------------------------------------------------------------------------


def in_pixels(network):
    digits = data.load("mnist-subset")
    return attacks.Normalised(rebuild(network.path).model, digits.mean, digits.std, scale=255)


@pytest.mark.parametrize("maker", [f"{TANH}-seed0", f"{DIGITS}-seed1000"])
@pytest.mark.parametrize("trial", MAIN.trials, ids=str)
def test_an_outcome_is_what_the_attack_leaves(found, arena, maker, trial):
    victim, maker = named(found, f"{TANH}-seed0"), named(found, maker)
    trial = trial.at(0.2)  # so that the substitute's examples fool too, on every machine that trains these networks
    outcome = arena.outcome(victim, maker, trial, (5, 40))
    test = data.load("mnist-subset").test
    x, y, model = test.images[5:40] / 255, test.labels[5:40], in_pixels(victim)
    right = ~attacks.fooled(model, x, y)
    examples = getattr(attacks, trial.attack)(in_pixels(maker), x, y, **trial.settings())
    assert torch.equal(outcome.survived, right & ~attacks.fooled(model, examples, y))
    assert outcome.right < right.sum()  # it has learned, and the attack works


def test_examples_are_made_once_and_the_oldest_are_forgotten(found, arena, monkeypatch):
    victim, made = named(found, f"{TANH}-seed0"), []
    real = Trial.examples
    monkeypatch.setattr(Trial, "examples", lambda self, *rest, **more: made.append(self) or real(self, *rest, **more))
    for _ in range(2):
        arena.outcome(victim, victim, MAIN.fgsm, arena.whole)
    assert made == [MAIN.fgsm]
    monkeypatch.setitem(arenas.KEPT, "cpu", 1)
    arena.outcome(victim, victim, MAIN.bim, arena.whole)
    arena.outcome(victim, victim, MAIN.fgsm, arena.whole)
    assert made == [MAIN.fgsm, MAIN.bim, MAIN.fgsm]
    assert len(arena.made) == 1


def small(name, found, arena, few=20):
    """The task of a part for one network, with less to do."""
    sizes = tasks.Sizes(arena.whole, arena.halves[0], arena.first(few))
    made = {
        "tables": tasks.tables, "matrix": tasks.matrix, "curves": tasks.curves, "lipschitz": tasks.lipschitz,
        "masking": lambda *rest: tasks.masking(*rest, autoattack=False),
    }[name](named(found, f"{TANH}-seed0"), found[0], sizes)  # fmt: skip
    if made.plan:
        trial = Trial("pgd", 0.1, step=0.05, steps=3)
        made = dataclasses.replace(made, plan=Plan(trial, restarts=2, queries=3))
    return made


@pytest.mark.parametrize("part", ["tables", "matrix", "curves", "lipschitz", "masking"])
def test_a_part_gets_its_line_and_is_not_done_again(part, found, arena, tmp_path, monkeypatch):
    file, task, told = tmp_path / "attacks.jsonl", small(part, found, arena), []
    assert task.cost > 0
    assert work.carry_out([task], arena, file, told.append) == {}
    (written,), torn = lines.read(file)
    assert torn == []
    assert (written["part"], written["network"], written["step"]) == (part, f"{TANH}-seed0", 40)
    assert (written["first"], written["images"], written["precision"]) == (0, task.count, "float32")
    assert written["recipe"] == json.loads(json.dumps(dataclasses.asdict(task.victim.recipe)))
    assert {"date", "commit", "torch", "device", "clean", "seconds"} <= written.keys()
    assert written["checkpoint"].startswith(f"{written['network']}/step-")
    assert told[0].startswith(f"{TANH}-seed0, {part}: ")
    count = {"tables": 6, "matrix": 2, "curves": 12}.get(part, 0)
    assert len(written["attacks"]) == len(task.exams) == count
    substitutes = {f"{DIGITS}-seed1000", f"{FGSM}-seed1000"}
    assert set(written["makers"]) == {
        "tables": substitutes, "masking": substitutes, "matrix": {f"{DIGITS}-seed1", f"{TANH}-seed1"},
    }.get(part, set())  # fmt: skip
    assert ("masking" in written, "lipschitz" in written) == (part == "masking", part == "lipschitz")
    assert work.missing([task], [written]) == []
    for change in ({"dcnets": "0.0.1"}, {"step": 39}, {"images": 7}, {"precision": "bfloat16"}, {"part": "other"}):
        assert work.missing([task], [written | change]) == [task], change
    other = written | {"recipe": written["recipe"] | {"seed": 5}}
    assert work.missing([task], [other]) == [task]
    younger = written | {"recipe": {name: each for name, each in written["recipe"].items() if name != "adversary"}}
    assert work.missing([task], [younger]) == []  # a field younger than the line had its default


def test_only_what_is_not_there_is_measured(found, arena, tmp_path):
    task = small("tables", found, arena)
    half = dataclasses.replace(task, exams=task.exams[:3])
    work.carry_out([half], arena, tmp_path / "a.jsonl", str)
    there = lines.read(tmp_path / "a.jsonl")[0]
    (rest,) = work.missing([task], there)
    assert rest.exams == task.exams[3:]
    other = json.loads(json.dumps(there))
    other[0]["makers"][f"{DIGITS}-seed1000"]["recipe"]["seed"] = 7
    (rest,) = work.missing([task], other)
    assert rest.exams == task.exams[2:]  # the one whose maker is another network now


@pytest.mark.parametrize("kind", [ValueError, ImportError, RuntimeError])
def test_what_fails_is_told_and_the_rest_go_on(kind, found, arena, tmp_path, monkeypatch):
    def broken(*_, **__):
        raise kind("the gradient\nis not finite")

    monkeypatch.setattr(lipschitz, "local_lipschitz", broken)
    told, spent = [], []
    some = [small("lipschitz", found, arena), small("matrix", found, arena)]
    failed = work.carry_out(some, arena, tmp_path / "a.jsonl", told.append, spent.append)
    assert failed == {f"{TANH}-seed0, lipschitz": "the gradient is not finite"}
    assert [each["part"] for each in lines.read(tmp_path / "a.jsonl")[0]] == ["matrix"]
    assert spent == [task.cost for task in some]


def test_a_full_memory_ends_the_study(found, arena, tmp_path, monkeypatch):
    def full(*_, **__):
        raise torch.OutOfMemoryError("full")

    monkeypatch.setattr(lipschitz, "local_lipschitz", full)
    with pytest.raises(torch.OutOfMemoryError):
        work.carry_out([small("lipschitz", found, arena)], arena, tmp_path / "a.jsonl", str)


def test_the_time_that_is_expected_goes_with_the_work(found, arena, monkeypatch):
    monkeypatch.setattr(Arena, "pace", lambda self, model: 0.5)
    some = [small("matrix", found, arena), small("lipschitz", found, arena)]
    assert work.expected(some, arena) == pytest.approx(0.5 * sum(task.cost for task in some))
    monkeypatch.undo()
    assert 0 < arena.pace(arena.model(named(found, f"{TANH}-seed0"))) < 1


def test_tasks_come_part_by_part_and_substitutes_are_no_victims(found, arena):
    sizes = tasks.Sizes(arena.whole, arena.halves[0], arena.first(10))
    family = found[0][0].family
    made = list(tasks.wanted(found[0], PARTS, sizes, {family: Frozen(Setting(2, "2 steps of ε/2"), 20)}))
    assert list(dict.fromkeys(task.part for task in made)) == list(PARTS)
    assert {task.victim.recipe.seed for task in made} == {0, 1}
    frozen = [task for task in made if task.part == "frozen"]
    assert {task.span for task in frozen} == {(0, 20)}
    assert {exam.trial.eps for task in frozen for exam in task.exams} == {2 / 255}
    assert all(task.plan.autoattack for task in made if task.part == "masking")
    assert [task.part for task in tasks.wanted(found[0], ("frozen", "masking"), sizes, {}, autoattack=False)] == [
        "masking"
    ] * 5
    plan = next(task.plan for task in made if task.plan)
    assert (plan.trial.steps, plan.restarts, plan.trial.eps) == (50, 5, 8 / 255)


@pytest.mark.parametrize(("first", "span"), [(20, (0, 20)), (30, (0, 20)), (7, (0, 7)), (0, None)])
def test_no_number_in_a_sought_setting_is_of_images_that_it_was_sought_on(found, arena, first, span):
    sizes = tasks.Sizes(arena.whole, arena.halves[0], arena.first(10))
    known = {found[0][0].family: Frozen(MAIN, first)}
    assert {task.span for task in tasks.wanted(found[0], ["frozen"], sizes, known)} == ({span} if span else set())


def test_lipschitz_lines_of_the_old_kind_are_measured_anew(found, arena, tmp_path):
    task = small("lipschitz", found, arena)
    work.carry_out([task], arena, tmp_path / "a.jsonl", str)
    (written,), _ = lines.read(tmp_path / "a.jsonl")
    assert written["lipschitz"]["of"] == "right"
    assert work.missing([task], [written]) == []
    old = {name: each for name, each in written["lipschitz"].items() if name != "of"}
    assert work.missing([task], [written | {"lipschitz": old}]) == [task]


# -- the frozen setting ------------------------------------------------------------------------------------------------


def test_a_setting_is_sought_on_the_other_half_and_frozen(found, arena, tmp_path, monkeypatch):
    few = (Setting(4, "2 steps of ε/2"), Setting(16, "2 steps of ε/2"))
    monkeypatch.setattr(work, "GRID", few)
    monkeypatch.setattr(lines, "GRID", few)
    baselines, told = [named(found, f"{DIGITS}-seed{seed}") for seed in (0, 1)], []
    frozen = work.seek(baselines, arena, tmp_path / "a.jsonl", told.append)
    chosen = frozen.setting
    assert frozen.first == 20
    assert work.search(baselines, arena).cost == pytest.approx(2 * 20 * sum(  # two baselines, twenty images
        trial.steps or 1 for each in few for trial in each.trials) + 2 * 20 * 4 * tasks.JUDGED)  # fmt: skip
    (written,), _ = lines.read(tmp_path / "a.jsonl")
    assert (written["part"], written["first"], written["images"], written["seeds"]) == ("setting", 20, 20, [0, 1])
    accuracies = {}
    for setting in few:
        each = [[arena.outcome(net, net, trial, (20, 40)).accuracy for net in baselines] for trial in setting.trials]
        accuracies[setting] = tuple(100 * sum(some) / 2 for some in each)
    assert [(row["fgsm"], row["bim"]) for row in written["tried"]] == [pytest.approx(pair) for pair in accuracies.values()]
    assert chosen == nearest(accuracies)
    assert (written["levels"], written["rule"]) == (chosen.levels, chosen.rule)
    assert written["published"] == [18.82, 8.67]
    assert lines.frozen_in([written], baselines[1].family) == frozen
    assert lines.frozen_in([written], named(found, f"{TANH}-seed0").family) == frozen  # the operators' is the baseline's
    data, network, _ = baselines[0].family
    assert lines.frozen_in([written], (data, network, 0.5)) is None
    later = written | {"levels": 99}
    assert lines.frozen_in([written, later], baselines[0].family) == frozen  # the first one stays
    assert work.missing([small("tables", found, arena)], [written]) != []  # it is no measurement of a network


def test_a_study_reads_torn_files(tmp_path):
    file = tmp_path / "a.jsonl"
    assert lines.read(file) == ([], [])
    results.append(file, line("tables", "cifar10-cnn9_attack"))
    results.append(file, {"recipe": recipe("cifar10-cnn9_attack"), "top1_error": 3})
    with open(file, "a") as stream:
        stream.write('{"part": "ta')
    read, torn = lines.read(file)
    assert len(read) == 1
    assert "line 3 is torn" in torn[0]
