"""The model types each release's transformers pin, with SGLang's own additions, has a config class for (data/model_types.json)."""

import json
from functools import cache

from helpers.deployment.releases import RELEASES, Release
from helpers.paths import DATA


@cache
def _table() -> dict[str, dict[str, str]]:
    return json.loads((DATA / "model_types.json").read_text())


@cache
def releases_with(model_type: str) -> tuple[Release, ...]:
    """The releases that know this ``model_type`` of a config.json, oldest first."""
    span = _table().get(model_type)
    if span is None:
        return ()
    return tuple(release for release in RELEASES if release.at_least(span["first"]) and release.position <= _position(span["last"]))


def _position(version: str) -> int:
    return next(release.position for release in RELEASES if release.version == version)
