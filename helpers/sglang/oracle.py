"""Which real releases a test or a notebook may ask: ORACLE=off (none), auto (what is there) or required (all that were named)."""

import os
from collections.abc import Iterable

from helpers.errors import UsageError, unknown
from helpers.sglang.environments import environment, environments

MODES = ("off", "auto", "required")


def mode() -> str:
    """The environment variable ORACLE; auto when it is not set."""
    given = os.environ.get("ORACLE") or "auto"
    if given not in MODES:
        raise unknown("ORACLE", given, MODES)
    return given


def askable(releases: Iterable[str], oracle: str | None = None) -> tuple[list[str], str]:
    """The releases that can be asked, and a sentence about the others ("" when there are none).

    UsageError under "required" when one is missing.
    """
    oracle = mode() if oracle is None else oracle
    wanted = list(releases)
    if oracle == "off":
        return [], "no real release was asked (oracle: off)"
    there = environments()
    missing = [release for release in wanted if release not in there]
    if missing and oracle == "required":
        raise UsageError(f'sglang {", ".join(missing)} not built, and the oracle is required: make sglang RELEASES="{" ".join(missing)}"')
    said = f'not asked, because not built: sglang {", ".join(missing)} (make sglang RELEASES="{" ".join(missing)}")' if missing else ""
    return [release for release in wanted if release in there], said


def loadable(releases: Iterable[str], oracle: str | None = None) -> tuple[list[str], str]:
    """The same for the question how weights are loaded, which needs the kernel packages too."""
    oracle = mode() if oracle is None else oracle
    there, said = askable(releases, oracle)
    without = []
    for release in there:
        try:
            environment(release).with_kernels()
        except UsageError:
            if oracle == "required":
                raise
            without.append(release)
    if without:
        said = "; ".join(filter(None, (said, f"not asked to load, because built without FlashInfer: sglang {', '.join(without)}")))
    return [release for release in there if release not in without], said
