"""Building environments, and everything that can go wrong with it, against a made-up package index: no network."""

import fcntl
import json
import sys
import textwrap
import threading
import zipfile
from pathlib import Path

import pytest

from helpers.errors import InputError, UsageError
from helpers.sglang import building
from helpers.sglang.build import build
from helpers.sglang.environments import MARKER, environment, environments, installed, marker

# Stands for the base environment's Python: `-m pip download`, `-m pip install` and `-m pip index` by what ANSWERS says.
PIP = """\
#!{python}
import json, pathlib, shutil, sys
answers = json.loads(pathlib.Path({answers!r}).read_text())
command = sys.argv[sys.argv.index("pip") + 2]
said = answers.get(command, {{}})
if command == "index":
    said = answers["index"].get(sys.argv[sys.argv.index("--python-version") + 1], {{"code": 1}})
if said.get("wheel"):
    shutil.copy(said["wheel"], sys.argv[sys.argv.index("--dest") + 1])
if command == "install" and "--target" in sys.argv and not said.get("code"):
    target = pathlib.Path(sys.argv[sys.argv.index("--target") + 1])
    for wanted in sys.argv[sys.argv.index("--target") + 2:]:
        name, _, pin = wanted.partition("==")
        folder = target / f"{{name.replace('-', '_')}}-{{pin}}.dist-info"
        folder.mkdir()
        requires = "".join(f"Requires-Dist: {{line}}\\n" for line in answers.get("requires", {{}}).get(name, []))
        (folder / "METADATA").write_text(f"Name: {{name}}\\n{{requires}}")
    if wanted.startswith("ninja"):
        (target / "flashinfer" / "data").mkdir(parents=True)
print(said.get("out", ""))
print(said.get("err", ""), file=sys.stderr)
sys.exit(said.get("code", 0))
"""


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache with a base environment whose pip answers what `cache.says(…)` was given."""
    monkeypatch.setenv("NVFP4_CACHE", str(tmp_path))
    monkeypatch.delenv("SGLANG_PYTHON", raising=False)
    return Cache(tmp_path / "sglang", tmp_path / "answers.json")


class Cache:
    def __init__(self, home: Path, answers: Path):
        self.home, self.answers = home, answers
        python = home / "base" / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.write_text(PIP.format(python=sys.executable, answers=str(answers)))
        python.chmod(0o755)
        (home / "base" / MARKER).write_text(json.dumps({"python": "3.11.7", "torch": "2.14.1"}))
        self.lines = []

    def says(self, **answers):
        self.answers.write_text(json.dumps(answers))

    def build(self, *releases, **options):
        build(releases, say=self.lines.append, **options)

    def has_wheel(self, release, pin="5.12.1", flashinfer="flashinfer_python[cu13]==0.6.14"):
        wheel = self.home.parent / f"sglang-{release}-cp311-cp311-manylinux_2_34_x86_64.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("sglang/srt/server_args.py", "")
            archive.writestr("sglang/multimodal_gen/large.py", "")
            requires = ("torch", f"transformers=={pin}", flashinfer, "nvidia-cutlass-dsl[cu13]==4.6.0")
            lines = "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
            archive.writestr(f"sglang-{release}.dist-info/METADATA", f"Name: sglang\n{lines}")
        parts = ["nvidia-cutlass-dsl-libs-base==4.6.0", 'nvidia-cutlass-dsl-libs-cu13==4.6.0; extra == "cu13"', "numpy"]
        self.says(download={"wheel": str(wheel)}, requires={"nvidia-cutlass-dsl": parts})

    @property
    def folders(self):
        return sorted(path.name for path in self.home.iterdir() if path.is_dir())


def test_a_release_and_its_pin_are_built_once(cache):
    cache.has_wheel("0.5.16")
    cache.build("0.5.16")
    assert cache.folders == ["base", "cutlass-dsl-4.6.0", "flashinfer-0.6.14", "release-0.5.16", "transformers-5.12.1"]
    assert not (cache.home / "release-0.5.16" / "sglang" / "multimodal_gen").exists()
    assert environment("0.5.16").transformers == "5.12.1"
    cache.says(download={"code": 1}, install={"code": 1})  # asking the index again would fail now
    cache.build("0.5.16")
    assert cache.lines[-1] == "[1/1] sglang 0.5.16: ready (transformers 5.12.1)"


def test_two_releases_share_a_pin(cache):
    for release in ("0.5.17", "0.5.18"):
        cache.has_wheel(release)
        cache.build(release)
    assert cache.folders == ["base", "release-0.5.17", "release-0.5.18", "transformers-5.12.1"]


def test_loading_gets_the_kernel_packages_that_the_release_pins(cache):
    """With the parts that a distribution pins to its own version, without its other requirements, and without kernel sources."""
    cache.has_wheel("0.5.16")
    cache.build("0.5.16")
    path = environment("0.5.16").with_kernels().path
    assert [Path(folder).name for folder in path] == ["flashinfer-0.6.14", "cutlass-dsl-4.6.0", "transformers-5.12.1", "release-0.5.16"]
    there = sorted(folder.name for folder in (cache.home / "cutlass-dsl-4.6.0").glob("*.dist-info"))
    assert there == ["nvidia_cutlass_dsl-4.6.0.dist-info", "nvidia_cutlass_dsl_libs_base-4.6.0.dist-info"]
    assert (cache.home / "flashinfer-0.6.14" / "flashinfer").is_dir()
    assert not (cache.home / "flashinfer-0.6.14" / "flashinfer" / "data").exists()
    assert environment("0.5.16").path == path[2:]


def test_other_releases_get_them_when_they_are_asked_for(cache):
    cache.has_wheel("0.5.17")
    cache.build("0.5.17")
    with pytest.raises(UsageError, match=r"built without FlashInfer, which loading needs: python -m helpers sglang build 0\.5\.17 --load"):
        environment("0.5.17").with_kernels()
    cache.build("0.5.17", load=True)
    assert len(environment("0.5.17").with_kernels().path) == 4


def test_a_release_that_pins_no_flashinfer_cannot_load(cache):
    cache.has_wheel("0.5.17", flashinfer="flashinfer_python>=0.6")
    with pytest.raises(InputError, match=r"sglang 0\.5\.17 pins no flashinfer-python"):
        cache.build("0.5.17", load=True)


def test_a_half_built_release_is_never_used_and_is_built_again(cache):
    half = cache.home / "release-0.5.16"
    (half / "sglang").mkdir(parents=True)
    (cache.home / "release-0.5.15.building").mkdir()
    assert environments() == {}
    with pytest.raises(UsageError, match=r'no environment for sglang 0\.5\.16 \(none is built\): make sglang RELEASES="0\.5\.16"'):
        environment("0.5.16")
    cache.has_wheel("0.5.16")
    cache.build("0.5.16")
    assert marker(half)["sglang"] == "0.5.16"
    assert any("without its marker" in line for line in cache.lines)
    assert any("did not finish: removed" in line for line in cache.lines)


def test_a_release_whose_pin_is_missing_is_not_offered(cache):
    cache.has_wheel("0.5.16")
    cache.build("0.5.16")
    (cache.home / "transformers-5.12.1" / MARKER).unlink()
    assert environments() == {}


def test_a_build_that_fails_keeps_nothing(cache):
    cache.has_wheel("0.5.16")
    answers = json.loads(cache.answers.read_text())
    cache.says(**answers, install={"code": 1, "err": "ERROR: hash mismatch"})
    with pytest.raises(InputError, match=r"transformers==5\.12\.1: pip failed: ERROR: hash mismatch"):
        cache.build("0.5.16")
    assert cache.folders == ["base", "release-0.5.16"]


def test_a_release_that_does_not_exist_gets_a_hint(cache):
    cache.says(download={"code": 1, "err": "(from versions: 0.5.15, 0.5.16, 0.5.23)"}, index={})
    with pytest.raises(UsageError, match=r"no sglang 0\.5\.61 on the package index: did you mean 0\.5\.16"):
        cache.build("0.5.61")


def test_no_wheel_for_this_python_names_those_that_have_one(cache):
    versions = {"out": "Available versions: 0.5.24, 0.5.23"}
    cache.says(download={"code": 1, "err": "(from versions: 0.5.22, 0.5.23)"}, index={"3.12": versions, "3.13": versions})
    with pytest.raises(UsageError, match=r"0\.5\.24 has wheels for Python 3\.12, 3\.13 and the base environment is Python 3\.11"):
        cache.build("0.5.24")


@pytest.mark.parametrize(
    "said", ["NewConnectionError: Failed to establish a new connection", "(from versions: none)", "Temporary failure in name resolution"]
)
def test_no_network_is_said(cache, said):
    cache.says(download={"code": 1, "err": said})
    with pytest.raises(InputError, match="no package index answers: check the network"):
        cache.build("0.5.16")
    assert cache.folders == ["base"]


def test_a_full_disk_is_said_before_and_while_building(cache, monkeypatch):
    cache.says(download={"code": 1, "err": "OSError: [Errno 28] No space left on device"})
    with pytest.raises(InputError, match="the disk filled up"):
        cache.build("0.5.16")
    monkeypatch.setattr(building.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 1 << 20})())
    with pytest.raises(InputError, match=r"sglang 0\.5\.16 needs 0\.5 GB while it is built and .* has 0\.0 GB free"):
        cache.build("0.5.16")


@pytest.mark.parametrize("written", ["latest", "0.5", "0.5.16; rm", "v0.5.16"])
def test_what_is_no_release_number_is_not_asked_for(cache, written):
    with pytest.raises(UsageError, match="is no release number"):
        cache.build(written)


@pytest.mark.parametrize("written", ["0.5.1", "0.4.9", "0.5.16.post1", "0.5.16rc1"])
def test_an_old_release_that_the_suite_does_not_know_is_not_built(cache, written):
    with pytest.raises(UsageError, match="unknown SGLang release"):
        cache.build(written)
    assert cache.folders == ["base"]


def test_a_second_build_waits_for_the_first(cache):
    cache.has_wheel("0.5.16")
    with (cache.home / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        second = threading.Thread(target=cache.build, args=("0.5.16",))
        second.start()
        second.join(timeout=2)
        assert second.is_alive()
        assert cache.folders == ["base"]
    second.join(timeout=60)
    assert cache.lines[0] == "another build is running in this cache; waiting for it …"
    assert environment("0.5.16").release == "0.5.16"


def test_a_cache_that_cannot_be_written_is_said(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NVFP4_CACHE", str(tmp_path / "file"))
    with pytest.raises(InputError, match="cannot be written"):
        build(["0.5.16"], say=print)


def test_the_users_own_python_is_used_whatever_its_version(cache, tmp_path, monkeypatch):
    own = tmp_path / "own-python"
    own.write_text("#!/bin/sh\necho 0.5.17rc1\n")
    own.chmod(0o755)
    monkeypatch.setenv("SGLANG_PYTHON", str(own))
    found = environment("0.5.17rc1")
    assert (found.python, found.path, found.origin) == (str(own), (), "SGLANG_PYTHON")


def test_a_python_without_sglang_is_an_error(monkeypatch):
    monkeypatch.setenv("SGLANG_PYTHON", sys.executable)
    with pytest.raises(InputError, match="has no sglang: install it there"):
        installed()
    monkeypatch.setenv("SGLANG_PYTHON", "/no/such/python")
    with pytest.raises(InputError, match="does not run"):
        installed()


def test_errors_are_one_line_and_the_exit_code_says_which_kind(command, tmp_path):
    bad = command("sglang", "build", "0.5", env={"NVFP4_CACHE": str(tmp_path)})
    assert bad.returncode == 2
    assert len(bad.stderr.strip().splitlines()) == 1
    own = command("sglang", "build", "0.5.16", env={"NVFP4_CACHE": str(tmp_path), "SGLANG_PYTHON": sys.executable})
    assert own.returncode == 2
    assert "SGLANG_PYTHON is set" in own.stderr


def test_status_says_what_can_be_asked(cache, command):
    cache.has_wheel("0.5.16")
    cache.build("0.5.16")
    status = command("sglang", "status", env={"NVFP4_CACHE": str(cache.home.parent)})
    assert textwrap.shorten(status.stdout, 200) == "0.5.16 cache transformers 5.12.1"
