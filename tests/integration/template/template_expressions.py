# SPDX-License-Identifier: Apache-2.0
"""Compares generated snippets, a kind of expression after the other, with jinja2.

usage: template_expressions.py DRIVER [--count N] [--only KIND] [--seed S]
"""
import argparse
import random
import sys

from template_parity import Comparison

CONTEXT = {
    "s": "Hello, World", "u": "  Ünïcode ß ΣΑΣ ǆ \u3000", "e": "", "n": 7, "z": 0, "f": 2.5, "g": -0.125, "t": True, "no": False,
    "nil": None, "l": [3, 1, 2], "ls": ["b", "A", "c", "a"], "d": {"b": 2, "a": 1, "C": [1, {"x": None}]}, "el": [], "ed": {},
    "rows": [{"k": "x", "v": 1, "w": {"q": 3}}, {"k": "Y", "v": 3, "w": {"q": 1}}, {"k": "x", "v": 2, "w": {"q": 2}}],
    "lines": "one\ntwo\r\n\n three\u2028four", "q": "it's \"quoted\"\\ \t\x7f\u00e9\U0001f600\x00", "mixed": [1, "a", None, True, 2.0, [1], {"y": 2}],
    "messages": [{"role": "user", "content": "hi <b>"}, {"role": "assistant", "content": "yo"}], "i64": 9007199254740993, "big": 1e22,
}
TEXTS = ["s", "u", "e", "lines", "q", "'abc'", "'a-b_c d'", "\"x'y\"", "'ab' 'cd'", "'aXbXc'", "'   pad '", "'\\n\\t\\x41\\u00e9'", "'ÄÖ'", "messages[0].content"]
NUMBERS = ["n", "z", "f", "g", "0", "1", "-3", "10", "2.0", "1e3", "0.1", "1_000", "t", "no", "i64", "big", "3.14159", "1e-7", "123456789.125"]
LISTS = ["l", "ls", "el", "mixed", "[1, 2, 3]", "['x', 'y']", "[1, [2], 'z']", "rows", "range(4)", "range(5, 0, -2)", "(1, 2)", "('a',)", "()", "ls[1:]"]
DICTS = ["d", "ed", "{'k': 1}", "{'b': 'x', 'a': [1]}", "{1: 'one', none: 2}", "rows[0]", "dict(a=1, b='z')", "rows[0].w"]
OTHER = ["none", "nil", "missing", "true", "False", "t", "rows[9]", "d.nope"]


class Maker:
    def __init__(self, rng):
        self.r = rng

    def any(self, depth=1):
        kind = self.r.random()
        if depth > 0 and kind < 0.2:
            return f"({self.any(depth - 1)} {self.r.choice(['+', '~', 'or', 'and', '==', 'in'])} {self.any(depth - 1)})"
        return self.r.choice(self.r.choice([TEXTS, NUMBERS, LISTS, DICTS, OTHER]))

    def text(self):
        return self.r.choice(TEXTS)

    def number(self):
        return self.r.choice(NUMBERS)

    def integer(self):
        return self.r.choice(["n", "z", "0", "1", "2", "-1", "-2", "3", "5", "100", "-100"])

    def list(self):
        return self.r.choice(LISTS)

    def dict(self):
        return self.r.choice(DICTS)

    def some(self, *choices):
        return self.r.choice(choices)


def literals(m):
    return "{{ " + m.some(m.any(2), f"[{m.any()}, {m.any()}]", f"({m.any()},)", f"{{{m.text()}: {m.any()}}}", f"{{{m.any()}: {m.any()}}}",
                          f"({m.any()}, {m.any()})", f"[[{m.any()}], {m.dict()}]", repr(m.r.uniform(-1e6, 1e6)), repr(10 ** m.r.uniform(-30, 30)),
                          m.some("0x1F", "0b101", "0o17", "1_0.5e2", "007", "1.", ".5", "'\\q'", "'\\101'", "\"\\\"\"", "'a\\\nb'", "1.5.6", "[1,]", "{,}", "[,]")) + " }}"


def arithmetic(m):
    op = m.some("+", "-", "*", "/", "//", "%", "**")
    a, b = m.number(), m.number()
    if op == "**":
        b = m.some("0", "1", "2", "3", "-1", "0.5", "-2", "2.0")
        a = m.some("n", "z", "f", "g", "2", "-3", "10", "t", "1.5")
    return "{{ " + m.some(f"{a} {op} {b}", f"{a} {op} {b} - {m.number()}", f"-{a} {op} {b}", f"({a} {op} {b}) * 2", f"+{a}", f"-{m.any(0)}",
                          f"{m.any(0)} {op} {m.any(0)}", f"{m.text()} * {m.integer()}", f"{m.list()} + {m.list()}", f"{m.list()} * {m.some('0', '2', '-1')}",
                          f"{a} + {b} * {m.number()}", f"2 ** 3 ** 2", f"{a} ~ {b} + {m.number()}") + " }}"


def concat(m):
    return "{{ " + " ~ ".join(m.any(1) for _ in range(m.r.randrange(2, 4))) + " }}"


def compare(m):
    op = m.some("==", "!=", "<", "<=", ">", ">=")
    pool = m.some(m.number, m.text, m.list, m.dict, lambda: m.any(0))
    more = m.some("", "", f" {m.some('<', '==', '>=', '!=')} {pool()}", f" {m.some('in', 'not in')} {m.list()}")
    return "{{ " + f"{pool()} {op} {pool()}{more}" + " }}"


def membership(m):
    return "{{ " + f"{m.any(0)} {m.some('in', 'not in')} {m.any(0)}" + " }}" + "{{ " + f"{m.some(repr('a'), repr('x'), '1', 'n', repr('role'), repr(''))} {m.some('in', 'not in')} {m.some(m.text(), m.list(), m.dict(), 'd.items()', 'd.keys()', 'd.values()', 'messages[0]')}" + " }}"


def logic(m):
    return "{{ " + m.some(f"{m.any()} and {m.any()} or {m.any()}", f"not {m.any()}", f"not {m.any()} or {m.any()}", f"{m.any()} or {m.any()}",
                          f"not ({m.any()} and not {m.any()})", f"not {m.number()} in {m.list()}", f"{m.any()} is defined and {m.any()}") + " }}"


def condition(m):
    return "{{ " + m.some(f"{m.any()} if {m.any()} else {m.any()}", f"{m.any()} if {m.any()}", f"{m.any()} if {m.any()} else {m.any()} if {m.any()} else 'end'",
                          f"({m.any()} if {m.any()}) ~ 'x'", f"[{m.any()} if t else 1, 2]") + " }}" + m.some("", "{% if " + m.any() + " %}A{% elif " + m.any() + " %}B{% else %}C{% endif %}")


def slices(m):
    part = lambda: m.some("", "", "0", "1", "2", "-1", "-2", "5", "-9", "n", "none", "t")  # noqa: E731
    what = m.some(m.text(), m.list(), m.some("s", "u", "l", "ls", "messages", "range(10)", "q", "(1, 2, 3)"))
    step = m.some("", "", ":" + m.some("1", "2", "-1", "-2", "", "3", "0"))
    return "{{ " + f"{what}[{part()}:{part()}{step}]" + m.some("", "|list", "|length", "|string") + " }}"


def access(m):
    name = m.some("a", "b", "C", "k", "v", "w", "nope", "items", "keys", "role", "content", "first", "get", "upper")
    index = m.some("0", "1", "-1", "2", "9", "-9", "t", "'a'", "'b'", "'k'", "'items'", "n", "none", "1.0", "2.0", "(1, 2)", "[1]", "'upper'", "1, 2")
    what = m.some(m.dict(), m.list(), m.text(), m.any(0))
    return "{{ " + m.some(f"{what}.{name} is defined", f"{what}[{index}]", f"{what}[{index}] is defined", f"({what}[{index}]) is string", f"{what}.{m.some('0', '1', '5')}",
                          f"d.C[1].x", f"rows[{m.some('0', '1', '-1')}].{m.some('k', 'v', 'w.q', 'w.z', 'w.z.y', 'nope')}", f"d[{index}] ~ ''", f"messages[{m.integer()}]['role']",
                          f"{what}.{m.some('a', 'b', 'k', 'nope', 'role')}") + " }}"


def str_methods(m):
    t = m.text()
    sub = m.some("'a'", "'X'", "' '", "''", "', '", "'l'", "'ab'", "'o, W'", "'\\n'", "'ß'", "'b'", "s", "n", "none")
    pos = lambda: m.some("", f", {m.integer()}", f", {m.integer()}, {m.integer()}", f", none, {m.integer()}")  # noqa: E731
    call = m.some("capitalize()", f"count({sub}{pos()})", f"endswith({sub}{pos()})", f"find({sub}{pos()})", "lower()", f"lstrip({m.some('', sub)})", f"replace({sub}, {sub}{m.some('', ', 1', ', -1', ', 0')})",
                  f"rsplit({m.some('', sub, sub + ', 1', 'none, 1', 'maxsplit=1')})", f"rstrip({m.some('', sub)})", f"split({m.some('', sub, sub + ', 1', 'none, 1', 'none', sub + ', maxsplit=2', 'sep=' + sub)})",
                  f"splitlines({m.some('', 'true', 'keepends=true')})", f"startswith({m.some(sub, '(' + sub + ',)', '()')}{pos()})", f"strip({m.some('', sub)})", "title()", "upper()", f"join({m.some('ls', 's', 'l', 'd', 'el')})",
                  "nope()", "upper(1)", "find()", "split(1)")
    return "{{ " + f"{t}.{call}" + m.some("", "", "|tojson", "|list", ".upper()") + " }}"


def str_format(m):
    return "{{ " + m.some(f"'{m.some('{} {}', '{0} {1} {0}', '{{}} {}', '{', '{x}', '{!r}', 'no', '{} {0}', '{2}', '}')}'.format({m.any(0)}, {m.any(0)})", f"'{{a}}{{}}'.format({m.any(0)}, a={m.any(0)})") + " }}"


def container_methods(m):
    key = m.some("'a'", "'b'", "'nope'", "1", "none", "[1]", "'k'", "(1,)")
    return m.some("{{ " + f"{m.dict()}.{m.some(f'get({key})', f'get({key}, {m.any(0)})', 'items()', 'keys()', 'values()', 'items()|list', 'values()|list|length', 'keys()|join', 'get()', f'get({key}, default=1)', 'pop({key})', 'update({})', 'items()|length')}" + " }}",
                  "{{ " + f"{m.list()}.{m.some(f'index({m.any(0)})', f'index({m.number()}, 1)', f'count({m.any(0)})', 'append(1)', 'sort()', 'clear()', 'index()')}" + " }}",
                  "{% for k, v in " + m.dict() + ".items() %}{{ k }}={{ v }};{% endfor %}", "{% for k in " + m.dict() + " %}{{ k }};{% endfor %}")


FILTER_ARGUMENTS = {
    "abs": [""], "capitalize": [""], "default": ["", "('x')", "('x', true)", "(default_value=3)", "('', boolean=true)", "(none)"], "d": ["('y')"],
    "dictsort": ["", "(true)", "(by='value')", "(false, 'key', true)", "(by='x')", "(reverse=true)"], "first": [""], "float": ["", "(1.5)", "(default=none)"],
    "groupby": ["('k')", "('v')", "('w.q')", "('nope')", "('nope', default='z')", "('k', case_sensitive=true)", "(attribute='k')"],
    "indent": ["", "(2)", "(2, true)", "(2, true, true)", "('> ')", "(first=true)", "(width=3, blank=true)", "(0)"], "int": ["", "(5)", "(0, 16)", "(base=0)", "(default=none)", "(0, 2)"], "items": ["", "|list"],
    "join": ["", "(', ')", "(1)", "('-', attribute='k')", "(attribute='v')", "(d='+')"], "last": [""], "length": [""], "count": [""], "list": [""], "lower": [""],
    "map": ["('upper')|list", "(attribute='k')|list", "(attribute='w.q')|join(',')", "(attribute='nope', default='?')|list", "('default', 'x')|list", "()|list", "('nope')|list", "('length')|list", "('tojson')|join", "('int')|sum", "('string')|list", "(attribute=0)|list", "|list"],
    "max": ["", "(true)", "(attribute='v')", "(case_sensitive=true)"], "min": ["", "(attribute='k')", "(true)"],
    "reject": ["|list", "('none')|list", "('string')|list", "('equalto', 1)|list", "('odd')|list"], "rejectattr": ["('v')|list", "('k', 'equalto', 'x')|list", "('nope')|list", "()|list", "('nope', 'undefined')|list", "('w.q', 'odd')|list"],
    "replace": ["('a', 'b')", "('l', '')", "('', '-')", "('o', 'O', 1)", "(1, 2)", "('x')", "(old='a', new='q')"], "reverse": ["", "|list", "|join"],
    "round": ["", "(1)", "(2, 'floor')", "(0, 'ceil')", "(method='floor')", "(-1)", "(precision=3)", "(1, 'x')"], "safe": ["", " + '<&>'", " ~ '<'"],
    "select": ["|list", "('string')|list", "('gt', 1)|list", "('divisibleby', 2)|list", "('in', [1, 'a'])|list", "('mapping')|list"],
    "selectattr": ["('v')|list", "('k', 'equalto', 'x')|list", "('v', '>', 1)|list", "('role', '==', 'user')|list", "('k', 'in', ['x'])|map(attribute='v')|list", "('nope', 'defined')|list", "('w.q', 'eq', 3)|first", "|list"],
    "sort": ["", "(true)", "(attribute='v')", "(attribute='k')", "(attribute='k,v')", "(case_sensitive=true)", "(reverse=true, attribute='w.q')", "(false, true)"], "string": ["", "|length"],
    "sum": ["", "(attribute='v')", "(start=10)", "('v', 1)", "(start=[])"], "title": [""],
    "tojson": ["", "(indent=2)", "(indent=4, sort_keys=true)", "(separators=(',', ':'))", "(ensure_ascii=true)", "(true)", "(false, 1)", "(indent='--')", "(separators=[', ', '='])", "(indent=0)", "(sort_keys=true)", "|safe"],
    "trim": ["", "('H')", "(' ')", "(chars='ad')", "(none)"], "unique": ["|list", "(attribute='k')|list", "(true)|list", "(case_sensitive=true)|join"], "upper": [""], "nope": [""],
}


def filters(m):
    name = m.some(*FILTER_ARGUMENTS)
    value = m.some(m.any(1), m.text(), m.number(), m.list(), m.dict(), "rows", "messages", "mixed", "ls", m.some("'42'", "'-0x1f'", "'3.7'", "' 12 '", "'1_0'", "'1e3'", "'inf'", "'nan'", "'ff'", "'1__0'", "'.5'", "'+5'", "'٣'"))
    return "{{ " + f"{value}|{name}{m.some(*FILTER_ARGUMENTS[name])}" + " }}"


def filter_chains(m):
    chain = "".join(f"|{name}{m.some(*FILTER_ARGUMENTS[name])}" for name in m.r.sample([name for name in FILTER_ARGUMENTS if name != "items"], 2))
    return "{{ " + f"{m.any(1)}{chain}" + " }}" + m.some("", "{% filter " + m.some("upper", "trim", "replace('a', 'b')", "indent(2)|upper", "length") + " %} a" + m.text() + "{{ s }}\nb {% endfilter %}")


TESTS = ["boolean", "defined", "divisibleby 2", "divisibleby(0)", "eq 1", "equalto('a')", "even", "false", "float", "in [1, 'a']", "in s", "integer", "iterable", "lower", "mapping", "ne 1", "none", "number", "odd",
         "sequence", "string", "true", "undefined", "upper", "gt 1", "lt(2)", "ge 0", "nope", "sameas none", "sameas true", "== 1", "not none", "not string", "not defined"]


def tests(m):
    test = m.some(*TESTS)
    return "{{ " + f"{m.any(1)} is {m.some('', 'not ') if not test.startswith('not') else ''}{test}{m.some('', '', ' and true', ' or s', ' if t else 2')}" + " }}"


def loops(m):
    body = m.some("{{ x }}", "{{ loop.index }}:{{ x }},", "{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}", "{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }}",
                  "{{ loop.cycle('a', 'b') }}", "{% if loop.changed(x) %}{{ x }}{% endif %}", "{% if x == 1 %}{% continue %}{% endif %}{{ x }}", "{% if loop.index > 1 %}{% break %}{% endif %}{{ x }}", "{% set y = x %}{{ y }}",
                  "{% for z in l %}{{ loop.index }}{{ z }}{% else %}none{% endfor %}", "{% set ns.c = ns.c + 1 %}", "{{ loop }}", "{{ loop.depth }}{{ loop.nope is defined }}", "{{ loop.previtem is defined }}{{ loop.nextitem is undefined }}")
    head = m.some(f"x in {m.list()}", f"x in {m.list()} if x", f"x in {m.any(0)}", f"x in {m.dict()}", f"x, y in {m.dict()}.items()", f"x, y in {m.dict()}|items", f"x in {m.text()}", f"x in range({m.integer()})", f"x in {m.list()}|reverse", f"(x, y) in [(1, 2), (3, 4)]", f"x in {m.list()} if x is not string and loop is undefined", "x in l[::-1]", "x, y in [[1]]", "x in rows|sort(attribute='v')|map(attribute='k')")
    return "{% set ns = namespace(c=0) %}{% for " + head + " %}" + body + m.some("", "{% else %}E{{ x }}") + "{% endfor %}{{ ns.c }}{{ x }}{{ y is defined }}"


def sets(m):
    return m.some("{% set a = " + m.any(2) + " %}{{ a }}", "{% set a, b = " + m.some("1, 2", "[1, 2]", "'xy'", "l", "(1,)", "d") + " %}{{ a }}{{ b }}", "{% set a %} x{{ " + m.any() + " }} {% endset %}[{{ a }}]", "{% set a | upper | trim %} x{{ s }} {% endset %}[{{ a }}]",
                  "{% set ns = namespace(x=" + m.any() + ", y=1) %}{% set ns.x = " + m.any() + " %}{{ ns.x }}{{ ns.y }}{{ ns.z }}{{ ns['y'] }}", "{% if " + m.any() + " %}{% set a = 1 %}{% endif %}{{ a }}", "{% if " + m.any() + " %}{% set s = 1 %}{% endif %}{{ s }}", "{{ n }}{% set n = n + 1 %}{{ n }}",
                  "{% for i in l %}{% set n = n + i %}{{ n }},{% endfor %}{{ n }}", "{% set s.x = 1 %}", "{% set ns = namespace({'q': 2}, r=3) %}{{ ns.q }}{{ ns.r }}{{ ns }}", "{% set (a, b) = 1, 2 %}{{ b }}", "{% set a = 1, 2 %}{{ a }}", "{% set none = 1 %}", "{% set a = %}", "{% set ns.x = 1 %}",
                  "{% set n %}{% set n = 2 %}{{ n }}{% endset %}{{ n }}", "{% for i in l %}{% if loop.first %}{% set w = 5 %}{% endif %}{{ w }},{% endfor %}{{ w }}", "{% set x = namespace() %}{% set x._y = 1 %}", "{% set a = namespace(n=1) %}{% for i in l %}{% set a.n = a.n * i %}{% endfor %}{{ a.n }}")


def macros(m):
    call = m.some("f(1)", "f(1, 2)", "f(b=3, a=1)", "f()", "f(1, 2, 3)", f"f({m.any()}, b={m.any()})", "f(c=1)", "f(*l)", "f(*[1], **{'b': 4})", "f(1, a=2)", "f(**{'a': 1})", "f.name", "f(*[1, 2, 3, 4])")
    body = m.some("{{ a }}-{{ b }}", "{{ a }}{{ s }}{{ later }}", "{% set s = a %}{{ s }}", "{{ varargs }}{{ a }}", "{{ kwargs }}{{ a }}", "{% if n > 0 and a is number and a > 0 and a < 9 %}{{ a }}{{ f(a - 1) }}{% endif %}", "{{ caller() if caller else 'none' }}", "{{ a is defined }}{{ b }}", " {{- a -}} ", "{% if b is not defined %}{% set b = 'd' %}{% endif %}{{ b }}", "{% for i in l %}{{ i }}{{ a }}{% endfor %}", "{{ n }}{% if true %}{% set n = 1 %}{% endif %}{{ n }}")
    define = "{% macro f(" + m.some("a, b=2", "a, b", "a=s, b=a", "a, b='x' ~ n", "a", "a='', b=[]") + ") %}" + body + "{% endmacro %}"
    use = m.some("{{ " + call + " }}", "{% call f(1) %}C{{ s }}{% endcall %}", "{% macro g(x) %}<{{ caller(x, 2) }}>{% endmacro %}{% call(i, j=7) g(n) %}{{ i }}{{ j }}{% endcall %}", "{% set r = " + call + " %}{{ r|trim|length }}", "{% for i in l %}{{ f(i) }}{% endfor %}", "{{ [1, 2]|map('string')|join }}{{ " + call + "|upper }}")
    return m.some("", "{{ f is defined }}") + define + "{% set later = 'L' %}" + use + m.some("", "{{ b }}{{ a }}")


def whitespace(m):
    def tag(text):
        return "{%" + m.some("", "", "-", "+") + f" {text} " + m.some("", "", "-", "+") + "%}"
    def show(text):
        return "{{" + m.some("", "-") + f" {text} " + m.some("", "-") + "}}"
    gap = lambda: m.some("", " ", "\n", "  \n  ", "\t", "\r\n", "x", " x ", "\n\n", "\n x", "x\n", "\u00a0", "\u3000\n", "\r")  # noqa: E731
    comment = lambda: "{#" + m.some("", "-", "+") + m.some(" c ", "{% if %}", "\n", "") + m.some("", "-", "+") + "#}"  # noqa: E731
    parts = []
    for _ in range(m.r.randrange(1, 4)):
        parts += [gap(), m.some(show("s"), comment(), tag("if " + m.some("t", "no")) + gap() + "A" + gap() + m.some("", tag("else") + gap() + "B") + gap() + tag("endif"),
                                tag("for x in l") + gap() + show("x") + gap() + tag("endfor"), tag("set a = 1"), tag("set a") + gap() + "v" + gap() + tag("endset") + "[{{ a }}]",
                                tag("raw") + gap() + m.some("{{ x }}", "{% y %}", "{# z #}", "}}", "") + gap() + tag("endraw"), "{" + m.some("", " ", "[", "}"), tag("macro f()") + gap() + "m" + gap() + tag("endmacro") + "{{ f() }}"), gap()]
    return "".join(parts)


def functions(m):
    return m.some("{{ range(" + m.some("3", "1, 4", "0, 10, 3", "5, 0, -1", "n", "2.0", "0, 1, 0", "", "100001", "-3") + ")" + m.some("", "|list", "|join(',')", "|length", "[1]", "[-1]", "[1:]", "|sum") + " }}", "{{ dict(" + m.some("a=1", "", "[('a', 1)]", "d, z=3", "{'q': 1}", "1", "d, d", "**d") + ") }}",
                  "{% set c = cycler(" + m.some("1, 2", "'a'", "", "l, d") + ") %}{{ c.next() }}{{ c.next() }}{{ c.current }}{% set _ = c.reset() %}{{ c.current }}{{ c.next() }}", "{% set j = joiner(" + m.some("", "'|'", "1", "sep=' '") + ") %}{% for x in l %}{{ j() }}{{ x }}{% endfor %}",
                  "{{ raise_exception(" + m.some("'no'", "s", "", "1") + ") }}", "{{ strftime_now('%Y') }}", "{% if no %}{{ raise_exception('x') }}{% endif %}ok", "{{ namespace(a=1).a }}", "{{ namespace }}"[:0] + "{{ range is defined }}{{ nope is defined }}", "{{ nope() }}", "{{ s() }}", "{{ none() }}", "{{ d.a() }}", "{{ strftime_now() }}", "{{ strftime_now('%d %b')|length }}")


def nonsense(m):
    tokens = ["{{", "}}", "{%", "%}", "if", "else", "endif", "for", "x", "in", "l", "set", "=", "'a", "'b'", "1", "(", ")", "[", "]", "|", "upper", "is", "not", ".", ",", "{#", "#}", "endfor", "raw", "endraw", "\n", "macro", "f", "endmacro", "~", "**", "{", "}", ":", "include", "@", "generation", "endgeneration", "break", "recursive"]
    return " ".join(m.r.choice(tokens) for _ in range(m.r.randrange(1, 10)))


KINDS = [literals, arithmetic, concat, compare, membership, logic, condition, slices, access, str_methods, str_format, container_methods, filters, filter_chains, tests, loops, sets, macros, whitespace, functions, nonsense]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("driver")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--only")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    comparison = Comparison(options.driver)
    for kind in KINDS:
        if options.only and kind.__name__ != options.only:
            continue
        maker = Maker(random.Random(f"{options.seed} {kind.__name__}"))
        for _ in range(options.count):
            comparison.check(kind.__name__, kind(maker), CONTEXT)
    return comparison.finish()


if __name__ == "__main__":
    sys.exit(main())
