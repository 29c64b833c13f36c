"""On a CUDA device: every kernel that runs there is right, twice, and the quantisers give every byte.

Run with ``pytest tests/kernels/test_gpu.py`` on a GPU machine; each case works in a child, as everywhere.
"""

import pytest
import torch

from helpers.kernels import execute
from helpers.kernels.flashinfer_quantise import QUANTISERS
from helpers.kernels.geometry import Block
from helpers.kernels.runners import RUNNERS, here

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
MAJOR = torch.cuda.get_device_capability()[0] if torch.cuda.is_available() else 0
KERNELS = [name for name in here(MAJOR) if name in RUNNERS]
BLOCK = Block("small", 1024, 512, 16, 4)


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_kernel_is_right_for_every_question(kernel):
    plan = execute.moe_cases(BLOCK, [kernel], (1, 4, 8, 64), execute.ROUTINGS, False)
    wrong = [execute.line(found) for found in execute.results(plan) if not found["right"]]
    assert plan and not wrong


@pytest.mark.parametrize("quantiser", QUANTISERS, ids=lambda quantiser: quantiser.name)
def test_quantisers_give_our_bytes(quantiser):
    """At 1 x 7168 a first reference, which divided by six and then multiplied, had one block's scale a step off: 8 code bytes of 3584.
    FlashInfer multiplies the largest magnitude by (global scale x the rounded sixth); our recipe does so too, and no byte is off.
    """
    plan = [c for hidden in (768, 7168) for c in execute.quantise_cases(hidden, [quantiser.name], False, rows=(1, 200))]
    found = list(execute.results(plan))
    assert [execute.line(result) for result in found if not result["right"]] == []
    if quantiser.exact:
        assert all(result["codes_off"] == result["scales_off"] == 0 for result in found)
