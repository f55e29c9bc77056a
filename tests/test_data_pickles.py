"""Pickles that try to run something find nothing to run it with."""

import contextlib
import os
import pickle

import numpy as np
import pytest
import torch

from dcnets.experiments.data.errors import DataError
from dcnets.experiments.data.pickles import STAND_INS, read_pickle

RAN = []
"""What a pickle has run; it stays empty."""


def run(*arguments):
    RAN.append(arguments)
    return {}


class Calls:
    """Pickled as the call of a function."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


class Restored:
    """Pickled as an object with state."""

    def __init__(self):
        self.value = 1

    def __setstate__(self, state):
        run(state)


class Ndarray(np.ndarray):
    """An array class of one's own."""

    def __setstate__(self, state):
        run(state)


def text(word):
    """A string as Python 2 wrote it."""
    return b"U" + bytes([len(word)]) + word


def array(shape=b"(K\x02K\x02t", content=b"abcd", dtype=b"u1", order=b"\x89", state=None):
    """A numpy array as Python 2 wrote it, part by part."""
    made = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00t" + text(b"b") + b"tR"
    kind = (
        b"cnumpy\ndtype\n("
        + text(dtype)
        + b"K\x00K\x01tR(K\x03"
        + text(b"|")
        + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    )
    return made + (state or b"(K\x01" + shape + kind + order + text(content) + b"t") + b"b"


def held(value):
    """A pickled dict with one value, given in opcodes."""
    return b"\x80\x02}" + text(b"data") + value + b"s."


@pytest.fixture(autouse=True)
def _nothing_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    RAN.clear()
    yield
    assert RAN == []
    assert os.listdir() == []


def test_a_pickle_of_python_2_is_read():
    labels = (
        b"}(" + text(b"data") + array() + text(b"labels") + b"](K\x01K\x02e" + text(b"names") + b"](" + text(b"a") + b"eu."
    )
    found = read_pickle("batch", b"\x80\x02" + labels)
    assert found["data"].tolist() == [[97, 98], [99, 100]]
    assert found["data"].dtype == torch.uint8
    assert (found["labels"], found["names"]) == ([1, 2], [b"a"])


def test_the_order_of_an_array_is_kept():
    assert read_pickle("batch", held(array(order=b"\x88")))["data"].tolist() == [[97, 99], [98, 100]]
    assert read_pickle("batch", held(array(order=b"I00\n")))["data"].tolist() == [[97, 98], [99, 100]]


def opcodes(function):
    """Pickles that call a function in each of the ways that there are."""
    module, name = function.split(" ")
    found, arguments = f"c{module}\n{name}\n".encode(), text(b"touch here")
    return {
        "reduce": b"\x80\x02" + found + b"(" + arguments + b"tR.",
        "inst": b"(" + arguments + f"i{module}\n{name}\n".encode() + b".",
        "obj": b"(" + found + arguments + b"o.",
        "newobj": b"\x80\x02" + found + b"(" + arguments + b"t\x81.",
        "newobj_ex": b"\x80\x04" + found + b"(" + arguments + b"t}\x92.",
        "stack_global": b"\x80\x04" + b"".join(b"\x8c" + bytes([len(w)]) + w.encode() for w in (module, name)) + b"\x93"
        b"(" + arguments + b"tR.",
        "nested": held(b"](" + array()[:-1] + b"b" + found + b"(" + arguments + b"tRe"),
        "in a key": b"\x80\x02}" + found + b"(" + arguments + b"tRK\x01s.",
        "as state": held(array(state=found + b"(" + arguments + b"tR")),
        "as dtype": held(array(dtype=b"u1") + b"0" + found + b"(" + arguments + b"tR"),
    }  # fmt: skip


FORBIDDEN = [
    "os system", "posix system", "builtins eval", "builtins exec", "builtins getattr", "__builtin__ eval",
    "subprocess Popen", "copyreg _reconstructor", "numpy load", "numpy.core.multiarray scalar",
    "numpy.testing._private.utils runstring", "torch load", "functools partial", "operator attrgetter",
    "codecs encode", "_codecs decode", "numpy ndarray.tofile", "dcnets.experiments.data.pickles read_pickle",
    "dcnets.experiments.data.pickles STAND_INS",
]  # fmt: skip


@pytest.mark.parametrize("function", FORBIDDEN)
@pytest.mark.parametrize("way", [*opcodes("os system")])
def test_no_function_is_found_by_any_way(function, way):
    name = function.replace(" ", ".")
    with pytest.raises(
        DataError, match=rf"^archive:batch, byte \d+: the pickle asks for {name}, which is forbidden: nothing was run"
    ):
        read_pickle("archive:batch", opcodes(function)[way])


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize(
    "thing",
    [
        Calls(os.system, "touch here"),
        Calls(eval, "run()"),
        Calls(run, 1),
        [{"data": (Calls(run, Calls(os.mkdir, "here")),)}],
        {"data": np.array([Calls(run, 1)], dtype=object)},
        {"data": np.zeros(3, np.uint8).view(Ndarray)},
        {"data": Restored()},
        {Restored(): 1},
    ],
    ids=["system", "eval", "function", "nested", "in an array", "array class", "state", "key"],
)
def test_malicious_pickles_run_nothing(thing, protocol):
    content = pickle.dumps(thing, protocol)
    RAN.clear()  # numpy pickles a view of one's own class by its parts
    with pytest.raises(DataError, match=r"batch, byte \d+: .*fetch that"):
        read_pickle("batch", content)


RECONSTRUCT, NDARRAY = b"cnumpy.core.multiarray\n_reconstruct\n", b"cnumpy\nndarray\n"
CLASS_STATE = b"}" + text(b"__call__") + b"K\x01s"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (RECONSTRUCT + CLASS_STATE + b"b", "has no attribute '__dict__'"),
        (NDARRAY + CLASS_STATE + b"b", "has no attribute '__dict__'"),
        (b"cnumpy\ndtype\n" + CLASS_STATE + b"b", "has no attribute '__dict__'"),
        (b"c_codecs\nencode\nN}" + text(b"__setstate__") + b"K\x01s\x86b", "attribute"),
        (RECONSTRUCT + b"N}X\x08\x00\x00\x00__call__K\x01s\x86b", "read-only"),
        (NDARRAY + b")R", "not callable"),
        (NDARRAY + b")\x81", "NEWOBJ|must be a type|class"),
        (RECONSTRUCT + b"(K\x01K\x02tR", "an array of class 1, expected numpy.ndarray"),
        (array(dtype=b"O8"), "dtype b'O8', expected unsigned bytes"),
        (array(dtype=b"V8"), "dtype b'V8', expected unsigned bytes"),
        (array(shape=b"(K\x02K\x03t"), "bytes fit the shape"),
        (array(shape=b"(J\xff\xff\xff\xffK\x02t"), "state is"),
        (array(shape=b"(" + text(b"x") + b"t"), "state is"),
        (array(content=b""), "state is"),
        (array(state=b"}"), "state is"),
        (array(state=b"N"), "state is"),
        (array(state=b"(K\x01(K\x02tNN" + text(b"ab") + b"t"), "state is"),
        (b"c_codecs\nencode\n(X\x01\x00\x00\x00aX\x05\x00\x00\x00rot13tR", "latin1 text, got str as 'rot13'"),
        (b"c_codecs\nencode\n(K\x01X\x06\x00\x00\x00latin1tR", "latin1 text, got int"),
        (b"c_codecs\nencode\n(X\x01\x00\x00\x00\x61tR", "missing 1 required"),
        (b"Pabc\n", "persistent"),
        (b"\x82\x01", "unregistered extension"),
        (b"j\xff\x00\x00\x00", "Memo"),
        (b"X\xff\xff\xff\x7f", "truncated|exceeds|ran out"),
    ],
)
def test_tricks_with_what_is_known_fail(value, message):
    with pytest.raises(DataError, match=rf"(?s)batch, byte \d+: .*({message})"):
        read_pickle("batch", held(value))


def test_the_stand_ins_are_as_they_were_and_hold_nothing():
    for stand_in in STAND_INS.values():
        assert not isinstance(stand_in, type)
        assert not hasattr(stand_in, "__dict__")


@pytest.mark.parametrize("length", range(0, len(held(array())), 7))
def test_a_pickle_that_is_cut_off_is_named_with_its_offset(length):
    with pytest.raises(DataError, match=r"batch, byte \d+: "):
        read_pickle("batch", held(array())[:length])


def test_a_pickle_of_something_else_is_refused():
    with pytest.raises(DataError, match="batch, byte 0: the pickle holds a list, expected a dict"):
        read_pickle("batch", pickle.dumps([1]))


def test_random_changes_never_run_anything():
    content = bytearray(held(array()))
    chance = np.random.default_rng(0)
    for _ in range(2000):
        spoiled = content.copy()
        for place in chance.integers(len(content), size=3):
            spoiled[place] = chance.integers(256)
        with contextlib.suppress(DataError):  # and no other error
            read_pickle("batch", spoiled)
