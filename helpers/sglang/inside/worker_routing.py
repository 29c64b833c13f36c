"""Asks the release which class and method each module of a checkpoint gets. Runs in a forked child: it publishes global state.

Two ways: `methods` calls get_quant_method() for the runtime prefixes of the question; `build` constructs the release's own model
class on the meta device (shapes without memory) and notes every call that its constructors make.
"""

import inspect
import types

import torch
import worker_arguments
from torch.overrides import TorchFunctionMode

FAKE = "fake"  # torch's name of the backend whose other ranks do not exist
NO_COMMUNICATORS = {"use_pynccl": False, "use_custom_allreduce": False, "use_message_queue_broadcaster": False}


def import_models():
    """Imports every model file of the release, while the process still looks like a CPU machine."""
    import sglang.srt.model_loader.loader
    import sglang.srt.models.registry  # noqa: F401


class OnMeta(TorchFunctionMode):
    """Every tensor that a constructor makes is on the meta device, wherever it was asked for; a value read from one is a dummy.

    device: "cpu" for as long as a part of the model is made with memory.
    """

    MAKERS = frozenset(("empty", "zeros", "ones", "full", "arange", "tensor", "randn", "rand", "linspace", "eye", "empty_strided"))
    READERS = types.MappingProxyType({"item": 0, "equal": True, "allclose": True, "__bool__": False})

    def __init__(self):
        super().__init__()
        self.device = "meta"

    def __torch_function__(self, func, classes, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name == "cuda":
            return args[0]
        if any(isinstance(argument, torch.Tensor) and argument.is_meta for argument in args):
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
            kwargs["device"] = self.device
        return func(*args, **kwargs)


class _Silent:
    """A stream or event: every method is there and does nothing."""

    def __init__(self, *args, **kwargs):
        pass

    def __getattr__(self, name):
        return lambda *args, **kwargs: None


def _join_world(parallel_state, rank, size):
    """Makes this process rank `rank` of `size` ranks, of which no other exists.

    torch's fake backend takes the place of NCCL and gloo, and groups get no communicators: who is in which group is the release's own
    arithmetic, and nothing that builds a model talks to another rank.
    """
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group(FAKE, rank=rank, world_size=size, store=FakeStore())
    new_group, model_parallel_group = torch.distributed.new_group, parallel_state.init_model_parallel_group
    torch.distributed.new_group = lambda *args, **kwargs: new_group(*args, **kwargs | {"backend": FAKE})
    parallel_state.init_model_parallel_group = lambda *args, **kwargs: model_parallel_group(*args, **kwargs | NO_COMMUNICATORS)
    parallel_state.init_distributed_environment(world_size=size, rank=rank, local_rank=rank, backend=FAKE)


def _make_groups(parallel_state, sizes):
    """The groups of tensor, expert and attention parallelism; from 0.5.21 the release reads the sizes from what was published."""
    given = {
        "tensor_model_parallel_size": sizes.tp_size,
        "expert_model_parallel_size": sizes.ep_size,
        "moe_data_model_parallel_size": getattr(sizes, "moe_dp_size", 1),
        "attention_data_parallel_size": sizes.dp_size if sizes.enable_dp_attention else 1,
        "attention_context_model_parallel_size": getattr(sizes, "attn_cp_size", 1),
    }
    taken = inspect.signature(parallel_state.initialize_model_parallel).parameters
    parallel_state.initialize_model_parallel(backend=FAKE, **{name: size for name, size in given.items() if name in taken})


def _publish(arguments, rank):
    """Makes `arguments` the process's configuration, as the scheduler of this rank does before it loads the model."""
    from sglang.srt import server_args
    from sglang.srt.layers.moe.utils import initialize_moe_config

    try:
        from sglang.srt.runtime_context import SpawnRanks, publish
    except ImportError:
        server_args.set_global_server_args_for_scheduler(arguments)
    else:
        publish(arguments, role="scheduler", ranks=SpawnRanks(world_rank=rank))
    if initialize_moe_config.__code__.co_argcount:
        initialize_moe_config(arguments)
    else:
        initialize_moe_config()


def _initialize_attention(arguments, config):
    from sglang.srt.layers.dp_attention import initialize_dp_attention

    given = (arguments, config)
    initialize_dp_attention(*given[: initialize_dp_attention.__code__.co_argcount])


def prepare(machine, argv, rank):
    """Everything up to the quantization config, as the loader of this rank does it. Raises what the release raises.

    Returns (ModelConfig, model class, quantization config or None). The process groups are made while the machine looks like a CPU's.
    """
    from sglang.srt.configs.load_config import LoadConfig
    from sglang.srt.distributed import parallel_state
    from sglang.srt.model_loader import loader
    from sglang.srt.model_loader.utils import get_model_architecture

    arguments = worker_arguments.ask(argv)
    sizes = worker_arguments.resolved(arguments)
    with machine.absent():
        _join_world(parallel_state, rank, sizes.tp_size)
    _publish(arguments, rank)
    with machine.absent():  # after the publication: from 0.5.17 the groups' sizes are checked against it
        _make_groups(parallel_state, sizes)
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
        "quant_facts": _facts_of(quant_config) if quant_config is not None else {},
    }


def _facts_of(quant_config):
    """What the quantization config demands of the GPU and says of its scales; block: (rows, columns) of a scale, or None.

    A config of several kinds of layers keeps one config for each kind, and these say it.
    """
    kinds = ("nvfp4_config", "fp8_block_config")
    configs = [quant_config, *(getattr(quant_config, kind) for kind in kinds if hasattr(quant_config, kind))]

    def first(name):
        return next((value for config in configs if (value := getattr(config, name, None)) is not None), None)

    return {"min_capability": quant_config.get_min_capability(), "group_size": first("group_size"), "block": first("weight_block_size")}


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
    model, failure = None, None
    try:
        model = construct(config, model_class, quant_config, OnMeta())
    except Exception as error:  # noqa: BLE001  the release's exception is the answer
        failure = worker_arguments.refusal_of(error)
    experts = [
        {
            "name": name,
            "layer": type(layer).__name__,
            "method": type(layer.quant_method).__name__,
            "deprecate_flag": getattr(layer, "deprecate_flag", None),
            "runner": runner_of(layer),
            **share_of(layer),
        }
        for name, layer in (model.named_modules() if model is not None else ())
        if isinstance(layer, FusedMoE)
    ]
    modules = [[prefix, type(layer).__name__, _class_name(getattr(layer, "quant_method", method))] for prefix, layer, method in asked]
    return {"modules": modules, "experts": experts, "failure": failure}


def construct(config, model_class, quant_config, mode):
    """The release's model, with the tensors where `mode` (an OnMeta) puts them. Raises what the constructors raise."""
    torch.cuda.Stream = torch.cuda.Event = _Silent
    torch.cuda.current_stream = lambda *args, **kwargs: _Silent()
    torch.cuda.synchronize = lambda *args, **kwargs: None
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("meta"), mode:
        return model_class(config=config.hf_config, quant_config=quant_config)


def share_of(layer):
    """What this rank holds of the MoE layer. experts: the model's numbers of the routed (and fused shared) experts on it."""
    names = ("num_local_experts", "intermediate_size_per_partition", "moe_ep_size", "moe_ep_rank", "moe_tp_size", "moe_tp_rank")
    local = layer._map_global_expert_id_to_local_expert_id
    return {name: getattr(layer, name) for name in names} | {"experts": [e for e in range(layer.num_experts) if local(e) >= 0]}


def _class_name(method):
    return type(method).__name__ if method is not None else None


def runner_of(layer):
    runner = getattr(layer, "runner", None) or getattr(layer.quant_method, "runner", None)
    backend = getattr(runner, "runner_backend", None)
    return getattr(backend, "value", None)
