"""The environment of the pinned vLLM release without building it: no network, no vLLM."""

import json
from types import SimpleNamespace

import pytest

from helpers.errors import InputError, UsageError
from helpers.sglang.environments import MARKER
from helpers.vllm import environment


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("NVFP4_CACHE", str(tmp_path))
    return tmp_path / "sglang" / f"vllm-{environment.VERSION}"


def test_what_is_not_built_says_how_to_build_it(cache):
    assert environment.built() is None
    with pytest.raises(UsageError, match=r"vllm 0\.33\.0 is not built in .*: make vllm"):
        environment.python()


def test_a_folder_without_its_marker_does_not_count(cache):
    (cache / "bin").mkdir(parents=True)
    assert environment.built() is None
    (cache / MARKER).write_text(json.dumps({"vllm": environment.VERSION}))
    assert environment.python() == str(cache / "bin" / "python")


def test_a_built_one_is_not_built_again(cache, monkeypatch):
    cache.mkdir(parents=True)
    (cache / MARKER).write_text(json.dumps({"vllm": environment.VERSION}))
    monkeypatch.setattr(environment, "_make", lambda *_: pytest.fail("built again"))
    lines = []
    environment.build(lines.append)
    assert lines == ["vllm 0.33.0: already built"]


def test_a_build_that_fails_keeps_nothing(cache, monkeypatch):
    def fails(made, torch):
        (made / "half").write_text("")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(environment, "_make", fails)
    monkeypatch.setattr(environment, "SPACE", 1)
    with pytest.raises(InputError, match=r"No space left on device; nothing was kept of it"):
        environment.build(lambda line: None)
    assert [path.name for path in cache.parent.iterdir()] == [".lock"]


def test_too_little_disk_is_said_before_anything_is_installed(cache, monkeypatch):
    monkeypatch.setattr(environment.building.shutil, "disk_usage", lambda path: SimpleNamespace(free=1 << 30))
    monkeypatch.setattr(environment, "_make", lambda *_: pytest.fail("built"))
    with pytest.raises(InputError, match=r"vllm 0\.33\.0 needs 6\.0 GB while it is built and .* has 1\.0 GB free"):
        environment.build(lambda line: None)


def test_requirements_keep_the_versions_that_the_wheel_asks_for():
    lines = [
        "transformers<5.21.0,>=5.16.1",
        "torch==2.14.0",
        "fastapi[standard]<0.137.0,>=0.133.0",
        'protobuf>=5.29.6; platform_machine != "s390x"',
        'numpy; extra == "bench"',
        "flashinfer-python==0.7.2.post1",
        "quack-kernels==0.6.5",
    ]
    assert environment.wanted_of(lines) == {
        "with": ["transformers<5.21.0,>=5.16.1", "fastapi<0.137.0,>=0.133.0", 'protobuf>=5.29.6; platform_machine != "s390x"'],
        "without": ["flashinfer-python==0.7.2.post1"],
    }


def test_the_asker_s_own_settings_do_not_reach_vllm(monkeypatch):
    monkeypatch.setenv("VLLM_USE_FLASHINFER_MOE_FP4", "0")
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    given = environment.variables()
    assert "VLLM_USE_FLASHINFER_MOE_FP4" not in given and "PYTHONPATH" not in given
    assert given["HF_HUB_OFFLINE"] == given["VLLM_NO_USAGE_STATS"] == "1"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["ask", "qwen3-moe-nvfp4"], "make vllm"),
        (["ask", "no-such-checkpoint"], "no-such-checkpoint"),
        (["ask", "qwen3-moe-nvfp4", "--gpu", "B201"], "did you mean B200"),
        (["ask"], "CHECKPOINT"),
    ],
)
def test_the_command_answers_in_one_line_with_code_2(command, tmp_path, arguments, said):
    done = command("vllm", *arguments, env={"NVFP4_CACHE": str(tmp_path)})
    assert done.returncode == 2 and said in done.stderr and len(done.stderr.splitlines()) == 1
