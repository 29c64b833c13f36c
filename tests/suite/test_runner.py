"""The runner survives what notebooks do, and says what happened: real notebooks, real kernels, real signals."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from xml.etree import ElementTree

import jsonschema
import nbformat
import pytest

from helpers.errors import InputError
from helpers.paths import ROOT
from helpers.suite import parameters
from helpers.suite.cli import main
from helpers.suite.notebooks import ordered, select
from helpers.suite.record import CODES, SCHEMA
from helpers.suite.runner import _link

PASSING = ["check('a.one', 1, 1, 'one is one')", "finish()"]
LIMITS = """\
[limits]
notebook = 60
cell = 3
start = 60
[slow_notebook]
cell = 60
notebook = 3
[zz_last]
last = true
"""
# A notebook that ends in each way there is: its cells, and the state and the checks that must be on record.
ENDINGS = {
    "passes": (PASSING, "pass", {"a.one": "pass"}),
    "fails": (
        ["check('a.one', 1, 2, 'one is two')", "if 1 > 2:\n    check('a.never', 1, 1, 'x')\ncheck('a.two', 2, 2, 'goes on')\nfinish()"],
        "fail",
        {"a.one": "fail", "a.two": "pass", "a.never": "not_run"},
    ),
    "not_run": (["not_run('a.gpu', 'needs a B200')", *PASSING], "pass", {"a.gpu": "not_run", "a.one": "pass"}),
    "conditional": (["if 1 > 2:\n    check('a.never', 1, 1, 'x')", *PASSING], "pass", {"a.one": "pass", "a.never": "not_run"}),
    "known_bad": (["known_bad('a.bug', 1, 2, 'off by one', 'issue 7')", *PASSING], "pass", {"a.bug": "known_bad", "a.one": "pass"}),
    "raises": (
        [PASSING[0], "1 / 0\ncheck('a.two', 1, 1, 'after the error')", "check('a.three', 1, 1, 'later')\nfinish()"],
        "error",
        {"a.one": "pass", "a.two": "error", "a.three": "not_reached"},
    ),
    "killed": (
        [
            PASSING[0],
            "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\ncheck('a.two', 1, 1, 'never')",
            "check('a.three', 1, 1, 'x')",
        ],
        "kernel_died",
        {"a.one": "pass", "a.two": "error", "a.three": "not_reached"},
    ),
    "slow_cell": (
        [PASSING[0], "import time\ntime.sleep(600)\ncheck('a.two', 1, 1, 'never')", "finish()"],
        "time_limit",
        {"a.one": "pass", "a.two": "error"},
    ),
    "slow_notebook": ([PASSING[0], *["import time\ntime.sleep(1)"] * 60, "finish()"], "time_limit", {"a.one": "pass"}),
    "checks_nothing": (["finish()"], "error", {}),
    "never_concludes": ([PASSING[0], "1 + 1"], "error", {"a.one": "pass"}),
    "exits_quietly": (
        [PASSING[0], "import sys\nsys.exit(0)", "check('a.two', 1, 1, 'x')\nfinish()"],
        "error",
        {"a.one": "pass", "a.two": "not_reached"},
    ),
    "usage": (["from helpers.errors import UsageError\nraise UsageError('asked wrongly')", *PASSING], "error", {"a.one": "not_reached"}),
    "fails_then_raises": (["check('a.one', 1, 2, 'x')", "1 / 0", "finish()"], "error", {"a.one": "fail"}),
    "zz_last": (
        [
            "from helpers.suite import results\nnames = [notebook['name'] for notebook in results.read()['notebooks']]",
            "check('a.others', len(names), 14, 'the others were done and on record')",
            "finish()",
        ],
        "pass",
        {"a.others": "pass"},
    ),
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory, command, write_notebook):
    """One run of all of them: (folder, CompletedProcess)."""
    source, out = tmp_path_factory.mktemp("notebooks"), tmp_path_factory.mktemp("out {braces}") / "run"
    (source / "suite.toml").write_text(LIMITS)
    paths = [write_notebook(source / f"{name}.ipynb", cells) for name, (cells, _, _) in ENDINGS.items()]
    return out, command("run", *paths, "--jobs", "2", "--out", out)


@pytest.fixture(scope="module")
def result(finished):
    return json.loads((finished[0] / "result.json").read_text())


@pytest.fixture(scope="module")
def records(result):
    return {notebook["name"]: notebook for notebook in result["notebooks"]}


def executed(finished, name: str) -> nbformat.NotebookNode:
    return nbformat.read(finished[0] / "notebooks" / f"{name}.ipynb", as_version=4)


@pytest.mark.parametrize("name", ENDINGS)
def test_each_ending_is_on_record(records, name):
    _, state, checks = ENDINGS[name]
    assert records[name]["state"] == state, records[name]["reason"]
    assert {check["id"]: check["state"] for check in records[name]["checks"]} == checks


def test_reasons_name_the_cause(records):
    assert "SIGKILL" in records["killed"]["reason"]
    assert "3 s" in records["slow_cell"]["reason"] and "3 s" in records["slow_notebook"]["reason"]
    assert records["raises"]["reason"] == "ZeroDivisionError: division by zero"
    assert records["usage"]["reason"] == "UsageError: asked wrongly"
    assert records["fails"]["reason"] == "failed: a.one"


def test_the_most_urgent_code_wins(finished, result):
    assert finished[1].returncode == result["exit_code"] == CODES["kernel_died"] == 138


def test_the_terminal_shows_progress_and_no_traceback(finished):
    _, process = finished
    assert "[15/15] zz_last" in process.stderr
    assert "Traceback" not in process.stderr + process.stdout
    assert re.search(r"^killed +kernel died", process.stdout, re.M)


def test_the_record_follows_its_schema(result):
    jsonschema.validate(result, json.loads(SCHEMA.read_text()))


@pytest.mark.parametrize("name", ["killed", "slow_cell", "slow_notebook"])
def test_the_kept_notebook_does_not_claim_what_did_not_happen(finished, records, name):
    notebook = executed(finished, name)
    reached = records[name]["cell"]
    assert notebook.metadata.papermill.exception is True
    assert [cell.metadata.papermill.status for cell in notebook.cells[reached:]][:2] == ["failed", "pending"]
    assert all(cell.metadata.papermill.status == "pending" for cell in notebook.cells[reached + 1 :])
    assert all(cell.metadata.papermill.status == "completed" for cell in notebook.cells[:reached])


def test_nothing_kept_names_a_folder_of_this_machine(finished):
    for path in finished[0].rglob("*.*"):
        if path.suffix in (".ipynb", ".json", ".xml", ".html"):
            assert str(finished[0]) not in path.read_text(), path


def test_junit_counts_what_the_record_counts(finished, records):
    suites = {suite.get("name"): suite for suite in ElementTree.parse(finished[0] / "junit.xml").getroot()}
    assert suites.keys() == records.keys()
    assert suites["fails"].get("failures") == "1" and suites["fails"].get("errors") == "0"
    assert suites["not_run"].get("skipped") == "1"
    # The check of the cell that died, and the death itself.
    assert suites["killed"].get("errors") == "2"
    assert suites["killed"].find("testcase[@name='notebook']/error").get("message").startswith("error: kernel_died")


def test_the_fingerprint_names_versions_and_sources(finished):
    environment = json.loads((finished[0] / "env.json").read_text())
    assert environment["python"] == ".".join(map(str, sys.version_info[:3]))
    assert environment["packages"]["papermill"]
    assert environment["notebooks"].keys() == ENDINGS.keys()


def test_no_intermediate_file_is_left(finished):
    kept = {path.name for path in finished[0].iterdir()}
    assert kept == {"notebooks", "result.json", "env.json", "junit.xml", "index.html"}
    assert not list((finished[0] / "notebooks").glob("*.jsonl"))


@pytest.fixture
def one(tmp_path, write_notebook):
    return write_notebook(tmp_path / "one.ipynb", PASSING)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["-p", "checkpont=x"], "did you mean checkpoint?"),
        (["-p", "tp=two"], "tp=two: not a value of type int"),
        (["-p", "tp"], "write NAME=VALUE"),
        (["-p", "tp=0"], "tp is 0"),
        (["-p", "expect=refusd"], "did you mean refused?"),
        (["-p", "checkpoint=qwen3.5-moe-mixd"], "did you mean qwen3.5-moe-mixed"),
        (["--jobs", "0"], "--jobs 0"),
        (["--jbos", "1"], "did you mean --jobs"),
        (["no_such"], "unknown notebook 'no_such'"),
        (["no_such.ipynb"], "no such notebook"),
    ],
)
def test_what_is_asked_wrongly_is_one_line_before_anything_runs(capsys, one, tmp_path, arguments, says):
    assert main(["run", str(one), "--out", str(tmp_path / "out"), *arguments]) == 2
    errors = capsys.readouterr().err
    assert says in errors and errors.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_an_unreadable_checkpoint_stops_the_run_before_it_begins(capsys, one, tmp_path):
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("[1, 2")
    assert main(["run", str(one), "--out", str(tmp_path / "out"), "-p", f"checkpoint={tmp_path / 'broken'}"]) == 3
    errors = capsys.readouterr().err
    assert errors.count("\n") == 1 and "config.json" in errors
    assert not (tmp_path / "out").exists()


def test_a_used_out_folder_is_refused(capsys, one, tmp_path):
    assert main(["run", str(one), "--out", str(tmp_path)]) == 2
    assert "not an empty folder" in capsys.readouterr().err


def test_a_parameter_goes_only_to_notebooks_that_have_it(command, tmp_path, write_notebook):
    with_it = write_notebook(tmp_path / "with_it.ipynb", ["check('tp', tp, 2, 'an integer as its annotation says')", "finish()"])
    without = write_notebook(tmp_path / "without.ipynb", PASSING, parameters="")
    process = command("run", with_it, without, "-p", "tp=2", "--out", tmp_path / "out")
    assert process.returncode == 0, process.stderr
    records = {notebook["name"]: notebook for notebook in json.loads((tmp_path / "out" / "result.json").read_text())["notebooks"]}
    assert records["with_it"]["parameters"] == {"checkpoint": "qwen3.5-moe-mixed", "tp": 2, "expect": ""}
    assert records["without"]["parameters"] == {}


def test_a_relative_checkpoint_is_found_from_where_the_user_stands(command, tmp_path, write_notebook):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text('{"architectures": ["X"]}')
    cells = ["from pathlib import Path\ncheck('there', (Path(checkpoint) / 'config.json').is_file(), True, 'absolute by now')", "finish()"]
    (tmp_path / "notebooks").mkdir()
    notebook = write_notebook(tmp_path / "notebooks" / "one.ipynb", cells)
    process = command("run", notebook, "-p", "checkpoint=mine", "--out", tmp_path / "out", cwd=tmp_path)
    assert process.returncode == 0, process.stderr


def test_long_notebooks_begin_first_and_the_conclusion_last(tmp_path, write_notebook):
    (tmp_path / "suite.toml").write_text(LIMITS)
    paths = [write_notebook(tmp_path / f"{name}.ipynb", ["1"] * length) for name, length in (("a", 1), ("zz_last", 9), ("b", 5), ("c", 3))]
    assert [notebook.name for notebook in ordered(select([str(path) for path in paths]))] == ["b", "c", "a", "zz_last"]


def test_a_hub_id_is_not_taken_for_a_folder():
    assert parameters._portable({"checkpoint": "nvidia/Qwen3-235B-A22B-NVFP4"})["checkpoint"] == "nvidia/Qwen3-235B-A22B-NVFP4"


@pytest.mark.parametrize(("strict", "code"), [([], 0), (["--strict"], 4)])
def test_strict_makes_unverified_an_exit_code_of_its_own(command, tmp_path, write_notebook, strict, code):
    notebook = write_notebook(tmp_path / "one.ipynb", ["not_run('a.gpu', 'needs a B200')", *PASSING])
    assert command("run", notebook, "--out", tmp_path / "out", *strict).returncode == code


def test_the_kernel_is_this_python_whatever_the_user_has_installed(command, tmp_path, write_notebook):
    spec = tmp_path / "data" / "kernels" / "python3"
    spec.mkdir(parents=True)
    (spec / "kernel.json").write_text(json.dumps({"argv": ["/bin/false"], "display_name": "Wrong", "language": "python"}))
    startup = tmp_path / "ipython" / "profile_default" / "startup"
    startup.mkdir(parents=True)
    (startup / "00.py").write_text("raise SystemExit('a start-up file of the user')")
    notebook = write_notebook(
        tmp_path / "one.ipynb", [f"import sys\ncheck('python', sys.executable, {sys.executable!r}, 'ours')", "finish()"]
    )
    environment = {
        "JUPYTER_DATA_DIR": str(tmp_path / "data"),
        "JUPYTER_PATH": str(tmp_path / "data"),
        "IPYTHONDIR": str(tmp_path / "ipython"),
    }
    process = command("run", notebook, "--out", tmp_path / "out", env=environment)
    assert process.returncode == 0, process.stderr


def test_kernels_are_as_separate_as_if_each_had_been_started_alone(command, tmp_path, write_notebook):
    cells = [
        "import numpy, os, random, sys\nprint('draw', numpy.random.random(), random.random(), os.getpid())",
        "import matplotlib\ncheck('backend', 'inline' in matplotlib.get_backend(), True, 'figures show in the notebook')",
        "check('folder', os.getcwd(), os.path.realpath(os.environ['FOLDER']), 'the folder of the notebook')",
        "check('torch', 'torch' in sys.modules, False, 'nothing heavy is there before it is asked for')",
        "finish()",
    ]
    notebooks = [write_notebook(tmp_path / f"{name}.ipynb", cells) for name in ("first", "second")]
    process = command("run", *notebooks, "--out", tmp_path / "out", env={"FOLDER": str(tmp_path)})
    assert process.returncode == 0, process.stderr
    draws = [
        re.findall(r"draw [\d.]+ [\d.]+ \d+", (tmp_path / "out" / "notebooks" / f"{n}.ipynb").read_text())[0].split()[1:]
        for n in ("first", "second")
    ]
    assert all(first != second for first, second in zip(*draws, strict=True))


def started(tmp_path: Path, write_notebook, *options: str) -> subprocess.Popen:
    """A run of a notebook that is done, one that hangs and one that waits its turn; returns when the second is hanging."""
    done = write_notebook(tmp_path / "done.ipynb", PASSING)
    hangs = write_notebook(
        tmp_path / "hangs.ipynb",
        ["check('a.pid', 1, 1, 'x')", f"import os, time\nopen({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)"],
    )
    waits = write_notebook(tmp_path / "waits.ipynb", PASSING)
    line = [sys.executable, "-m", "helpers", "run", str(done), str(hangs), str(waits), "--jobs", "1", "--out", str(tmp_path / "out")]
    process = subprocess.Popen(line, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    deadline = time.monotonic() + 120
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.1)
    return process


def gone(pid: int) -> bool:
    """Has the process ended (a zombie that nobody has waited for yet counts)?"""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_keeps_what_is_done_and_leaves_no_process(tmp_path, write_notebook, number):
    process = started(tmp_path, write_notebook)
    # What a terminal does on Ctrl-C: the signal goes to the whole foreground process group.
    os.killpg(process.pid, number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    states = {notebook["name"]: notebook["state"] for notebook in json.loads((tmp_path / "out" / "result.json").read_text())["notebooks"]}
    assert states == {"done": "pass", "hangs": "interrupted", "waits": "interrupted"}
    assert (tmp_path / "out" / "index.html").is_file()
    assert gone(int((tmp_path / "pid").read_text()))


def test_nothing_outlives_a_killed_runner(tmp_path, write_notebook, monkeypatch):
    short = tempfile.mkdtemp()  # the path of a socket may not be as long as pytest's folders
    monkeypatch.setenv("TMPDIR", short)
    process = started(tmp_path, write_notebook)
    assert os.listdir(short)
    process.kill()
    process.communicate()
    kernel, deadline = int((tmp_path / "pid").read_text()), time.monotonic() + 30
    while not gone(kernel) or os.listdir(short):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    os.rmdir(short)


def test_a_full_disk_is_one_line(command, one, tmp_path):
    def small_files():
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))

    process = command("run", one, "--out", tmp_path / "out", preexec_fn=small_files)
    assert process.returncode == 3
    assert "Traceback" not in process.stderr
    assert process.stderr.splitlines()[-1].startswith("python -m helpers: error: ")


def test_latest_is_replaced_whole(tmp_path):
    """Whoever reads the link while it is replaced, again and again, finds a run behind it."""
    names = ["first", "second"]
    for name in names:
        (tmp_path / name).mkdir()
    _link(tmp_path / "latest", tmp_path / "first")
    writer = threading.Thread(target=lambda: [_link(tmp_path / "latest", tmp_path / name) for name in names * 500])
    writer.start()
    seen = set()
    while writer.is_alive():
        seen.add(os.readlink(tmp_path / "latest"))
    writer.join()
    assert seen <= set(names) and os.readlink(tmp_path / "latest") == "second"
    assert {path.name for path in tmp_path.iterdir()} == {"first", "second", "latest"}


def test_a_folder_called_latest_is_not_destroyed(tmp_path):
    (tmp_path / "latest").mkdir()
    (tmp_path / "latest" / "mine").touch()
    with pytest.raises(InputError, match="latest"):
        _link(tmp_path / "latest", tmp_path / "run")
    assert [path.name for path in tmp_path.iterdir()] == ["latest"]
