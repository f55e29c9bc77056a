"""Trace a fused network for a GPU that is not there; print as JSON which nodes the graph has, and what each program writes.

Usage: traced_programs.py [dynamic|compiled]. It runs without Triton's interpreter, and nothing is launched. With `compiled`
each program is also compiled as torch has it done, and the instructions are printed that compute in float64.
"""

import json
import sys
from collections import Counter

import torch
import triton
from torch import nn
from torch._functorch.aot_autograd import aot_module_simplified, make_boxed_func
from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

import dcnets
from dcnets import dispatch, functional
from dcnets.fusing import fuse
from dcnets.kernels.gpu import ops, plan

TARGET = GPUTarget("cuda", 90, 32)


class NoDriver:
    """Stands for a GPU whose programs are to be compiled, as far as torch looks at it while it traces."""

    def get_current_target(self):
        return TARGET


triton.runtime.driver.set_active(NoDriver())
plan.processors = lambda device: 132
dispatch.INTERPRETED = True  # a CPU's tensors take the Triton path
ops.on_gpu = lambda t: True  # as a GPU's would

graphs = []


def number(size):
    return size if isinstance(size, int) else size.node.hint


def stand_in(node):
    """Something in the shape of what the graph would give."""
    value = None if node is None else node.meta["val"]
    if isinstance(value, torch.Tensor):
        return torch.empty([number(size) for size in value.shape])
    return None if value is None else number(value)


def keep(graph, inputs):
    graphs.append(graph)
    (outputs,) = graph.graph.output_node().args
    return make_boxed_func(lambda *arguments: [stand_in(node) for node in outputs])


def traced(graph, inputs):
    return aot_module_simplified(graph, inputs, fw_compiler=keep, bw_compiler=keep)


def program_of(node):
    kernel = kernel_side_table.get_kernel(node.kwargs["kernel_idx"])
    while not isinstance(kernel, triton.JITFunction):
        kernel = kernel.fn
    return kernel


TYPES = {torch.float32: "*fp32", torch.float64: "*fp64", int: "i32", float: "fp64"}
"""Inductor's: it takes Python's floats for float64."""


def kind_of(argument):
    """The type with which a program is compiled for an argument."""
    return TYPES[argument.meta["val"].dtype if isinstance(argument, torch.fx.Node) else type(argument)]


def in_float64(node):
    """The instructions of a compiled program that compute in float64."""
    program = program_of(node)
    given = {**kernel_side_table.get_constant_args(node.kwargs["constant_args_idx"]), **node.kwargs["kwargs"]}
    constants = {each.name: given[each.name] for each in program.params if each.is_constexpr}
    kinds = {
        name: value.meta["val"].dtype if isinstance(value, torch.fx.Node) else type(value) for name, value in given.items()
    }
    signature = {name: "constexpr" if name in constants else TYPES[kinds[name]] for name in program.arg_names}
    code = triton.compile(ASTSource(program, signature, constants), target=TARGET).asm["ttir"]
    return [line for line in code.splitlines() if "f64" in line and "func" not in line and "arith.truncf" not in line]


blocks = [
    [dcnets.DecoupledConv2d(inward, 8, 3, padding=1, magnitude="tanh"), nn.BatchNorm2d(8), nn.ReLU()] for inward in (3, 8)
]
model = fuse(nn.Sequential(*(nn.Sequential(*block) for block in blocks)))
with functional.backend("fused"):
    compiled = torch.compile(model, backend=traced, fullgraph=True, dynamic="dynamic" in sys.argv)
    compiled(torch.randn(4, 3, 8, 8, requires_grad=True)).sum().backward()

names, written, wide = Counter(), {}, {}
for graph in graphs:
    for node in graph.graph.nodes:
        if "triton_kernel_wrapper" in str(node.target):
            name = program_of(node).fn.__name__
            if "compiled" in sys.argv and name not in wide:
                wide[name] = in_float64(node)
            written.setdefault(name, set()).update(node.kwargs["tensors_to_clone"])
            names[name] += 1
        elif "dcnets" in str(node.target):
            names[str(node.target)] += 1
of_written = {name: sorted(tensors) for name, tensors in written.items()}
print(json.dumps({"nodes": names, "written": of_written, "in_float64": wide}))
