# SPDX-License-Identifier: Apache-2.0
"""Writes goldens.h: what PyTorch says about small inputs, in double. Run: python goldens.py > goldens.h (torch)."""
import torch
import torch.nn.functional as F

torch.manual_seed(0)
torch.set_default_dtype(torch.float64)


def show(name, tensor):
    values = tensor.detach().to(torch.float64).flatten().tolist()
    print(f"inline const std::vector<double> {name}{{" + ", ".join(repr(v) for v in values) + "};")


print("// SPDX-License-Identifier: Apache-2.0")
print("// Written by goldens.py; do not edit.")
print("#pragma once\n#include <vector>\n\nnamespace anabatic::testing::goldens {\n\n// clang-format off")

# AdamW, three steps with clipped gradients.
p = torch.nn.Parameter(torch.randn(5))
show("kAdamwStart", p)
optimizer = torch.optim.AdamW([p], lr=0.01, betas=(0.9, 0.95), eps=1e-6, weight_decay=0.1)
gradients = torch.randn(3, 5)
show("kAdamwGradients", gradients)
for gradient in gradients:
    p.grad = 0.5 * gradient
    optimizer.step()
show("kAdamwParameter", p)
show("kAdamwFirst", optimizer.state[p]["exp_avg"])
show("kAdamwSecond", optimizer.state[p]["exp_avg_sq"])

# Attention: causal, 4 heads on 2 key heads, unequal head sizes; gradients of the sum of squares.
T, HQ, HK, DK, DV = 5, 4, 2, 3, 2
q, k, v = (torch.randn(T, h * d, requires_grad=True) for h, d in ((HQ, DK), (HK, DK), (HK, DV)))
heads = lambda x, h: x.view(T, h, -1).transpose(0, 1)
repeat = lambda x: heads(x, HK).repeat_interleave(HQ // HK, 0)
out = F.scaled_dot_product_attention(heads(q, HQ), repeat(k), repeat(v), is_causal=True, scale=0.7)
out = out.transpose(0, 1).reshape(T, HQ * DV)
dq, dk, dv = torch.autograd.grad(out.square().sum() / 2, (q, k, v))
for name, tensor in zip(("Q", "K", "V", "Out", "Dq", "Dk", "Dv"), (q, k, v, out, dq, dk, dv)):
    show("kAttention" + name, tensor)

# Cross entropy with an ignored label, mean over the others.
logits = torch.randn(4, 6, requires_grad=True)
labels = torch.tensor([2, -100, 5, 0])
loss = F.cross_entropy(logits, labels)
show("kCrossEntropyLogits", logits)
show("kCrossEntropyLoss", loss)
show("kCrossEntropyGradient", torch.autograd.grad(loss, logits)[0])

# The auxiliary loss of two layers, and what a router gives: transformers' Mixtral.
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

router = torch.randn(2, 7, 5)
show("kRouterLogits", router)
show("kRouterLoss", load_balancing_loss_func(tuple(router), 5, 2))
probabilities = router[0].softmax(-1)
weights, experts = probabilities.topk(2, dim=-1)
show("kRouterWeights", weights / weights.sum(-1, keepdim=True))
show("kRouterExperts", experts)

# RMS norm as transformers' Llama rounds it in bf16: x is normalised in fp32, rounded, then multiplied by the weight in fp32.
x = torch.randn(3, 8).bfloat16()
weight = torch.randn(8).float()
normalised = (x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-5)).bfloat16()
show("kNormX", x)
show("kNormWeight", weight)
show("kNormOut", (weight * normalised.float()).bfloat16())

print("// clang-format on\n\n}  // namespace anabatic::testing::goldens")
