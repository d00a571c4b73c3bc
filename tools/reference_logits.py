#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Logits of a model directory as transformers computes them in fp32, for `anabatic check manifest --reference`. Experts in
MXFP4 are dequantised.

usage: reference_logits.py MODEL_DIR OUTPUT.safetensors [--tokens N]
"""
import argparse

import torch
import transformers
from safetensors.torch import save_file


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("output")
    parser.add_argument("--tokens", type=int, default=64)
    arguments = parser.parse_args()
    quantization = getattr(transformers.AutoConfig.from_pretrained(arguments.model), "quantization_config", {})
    is_mxfp4 = quantization.get("quant_method") == "mxfp4"
    fields = {"quantization_config": transformers.Mxfp4Config(dequantize=True)} if is_mxfp4 else {}
    model = transformers.AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32, **fields).eval()
    count = min(arguments.tokens, getattr(model.config, "n_positions", arguments.tokens))
    ids = (torch.arange(1, count + 1) * 7919 % model.config.vocab_size)[None]
    with torch.no_grad():
        logits = model(ids).logits.float()
    save_file({"input_ids": ids, "logits": logits.contiguous()}, arguments.output)


if __name__ == "__main__":
    main()
