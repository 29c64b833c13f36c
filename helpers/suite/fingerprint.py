"""What a result was obtained with: Python, packages, machine, GPU, and which version of which notebook.

Read from installed metadata and from `nvidia-smi`, never by importing the packages: asking must stay cheap and must not fail.
"""

import html
import importlib.metadata
import os
import platform
import subprocess

PACKAGES = (
    "nvfp4-moe-validation",
    "safetensors",
    "huggingface-hub",
    "papermill",
    "nbclient",
    "ipykernel",
    "jupyterlab",
    "ipywidgets",
    "matplotlib",
    "pandas",
    "numpy",
    "torch",
    "triton",
    "flashinfer-python",
    "nvidia-cutlass-dsl",
    "nvidia-modelopt",
    "transformers",
    "aiconfigurator-core",
)


def fingerprint() -> dict:
    """Plain JSON types. `packages` holds None for what is not installed; `gpus` is empty where nvidia-smi finds none."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "packages": {name: version(name) for name in PACKAGES},
        "gpus": gpus(),
    }


def version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def gpus() -> list[dict[str, str]]:
    """One entry a GPU that nvidia-smi lists: name, driver, memory, compute capability. Empty where there is none to ask."""
    fields = ("name", "driver_version", "memory.total", "compute_cap")
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [dict(zip(fields, (value.strip() for value in line.split(",")), strict=False)) for line in answer.stdout.splitlines()]


def environment_strip() -> None:
    """Show, in a notebook, in one line what it runs on."""
    from IPython.display import display

    found = fingerprint()
    shown = ("nvfp4-moe-validation", "torch", "flashinfer-python", "nvidia-cutlass-dsl", "nvidia-modelopt", "transformers")
    parts = [f"Python {found['python']} on {found['machine']}"]
    parts += [f"{name} {found['packages'][name] or 'not installed'}" for name in shown]
    parts += [gpu["name"] for gpu in found["gpus"]] or ["no GPU in this machine"]
    line = " · ".join(parts)
    display({"text/html": f"<small>{html.escape(line)}</small>", "text/plain": line}, raw=True)
