"""The state that SGLang's argument resolution works on, and how a rule reads it, changes it or refuses."""

from collections.abc import Mapping
from typing import NoReturn

from helpers.deployment import Deployment
from helpers.stages.admission.facts import Facts
from helpers.stages.admission.sources import source, where
from helpers.stages.steps import Step

_TRUE, _FALSE = ("true", "1", "yes", "y"), ("false", "0", "no", "n")


class Refused(Exception):
    """SGLang raises and the server exits.

    error: the exception's type. message: its exact text. rule: which refusal it is. read, value: what was looked at. place: the
    ``file: function`` that raises.
    """

    def __init__(self, error: str, message: str, rule: str, read: str, value: object, place: str):
        super().__init__(message)
        self.error, self.message, self.rule, self.read, self.value, self.place = error, message, rule, read, value, place


def _draft_tokens(flags: Deployment) -> int:
    """As the flags say; the numbers SGLang picks per model without them are not followed. speculative_hook.py: _handle_eagle_family."""
    if not flags.speculative_algorithm:
        return 1
    if flags.speculative_eagle_topk == 1 and flags.speculative_num_steps:
        return flags.speculative_num_steps + 1
    return flags.speculative_num_draft_tokens or 1


class Resolution:
    """The fields of ServerArgs that these rules read and write, under our names.

    Starts as the flags; ends as what the server runs with. ``flags`` stays as given, because some rules read it on purpose.
    ``attention_dp``: groups of attention data parallelism inside tp, 1 without.
    ``attention``: the attention backend and the tokens of its page, None where that is not known.
    ``exported``: environment variables the server sets. ``draft_tokens``: tokens a request verifies in one forward.
    """

    def __init__(self, flags: Deployment, facts: Facts):
        self.flags = flags
        self.facts = facts
        self.release = flags.release
        self.gpu = flags.gpu
        self.quantization = flags.quantization
        self.quantization_unset_on_purpose = False
        self.model_quantization: str | None = None
        self.runner = flags.runner
        self.a2a = flags.a2a
        self.tp = flags.tp
        self.ep = flags.ep
        self.attention_dp_enabled = flags.enable_dp_attention  # until parallel_rules: SGLang switches it off for one group
        self.attention_dp = flags.dp if flags.enable_dp_attention else 1
        self.deepep_mode = flags.deepep_mode
        self.disable_shared_experts_fusion = flags.disable_shared_experts_fusion
        self.chunked_prefill_size = flags.chunked_prefill_size
        self.max_prefill_tokens = 16384 if flags.max_prefill_tokens is None else flags.max_prefill_tokens
        self.decode_graph_batch = flags.cuda_graph_max_bs
        self.max_running_requests = 48 if flags.speculative_algorithm else None  # speculative_hook.py: its default under speculation
        self.draft_tokens = _draft_tokens(flags)
        self.attention: tuple[str, int] | None = None
        self.dispatch_type = flags.flashinfer_a2a_dispatch_type
        self.environment: Mapping[str, str] = flags.environment
        self.exported: dict[str, str] = {}
        self._trail: list[tuple] = []

    # How a rule reads an environment variable: SGLang falls back to the default on a value it cannot parse.

    def is_set(self, variable: str) -> bool:
        return variable in self.environment or variable in self.exported

    def switch(self, variable: str) -> bool:
        """An on/off variable that is off by default."""
        value = self.exported.get(variable, self.environment.get(variable, "")).lower()
        return value in _TRUE

    def number(self, variable: str, default: int | None) -> int | None:
        try:
            return int(self.environment[variable])
        except (KeyError, ValueError):
            return default

    # How a rule answers.

    def note(self, rule: str, question: str, read: str, value: object, answer: str) -> None:
        """One step for the reader: what was asked, of what, and what follows."""
        self._trail.append((rule, question, read, value, answer))

    def decide(self, rule: str, field: str, value: object, question: str, read: str, seen: object) -> None:
        """Write a field and say why."""
        setattr(self, field, value)
        self._trail.append((rule, question, read, seen, f"{field} = {value}"))

    def export(self, rule: str, variable: str, value: str, question: str, read: str, seen: object) -> None:
        """Set an environment variable for the server's own processes."""
        self.exported[variable] = value
        self._trail.append((rule, question, read, seen, f"{variable}={value}"))

    def refuse(self, rule: str, error: str, message: str, question: str, read: str, value: object, place: str = "") -> NoReturn:
        """End here, as SGLang does. ``rule`` names the one refusal ("kernel.ep"): remedies.py says what to do about each.

        place: the ``file: function`` that raises, where it is not the rule's.
        """
        self._trail.append((rule, question, read, value, f"{error}: {message}"))
        raise Refused(error, message, rule, read, value, place or where(rule, self.release))

    def check(self, rule: str, holds: bool, message: str, question: str, read: str, value: object) -> None:
        """An ``assert`` of SGLang's."""
        if not holds:
            self.refuse(rule, "AssertionError", message, question, read, value)
        self._trail.append((rule, question, read, value, "yes"))

    def steps(self) -> tuple[Step, ...]:
        return tuple(
            Step(question, read, str(value), answer, source(rule, self.release)) for rule, question, read, value, answer in self._trail
        )
