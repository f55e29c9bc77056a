"""Downloads from a server on this machine, which does what servers on the way sometimes do."""

import dataclasses
import hashlib
import http.server
import multiprocessing
import socket
import threading
import time

import pytest
from test_data_cifar import binary, pack
from torch import randint

from dcnets.experiments import data
from dcnets.experiments.data import download
from dcnets.experiments.data.catalogue import CATALOGUE, Remote
from dcnets.experiments.data.download import fetch

CONTENT = bytes(range(256)) * 4000
MD5 = hashlib.md5(CONTENT).hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves CONTENT as the server's `manner` says, and notes what was asked for."""

    def do_GET(self):
        server = self.server
        server.asked.append(self.headers.get("Range"))
        manner = server.manners.pop(0) if len(server.manners) > 1 else server.manners[0]
        first = int((self.headers.get("Range") or "bytes=0-")[6:-1])
        content = CONTENT[::-1] if manner == "other" else CONTENT
        if manner == "missing":
            self.send_error(404)
            return
        if first >= len(content) and manner != "no range":
            self.send_error(416)
            return
        partial = "Range" in self.headers and manner != "no range"
        body = content[first:] if partial else content
        self.send_response(206 if partial else 200)
        if partial:
            self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
        if manner != "no length":
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if manner == "slow":
            time.sleep(0.5)
        self.wfile.write(body[: len(body) // 3] if manner == "breaks off" else body)

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as served:
        served.manners, served.asked = ["plain"], []
        served.address = f"http://127.0.0.1:{served.server_port}/set.bin"
        thread = threading.Thread(target=served.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield served
        served.shutdown()
        thread.join()


def remote(*addresses, md5=MD5):
    return Remote("sets/set.bin", md5, addresses)


def begun(folder, content):
    part = folder / "sets/set.bin.part"
    part.parent.mkdir()
    part.write_bytes(content)
    return part


def test_a_file_is_fetched_once_and_leaves_nothing_else(server, tmp_path):
    steps = []
    for _ in range(2):
        path = fetch(remote(server.address), tmp_path, lambda *step: steps.append(step))
        assert path == tmp_path / "sets/set.bin"
        assert path.read_bytes() == CONTENT
    assert server.asked == [None]
    assert [p.name for p in path.parent.iterdir()] == ["set.bin"]
    assert steps[0] == ("set.bin", 0, len(CONTENT))
    assert steps[-1] == ("set.bin", len(CONTENT), len(CONTENT))
    assert [done for _, done, _ in steps] == sorted(done for _, done, _ in steps)


def test_a_server_that_does_not_tell_the_length_is_understood(server, tmp_path):
    server.manners = ["no length"]
    steps = []
    assert fetch(remote(server.address), tmp_path, lambda *step: steps.append(step)).read_bytes() == CONTENT
    assert steps[-1] == ("set.bin", len(CONTENT), None)


def test_a_download_goes_on_where_it_broke_off(server, tmp_path):
    begun(tmp_path, CONTENT[:1000])
    steps = []
    assert fetch(remote(server.address), tmp_path, lambda *step: steps.append(step)).read_bytes() == CONTENT
    assert server.asked == ["bytes=1000-"]
    assert steps[0] == ("set.bin", 1000, len(CONTENT))


def test_a_server_that_ignores_the_range_starts_over(server, tmp_path):
    begun(tmp_path, CONTENT[:1000])
    server.manners = ["no range"]
    assert fetch(remote(server.address), tmp_path).read_bytes() == CONTENT
    assert server.asked == ["bytes=1000-"]


def test_a_part_that_is_complete_is_only_checked(server, tmp_path):
    begun(tmp_path, CONTENT)
    assert fetch(remote(server.address), tmp_path).read_bytes() == CONTENT
    assert server.asked == [f"bytes={len(CONTENT)}-"]


@pytest.mark.parametrize("beginning", [b"x" * 1000, CONTENT + b"more"], ids=["wrong", "too long"])
def test_a_wrong_beginning_is_thrown_away_and_fetched_anew(beginning, server, tmp_path):
    begun(tmp_path, beginning)
    assert fetch(remote(server.address), tmp_path).read_bytes() == CONTENT
    assert server.asked == [f"bytes={len(beginning)}-", None]


def test_a_broken_transfer_is_taken_up_again(server, tmp_path):
    server.manners = ["breaks off", "breaks off", "plain"]
    assert fetch(remote(server.address), tmp_path).read_bytes() == CONTENT
    third = len(CONTENT) // 3
    assert server.asked == [None, f"bytes={third}-", f"bytes={third + (len(CONTENT) - third) // 3}-"]


def test_a_transfer_that_keeps_breaking_is_told_and_can_be_resumed(server, tmp_path):
    server.manners = ["breaks off"]
    with pytest.raises(data.DataError, match=rf"broke off at byte \d+ of {len(CONTENT)}; the next attempt goes on.*{MD5}"):
        fetch(remote(server.address), tmp_path)
    assert len(server.asked) == download.ATTEMPTS
    done = (tmp_path / "sets/set.bin.part").stat().st_size
    assert done > 0
    assert not (tmp_path / "sets/set.bin").exists()
    server.manners = ["plain"]
    assert fetch(remote(server.address), tmp_path).read_bytes() == CONTENT
    assert server.asked[-1] == f"bytes={done}-"


def test_a_wrong_checksum_keeps_nothing(server, tmp_path):
    server.manners = ["other"]
    with pytest.raises(
        data.DataError, match=f"MD5 is {hashlib.md5(CONTENT[::-1]).hexdigest()}, expected {MD5}; the file there"
    ):
        fetch(remote(server.address), tmp_path)
    assert server.asked == [None]
    assert not (tmp_path / "sets/set.bin").exists()
    assert (tmp_path / "sets/set.bin.part").stat().st_size == 0


def test_a_wrong_file_is_fetched_anew_once_and_no_more(server, tmp_path):
    begun(tmp_path, b"x" * 1000)
    server.manners = ["other"]
    with pytest.raises(data.DataError, match=f"expected {MD5}"):
        fetch(remote(server.address), tmp_path)
    assert server.asked == ["bytes=1000-", None]


def test_the_next_address_is_tried(server, tmp_path):
    server.manners = ["missing", "plain"]
    assert fetch(remote(server.address + "?1", server.address), tmp_path).read_bytes() == CONTENT


def refused():
    """An address where nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}/set.bin"


def test_without_a_network_the_error_says_what_to_put_where(server, tmp_path):
    server.manners = ["missing"]
    first = refused()
    with pytest.raises(data.DataError) as caught:
        fetch(remote(first, server.address), tmp_path)
    message = str(caught.value)
    assert f"fetch {first} (MD5 {MD5}) by other means and put it at {tmp_path / 'sets/set.bin'}" in message
    assert "refused" in message
    assert f"{server.address}: HTTP Error 404" in message


def test_a_folder_that_cannot_be_written_is_told(server, tmp_path):
    (tmp_path / "sets").write_text("a file where the folder should be")
    with pytest.raises(data.DataError, match=r"cannot download set.bin \(.*sets.*put it at"):
        fetch(remote(server.address), tmp_path)


def test_two_processes_fetch_one_file_once(server, tmp_path):
    server.manners = ["slow"]
    context = multiprocessing.get_context("spawn")
    both = [context.Process(target=fetch, args=(remote(server.address), tmp_path)) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join()
    assert [process.exitcode for process in both] == [0, 0]
    assert (tmp_path / "sets/set.bin").read_bytes() == CONTENT
    assert server.asked == [None]


def test_load_downloads_what_is_missing_and_reads_it(server, tmp_path, monkeypatch):
    labels = randint(10, (13,)), randint(10, (13,))
    images = randint(256, (13, 3, 32, 32))
    parts = [*(slice(i, i + 2) for i in range(0, 10, 2)), slice(10, 13)]
    files = [*(f"data_batch_{n}.bin" for n in range(1, 6)), "test_batch.bin"]
    contents = {
        f"cifar-10-batches-bin/{file}": binary("cifar10", images[part], labels[0][part], labels[1][part])
        for file, part in zip(files, parts, strict=True)
    }
    pack(tmp_path / "there.tar.gz", contents)
    monkeypatch.setattr(__name__ + ".CONTENT", (tmp_path / "there.tar.gz").read_bytes())
    only = Remote("cifar-10-binary.tar.gz", hashlib.md5(CONTENT).hexdigest(), (server.address,))
    entry = dataclasses.replace(CATALOGUE["cifar10"], train=10, test=3, files=(only,))
    monkeypatch.setitem(CATALOGUE, "cifar10", entry)
    steps = []
    for _ in range(2):
        found = data.load("cifar10", tmp_path / "home", progress=lambda *step: steps.append(step))
        assert found.train.labels.tolist() == labels[0][:10].tolist()
        assert (found.test.images.long() == images[10:]).all()
    assert server.asked == [None]
    assert steps[-1] == ("cifar-10-binary.tar.gz", len(CONTENT), len(CONTENT))
