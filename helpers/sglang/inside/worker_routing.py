"""Asks the release which class and method each module of a checkpoint gets. Runs in a forked child: it publishes global state.

Two ways: `methods` calls get_quant_method() for the runtime prefixes of the question; `build` constructs the release's own model
class on the meta device (shapes without memory) and notes every call that its constructors make.
"""

import inspect
import types

import torch
import worker_arguments
from torch.overrides import TorchFunctionMode


def import_models():
    """Imports every model file of the release, while the process still looks like a CPU machine."""
    import sglang.srt.model_loader.loader
    import sglang.srt.models.registry  # noqa: F401


class _OnMeta(TorchFunctionMode):
    """Every tensor that a constructor makes is on the meta device, wherever it was asked for; a value read from one is a dummy."""

    MAKERS = frozenset(("empty", "zeros", "ones", "full", "arange", "tensor", "randn", "rand", "linspace", "eye", "empty_strided"))
    READERS = types.MappingProxyType({"item": 0, "equal": True, "allclose": True, "__bool__": False})

    def __torch_function__(self, func, classes, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name == "cuda":
            return args[0]
        if name in self.READERS:
            return self.READERS[name]
        if name in ("tolist", "numpy"):
            return []
        if name == "to" and isinstance(args[0], torch.Tensor):
            kwargs.pop("device", None)
            args = tuple(argument for argument in args if not isinstance(argument, torch.device | str))
            if len(args) == 1 and not kwargs:
                return args[0]
        if name in self.MAKERS or kwargs.get("device") is not None:
            kwargs["device"] = "meta"
        return func(*args, **kwargs)


class _Silent:
    """A stream or event: every method is there and does nothing."""

    def __init__(self, *args, **kwargs):
        pass

    def __getattr__(self, name):
        return lambda *args, **kwargs: None


def _join_world(parallel_state, meeting):
    """One rank of one, over gloo, in this process; a file in the folder `meeting` is its meeting point."""
    method = f"file://{meeting}/world"
    parallel_state.init_distributed_environment(world_size=1, rank=0, local_rank=0, distributed_init_method=method, backend="gloo")


def _publish(arguments):
    """Makes `arguments` the process's configuration, as a scheduler does before it loads the model."""
    from sglang.srt import server_args
    from sglang.srt.layers.moe.utils import initialize_moe_config

    try:
        from sglang.srt.runtime_context import SpawnRanks, publish
    except ImportError:
        server_args.set_global_server_args_for_scheduler(arguments)
    else:
        publish(arguments, role="scheduler", ranks=SpawnRanks(**_first_rank(SpawnRanks)))
    if initialize_moe_config.__code__.co_argcount:
        initialize_moe_config(arguments)
    else:
        initialize_moe_config()


def _first_rank(cls):
    required = [name for name, parameter in inspect.signature(cls).parameters.items() if parameter.default is parameter.empty]
    return dict.fromkeys(required, 0)


def _initialize_attention(arguments, config):
    from sglang.srt.layers.dp_attention import initialize_dp_attention

    given = (arguments, config)
    initialize_dp_attention(*given[: initialize_dp_attention.__code__.co_argcount])


def prepare(machine, argv, meeting):
    """Everything up to the quantization config, as the loader does it. Raises what the release raises.

    Returns (ModelConfig, model class, quantization config or None). The process group is made while the machine looks like a CPU's.
    """
    from sglang.srt.configs.load_config import LoadConfig
    from sglang.srt.distributed import parallel_state
    from sglang.srt.model_loader import loader
    from sglang.srt.model_loader.utils import get_model_architecture

    arguments = worker_arguments.ask(argv)
    with machine.absent():
        _join_world(parallel_state, meeting)
    _publish(arguments)
    with machine.absent():  # after the publication: from 0.5.17 the groups' sizes are checked against it
        parallel_state.initialize_model_parallel(backend="gloo")
    config = worker_arguments.model_config_of(arguments)
    _initialize_attention(arguments, config)
    model_class = get_model_architecture(config)[0]
    return config, model_class, loader._get_quantization_config(config, LoadConfig())


def about(config, model_class, quant_config):
    from sglang.srt.layers.moe.ep_moe.layer import get_moe_impl_class

    return {
        "model_quantization": config.quantization,
        "model_class": model_class.__name__,
        "quant_config": type(quant_config).__name__ if quant_config is not None else None,
        "quant_config_name": quant_config.get_name() if quant_config is not None else None,
        "moe_class": get_moe_impl_class(quant_config).__name__,
    }


def _layer_classes():
    from sglang.srt.layers.linear import LinearBase
    from sglang.srt.layers.moe.fused_moe_triton.layer import FusedMoE
    from sglang.srt.layers.radix_attention import RadixAttention
    from sglang.srt.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding

    return {
        "linear": LinearBase,
        "experts": FusedMoE,
        "attention": RadixAttention,
        "lm_head": ParallelLMHead,
        "embedding": VocabParallelEmbedding,
    }


def _bare(cls):
    """An instance of a layer class with nothing but torch's own state: get_quant_method() looks at the class only."""
    layer = cls.__new__(cls)
    torch.nn.Module.__init__(layer)
    return layer


def methods(quant_config, modules):
    """The method's class name (None: get_quant_method gave none) or the refusal for each [prefix, kind]."""
    if quant_config is None:
        return [None] * len(modules)
    layers = {kind: _bare(cls) for kind, cls in _layer_classes().items()}
    answers = []
    for prefix, kind in modules:
        try:
            method = quant_config.get_quant_method(layers[kind], prefix)
            answers.append(_class_name(method))
        except Exception as error:  # noqa: BLE001  the release's exception is the answer
            answers.append(worker_arguments.refusal_of(error))
    return answers


def build(config, model_class, quant_config):
    """{"modules": [[prefix, layer class, method class or None], …], "experts": the MoE layers, "failure": or None}.

    modules: every layer that asked the quantization config for its method, with the method it ended up with.
    """
    from sglang.srt.layers.moe.fused_moe_triton.layer import FusedMoE

    asked = []
    if quant_config is not None:
        original = quant_config.get_quant_method

        def noting(layer, prefix="", *args, **kwargs):
            method = original(layer, prefix, *args, **kwargs)
            asked.append((prefix, layer, method))
            return method

        quant_config.get_quant_method = noting
    torch.cuda.Stream = torch.cuda.Event = _Silent
    torch.cuda.current_stream = lambda *args, **kwargs: _Silent()
    torch.cuda.synchronize = lambda *args, **kwargs: None
    torch.set_default_dtype(torch.bfloat16)
    model, failure = None, None
    try:
        with torch.device("meta"), _OnMeta():
            model = model_class(config=config.hf_config, quant_config=quant_config)
    except Exception as error:  # noqa: BLE001  the release's exception is the answer
        failure = worker_arguments.refusal_of(error)
    experts = [
        {
            "name": name,
            "layer": type(layer).__name__,
            "method": type(layer.quant_method).__name__,
            "deprecate_flag": getattr(layer, "deprecate_flag", None),
            "runner": _runner_of(layer),
        }
        for name, layer in (model.named_modules() if model is not None else ())
        if isinstance(layer, FusedMoE)
    ]
    modules = [[prefix, type(layer).__name__, _class_name(getattr(layer, "quant_method", method))] for prefix, layer, method in asked]
    return {"modules": modules, "experts": experts, "failure": failure}


def _class_name(method):
    return type(method).__name__ if method is not None else None


def _runner_of(layer):
    runner = getattr(layer, "runner", None) or getattr(layer.quant_method, "runner", None)
    backend = getattr(runner, "runner_backend", None)
    return getattr(backend, "value", None)
