"""The command line as a user meets it: answers, exit codes, one-line errors."""

import io
import json
import os
import re
import signal
import subprocess
import sys

import pytest

from helpers.checkpoint import open_checkpoint
from helpers.deployment import GPUS, RELEASES, deployment
from helpers.errors import InputError
from helpers.findings import STAGES
from helpers.paths import ROOT
from helpers.stages.verdict import judge
from helpers.suite import alternatives, cli
from helpers.suite.terminal import Page, colours_on

# The starting case of the suite: SGLang PR 30443, released in 0.5.16.
CUTEDSL = ["qwen3.5-moe-mixed", "--runner", "flashinfer_cutedsl"]
REFUSED = [*CUTEDSL, "--sglang", "0.5.15"]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["qwen3.5-moe-mixed"], 0),
        ([*CUTEDSL, "--sglang", "0.5.16"], 0),
        (REFUSED, 1),
        ([*REFUSED, "--expect", "refused"], 0),
        ([*REFUSED, "--expect", "serves,refused"], 0),
        ([*CUTEDSL, "--sglang", "0.5.16", "--expect", "refused"], 1),
        ([*REFUSED, "--json"], 1),
    ],
)
def test_the_exit_code_is_the_verdict(command, arguments, code):
    process = command("preflight", *arguments)
    assert process.returncode == code and not process.stderr


def test_a_refusal_says_where_and_what_to_do(command):
    out = command("preflight", *REFUSED).stdout
    assert "REFUSED" in out and re.search(r"^stages +detect passed · admit failed", out, re.M)
    for field in ("read", "observed", "expected", "why", "source", "remedy"):
        assert re.search(rf"^   {field} +\S", out, re.M), field
    assert "sglang 0.5.15 server_args.py" in out
    assert "Not examined: loading the weights" in out
    assert re.search(r"^   sglang +serves with 0\.5\.16", out, re.M)


def test_what_serves_names_what_was_not_examined(command):
    out = command("preflight", "qwen3.5-moe-mixed").stdout
    assert "SERVES" in out and "Not examined: loading the weights" in out and "one value changed" not in out


def test_json_holds_the_question_and_the_answer(command):
    answer = json.loads(command("preflight", *REFUSED, "--tp", "2", "--env", "A=1", "--env", "B=2", "--gpu", "sm_100", "--json").stdout)
    asked = answer["question"]
    assert (asked["checkpoint"], asked["sglang"], asked["runner"], asked["tp"]) == ("qwen3.5-moe-mixed", "0.5.15", "flashinfer_cutedsl", 2)
    assert asked["env"] == {"A": "1", "B": "2"} and asked["gpu"] == "B200" and asked["expect"] == ["serves"]
    assert (answer["outcome"], answer["stage"]) == ("refused", "admit")
    assert list(answer["stages"]) == list(STAGES)
    assert answer["resolved"]["quantization"] == "modelopt_mixed" and answer["resolved"]["accepted"] is False
    assert [entry["method"] for entry in answer["resolved"]["experts"]] == ["ModelOptNvFp4FusedMoEMethod"]
    fields = {"id", "stage", "severity", "releases", "read", "observed", "expected", "why", "source", "remedy", "reference"}
    assert answer["findings"] and all(finding.keys() == fields for finding in answer["findings"])


def test_a_launch_command_asks_the_same_question_as_its_flags(command, tmp_path):
    (tmp_path / "launch.sh").write_text("python -m sglang.launch_server --model-path x \\\n  --moe-runner-backend flashinfer_cutedsl\n")
    by_flags = json.loads(command("preflight", *REFUSED, "--json").stdout)
    for launch in (f"@{tmp_path / 'launch.sh'}", "python -m sglang.launch_server --model-path x --moe-runner-backend=flashinfer_cutedsl"):
        by_launch = json.loads(command("preflight", REFUSED[0], "--sglang", "0.5.15", "--launch", launch, "--json").stdout)
        assert by_launch["findings"] == by_flags["findings"]


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ([], 2, "COMMAND"),
        (["preflght"], 2, "preflght"),
        (["preflight"], 2, "CHECKPOINT"),
        (["preflight", "qwen3.5-moe-mixd"], 2, "did you mean qwen3.5-moe-mixed"),
        (["preflight", "qwen3.5-moe-mixed", "--sglang", "0.5.61"], 2, "did you mean"),
        (["preflight", "qwen3.5-moe-mixed", "--runner", "flashinfer_cutdsl"], 2, "did you mean flashinfer_cutedsl"),
        (["preflight", "qwen3.5-moe-mixed", "--gpu", "B2000"], 2, "did you mean B200"),
        (["preflight", "qwen3.5-moe-mixed", "--expect", "serve"], 2, "did you mean serves"),
        (["preflight", "qwen3.5-moe-mixed", "--tp", "two"], 2, "two"),
        (["preflight", "qwen3.5-moe-mixed", "--env", "A"], 2, "NAME=VALUE"),
        (["preflight", "qwen3.5-moe-mixed", "--runer", "x"], 2, "did you mean --runner"),
        (["preflight", "qwen3.5-moe-mixed", "--launch", "@/no/such"], 3, "/no/such"),
        (["preflight", "qwen3.5-moe-mixed", "--launch", "ls"], 2, "launch"),
    ],
)
def test_what_is_asked_wrongly_is_one_line(command, arguments, code, says):
    process = command(*arguments)
    assert (process.returncode, process.stdout) == (code, "")
    assert says in process.stderr and process.stderr.count("\n") == 1


def test_an_unreadable_checkpoint_is_one_line(command, tmp_path):
    (tmp_path / "config.json").write_text("{")
    process = command("preflight", tmp_path)
    assert process.returncode == 3 and process.stderr.count("\n") == 1 and "config.json" in process.stderr


def test_errors_are_one_line_even_when_the_message_is_not(monkeypatch, capsys):
    def many_lines(args):
        raise InputError("a\nb\n  c")

    monkeypatch.setattr(cli, "gpus", many_lines)
    assert cli.main(["gpus"]) == 3
    assert capsys.readouterr().err == "python -m helpers: error: a b c\n"


def test_a_reader_that_goes_away_is_no_error():
    line = f"{sys.executable} -m helpers checkpoints | head -1; exit ${{PIPESTATUS[0]}}"
    process = subprocess.run(["bash", "-c", line], cwd=ROOT, capture_output=True, text=True, check=False)
    assert process.returncode in (0, 141) and not process.stderr


def test_control_c_is_one_line(tmp_path):
    """Interrupted while it waits for the launch command, which here is a pipe that nobody writes to."""
    os.mkfifo(tmp_path / "launch")
    line = [sys.executable, "-m", "helpers", "preflight", "qwen3.5-moe-mixed", "--launch", f"@{tmp_path / 'launch'}"]
    process = subprocess.Popen(line, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    writer = os.open(tmp_path / "launch", os.O_WRONLY)  # returns once the other side is reading
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=30)
    os.close(writer)
    assert (process.returncode, out, errors) == (130, "", "python -m helpers: error: interrupted\n")


@pytest.mark.parametrize("arguments", [["--help"], ["preflight", "--help"], ["run", "--help"], ["sglang", "--help"], ["gpus", "--help"]])
def test_help_is_everywhere(command, arguments):
    process = command(*arguments)
    assert process.returncode == 0 and process.stdout.startswith("usage: python -m helpers")


@pytest.mark.parametrize("arguments", [["--help"], ["preflight", "--help"], ["run", "--help"]])
def test_every_example_of_the_help_can_be_parsed(command, arguments):
    import shlex

    examples = re.findall(r"^  python -m helpers (.*)$", command(*arguments).stdout.partition("examples:")[2], re.M)
    assert examples
    for example in examples:
        cli.parse(shlex.split(re.sub(r"  +.*", "", example)))


def test_lists(command):
    assert [line.split()[0] for line in command("releases").stdout.splitlines()[1:]] == [release.version for release in RELEASES]
    assert [line.split()[0] for line in command("gpus").stdout.splitlines()[1:]] == [gpu.key for gpu in GPUS]
    assert "qwen3.5-moe-mixed" in command("checkpoints").stdout


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "environment", "coloured"),
    [
        (Terminal(), {"TERM": "xterm"}, True),
        (Terminal(), {"TERM": "xterm", "NO_COLOR": "1"}, False),
        (Terminal(), {"TERM": "dumb"}, False),
        (io.StringIO(), {"TERM": "xterm"}, False),
    ],
)
def test_colour_is_for_terminals_and_can_be_refused(monkeypatch, stream, environment, coloured):
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert colours_on(stream) is coloured
    assert ("\x1b[" in Page(stream).paint("x", "red")) is coloured


def test_names_from_a_checkpoint_cannot_move_the_cursor():
    page = Page(io.StringIO())
    page.field("observed", "a\x1b[2Jb\x00\u202e")
    page.write()
    assert page.stream.getvalue().strip() == r"observed  a\x1b[2Jb\x00\u202e"


def found(checkpoint: str, **values) -> list[alternatives.Alternative]:
    return alternatives.alternatives(judge(open_checkpoint(checkpoint), deployment(**values)))


def test_alternatives_change_one_value_each_the_smallest_first():
    others = found("qwen3.5-moe-mixed", sglang="0.5.15", runner="flashinfer_cutedsl")
    kinds = list(dict.fromkeys(other.changed for other in others))
    assert kinds == [kind for kind in alternatives.FLAGS if kind in kinds] and {"runner", "quantization", "a2a", "sglang"} <= set(kinds)
    assert ("runner", "flashinfer_cutedsl") not in {(other.changed, other.value) for other in others}
    outcome = {(other.changed, other.value): other.outcome for other in others}
    assert outcome["quantization", "modelopt_fp4"] == "serves"  # the bypass with the raw flag
    assert outcome["sglang", "0.5.14"] == "refused" and outcome["sglang", "0.5.16"] == "serves"
    assert next(other.change for other in others if other.changed == "sglang") == "pip install sglang==0.5.11"


def test_the_usual_runners_are_named_before_the_experimental_ones():
    names = [other.value for other in found("qwen3.5-moe-mixed", runner="marlin") if other.changed == "runner"]
    assert names[:2] == ["auto", "flashinfer_trtllm"] and not names[0].startswith("experimental_")
    experimental = [name.startswith("experimental_") for name in names]
    assert experimental == sorted(experimental)


def test_the_mode_and_the_variable_that_a_finding_names_are_tried_before_anything_else():
    others = found("qwen3-moe-mixed", sglang="0.5.16", runner="flashinfer_cutedsl", a2a="deepep", tp=2, ep=2)
    assert ("deepep_mode", "low_latency") in {(other.changed, other.value) for other in others}
    assert others[0].changed in ("env", "deepep_mode")
    asked = deployment()
    (variable, *_) = alternatives._neighbours(asked, ["set SGLANG_MOE_NVFP4_DISPATCH=1 for half the bytes"])
    assert variable[:2] == ("env", "SGLANG_MOE_NVFP4_DISPATCH=1")
    assert variable[2].environment == {"SGLANG_MOE_NVFP4_DISPATCH": "1"} and asked.environment == {}
