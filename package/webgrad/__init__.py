"""webgrad: train and run neural networks in a browser tab, from Python.

A model is plain Python. `compile_module` traces it once, differentiates the trace, fuses it into WGSL
kernels and trains it on the page's GPU; results come back as NumPy arrays. See the guide in ``docs``.
"""

from webgrad import functional as _functional
from webgrad import nn, optim, web
from webgrad.arrays import Input
from webgrad.autograd import append_grad, grad
from webgrad.compile import (
    compile_forward,
    compile_module,
    create_forward_runtime,
    create_runtime,
    run,
)
from webgrad.compiled import CompiledForward, CompiledModule, Pending, RunResult, StepResult, destroy_all
from webgrad.compiler.kernels import Schedule
from webgrad.compiler.plan import Plan, plan_buffers
from webgrad.compiler.program import Program
from webgrad.compiler.schedule import schedule
from webgrad.compiler.target import Target
from webgrad.errors import (
    CheckpointError,
    CompileError,
    DeviceLostError,
    DtypeError,
    InputError,
    NoAdapterError,
    NonFiniteError,
    OutOfMemoryError,
    ShapeError,
    TraceError,
    WebgradError,
)
from webgrad.functional import *  # noqa: F403
from webgrad.ir import Graph, Layout
from webgrad.nn.module import Module, materialize_params
from webgrad.optim import append_adam, append_optimizer
from webgrad.runtime.store import ParamHandle, Params
from webgrad.runtime.webgpu import set_bridge_url
from webgrad.stages import Progress
from webgrad.tensor import Tensor
from webgrad.trace import capture, metric, param_input, state_input, tensor_input, trace, trace_into
from webgrad.wgsl.emit import Kernel, emit_kernels
from webgrad.wgsl.link import make_program

__version__ = "0.1.0"

__all__ = [
    "CheckpointError", "CompileError", "CompiledForward", "CompiledModule", "DeviceLostError",
    "DtypeError", "Graph", "Input", "InputError", "Kernel", "Layout", "Module", "NoAdapterError",
    "NonFiniteError", "OutOfMemoryError", "ParamHandle", "Params", "Pending", "Plan", "Program", "Progress",
    "RunResult", "Schedule", "ShapeError", "StepResult", "Target", "Tensor", "TraceError", "WebgradError",
    "append_adam", "append_grad", "append_optimizer", "capture", "compile_forward", "compile_module",
    "create_forward_runtime", "create_runtime", "destroy_all", "emit_kernels", "grad", "make_program",
    "materialize_params", "metric", "nn", "optim", "param_input", "plan_buffers", "run", "schedule",
    "set_bridge_url", "state_input", "tensor_input", "trace", "trace_into", "web",
    *_functional.__all__,
]  # fmt: skip
