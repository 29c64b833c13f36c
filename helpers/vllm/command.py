"""``python -m helpers vllm …``: build the environment of the pinned vLLM release, ask it."""

import argparse

_BUILD = """\
Install the pinned vLLM release in $NVFP4_CACHE (default ~/.cache/nvfp4-moe-validation): its wheel, those of its requirements that the
question imports, FlashInfer's Python package, and a torch that needs no CUDA libraries. 3.3 GB. NVFP4_TORCH replaces the torch line,
NVFP4_PYTHON the interpreter.
"""

_ASK = """\
Let the real vLLM say what it detects, which method the expert layers get and which of its NVFP4 backends is chosen, with its own reason
for each one passed over. The GPU is simulated; nothing of the checkpoint but its JSON files is read.
exit codes: 0 vLLM builds the model; 1 it refuses; 2 asked wrongly, or vLLM is not built; 3 it could not be asked on this machine
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The sub-commands of ``vllm``."""
    commands = parser.add_subparsers(dest="vllm_command", metavar="COMMAND", required=True)
    made = commands.add_parser("build", help="install the pinned vLLM release, without a GPU", description=_BUILD)
    made.set_defaults(run=_build)
    made = commands.add_parser("ask", help="ask it about a checkpoint", description=_ASK)
    made.add_argument("checkpoint", metavar="CHECKPOINT", help="a bundled or public name, or a folder with a config.json")
    made.add_argument("--gpu", default="B200", metavar="NAME", help="a name or alias of data/gpus.toml (default: B200)")
    made.add_argument("--tp", type=int, default=1, metavar="N", help="--tensor-parallel-size (default: 1)")
    made.add_argument("--ep", type=int, default=1, metavar="N", help="1, or the same as --tp: --enable-expert-parallel (default: 1)")
    made.add_argument("--moe-backend", default="auto", metavar="NAME", help="vLLM's --moe-backend (default: auto)")
    made.add_argument("--json", action="store_true", help="print one JSON object")
    made.set_defaults(run=_ask)


def main(args: argparse.Namespace) -> int:
    """The exit code. UsageError and InputError are the caller's to print."""
    return args.run(args)


def _build(args: argparse.Namespace) -> int:
    from helpers.vllm.environment import build

    build(say=lambda line: print(line, flush=True))
    return 0


def _ask(args: argparse.Namespace) -> int:
    import json
    from dataclasses import asdict

    from helpers.checkpoint import open_checkpoint
    from helpers.checkpoint.folders import folders
    from helpers.deployment import gpu
    from helpers.vllm import environment
    from helpers.vllm.ask import REAL, SIMULATED, Question, ask

    checkpoint, on = open_checkpoint(args.checkpoint), gpu(args.gpu)
    environment.python()  # says that it is not built before anything else is done
    with folders() as folder:
        (answer,) = ask([Question(folder(checkpoint), args.tp, args.ep, args.moe_backend)], on)
    if args.json:
        print(json.dumps(asdict(answer) | {"outcome": answer.outcome, "real": REAL, "simulated": SIMULATED}, indent=1))
    else:
        for line in answer_lines(answer):
            print(line)
        print(f"simulated: {SIMULATED}")
    return {"accepted": 0, "refused": 1, "not asked": 3}[answer.outcome]


def answer_lines(answer) -> list[str]:
    """An Answer as text: what was detected, each selection with its reasons, the error."""
    lines = [f"vllm {answer.vllm}: {answer.outcome}; quantization {answer.quantization} ({answer.quant_config})"]
    for one in answer.experts:
        lines.append(f"{one.count} expert layers: {one.method}, {one.backend} ({one.kernel})")
    if answer.accepted and not answer.experts:
        lines.append("vLLM builds no expert layer of this configuration")
    for one in answer.selections:
        activations = "16-bit activations" if one.activations is None else f"activations {one.activations}"
        lines.append(f"NVFP4 backends for {one.count} layers, weights {one.weights}, {activations}:")
        for tried in one.tried:
            lines.append(f"  {tried.backend} ({tried.kernel}): " + ("chosen" if tried.supported else tried.reason))
        if one.chosen is None:
            lines.append("  none is left")
        for name, request in one.requested.items():
            lines.append(f"  --moe-backend {name}: {request['backend'] or request['error']}")
    if answer.error:
        lines.append(f"{answer.stage}: {answer.error}: {answer.message}" + (f" ({answer.source})" if answer.source else ""))
        if answer.simulation:
            lines.append("this is the end of what is simulated here, not an answer of vLLM's")
    if answer.assumed:
        lines.append(f"assumed of vLLM's compiled library: yes to {', '.join(answer.assumed)}")
    return lines
