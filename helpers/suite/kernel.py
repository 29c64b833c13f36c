"""The kernel of a headless run: always this environment's Python, and on Linux forked with its imports done.

A kernelspec named python3 in the user's home may point to another Python, so no kernelspec is looked up. Starting an
ipykernel and importing what the notebooks import costs seconds of processor time a notebook; a process forked before any
thread, socket or event loop exists needs only a fraction of one. Elsewhere (macOS libraries do not survive a fork) the
kernel is an ordinary subprocess.
"""

import json
import os
import signal
import sys
import traceback
import uuid
from subprocess import Popen

from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from jupyter_client.provisioning import LocalProvisioner
from traitlets import CaselessStrEnum, Float

FORKS = sys.platform == "linux"
LAUNCH = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]


class Waiting:
    """A forked process that waits to become the kernel; its interface is the part of subprocess.Popen that provisioners use."""

    stdin = stdout = stderr = None

    def __init__(self):
        read, self._write = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        self.returncode: int | None = None
        if self.pid == 0:
            os.close(self._write)
            _become_kernel(read)
        os.close(read)

    def start(self, arguments: list[str], env: dict[str, str], cwd: str) -> None:
        with os.fdopen(self._write, "w") as pipe:
            json.dump({"arguments": arguments, "env": env, "cwd": cwd}, pipe)

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self) -> int:
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode

    def send_signal(self, signum: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, signum)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _become_kernel(pipe: int) -> None:
    """In the forked process: wait for the connection, then be an ipykernel until it is shut down. Never returns."""
    code = 1
    try:
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        with os.fdopen(pipe) as stream:
            order = stream.read()
        if order:
            order = json.loads(order)
            os.environ.clear()
            os.environ.update(order["env"])
            os.chdir(order["cwd"])
            sys.argv = ["ipykernel_launcher", *order["arguments"]]
            if "numpy" in sys.modules:
                # Its global generator was seeded before the fork: without this every notebook would draw the same numbers.
                sys.modules["numpy"].random.seed()
            from ipykernel.kernelapp import IPKernelApp

            IPKernelApp.launch_instance(argv=order["arguments"])
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 0
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


class ForkedProvisioner(LocalProvisioner):
    """Hands the kernel's command line to the waiting process instead of starting a new one."""

    waiting: Waiting

    async def launch_kernel(self, cmd: list[str], **kwargs) -> dict:
        # ipykernel read JPY_PARENT_PID when it was imported, which was in another process.
        arguments = [*cmd[cmd.index("ipykernel_launcher") + 1 :], f"--IPKernelApp.parent_handle={os.getpid()}"]
        self.waiting.start(arguments, dict(kwargs["env"]), str(kwargs.get("cwd") or os.getcwd()))
        self.process = self.waiting
        self.pid = self.pgid = self.waiting.pid
        return self.connection_info


class KernelManager(AsyncKernelManager):
    """Starts this environment's ipykernel; through `waiting`, a process forked earlier, when there is one.

    One process runs one kernel, so what the runner sets and asks stands on the class: papermill makes the instance.
    folder: private to this kernel; it talks over Unix sockets there, because two kernels that start at once on one machine
    can be given the same TCP port.
    """

    transport = CaselessStrEnum(["tcp", "ipc"], default_value="ipc")
    shutdown_wait_time = Float(2.0)
    folder = ""
    waiting: Waiting | None = None
    process: Waiting | Popen | None = None

    @property
    def kernel_spec(self) -> KernelSpec:
        return KernelSpec(argv=LAUNCH, display_name="Python 3", language="python")

    @classmethod
    def exit_code(cls) -> int | None:
        """None while it runs; negative for the signal that ended it."""
        process = cls.process
        return process.poll() if process else None

    async def _async_pre_start_kernel(self, **kwargs):
        self.connection_file = f"{self.folder}/kernel.json"
        self.ip = f"{self.folder}/socket"
        if self.waiting and self.provisioner is None:
            self.kernel_id = self.kernel_id or str(uuid.uuid4())
            self.provisioner = ForkedProvisioner(kernel_id=self.kernel_id, kernel_spec=self.kernel_spec, parent=self)
            self.provisioner.waiting = self.waiting
        return await super()._async_pre_start_kernel(**kwargs)

    async def _async_post_start_kernel(self, **kwargs) -> None:
        type(self).process = self.provisioner.process
        await super()._async_post_start_kernel(**kwargs)
