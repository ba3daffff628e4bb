"""What puts adapters into the wheel (xtask/wheel/adapters.py): reading wheels on a server, and writing one."""

from __future__ import annotations

import base64
import hashlib
import http.server
import importlib.util
import io
import pathlib
import re
import shutil
import subprocess
import sys
import threading
import zipfile

import pytest

import forebay

ROOT = pathlib.Path(__file__).parent.parent.parent
HEADER = "torch/include/c10/cuda/CUDAStream.h"
RECORD = "forebay-1.0.dist-info/RECORD"


@pytest.fixture
def adapters():
    spec = importlib.util.spec_from_file_location("adapters", ROOT / "xtask" / "wheel" / "adapters.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def package() -> bytes:
    """A wheel as PyTorch's: a little that is wanted, and much that is not."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as wheel:
        wheel.writestr("torch/lib/libtorch_cuda.so", bytes(8 << 20))
        wheel.writestr(HEADER, "// streams")
        wheel.writestr("torch/lib/libc10.so", "c10")
        wheel.writestr("torch/lib/libc10_cuda.so.debug", "not this")
        wheel.writestr("torch/include/ATen/ATen.h", "nor this")
    return out.getvalue()


@pytest.fixture
def server(package, request):
    """A server of that wheel: its address, and how many bytes it sent."""
    ranges, sent = request.param == "with ranges", []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            body = package[int(asked[1]) : int(asked[2]) + 1] if asked and ranges else package
            self.send_response(206 if body is not package else 200)
            if body is not package:
                self.send_header("Content-Range", f"bytes {asked[1]}-{asked[2]}/{len(package)}")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if asked and not ranges:
                return
            self.wfile.write(body)
            sent.append(len(body))

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as made:
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{made.server_port}/torch.whl", sent
        made.shutdown()
        thread.join()


@pytest.fixture
def pip(adapters, package, monkeypatch):
    """pip's words, and what it downloads, without a network. What it was asked."""
    asked = []

    def answer(*words):
        asked.append(words[0])
        (pathlib.Path(words[words.index("--dest") + 1]) / "torch.whl").write_bytes(package)

    monkeypatch.setattr(adapters, "pip", answer)
    return asked


@pytest.mark.parametrize("server", ["with ranges"], indirect=True)
def test_a_server_sends_only_what_is_needed_of_a_wheel(adapters, server, package, pip, tmp_path, monkeypatch):
    address, sent = server
    monkeypatch.setattr(adapters, "address_of", lambda _: address)
    monkeypatch.setattr(adapters, "AHEAD", 1 << 16)
    folder = adapters.fetch("torch==1.0", adapters.OF_TORCH, tmp_path)
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert files == {HEADER, "torch/lib/libc10.so"}
    assert (folder / HEADER).read_text() == "// streams"
    assert sum(sent) < len(package) // 8 and not pip
    before = len(sent)
    assert adapters.fetch("torch==1.0", adapters.OF_TORCH, tmp_path) == folder
    assert len(sent) == before, "the cache was asked"


@pytest.mark.parametrize("server", ["without ranges"], indirect=True)
def test_a_wheel_is_downloaded_where_ranges_are_refused(adapters, server, pip, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(adapters, "address_of", lambda _: server[0])
    folder = adapters.fetch("torch==1.0", adapters.OF_TORCH, tmp_path)
    assert (folder / HEADER).read_text() == "// streams" and pip == ["download"]
    assert "downloading the whole wheel: the server answers no range requests" in capsys.readouterr().out


def test_a_wheel_on_this_machine_is_read_where_it_lies(adapters, package, pip, tmp_path, monkeypatch):
    wheel = tmp_path / "torch 1.whl"
    wheel.write_bytes(package)
    monkeypatch.setattr(adapters, "address_of", lambda _: wheel.as_uri())
    assert (adapters.fetch("torch==1.0", adapters.OF_TORCH, tmp_path / "cache") / HEADER).is_file() and not pip


def test_what_could_not_be_had_is_named_and_nothing_half_is_kept(adapters, package, tmp_path, monkeypatch):
    def refuse(_):
        raise adapters.Unavailable("ERROR: No matching distribution found for torch==9.0")

    monkeypatch.setattr(adapters, "address_of", refuse)
    with pytest.raises(adapters.Unavailable, match="torch==9.0 could not be had: ERROR: No matching"):
        adapters.fetch("torch==9.0", adapters.OF_TORCH, tmp_path)
    broken = tmp_path / "broken.whl"
    broken.write_bytes(package.replace(b"// streams", b"// strands"))
    monkeypatch.setattr(adapters, "address_of", lambda _: broken.as_uri())
    with pytest.raises(adapters.Unavailable, match="Bad CRC-32"):
        adapters.fetch("torch==9.0", adapters.OF_TORCH, tmp_path / "cache")
    assert not list((tmp_path / "cache").iterdir())


def test_every_known_minor_version_has_a_release(adapters):
    text = (ROOT / "python" / "forebay" / "_torch_adapter.py").read_text()
    (oldest, newest) = re.search(r"OLDEST, NEWEST = \(2, (\d+)\), \(2, (\d+)\)", text).groups()
    assert {int(version.split(".")[1]) for version in adapters.VERSIONS} == {*range(int(oldest), int(newest) + 1)}


def test_every_header_that_the_adapter_names_is_fetched(adapters):
    sources = ROOT / "python" / "forebay" / "torch_adapter"
    included = re.compile(r"^\s*#\s*include\s*<((?:c10|ATen|torch|caffe2)/[^>]+)>", re.MULTILINE)
    named = [name for path in sources.glob("*.*") for name in included.findall(path.read_text())]
    assert len(named) >= 6, named
    missing = [name for name in named if not adapters.OF_TORCH.fullmatch(f"torch/include/{name}")]
    assert not missing, f"enter them in OF_TORCH of adapters.py: {missing}"


@pytest.mark.skipif(sys.platform != "linux", reason="forebay works inside PyTorch on Linux alone")
def test_the_adapter_compiles_for_the_oldest_and_the_newest_pytorch(adapters):
    """With headers out of PyTorch's wheels, 12 MB that are kept in target/python. No PyTorch needs to be installed."""
    if not shutil.which("g++"):
        pytest.skip("there is no g++")
    cache, versions = ROOT / "target" / "python" / "adapters-tested", (adapters.VERSIONS[0], adapters.VERSIONS[-1])
    # In a process of its own: there `forebay` is the package without its extension.
    command = [sys.executable, adapters.__file__, "build", "--parts", str(cache), *versions]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip("PyTorch's headers did not come within 240 s")
    said = (ran.stdout + ran.stderr).strip()
    if ran.returncode and "could not be had" in said:
        pytest.skip(said.splitlines()[-1])
    assert ran.returncode == 0, said
    assert len(list(cache.glob("adapter_*.so"))) == len(versions), said


def plain_wheel(folder: pathlib.Path) -> pathlib.Path:
    path = folder / "forebay-1.0-cp310-abi3-manylinux_2_34_x86_64.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("forebay/__init__.py", "")
        wheel.writestr(RECORD, f"forebay/__init__.py,sha256=x,0\n{RECORD},,\n")
    return path


def test_a_packed_wheel_records_its_adapters(adapters, tmp_path, monkeypatch):
    monkeypatch.setattr(adapters, "check_tag", lambda *_: None)
    cache, content = tmp_path / "cache", b"an adapter"
    cache.mkdir()
    with pytest.raises(adapters.Unavailable, match="no adapters"):
        adapters.pack(cache, plain_wheel(tmp_path), tmp_path / "out")
    (cache / "adapter_0123.so").write_bytes(content)
    made = adapters.pack(cache, plain_wheel(tmp_path), tmp_path / "out")
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
    with zipfile.ZipFile(made) as wheel:
        assert wheel.namelist()[-1] == RECORD
        assert wheel.read("forebay/torch_adapter/adapter_0123.so") == content
        lines = wheel.read(RECORD).decode().splitlines()
    assert f"forebay/torch_adapter/adapter_0123.so,sha256={digest},{len(content)}" in lines and len(lines) == 3
    with pytest.raises(adapters.Unavailable, match="already"):
        adapters.pack(cache, made, tmp_path / "again")


@pytest.mark.parametrize(
    ("newest", "refused"),
    [
        ({"GLIBC": (2, 34), "GLIBCXX": (3, 4, 29)}, None),
        ({"GLIBC": (2, 3, 4)}, None),
        ({"GLIBC": (2, 36)}, "adapter_0123.so needs GLIBC_2.36"),
        ({"GLIBCXX": (3, 4, 30)}, r"needs GLIBCXX_3.4.30, and forebay-1.0\S* promises"),
    ],
)
def test_a_tag_does_not_promise_more_than_the_adapters_keep(adapters, newest, refused, tmp_path, monkeypatch):
    monkeypatch.setattr(adapters, "needed", lambda _: newest)

    def check(name):
        adapters.check_tag(pathlib.Path(name), [pathlib.Path("adapter_0123.so")])

    if refused:
        with pytest.raises(adapters.Unavailable, match=refused):
            check(plain_wheel(tmp_path))
    else:
        check(plain_wheel(tmp_path))
    with pytest.raises(adapters.Unavailable, match="no manylinux wheel"):
        check("forebay-1.0-cp310-abi3-linux_x86_64.whl")


@pytest.mark.skipif(sys.platform != "linux", reason="the library is a shared library of Linux")
def test_what_a_library_needs_of_glibc_is_read_from_it(adapters):
    if not shutil.which("objdump"):
        pytest.skip("objdump is not installed")
    assert (2, 2) < adapters.needed(pathlib.Path(forebay.library_path()))["GLIBC"] < (3,)
