# SPDX-License-Identifier: Apache-2.0
"""What becomes of a raised graph: AOTAutograd, with our operators opaque, then PyTorch for the rest."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch.fx import GraphModule
from torch.fx.graph import _BoxedCodeGen

Watch = Callable[[GraphModule, "GraphModule | None"], None]


def _boxed(module: GraphModule, _: Sequence[Any]) -> Callable[[list[Any]], Any]:
    """Runs a graph node by node. It takes its arguments out of a list, so that each is freed after its last use."""
    module.graph.set_codegen(_BoxedCodeGen())
    module.recompile()
    forward = module.forward

    def run(arguments: list[Any]) -> Any:
        return forward(arguments)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def lower(module: GraphModule, inputs: Sequence[Any], rest: str, watch: Watch | None = None) -> Callable[..., Any]:
    """watch: is given the graphs of forward and backward, or that of an inference alone."""
    if rest == "inductor":
        from torch._inductor.compile_fx import compile_fx

        compiled: Any = compile_fx(module, list(inputs))
        return compiled  # type: ignore[no-any-return]
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.partitioners import default_partition

    def partition(joint: GraphModule, joint_inputs: Any, **options: Any) -> tuple[GraphModule, GraphModule]:
        forward, backward = default_partition(joint, joint_inputs, **options)
        if watch is not None:
            watch(forward, backward)
        return forward, backward

    def inference(graph: GraphModule, graph_inputs: Sequence[Any]) -> Callable[[list[Any]], Any]:
        if watch is not None:
            watch(graph, None)
        return _boxed(graph, graph_inputs)

    compiler = aot_autograd(fw_compiler=_boxed, bw_compiler=_boxed, inference_compiler=inference, partition_fn=partition)
    return compiler(module, inputs)  # type: ignore[no-any-return]
