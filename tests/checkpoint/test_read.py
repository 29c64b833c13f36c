"""Opening by name, and what a Checkpoint promises to those who keep it."""

import subprocess
import sys

import pytest

from helpers.checkpoint import from_configs, known_checkpoints, open_checkpoint
from helpers.errors import InputError, UsageError
from helpers.paths import CHECKPOINTS


def test_known_names_open_under_their_name():
    known = known_checkpoints()
    assert "qwen3.5-moe-mixed" in known and "nvidia--Qwen3.5-397B-A17B-NVFP4" in known
    for name, line in known.items():
        checkpoint = open_checkpoint(name)
        assert checkpoint.name == name and line
        assert (checkpoint.tensors is not None) == (line == "bundled export")
        assert (checkpoint.path is None) == line.startswith("public")


def test_the_public_configurations_are_21_pairs_and_one_without_a_second_file():
    public = {name: open_checkpoint(name) for name in known_checkpoints() if name.startswith("nvidia--")}
    assert len(public) == 22
    assert [name for name, checkpoint in public.items() if checkpoint.hf_quant is None] == ["nvidia--Kimi-K2.5-NVFP4"]


def test_a_folder_opens_by_path_from_anywhere(monkeypatch, tmp_path):
    monkeypatch.chdir(CHECKPOINTS)
    for given in (CHECKPOINTS / "qwen3-moe-mixed", str(CHECKPOINTS / "qwen3-moe-mixed"), "./qwen3-moe-mixed"):
        checkpoint = open_checkpoint(given)
        assert (checkpoint.name, len(checkpoint.tensors), checkpoint.architecture) == ("qwen3-moe-mixed", 233, "Qwen3MoeForCausalLM")


@pytest.mark.parametrize(
    ("name", "error", "says"),
    [
        ("qwen3.5-moe-mixd", UsageError, "unknown checkpoint 'qwen3.5-moe-mixd': did you mean qwen3.5-moe-mixed"),
        ("zzz", UsageError, "unknown checkpoint 'zzz'; name a folder, a hub id (org/name), or a bundled one such as "),
        ("/nonexistent/model", UsageError, "no folder '/nonexistent/model'"),
        ("./nonexistent", UsageError, "no folder './nonexistent'"),
        ("a/b/c", UsageError, "no folder 'a/b/c'"),
        ("", UsageError, "no folder ''"),
        ("../checkpoints/qwen3-moe-mixed", UsageError, "no folder '../checkpoints/qwen3-moe-mixed'"),
        ("README.md", UsageError, "unknown checkpoint 'README.md'"),
        ("nvidia--GLM-5.3-NVFP4", InputError, "both files are those of GLM-5.2-NVFP4"),
        ("nvidia--NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4", InputError, "is a stub of 100 bytes"),
    ],
)
def test_what_cannot_be_opened_is_one_line(tmp_path, monkeypatch, name, error, says):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error) as caught:
        open_checkpoint(name)
    assert says in str(caught.value) and "\n" not in str(caught.value) and len(str(caught.value)) < 400


@pytest.mark.parametrize("name", ["x" * 300, "x/" + "y" * 300, "~nobody-of-this-name/model", "a\0b", "/a\0b"])
def test_impossible_paths_are_one_line(name):
    with pytest.raises((InputError, UsageError)) as caught:
        open_checkpoint(name)
    assert "\n" not in str(caught.value)


def test_a_folder_that_may_not_be_listed(tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text("{}")

    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("os.listdir", refuse)  # root may list everything, so a mode would not do
    with pytest.raises(InputError, match=r"cannot be read \(Permission denied\); check the path and its permissions"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("file", ["config.json", "hf_quant_config.json"])
def test_a_circle_of_links_instead_of_a_configuration(tmp_path, file):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / file).unlink(missing_ok=True)
    (tmp_path / file).symlink_to(file)
    with pytest.raises(InputError, match=r"has no config\.json|cannot be opened \(Too many levels of symbolic links\)"):
        open_checkpoint(tmp_path)


def test_a_file_instead_of_a_folder(tmp_path):
    (tmp_path / "model.safetensors").write_text("x")
    with pytest.raises(InputError, match="a file where a checkpoint's folder is needed"):
        open_checkpoint(tmp_path / "model.safetensors")


def test_a_checkpoint_is_hashed_by_identity_and_works_out_each_thing_once():
    config = {"architectures": ["A"], "quantization_config": {"quant_algo": "NVFP4"}}
    one, other = from_configs("x", config), from_configs("x", config)
    assert one != other and len({one, other, one}) == 2
    assert one.layer_map is one.layer_map and one.text_config is config and one.findings is one.findings


def test_from_configs_reads_nothing_until_it_is_asked():
    checkpoint = from_configs("broken", {"quantization_config": [], "num_experts": "many"})
    assert set(vars(checkpoint)) == {"name", "path", "config", "hf_quant", "tensors", "reading", "source"}
    with pytest.raises(InputError):
        _ = checkpoint.layer_map
    with pytest.raises(InputError):
        _ = checkpoint.geometry


@pytest.mark.parametrize(("architectures", "first"), [(["A", "B"], "A"), ([], ""), (None, ""), ("A", ""), ([1], "")])
def test_the_architecture_is_the_first_or_nothing(architectures, first):
    assert from_configs("x", {"architectures": architectures}).architecture == first


def test_nested_dimensions_and_the_quantisation_at_the_top():
    checkpoint = open_checkpoint("nvidia--Kimi-K2.5-NVFP4")
    assert checkpoint.text_config is checkpoint.config["text_config"]
    assert checkpoint.inline_quant is checkpoint.config["quantization_config"]
    assert from_configs("x", {"text_config": None, "hidden_size": 1}).text_config == {"text_config": None, "hidden_size": 1}


HEAVY = {"torch", "numpy", "pandas", "matplotlib", "papermill", "huggingface_hub", "transformers", "safetensors", "aiconfigurator_core"}


def test_reading_configurations_imports_nothing_heavy():
    code = "import sys, helpers.checkpoint as c; c.open_checkpoint('qwen3.5-397b-v2-config').findings; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert HEAVY & set(run.stdout.split()) == set()
