"""The run stage: what running a kernel on the GPU at hand says about a deployment that would use it.

Only the kernel that SGLang itself would call counts, and only on the GPU of the deployment; anything else leaves the stage open.
"""

from collections.abc import Mapping, Sequence

from helpers.findings import Finding, Verdict, ordered
from helpers.stages.admit import Admission

# (MoE runner, all-to-all backend) -> kernel of the catalogue. sglang 0.5.23 moe_runner/flashinfer_cutedsl.py registers both.
SERVED_BY = {
    ("flashinfer_cutedsl", "none"): "cutedsl_moe_wrapper",
    ("flashinfer_cutedsl", "deepep"): "grouped_gemm_masked",
}
SOURCE = "sglang 0.5.23 layers/moe/moe_runner/flashinfer_cutedsl.py: fused_experts_none_to_flashinfer_cutedsl_fp4"
FAILED = ("crashed", "hung", "error")


def kernel_of(admission: Admission) -> str:
    """The kernel a server would run its NVFP4 experts with, by its name in the catalogue; "" when it is none of those."""
    return SERVED_BY.get((admission.runner, admission.a2a), "") if admission.accepted else ""


def examined(verdict: Verdict, admission: Admission, wanted: str, here: str, results: Sequence[Mapping]) -> tuple[Verdict, str]:
    """(the verdict with the run stage, why the stage is still open or ""). wanted, here: architectures, e.g. "sm_100".

    results: of a run of this checkpoint's own experts, as ``helpers.kernels.execute`` gives them.
    """
    kernel = kernel_of(admission)
    if not admission.accepted:
        return verdict, "the server does not start"
    if not kernel:
        return verdict, f"SGLang's runner {admission.runner!r} (a2a {admission.a2a!r}) uses a kernel that is not one of these"
    if wanted != here:
        return verdict, f"the deployment's GPU is {wanted}, and {f'this one is {here}' if here else 'there is none here'}"
    own = [result for result in results if result.get("kernel") == kernel]
    if not own:
        return verdict, f"{kernel} was not run on this checkpoint's experts"
    found = tuple(_finding(kernel, here, result) for result in own if not result["right"])
    return Verdict(ordered((*verdict.findings, *found[:1])), verdict.examined | {"run"}), ""


def _finding(kernel: str, here: str, result: Mapping) -> Finding:
    died = result["state"] in FAILED
    size = f"{result['tokens']} tokens, {result.get('routing', '')} routing"
    return Finding(
        id="run.failed" if died else "run.wrong_output",
        stage="run",
        severity="fails_at_first_forward" if died else "wrong_output",
        read=f"{kernel} on this {here} GPU, {size}",
        observed=result.get("reason") or f"cosine {result.get('cosine', float('nan')):.6f}, {result.get('within', 0):.2%} within tolerance",
        expected="the reference layer's output, within what the kernel's roundings allow",
        why="SGLang calls this kernel with these arguments for the checkpoint's experts",
        source=SOURCE,
        remedy="--moe-runner-backend with another runner of 07_verdict, or another FlashInfer version; report the failing case",
    )
