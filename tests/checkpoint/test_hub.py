"""A hub id, asked of a server on this machine that imitates the hub's few endpoints and counts the bytes it sends."""

import json
import os
import re
import subprocess
import sys
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from huggingface_hub import constants

from helpers.checkpoint import open_checkpoint
from helpers.checkpoint.hub import FIRST_BYTES
from helpers.errors import InputError
from helpers.paths import CHECKPOINTS

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SOURCE = CHECKPOINTS / "qwen3-moe-mixed"


class Hub(BaseHTTPRequestHandler):
    """server.repositories: id -> {file: bytes}; server.behaviour: "ranges", or "whole" for a server that ignores them."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.answer(send_body=False)

    def do_GET(self):
        self.answer(send_body=True)

    def answer(self, send_body):
        path = self.path.partition("?")[0]
        asked = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path)
        if asked:
            return self.information(*asked.groups())
        found = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        content = self.server.repositories.get(found.group(1), {}).get(found.group(3)) if found else None
        if content is None:
            return self.reply(404, b"", {"X-Error-Code": "EntryNotFound"}, send_body)
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        headers = {"ETag": f'"{found.group(3)}"', "X-Repo-Commit": self.server.commit, "Accept-Ranges": "bytes"}
        if wanted and self.server.behaviour == "ranges":
            start, end = int(wanted.group(1)), min(int(wanted.group(2)), len(content) - 1)
            part = content[start : end + 1]
            headers["Content-Range"] = f"bytes {start}-{end}/{len(content)}"
            self.server.sent[found.group(3)] += len(part) if send_body else 0
            return self.reply(206, part, headers, send_body)
        self.server.sent[found.group(3)] += len(content) if send_body else 0
        return self.reply(200, content, headers, send_body)

    def information(self, repository, revision):
        self.server.sent["information"] += 1
        if repository == "org/gated":
            return self.reply(403, b"{}", {"X-Error-Code": "GatedRepo"}, True)
        if repository not in self.server.repositories:
            return self.reply(401, b"{}", {"X-Error-Code": "RepoNotFound"}, True)
        if revision not in (None, "main", self.server.commit):
            return self.reply(404, b"{}", {"X-Error-Code": "RevisionNotFound"}, True)
        files = [{"rfilename": name, "size": len(content)} for name, content in self.server.repositories[repository].items()]
        body = {"id": repository, "modelId": repository, "sha": self.server.commit, "siblings": files, "tags": [], "private": False}
        return self.reply(200, json.dumps(body).encode(), {"Content-Type": "application/json"}, True)

    def reply(self, status, body, headers, send_body):
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if send_body:
            self.wfile.write(body)


@pytest.fixture
def hub():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.daemon_threads = True
    files = {path.name: path.read_bytes() for path in SOURCE.iterdir() if path.suffix in (".json", ".safetensors")}
    server.repositories = {"org/model": files, "org/configs": {name: files[name] for name in ("config.json", "hf_quant_config.json")}}
    server.behaviour, server.sent, server.commit = "ranges", Counter(), COMMIT
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def ask(hub, tmp_path, monkeypatch):
    """ask(name): open it with this hub as the only one, and caches of its own."""
    endpoint = f"http://127.0.0.1:{hub.server_address[1]}"
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", endpoint + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return open_checkpoint


def refused(ask, name) -> str:
    with pytest.raises(InputError) as caught:
        ask(name)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_model_is_examined_without_its_weights_and_its_headers_are_fetched_once(hub, ask):
    local, remote = open_checkpoint(SOURCE), ask("org/model")
    assert list(remote.tensors.rows()) == list(local.tensors.rows())
    assert (remote.config, remote.hf_quant) == (local.config, local.hf_quant)
    assert (remote.name, remote.source, remote.path, remote.findings) == ("org/model", f"hub: org/model@{COMMIT}", None, ())
    sent = hub.sent["model.safetensors"]
    assert 0 < sent < len(hub.repositories["org/model"]["model.safetensors"]) / 2
    assert list(ask(f"org/model@{COMMIT}").tensors) == list(local.tensors)
    assert hub.sent["model.safetensors"] == sent


def test_the_endpoint_of_the_environment_is_asked(hub, tmp_path):
    kept = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    endpoint = {"HF_ENDPOINT": f"http://127.0.0.1:{hub.server_address[1]}", "HF_HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    code = "from helpers.checkpoint import open_checkpoint; print(len(open_checkpoint('org/model').tensors))"
    command = [sys.executable, "-c", code]
    run = subprocess.run(
        command, capture_output=True, text=True, env=kept | endpoint | {"HF_HUB_DISABLE_XET": "1"}, cwd=tmp_path, check=True
    )
    assert run.stdout.strip() == "233"


def test_a_header_longer_than_the_first_request_is_fetched_to_its_end(hub, ask):
    header = {f"tensor {number:06d}": {"dtype": "U8", "shape": [1], "data_offsets": [number, number + 1]} for number in range(3000)}
    raw = json.dumps(header).encode()
    assert len(raw) > FIRST_BYTES
    for behaviour, commit in (("ranges", COMMIT), ("whole", COMMIT[::-1])):
        hub.behaviour, hub.commit = behaviour, commit
        hub.repositories["org/model"]["model.safetensors"] = len(raw).to_bytes(8, "little") + raw + b"\0" * 3000
        assert list(ask("org/model").tensors) == list(header)


def test_a_server_that_ignores_ranges_gives_the_same(hub, ask):
    hub.behaviour = "whole"
    assert list(ask("org/model").tensors) == list(open_checkpoint(SOURCE).tensors)


def test_sharded_by_an_index_and_a_shard_that_is_missing(hub, ask):
    files = hub.repositories["org/model"]
    files["model-00001-of-00002.safetensors"] = files.pop("model.safetensors")
    weight_map = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    files["model.safetensors.index.json"] = json.dumps({"weight_map": weight_map}).encode()
    assert {finding.id for finding in ask("org/model").reading} == {"load.shard_missing"}


def test_a_broken_shard_on_the_hub_is_a_finding(hub, ask):
    hub.repositories["org/model"]["model.safetensors"] = (10**6).to_bytes(8, "little") + b"{}"
    assert [finding.id for finding in ask("org/model").reading] == ["load.file_refused"]


def test_configurations_alone(ask):
    assert ask("org/configs").tensors is None


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("org/unknown", "org/unknown: no folder here and no model on http://127.0.0.1"),
        ("org/gated", "org/gated: access is restricted; accept its terms on http://127.0.0.1"),
        ("org/model@nowhere", "org/model@nowhere: the model has no such revision; name a branch, tag or commit after the @"),
        ("nvidia/Qwen3.5-397B-A17B-NVFP4", "or open its configurations alone: nvidia--Qwen3.5-397B-A17B-NVFP4"),
    ],
)
def test_what_the_hub_refuses_is_one_line_with_a_remedy(ask, name, says):
    assert says in refused(ask, name)


@pytest.mark.parametrize(("constant", "value"), [("ENDPOINT", "http://127.0.0.1:9"), ("HF_HUB_OFFLINE", True)])
def test_no_network_is_one_line_with_a_remedy(ask, monkeypatch, constant, value):
    monkeypatch.setattr(constants, constant, value)
    message = refused(ask, "org/model")
    assert "cannot be read" in message and "check the network, or name a folder that has the checkpoint" in message


def test_bad_content_on_the_hub_is_one_line(hub, ask):
    hub.repositories["org/model"]["config.json"] = b"[]"
    assert "a JSON list where an object is needed" in refused(ask, "org/model")
    del hub.repositories["org/model"]["config.json"]
    assert "has no config.json" in refused(ask, "org/model")


def test_a_configuration_that_is_too_long_is_not_downloaded(hub, ask, monkeypatch):
    monkeypatch.setattr("helpers.checkpoint.hub.MAX_CONFIG_BYTES", 10)
    assert "more than the 10 that such a file may have" in refused(ask, "org/model")
    assert hub.sent["config.json"] == hub.sent["hf_quant_config.json"] == 0


def test_a_commit_that_would_lead_out_of_the_cache_is_refused(hub, ask):
    hub.commit = "../../../escape"
    assert "which is none" in refused(ask, "org/model")
