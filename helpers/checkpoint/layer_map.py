"""Which algorithm each module has, as one JSON copy says it, by the checkpoint's own names.

This is the checkpoint's side only. Which of these names a running SGLang asks for, and what it makes of them, is the route stage.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import translate
from functools import cached_property

from helpers.checkpoint.config_copies import CONFIG, QUANT, inline_quantization
from helpers.checkpoint.names import module_kind, prefix_family, printable, split_expert
from helpers.errors import InputError

# Two spellings of one format: a release of ModelOpt writes the first into config.json and the second into hf_quant_config.json.
SAME_FORMAT = {"FP8_PB_WO": "FP8_BLOCK_SCALES"}
GROUPED = ("NVFP4", "W4A16_NVFP4")


@dataclass(frozen=True, eq=False)
class LayerMap:
    """One copy's statement. Algorithms are spelled as written; compare them through ``same_format``.

    copy: "config.json", "hf_quant_config.json" or "none". entries: module name -> algorithm, in file order (``quantized_layers``);
    empty for a flat checkpoint, whose every linear has quant_algo unless excluded. groups: compressed-tensors' (target, algorithm)
    pairs, targets "Linear", a name, or "re:…". group_size: elements that share one NVFP4 block scale. kv_cache: "FP8", None or as written.
    """

    copy: str
    quant_method: str | None = None
    quant_algo: str | None = None
    moe_quant_algo: str | None = None
    entries: Mapping[str, str] = field(default_factory=dict)
    groups: tuple[tuple[str, str], ...] = ()
    excludes: tuple[str, ...] = ()
    group_size: int | None = None
    kv_cache: str | None = None
    producer: str = ""

    @cached_property
    def blocks(self) -> dict[str, Counter]:
        """entries with the numbered experts of a block taken together: ``….experts`` -> Counter of algorithms; others one each."""
        blocks: dict[str, Counter] = {}
        for name, algorithm in self.entries.items():
            head, dot, tail = name.partition(".experts.")
            block = head + ".experts" if dot and tail[:1].isdigit() else name
            counter = blocks.get(block)
            if counter is None:
                counter = blocks[block] = Counter()
            counter[algorithm] += 1
        return blocks

    @cached_property
    def key_style(self) -> str:
        """Either "per expert" (a key for every expert), "fused" (one key a block), or "none" (no expert key at all)."""
        for name in self.entries:
            if split_expert(name):
                return "per expert"
        return "fused" if any(module_kind(name) == "routed experts" for name in self.entries) else "none"

    @cached_property
    def prefix_family(self) -> str:
        """How its layer names begin, ``model.language_model.layers.`` and the like; "" when it names no layer."""
        return prefix_family((*self.entries, *self.excludes))

    def kinds(self, layers: int | None = None) -> dict[str, Counter]:
        """kind of module -> Counter of algorithms, over blocks (a block of experts counts once an algorithm)."""
        kinds: dict[str, Counter] = {}
        for block, algorithms in self.blocks.items():
            kinds.setdefault(module_kind(block, layers), Counter()).update(set(algorithms))
        return kinds

    def excluded_by(self, module: str) -> str | None:
        """The first exclude pattern that covers the module or a module around it, as ModelOpt means its patterns; else None."""
        if not self.is_excluded(module):
            return None
        return next(pattern for pattern in self.excludes if re.match(_covering(pattern), module))

    def is_excluded(self, module: str) -> bool:
        """Whether a pattern covers the module; ``excluded_by`` says which, at the price of trying them one by one."""
        exact, prefixes, others = self._exclude_index
        return module.startswith(prefixes) or not exact.isdisjoint(_around(module)) or any(other.match(module) for other in others)

    @cached_property
    def _exclude_index(self) -> tuple[frozenset[str], tuple[str, ...], tuple[re.Pattern, ...]]:
        """(names, prefixes of ``prefix*``, all other patterns): real lists have hundreds of the first two and a handful of the third."""
        exact, prefixes, others = set(), [], []
        for pattern in self.excludes:
            stem = pattern.removesuffix("*")
            if pattern.startswith("re:") or set("*?[") & set(stem):
                others.append(re.compile(_covering(pattern)))
            elif stem == pattern:
                exact.add(pattern)
            else:
                prefixes.append(stem)
        return frozenset(exact), tuple(prefixes), tuple(others)

    def algorithm(self, module: str) -> str | None:
        """What this copy says the module is, by the checkpoint's own names; None: not quantised.

        The module's own entry, else that of a block around it, else the one algorithm of the modules inside it; a flat copy says its
        quant_algo for everything that is not excluded and that a quantiser would take (linears and experts).
        """
        if self.is_excluded(module):
            return None
        if self.entries:
            return self._from_entries(module)
        if self.groups:
            return next((algorithm for target, algorithm in self.groups if _target_matches(target, module)), None)
        flat = None if (self.quant_algo or "").upper() == "MIXED_PRECISION" else self.quant_algo
        return flat if flat and module_kind(module) not in ("norm", "embedding") else None

    def _from_entries(self, module: str) -> str | None:
        for name in _around(module):
            if name in self.entries:
                return self.entries[name]
        inside = self.blocks.get(module) or self._parents.get(module)
        return next(iter(inside)) if inside and len(inside) == 1 else None

    @cached_property
    def _parents(self) -> dict[str, Counter]:
        parents: dict[str, Counter] = {}
        for block, algorithms in self.blocks.items():
            parents.setdefault(block.rpartition(".")[0], Counter()).update(algorithms)
        return parents


def same_format(one: str | None, other: str | None) -> bool:
    return _format(one) == _format(other)


def _format(algorithm: str | None) -> str | None:
    upper = algorithm.upper() if algorithm else None
    return SAME_FORMAT.get(upper, upper)


def _around(module: str) -> Iterator[str]:
    """The module and everything around it: ``a.b.c``, ``a.b``, ``a``."""
    while module:
        yield module
        module = module.rpartition(".")[0]


def _covering(pattern: str) -> str:
    """A regular expression that matches the names a pattern covers: itself, and everything below it."""
    if pattern.startswith("re:"):
        return pattern[3:]
    return translate(pattern).removesuffix(r"\Z") + r"(?s:\..*)?\Z"


def _target_matches(target: str, module: str) -> bool:
    if target == "Linear":
        return module_kind(module) not in ("norm", "embedding", "router")
    if target.startswith("re:"):
        return re.match(target[3:], module) is not None
    return module == target or module.startswith(target + ".")


def layer_maps(config: dict, hf_quant: dict | None) -> dict[str, LayerMap]:
    """copy -> its LayerMap, for the copies that exist. InputError names the file and the key that has a wrong type."""
    maps = {}
    inline = inline_quantization(config)
    if inline is not None:
        maps[CONFIG] = _read_copy(CONFIG, "quantization_config", inline, {})
    if hf_quant is not None:
        section = hf_quant.get("quantization", hf_quant)
        if not isinstance(section, dict):
            raise InputError(f"{QUANT}: quantization is a {type(section).__name__}, not an object; restore the model's own file")
        maps[QUANT] = _read_copy(QUANT, "quantization", section, hf_quant)
    return maps


def _read_copy(copy: str, section: str, quant: dict, around: dict) -> LayerMap:
    def typed(key: str, kind: type, source: dict = quant):
        value = source.get(key)
        if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
            raise _wrong(copy, f"{section}.{key}", value, kind.__name__)
        return value

    entries, entry_sizes = _entries(copy, f"{section}.quantized_layers", typed("quantized_layers", dict) or {})
    groups, sizes = _groups(copy, f"{section}.config_groups", typed("config_groups", dict) or {})
    producer = quant.get("producer") or around.get("producer") or {}
    version = producer.get("version", "") if isinstance(producer, dict) else producer
    return LayerMap(
        copy=copy,
        quant_method=typed("quant_method", str) or typed("quant_method", str, around),
        quant_algo=typed("quant_algo", str),
        moe_quant_algo=typed("moe_quant_algo", str),
        entries=entries,
        groups=groups if quant.get("quant_method") == "compressed-tensors" else (),
        excludes=_excludes(copy, section, quant),
        group_size=next((size for size in (typed("group_size", int), *entry_sizes, *sizes) if size), None),
        kv_cache=_kv_cache(quant),
        producer=str(version),
    )


def _wrong(copy: str, key: str, value: object, wanted: str) -> InputError:
    return InputError(
        f"{copy}: {printable(key)} is {str(value)[:60]!r} ({type(value).__name__}), not {wanted}; restore the model's own file"
    )


def _entries(copy: str, key: str, layers: dict) -> tuple[dict[str, str], list[int]]:
    """(module -> algorithm, the distinct group sizes of its NVFP4 entries in file order)."""
    try:
        entries = {name: entry["quant_algo"] for name, entry in layers.items()}
        sizes = dict.fromkeys(entry["group_size"] for entry in layers.values() if "group_size" in entry)
        if all(type(algorithm) is str for algorithm in entries.values()) and all(type(size) is int for size in sizes):
            return entries, list(sizes)
    except (TypeError, KeyError):
        pass  # the loop below says which entry it was
    for name, entry in layers.items():
        if not isinstance(entry, dict):
            raise _wrong(copy, f"{key}.{name}", entry, "object")
        if not isinstance(entry.get("quant_algo"), str):
            raise _wrong(copy, f"{key}.{name}.quant_algo", entry.get("quant_algo"), "str")
        if type(entry.get("group_size", 16)) is not int:
            raise _wrong(copy, f"{key}.{name}.group_size", entry["group_size"], "int")
    raise AssertionError("an entry was refused, and none is wrong")


def _groups(copy: str, key: str, groups: dict) -> tuple[tuple[tuple[str, str], ...], list[int]]:
    """((target, algorithm) pairs, group sizes) of ``config_groups``: ModelOpt's describes, compressed-tensors' decides."""
    pairs, sizes = [], []
    for name, group in groups.items():
        if not isinstance(group, dict):
            raise _wrong(copy, f"{key}.{name}", group, "object")
        weights = group.get("weights") or {}
        activations = group.get("input_activations")
        targets = group.get("targets") or []
        if not isinstance(weights, dict) or not isinstance(targets, list):
            raise _wrong(copy, f"{key}.{name}", group, "weights as an object and targets as a list")
        if isinstance(weights.get("group_size"), int):
            sizes.append(weights["group_size"])
        algorithm = _compressed_tensors_algorithm(weights, activations)
        pairs += [(_checked(copy, f"{key}.{name}.targets", target), algorithm) for target in targets if isinstance(target, str)]
    return tuple(pairs), sizes


def _compressed_tensors_algorithm(weights: dict, activations: object) -> str:
    """The ModelOpt name of a compressed-tensors scheme, so that both kinds of checkpoint can be compared."""
    bits, kind, strategy = weights.get("num_bits"), weights.get("type"), weights.get("strategy")
    if (bits, kind) == (4, "float"):
        return "NVFP4" if activations else "W4A16_NVFP4"
    if (bits, kind) == (8, "float"):
        return "FP8_BLOCK_SCALES" if strategy == "block" else "FP8"
    return f"{str(kind).upper()}{bits}"


def _excludes(copy: str, section: str, quant: dict) -> tuple[str, ...]:
    for key in ("ignore", "exclude_modules", "modules_to_not_convert"):
        value = quant.get(key)
        if value is not None:
            if not isinstance(value, list) or not all(isinstance(pattern, str) for pattern in value):
                raise _wrong(copy, f"{section}.{key}", value, "a list of names")
            return tuple(_checked(copy, f"{section}.{key}", pattern) for pattern in value)
    return ()


def _checked(copy: str, key: str, pattern: str) -> str:
    """The pattern, after a look at whether a ``re:…`` one is a regular expression at all."""
    if pattern.startswith("re:"):
        try:
            re.compile(pattern[3:])
        except (re.error, RecursionError, OverflowError):
            raise _wrong(copy, key, pattern, "a regular expression after 're:'") from None
    return pattern


def _kv_cache(quant: dict) -> str | None:
    value = quant.get("kv_cache_quant_algo", quant.get("kv_cache_scheme"))
    if isinstance(value, dict):
        value = "FP8" if (value.get("num_bits"), value.get("type")) == (8, "float") else str(value)
    return None if value is None else printable(str(value))
