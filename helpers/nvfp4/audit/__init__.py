"""Walk the real tensors of a checkpoint in a stream: are these weights what they should be?"""

from helpers.nvfp4.audit.plan import Job, plan
from helpers.nvfp4.audit.report import (
    METRICS,
    bits_a_weight,
    code_shares,
    cost_of_collapsing,
    cost_of_maximum,
    findings,
    layer_map,
    pairs,
    worst,
)
from helpers.nvfp4.audit.run import Audit, audit, print_progress
from helpers.nvfp4.audit.scan import MatrixStats

__all__ = [
    "METRICS",
    "Audit",
    "Job",
    "MatrixStats",
    "audit",
    "bits_a_weight",
    "code_shares",
    "cost_of_collapsing",
    "cost_of_maximum",
    "findings",
    "layer_map",
    "pairs",
    "plan",
    "print_progress",
    "worst",
]
