"""The audit's numbers against the same numbers computed from decoded tensors, its findings against injected faults, and its stream
against stops, several processes and files that end early."""

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from helpers.checkpoint import known_checkpoints, open_checkpoint
from helpers.errors import InputError, UsageError
from helpers.nvfp4.audit import audit, bits_a_weight, code_shares, cost_of_collapsing, cost_of_maximum, findings, layer_map, plan, worst
from helpers.nvfp4.audit import run as run_module
from helpers.nvfp4.audit.report import gaussian_magnitudes
from helpers.nvfp4.audit.scan import STRETCH, sample_ranges
from helpers.nvfp4.codec import Nvfp4, decode, encode
from helpers.nvfp4.compare import sqnr_db
from helpers.nvfp4.elements import unpack
from helpers.paths import CHECKPOINTS

HIDDEN, INNER, EXPERTS = 128, 64, 4
BUNDLED = [name for name in known_checkpoints() if any((CHECKPOINTS / name).glob("*.safetensors"))]


def weights(layers: int = 2) -> dict[str, torch.Tensor]:
    """BF16 weights of a small model's experts, by module."""
    generator = torch.Generator().manual_seed(0)
    shapes = {"gate_proj": (INNER, HIDDEN), "up_proj": (INNER, HIDDEN), "down_proj": (HIDDEN, INNER)}
    return {
        f"model.layers.{layer}.mlp.experts.{expert}.{projection}": (torch.randn(shape, generator=generator) * 0.02).bfloat16()
        for layer in range(layers)
        for expert in range(EXPERTS)
        for projection, shape in shapes.items()
    }


def quantised(original: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """As ModelOpt exports: one global scale for gate and up of an expert."""
    tensors = {}
    for module, weight in original.items():
        gate, up = (original[module.rpartition(".")[0] + suffix] for suffix in (".gate_proj", ".up_proj"))
        g = torch.maximum(gate.abs().max(), up.abs().max()).float() / 2688 if "down" not in module else None
        encoded = encode(weight, "modelopt", g)
        tensors[f"{module}.weight"], tensors[f"{module}.weight_scale"] = encoded.codes, encoded.scales
        tensors[f"{module}.weight_scale_2"], tensors[f"{module}.input_scale"] = encoded.global_scale, torch.tensor(0.002)
    return tensors


def write(folder, tensors: dict[str, torch.Tensor]):
    folder.mkdir(exist_ok=True)
    save_file({name: tensor.clone().contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    config = {"architectures": ["Qwen3MoeForCausalLM"], "num_hidden_layers": 2, "hidden_size": HIDDEN, "num_experts": EXPERTS}
    (folder / "config.json").write_text(json.dumps(config | {"moe_intermediate_size": INNER, "num_experts_per_tok": 2}))
    return open_checkpoint(folder)


@pytest.fixture
def sound(tmp_path):
    return write(tmp_path / "sound", quantised(weights()))


def ids(result) -> list[str]:
    return [finding.id for finding in findings(result)]


def test_a_sound_checkpoint_has_no_findings(sound):
    result = audit(sound)
    assert len(result.matrices) == 24
    assert ids(result) == []
    assert result.bytes == 24 * HIDDEN * INNER * 9 // 16


@pytest.mark.parametrize("name", BUNDLED)
def test_numbers_are_those_of_the_decoded_tensors(name):
    """On real exports of every kind: per expert, fused, weight-only, several prefixes."""
    checkpoint = open_checkpoint(name)
    jobs = {job.module: job for job in plan(checkpoint)}
    result = audit(checkpoint)
    assert len(result.matrices) == len(jobs) > 0
    tensors = {}
    for shard in checkpoint.tensors.shards:
        tensors |= load_file(checkpoint.path / shard)
    for stats in result.matrices[:: max(len(jobs) // 6, 1)]:
        job = jobs[stats.module]
        codes, scales = tensors[job.codes.tensor], tensors[job.scales.tensor]
        if codes.ndim == 3:
            codes, scales = codes[stats.expert].T.contiguous(), scales[stats.expert].T.contiguous()
        g = tensors[job.global_scale.tensor].reshape(())
        values = decode(Nvfp4(codes, scales, g), torch.float32)
        each = unpack(codes)
        assert stats.blocks == stats.examined == scales.numel()
        assert stats.codes == tuple(torch.bincount(each.flatten(), minlength=16).tolist())
        assert stats.rms == pytest.approx(float(values.square().mean().sqrt()), rel=1e-5)
        assert stats.saturated == int((scales.float() == 448).sum())
        assert stats.no_six == int(((each & 7).unflatten(-1, (-1, 16)).amax(-1) < 7).sum())
        assert stats.global_scale == pytest.approx(float(g))
    assert 3.5 < bits_a_weight(result) <= 4.5
    assert code_shares(result).sum() == pytest.approx(1)


def change(tensors, suffix, how, module="model.layers.1.mlp.experts.2.up_proj"):
    return tensors | {f"{module}.{suffix}": how(tensors[f"{module}.{suffix}"].clone())}


def set_byte(index: int, byte: int):
    def how(scales):
        scales.view(torch.uint8).flatten()[index] = byte
        return scales

    return how


def shifted(codes):
    return codes.flatten().roll(4).view(codes.shape)


def copied(tensors):
    source, target = "model.layers.0.mlp.experts.1.down_proj", "model.layers.0.mlp.experts.3.down_proj"
    return tensors | {f"{target}.{s}": tensors[f"{source}.{s}"] for s in ("weight", "weight_scale", "weight_scale_2")}


FAULTS = {
    "NaN scale": ("load.block_scale_not_a_number", "wrong_output", lambda t: change(t, "weight_scale", set_byte(5, 0x7F))),
    "negative scale": ("load.block_scale_not_a_number", "wrong_output", lambda t: change(t, "weight_scale", set_byte(5, 0xB8))),
    "global scale 0": ("load.global_scale_unusable", "wrong_output", lambda t: change(t, "weight_scale_2", torch.zeros_like)),
    "input scale NaN": ("load.global_scale_unusable", "wrong_output", lambda t: change(t, "input_scale", lambda x: x * float("nan"))),
    "missing scales": ("load.all_zero", "abstained", lambda t: change(t, "weight_scale", torch.zeros_like)),
    "dead expert": ("load.all_zero", "abstained", lambda t: change(t, "weight", torch.zeros_like)),
    "reciprocal": ("load.reciprocal_global_scale", "abstained", lambda t: change(t, "weight_scale_2", lambda x: 1 / x)),
    "copied expert": ("load.duplicated", "abstained", copied),
    "gate and up apart": ("load.gate_up_scales_differ", "abstained", lambda t: change(t, "weight_scale_2", lambda x: x * 1.25)),
    "codes off by half a block": ("load.blocks_without_six", "note", lambda t: change(t, "weight", shifted)),
    "one loud input": ("load.input_scale_outlier", "note", lambda t: change(t, "input_scale", lambda x: x * 1e6)),
}


@pytest.mark.parametrize("name", FAULTS)
def test_injected_faults_are_found_and_named(name, tmp_path):
    rule, severity, inject = FAULTS[name]
    result = audit(write(tmp_path / "broken", inject(quantised(weights()))))
    found = {finding.id: finding for finding in findings(result)}
    assert found[rule].severity == severity
    assert found[rule].stage == "load"
    where = "experts.1.down_proj" if name == "copied expert" else "layers.1.mlp.experts.2"
    assert where in found[rule].read


def test_saturated_and_underflowing_scales_are_found(tmp_path):
    weight = (torch.randn(256, 1024, generator=torch.Generator().manual_seed(1)) * 0.02).bfloat16()
    for factor, rule in ((0.2, "load.scales_saturated"), (1e6, "load.scales_underflow")):
        encoded = encode(weight, "modelopt", weight.abs().max().float() / 2688 * factor)
        module = "model.layers.0.mlp.experts.0.up_proj"
        parts = {"weight": encoded.codes, "weight_scale": encoded.scales, "weight_scale_2": encoded.global_scale}
        result = audit(write(tmp_path / rule, {f"{module}.{suffix}": tensor for suffix, tensor in parts.items()}))
        assert rule in ids(result)


def test_compressed_tensors_are_read_as_their_reciprocals(tmp_path):
    tensors = {}
    for module, weight in weights(1).items():
        encoded = encode(weight, "compressed_tensors")
        tensors |= {f"{module}.weight_packed": encoded.codes, f"{module}.weight_scale": encoded.scales}
        tensors |= {f"{module}.weight_global_scale": encoded.global_scale.reshape(1), f"{module}.input_global_scale": torch.tensor([500.0])}
    result = audit(write(tmp_path / "ct", tensors))
    assert len(result.matrices) == 12
    assert all(0.015 < stats.rms < 0.025 and stats.input_scale == pytest.approx(0.002) for stats in result.matrices)


@pytest.mark.parametrize("fused", [False, True])
def test_signal_to_noise_against_the_original(fused, sound, tmp_path):
    original = weights()
    if fused:  # as transformers 5 keeps the experts of a layer: [E, 2I, H] and [E, H, I]
        stacks = {}
        for layer in range(2):
            block = f"model.layers.{layer}.mlp.experts"
            gate, up, down = (
                torch.stack([original[f"{block}.{e}.{p}"] for e in range(EXPERTS)]) for p in ("gate_proj", "up_proj", "down_proj")
            )
            stacks |= {f"{block}.gate_up_proj": torch.cat((gate, up), 1), f"{block}.down_proj": down}
        reference = write(tmp_path / "original", stacks)
    else:
        reference = write(tmp_path / "original", {f"{module}.weight": weight for module, weight in original.items()})
    result = audit(sound, original=reference)
    jobs = {job.module: job for job in plan(sound)}
    tensors = load_file(sound.path / "model.safetensors")
    for stats in result.matrices:
        parts = Nvfp4(*(tensors[p.tensor] for p in (jobs[stats.module].codes, jobs[stats.module].scales, jobs[stats.module].global_scale)))
        assert stats.sqnr_db == pytest.approx(sqnr_db(original[stats.module].float(), decode(parts, torch.float32)), abs=1e-6)
        assert 19 < stats.sqnr_db < 23
    assert len(worst(result, "sqnr", 3)) == 3


def test_maps_and_worst_lists(sound):
    result = audit(sound)
    values, layers, experts = layer_map(result, "rms", "up")
    assert values.shape == (2, EXPERTS) and layers == [0, 1] and experts == [0, 1, 2, 3]
    module, value = worst(result, "gaussian", 1)[0]
    assert value == max(worst(result, "gaussian", 100), key=lambda pair: pair[1])[1] and module in {m.module for m in result.matrices}
    assert worst(result, "sqnr") == []
    with pytest.raises(UsageError, match="did you mean gaussian"):
        worst(result, "gausian")


def test_what_a_gaussian_gives():
    shares = gaussian_magnitudes()
    assert shares.sum() == pytest.approx(1)
    assert shares[7] > 1 / 16, "each block holds at least one 6"


def test_the_maximum_of_the_input_scales_costs_nothing_until_it_does():
    assert abs(cost_of_maximum(1.0)) < 1e-6
    assert abs(cost_of_maximum(16.0)) < 0.3
    assert 1 < cost_of_maximum(1e5) < cost_of_maximum(1e6)


def test_what_one_global_scale_for_gate_and_up_costs():
    assert cost_of_collapsing(2.0) == (pytest.approx(20 * np.log10(2)), float("inf")), "up is halved; E4M3 halves exactly"
    first, larger = cost_of_collapsing(1.25)
    assert first == pytest.approx(20 * np.log10(1.25 / 0.25), abs=0.1)
    assert 25 < larger < 45


def test_native_four_bit_tensors_are_read_like_packed_bytes(sound, tmp_path):
    tensors = load_file(sound.path / "model.safetensors")
    native = {name: tensor.view(torch.float4_e2m1fn_x2) if name.endswith(".weight") else tensor for name, tensor in tensors.items()}
    folder = tmp_path / "native"
    folder.mkdir()
    save_file(native, folder / "model.safetensors")
    (folder / "config.json").write_text((sound.path / "config.json").read_text())
    checkpoint = open_checkpoint(folder)
    assert {checkpoint.tensors.dtype(name) for name in checkpoint.tensors if name.endswith(".weight")} == {"F4"}
    assert audit(checkpoint).matrices == audit(sound).matrices


# The stream -----------------------------------------------------------------------------------------------------------


def small_units(monkeypatch):
    monkeypatch.setattr(run_module, "UNIT_BYTES", 3 * HIDDEN * INNER * 9 // 16)


def test_sampled_and_parallel_audits_agree_with_the_full_one(sound, monkeypatch):
    small_units(monkeypatch)
    full = audit(sound)
    assert audit(sound, processes=2).matrices == full.matrices
    assert audit(sound, full=False).matrices == full.matrices, "matrices below one stretch are read whole"


class Stopped(Exception):
    pass


def test_a_stopped_audit_goes_on_where_it_was(sound, monkeypatch, tmp_path):
    small_units(monkeypatch)
    record = tmp_path / "runs" / "audit.jsonl"
    whole = audit(sound)

    def stop(done, total, seconds):
        if done * 2 > total:
            raise Stopped

    with pytest.raises(Stopped):
        audit(sound, record=record, progress=stop)
    with open(record, "a") as file:
        file.write('[7, [{"module": "cut sho')
    scanned, seen = [], []
    real = run_module.scan_unit
    monkeypatch.setattr(run_module, "scan_unit", lambda unit, full: scanned.append(len(unit)) or real(unit, full))
    result = audit(sound, record=record, progress=lambda done, total, seconds: seen.append(done / total))
    assert result.matrices == whole.matrices
    assert 0 < len(scanned) < 8 and len(scanned) == len(seen)
    assert seen[0] > 0.5 and seen[-1] == 1
    scanned.clear()
    assert audit(sound, record=record).matrices == whole.matrices and not scanned


def test_a_record_of_other_files_is_not_continued(sound, monkeypatch, tmp_path):
    record = tmp_path / "audit.jsonl"
    audit(sound, record=record)
    other = write(tmp_path / "sound", change(quantised(weights()), "weight_scale", set_byte(5, 0x7F)))
    assert ids(audit(other, record=record)) == ["load.block_scale_not_a_number"]


@pytest.mark.parametrize("content", [b"\xae\xff", b'{"architectures": []}'])
def test_a_file_that_is_no_record_is_not_written_over(sound, tmp_path, content):
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(InputError, match=r"config\.json: not the record of an audit"):
        audit(sound, record=tmp_path / "config.json")
    assert (tmp_path / "config.json").read_bytes() == content


@pytest.mark.parametrize("keep", [0.5, 0.99])
def test_a_file_that_shrinks_or_ends_early_is_named(sound, keep):
    """Its header was whole when the checkpoint was opened."""
    path = sound.path / "model.safetensors"
    size = path.stat().st_size
    with open(path, "r+b") as file:
        file.truncate(int(size * keep))
    with pytest.raises(InputError) as error:
        audit(sound)
    assert "model.safetensors: the file ends at byte" in str(error.value)
    assert "model.layers." in str(error.value)


@settings(max_examples=80, deadline=None)
@given(rows=st.integers(1, 4096), words=st.integers(1, 600), fused=st.booleans())
def test_samples_are_whole_blocks_inside_the_matrix(rows, words, fused):
    job = JOB
    shape = (8 * words, rows) if fused else (rows, 8 * words)
    job = replace(job, packed_axis=-2 if fused else -1, codes=replace(job.codes, shape=shape))
    unit = 8 * rows if fused else 8
    ranges = sample_ranges(job)
    assert all(0 <= start < end <= job.codes.nbytes and start % unit == end % unit == 0 for start, end in ranges)
    assert all(a[1] <= b[0] for a, b in pairwise(ranges))
    if job.codes.nbytes > 64 * max(STRETCH, unit):
        read = sum(end - start for start, end in ranges)
        assert 0.9 / 16 < read / job.codes.nbytes < 1.6 / 16


JOB = plan(open_checkpoint("qwen3-moe-nvfp4"))[0]


# What is refused ------------------------------------------------------------------------------------------------------


def cast(dtype):
    return lambda x: x.float().to(dtype)


BAD = {
    "float16 where E4M3 was promised": ("weight_scale", cast(torch.float16), "F16 (64, 8), expected F8_E4M3 (64, 8) beside"),
    "transposed scales": ("weight_scale", lambda x: x.T.contiguous(), "F8_E4M3 (8, 64), expected F8_E4M3 (64, 8) beside"),
    "K not whole blocks": ("weight", lambda x: x[:, :-3].contiguous(), "holds K=122, not a multiple of the block of 16"),
    "an empty expert": ("weight", lambda x: x[:0].contiguous(), "an expert without weights"),
    "global scale in float16": ("weight_scale_2", lambda x: x.half(), "F16 (), expected an F32 scalar"),
}


@pytest.mark.parametrize("name", BAD)
def test_matrices_that_do_not_fit_together_are_named(name, tmp_path):
    suffix, how, words = BAD[name]
    checkpoint = write(tmp_path / "bad", change(quantised(weights()), suffix, how))
    with pytest.raises(InputError) as error:
        audit(checkpoint)
    assert words in str(error.value)
    assert "model.layers.1.mlp.experts.2.up_proj" in str(error.value) and "model.safetensors" in str(error.value)


def test_a_matrix_without_its_scales_is_named(tmp_path):
    tensors = quantised(weights())
    del tensors["model.layers.1.mlp.experts.2.up_proj.weight_scale"]
    with pytest.raises(InputError, match=r"layers\.1\.mlp\.experts\.2\.up_proj in .*: incomplete: U8 weight without weight_scale"):
        audit(write(tmp_path / "bad", tensors))


def test_without_weights_there_is_nothing_to_audit(tmp_path):
    with pytest.raises(InputError, match="only configurations, no weights"):
        audit(open_checkpoint("qwen3.5-397b-v2-config"))
    with pytest.raises(InputError, match="has no NVFP4 weights"):
        audit(write(tmp_path / "plain", {"model.layers.0.mlp.experts.0.up_proj.weight": torch.zeros(4, 16)}))


def test_numpy_integers_do_not_reach_the_record(sound):
    assert all(type(value) is not np.int64 for stats in audit(sound).matrices for value in (stats.no_six, stats.empty, stats.zero))
