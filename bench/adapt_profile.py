# SPDX-License-Identifier: Apache-2.0
"""Where the time of a training step goes: our layers by name, torch's operators by kind, the optimizer, pages of new memory."""
import contextlib
import re
import resource
import statistics
import time

# The first kind that fits an operator of torch.
KINDS = (
    ("products", r"mm|linear|matmul|mkldnn|conv|scaled_dot|attention"),
    ("copies and casts", r"copy|clone|cat|contiguous|stack|repeat|expand"),
    ("filling with zeros", r"fill|zero|ones"),
    ("sums of gradients", r"AccumulateGrad|add_$"),
    ("gathers, sorts, embeddings", r"index|gather|scatter|embedding|topk|sort|select|where"),
    ("norms and clipping", r"norm|clamp"),
    ("softmax and losses", r"softmax|cross_entropy|nll"),
    ("arithmetic of elements", r""),
)
# Their own time is that of Python around them.
PYTHON = re.compile(r"Backward\d*$|evaluate_function|ProfilerStep|Torch-Compiled|CompiledFunction|aten::(empty|view|t|transpose|reshape|slice|as_strided)")


class Timed:
    """The layers of anabatic.torch, each call of which torch's profiler sees."""

    def __init__(self, layers):
        self.layers = layers

    def __getattr__(self, name):
        import torch
        found = getattr(self.layers, name)
        if name not in ("forward", "backward", "pack"):
            return found

        def call(signature, *arguments):
            what = "packing" if name == "pack" else f"{signature.layer} {name}"
            with torch.profiler.record_function(f"ours: {what}"):
                return found(signature, *arguments)

        return call


def kind_of(name):
    if name.startswith("ours: "):
        return name
    if name.startswith("Optimizer") or "adamw" in name:
        return "optimizer"
    if PYTHON.search(name):
        return "Python, and what torch does around operators"
    return "torch: " + next(kind for kind, words in KINDS if re.search(words, name))


@contextlib.contextmanager
def timed_layers():
    try:
        from anabatic.torch._register import _HOST
    except ImportError:
        yield
        return
    before = _HOST.layers()
    _HOST.made = Timed(before)
    yield
    _HOST.made = before


def faults_of(step, rounds):
    """Medians of a step's seconds, its faults of pages, and the system's seconds on all threads."""
    found = []
    for _ in range(rounds):
        before, begin = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
        step()
        after = resource.getrusage(resource.RUSAGE_SELF)
        found.append((time.monotonic() - begin, after.ru_minflt - before.ru_minflt, after.ru_stime - before.ru_stime))
    return [statistics.median(column) for column in zip(*found)]


def kernels_of(step):
    """Seconds and calls of our kernels in one step, by layer and kernel."""
    try:
        from anabatic.torch._register import _HOST
    except ImportError:
        return {}
    _HOST.layers().take_profile()
    step()
    found = {}
    for layer, call, kernel, calls, seconds in _HOST.layers().take_profile():
        name = f"{layer}: {kernel.removeprefix('cpu:')} {call.split()[-1]}"
        before = found.get(name, (0, 0))
        found[name] = (before[0] + seconds, before[1] + calls)
    return found


def print_profile(step, rounds):
    """Times steps as they are, then under torch's profiler, and prints the shares of its events' own time."""
    import torch
    seconds, faults, system = faults_of(step, rounds)
    kernels = kernels_of(step)
    with timed_layers(), torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        begin = time.monotonic()
        for _ in range(rounds):
            step()
        profiled = (time.monotonic() - begin) / rounds
    kinds, operators = {}, {}
    for event in profiler.key_averages():
        own = event.self_cpu_time_total * 1e-6 / rounds
        kind = kind_of(event.key)
        kinds[kind] = kinds.get(kind, 0) + own
        if kind.startswith("torch: ") or kind == "optimizer":
            operators[event.key] = (own, event.count // rounds)
    rest = "Python, and what torch does around operators"
    kinds[rest] = kinds.get(rest, 0) + profiled - sum(kinds.values())
    print(f"  a step takes {seconds:.3f} s, {profiled:.3f} s under the profiler; {faults:.0f} faults of pages; {system:.3f} s of all threads in the system")
    for kind, own in sorted(kinds.items(), key=lambda item: -item[1]):
        print(f"    {kind:<48} {own * 1e3:8.1f} ms {100 * own / profiled:5.1f} %")
    for what, found in (("torch's operators", operators), ("our kernels", kernels)):
        print(f"    {what} that take most:")
        for name, (own, count) in sorted(found.items(), key=lambda item: -item[1][0])[:16]:
            print(f"      {name:<76} {own * 1e3:8.1f} ms {100 * own / profiled:5.1f} %  {count} calls")
