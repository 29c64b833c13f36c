"""Which files belong to a checkpoint, and what a stranger may have done to them."""

import json
import os
import struct
import threading
import tomllib

import pytest

from helpers.checkpoint import open_checkpoint
from helpers.checkpoint.shards import MISSING_FILES_IGNORED, MISSING_FILES_REFUSED, parse_index, read_index_shards
from helpers.errors import InputError
from helpers.paths import DATA


def write_shard(path, names, size=8):
    header = {name: {"dtype": "U8", "shape": [size], "data_offsets": [i * size, (i + 1) * size]} for i, name in enumerate(names)}
    raw = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + b"\0" * (size * len(names)))


@pytest.fixture
def folder(tmp_path):
    """Two shards with an index: tensors a and b in the first, c in the second."""
    made = tmp_path / "model"
    made.mkdir()
    (made / "config.json").write_text('{"architectures": ["X"]}')
    write_shard(made / "model-00001-of-00002.safetensors", ["a", "b"])
    write_shard(made / "model-00002-of-00002.safetensors", ["c"])
    write_index(made, {"a": 1, "b": 1, "c": 2})
    return made


def write_index(folder, numbers):
    weight_map = {name: f"model-0000{n}-of-00002.safetensors" if isinstance(n, int) else n for name, n in numbers.items()}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": 24}, "weight_map": weight_map}))


def findings(folder):
    return {finding.id: finding for finding in open_checkpoint(folder).reading}


def test_one_file(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    write_shard(tmp_path / "model.safetensors", ["a"])
    checkpoint = open_checkpoint(tmp_path)
    assert (list(checkpoint.tensors), checkpoint.tensors.shard("a"), checkpoint.reading) == (["a"], "model.safetensors", ())


def test_sharded_with_index(folder):
    checkpoint = open_checkpoint(folder)
    table = checkpoint.tensors
    assert (list(table), len(table), table.complete, checkpoint.reading) == (["a", "b", "c"], 3, True, ())
    assert (table.shard("b"), table.shard("c"), table.offsets("b")) == (
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        (8, 16),
    )
    assert "c" in table and "d" not in table


def test_sharded_without_index(folder):
    (folder / "model.safetensors.index.json").unlink()
    assert list(open_checkpoint(folder).tensors) == ["a", "b", "c"]
    assert findings(folder) == {}


def test_a_missing_shard_that_the_index_names(folder):
    (folder / "model-00002-of-00002.safetensors").unlink()
    checkpoint = open_checkpoint(folder)
    found = {finding.severity: finding for finding in checkpoint.reading}
    assert set(found) == {"fails_to_load", "wrong_output"}
    # sglang 0.5.17 is the first to compare the folder with the index.
    assert (found["fails_to_load"].releases[0], found["wrong_output"].releases[-1]) == ("0.5.17", "0.5.16")
    assert all("model-00002-of-00002.safetensors" in finding.observed and finding.stage == "load" for finding in checkpoint.reading)
    assert checkpoint.tensors.complete is False


def test_a_gap_in_the_numbers_is_wrong_output_because_no_release_looks_for_it(folder):
    (folder / "model-00001-of-00002.safetensors").unlink()
    (folder / "model.safetensors.index.json").unlink()
    found = findings(folder)["load.shard_missing"]
    assert (found.severity, found.releases, found.observed) == ("wrong_output", (), "missing: model-00001-of-00002.safetensors")
    assert open_checkpoint(folder).tensors.complete is False


def test_the_releases_of_a_finding_are_all_that_the_suite_knows():
    known = [entry["version"] for entry in tomllib.loads((DATA / "releases.toml").read_text())["release"]]
    assert [*MISSING_FILES_IGNORED, *MISSING_FILES_REFUSED] == known


def test_shards_may_be_numbered_from_zero(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    for number in (0, 1):
        write_shard(tmp_path / f"model-0000{number}-of-00002.safetensors", [f"t{number}"])
    assert findings(tmp_path) == {}


def test_files_that_the_index_does_not_name_are_left_out_as_sglang_does(folder):
    write_shard(folder / "consolidated.safetensors", ["a", "b", "c"])
    assert list(open_checkpoint(folder).tensors) == ["a", "b", "c"]
    assert findings(folder)["load.shard_not_in_index"].severity == "note"


def test_consolidated_beside_model_without_index_is_left_out_as_sglang_does(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    write_shard(tmp_path / "consolidated.safetensors", ["other"])
    write_shard(tmp_path / "model.safetensors", ["a"])
    assert list(open_checkpoint(tmp_path).tensors) == ["a"]


def test_a_tensor_in_two_files(folder):
    write_shard(folder / "model-00002-of-00002.safetensors", ["c", "a"])
    found = findings(folder)["load.tensor_in_two_files"]
    assert found.severity == "abstained"
    assert found.observed == "in more than one file: a"
    assert found.read == "model-00001-of-00002.safetensors, model-00002-of-00002.safetensors"


def test_a_tensor_twice_in_one_header(folder):
    header = b'{"c":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},"c":{"dtype":"I8","shape":[8],"data_offsets":[0,8]}}'
    (folder / "model-00002-of-00002.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"\0" * 8)
    assert findings(folder)["load.tensor_given_twice"].severity == "abstained"


def test_a_truncated_file_keeps_its_names_and_is_a_finding(folder):
    path = folder / "model-00001-of-00002.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    found = findings(folder)["load.file_refused"]
    assert (found.severity, found.read) == ("fails_to_load", path.name)
    assert found.observed == "the tensors take 16 bytes, and the file has 15 after its header"
    assert list(open_checkpoint(folder).tensors) == ["a", "b", "c"]


def test_an_unreadable_header_leaves_the_other_files_and_says_that_the_table_is_not_complete(folder):
    (folder / "model-00001-of-00002.safetensors").write_bytes(struct.pack("<Q", 10**6) + b"{}")
    assert findings(folder)["load.file_refused"].severity == "fails_to_load"
    table = open_checkpoint(folder).tensors
    assert (list(table), table.complete) == (["c"], False)


@pytest.mark.parametrize("name", ["../../x", "/etc/passwd", "..", "sub/model.safetensors", "..\\x", "", "a\u0000b"])
def test_an_index_that_leads_out_of_the_folder_is_refused(folder, name):
    write_index(folder, {"a": 1, "b": 1, "c": name})
    with pytest.raises(InputError, match="which is not a file of this folder; restore the model's own index"):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "not JSON"),
        ("[]", "has no weight_map"),
        ("{}", "has no weight_map"),
        ('{"weight_map": []}', "has no weight_map"),
        ('{"weight_map": {"a": 1}}', "has no weight_map"),
        ('{"weight_map": {"a": "x", "b": 1}}', "has no weight_map"),
        ('{"a":' * 100_000, "nested too deeply"),
    ],
)
def test_a_broken_index_is_one_line(folder, content, says):
    (folder / "model.safetensors.index.json").write_text(content)
    with pytest.raises(InputError, match=says) as caught:
        open_checkpoint(folder)
    assert "\n" not in str(caught.value)


def test_the_fast_way_through_the_index_gives_what_a_full_parse_gives(folder):
    weight_map = {"a:b": "x.safetensors", "c": "y.safetensors", ' : ""'[:3]: "z.safetensors", "\\": "w.safetensors"}
    index = folder / "model.safetensors.index.json"
    index.write_text('{"weight_map": {"a": "\\u0078.safetensors"}}')
    assert read_index_shards(index) == {"x.safetensors"}
    for dropped in ("", "\\"):
        kept = {name: shard for name, shard in weight_map.items() if name != dropped}
        for text in (json.dumps({"weight_map": kept}), json.dumps({"weight_map": kept, "metadata": {"weight_map": "no"}}, indent=3)):
            index.write_text(text)
            assert read_index_shards(index) == set(parse_index(text.encode(), index).values()) == set(kept.values())


def test_links_of_the_hub_cache_are_followed(tmp_path):
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "0123abc"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    (blobs / "c").write_text("{}")
    write_shard(blobs / "t", ["a"])
    (snapshot / "config.json").symlink_to("../../blobs/c")
    (snapshot / "model.safetensors").symlink_to("../../blobs/t")
    assert list(open_checkpoint(snapshot).tensors) == ["a"]


def test_a_link_out_of_the_folder_is_refused(folder, tmp_path):
    write_shard(tmp_path / "elsewhere", ["c"])
    path = folder / "model-00002-of-00002.safetensors"
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="a link out of the checkpoint"):
        open_checkpoint(folder)


@pytest.mark.parametrize("target", ["model-00002-of-00002.safetensors", "nowhere"])
def test_a_circle_of_links_and_a_dangling_one(folder, target):
    path = folder / "model-00002-of-00002.safetensors"
    path.unlink()
    path.symlink_to(target)
    with pytest.raises(InputError, match="the link cannot be followed"):
        open_checkpoint(folder)


def test_a_circle_of_links_as_index(folder):
    index = folder / "model.safetensors.index.json"
    index.unlink()
    index.symlink_to(index.name)
    with pytest.raises(InputError, match="cannot be opened"):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    "name", ["config.json", "hf_quant_config.json", "model.safetensors.index.json", "model-00001-of-00002.safetensors"]
)
def test_a_pipe_is_refused_and_not_waited_for(folder, name):
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    outcome = []

    def read():
        try:
            open_checkpoint(folder)
        except InputError as error:
            outcome.append(str(error))

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    thread.join(10)
    assert outcome and "not a regular file" in outcome[0]


def test_a_directory_instead_of_a_file(folder):
    path = folder / "model-00001-of-00002.safetensors"
    path.unlink()
    path.mkdir()
    with pytest.raises(InputError, match="not a regular file"):
        open_checkpoint(folder)


def test_an_unreadable_file(folder, monkeypatch):
    path = folder / "model-00001-of-00002.safetensors"
    path.chmod(0)
    if os.access(path, os.R_OK):  # root reads everything: let the system call refuse instead
        real = os.open

        def refuse(target, *rest, **more):
            if str(target) == str(path):
                raise PermissionError(13, "Permission denied")
            return real(target, *rest, **more)

        monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(InputError, match=r"cannot be opened \(Permission denied\); check the link, the permissions and the path"):
        open_checkpoint(folder)


def test_an_index_without_files_is_configurations_only(folder):
    for path in folder.glob("*.safetensors"):
        path.unlink()
    checkpoint = open_checkpoint(folder)
    assert checkpoint.tensors is None
    assert {finding.id: finding.severity for finding in checkpoint.reading} == {"load.no_safetensors": "note"}


def test_pickled_weights_are_named_and_never_opened(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    os.mkfifo(tmp_path / "pytorch_model.bin")  # opening it would block
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.tensors is None
    assert "pickled weights only (pytorch_model.bin)" in checkpoint.reading[0].observed
