"""What a release answers over a fixed matrix, recorded in data/recorded/sglang, and what changed between two of them, in words.

The file keeps each answer once and, for each checkpoint, the numbers of its answers in the order of the launches. It says with
which transformers and torch it was recorded and when.
"""

import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from helpers.checkpoint import Checkpoint
from helpers.checkpoint.folders import Folders, folders
from helpers.deployment import RELEASES, Deployment, Release, gpu
from helpers.errors import InputError
from helpers.paths import DATA
from helpers.sglang.client import Answer, Worker
from helpers.sglang.compare import VARIABLES
from helpers.sglang.matrix import FLAGS, checkpoints

RECORDED = DATA / "recorded" / "sglang"
SHAPE = 1
GPUS = ("B200", "H100", "A100", "RTX-PRO-6000")
# The runners that are asked with every all-to-all; all are asked without one.
WITH_A2A = ("auto", "flashinfer_cutedsl", "flashinfer_cutlass", "flashinfer_trtllm", "flashinfer_trtllm_routed", "deep_gemm")


def release_of(version: str) -> Release:
    """The known release of that number, else one newer than all known ones that is read by the newest one's rules."""
    known = next((release for release in RELEASES if release.version == version), None)
    return known or replace(RELEASES[-1], version=version, position=len(RELEASES), date="unknown")


def before(release: Release) -> Release | None:
    """The newest known release that is older."""
    return next((known for known in reversed(RELEASES) if known.position < release.position), None)


def record(version: str, say: Callable[[str], None]) -> dict:
    """Asks the release and returns its snapshot."""
    release, subjects = release_of(version), checkpoints()
    answers: dict[str, int] = {}
    rows = {}
    with folders() as folder, Worker(version) as worker:
        about = worker.start()
        launches = list(_launches(release, about["choices"]))
        say(f"sglang {version}: {len(subjects)} checkpoints x {len(launches)} launches …")
        for checkpoint in subjects:
            asked = worker.arguments_of((folder(checkpoint), launch) for launch in launches)
            texts = [_text(answer, folder, checkpoint) for answer in asked]
            rows[checkpoint.name] = [answers.setdefault(text, len(answers)) for text in texts]
    return {
        "shape": SHAPE,
        "recorded": time.strftime("%Y-%m-%d"),
        "release": version,
        "how": "the real release on a machine without a GPU: the GPU's answers are simulated, no kernel ran and no weight was read",
        "versions": {name: about[name] for name in ("sglang", "transformers", "torch", "python")},
        "choices": about["choices"],
        "launches": [_launch_text(launch) for launch in launches],
        "answers": list(answers),
        "checkpoints": rows,
    }


def _launches(release: Release, choices: dict[str, list[str]]) -> Iterator[Deployment]:
    runners, a2a = choices["--moe-runner-backend"], choices["--moe-a2a-backend"]
    for name in GPUS:
        for runner in runners:
            yield Deployment(release, runner, gpu=gpu(name))
    for backend in a2a:
        for runner in WITH_A2A:
            if runner in runners and backend != "none":
                yield Deployment(release, runner, backend, tp=8, dp=8, enable_dp_attention=True)
    for flag in FLAGS:
        if flag in choices["--quantization"]:
            for runner in ("auto", "flashinfer_cutedsl"):
                yield Deployment(release, runner, quantization=flag)


def _launch_text(launch: Deployment) -> str:
    """The launch without its release, so that two releases' can be matched."""
    return str(launch).replace(f"SGLang {launch.release} on ", "")


def _text(answer: Answer, folder: Folders, checkpoint: Checkpoint) -> str:
    if not answer.accepted:
        message = answer.message.replace(str(folder(checkpoint)), "<checkpoint>")
        return f"refused by {answer.file} {answer.function}: {answer.error}: {message}"
    said = {
        "quantization": answer.quantization,
        "layers": answer.model_quantization,
        "runner": answer.runner,
        "a2a": answer.a2a,
        "ep": answer.ep_size,
        "deepep": answer.resolved.get("deepep_mode"),
        "shared experts fusion": "off" if answer.resolved.get("disable_shared_experts_fusion") else "on",
        **{name: value for name, value in sorted(answer.env.items()) if name in VARIABLES},
    }
    return "accepted: " + ", ".join(f"{name} {value}" for name, value in said.items())


def path_of(version: str) -> Path:
    return RECORDED / f"{version}.json"


def write(snapshot: dict) -> Path:
    path = path_of(snapshot["release"])
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"{json.dumps(name)}: {json.dumps(value, separators=(',', ':'))}" for name, value in snapshot.items()]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    return path


def read(version: str) -> dict | None:
    """A recorded snapshot, None when there is none. InputError when it is of another shape."""
    path = path_of(version)
    if not path.is_file():
        return None
    again = f"record it again: python -m helpers sglang snapshot {version}"
    try:
        snapshot = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise InputError(f"{path}: not JSON ({error}); {again}") from None
    if snapshot.get("shape") != SHAPE:
        raise InputError(f"{path}: shape {snapshot.get('shape')}, not {SHAPE}; {again}")
    return snapshot


def changes(old: dict, new: dict) -> list[str]:
    """What `new` answers differently from `old`, one sentence a cause, the widest first."""
    said = [
        f"{flag}: {what} {', '.join(sorted(names))}"
        for flag in new["choices"]
        for what, names in (
            ("new", set(new["choices"][flag]) - set(old["choices"].get(flag, ()))),
            ("gone", set(old["choices"].get(flag, ())) - set(new["choices"][flag])),
        )
        if names
    ]
    moved = defaultdict(lambda: defaultdict(set))
    for name in new["checkpoints"]:
        was, now = _by_launch(old, name), _by_launch(new, name)
        for launch in now.keys() & was.keys():
            if was[launch] != now[launch]:
                moved[_difference(was[launch], now[launch])][launch].add(name)
    for what, launches in sorted(moved.items(), key=lambda item: -sum(map(len, item[1].values()))):
        names = sorted(set().union(*launches.values()))
        said.append(f"{what}\n    for {_some(sorted(launches))}\n    with {_some(names)}")
    return said


def _by_launch(snapshot: dict, checkpoint: str) -> dict[str, str]:
    numbers = snapshot["checkpoints"].get(checkpoint, ())
    return {launch: snapshot["answers"][number] for launch, number in zip(snapshot["launches"], numbers, strict=False)}


def _difference(was: str, now: str) -> str:
    """The two answers as a sentence; between two accepted ones only what is not the same."""
    if was.startswith("accepted: ") and now.startswith("accepted: "):
        old, new = (dict(part.rsplit(" ", 1) for part in text.removeprefix("accepted: ").split(", ")) for text in (was, now))
        parts = [f"{name} {old.get(name, 'unset')} → {new.get(name, 'unset')}" for name in {**old, **new} if old.get(name) != new.get(name)]
        return "still accepted, with " + ", ".join(parts)
    if was.startswith("accepted: "):
        return f"accepted before, now {now}"
    if now.startswith("accepted: "):
        return f"refused before ({was.removeprefix('refused by ')}), now {now}"
    old, new = (text.removeprefix("refused by ").split(": ", 2) for text in (was, now))
    if old[:2] != new[:2]:
        return f"refused both times, before by {': '.join(old)}, now by {': '.join(new)}"
    before, after = old[-1].split(), new[-1].split()
    gone, come = ([word for word in words if word not in others] for words, others in ((before, after), (after, before)))
    return f"still refused by {': '.join(new[:2])}, in other words: without {' '.join(gone) or 'any'}, with {' '.join(come) or 'none new'}"


def _some(names: Sequence[str], shown: int = 4) -> str:
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return "; ".join(names[:shown]) + more
