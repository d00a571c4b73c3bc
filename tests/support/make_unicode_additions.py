# SPDX-License-Identifier: Apache-2.0
"""Writes src/io/tokenizer/unicode_additions.cpp: what the properties of Hugging Face's Oniguruma hold beyond those of libonig.

usage: make_unicode_additions.py NAMES | clang-format-14 > src/io/tokenizer/unicode_additions.cpp
NAMES: a file with property names, one a line, as they stand in the strings of the library of the Python package `tokenizers`.
"""
import ctypes
import ctypes.util
import pathlib
import sys
import textwrap

from tokenizers import Regex, pre_tokenizers

HEAD = """// SPDX-License-Identifier: Apache-2.0
// Written by tests/support/make_unicode_additions.py.
#include "io/tokenizer/unicode_additions.h"

namespace anabatic::io::tokenizer {
namespace {

constexpr PropertyAddition kAdditions[] = {
"""
TAIL = """};

}  // namespace

std::span<const PropertyAddition> property_additions() { return kAdditions; }

}  // namespace anabatic::io::tokenizer
"""
CODES = [c for c in range(0x40000) if not 0xD800 <= c < 0xE000] + list(range(0xE0000, 0xE0200)) + [0xEFFFF, 0xF0000, 0x10FFFF]
TEXT = "".join(map(chr, CODES))
ALL = set(CODES)


class Encoding(ctypes.Structure):
    """The head of OnigEncodingType."""
    _fields_ = [("mbc_enc_len", ctypes.c_void_p), ("name", ctypes.c_char_p), ("lengths", ctypes.c_int * 2),
                ("functions", ctypes.c_void_p * 7),
                ("property_name_to_ctype", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)),
                ("is_code_ctype", ctypes.c_void_p),
                ("get_ctype_code_range", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint, ctypes.POINTER(ctypes.c_uint),
                                                          ctypes.POINTER(ctypes.POINTER(ctypes.c_uint))))]


LIBRARY = ctypes.CDLL(ctypes.util.find_library("onig"))
UTF8 = Encoding.in_dll(LIBRARY, "OnigEncodingUTF8")


def libonig_class(name):
    """The class number and the characters of a property, or None."""
    buffer = ctypes.create_string_buffer(name.encode())
    start = ctypes.addressof(buffer)
    number = UTF8.property_name_to_ctype(ctypes.addressof(UTF8), start, start + len(name))
    if number < 0:
        return None
    ranges = ctypes.POINTER(ctypes.c_uint)()
    UTF8.get_ctype_code_range(number, ctypes.c_uint(), ranges)
    codes = set()
    for i in range(ranges[0]):
        codes.update(range(ranges[1 + 2 * i], min(ranges[2 + 2 * i], 0x10FFFF) + 1))
    return number, codes & ALL


def tokenizers_class(name):
    parts = pre_tokenizers.Split(Regex(rf"[^\p{{{name}}}]+"), "removed").pre_tokenize_str(TEXT)
    codes = set()
    for _, (begin, end) in parts:
        codes.update(CODES[begin:end])
    return codes


def ranges_of(codes, sign=""):
    text, codes = [], sorted(codes)
    begin = 0
    for i in range(1, len(codes) + 1):
        if i == len(codes) or codes[i] != codes[i - 1] + 1:
            first, last = codes[begin], codes[i - 1]
            text.append(f"{sign}{first:X}" if first == last else f"{sign}{first:X}-{last:X}")
            begin = i
    return text


def main():
    names = pathlib.Path(sys.argv[1]).read_text("utf-8").split()
    changes, wholes, numbers = {}, {}, set()
    for name in sorted({name.lower() for name in names}, key=lambda name: (len(name), name)):
        known = libonig_class(name)
        if known and known[0] in numbers:
            continue
        codes = tokenizers_class(name)
        if known:
            numbers.add(known[0])
        if known and codes == known[1]:
            continue
        if known is None and codes in wholes.values():
            changes[name] = (["=" + next(other for other, value in wholes.items() if value == codes)], codes, set())
            continue
        if known is None and codes == wholes["p"] | wholes["s"]:
            changes[name] = (["=p", "=s"], codes, set())
            continue
        old = known[1] if known else set()
        wholes[name] = codes
        changes[name] = (None, codes - old, old - codes)
    used = {}
    print(HEAD, end="")
    for name, (text, plus, minus) in sorted(changes.items(), key=lambda item: (len(item[1][1]) + len(item[1][2]), item[0])):
        if text is None:  # the changes of other properties, largest first, then what they lack
            text, rest = [], set(plus)
            for other, (_, more, less) in sorted(used.items(), key=lambda item: -len(item[1][1])):
                if not less and more and more <= rest and len(ranges_of(more)) > 1:
                    text.append("@" + other)
                    rest -= more
            text += ranges_of(rest)
            if minus and minus == used.get("assigned", (0, 0, 0))[1]:
                text.append("!assigned")
            else:
                text += ranges_of(minus, "-")
            used[name] = (text, plus, minus)
        lines = textwrap.wrap(" ".join(text), 92 - len(name) if len(text) < 12 else 90)
        body = "\n     ".join(f'"{line} "' if i + 1 < len(lines) else f'"{line}"' for i, line in enumerate(lines))
        print(f'    {{"{name}",\n     {body}}},')
    print(TAIL, end="")


main()
