"""The user's own launch command, under each release's own flag names. Nothing of it is executed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.deployment import RELEASES, deployment, gpu, parse_launch, release
from helpers.errors import InputError, UsageError

LINE = """SGLANG_MOE_NVFP4_DISPATCH=1 NCCL_DEBUG=INFO \\
python3 -m sglang.launch_server --model-path nvidia/Qwen3.5-397B-A17B-NVFP4-V2 \\
    --tp-size 8 --ep=8 --dp-size 8 --enable-dp-attention \\
    --moe-runner-backend flashinfer_cutedsl --moe-a2a-backend=flashinfer \\
    --quantization modelopt_fp4 --max-prefill-tokens 8192 --chunked-prefill-size -1 --mem-fraction-static 0.85 \\
    --trust-remote-code > server.log 2>&1 &
"""


def parse(text, version="0.5.16"):
    return parse_launch(text, release(version), gpu("B200"))


def test_a_whole_launch_line():
    asked = parse(LINE)
    assert asked == deployment(
        sglang="0.5.16",
        runner="flashinfer_cutedsl",
        a2a="flashinfer",
        quantization="modelopt_fp4",
        tp=8,
        ep=8,
        dp=8,
        enable_dp_attention=True,
        max_prefill_tokens=8192,
        chunked_prefill_size=-1,
        env="NCCL_DEBUG=INFO,SGLANG_MOE_NVFP4_DISPATCH=1",
    )
    assert asked.model == "nvidia/Qwen3.5-397B-A17B-NVFP4-V2"


def test_flags_that_no_rule_reads_are_named_and_remote_code_is_only_noted():
    assert parse(LINE).unexamined == ("--mem-fraction-static 0.85", "--trust-remote-code")


@pytest.mark.parametrize(
    "line",
    [
        "sglang serve m --tp 8",
        "/opt/venv/bin/sglang serve --model m --tensor-parallel-size=8",
        "docker run --gpus all -e A=1 image python -m sglang.launch_server --model-path m --tp-size 8",
        "export A=1; exec python -m sglang.launch_server --model-path m --tp 8 && echo done",
        "python -m sglang.launch_server --model-path 'm' --tp '8' # tp of the node",
    ],
)
def test_ways_to_write_it(line):
    asked = parse(line.partition("#")[0] if "#" in line else line)
    assert (asked.tp, asked.model) == (8, "m")


def test_from_a_file(tmp_path):
    (tmp_path / "launch.sh").write_text(LINE)
    assert parse(f"@{tmp_path}/launch.sh") == parse(LINE)


def test_a_file_without_an_end_is_not_read_to_it():
    with pytest.raises(InputError, match=r"launch command: /dev/zero has more than 1,000,000 characters"):
        parse("@/dev/zero")


def test_flags_in_a_file_of_the_servers_are_not_passed_over():
    with pytest.raises(UsageError, match=r"--config reads flags from a file"):
        parse("sglang serve m --tp 8 --config server.yaml")


def test_a_file_that_is_not_there():
    with pytest.raises(InputError, match=r"launch command: .*nowhere\.sh cannot be read"):
        parse("@/nowhere.sh")


@pytest.mark.parametrize(
    ("version", "line", "runner", "dp"),
    [
        ("0.5.11", "--tensor-parallel-size 8 --data-parallel-size 8 --cuda-graph-max-bs 64", "auto", 8),
        ("0.5.23", "--tp-size 8 --attn-dp-size 8 --cuda-graph-max-bs-decode 64", "auto", 8),
    ],
)
def test_each_release_has_its_own_names(version, line, runner, dp):
    asked = parse(f"sglang serve m {line}", version)
    assert (asked.runner, asked.dp, asked.cuda_graph_max_bs) == (runner, dp, 64)


def test_attention_dp_size_is_width_and_switch_at_once():
    assert parse("sglang serve m --attn-dp-size 4", "0.5.23").enable_dp_attention


def test_variables_given_beside_the_line_are_overridden_by_it():
    asked = parse_launch("A=2 sglang serve m", release("0.5.16"), gpu("B200"), env={"A": "1", "B": "1"})
    assert asked.environment == {"A": "2", "B": "1"}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("python train.py", "no `python -m sglang.launch_server` and no `sglang serve`"),
        ("", "no `python -m sglang.launch_server`"),
        (
            "sglang serve m --moe-runer-backend cutlass",
            "unknown flag of SGLang 0.5.16 '--moe-runer-backend': did you mean --moe-runner-backend",
        ),
        ("sglang serve m --attn-dp-size 4", "SGLang 0.5.16 has no flag --attn-dp-size: it exists in 0.5.22 to 0.5.23"),
        ("sglang serve m --moe", "--moe could be "),
        ("sglang serve m --tp-size", "--tp-size has no value"),
        ("sglang serve m --tp-size --ep-size 8", "--tp-size has no value"),
        ("sglang serve m --tp-size $TP", "--tp-size is '$TP', a shell variable"),
        ("sglang serve m --enable-dp-attention=yes", "--enable-dp-attention takes no value"),
        ("sglang serve m --tp 8 stray", "'stray' belongs to no flag"),
        ("sglang serve m --tp eight", "tp is 'eight': give a whole number"),
        ("sglang serve m --moe-runner-backend lora_cutedsl", "unknown MoE runner of SGLang 0.5.16"),
        ("sglang serve 'm --tp 8", "No closing quotation"),
    ],
)
def test_lines_that_are_not_launches_are_one_line(line, message):
    with pytest.raises(UsageError) as error:
        parse(line)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@given(st.text(max_size=200))
def test_any_text_is_a_launch_or_one_line(text):
    for known in (RELEASES[0], RELEASES[-1]):
        try:
            parse_launch(text.removeprefix("@"), known, gpu("B200"))
        except UsageError as error:
            assert str(error)


@given(
    st.lists(st.sampled_from(["--tp", "8", "--ep=2", "--dp", "-1", "$X", "--", "-", "=", "--quantization", "fp8", "&&", "a=b"]), max_size=8)
)
def test_any_words_after_the_entry_are_arguments_or_one_line(words):
    try:
        parse("sglang serve m " + " ".join(words))
    except UsageError as error:
        assert "\n" not in str(error)
