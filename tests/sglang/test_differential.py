"""The model held equal to real releases. ORACLE=required: all of CI's releases must be built; auto: those that are; off: none."""

import os
import random
import sys
from collections import defaultdict

import pytest

from helpers.deployment import RELEASES, release
from helpers.sglang import breaking
from helpers.sglang.build import DEFAULT_RELEASES
from helpers.sglang.compare import judge_arguments, judge_modules
from helpers.sglang.differential import compare_releases, known
from helpers.sglang.oracle import askable, mode
from helpers.sglang.ranks import judge_rank
from helpers.stages import consequences, load

pytestmark = pytest.mark.timeout(14_400)  # all sixteen releases take about an hour and a half

# DIFFERENTIAL="all" or releases separated by blanks; SAMPLE and MUTANTS: how many drawn launches and variations a checkpoint.
WANTED = os.environ.get("DIFFERENTIAL") or " ".join(DEFAULT_RELEASES)
NAMES = [known.version for known in RELEASES] if WANTED == "all" else WANTED.split()
SAMPLE, MUTANTS = 20, 3


@pytest.fixture(scope="module")
def report(request):
    there, missing = askable(NAMES)
    if not there:
        pytest.skip(missing)
    capture = request.config.pluginmanager.getplugin("capturemanager")

    def say(line):
        with capture.global_and_fixture_disabled():
            print(line, file=sys.stderr, flush=True)

    say(f"\n{missing}" if missing else "")
    report = compare_releases([release(name) for name in there], SAMPLE, MUTANTS, say)
    for group in report.groups()[:20]:
        say(f"{len(group)} like this: {group[0]}")
    say(report.last_line)
    return report


@pytest.mark.parametrize("name", NAMES)
def test_release_was_compared(name):
    there, missing = askable([name])
    if not there:
        pytest.skip(missing)


def test_the_model_and_the_releases_agree(report):
    assert not report.disagreements, f"{report.last_line}; the first: {report.disagreements[0]}"


def test_the_questions_are_distinct_and_as_many_as_promised(report):
    assert len(report.asked) == report.questions
    if mode() == "required":
        assert report.questions >= 30_000
        assert report.modules >= 70_000


def test_every_known_disagreement_still_occurs(report):
    compared = set(askable(NAMES)[0])
    for entry in known():
        if entry.releases == ("all",) or set(entry.releases) & compared:
            assert report.explained[entry.id], f"{entry.id} no longer occurs: remove it from data/known_disagreements.toml"


# Releases outside CI's three, by what they are before or after.
BEFORE_0_5_13 = ("0.5.11", "0.5.12", "0.5.12.post1")
BEFORE_0_5_14 = (*BEFORE_0_5_13, "0.5.13", "0.5.13.post1")
BEFORE_0_5_15 = (*BEFORE_0_5_14, "0.5.14")
NONE = ()
# What an admission rule does without any compared answer showing it, each with its reason.
NOT_SHOWN = {}
# Admission rules that no question to CI's releases reaches, each with the releases that have them.
REACHED_ELSEWHERE = {
    "kimi_k3.kernels": ("0.5.17",),
    "radix_cache": BEFORE_0_5_14,
}
# Conditions that no question to CI's releases asks, each with the releases that do.
ASKED_ELSEWHERE = {
    "detect.py _mixed_name: checkpoint.config.get('model_type') == 'nemotron_h' or any((name.startswith('NemotronH') for name in "
    "architectures))": BEFORE_0_5_15,
    "detect.py _generic_modelopt: algorithm in ('MXFP8', 'FP8')": ("0.5.18",),
    "attention.py _gemma4: r.facts.architecture == 'Gemma4ForCausalLM'": BEFORE_0_5_13,
    "budget.py early_budget_rules: r.a2a == 'megamoe' or by_variable": ("0.5.17", "0.5.18", "0.5.19", "0.5.20"),
    # A DeepSeek V3 with weights and without any section: no bundled checkpoint is that, and one in memory has no weights.
    "facts.py Facts.has_fp8_experts: 'experts' in name and 'weight' in name": NONE,
}
# Conditions that CI's releases ask without any answer depending on it, each with the releases whose answers do.
HELD_ELSEWHERE = {"a2a.py _deepep_v2_architectures: release.at_least('0.5.21')": ("0.5.19", "0.5.20")}  # their error lists the names
_WORDS = "words a step or a finding, and decides nothing"
# Conditions that may be turned round without any compared answer changing, each with its reason.
NOT_HELD = {
    "detect.py detect: release.at_least('0.5.14')": _WORDS,
    "detect.py detect: error": _WORDS,
    "admit.py admit: not (refused.rule == 'model_config' and detection.error)": _WORDS,
    "a2a.py _deepep: r.deepep_mode == 'normal'": _WORDS,
    "families.py cohere2: packed": _WORDS,
    "methods.py _flat: fp8": "names the algorithm; the method is chosen further down",
    "methods.py _flat: spec.w4a16": "names the algorithm; the method is chosen further down",
    "methods.py _fp8: spec.name == 'mxfp8'": "names the algorithm; the method is one",
    "methods.py _fp8: spec.block": "names the algorithm; the method is one",
    "methods.py _online: spec.serialized #2": "names the algorithm; the method is chosen above",
    "methods.py _compressed: matched": "names the pattern",
    "modules.py _minimax_m3_packed: release.at_least('0.5.20')": "index_v_proj left the packed parts, and no checkpoint quantises one",
    "budget.py _megamoe: r.release.at_least('0.5.23')": "adds the flag minimax_m3_nvfp4, for an MXFP8 MiniMax M3, of which none is bundled",
    "families.py deepseek: r.release.at_least('0.5.12') #2": "followed by the weights that has_fp8_experts reads: see above",
    "families.py deepseek: not r.quantization_unset_on_purpose": "followed by the weights that has_fp8_experts reads: see above",
}


def _differs(judge, *recorded) -> bool:
    """Whether the broken model answers otherwise than the release; it may also fall over."""
    try:
        found = judge(*recorded)
    except Exception:  # noqa: BLE001  a broken model may raise anything, and that is noticed
        return True
    return found is not None and not any(entry.explains(found) for entry in known())


def _needs_all_three():
    """A rule is held by the release that has it, so these tests mean something only with all of CI's releases."""
    if not set(DEFAULT_RELEASES) <= set(askable(NAMES)[0]):
        pytest.skip(f"needs sglang {', '.join(DEFAULT_RELEASES)} together")


def _not_here(elsewhere: dict) -> set[str]:
    """The entries none of whose releases is compared now."""
    return {name for name, releases in elsewhere.items() if not set(releases) & set(askable(NAMES)[0])}


@pytest.fixture(scope="module")
def launches(report):
    """The recorded launches in an order that mixes checkpoints, GPUs and releases: neighbours differ in little."""
    launches = list(report.launches)
    random.Random(0).shuffle(launches)
    return launches


@pytest.fixture(scope="module")
def hits(launches):
    """(rule, what it did) -> the recorded launches in which it did."""
    hits = defaultdict(list)
    for question, real in launches:
        seen = set()
        with breaking.watched(seen):
            if _differs(judge_arguments, question, real):
                continue  # a disagreement of its own would be taken for the break's
        for what in seen:
            hits[what].append((question, real))
    return hits


def test_breaking_any_admission_rule_is_noticed(hits):
    _needs_all_three()
    quiet = set()
    for (rule, action), launches in hits.items():
        with breaking.without(rule, action):
            if not any(_differs(judge_arguments, question, real) for question, real in launches):
                quiet.add(f"{rule}: {action}")
    assert quiet == set(NOT_SHOWN)


def test_every_admission_rule_is_asked(hits):
    """A rule that no question reaches is not held by the comparison."""
    _needs_all_three()
    unreached = {rule for rule, _ in breaking.named_rules()} - {rule for rule, _ in hits}
    assert unreached == _not_here(REACHED_ELSEWHERE)


@pytest.fixture(scope="module")
def turned(report, launches):
    """(conditions that nothing asks, conditions whose turning round nothing notices), as texts.

    Only what asks a condition can notice it, so each is held against that alone, small models first. What detect and route remember
    is forgotten before each question, so that every one counts for all that it asks.
    """
    _needs_all_three()
    with breaking.wired(*breaking.ROUTING, *breaking.ADMISSION) as wiring:
        asking = defaultdict(list)
        models = sorted(report.models, key=lambda recorded: len(recorded[2].modules))
        for judge, recorded in [*((judge_modules, model) for model in models), *((judge_arguments, launch) for launch in launches)]:
            wiring.turn(None)
            asker = (judge, recorded)
            if not _differs(judge, *recorded):
                for condition in wiring.seen:
                    asking[condition].append(asker)
        unasked = {str(condition) for condition in wiring.conditions if condition not in asking}
        quiet = set()
        for condition, askers in asking.items():
            wiring.turn(condition)
            if not any(_differs(judge, *recorded) for judge, recorded in askers):
                quiet.add(str(condition))
    return unasked, quiet


def test_every_condition_is_asked(turned):
    assert turned[0] == _not_here(ASKED_ELSEWHERE)


def test_turning_round_any_condition_is_noticed(turned):
    assert turned[1] == set(NOT_HELD) | _not_here(HELD_ELSEWHERE)


@pytest.mark.parametrize(
    "rule", [load.ranks_do_not_divide, load.heads_do_not_divide, load.more_ranks_than_experts, load.experts_do_not_divide]
)
def test_leaving_out_a_rule_about_ranks_is_noticed(report, rule, monkeypatch):
    _needs_all_three()
    monkeypatch.setattr(consequences, "RULES", tuple(kept for kept in consequences.RULES if kept is not rule))
    assert any(_differs(judge_rank, *recorded) for recorded in report.ranks)
