"""Where the real SGLang releases are installed."""

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Environment:
    """A Python that can import one SGLang release: interpreter, folders to put first on its path, the transformers pin."""

    release: str
    python: str
    path: tuple[str, ...]
    transformers: str | None

    def variables(self) -> dict[str, str]:
        return {
            **{k: v for k, v in os.environ.items() if not k.startswith(("SGLANG_", "PYTHON"))},
            "PYTHONPATH": os.pathsep.join(self.path),
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "CUDA_VISIBLE_DEVICES": "",
        }

    def note(self, about: dict) -> str:
        if self.transformers is None or about["transformers"] == self.transformers:
            return ""
        return f"asked under transformers {about['transformers']}; sglang {self.release} pins {self.transformers}"


def cache() -> Path:
    return Path(os.environ.get("NVFP4_CACHE") or Path.home() / ".cache" / "nvfp4-moe-validation")


def environment(release: str) -> Environment:
    root = cache() / "sglang"
    pin = {"0.5.22": "5.19.0", "0.5.23": "5.19.0"}.get(release, "5.12.1")
    return Environment(release, str(root / "base/bin/python"), (str(root / f"transformers-{pin}"), f"/tmp/sgl/{release}"), pin)
