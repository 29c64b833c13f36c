"""The real releases beside our model of them. Nothing is asked unless a notebook's parameter ``oracle`` says so.

off: nothing is asked. auto: the releases whose environment is built. required: all that were named; one that is missing is an
error. What of a release is real and what is simulated: helpers.sglang.client, REAL and SIMULATED.
"""

from collections.abc import Sequence
from dataclasses import replace

from helpers.checkpoint import Checkpoint
from helpers.checkpoint.folders import folders
from helpers.deployment import Deployment, release
from helpers.errors import UsageError, unknown
from helpers.sglang.client import Answer, ModelAnswer, Worker
from helpers.sglang.environments import environments
from helpers.suite.checks import check, not_run

MODES = ("off", "auto", "required")


def to_ask(oracle: str, versions: Sequence[str], to_load: bool = False) -> tuple[str, ...]:
    """The releases that will be asked. UsageError for an unknown mode, or for a required release without an environment.

    to_load: only those that are built with the FlashInfer which loading needs.
    """
    if oracle not in MODES:
        raise unknown("oracle", oracle, MODES)
    if oracle == "off":
        return ()
    found = {version: built for version, built in environments().items() if not to_load or built.can_load}
    missing = [version for version in versions if version not in found]
    if oracle == "required" and missing:
        raise UsageError(f'no environment for sglang {", ".join(missing)}: make sglang RELEASES="{" ".join(missing)}"')
    return tuple(version for version in versions if version in found)


def arguments(versions: Sequence[str], checkpoint: Checkpoint, asked: Deployment) -> dict[str, Answer]:
    """What each release makes of the same launch. About 10 seconds and 1 GB a release, one after another."""
    answers = {}
    with folders() as folder:
        for version in versions:
            with Worker(version) as worker:
                answers[version] = worker.arguments(folder(checkpoint), replace(asked, release=release(version)))
    return answers


def model(checkpoint: Checkpoint, asked: Deployment) -> ModelAnswer:
    """The model that the release of the deployment builds, without memory: every module and the method it got."""
    with folders() as folder, Worker(asked.release.version) as worker:
        return worker.model(folder(checkpoint), asked)


def agrees(id: str, oracle: str, asked: bool, observed: object, expected: object, why: str, reason: str = "") -> None:
    """Check the real release's answer against the model's, or record why it was not asked. reason: why, whatever ``oracle`` says."""
    if asked:
        check(id, observed, expected, why)
    else:
        why_not = reason or ("oracle is off" if oracle == "off" else "none of these releases is built")
        not_run(id, f"the real release was not asked: {why_not}", "" if reason else "make sglang, then ORACLE=auto (or -p oracle=auto)")
