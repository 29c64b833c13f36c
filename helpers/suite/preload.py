"""What almost every notebook imports, imported once before the forks. Torch is not: it starts threads, and CUDA must not be forked."""

import importlib
import os

MODULES = (
    "ipykernel.kernelapp",
    "ipykernel.ipkernel",
    "ipywidgets",
    "matplotlib.figure",
    "matplotlib.backends.backend_agg",
    "matplotlib_inline.backend_inline",
    "pandas",
    "helpers.checkpoint",
    "helpers.deployment",
    "helpers.stages.verdict",
    "helpers.suite.fingerprint",
    "helpers.view.figures",
    "helpers.view.tables",
    "helpers.view.widgets",
)


def preload() -> None:
    # matplotlib reads this when it is imported; an ipykernel of its own would set it first.
    os.environ.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    for name in MODULES:
        importlib.import_module(name)
