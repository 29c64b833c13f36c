"""The GPU architectures kernels are compiled for, and a process that believes it has one of them.

Host code of a kernel asks the GPU for its capability, its multiprocessors and its shared memory before it compiles. In a process
that only compiles there is none to ask, so ``pretend`` answers for it. Nothing can be launched in such a process.
"""

import os
from dataclasses import dataclass
from types import SimpleNamespace


@dataclass(frozen=True)
class Target:
    """shared_block, shared_sm: bytes of shared memory that one block may use, and that a multiprocessor has (CUDA C++ programming
    guide, table of compute capabilities). sms: multiprocessors of the data-centre or workstation GPU of that architecture.
    """

    arch: str
    capability: tuple[int, int]
    gpus: str
    sms: int
    shared_block: int
    shared_sm: int

    @property
    def sm(self) -> int:
        """The number FlashInfer uses, e.g. 103."""
        return 10 * self.capability[0] + self.capability[1]


TARGETS = {
    target.arch: target
    for target in (
        Target("sm_90a", (9, 0), "H100, H200", 132, 232448, 233472),
        Target("sm_100a", (10, 0), "B200, GB200", 148, 232448, 233472),
        Target("sm_103a", (10, 3), "B300, GB300", 148, 232448, 233472),
        Target("sm_120a", (12, 0), "RTX PRO 6000, RTX 5090", 188, 101376, 102400),
        Target("sm_121a", (12, 1), "DGX Spark", 48, 101376, 102400),
    )
}


def target_of(capability: tuple[int, int]) -> Target | None:
    """The target of a GPU, None when nothing here is compiled for it."""
    return next((target for target in TARGETS.values() if target.capability == tuple(capability)), None)


def pretend(target: Target) -> None:
    """Answer for a GPU of this target, in this process and for good: torch.cuda's questions and the DSL's to the driver.

    The architecture to compile for is the DSL's own setting: from the environment for the parts of it that begin later, and set in
    those that have begun, which read the environment when they did.
    """
    import cutlass.base_dsl.runtime.cuda as driver
    import torch
    from cutlass.base_dsl.dsl import DSLSingletonMeta
    from cutlass.utils import HardwareInfo

    os.environ["CUTE_DSL_ARCH"] = target.arch
    for dsl in DSLSingletonMeta._instances.values():
        dsl.envar.arch = target.arch

    properties = SimpleNamespace(
        name=target.gpus,
        major=target.capability[0],
        minor=target.capability[1],
        multi_processor_count=target.sms,
        shared_memory_per_block_optin=target.shared_block,
        shared_memory_per_multiprocessor=target.shared_sm,
        regs_per_multiprocessor=65536,
        max_threads_per_multi_processor=2048,
        warp_size=32,
        L2_cache_size=50 << 20,
        total_memory=80 << 30,
    )
    answers = {
        "get_device_properties": properties,
        "get_device_capability": target.capability,
        "get_device_name": target.gpus,
        "current_device": 0,
        "device_count": 1,
        "is_available": True,
        "current_stream": SimpleNamespace(cuda_stream=0),
        "is_current_stream_capturing": False,
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, lambda *args, _answer=answer, **kwargs: _answer)
    attributes = {
        "COMPUTE_CAPABILITY_MAJOR": target.capability[0],
        "COMPUTE_CAPABILITY_MINOR": target.capability[1],
        "MULTIPROCESSOR_COUNT": target.sms,
        "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": target.shared_block,
        "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": target.shared_sm,
        "RESERVED_SHARED_MEMORY_PER_BLOCK": 1024,
        "MAX_REGISTERS_PER_MULTIPROCESSOR": 65536,
        "MAX_THREADS_PER_MULTIPROCESSOR": 2048,
        "L2_CACHE_SIZE": 50 << 20,
    }

    def attribute(asked, device: int = 0) -> int:
        known = next((value for name, value in attributes.items() if asked.name.endswith(name)), None)
        if known is None:
            raise NotImplementedError(f"a kernel asks the driver for {asked}, which helpers.kernels.targets does not answer yet")
        return known

    driver.get_device_attribute = attribute
    HardwareInfo.__init__ = lambda self, device_id=0: None
    HardwareInfo.get_max_active_clusters = lambda self, cluster_size, stream=None: target.sms // cluster_size
