# SPDX-License-Identifier: Apache-2.0
"""Compares tokenizer.model and tekken.json with `sentencepiece` and `mistral_common`, and what is written for them, Unigram models and
SentencePiece's normalizers with Hugging Face `tokenizers`.

usage: model_file_parity.py DRIVER [--real] [--texts N] [--only NAME]
--real: the files inside the Python package mistral-common too, and more texts.
"""
import argparse
import base64
import json
import math
import pathlib
import random
import subprocess
import sys
import tempfile
import unicodedata

import sentencepiece
from tokenizers import Tokenizer, normalizers
from tokenizer_parity import PARTS, WORDS, Driver, compare, corpus, make_texts, package_file

MOST_SHOWN = 5


class Comparison:
    def __init__(self, driver, folder, texts, only):
        self.driver, self.folder, self.texts, self.only = driver, folder, texts, only
        self.bad = 0

    def report(self, name, checks, differences):
        self.bad += len(differences)
        print(f"{name}: {checks} checks, {len(differences)} differences")
        for given, got, want in differences[:MOST_SHOWN]:
            print(f"  {given!r}\n    got  {got!r}\n    want {want!r}")

    def file(self, name, file, encode, literals=(), own=(), normalize=None):
        """Our ids against `encode` of the original library; both, and decoding, against Hugging Face on the file that we write.

        Texts with one of the literals are left to Hugging Face: they are special tokens there. A text that is one user-defined piece of a
        BPE gets no prefix here. SentencePiece adds scores as floats, so its cut may be worse by their rounding. Where a mark follows, a
        character map may act in another way there than in Hugging Face."""
        if self.only not in name:
            return
        written = self.folder / f"{name}.json"
        written.write_bytes(subprocess.run([self.driver, str(file), "--json"], stdout=subprocess.PIPE, check=True).stdout)
        rng = random.Random(name)
        ours = Driver(self.driver, str(file))
        model = json.loads(written.read_text("utf-8"))["model"]
        scores = [score for _, score in model["vocab"]] if model["type"] == "Unigram" else None
        space = model["vocab"].get("▁", -1) if scores is None else -1
        normal = Tokenizer.from_file(str(written)).normalizer
        has_map = normal is not None and "Precompiled" in written.read_text("utf-8")
        differences, checks, ties = [], 0, 0
        for text in make_texts(rng, self.texts, list(own)):
            if any(literal in text for literal in literals):
                continue
            checks += 1
            got, want = ours.ask(text=text), encode(text)
            if got == want or (len(got) == 1 and sorted(want) == sorted([space] + got)):
                continue
            if scores and 0 <= total(scores, got) - total(scores, want) <= len(got) * 2**-24 * abs(total(scores, got)):
                ties += 1
            elif any(unicodedata.category(c)[0] == "M" for c in text) and has_map and normalize(text) != normal.normalize_str(text):
                ties += 1
            else:
                differences.append((text, got, want))
        ours.close()
        if 10 * ties > checks:
            differences.append((f"{ties} texts", "other ids for a known reason", f"in at most a tenth of {checks}"))
        self.report(name, checks, differences)
        self.bad += compare(self.driver, f"{name} as tokenizer.json", written, self.texts, len(name))

    def normalizer(self, name, component, reference, texts):
        if self.only not in name:
            return
        some = Driver(self.driver, str(self.folder / "any.json"))
        differences = []
        for text in texts:
            got, want = some.ask(normalizer=component, text=text), reference.normalize_str(text)
            if got != want:
                at = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b), 0)
                differences.append((text[max(0, at - 20):at + 20], got[at:at + 20], want[at:at + 20]))
        some.close()
        self.report(name, len(texts), differences)


def total(scores, ids):
    return math.fsum(scores[i] for i in ids)


def train(folder, name, rng, **options):
    source = folder / "corpus.txt"
    if not source.exists():
        source.write_text("".join(corpus(rng)), "utf-8")
    sentencepiece.SentencePieceTrainer.train(**{
        "input": str(source), "model_prefix": str(folder / name), "vocab_size": 900, "hard_vocab_limit": False,
        "character_coverage": 0.999, "num_threads": 1, "minloglevel": 2, "input_sentence_size": 2000, **options})
    return folder / f"{name}.model"


def small_models(folder, rng):
    plain = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False, "byte_fallback": True, "split_digits": True,
             "allow_whitespace_only_pieces": True}
    own = ["<ud>", "[IMG]", "▁▁▁", "twowords", "é", "...", "ar"]
    for kind in ("bpe", "unigram"):
        yield f"{kind}_llama", train(folder, f"{kind}_llama", rng, model_type=kind, **plain), []
        yield f"{kind}_default", train(folder, f"{kind}_default", rng, model_type=kind), []
        yield f"{kind}_own", train(folder, f"{kind}_own", rng, model_type=kind, user_defined_symbols=own, control_symbols=["<c>"],
                                   **plain), own
        yield f"{kind}_bare", train(folder, f"{kind}_bare", rng, model_type=kind, add_dummy_prefix=False, bos_id=-1,
                                    normalization_rule_name="nfkc_cf", split_by_whitespace=False, max_sentencepiece_length=24), []


def normalizer_cases(comparison, maps, rng):
    codes = [c for plane in (0, 1, 2, 3, 14) for c in range(plane << 16, plane + 1 << 16) if c and not 0xD800 <= c < 0xE000]
    marks = [0x301, 0x308, 0x323, 0x345, 0x200D, 0x20DD, 0xFE0F, 0x903, 0x94D, 0x9BE, 0x3099, 0x1F3FD, 0x600, 0x70F, 0x0D, 0x0A]
    bases = [0x41, 0xA0, 0xA9, 0xAD, 0x915, 0x937, 0x94D, 0x3B1, 0x1100, 0x1161, 0x11A8, 0xAC00, 0xAC01, 0x304B, 0xFF21, 0x1F1E6, 0x1F469, 0x110BD]
    mixed = ["".join(chr(rng.choice(rng.choice((marks, bases, codes)))) for _ in range(400)) for _ in range(60)]
    every = ["+".join(map(chr, codes[i:i + 8000])) for i in range(0, len(codes), 8000)]
    pairs = ["+".join(chr(b) + chr(c) for c in codes[i:i + 8000]) for b in (0x41, 0xA0) for i in range(0, len(codes), 8000)]
    for name, charsmap in maps.items():
        component = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(charsmap).decode()}
        comparison.normalizer(f"precompiled_{name}", component, normalizers.Precompiled(charsmap), every + mixed + pairs)
    comparison.normalizer("nmt", {"type": "Nmt"}, normalizers.Nmt(), every)
    comparison.normalizer("strip_accents", {"type": "StripAccents"}, normalizers.StripAccents(), every + mixed)


def unigram_documents(comparison, small):
    """Variants of a Unigram model that no tokenizer.model asks for, and what `transformers` puts around one."""
    base = json.loads(small.read_text("utf-8"))
    size = len(base["model"]["vocab"])
    charsmap = next((step for step in base["normalizer"]["normalizers"] if step["type"] == "Precompiled"), None)

    def variant(name, model=(), **changes):
        if comparison.only in name:
            document = {**base, "pre_tokenizer": None, **changes}
            document["model"] = {**base["model"], **dict(model)}
            file = comparison.folder / f"{name}.json"
            file.write_text(json.dumps(document), "utf-8")
            comparison.bad += compare(comparison.driver, name, file, comparison.texts, size)

    def metaspace(scheme, split=True):
        return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split}

    def added(content, id, **flags):
        return {"id": id, "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True,
                **flags}

    with_bytes = [[f"<0x{byte:02X}>", 0.0] for byte in range(256)]
    spaces = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}
    t5 = {"type": "Sequence", "normalizers": [charsmap, {"type": "Strip", "strip_left": False, "strip_right": True}, spaces]}
    for scheme in ("always", "first", "never"):
        for split in (True, False):
            variant(f"unigram_{scheme}_{split}", normalizer=t5, pre_tokenizer=metaspace(scheme, split), decoder=metaspace(scheme, split),
                    added_tokens=[added("<unk>", 0), added("<mask>", size, lstrip=True), added("one", size + 1, single_word=True, special=False),
                                  added("[X]", size + 2, normalized=True, special=False)])
    albert = [{"type": "Nmt"}, {"type": "NFKD"}, {"type": "StripAccents"}, {"type": "Lowercase"}, charsmap, spaces]
    variant("unigram_albert", normalizer={"type": "Sequence", "normalizers": albert}, pre_tokenizer=metaspace("always"),
            decoder=metaspace("always"))
    variant("unigram_bytes", {"vocab": base["model"]["vocab"] + with_bytes, "byte_fallback": True}, normalizer=None)
    variant("unigram_few_bytes", {"vocab": base["model"]["vocab"] + with_bytes[:0xA0], "byte_fallback": True}, normalizer=None)
    variant("unigram_other_unk", {"unk_id": 7}, normalizer=None)
    variant("unigram_twice", {"vocab": base["model"]["vocab"] + [["a", -3.0], ["▁a", -1.5], ["", -1.0], ["ab", 0], ["xyz", -1000.5]]}, normalizer=None)
    variant("unigram_flat", {"vocab": [[token, -1] for token, _ in base["model"]["vocab"]]}, normalizer=None)
    variant("unigram_words", normalizer=None, pre_tokenizer={"type": "WhitespaceSplit"}, decoder=None)


def real_files(comparison):
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer

    data = package_file("mistral_common", "data")
    for file in sorted(data.glob("*.model.*")):
        processor = sentencepiece.SentencePieceProcessor(model_proto=file.read_bytes())
        pieces = range(processor.get_piece_size())
        control = [processor.id_to_piece(i) for i in pieces if processor.is_control(i) or processor.is_unknown(i)]
        model = comparison.folder / f"{file.name}.model"
        model.write_bytes(file.read_bytes())
        comparison.file(file.name, model, processor.encode, control, WORDS[:10] + PARTS[:10])
    for file in sorted(data.glob("tekken*.json")):
        tekken = Tekkenizer.from_file(file)
        special = [tekken.id_to_piece(i) for i in range(tekken.num_special_tokens)]
        comparison.file(file.stem, file, lambda text, tekken=tekken: tekken.encode(text, bos=False, eos=False), special)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("driver")
    parser.add_argument("--real", action="store_true")
    parser.add_argument("--texts", type=int, default=25)
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        rng = random.Random(35)
        Tokenizer.from_str(json.dumps({"model": {"type": "BPE", "vocab": {}, "merges": []}})).save(str(folder / "any.json"))
        comparison = Comparison(arguments.driver, folder, arguments.texts, arguments.only)
        maps = {}
        for name, file, own in small_models(folder, rng):
            processor = sentencepiece.SentencePieceProcessor(model_file=str(file))
            literals = ["<unk>", "<s>", "</s>", "<c>", "<0x41>"]
            comparison.file(name, file, processor.encode, literals, own, processor.normalize)
            model = json.loads((folder / f"{name}.json").read_text("utf-8")) if (folder / f"{name}.json").exists() else {}
            for step in (model.get("normalizer") or {}).get("normalizers", []):
                if step["type"] == "Precompiled":
                    maps[name] = base64.b64decode(step["precompiled_charsmap"])
        normalizer_cases(comparison, {name: maps[name] for name in ("unigram_default", "unigram_bare") if name in maps}, rng)
        if (folder / "unigram_default.json").exists():
            unigram_documents(comparison, folder / "unigram_default.json")
        if arguments.real:
            real_files(comparison)
    print(f"{comparison.bad} differences")
    sys.exit(bool(comparison.bad))


if __name__ == "__main__":
    main()
