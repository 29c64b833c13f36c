"""Asks the release what it makes of a command line: parse, resolve, check, and read the resolved fields."""

import argparse
import os
import sys
import traceback
import types

import sglang.srt.server_args
from sglang.srt.server_args import ServerArgs

ROOT = os.path.dirname(os.path.abspath(sglang.srt.server_args.__file__)) + os.sep  # the paths in answers begin after it
OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep

# What the comparison and the notebooks read of the resolved configuration; a name a release does not have is left out.
FIELDS = (
    "quantization", "moe_runner_backend", "moe_a2a_backend", "ep_size", "tp_size", "dp_size", "enable_dp_attention", "deepep_mode",
    "disable_shared_experts_fusion", "speculative_moe_runner_backend", "speculative_moe_a2a_backend", "speculative_algorithm",
    "speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens", "max_prefill_tokens", "chunked_prefill_size",
    "cuda_graph_max_bs", "fp4_gemm_runner_backend", "fp8_gemm_runner_backend", "attention_backend", "kv_cache_dtype", "dtype",
    "mem_fraction_static", "disable_cuda_graph", "enable_flashinfer_allreduce_fusion", "moe_dense_tp_size", "page_size",
    "flashinfer_a2a_dispatch_type", "enable_eplb", "ep_num_redundant_experts",
)  # fmt: skip


class ConfigFiles:
    """Forgets what the release remembers of a checkpoint's files when they have changed since the last question about it.

    The release parses a configuration once for each path and keeps it; parsing again for every question would cost most of the time.
    """

    NAMES = ("config.json", "hf_quant_config.json", "generation_config.json", "params.json")

    def __init__(self):
        self.seen = {}

    def look(self, argv):
        folder = argv[argv.index("--model-path") + 1] if "--model-path" in argv[:-1] else None
        now = tuple(self._state(os.path.join(folder, name)) for name in self.NAMES) if folder else ()
        if self.seen.setdefault(folder, now) != now:
            self.seen[folder] = now
            self.forget()

    @staticmethod
    def _state(path):
        try:
            state = os.stat(path)
        except OSError:
            return None
        return state.st_mtime_ns, state.st_size

    @staticmethod
    def forget():
        for name, module in list(sys.modules.items()):
            if name.startswith(("sglang.srt.utils", "sglang.srt.configs", "sglang.srt.arg_groups", "sglang.srt.server_args")):
                for value in list(vars(module).values()):
                    if callable(getattr(value, "cache_clear", None)):
                        value.cache_clear()


class ArgumentRefused(Exception):
    """What argparse would print before it exits with 2."""


def _refuse(message):
    raise ArgumentRefused(message)


def keep_parser():
    """The release's own prepare_server_args() from now on finds its parser made: making it takes 30 ms, for each question."""
    parser = argparse.ArgumentParser(prog="sglang serve")
    ServerArgs.add_cli_args(parser)
    parser.error = _refuse
    sglang.srt.server_args.argparse = types.SimpleNamespace(**vars(argparse) | {"ArgumentParser": lambda *args, **kwargs: parser})
    ServerArgs.add_cli_args = staticmethod(lambda parser: None)
    _FLAGS.update(parser._option_string_actions)


_FLAGS = {}


def choices(*flags):
    """flag -> the values it accepts."""
    return {flag: list(_FLAGS[flag].choices or ()) for flag in flags if flag in _FLAGS}


def knows(flag):
    """Whether this release has the flag."""
    return flag in _FLAGS


def refusal_of(error):
    """The exception as an answer: type, whole text, and the innermost frame inside the release.

    An exception that never was in the release, or began in these files, is a fault of the worker, and said to be one.
    """
    if isinstance(error, ArgumentRefused):
        return {"error": "ArgumentRefused", "message": str(error), "file": "server_args.py", "function": "prepare_server_args"}
    frames = traceback.extract_tb(error.__traceback__)
    inside = [frame for frame in frames if frame.filename.startswith(ROOT)]
    ours = frames[-1].filename.startswith(OURS) and frames[-1].name not in ("__torch_function__", "refuse_as_kernel")  # these pass on
    if not inside or ours:
        return {"error": "WorkerFault", "message": "".join(traceback.format_exception(error))}
    frame = inside[-1]
    return {
        "error": type(error).__name__,
        "message": str(error),
        "file": frame.filename.removeprefix(ROOT),
        "line": frame.lineno,
        "function": frame.name,
    }


def ask(argv):
    """The resolved configuration of one command line, as the launcher makes it. Raises whatever the release raises."""
    arguments = sglang.srt.server_args.prepare_server_args(argv)
    if hasattr(arguments, "resolve_once"):  # from 0.5.19 nothing is decided before this
        arguments.resolve_once()
    arguments.check_server_args()
    return arguments


def resolved(arguments):
    """`arguments` after the resolution. From 0.5.19 the record keeps the input, and what was resolved is read through a view."""
    if hasattr(arguments, "resolved_dict"):
        from sglang.srt.arg_groups.overrides import resolving_view

        return resolving_view(arguments)
    return arguments


def resolved_fields(arguments):
    """FIELDS after the resolution."""
    view = resolved(arguments)
    values = {name: getattr(view, name) for name in FIELDS if hasattr(view, name)}
    return {name: value for name, value in values.items() if isinstance(value, str | int | float | bool | None)}


def model_config_of(arguments):
    """The ModelConfig that the resolution built."""
    if hasattr(arguments, "get_model_config"):
        return arguments.get_model_config()
    from sglang.srt.arg_groups.model_override_base import model_config_of as of

    return of(arguments)


def model_quantization(arguments):
    """ModelConfig.quantization: what the checkpoint and the flag come to, which the loader reads."""
    return model_config_of(arguments).quantization
