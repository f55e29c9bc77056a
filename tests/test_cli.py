"""The command line as a whole: quick help, one clear line for each error, the right exit codes."""

import errno
import subprocess
import sys
import time

import click
import pytest
import torch
from click.testing import CliRunner
from command_line import call, environment, ok, refused

import dcnets
from dcnets.cli import failures
from dcnets.cli.command import Command, Program
from dcnets.cli.program import program
from dcnets.cli.words import RecipeName
from dcnets.experiments.checkpoint import CheckpointError
from dcnets.experiments.data import DataError
from dcnets.experiments.recipes import recipes
from dcnets.experiments.signals import StoppedError

COMMANDS = [
    "train", "evaluate", "attack", "reproduce", "study", "report", "figure", "convert", "bench", "models", "recipes", "data",
]  # fmt: skip
TOLD = (
    "import sys\nfrom dcnets.cli import main\ntry:\n    main()\nfinally:\n    print('torch' in sys.modules, file=sys.stderr)"
)


def seconds(*arguments):
    """The best of three runs of Python, and the last one's stderr."""
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        done = subprocess.run([sys.executable, *arguments], env=environment(), capture_output=True, text=True, check=True)
        times.append(time.perf_counter() - begin)
    return min(times), done.stderr


# -- help --------------------------------------------------------------------------------------------------------------


def test_help_answers_at_once_and_without_torch():
    bare, _ = seconds("-c", "import click")
    for command in [[], *([command] for command in COMMANDS)]:
        took, told = seconds("-c", TOLD, *command, "--help")
        assert told == "False\n"
        assert took - bare < 0.5


def test_the_commands_are_listed_in_the_order_of_their_use():
    shown = ok("--help")
    places = [shown.index(f"\n  {command} ") for command in COMMANDS]
    assert places == sorted(places)
    assert ok() == shown


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_an_example_that_its_own_parser_accepts(command):
    shown = ok(command, "-h")
    examples = [line.split() for line in shown.partition("Examples:\n")[2].splitlines()]
    assert examples
    for words in examples:
        words = words[words.index("dcnets") + 1 :]
        own = program.commands[words[0]]
        parsed, _, _ = own.make_parser(click.Context(own)).parse_args([word.strip("'") for word in words[1:]])
        for parameter in own.params:
            if isinstance(parameter.type, RecipeName) and parsed.get(parameter.name):
                names = parsed[parameter.name]
                assert {names} <= recipes().keys() if isinstance(names, str) else set(names) <= recipes().keys()


def test_the_version():
    assert ok("--version") == f"dcnets {dcnets.__version__}\n"


def test_python_m_is_the_same_command():
    done = subprocess.run([sys.executable, "-m", "dcnets", "trian"], env=environment(), capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("error: unknown command 'trian'; did you mean 'train'?")
    assert done.stdout == ""


# -- what is missing ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("package", ["click", "rich", "safetensors"])
def test_a_missing_package_is_named_with_its_cure(package):
    code = f"import sys\nsys.modules[{package!r}] = None\nfrom dcnets.cli import main\nmain()"
    arguments = ["evaluate", "."] if package == "safetensors" else ["recipes", "attack"]
    done = subprocess.run([sys.executable, "-c", code, *arguments], env=environment(), capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == f"error: dcnets' command line needs {package}: pip install 'dcnets[train]'\n"


def test_pillow_has_another_name_than_its_package():
    told = failures.failure(ModuleNotFoundError("no", name="PIL.Image"))
    assert "needs pillow" in told.message


# -- wrong arguments ---------------------------------------------------------------------------------------------------


def test_wrong_arguments_are_told_in_one_line():
    assert refused(2, "trian").startswith("error: unknown command 'trian'; did you mean 'train'? choose one of attack,")
    assert refused(2, "--verson") == "error: unknown option --verson; did you mean --version? see dcnets --help"
    assert refused(2, "recipes", "--zzz") == "error: unknown option --zzz; see dcnets recipes --help"
    assert refused(2, "evaluate") == "error: missing FOLDER_OR_CHECKPOINT; see dcnets evaluate --help"
    assert refused(2, "convert", ".") == "error: missing --operator; see dcnets convert --help"
    assert refused(2, "evaluate", "nowhere") == "error: path 'nowhere' does not exist; see dcnets evaluate --help"
    assert "got unexpected extra argument (b); see dcnets evaluate --help" in refused(2, "evaluate", ".", "b")
    assert "--out: " in refused(2, "convert", ".", "--operator", "tanh-cosine", "--out", __file__)


def test_an_option_may_be_written_with_underscores():
    assert "unknown option" not in refused(2, "train", "mnist-subset-features2d", "--label_smoothing", "x")


# -- errors ------------------------------------------------------------------------------------------------------------


def raising(error):
    """A program with one command, which raises."""

    @click.command(cls=Command, examples=())
    def fail():
        raise error

    return Program("dcnets", commands={"fail": fail})


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (ValueError("no\n  good"), 1, "error: no good\n"),
        (TypeError("no good"), 1, "error: no good\n"),
        (DataError("no good"), 1, "error: no good\n"),
        (CheckpointError("no good"), 1, "error: no good\n"),
        (ImportError("no good"), 1, "error: no good\n"),
        (ValueError(), 1, "error: ValueError\n"),
        (OSError(errno.EACCES, "Permission denied", "place"), 1, "error: place: Permission denied\n"),
        (OSError("no good"), 1, "error: no good\n"),
        (
            torch.OutOfMemoryError("much"),
            1,
            "error: the GPU's memory is full (much); --accumulate 2 or more needs less of it\n",
        ),
        (StoppedError(15, "stopped"), 143, "stopped\n"),
        (StoppedError(2, "stopped"), 130, "stopped\n"),
        (failures.Failure("diverged: no", failures.DIVERGED), 3, "diverged: no\n"),
        (KeyboardInterrupt(), 130, "\nstopped\n"),
    ],
)
def test_each_error_has_its_line_and_its_code(error, code, told):
    result = CliRunner().invoke(raising(error), ["fail"])
    assert (result.exit_code, result.stderr, result.stdout) == (code, told, "")


@pytest.mark.parametrize("error", [ValueError("no good"), CheckpointError("no good")])
def test_a_traceback_comes_on_request(error):
    assert CliRunner().invoke(raising(error), ["fail", "--traceback"]).exception is error


@pytest.mark.parametrize("error", [KeyError("x"), AssertionError(), RuntimeError("x"), ZeroDivisionError()])
def test_a_bug_keeps_its_traceback(error):
    assert CliRunner().invoke(raising(error), ["fail"]).exception is error


def test_a_traceback_in_a_process():
    done = subprocess.run(
        [sys.executable, "-m", "dcnets", "recipes", "no-such", "--traceback"],
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("ValueError: unknown recipe 'no-such'")


def test_of_several_processes_the_first_one_speaks_and_others_only_of_their_errors():
    assert "error: unknown recipe" in call("recipes", "no-such", RANK="0").stderr
    assert "error in process 1: unknown recipe" in call("recipes", "no-such", RANK="1").stderr
    for error in (StoppedError(15, "stopped"), failures.Failure("diverged", 3), click.UsageError("no")):
        result = CliRunner(env={"RANK": "1"}).invoke(raising(error), ["fail"])
        assert result.stderr == ""
        assert result.exit_code in (143, 3, 2)


def test_a_closed_pipe_is_no_error():
    done = subprocess.run(
        f"{sys.executable} -m dcnets recipes | head -1", shell=True, env=environment(), capture_output=True, text=True
    )
    assert done.stdout.startswith("recipe")
    assert done.stderr == ""


# -- completion --------------------------------------------------------------------------------------------------------


def test_a_shell_completes_recipes_and_words():
    def completions(line):
        variables = {"_DCNETS_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
        done = subprocess.run(
            [sys.executable, "-m", "dcnets"], env=environment(**variables), capture_output=True, text=True, check=True
        )
        return [word.partition(",")[2] for word in done.stdout.split()]

    tanh = "mnist-subset-features2d-tanh-cosine"
    assert completions("dcnets train mnist-subset-features2d-t") == [tanh, f"{tanh}-fgsm"]
    assert completions("dcnets train x --penalty ") == ["orthonormal", "orthogonal", "none"]
