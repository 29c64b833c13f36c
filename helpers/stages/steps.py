"""One step of a decision, in the form the explorers and notebooks show it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """One question SGLang asks on the way.

    question: in plain words. read: the variable, key or file it looks at. value: what stands there. answer: what follows.
    source: ``sglang RELEASE file: function``.
    """

    question: str
    read: str
    value: str
    answer: str
    source: str
