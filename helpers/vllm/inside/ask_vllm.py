"""Runs inside the Python of the vLLM environment: one GPU and its questions as JSON on stdin, an answer to each as a JSON line on stdout.

Started by helpers/vllm/ask.py and imports nothing of this repository. A process knows one GPU only, because vLLM computes what a GPU can
do while its modules are imported; each question has a fork of it. What decides is vLLM's code; what stands for the machine is listed in
the answer.
"""

import dataclasses
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import re
import signal
import sys
import traceback
import types

import torch
import torch.fx.experimental._config
from torch.overrides import TorchFunctionMode

torch.fx.experimental._config.meta_nonzero_assume_all_nonzero = True  # vLLM prints which experts a rank has

FAKE = "fake"  # torch's name of the backend whose other ranks do not exist
# Questions to vLLM's compiled library, which cannot be loaded without a driver. Each that is asked is in the answer as assumed.
COMPILED_PREDICATES = (
    "cutlass_scaled_mm_supports_fp8",
    "cutlass_scaled_mm_supports_block_fp8",
    "cutlass_scaled_mm_supports_fp4",
    "cutlass_group_gemm_supported",
)


class CompiledLibraries(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Empty modules for vLLM's compiled libraries: they link to the driver and to a CUDA build of torch."""

    def __init__(self):
        self.stood_for = []

    def find_spec(self, name, path=None, target=None):
        if name.startswith("vllm.") and path is not None:
            spec = importlib.machinery.PathFinder.find_spec(name, path, target)
            if spec and isinstance(spec.loader, importlib.machinery.ExtensionFileLoader):
                self.stood_for.append(name)
                return importlib.util.spec_from_loader(name, self)
        return None

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        pass


class _Nothing(type):
    """A class every attribute of which is itself such a class."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Nothing(name, (), {})


class ImagePackage(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """In the place of torchvision, whose compiled part fits one build of torch: vision models import it, and no image is read."""

    def __init__(self):
        self.stood_for = []

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] != "torchvision":
            return None
        self.stood_for.append(name)
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        module.__version__ = "0.0.0"
        module.__getattr__ = lambda name: getattr(_Nothing(name, (), {}), name)


class OnMeta(TorchFunctionMode):
    """Every tensor that a constructor makes is a shape without memory, also where it was asked for on a GPU."""

    MAKERS = frozenset(("empty", "zeros", "ones", "full", "arange", "tensor", "randn", "rand", "linspace", "eye", "empty_strided"))

    def __torch_function__(self, func, classes, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name in ("cuda", "pin_memory"):
            return args[0]
        if name in ("item", "tolist", "numpy") and args[0].is_meta:
            return {"item": 0, "tolist": [], "numpy": []}[name]
        if name == "to" and args[0].is_meta:
            kwargs.pop("device", None)
            args = tuple(argument for argument in args if not isinstance(argument, torch.device | str))
            if len(args) == 1 and not kwargs:
                return args[0]
        if name in self.MAKERS or kwargs.get("device") is not None:
            kwargs["device"] = "meta"
        return func(*args, **kwargs)


def simulate(gpu, assumed):
    """Makes vLLM's own CUDA platform the current one, with `gpu` in the place of what it would ask the driver."""
    import vllm.platforms
    from vllm.platforms.cuda import CudaPlatformBase
    from vllm.platforms.interface import DeviceCapability

    capability = tuple(gpu["capability"])

    class Unasked:
        """A stream, an event, an attention backend: it is kept and never called."""

        get_name = staticmethod(lambda: "not asked")

        def __init__(self, *arguments, **named):
            pass

    class Simulated(CudaPlatformBase):
        get_device_capability = classmethod(lambda cls, device_id=0: DeviceCapability(*capability))
        get_device_name = classmethod(lambda cls, device_id=0: gpu["name"])
        get_device_total_memory = classmethod(lambda cls, device_id=0: gpu["memory_mib"] << 20)
        is_fully_connected = classmethod(lambda cls, device_ids: True)
        device_count = classmethod(lambda cls: gpu["count"])
        num_compute_units = classmethod(lambda cls, device_id=0: 148)
        is_integrated_gpu = classmethod(lambda cls, device_id=0: False)
        import_kernels = classmethod(lambda cls: None)
        set_device = classmethod(lambda cls, device: None)
        get_mla_prefill_backend_cls = classmethod(lambda cls, *arguments, **named: Unasked)

        @classmethod
        def get_attn_backend_cls(cls, selected_backend, attn_selector_config, num_heads=None):
            """Triton's, which wants no compiled library. Attention is not what is asked, and its layers stand before the experts."""
            from vllm.v1.attention.backends.registry import AttentionBackendEnum

            if attn_selector_config.use_sparse:
                return AttentionBackendEnum.FLASHMLA_SPARSE.get_path()
            return (AttentionBackendEnum.TRITON_MLA if attn_selector_config.use_mla else AttentionBackendEnum.TRITON_ATTN).get_path()

    def predicate(name):
        def answer(*arguments):
            assumed[name] = True
            return True

        return answer

    for name in COMPILED_PREDICATES:
        setattr(torch.ops._C, name, predicate(name))
    torch.version.cuda = torch.version.cuda or "13.0"  # a CPU build has none
    torch.cuda.is_available = lambda: True
    torch.cuda.is_initialized = lambda: True
    torch.cuda.device_count = lambda: gpu["count"]
    torch.cuda.current_device = lambda: 0
    torch.cuda.get_device_capability = lambda *a, **k: capability
    torch.cuda.get_device_name = lambda *a, **k: gpu["name"]
    torch.cuda.mem_get_info = lambda *a, **k: (gpu["memory_mib"] << 20,) * 2
    torch.cuda.get_device_properties = lambda *a, **k: types.SimpleNamespace(
        name=gpu["name"],
        major=capability[0],
        minor=capability[1],
        total_memory=gpu["memory_mib"] << 20,
        multi_processor_count=148,
        shared_memory_per_block_optin=232448,
        is_integrated=False,
    )
    torch.cuda.Stream = torch.cuda.Event = Unasked
    torch.accelerator.empty_cache = torch.accelerator.synchronize = lambda *a, **k: None
    torch.cuda.current_stream = lambda *a, **k: Unasked()
    vllm.platforms._current_platform = Simulated()
    import vllm.utils.import_utils

    vllm.utils.import_utils.has_deep_gemm = lambda: True  # it comes with the wheel, compiled
    import triton
    from triton.backends.compiler import GPUTarget

    class Driver:
        """What is asked of Triton's driver while modules are imported."""

        get_current_target = staticmethod(lambda: GPUTarget("cuda", 10 * capability[0] + capability[1], 32))
        get_current_device = staticmethod(lambda: 0)
        get_active_torch_device = staticmethod(lambda: torch.device("cuda", 0))

    triton.runtime.driver.set_active(Driver())


class Operator:
    """A handle on an operator of vLLM's compiled library, which constructors keep and nothing calls."""

    def __init__(self, name):
        self.name = name

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *arguments, **named):
        raise RuntimeError(f"operator {self.name} of vLLM's compiled library was called, and it is not loaded")


def stand_in_for_operators(handles):
    """From now on every operator of the library has a handle; before, vLLM's modules register what they need only where it is there."""
    space = type(torch.ops._C)
    real = space.__getattr__

    def operator(self, name):
        try:
            return real(self, name)
        except AttributeError:
            if name.startswith("__"):
                raise
            handles.add(f"{self.name}::{name}")
            return Operator(name)

    for library in (torch.ops._C, torch.ops._moe_C):
        library.__class__ = type("Operators", (space,), {"__getattr__": operator})


class Selections:
    """Every call of vLLM's select_nvfp4_moe_backend, with what each kernel class it tried said."""

    def __init__(self):
        import vllm.model_executor.layers.fused_moe.oracle.nvfp4 as oracle

        self.oracle = oracle
        self.calls = []
        self.current = None
        self.real = oracle.select_nvfp4_moe_backend
        classes_of = oracle.backend_to_kernel_cls

        def listened(backend):
            classes = classes_of(backend)
            for kernel in classes:
                self.listen(kernel, backend)
            return classes

        oracle.backend_to_kernel_cls = listened

        def select(config, weight_key, activation_key):
            if self.current is not None:  # a request of our own
                return self.real(config, weight_key, activation_key)
            self.current = call = {"config": config, "keys": (weight_key, activation_key), "tried": [], "chosen": None}
            self.calls.append(call)
            try:
                backend, kernel = self.real(config, weight_key, activation_key)
                call["chosen"] = [backend.value, kernel.__name__]
            finally:
                self.current = None
            return backend, kernel

        oracle.select_nvfp4_moe_backend = select
        for name, module in list(sys.modules.items()):
            if name.startswith("vllm.") and vars(module).get("select_nvfp4_moe_backend") is self.real:
                module.select_nvfp4_moe_backend = select

    def listen(self, kernel, backend):
        """Notes what the class says to each configuration, and hands it on."""
        if "_asked" in vars(kernel):
            kernel._asked = backend.value  # one class serves several backends
            return
        says = kernel.is_supported_config
        kernel._asked = backend.value

        def is_supported_config(*arguments, **named):
            supported, reason = says(*arguments, **named)
            if self.current is not None:
                self.current["tried"].append([kernel._asked, kernel.__name__, bool(supported), reason or ""])
            return supported, reason

        kernel.is_supported_config = staticmethod(is_supported_config)

    def requested(self, call):
        """What --moe-backend with each name that vLLM's NVFP4 selection knows comes to for the same layer."""
        from typing import get_args

        from vllm.config.kernel import MoEBackend

        answers = {}
        for name in get_args(MoEBackend):
            if name == "auto":
                continue
            config = dataclasses.replace(call["config"])
            config.moe_backend = name
            self.current = {"tried": []}
            try:
                backend, kernel = self.real(config, *call["keys"])
                answers[name] = {"backend": backend.value, "kernel": kernel.__name__, "error": ""}
            except Exception as error:  # noqa: BLE001  whatever vLLM raises is its answer
                if "is not supported for NvFP4 MoE" in str(error):  # a name of another format
                    continue
                answers[name] = {"backend": None, "kernel": None, "error": f"{type(error).__name__}: {error}"}
            finally:
                self.current = None
        return answers

    def answer(self, names):
        """The selections, equal ones together. names: id of a layer's configuration -> names of the layers that have it."""
        groups = {}
        for call in self.calls:
            key = (str(call["keys"]), str(call["tried"]), str(call["chosen"]))
            if key not in groups:
                groups[key] = {
                    "layers": [],
                    "count": 0,
                    "weights": str(call["keys"][0]),
                    "activations": str(call["keys"][1]) if call["keys"][1] is not None else None,
                    "tried": call["tried"],
                    "chosen": call["chosen"],
                    "requested": self.requested(call),
                }
            groups[key]["count"] += 1
            groups[key]["layers"] += names.get(id(call["config"]), [])
        return list(groups.values())


def configure(request):
    """vLLM's own configuration of the launch: EngineArgs, ModelConfig with its detection, VllmConfig with the quantisation config."""
    from vllm.engine.arg_utils import EngineArgs

    return EngineArgs(
        model=request["folder"],
        skip_tokenizer_init=True,
        load_format="dummy",
        enforce_eager=True,
        tensor_parallel_size=request["tp"],
        enable_expert_parallel=request["expert_parallel"],
        moe_backend=request["moe_backend"],
        distributed_executor_backend="mp",  # else it looks for a cluster when the ranks are more than this machine's GPUs
        compilation_config={"pass_config": {"fuse_allreduce_rms": False}},  # only its presence imports compiled operators
    )


def join_world(size):
    """Rank 0 of `size` ranks, of which no other exists: who is in which group is vLLM's arithmetic, and nobody talks."""
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from vllm.distributed import parallel_state

    torch.distributed.init_process_group(FAKE, rank=0, world_size=size, store=FakeStore())
    new_group = torch.distributed.new_group
    torch.distributed.new_group = lambda *args, **kwargs: new_group(*args, **kwargs | {"backend": FAKE})
    model_parallel_group = parallel_state.init_model_parallel_group
    parallel_state.in_the_same_node_as = lambda group, source_rank=0: [True] * size
    quiet = {"use_device_communicator": False, "use_message_queue_broadcaster": False}
    parallel_state.init_model_parallel_group = lambda *args, **kwargs: model_parallel_group(*args, **kwargs | quiet)
    parallel_state.init_distributed_environment(world_size=size, rank=0, local_rank=0, backend=FAKE)
    parallel_state.initialize_model_parallel(size, 1, backend=FAKE)


def experts_of(model):
    """The expert layers, equal ones together, and which layer has which configuration."""
    from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts

    groups, names = {}, {}
    for name, layer in model.named_modules():
        if isinstance(layer, RoutedExperts):
            method = layer.quant_method
            backend = next((getattr(method, key) for key in vars(method) if key.endswith("_backend") and getattr(method, key)), None)
            kernel = getattr(method, "experts_cls", None)
            found = (type(method).__name__, getattr(backend, "value", None), getattr(kernel, "__name__", None))
            groups.setdefault(found, []).append(name)
            names.setdefault(id(getattr(method, "moe", None)), []).append(name)
    keys = ("method", "backend", "kernel")
    return [{"layers": layers, "count": len(layers), **dict(zip(keys, found, strict=True))} for found, layers in groups.items()], names


INSPECTION = []  # what stopped the inspection of a model file; vLLM logs it and raises without it


def in_this_process(function):
    """In the place of vLLM's process for inspecting a model file, which would not have the simulated GPU."""
    try:
        return function()
    except Exception as error:
        INSPECTION.append(error)
        raise


# Exceptions that only a machine without a GPU raises: an operator of the compiled library, a package that is left out, a shape's value.
OURS = re.compile(
    r"'_OpNamespace'|No module named '(?!vllm)|not compiled with CUDA|meta tensor|register_meta|NVIDIA driver|libcuda|meta device"
    r"|accelerator device|SimpleNamespace|'Unasked'|'_Nothing'|'Operator'|operator \S+ does not exist"
)


def refusal_of(error):
    """The exception as an answer: type, text, and the innermost frame inside vLLM. simulation: it is not vLLM's, but this machine's."""
    if INSPECTION and "failed to be inspected" in str(error):
        error = INSPECTION[-1]
    root = os.path.dirname(sys.modules["vllm"].__file__) + os.sep
    frames = traceback.extract_tb(error.__traceback__)
    inside = [frame for frame in frames if frame.filename.startswith(root)]
    where = {"file": inside[-1].filename.removeprefix(root), "line": inside[-1].lineno, "function": inside[-1].name} if inside else {}
    ours = not inside or frames[-1].filename == __file__ or bool(OURS.search(str(error)))
    return {"error": type(error).__name__, "message": str(error), "simulation": ours, **where}


def prepare(gpu, assumed):
    """What every question about this GPU imports, once."""
    simulate(gpu, assumed)
    import vllm.engine.arg_utils
    import vllm.model_executor.layers.fused_moe.oracle.nvfp4
    import vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors
    import vllm.model_executor.layers.quantization.modelopt
    import vllm.model_executor.model_loader.utils  # noqa: F401  for the forks
    import vllm.model_executor.models.registry as registry

    registry._run_in_subprocess = in_this_process


def answer(request, assumed):
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.v1.worker.workspace import init_workspace_manager

    handles, names, selections = set(), {}, None
    said = {"accepted": False, "stage": "detect", "experts": [], "selections": [], "error": "", "message": ""}
    try:
        arguments = configure(request)
        model_config = arguments.create_model_config()
        said |= {"quantization": model_config.quantization, "architectures": list(model_config.architectures)}
        config = arguments.create_engine_config()
        said["quant_config"] = type(config.quant_config).__name__ if config.quant_config is not None else None
        said["stage"] = "build"
        stand_in_for_operators(handles)
        selections = Selections()
        with set_current_vllm_config(config):
            join_world(request["tp"])
            torch.set_default_dtype(config.model_config.dtype)
            init_workspace_manager(torch.device("meta"))  # as vLLM's worker does before it loads a model
            with OnMeta(), torch.device("meta"):
                model = initialize_model(vllm_config=config, model_config=config.model_config)
        said["experts"], names = experts_of(model)
        said |= {"accepted": True, "stage": "", "model_class": type(model).__name__}
    except (Exception, SystemExit) as error:  # noqa: BLE001  vLLM's refusal, whatever its type, is the answer
        said |= refusal_of(error)
        if os.environ.get("NVFP4_VLLM_TRACE"):
            traceback.print_exc()
    if selections is not None and selections.calls:
        with set_current_vllm_config(config):
            said["selections"] = selections.answer(names)
    return said | {"assumed": sorted(assumed), "operators": sorted(handles)}


def in_a_child(request, assumed, stand_ins):
    """The answer of a fork, so that no question sees what another one left. One that hangs is ended after request["seconds"]."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        signal.alarm(request["seconds"])
        try:
            said = answer(request, assumed) | {"stood_for": sorted({name for one in stand_ins for name in one.stood_for})}
            with os.fdopen(write, "w", encoding="utf-8") as pipe:
                json.dump(said, pipe)
        except BaseException:  # noqa: BLE001  the parent says that there is no answer, and stderr why
            traceback.print_exc()
        finally:
            os._exit(0)  # the fake ranks have nothing to say to each other at the end
    os.close(write)
    with os.fdopen(read, encoding="utf-8") as pipe:
        text = pipe.read()
    end = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if text:
        return json.loads(text)
    if end == -signal.SIGALRM:
        said = {"error": "Timeout", "message": f"no answer within {request['seconds']} seconds"}
    else:
        said = {"error": "WorkerDied", "message": f"the process that was asked ended with {end}"}
    return {"accepted": False, "stage": "", "simulation": True, **said}


def main():
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)  # whatever a library prints goes elsewhere
    asked = json.load(sys.stdin)
    torch.set_num_threads(1)
    stand_ins = (CompiledLibraries(), ImagePackage())
    sys.meta_path[:0] = stand_ins
    assumed = {}
    prepare(asked["gpu"], assumed)
    for request in asked["questions"]:
        answers.write(json.dumps(in_a_child(request, assumed, stand_ins)) + "\n")


if __name__ == "__main__":
    main()
