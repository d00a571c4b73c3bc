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

# Routers of other families, in transformers' own f32: weights of all experts (0 where not chosen) and the gradient of
# their product with cotangents. A router's matrix is the identity, so that it reads logits.
from transformers import DeepseekV2Config, DeepseekV3Config, Ernie4_5_MoeConfig, MiniMaxM2Config
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2TopkRouter
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter
from transformers.models.ernie4_5_moe.modeling_ernie4_5_moe import Ernie4_5_MoeTopKRouter
from transformers.models.minimax_m2.modeling_minimax_m2 import MiniMaxM2TopKRouter

logits, bias, cotangents = torch.randn(9, 12).float(), (0.2 * torch.randn(12)).float(), torch.randn(9, 12).float()
show("kGroupLogits", logits)
show("kGroupBias", bias)
show("kGroupCotangents", cotangents)


def show_router(name, router, *arguments):
    router.float().weight.data.copy_(torch.eye(12))
    x = logits.clone().requires_grad_()
    _, weights, experts = router(x, *arguments)
    dense = torch.zeros(9, 12, dtype=torch.float32).scatter(1, experts, weights)
    show(f"k{name}Weights", dense)
    show(f"k{name}Gradient", torch.autograd.grad((dense * cotangents).sum(), x)[0])


sizes = dict(hidden_size=12, num_attention_heads=4, num_experts_per_tok=3)
groups = dict(n_routed_experts=12, n_group=4, topk_group=2, routed_scaling_factor=2.5)
show_router("DeepseekV2", DeepseekV2TopkRouter(DeepseekV2Config(**sizes, **groups, topk_method="group_limited_greedy")))
v3 = DeepseekV3TopkRouter(DeepseekV3Config(**sizes, **groups, norm_topk_prob=True))
v3.e_score_correction_bias.copy_(bias)
show_router("DeepseekV3", v3)
# A floor that some sums reach and others do not.
ernie = Ernie4_5_MoeTopKRouter(Ernie4_5_MoeConfig(hidden_size=12, num_attention_heads=4, moe_k=3, moe_num_experts=12, moe_norm_min=0.5))
ernie.moe_statics.e_score_correction_bias.data.copy_(bias[None])
show_router("Ernie", ernie)
show_router("MiniMax", MiniMaxM2TopKRouter(MiniMaxM2Config(**sizes, num_local_experts=12)), bias)

# Attention with sinks and a window of two keys: transformers' gpt-oss; gradients of the sum of squares.
from types import SimpleNamespace
from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward

torch.manual_seed(1)
sinks = torch.randn(HQ, requires_grad=True)
module = SimpleNamespace(sinks=sinks, num_key_value_groups=HQ // HK, training=False)
rows, keys = torch.arange(T)[:, None], torch.arange(T)[None]
mask = torch.zeros(1, 1, T, T).masked_fill((keys > rows) | (keys < rows - 1), torch.finfo(torch.float64).min)
out = eager_attention_forward(module, heads(q, HQ)[None], heads(k, HK)[None], heads(v, HK)[None], mask, scaling=0.7)[0]
out = out.reshape(T, HQ * DV)
gradients = torch.autograd.grad(out.square().sum() / 2, (q, k, v, sinks))
for name, tensor in zip(("Sinks", "Out", "Dq", "Dk", "Dv", "Dsinks"), (sinks, out, *gradients)):
    show("kSinks" + name, tensor)

print("// clang-format on\n\n}  // namespace anabatic::testing::goldens")
