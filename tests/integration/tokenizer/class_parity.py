# SPDX-License-Identifier: Apache-2.0
"""Compares character classes over all characters, patterns on texts, and the order of marks with Hugging Face `tokenizers`.

usage: class_parity.py DRIVER [--stride N] [--properties FILE]
--stride: only each N-th class, text and pair of marks; 1, the whole comparison, takes minutes.
--properties: a file of property names, one a line; each is compared over all characters too.
"""
import argparse
import pathlib
import random
import tempfile
import unicodedata

from tokenizers import Regex, normalizers, pre_tokenizers
from tokenizer_parity import KIMI, LLAMA3, O200K, QWEN, Driver, gpt2, make_texts

# Planes 4 to 13 hold no character, the private ones are all alike.
FEW = [c for c in range(0x40000) if not 0xD800 <= c < 0xE000] + list(range(0xE0000, 0xE0200))
FEW = sorted(FEW + [plane * 0x10000 + c for plane in range(4, 0x11) for c in (0, 0xFFFD, 0xFFFF) if plane != 14])
EVERY = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]

ESCAPES = r"\w \W \s \S \d \D \h \H".split()
POSIX = "alnum alpha ascii blank cntrl digit graph lower print punct space upper word xdigit".split()
PROPERTIES = """L Lu Ll Lt Lm Lo LC M Mn Mc Me N Nd Nl No P Pc Pd Ps Pe Pi Pf Po S Sm Sc Sk So Z Zs Zl Zp C Cc Cf Cn Co Any Assigned
Letter Mark Number Punctuation Symbol Separator Other Punct Digit Alpha Alnum Word Space Graph Print Blank Upper Lower PosixPunct
Alphabetic Uppercase Lowercase White_Space Cased Case_Ignorable Dash Diacritic Emoji Emoji_Presentation Extender Ideographic
Grapheme_Base Grapheme_Extend ID_Start ID_Continue XID_Start XID_Continue Math Sentence_Terminal Terminal_Punctuation Unified_Ideograph
Han Hiragana Katakana Hangul Latin Greek Cyrillic Arabic Hebrew Devanagari Thai Common Inherited Unknown Kawi Garay
Nag_Mundari Sunuwar In_Basic_Latin In_Kawi In_CJK_Unified_Ideographs_Extension_I In_No_Block""".split()
CLASSES = r"""[\w&&[^\d]] [^\w&&[^\d]] [^\W\d_] [\p{L}\p{M}&&[^\p{Han}]] [[a-z]&&[^aeiou]] [\s\S] [^\s\p{L}\p{N}] [\p{^L}\d] [^\P{L}]
[[:^alpha:]] [[:^punct:]\w] [[:alpha:][:digit:]_] [^[:punct:]] [[:word:]&&[:^alpha:]] [\p{P}\p{S}] [!-/:-@\[-`{-~] [一-龥぀-ゟ゠-ヿ]
[\u4e00-\u9fff] [^\r\n] . [\w\-] [^[^\w]] [a-zé-ÿ[Α-Ω]&&[^m-p&&[^n]]] [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]
\p{Word} \P{Word} \p{^word} [\p{Word}] []\p{word}] (?i:s) (?i:k) (?i:ß) (?i:ǆ) (?i:ɤ) (?i:[a-z]) (?i:[^a-z]) (?i:[\p{Lu}]) (?i:\p{Ll}) (?i:[[:upper:]]) (?i:[[:^lower:]]) (?i:σ)
(?m:.) (?W:\w) (?S:\s) (?D:\d) (?P:[[:alpha:]])""".split()

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
DEEPSEEK = (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
            r"|\s*[\r\n]+|\s+(?!\S)|\s+")
PATTERNS = [GPT2, LLAMA3, QWEN, O200K, KIMI, DEEPSEEK, r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", r"\X", r"\R", r"\b", r"\B\w+", r"(?<=\s)\w+",
            r"(?<![a-z])[a-z]{2,}", r"(\w)\1", r"(?i:ss|st|ff)", r"(?i)straße|[ß]", r"\w+?\s", r"(?>\w+)\s", r"\w++\s", r"a{,2}b?",
            r"\d{1,3}+", r"[a-z]{2}?e", r"(?=\w)..", r"^\w+$", r"(?m:^.+$)", r"\A.|.\z", r"(?~the)", r"\s*+\S", "(?:a|an|and)(?! )",
            r"\K\w", r"\y", r"\h+|\O", r"(?x: \w + ) # x", r"(?:\s|\p{P})*?\p{L}", r"(?:ab?)+|(?:)", r"\s+(?!\S)|\s++", r"\N+"]


def runs(codes, offsets):
    """Sets of ranges [first, last] of the characters at the offsets, joined where no character lies between."""
    result = []
    for begin, end in offsets:
        for code in codes[begin:end]:
            if result and (code == result[-1][1] + 1 or (result[-1][1], code) == (0xD7FF, 0xE000)):
                result[-1][1] = code
            else:
                result.append([code, code])
    return result


class Comparison:
    def __init__(self, driver):
        self.ours = driver
        self.checks = self.bad = 0

    def check(self, what, got, want):
        self.checks += 1
        if got != want:
            self.bad += 1
            at = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b), min(len(got), len(want)))
            print(f"{what} differs: got {str(got[at:at + 4])[:200]}, want {str(want[at:at + 4])[:200]} at {at}")

    def character_class(self, pattern, codes=FEW):
        spaced = "\0".join(map(chr, codes)) if "(?i" in pattern else None
        text = spaced or "".join(map(chr, codes))
        split = pre_tokenizers.Split(Regex(f"(?:{pattern})+"), "removed", True)
        offsets = [offset for _, offset in split.pre_tokenize_str(text)]
        if spaced:  # the characters stand at even places
            offsets = [((begin + 1) // 2, (end + 1) // 2) for begin, end in offsets]
        want = runs(codes, offsets)
        known = set(codes)
        for engine in ("any", "oniguruma"):
            got = self.ours.ask(**{"class": pattern, "engine": engine})
            if isinstance(got, dict):
                self.check(f"{pattern} ({engine})", [got], want)
                continue
            if codes is not EVERY:
                got = clip(got, known)
            self.check(f"{pattern} ({engine})", got, want)

    def pattern(self, pattern, text):
        split = pre_tokenizers.Split(Regex(pattern), "removed", True)
        want = [piece for piece, _ in split.pre_tokenize_str(text)]
        for engine in ("any", "oniguruma"):
            got = self.ours.ask(regex=pattern, text=text, engine=engine)
            got = [piece for piece in got if piece] if isinstance(got, list) else [got]
            self.check(f"{pattern} ({engine}) on {text[:60]!r}", got, want)


def clip(ranges, known):
    codes = [c for first, last in ranges for c in range(first, last + 1) if c in known]
    return runs(codes, [(0, len(codes))])


def random_class(rng, depth=0):
    parts = []
    for _ in range(rng.randrange(1, 4)):
        kind = rng.randrange(6 if depth < 2 else 4)
        parts.append([lambda: rng.choice(ESCAPES), lambda: f"[:{rng.choice(['', '^'])}{rng.choice(POSIX)}:]",
                      lambda: rf"\{rng.choice('pP')}{{{rng.choice(['', '^'])}{rng.choice(PROPERTIES)}}}",
                      lambda: rng.choice(["a-f", "x", "é", "А-Я", "一-鿿", r"\n", r"\]", "0-4", "😀-🙏"]),
                      lambda: random_class(rng, depth + 1), lambda: "&&" + random_class(rng, depth + 1)][kind]())
    text = "".join(parts)
    return f"[{'^' if rng.random() < 0.3 else ''}{text[2:] if text.startswith('&&') else text}]"


def marks(comparison, stride):
    """All characters next to marks of several combining classes, and every decomposition put together again.

    With a stride a character meets few of the marks, but each meets some."""
    codes = [c for c in FEW if c >= 0xA0 and not 0x3400 <= c < 0xA000 and not 0xAC00 <= c < 0xD7A4]
    codes = [c for c in codes if not 0x20000 <= c < 0x2F800]
    decomposed = [unicodedata.normalize("NFD", chr(c)) for c in FEW if unicodedata.decomposition(chr(c))] + ["\U00011935\U00011930"]
    decomposed += [text + "\u0301" for text in decomposed] + [text[0] + "\u0334" + text[1:] for text in decomposed]
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        normalizer = getattr(normalizers, form)()
        items = decomposed[::stride]
        for start, mark in enumerate(("\u0334", "\u05b0", "\u0301", "\u0345", "\u0327", "\u094d", "\U0001e136")):
            part = codes[start % stride::stride]
            items += ["a" + chr(c) + mark for c in part] + ["a" + mark + chr(c) for c in part]
        for begin in range(0, len(items), 20000):
            text = "|".join(items[begin:begin + 20000])
            want = normalizer.normalize_str(text)
            comparison.check(f"{form} from {begin}", comparison.ours.ask(normalizer={"type": form}, text=text).split("|"), want.split("|"))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("driver")
    parser.add_argument("--stride", type=int, default=1)
    parser.add_argument("--properties", type=pathlib.Path)
    arguments = parser.parse_args()
    rng = random.Random(7)
    with tempfile.TemporaryDirectory() as folder:
        comparison = Comparison(Driver(arguments.driver, str(gpt2(pathlib.Path(folder)))))
        stride = arguments.stride
        for escape in ESCAPES[::stride]:
            comparison.character_class(escape, EVERY)
            comparison.character_class(f"[{escape}]", EVERY)
        classes = [f"[[:{name}:]]" for name in POSIX] + [rf"\p{{{name}}}" for name in PROPERTIES] + CLASSES
        classes += [random_class(rng) for _ in range(60)]
        if arguments.properties:
            classes = [rf"\p{{{name}}}" for name in arguments.properties.read_text("utf-8").split()]
        for pattern in classes[::stride]:
            comparison.character_class(pattern)
        texts = make_texts(rng, 60, []) + ["".join(map(chr, rng.sample(FEW, 400))) for _ in range(20)]
        for pattern in PATTERNS:
            for text in texts[::stride]:
                if pattern == r"\X":  # libonig has the graphemes of Unicode 14, as this module
                    text = "".join(c for c in text if unicodedata.category(c) != "Cn")
                comparison.pattern(pattern, text)
        marks(comparison, stride)
        comparison.ours.close()
    print(f"{comparison.checks} checks, {comparison.bad} differences")
    raise SystemExit(bool(comparison.bad))


main()
