"""One palette, and for every state a symbol and a word beside the colour, since colour alone tells some readers nothing.

The colours are Okabe and Ito's eight, which readers with any common colour-vision deficiency can tell apart
(https://jfly.uni-koeln.de/color/).
"""

from dataclasses import dataclass

from helpers.findings import OUTCOMES, SEVERITIES

BLACK = "#000000"
ORANGE = "#E69F00"
SKY = "#56B4E9"
GREEN = "#009E73"
YELLOW = "#F0E442"
BLUE = "#0072B2"
VERMILION = "#D55E00"
PURPLE = "#CC79A7"
GREY = "#8A8A8A"
PAPER = "#F4F4F4"


@dataclass(frozen=True)
class Mark:
    """How one state is drawn. symbol and hatch carry the meaning where colour cannot; every symbol is in DejaVu Sans."""

    symbol: str
    word: str
    colour: str
    hatch: str = ""


SEVERITY_MARKS = {
    "refused": Mark("✖", "refused", VERMILION),
    "fails_to_load": Mark("■", "fails to load", PURPLE),
    "fails_at_first_forward": Mark("▲", "fails at first forward", ORANGE),
    "wrong_output": Mark("≠", "wrong output", YELLOW),
    "off_path": Mark("◐", "off path", SKY),
    "unknown": Mark("?", "unknown", GREY),
    "abstained": Mark("?", "abstained", GREY),
    "note": Mark("i", "note", BLUE),
    "serves": Mark("●", "serves", GREEN),
}
assert set(SEVERITY_MARKS) == {*SEVERITIES, *OUTCOMES}

STAGE_MARKS = {
    "passed": Mark("✔", "passed", GREEN),
    "failed": Mark("✖", "failed", VERMILION),
    "not_examined": Mark("○", "not examined", GREY),
}

# Whether the arguments pass; "absent" is for what a release does not have yet.
ADMISSION_MARKS = {
    "accepted": Mark("●", "accepted", GREEN),
    "refused": Mark("✖", "refused", VERMILION),
    "absent": Mark("–", "not in this release", GREY),
}

ALGORITHM_MARKS = {
    "NVFP4": Mark("4", "NVFP4", GREEN),
    "W4A16_NVFP4": Mark("4a16", "W4A16_NVFP4", YELLOW, ".."),
    "NVFP4_AWQ": Mark("4q", "NVFP4_AWQ", GREEN, "++"),
    "FP8": Mark("8", "FP8", SKY, "//"),
    "FP8_PB_WO": Mark("8b", "FP8_PB_WO", BLUE, "\\\\"),
    "FP8_BLOCK_SCALES": Mark("8b", "FP8_BLOCK_SCALES", BLUE, "\\\\"),
    "MXFP8": Mark("m8", "MXFP8", PURPLE, "xx"),
    "MXFP4": Mark("m4", "MXFP4", ORANGE, "oo"),
    "W4AFP8": Mark("4f8", "W4AFP8", ORANGE, "--"),
}
UNQUANTISED = Mark("·", "not quantised", PAPER)
OTHER_ALGORITHM = Mark("*", "other", VERMILION, "**")


def algorithm_mark(algo: str | None) -> Mark:
    """The mark of a layer's algorithm; a name this suite does not know is drawn as "other" under its own name."""
    if algo is None:
        return UNQUANTISED
    known = ALGORITHM_MARKS.get(algo.upper())
    return known or Mark(OTHER_ALGORITHM.symbol, algo, OTHER_ALGORITHM.colour, OTHER_ALGORITHM.hatch)


# What ModelConfig calls a checkpoint; None is a checkpoint that SGLang takes for unquantised.
QUANTIZATION_MARKS = {
    "modelopt_fp4": Mark("fp4", "modelopt_fp4", GREEN),
    "modelopt_mixed": Mark("mix", "modelopt_mixed", SKY),
    "modelopt_fp8": Mark("mo8", "modelopt_fp8", PURPLE),
    "mxfp8": Mark("mx8", "mxfp8", PURPLE, "xx"),
    "mxfp4": Mark("mx4", "mxfp4", GREY, "xx"),
    "fp8": Mark("fp8", "fp8", YELLOW),
    "w4afp8": Mark("w4a8", "w4afp8", VERMILION),
    "compressed-tensors": Mark("ct", "compressed-tensors", ORANGE),
    None: Mark("–", "no name", PAPER),
}

# What the runner becomes; "auto" is one that nothing resolved.
RUNNER_MARKS = {
    "flashinfer_trtllm": Mark("trt", "flashinfer_trtllm", GREEN),
    "flashinfer_trtllm_routed": Mark("trtr", "flashinfer_trtllm_routed", GREEN, "//"),
    "flashinfer_cutlass": Mark("cutl", "flashinfer_cutlass", SKY),
    "flashinfer_cutedsl": Mark("dsl", "flashinfer_cutedsl", YELLOW),
    "marlin": Mark("mar", "marlin", ORANGE),
    "triton": Mark("tri", "triton", PURPLE),
    "deep_gemm": Mark("dg", "deep_gemm", BLUE),
    "auto": Mark("a", "auto: nothing resolved it", GREY),
    "refused": SEVERITY_MARKS["refused"],
}
