"""Asks the release which class and method each module of a checkpoint gets. Runs in a forked child: it publishes global state."""

import importlib
import sys
import types

import torch
import worker_arguments


class _Anything(types.ModuleType):
    """Stands for a kernel package that is not installed (cutlass, sgl_kernel): any name in it is there, and nothing in it runs."""

    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything(f"{self.__name__}.{name}")

    def __call__(self, *args, **kwargs):
        return args[0] if len(args) == 1 and callable(args[0]) and not kwargs else self

    def __mro_entries__(self, bases):
        return ()

    def __getitem__(self, key):
        return self

    def __or__(self, other):
        return self

    __ror__ = __or__


class _KernelFinder:
    """Answers `import cutlass.…` with `_Anything` while the model files are imported."""

    PACKAGES = ("cutlass", "cuda")

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in self.PACKAGES:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return _Anything(spec.name)

    def exec_module(self, module):
        pass


def import_models():
    """Imports every model file of the release, while the process still looks like a CPU machine."""
    finder = _KernelFinder()
    sys.meta_path.append(finder)  # last: an installed package is taken first
    try:
        import sglang.srt.model_loader.loader
        import sglang.srt.models.registry  # noqa: F401
    finally:
        sys.meta_path.remove(finder)


def publish(arguments):
    """Makes `arguments` the process's configuration, as a scheduler does before it loads the model."""
    from sglang.srt import server_args as module
    from sglang.srt.layers.moe.utils import initialize_moe_config

    module.set_global_server_args_for_scheduler(arguments)
    try:
        initialize_moe_config(arguments)
    except TypeError:  # from 0.5.19 it reads what was published
        initialize_moe_config()


def _bare(cls):
    """An instance of a layer class with nothing but torch's own state: get_quant_method() looks at the class only."""
    layer = cls.__new__(cls)
    torch.nn.Module.__init__(layer)
    return layer


def _layers():
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


def ask(parser, argv, modules):
    """modules: [[runtime prefix, kind], …]. Raises whatever the release raises before the first module."""
    arguments = worker_arguments.ask(parser, argv)
    publish(arguments)
    from sglang.srt.configs.load_config import LoadConfig
    from sglang.srt.layers.moe.ep_moe.layer import get_moe_impl_class
    from sglang.srt.model_loader import loader
    from sglang.srt.model_loader.utils import get_model_architecture

    config = worker_arguments.model_config_of(arguments)
    answer = {"model_quantization": config.quantization, "architectures": list(config.hf_config.architectures or [])}
    answer["model_class"] = get_model_architecture(config)[0].__name__
    quant_config = loader._get_quantization_config(config, LoadConfig())
    answer["quant_config"] = type(quant_config).__name__ if quant_config is not None else None
    answer["quant_config_name"] = quant_config.get_name() if quant_config is not None else None
    answer["moe_class"] = get_moe_impl_class(quant_config).__name__
    layers = {kind: _bare(cls) for kind, cls in _layers().items()}
    answer["methods"] = methods = []
    for prefix, kind in modules:
        if quant_config is None:
            methods.append(None)
            continue
        try:
            method = quant_config.get_quant_method(layers[kind], prefix)
            methods.append(type(method).__name__ if method is not None else None)
        except Exception as error:  # noqa: BLE001  the release's exception is the answer
            methods.append(worker_arguments.refusal_of(error))
    return answer
