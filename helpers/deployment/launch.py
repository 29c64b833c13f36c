"""Read the user's own launch command into a Deployment, by the release's own table of flags. Nothing of it is executed."""

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from helpers.deployment.deployment import Deployment, checked
from helpers.deployment.flags import Flag, find
from helpers.deployment.gpus import Gpu
from helpers.deployment.releases import Release
from helpers.errors import InputError, UsageError

# SGLang's ServerArgs field -> ours. A flag of the release that is not here is reported as not examined.
FIELDS = {
    "model_path": "model",
    "moe_runner_backend": "runner",
    "moe_a2a_backend": "a2a",
    "quantization": "quantization",
    "tp_size": "tp",
    "ep_size": "ep",
    "dp_size": "dp",
    "enable_dp_attention": "enable_dp_attention",
    "deepep_mode": "deepep_mode",
    "flashinfer_a2a_dispatch_type": "flashinfer_a2a_dispatch_type",
    "max_prefill_tokens": "max_prefill_tokens",
    "chunked_prefill_size": "chunked_prefill_size",
    "cuda_graph_max_bs": "cuda_graph_max_bs",
    "cuda_graph_max_bs_decode": "cuda_graph_max_bs",
    "speculative_algorithm": "speculative_algorithm",
    "speculative_num_steps": "speculative_num_steps",
    "speculative_eagle_topk": "speculative_eagle_topk",
    "speculative_num_draft_tokens": "speculative_num_draft_tokens",
    "speculative_moe_runner_backend": "speculative_moe_runner_backend",
    "speculative_moe_a2a_backend": "speculative_moe_a2a_backend",
    "disable_shared_experts_fusion": "disable_shared_experts_fusion",
}
MAX_LAUNCH = 1_000_000
_ENTRY = "sglang.launch_server"
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_NUMBER = re.compile(r"-\d+(\.\d*)?|-\.\d+")


def parse_launch(text: str, release: Release, gpu: Gpu, env: Mapping[str, str] = MappingProxyType({})) -> Deployment:
    """The deployment that a `python -m sglang.launch_server …` or `sglang serve …` line describes; ``@FILE`` reads it from a file.

    Line continuations, assignments in front (`SGLANG_X=1 python …`, `docker run -e SGLANG_X=1 …`), `--flag value`, `--flag=value`,
    aliases and argparse's prefixes are understood. The model it names is in ``.model``, the flags that no rule reads in
    ``.unexamined``. env: variables set besides the line's own. UsageError for a line that is not a launch, a flag or value the
    release does not know, a missing value; InputError for a file that cannot be read.
    """
    if text.startswith("@"):
        text = _read(Path(text[1:]))
    before, arguments = _split(text)
    values, unexamined = _arguments(arguments, release)
    assigned = dict(match.groups() for match in map(_ASSIGNMENT.fullmatch, before) if match)
    return checked(release, gpu, tuple(sorted((dict(env) | assigned).items())), unexamined=tuple(unexamined), **values)


def _read(path: Path) -> str:
    try:
        with path.expanduser().open(encoding="utf-8") as file:  # `@/dev/fd/63`, a shell's <(…), is no regular file
            text = file.read(MAX_LAUNCH + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"launch command: {path} cannot be read ({error}): give @ and the path of a text file") from None
    if len(text) > MAX_LAUNCH:
        raise InputError(f"launch command: {path} has more than {MAX_LAUNCH:,} characters: give @ and the path of a launch script")
    return text


def _split(text: str) -> tuple[list[str], list[str]]:
    """The words before the server's entry point, and its arguments up to the end of the shell command."""
    lexer = shlex.shlex(re.sub(r"\\[ \t]*\r?\n", " ", text), posix=True, punctuation_chars="();<>|&")
    lexer.whitespace_split = True
    try:
        words = list(lexer)
    except ValueError as error:
        raise UsageError(f"launch command: {error} in {text.strip()[:60]!r}") from None
    for index, word in enumerate(words):
        if word == _ENTRY:
            start = index + 1
        elif word.split("/")[-1] == "sglang" and words[index + 1 : index + 2] == ["serve"]:
            start = index + 2
        else:
            continue
        arguments = words[start:]
        end = next((at for at, argument in enumerate(arguments) if set(argument) <= set("();<>|&")), len(arguments))
        return words[:index], arguments[:end]
    raise UsageError(f"launch command: no `python -m {_ENTRY}` and no `sglang serve` in {text.strip()[:60]!r}")


def _arguments(words: list[str], release: Release) -> tuple[dict, list[str]]:
    """Our fields, and the flags that no rule reads as they were written."""
    values, unexamined, position = {}, [], 0
    if words and not words[0].startswith("-"):  # `sglang serve MODEL`
        values["model"], position = words[0], 1
    while position < len(words):
        word = words[position]
        if not word.startswith("-"):
            raise UsageError(f"launch command: {word!r} belongs to no flag")
        given, equals, attached = word.partition("=")
        name, flag = find(release, given)
        position += 1
        if equals:
            taken = [attached]
        else:
            taken = _taken(flag, words[position:], name)
            position += len(taken)
        if flag.dest in FIELDS:
            values[FIELDS[flag.dest]] = _value(name, flag, taken)
        elif flag.dest == "attn_dp_size":  # 0.5.22 and newer: the width and the switch in one flag
            values |= {"dp": _value(name, flag, taken), "enable_dp_attention": True}
        elif flag.dest == "config":
            raise UsageError(f"launch command: {name} reads flags from a file, which is not followed: write its flags on the line")
        else:
            unexamined.append(" ".join([name, *taken]))
    return values, unexamined


def _taken(flag: Flag, following: list[str], name: str) -> list[str]:
    """The words after the flag that are its values."""
    free = next((at for at, word in enumerate(following) if word.startswith("-") and not _NUMBER.fullmatch(word)), len(following))
    if flag.takes == "none":
        return []
    if flag.takes == "one" and not free:
        raise UsageError(f"launch command: {name} has no value")
    return following[: free if flag.takes == "many" else min(free, 1)]


def _value(name: str, flag: Flag, taken: list[str]) -> str | bool:
    if flag.takes == "none":
        if taken:
            raise UsageError(f"launch command: {name} takes no value, {taken[0]!r} given")
        return True
    if "$" in taken[0] and flag.dest != "model_path":
        raise UsageError(f"launch command: {name} is {taken[0]!r}, a shell variable: write its value")
    return taken[0]
