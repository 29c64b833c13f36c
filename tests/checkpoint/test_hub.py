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

from helpers.checkpoint import open_checkpoint
from helpers.paths import CHECKPOINTS

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SOURCE = CHECKPOINTS / "qwen3-moe-mixed"

ASK = """
import json, sys
from helpers.checkpoint import open_checkpoint
from helpers.errors import InputError, UsageError
try:
    checkpoint = open_checkpoint(sys.argv[1])
except (InputError, UsageError) as error:
    print(json.dumps({"error": type(error).__name__, "message": str(error)}))
else:
    rows = None if checkpoint.tensors is None else [list(row) for row in checkpoint.tensors.rows()]
    print(json.dumps({"name": checkpoint.name, "source": checkpoint.source, "path": checkpoint.path, "rows": rows,
                      "algorithm": checkpoint.layer_map.quant_algo, "findings": [f.id for f in checkpoint.findings]}))
"""


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
        headers = {"ETag": f'"{found.group(3)}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
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
        if revision not in (None, "main", COMMIT):
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
def ask(hub, tmp_path):
    """ask(name): open it in a fresh process that knows only this hub, because huggingface_hub reads HF_ENDPOINT when it is imported."""

    def make(name, **more):
        environment = {key: value for key, value in os.environ.items() if not key.upper().startswith(("HF_", "HUGGING"))}
        environment |= {
            "HF_ENDPOINT": f"http://127.0.0.1:{hub.server_address[1]}",
            "HF_HOME": str(tmp_path / "hf"),
            "HF_HUB_DISABLE_XET": "1",
        }
        environment |= {"XDG_CACHE_HOME": str(tmp_path / "cache"), "NO_PROXY": "127.0.0.1", **more}
        run = subprocess.run([sys.executable, "-c", ASK, name], capture_output=True, text=True, env=environment, cwd=tmp_path, check=False)
        assert run.returncode == 0, run.stderr
        return json.loads(run.stdout)

    return make


def test_a_model_is_examined_without_its_weights_and_its_headers_are_fetched_once(hub, ask):
    local = open_checkpoint(SOURCE)
    answer = ask("org/model")
    assert answer["rows"] == [[name, dtype, list(shape)] for name, dtype, shape in local.tensors.rows()]
    assert (answer["name"], answer["source"], answer["path"]) == ("org/model", f"hub: org/model@{COMMIT}", None)
    assert (answer["algorithm"], answer["findings"]) == ("MIXED_PRECISION", [])
    weights = len(hub.repositories["org/model"]["model.safetensors"])
    assert 0 < hub.sent["model.safetensors"] < weights / 2
    before = hub.sent["model.safetensors"]
    assert ask(f"org/model@{COMMIT}")["rows"] == answer["rows"]
    assert hub.sent["model.safetensors"] == before


def test_a_header_longer_than_the_first_request_is_fetched_to_its_end(hub, ask):
    header = {f"tensor {number:06d}": {"dtype": "U8", "shape": [1], "data_offsets": [number, number + 1]} for number in range(3000)}
    raw = json.dumps(header).encode()
    assert len(raw) > 2**17
    hub.repositories["org/model"]["model.safetensors"] = len(raw).to_bytes(8, "little") + raw + b"\0" * 3000
    assert [row[0] for row in ask("org/model")["rows"]] == list(header)


def test_a_server_that_ignores_ranges_gives_the_same_in_one_request(hub, ask):
    hub.behaviour = "whole"
    content = hub.repositories["org/model"]["model.safetensors"]
    assert len(ask("org/model")["rows"]) == len(list(open_checkpoint(SOURCE).tensors))
    assert hub.sent["model.safetensors"] == len(content)


def test_sharded_by_an_index_and_a_shard_that_is_missing(hub, ask):
    files = hub.repositories["org/model"]
    files["model-00001-of-00002.safetensors"] = files.pop("model.safetensors")
    weight_map = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    files["model.safetensors.index.json"] = json.dumps({"weight_map": weight_map}).encode()
    assert "load.shard_missing" in ask("org/model")["findings"]


def test_a_truncated_shard_on_the_hub_is_a_finding(hub, ask):
    hub.repositories["org/model"]["model.safetensors"] = (10**6).to_bytes(8, "little") + b"{}"
    assert ask("org/model")["findings"][0] == "load.file_refused"


def test_configurations_alone(hub, ask):
    assert ask("org/configs")["rows"] is None


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
    answer = ask(name)
    assert answer["error"] == "InputError" and says in answer["message"] and "\n" not in answer["message"]


def test_no_network_is_one_line_with_a_remedy(ask):
    for more in ({"HF_ENDPOINT": "http://127.0.0.1:9"}, {"HF_HUB_OFFLINE": "1"}):
        answer = ask("org/model", **more)
        assert answer["error"] == "InputError" and "\n" not in answer["message"]
        assert "cannot be read" in answer["message"] and "check the network, or name a folder that has the checkpoint" in answer["message"]


def test_bad_content_on_the_hub_is_one_line(hub, ask):
    hub.repositories["org/model"]["config.json"] = b"[]"
    assert "a JSON list where an object is needed" in ask("org/model")["message"]
    del hub.repositories["org/model"]["config.json"]
    assert "has no config.json" in ask("org/model")["message"]


def test_a_commit_that_would_lead_out_of_the_cache_is_refused(hub, ask):
    hub.commit = "../../../escape"
    assert "which is none" in ask("org/model")["message"]
