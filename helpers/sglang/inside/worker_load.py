"""Asks the release to load one block of experts and to bring it into its kernel's layout. Runs in a forked child.

The release's own model class is built with the block's tensors in memory and everything else as shapes (meta device). Its own
load_weights() then gets the checkpoint's tensors, and the block's method its process_weights_after_loading(). What needs a GPU in the
last step is replaced (worker_load_steps.py) and named.
"""

import collections
import concurrent.futures
import contextlib
import glob
import inspect
import json
import logging
import os
import re
import resource
import time

import torch
import worker_arguments
import worker_load_steps
import worker_routing
from safetensors import safe_open
from safetensors.torch import save_file

LARGE = 1 << 20  # elements; above it a parameter's coverage is counted by rows


def import_kernels():
    """What the layers import on a CUDA machine only: FlashInfer's Python, and names of the release's own."""
    import flashinfer.fused_moe  # noqa: F401

    worker_load_steps.complete_imports()


class LayerAbsent(Exception):
    """The model has no block of experts in the layer of the question."""


class Watch(worker_routing.OnMeta):
    """While weights are loaded: notes which checkpoint tensor is written to which parameter, and which elements are written.

    A tensor keeps its checkpoint name through views, casts and copies; a parameter is known by its storage.
    """

    def __init__(self):
        super().__init__()
        self.device = "cpu"
        self.loading = False
        self.parameters = {}
        self.names = {}
        self.last = ()
        self.kept = []  # a storage's address may be given to another once it is freed
        self.shard = None
        self.elsewhere = set()
        self.written = collections.defaultdict(list)

    def parameter(self, name, tensor):
        rows = tensor.numel() > LARGE and tensor.dim() > 1
        covered = None if tensor.is_meta else torch.zeros(tensor.shape[:-1] if rows else tensor.shape, dtype=torch.bool)
        self.parameters[_storage(tensor)] = (name, tensor, covered, rows)
        self.kept.append(tensor)

    def source(self, name, tensor):
        self.names[_storage(tensor)] = self.last = (name,)
        self.kept.append(tensor)

    def __torch_function__(self, func, classes, args=(), kwargs=None):
        result = super().__torch_function__(func, classes, args, kwargs)
        if self.loading and args and isinstance(args[0], torch.Tensor):
            self._follow(getattr(func, "__name__", ""), args, result)
        return result

    def _follow(self, name, args, result):
        if name in ("copy_", "__setitem__", "__set__", "fill_", "zero_"):
            value = args[-1]
            target = self.parameters.get(_storage(args[0]))
            if target is not None:
                # A number has lost its name: it was read from the tensor that was handed out last.
                sources = self.names.get(_storage(value), ()) if isinstance(value, torch.Tensor) else self.last
                self._write(target, args[0] if name != "__setitem__" else _item(*args[:2]), sources)
            return
        if not isinstance(result, torch.Tensor) or _storage(result) in self.names or _storage(result) in self.parameters:
            return
        given = [argument for argument in args if isinstance(argument, torch.Tensor)]
        origins = tuple(dict.fromkeys(origin for tensor in given for origin in self.names.get(_storage(tensor), ())))
        if origins:
            self.names[_storage(result)] = origins
            self.kept.append(result)

    def _write(self, target, view, sources):
        name, parameter, covered, rows = target
        for source in sources:
            self.written[source].append([name, *(self.shard or (None, None))])
        if covered is not None and view.dim():
            size, stride = (view.shape[:-1], view.stride()[:-1]) if rows else (view.shape, view.stride())
            width = parameter.shape[-1] if rows else 1
            covered.as_strided(size, [step // width for step in stride], view.storage_offset() // width).fill_(True)
        elif covered is not None:
            covered.view(-1)[view.storage_offset() // (parameter.shape[-1] if rows else 1)] = True

    def unwritten(self):
        """parameter -> the local experts (first dimension) of which some element was never written."""
        missing = {}
        for name, parameter, covered, _ in self.parameters.values():
            if covered is not None and hasattr(parameter, "weight_loader") and not covered.all():
                missing[name] = (~covered).reshape(covered.shape[0], -1).any(1).nonzero().flatten().tolist()
        return missing


def _storage(tensor):
    return tensor.untyped_storage()._cdata


def _item(tensor, index):
    with torch._C.DisableTorchFunction():
        return tensor[index]


class _Lines(logging.Handler):
    def __init__(self):
        super().__init__(logging.WARNING)
        self.lines = []

    def emit(self, record):
        self.lines.append(f"{record.levelname}: {record.getMessage()}")


def answer(machine, request):
    """What loading came to: see helpers/sglang/loading.py: LoadAnswer. A refusal is an answer too, with the step it happened in."""
    begun = time.perf_counter()
    lines = _Lines()
    logging.getLogger("sglang").addHandler(lines)  # the root's handlers are replaced while arguments are resolved
    logging.disable(logging.INFO)
    told = {"accepted": True, "step": "prepare", "log": lines.lines, "replaced": worker_load_steps.used}
    try:
        _load(machine, request, told)
        told["step"] = ""
    except LayerAbsent as error:
        told |= {"accepted": False, "error": "LayerAbsent", "message": str(error)}
    except (Exception, SystemExit) as error:  # noqa: BLE001  the release's refusal, whatever its type, is the answer
        told |= {"accepted": False, **worker_arguments.refusal_of(error)}
    told["peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    told["seconds"] = round(time.perf_counter() - begun, 3)
    return told


def _load(machine, request, told):
    prepared = worker_routing.prepare(machine, request["argv"], request["rank"])
    told |= worker_routing.about(*prepared)
    told["step"] = "build"
    mode = Watch()
    model, name = _build(*prepared, mode, request["layer"])
    block = model.get_submodule(name) if name else None
    if block is not None:
        told |= {
            "name": name,
            "layer_class": type(block).__name__,
            "method": type(block.quant_method).__name__,
            "runner": worker_routing.runner_of(block),
            "share": worker_routing.share_of(block),
            "before": _forms(block),
        }
    told["step"] = "load"
    for parameter_name, parameter in (*model.named_parameters(), *model.named_buffers()):
        mode.parameter(parameter_name, parameter)  # a buffer may be loaded too
    read = []
    try:
        with mode, _one_thread():
            mode.loading = True
            model.load_weights(_tensors(request, mode, read))
    finally:
        mode.loading = False
        told["tensors"] = {tensor: _distinct(mode.written.get(tensor, ())) for tensor in read}
        told["elsewhere"] = sorted(mode.elsewhere.difference(mode.written))  # of another rank, or beyond this one's share
        told["unwritten"] = mode.unwritten()
    if block is None:
        raise LayerAbsent(f"{type(model).__name__} builds no block of experts in layer {request['layer']}")
    if request["into"]:
        told["loaded"] = os.path.join(request["into"], "loaded.safetensors")
        _write(block, told["loaded"])
    told["step"] = "process"
    with mode, worker_load_steps.replaced():
        block.quant_method.process_weights_after_loading(block)
    told["facts"] = _facts(block)
    told["after"] = _forms(block)
    if request["into"]:
        told["processed"] = os.path.join(request["into"], "processed.safetensors")
        _write(block, told["processed"])


def _build(config, model_class, quant_config, mode, layer):
    """(model, name of the block or None): the model on the meta device, the experts of `layer` in memory."""
    from sglang.srt.layers.moe.fused_moe_triton.layer import FusedMoE

    constructor, loaders = FusedMoE.__init__, {}
    signature = inspect.signature(constructor)
    number = re.compile(rf"(^|\.)layers\.{layer}\.")
    blocks = []

    def construct(self, *args, **kwargs):
        given = signature.bind(self, *args, **kwargs).arguments
        here = number.search(given.get("prefix") or "") or (not given.get("prefix") and given.get("layer_id") == layer)
        if not here or blocks:
            return constructor(self, *args, **kwargs)
        blocks.append(self)
        mode.device = "cpu"
        try:
            return constructor(self, *args, **kwargs)
        finally:
            mode.device = "meta"

    for name in ("weight_loader", "weight_loader_fused"):
        loaders[name] = getattr(FusedMoE, name)
        setattr(FusedMoE, name, _noting(loaders[name], mode))
    FusedMoE.__init__ = construct
    worker_load_steps.without_communication()
    mode.device = "meta"
    model = worker_routing.construct(config, model_class, quant_config, mode)
    mode.device = "cpu"
    return model, next((name for name, module in model.named_modules() if blocks and module is blocks[0]), None)


@contextlib.contextmanager
def _one_thread():
    """Loaders hand tensors to threads, which a torch function mode does not see: they are written here and now instead."""

    def submit(self, function, *args, **kwargs):
        future = concurrent.futures.Future()
        try:
            future.set_result(function(*args, **kwargs))
        except Exception as error:  # noqa: BLE001  as the thread would hand it on
            future.set_exception(error)
        return future

    kept, concurrent.futures.ThreadPoolExecutor.submit = concurrent.futures.ThreadPoolExecutor.submit, submit
    try:
        yield
    finally:
        concurrent.futures.ThreadPoolExecutor.submit = kept


def _noting(loader, mode):
    """A weight loader of experts that notes which expert and which projection it was called for."""
    signature = inspect.signature(loader)

    def load(self, *args, **kwargs):
        given = signature.bind(self, *args, **kwargs).arguments
        before, mode.shard = mode.shard, (given.get("expert_id"), given.get("shard_id"))
        try:
            result = loader(self, *args, **kwargs)
        finally:
            mode.shard = before
        mode.elsewhere.update(mode.names.get(_storage(given["loaded_weight"]), ()))  # unless it was written
        return result

    return load


def _tensors(request, mode, read):
    """(name, tensor) of the checkpoint: those of the layer with their values, all others as shapes.

    Without `whole` the layer's experts alone, as if the checkpoint had nothing else.
    """
    here = re.compile(rf"(^|\.)layers\.{request['layer']}\.")
    experts = re.compile(here.pattern + r".*\bexperts\b")
    wanted = here if request["whole"] else experts
    for file in _files(request["folder"]):
        with safe_open(file, framework="pt") as shard:
            for name in sorted(shard.keys()):
                if wanted.search(name):
                    tensor = shard.get_tensor(name)
                elif request["whole"]:
                    one = shard.get_slice(name)
                    tensor = torch.empty(one.get_shape(), dtype=_DTYPES[one.get_dtype()], device="meta")
                else:
                    continue
                mode.source(name, tensor)
                read.append(name)
                yield name, tensor


def _files(folder):
    """The safetensors files, those of the index where there is one, as the release's loader takes them."""
    files = sorted(glob.glob(os.path.join(folder, "*.safetensors")))
    index = os.path.join(folder, "model.safetensors.index.json")
    if os.path.exists(index):
        with open(index, encoding="utf-8") as file:
            listed = set(json.load(file)["weight_map"].values())
        files = [file for file in files if os.path.basename(file) in listed]
    return files


_DTYPES = {
    "U8": torch.uint8, "I8": torch.int8, "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "F8_E8M0": torch.float8_e8m0fnu,
    "BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "F64": torch.float64, "I32": torch.int32, "I64": torch.int64,
    "BOOL": torch.bool,
}  # fmt: skip


def _distinct(places):
    return [list(place) for place in dict.fromkeys(map(tuple, places))]


def _named_tensors(block):
    """The block's parameters and buffers, and the tensors that its method hung on it as plain attributes."""
    tensors = dict(block.named_parameters()) | dict(block.named_buffers())
    tensors |= {name: value for name, value in vars(block).items() if isinstance(value, torch.Tensor)}
    return {name: tensor for name, tensor in tensors.items() if not tensor.is_meta}


def _forms(block):
    return {name: [str(tensor.dtype).removeprefix("torch."), list(tensor.shape)] for name, tensor in _named_tensors(block).items()}


def _write(block, path):
    save_file({name: tensor.detach().clone(memory_format=torch.contiguous_format) for name, tensor in _named_tensors(block).items()}, path)


def _facts(block):
    """The method's plain attributes and properties that say which layout it made."""
    method = block.quant_method
    names = [name for name in dir(method) if name.startswith(("enable_", "load_", "_is_", "use_", "is_"))]
    values = {name: getattr(method, name) for name in names}
    facts = {name: value for name, value in values.items() if isinstance(value, bool)}
    if facts.get("_is_cutedsl_v2_standard"):  # made at the first forward, from what is here now
        from sglang.srt.layers.moe.moe_runner.flashinfer_cutedsl import resolve_cutedsl_standard_scales as resolve

        for name, scale in zip(("w1_alpha", "fc2_input_scale", "w2_alpha", "input_scale"), resolve(block), strict=True):
            setattr(block, f"cutedsl.{name}", scale)
    group_size = getattr(getattr(method, "quant_config", None), "group_size", None)
    skips = getattr(getattr(block, "dispatcher", None), "skip_local_expert_mapping", None)  # the runner gets the model's expert numbers
    return facts | {"group_size": group_size, "gated": block.moe_runner_config.is_gated, "skip_local_expert_mapping": skips}
