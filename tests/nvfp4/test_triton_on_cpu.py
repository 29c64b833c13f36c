"""The Triton decode kernel in Triton's interpreter, which needs no GPU: its arithmetic and its addresses, not its machine code.

In a process of its own, because the interpreter is chosen when Triton is imported. It truncates to bfloat16 where a GPU rounds, so
only float32 and float16 are compared; tests/nvfp4/test_gpu.py compares all three on a GPU.
"""

import os
import subprocess
import sys

from helpers.paths import ROOT

SCRIPT = """
import contextlib
import torch
from helpers.nvfp4.codec import Nvfp4, decode_plain
from helpers.nvfp4.gpu import decode_cuda
from helpers.nvfp4.recipes import RECIPES

torch.cuda.device = lambda device: contextlib.nullcontext()
generator = torch.Generator().manual_seed(0)
codes = torch.randint(0, 256, (3, 111, 24), dtype=torch.uint8, generator=generator)
scales = torch.randint(0, 0x7F, (3, 111, 3), dtype=torch.uint8, generator=generator).view(torch.float8_e4m3fn)
for name, rules in RECIPES.items():
    for dtype, bits in ((torch.float32, torch.int32), (torch.float16, torch.int16)):
        encoded = Nvfp4(codes, scales, torch.tensor([3.7e-4, 91.0, 2.0**-30]), name)
        out = torch.empty(encoded.shape, dtype=dtype)
        decode_cuda(name, rules.decodes_signed_zero, codes, scales, encoded.global_scale, out)
        print(name, dtype, torch.equal(out.view(bits), decode_plain(encoded, dtype).view(bits)))
"""


def test_the_kernel_decodes_what_plain_torch_decodes():
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    line = [sys.executable, "-W", "ignore", "-c", SCRIPT]
    process = subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=240)
    assert process.returncode == 0, process.stderr[-2000:]
    lines = process.stdout.splitlines()
    assert len(lines) == 8 and all(line.endswith("True") for line in lines), lines
