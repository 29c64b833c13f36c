"""The model types each release's transformers pin, with SGLang's own additions, has a config class for (data/model_types.json).

And which of those lose a quantisation that stands in the language model's nested config (data/lost_sections.json).
"""

import json
from functools import cache

from helpers.deployment.releases import RELEASES, Release
from helpers.paths import DATA


@cache
def _table(file: str) -> dict:
    return json.loads((DATA / file).read_text())


@cache
def releases_with(model_type: str) -> tuple[Release, ...]:
    """The releases that know this ``model_type`` of a config.json, oldest first."""
    span = _table("model_types.json").get(model_type)
    if span is None:
        return ()
    return tuple(release for release in RELEASES if release.at_least(span["first"]) and release.position <= _position(span["last"]))


@cache
def keeps_nested_section(model_type: str, key: str, release: Release) -> bool | None:
    """Does a ``quantization_config`` inside config.json's `key` reach the parsed config? None where this is not known.

    get_config (utils/hf_transformers/config.py) copies onto the parsed config what only the language model's has; a config class of
    SGLang's own is read again after that, and only some of those copy it themselves.
    """
    if release not in releases_with(model_type):
        return None
    spans = _table("lost_sections.json").get(model_type, ())
    found = next((s for s in spans if release.at_least(s["first"]) and release.position <= _position(s["last"])), {})
    return None if key in found.get("unclear", ()) else key not in found.get("lost", ())


def _position(version: str) -> int:
    return next(release.position for release in RELEASES if release.version == version)
