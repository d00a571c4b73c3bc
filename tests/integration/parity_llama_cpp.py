# SPDX-License-Identifier: Apache-2.0
"""Random models that `convert` wrote as GGUF, run by llama.cpp: the same ids for texts, 40 greedy tokens, and the ten best
log-probabilities at each of them.

usage: parity_llama_cpp.py BINARY [NAME ...]

llama.cpp comes with the package xllamacpp. Our logits are those of the GGUF file, read again here.
"""

import json
import pathlib
import random
import subprocess
import sys
import tempfile
import urllib.request

import torch
import transformers
import xllamacpp
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/support"))
import tolerance  # noqa: E402

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

NEW_TOKENS = 40
END = 2  # the id of EOS in each tokenizer here
SIZES = {"vocab_size": 400, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 8,
         "num_key_value_heads": 2, "max_position_embeddings": 256, "rope_theta": 50000.0, "rms_norm_eps": 1e-5}
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 3.0,
          "original_max_position_embeddings": 32, "rope_theta": 50000.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "rope_theta": 50000.0}
# llama.cpp rounds the bounds of yarn's range, which published configs do not. For theirs that changes little.
GPT_OSS = {"num_local_experts": 6, "num_experts_per_tok": 2, "head_dim": 16, "sliding_window": 9,
           "rope_parameters": YARN | {"truncate": True}}
PUBLISHED = {"head_dim": 64, "max_position_embeddings": 131072,
             "rope_parameters": {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096,
                                 "truncate": False, "rope_theta": 150000.0}}
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LETTERS = r"|[^\r\n\p{L}\p{N}]?\p{L}+|"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
# llama.cpp rounds activations where weights are bf16. That puts an expert into another's place now and then, so all of
# them are chosen there.
# name -> model_type, fields, pre-tokenizer, type of the GGUF file
MODELS = {
    "mixtral": ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}, "llama", "f32"),
    "mixtral_bf16": ("mixtral", {"num_local_experts": 3, "num_experts_per_tok": 3, "head_dim": 16}, "llama-bpe", "bf16"),
    "qwen3moe": ("qwen3_moe", EXPERTS | {"norm_topk_prob": True, "head_dim": 16}, "qwen2", "f32"),
    "qwen3moe_bf16": ("qwen3_moe", EXPERTS | {"num_experts_per_tok": 6, "norm_topk_prob": True, "head_dim": 8}, "qwen2", "bf16"),
    "qwen2moe": ("qwen2_moe", EXPERTS | {"shared_expert_intermediate_size": 64, "norm_topk_prob": False}, "qwen2", "f32"),
    "olmoe": ("olmoe", {"num_experts": 6, "num_experts_per_tok": 2, "num_key_value_heads": 8}, "gpt-2", "f32"),
    "granitemoe": ("granitemoe", {"num_local_experts": 5, "num_experts_per_tok": 2, "attention_multiplier": 0.2,
                                  "embedding_multiplier": 3.0, "residual_multiplier": 0.6, "logits_scaling": 1.5}, "smollm",
                   "f32"),
    "granitemoeshared": ("granitemoeshared", {"num_local_experts": 5, "num_experts_per_tok": 2, "attention_multiplier": 0.3,
                                              "shared_intermediate_size": 48}, "smollm", "f32"),
    "llama_llama3": ("llama", {"rope_parameters": LLAMA3, "attention_bias": True, "tie_word_embeddings": True}, "smollm",
                     "f32"),
    "qwen2_yarn": ("qwen2", {"rope_parameters": YARN}, "gpt-2", "f32"),
    "gpt-oss": ("gpt_oss", GPT_OSS, "gpt-4o", "f32"),
    "gpt-oss_bf16": ("gpt_oss", GPT_OSS | {"num_experts_per_tok": 6, "rope_parameters": {"rope_type": "default",
                                                                                      "rope_theta": 50000.0}}, "gpt-4o",
                     "bf16"),
    "gpt-oss_mxfp4": ("gpt_oss", GPT_OSS | PUBLISHED | {"num_experts_per_tok": 6}, "gpt-4o", "mxfp4"),
    "qwen3_linear": ("qwen3", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 50000.0},
                               "head_dim": 16}, "deepseek-v3", "f32"),
}
failures = []


def split(pattern):
    return pre_tokenizers.Split(Regex(pattern), "isolated")


def pre_tokenizer(name):
    """As the tokenizer.json of a model that llama.cpp calls so."""
    symbols = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    words = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if name == "gpt-2":
        return words
    if name == "smollm":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), words])
    if name == "gpt-4o":
        upper, lower, end = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}", CONTRACTIONS + "?"
        return pre_tokenizers.Sequence([split(
            rf"[^\r\n\p{{L}}\p{{N}}]?[{upper}]*[{lower}]+{end}|[^\r\n\p{{L}}\p{{N}}]?[{upper}]+[{lower}]*{end}"
            r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"), symbols])
    if name == "deepseek-v3":
        last = (r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
                r"""| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""")
        return pre_tokenizers.Sequence([split(r"\p{N}{1,3}"), split("[一-龥぀-ゟ゠-ヿ]+"), split(last), symbols])
    digits = {"llama-bpe": r"\p{N}{1,3}", "qwen2": r"\p{N}"}[name]
    return pre_tokenizers.Sequence([split(CONTRACTIONS + LETTERS + digits + REST), symbols])


def texts():
    rng = random.Random(5)
    parts = ["hello", " World", "I've", " DON'T", "12345", "  ", "\n", "\n\n", "\t", "é", "ünï", " 東京", "かな", "!?", "...",
             " (x)", "don't", "<|name|>", "a", "B", "🦙", "न", "\u00a0", "'s", " -- ", "3.14", "Été"]
    return ["".join(rng.choices(parts, k=rng.randint(1, 12))) for _ in range(120)]


def train_tokenizer(name):
    corpus = [(ROOT / "README.md").read_text(), *texts()]
    if name == "llama":
        return train_sentencepiece(corpus)
    tokenizer = Tokenizer(models.BPE(ignore_merges=name == "llama-bpe"))
    tokenizer.pre_tokenizer = pre_tokenizer(name)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(corpus, trainers.BpeTrainer(
        vocab_size=390, special_tokens=["<unk>", "<s>", "</s>", "<|name|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False))
    return tokenizer


def train_sentencepiece(corpus):
    """Its merges by scores, as a tokenizer.model of the package sentencepiece gives them."""
    import sentencepiece
    with tempfile.TemporaryDirectory() as work:
        path = pathlib.Path(work) / "corpus.txt"
        path.write_text("\n".join(corpus))
        sentencepiece.SentencePieceTrainer.train(
            input=str(path), model_prefix=f"{work}/m", vocab_size=390, model_type="bpe", byte_fallback=True,
            normalization_rule_name="identity", remove_extra_whitespaces=False, character_coverage=0.99,
            user_defined_symbols=["<|name|>"], minloglevel=2)
        return pathlib.Path(f"{work}/m.model").read_bytes()


def write_model(directory, model_type, fields, name):
    torch.manual_seed(11)
    config = transformers.AutoConfig.for_model(model_type, **(SIZES | {"pad_token_id": None, "bos_token_id": 1,
                                                                       "eos_token_id": 2} | fields))
    model = transformers.AutoModelForCausalLM.from_config(config).to(torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(1 if parameter.ndim == 1 else 0, 0.12)
    model.save_pretrained(directory)
    tokenizer = train_tokenizer(name)
    if isinstance(tokenizer, bytes):
        (directory / "tokenizer.model").write_bytes(tokenizer)
        tokens = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "add_bos_token": True}
    else:
        tokenizer.save(str(directory / "tokenizer.json"))
        tokens = {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": name == "llama-bpe"}
    (directory / "tokenizer_config.json").write_text(json.dumps(tokens | {"chat_template": "{{ messages }}"}))


def run(*command):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


class LlamaCpp:
    def __init__(self, path, adapter=None):
        params = xllamacpp.CommonParams()
        params.model.path = str(path)
        if adapter:
            params.lora_adapters = [xllamacpp.CommonAdapterLoraInfo(str(adapter), 1.0)]
        params.n_ctx = 256
        params.n_parallel = 1
        params.n_gpu_layers = 0
        params.warmup = False
        # Its flash attention rounds to f16, which puts an expert into another's place now and then.
        params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
        params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
        params.cpuparams.n_threads = 2
        params.verbosity = -1
        self.server = xllamacpp.Server(params)
        self.url = self.server.listening_address

    def ask(self, what, **fields):
        request = urllib.request.Request(f"{self.url}/{what}", json.dumps(fields).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)

    def tokenize(self, text):
        return self.ask("tokenize", content=text, add_special=True, parse_special=True)["tokens"]

    def greedy(self, ids):
        """The tokens, and of each the ten best ids with their log-probabilities; none where its text ends within a character,
        for which the server has no place."""
        tokens, best = [], []
        for _ in range(NEW_TOKENS):
            answer = self.ask("completion", prompt=ids + tokens, n_predict=1, temperature=0, n_probs=10, ignore_eos=True,
                              return_tokens=True, samplers=["temperature"])
            tokens += answer["tokens"]
            found = answer.get("completion_probabilities") or [{"top_logprobs": []}]
            best.append([(top["id"], top["logprob"]) for top in found[0]["top_logprobs"]])
        return tokens, best


def compare_ids(name, binary, path, server, work, is_sentencepiece=False):
    """Lines cannot hold line ends, so those are compared in the other parity tests."""
    whole = [text for text in texts() if "\n" not in text and text.strip()]
    # By the tokenizer.json in the file, and by the keys that llama.cpp reads alone.
    bare = work / "bare.gguf"
    bare.write_bytes(path.read_bytes().replace(b"tokenizer.huggingface.json", b"tokenizer.huggingface.none", 1))
    for file in (path, bare):
        # llama.cpp puts a space after an added token of SentencePiece, which has none there.
        lines = [line for line in whole if file == bare or not (is_sentencepiece and "<|name|>" in line)]
        (work / "texts.txt").write_text("".join(line + "\n" for line in lines))
        ours = [json.loads(line) for line in
                run(binary, "tokenize", "--model.path", file, "--ids", work / "texts.txt").splitlines()]
        assert len(ours) == len(lines), f"{name}: {len(ours)} lines of ids for {len(lines)} texts"
        for text, got in zip(lines, ours):
            if got != (want := server.tokenize(text)):
                failures.append(f"{name}: {file.name}: {text!r}: ids {got}, llama.cpp has {want}")
    return len(whole)


def compare_greedy(name, binary, path, server, work, kind):
    ids = server.tokenize("hello World, it is 12 o'clock")
    tokens, best = server.greedy(ids)
    whole = torch.tensor([ids + tokens])
    save_file({"input_ids": whole, "labels": whole.clone()}, work / "tokens.safetensors")
    run(binary, "gradients", path, "--tokens", work / "tokens.safetensors", "--output", work / "out.safetensors",
        "--precision", "fp32")
    ours = torch.log_softmax(load_file(work / "out.safetensors")["logits"][0].double(), -1)[len(ids) - 1 : -1]
    assert len(tokens) == NEW_TOKENS, f"{name}: llama.cpp gave {len(tokens)} tokens"
    assert sum(len(top) == 10 for top in best) > NEW_TOKENS // 2, f"{name}: llama.cpp gave few log-probabilities"
    worst = 0.0
    for place, (row, token, top) in enumerate(zip(ours, tokens, best)):
        row = row.clone()
        row[END] = -torch.inf  # ignore_eos bars it, and log-probabilities count it
        if int(row.argmax()) != token:
            failures.append(f"{name}: token {place} is {token} in llama.cpp, {int(row.argmax())} here")
        for candidate, logprob in top:
            if candidate != END:
                worst = max(worst, abs(float(ours[place][candidate]) - logprob))
    if not worst <= tolerance.LLAMA_CPP_LOG_PROBABILITY[kind]:
        failures.append(f"{name}: log-probabilities differ by {worst:.2e}")
    return worst


def check(name, binary):
    model_type, fields, tokenizer, kind = MODELS[name]
    with tempfile.TemporaryDirectory() as work:
        work = pathlib.Path(work)
        write_model(work / "model", model_type, fields, tokenizer)
        path = work / "model.gguf"
        run(binary, "convert", work / "model", path, "--format", "gguf", "--dtype", kind, "--no-logits")
        server = LlamaCpp(path)
        count = compare_ids(name, binary, path, server, work, tokenizer == "llama")
        worst = compare_greedy(name, binary, path, server, work, kind)
    print(f"{name}: ids of {count} texts, {NEW_TOKENS} tokens, log-probabilities within {worst:.1e}", flush=True)


def main():
    for name in sys.argv[2:] or MODELS:
        check(name, pathlib.Path(sys.argv[1]).resolve())
    if failures:
        sys.exit("\n".join(failures))


if __name__ == "__main__":
    main()
