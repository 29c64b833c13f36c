"""How SGLang finds a module of the running model in the names a ModelOpt checkpoint wrote.

The running model has its own names ("prefixes"): ``model.layers.3.mlp.experts`` is one module, whatever the checkpoint
calls its parts. Three questions are asked with a prefix, each by other rules:

* is it excluded?       shell-like globs, tried on the whole prefix **and on each dotted part** (`Excludes.excluded_by`)
* is it skipped?        plain names, compared on dotted boundaries, linear layers only (`Excludes.skipped_by`)
* which algorithm?      the per-layer map, by exact name, then packed parts, then the first child (`LayerAlgorithms.resolve`)

Sources: layers/quantization/modelopt_quant.py (ModelOptQuantConfig.is_layer_excluded, ModelOptMixedPrecisionConfig.
_resolve_quant_algo and _quantized_layer_prefix_candidates), layers/quantization/utils.py (is_layer_skipped,
_module_path_match), models/utils.py (WeightsMapper).
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from helpers.errors import InputError

# A glob of these characters only needs no regular expression; anything else is live regex syntax in SGLang too.
_PLAIN_GLOB = re.compile(r"[\w.*\-:/ \x00]*", re.ASCII)

# Parts of DeepSeek's fused projections: an exclude that ends in one of them matches any prefix whose last part contains it.
_FUSED_PARTS = ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj")

# Fused projections `is_layer_skipped` takes apart even when the model class has no packed_modules_mapping of its own.
_FALLBACK_PACKED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}


class Unloadable(Exception):
    """SGLang raises while it builds the model: type and text as it prints them."""

    def __init__(self, error: str, message: str, source: str):
        super().__init__(message)
        self.error, self.message, self.source = error, message, source


@dataclass(frozen=True)
class Match:
    """Why a prefix is excluded: the pattern, and the whole prefix or the one dotted part that it matched."""

    pattern: str
    matched: str


_Glob = list[str] | re.Pattern


class _Globs:
    """Globs with the index each has in the exclude list. stems: those that only end in a star."""

    def __init__(self, stems: list[tuple[int, str]], others: list[tuple[int, _Glob]]):
        self._stems, self._others = stems, others
        self._any_stem = tuple(stem for _, stem in stems)

    def first(self, text: str, best: int) -> int:
        """The smallest index below ``best`` whose glob matches ``text``, else ``best``."""
        if text.startswith(self._any_stem):
            best = min(best, next(index for index, stem in self._stems if text.startswith(stem)))
        for index, glob in self._others:
            if index >= best:
                break
            if _is_glob_match(glob, text) if isinstance(glob, list) else glob.fullmatch(text):
                return index
        return best


def _is_glob_match(pieces: list[str], text: str) -> bool:
    """Does ``text`` match the glob whose parts between the stars are ``pieces``?"""
    if not text.startswith(pieces[0]) or not text.endswith(pieces[-1]) or len(text) < sum(map(len, pieces)):
        return False
    at, end = len(pieces[0]), len(text) - len(pieces[-1])
    for piece in pieces[1:-1]:
        found = text.find(piece, at, end)
        if found < 0:
            return False
        at = found + len(piece)
    return at <= end


class Excludes:
    """The exclude list of one quantization config, prepared so that a lookup does not scan it.

    Public exports list hundreds of names, and each is asked for every module and every dotted part. Names without a star go into
    a dictionary; globs that only end in a star are asked all at once; "the first pattern of the list that matches" stays what
    SGLang finds.
    """

    def __init__(self, patterns: Sequence[str], *, strip_dots: bool = True):
        """strip_dots: trailing dots of a name do not count (`is_layer_skipped` from 0.5.13). InputError for what is no list of names."""
        if not isinstance(patterns, list | tuple) or not all(isinstance(pattern, str) for pattern in patterns):
            raise InputError(
                f"the exclude list (ignore, exclude_modules) is {str(patterns)[:60]!r}, not a list of names; "
                "restore the model's own config.json and hf_quant_config.json"
            )
        self.patterns = tuple(patterns)
        self._literal: dict[str, int] = {}
        self._names: dict[str, int] = {}
        self._fused: list[tuple[int, str]] = []
        stems: list[tuple[int, str]] = []
        others: list[tuple[int, _Glob]] = []
        for index, pattern in enumerate(self.patterns):
            if not _PLAIN_GLOB.fullmatch(pattern):
                others.append((index, _compiled(pattern)))
            elif "*" not in pattern:
                self._literal.setdefault(pattern, index)
            elif pattern.index("*") == len(pattern) - 1:
                stems.append((index, pattern[:-1]))
            else:
                others.append((index, pattern.split("*")))
            tail = pattern.rsplit(".", 1)[-1]
            if tail in _FUSED_PARTS:
                self._fused.append((index, tail))
            self._names.setdefault(pattern.rstrip(".") if strip_dots else pattern, index)
        self._whole = _Globs(stems, others)
        # A dotted part has no dot of its own, so a pattern that asks for one cannot match it.
        self._part = _Globs(
            [(index, stem) for index, stem in stems if "." not in stem],
            [(index, glob) for index, glob in others if not isinstance(glob, list) or not any("." in piece for piece in glob)],
        )
        self._expert_names = "\n".join(name for name in self.patterns if "experts" in name)

    def excluded_by(self, prefix: str) -> Match | None:
        """The first pattern that excludes ``prefix``, or None. modelopt_quant.py: is_layer_excluded."""
        if not self.patterns:
            return None
        variants = [prefix]
        if prefix.startswith("language_model."):
            variants.append(prefix.removeprefix("language_model."))
        best, matched = len(self.patterns), ""
        for variant in variants:
            for text, globs in ((variant, self._whole), *((part, self._part) for part in variant.split("."))):
                index = min(self._literal.get(text, best), globs.first(text, best))
                if index < best:
                    best, matched = index, text
        last = prefix.rsplit(".", 1)[-1]
        for index, tail in self._fused:
            if index < best and tail in last:
                best, matched = index, last
        return Match(self.patterns[best], matched) if best < len(self.patterns) else None

    def skipped_by(self, prefix: str, packed: Mapping[str, Sequence[str]]) -> Match | None:
        """The name that makes ``is_layer_skipped`` true for a linear layer, or None; Unloadable when it raises.

        layers/quantization/utils.py: is_layer_skipped. Stars mean nothing here.
        """
        if not self.patterns:
            return None
        last = prefix.rsplit(".", 1)[-1]
        parts = packed.get(last) or _FALLBACK_PACKED.get(last) if last in packed or last in _FALLBACK_PACKED else None
        if parts is not None:
            found = [self._named(prefix.replace(last, part)) for part in parts]
            if any(found) and not all(found):
                raise Unloadable(
                    "ValueError",
                    f"Detected some but not all shards of {prefix} are quantized. All shards of fused layers to have the same precision.",
                    "layers/quantization/utils.py: is_layer_skipped",
                )
            return found[0]
        named = self._named(prefix)
        if named is None and "experts" in prefix and "gate_up_proj" not in prefix and prefix in self._expert_names:
            pattern = next(name for name in self.patterns if "experts" in name and prefix in name)
            return Match(pattern, prefix)
        return named

    def _named(self, prefix: str) -> Match | None:
        """The first name that is ``prefix`` or a run of its dotted parts. utils.py: _module_path_match."""
        parts = prefix.split(".")
        best, matched = len(self.patterns), ""
        for start in range(len(parts)):
            for stop in range(start + 1, len(parts) + 1):
                run = ".".join(parts[start:stop])
                index = self._names.get(run, best)
                if index < best:
                    best, matched = index, run
        return Match(self.patterns[best], matched) if best < len(self.patterns) else None


def _compiled(pattern: str) -> re.Pattern:
    try:
        return re.compile(pattern.replace(".", r"\.").replace("*", r".*"))
    except re.error as problem:
        raise Unloadable("error", str(problem), "layers/quantization/modelopt_quant.py: is_layer_excluded") from None


@dataclass(frozen=True)
class Mapper:
    """A model class's renaming of checkpoint names to its own. models/utils.py: WeightsMapper.

    Each table maps a text to its replacement. Of each table the longest entry that fits is applied once, substrings first. Suffixes
    and dropped names, which SGLang knows as well, are in no class of modules.py.
    """

    substr: Mapping[str, str] = field(default_factory=dict)
    prefix: Mapping[str, str] = field(default_factory=dict)

    def rename(self, name: str) -> str:
        for table, fits in ((self.substr, str.__contains__), (self.prefix, str.startswith)):
            old = max((old for old in table if fits(name, old)), key=len, default=None)
            if old is not None:
                name = name.replace(old, table[old], 1)
        return name

    def rename_excludes(self, names: Iterable[str]) -> list[str]:
        """Renamed, and once more without a leading ``language_model.``. modelopt_quant.py: apply_weight_name_mapper."""
        both = (form for new in map(self.rename, names) for form in (new, new.removeprefix("language_model.")))
        return list(dict.fromkeys(both))


@dataclass(frozen=True)
class Resolution:
    """Which algorithm a prefix got and how. candidates: every name tried, in order, with the map key it matched (None: none).

    how: "exact", "packed", "child" or "" (no algorithm).
    """

    algorithm: str | None
    key: str | None
    how: str
    candidates: tuple[tuple[str, str | None], ...]


class LayerAlgorithms:
    """A MIXED_PRECISION checkpoint's ``quantized_layers``, indexed once so that a lookup does not scan it.

    SGLang looks for the first key *in the order of the file* that starts with ``prefix + "."``; the index remembers for
    every dotted ancestor which key came first, and stops climbing at an ancestor that an earlier key already gave.
    """

    def __init__(self, layers: Mapping[str, Mapping]):
        self.layers = layers
        self.first_child: dict[str, str] = {}
        for key in layers:
            dot = key.rfind(".")
            while dot > 0:
                ancestor = key[:dot]
                if ancestor in self.first_child:
                    break
                self.first_child[ancestor] = key
                dot = key.rfind(".", 0, dot)

    @cached_property
    def blocks(self) -> dict[str, dict[str, str]]:
        """Expert block -> {algorithm: its first key}: the entries of what SGLang builds as one module."""
        blocks: dict[str, dict[str, str]] = {}
        for key, entry in self.layers.items():
            head, found, _ = key.partition(".experts.")
            if found:
                blocks.setdefault(f"{head}.experts", {}).setdefault(str(entry.get("quant_algo", "")).upper(), key)
        return blocks

    def algorithm(self, key: str) -> str:
        """The map's algorithm for one of its keys, upper-cased; Unloadable as SGLang fails."""
        try:
            return self.layers[key]["quant_algo"].upper()
        except (KeyError, TypeError, AttributeError) as error:
            where = "layers/quantization/modelopt_quant.py: _resolve_quant_algo"
            raise Unloadable(type(error).__name__, str(error), where) from None

    def resolve(self, prefix: str, packed: Mapping[str, Sequence[str]], *, candidates=None) -> Resolution:
        """The algorithm of ``prefix``. candidates: names to try (release dependent), default the prefix alone.

        modelopt_quant.py: ModelOptMixedPrecisionConfig._resolve_quant_algo. Unloadable when packed parts disagree.
        """
        names = candidates(prefix) if candidates else (prefix,)
        tried: list[tuple[str, str | None]] = []
        for name in names:
            if name in self.layers:
                return Resolution(self.algorithm(name), name, "exact", (*tried, (name, name)))
            tried.append((name, None))
        base, _, last = prefix.rpartition(".")
        if last in packed:
            found: dict[str, str] = {}
            for name in candidates(base or prefix) if candidates else (base or prefix,):
                for part in packed[last]:
                    shard = f"{name}.{part}"
                    tried.append((shard, shard if shard in self.layers else None))
                    if shard in self.layers:
                        found.setdefault(self.algorithm(shard), shard)
            if len(found) > 1:
                raise Unloadable(
                    "ValueError",
                    f"Mixed quant_algo within fused layer {prefix}: {{{', '.join(map(repr, sorted(found)))}}}. "
                    "All shards must use the same quantization.",
                    "layers/quantization/modelopt_quant.py: _resolve_quant_algo",
                )
            if found:
                algorithm, shard = next(iter(found.items()))
                return Resolution(algorithm, shard, "packed", tuple(tried))
        for name in names:
            child = self.first_child.get(name)
            tried.append((name + ".", child))
            if child is not None:
                return Resolution(self.algorithm(child), child, "child", tuple(tried))
        return Resolution(None, None, "", tuple(tried))


def exact_only(prefix: str) -> tuple[str, ...]:
    """Up to 0.5.14 only the prefix itself is looked for."""
    return (prefix,)


def language_model_swapped(prefix: str) -> tuple[str, ...]:
    """0.5.15 to 0.5.19: also ``lm_head``, and ``language_model.model.`` for ``model.language_model.`` and back."""
    names = [prefix]
    if prefix.endswith(".lm_head"):
        names.append("lm_head")
    if prefix.startswith("language_model.model."):
        names.append("model.language_model." + prefix.removeprefix("language_model.model."))
    elif prefix.startswith("model.language_model."):
        names.append("language_model.model." + prefix.removeprefix("model.language_model."))
    return tuple(dict.fromkeys(names))


def language_model_inserted(prefix: str) -> tuple[str, ...]:
    """From 0.5.20: ``model.X`` and ``model.language_model.X`` are tried for each other as well (Qwen4-Exp, sglang#38121)."""
    names = list(language_model_swapped(prefix))
    if prefix.startswith("model.language_model."):
        names.append("model." + prefix.removeprefix("model.language_model."))
    elif prefix.startswith("model."):
        names.append("model.language_model." + prefix.removeprefix("model."))
    return tuple(dict.fromkeys(names))


def candidates_of(release) -> object:
    """The function from a prefix to the names looked for, of one release.

    modelopt_quant.py: _quantized_layer_prefix_candidates, new in 0.5.15, widened in 0.5.20.
    """
    if release.at_least("0.5.20"):
        return language_model_inserted
    return language_model_swapped if release.at_least("0.5.15") else exact_only
