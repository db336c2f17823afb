#!/usr/bin/env python3
"""Makes chat/expected.json: what transformers renders of chat/*.jinja, and of short templates that show one rule each.

Needs the packages transformers and jinja2. Usage: make_chat.py
"""
import importlib.util
import json
import os
import pathlib
from importlib.machinery import SourceFileLoader

HERE = pathlib.Path(__file__).resolve().parent
SCRIPT = str(HERE.parent.parent / "scripts/check-chat-templates")
loader = SourceFileLoader("check_chat_templates", SCRIPT)
script = importlib.util.module_from_spec(importlib.util.spec_from_loader("check_chat_templates", loader))
loader.exec_module(script)

VALUES = {"text": " Caf\u00e9 \u4f60\u597d <b>\n", "word": "hello", "list": [3, "a", None, True, 2.5], "empty": [], "nothing": None,
          "pairs": {"b": 1, "a": {"items": [1, 2]}, "C": "x'y"}, "yes": True, "no": False, "n": 7, "x": 0.1,
          "messages": [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}, {"role": "user", "content": ""}]}

# Each is rendered with VALUES. Those that Jinja refuses have the result null.
SHORT = [
    # White space.
    "a\n{% if yes %}\nb\n{% endif %}\nc\n", "  {% if yes %}x{% endif %}  \n", "a  {{- word -}}  b", "a {%- if yes -%} b {%- endif -%} c",
    "a\n  {%+ if yes %}b{% endif +%}\nc", "{# c #}\nx\n  {# d #}\ny {#- e -#} z", "\n\n{{ n }}\n\n", "a\r\nb\rc{{ 'd\r\ne' }}", "x  {{ n }}\n  {{ n }}  \n",
    "{{ {'a': {'b': 1}} }}", "{{ '}}' }}{{ \"%}\" }}", "{% if yes %}\n  {% if yes %}\n    q\n  {% endif %}\n{% endif %}\n", "{%- set a = 1 %}\n{{ a }}",
    "\u3000{%- if yes %}\u00a0{%- endif %}x", "a\n \t{% set b = 1 %}b", "{{ 'a' }}  {# x #}b", "{% if no %}{% else %}\n\n x{% endif %}",
    # Literals and escapes.
    "{{ 'a\\n\\t\\\\\\'\\x41\\u00e9\\U0001F600\\q' }}", "{{ 'a' \"b\" 'c' }}", "{{ 12 }} {{ 1.50 }} {{ 1e20 }} {{ 2e-7 }} {{ 1e16 }} {{ 0.0001 }} {{ -0.0 }}",
    "{{ [1, 'a', (2,), (), {'k': none}] }}", "{{ true }} {{ False }} {{ none }} {{ None }}", "{{ 1, 2 }}", "{{ (1) }} {{ (1,) }}", "{{ \"it's\" }} {{ [\"it's\", 'a\"b', 'a\\'\"'] }}",
    "{{ ['\\x07\\n\u00e9\\u200b\\xa0\\ue000\U0001F600', '\\\\'] }}", "{{ list }} {{ pairs }}", "{{ [undef] }}",
    # Operators.
    "{{ 1 + 2 * 3 - 4 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 6 / 3 }} {{ 7 % -3 }}", "{{ 1 ~ 'a' ~ none ~ 2.0 ~ undef }}", "{{ 'a' + 'b' }} {{ [1] + [2] }} {{ (1,) + (2,) }}",
    "{{ 1 < 2 < 3 }} {{ 3 > 2 > 2 }} {{ 'a' < 'b' }} {{ 1 == 1.0 }} {{ true == 1 }} {{ none == false }}", "{{ not yes }} {{ not no and yes }} {{ no or 'x' }} {{ yes and 0 }} {{ '' or none }}",
    "{{ 'a' in 'cat' }} {{ 3 in list }} {{ 'b' in pairs }} {{ 'z' not in pairs }} {{ 1 in undef }} {{ none in list }}", "{{ 'x' if yes }}{{ 'x' if no }}{{ 'a' if no else 'b' if no else 'c' }}",
    "{{ -n }} {{ +n }} {{ - -3 }} {{ -n|string }}", "{{ yes + 1 }} {{ [1,2] == [1,2] }} {{ {'a':1} == {'a':1.0} }} {{ (1,) == [1] }}", "{{ not 'a' == 'b' }} {{ 1 if not no else 2 }}",
    "{{ 1 + 'a' }}", "{{ 'a' + 1 }}", "{{ undef + 1 }}", "{{ 1 / 0 }}", "{{ none < 1 }}", "{{ 1 in 2 }}", "{{ 2 in 'a2' }}", "{{ [] + () }}", "{{ 1 < 'a' }}",
    # Access.
    "{{ pairs.a['items'] }} {{ pairs['a'].items() | list }}", "{{ pairs.zz }}|{{ pairs['zz'] }}|{{ list[99] }}|{{ list['q'] }}|{{ none.x }}", "{{ undef.x }}", "{{ undef['x'] }}",
    "{{ list[-1] }} {{ list[1] }} {{ word[0] }} {{ word[-1] }} {{ text[3] }} {{ list.0 }}", "{{ word[1:3] }} {{ word[::-1] }} {{ word[:-1] }} {{ list[::2] }} {{ list[-2:] }} {{ text[2:6] }} {{ word[10:] }} {{ word[-99:2] }} {{ list[3:0:-1] }} {{ (1,2,3)[1:] }}",
    "{{ list[::0] }}", "{{ pairs[1:] }}", "{{ undef[1:] }}", "{{ pairs.get('b') }} {{ pairs.get('q') }} {{ pairs.get('q', 5) }}", "{{ pairs.keys() | list }} {{ pairs.values() | list }}",
    "{% if pairs['keys'] %}method{% endif %}", "{{ word.startswith('he') }} {{ word.endswith('lo') }} {{ text.strip() }}| {{ text.lstrip() }}| {{ text.rstrip() }}|", "{{ '--a-b--'.strip('-') }} {{ 'abcba'.lstrip('ab') }} {{ 'abcba'.rstrip('ab') }}",
    "{{ 'a,b,,c'.split(',') }} {{ 'a,b,c'.split(',', 1) }} {{ ' a  b '.split() }} {{ ' a  b c '.split(none, 1) }} {{ ''.split(',') }} {{ ''.split() }}", "{{ 'abcabc'.replace('b', 'XX') }} {{ 'aaa'.replace('a', 'b', 2) }}",
    "{{ 'hello WORLD'.title() }} {{ \"they're x1y\".title() }} {{ 'hELLO'.capitalize() }} {{ word.upper() }} {{ 'ABC'.lower() }}", "{{ text.find('\u4f60') }} {{ text.find('zz') }} {{ word.rfind('l') }}", "{{ ', '.join(['a', 'b']) }} {{ '-'.join('abc') }}", "{{ ', '.join([1]) }}", "{{ ''.split('') }}",
    # Keys of dicts that are integers.
    "{% set d = {0: 'z', 512: 128, -4: none, '512': 'text', n: 'seven'} %}{{ d }} {{ d[512] }} {{ d['512'] }} {{ d[-4] }} {{ d[7] }} {{ d[7.0] }} {{ d[1] }}| {{ d[false] }}",
    "{% set d = {2048: 'b', 512: 'a', 1024: 'c'} %}{{ d | dictsort }} {{ d | list }} {{ d.items() | list }} {{ d.keys() | list }} {% for k, v in d | dictsort(reverse=true) %}{{ k + 1 }}={{ v }};{% endfor %}",
    "{% set d = {1: 'a', 2: 'b'} %}{{ 1 in d }} {{ 3 in d }} {{ '1' in d }} {{ true in d }} {{ d.get(2) }} {{ d.get('2', 'no') }} {{ d == {2: 'b', 1.0 | int: 'a'} }} {{ {1: 0} == {'1': 0} }} {{ d | tojson }}",
    "{{ {10: 1, 9: 2} | tojson(sort_keys=true) }} {{ {1: 'a', 1: 'b'} }} {{ {'a': 1, 1: 2} | length }}", "{{ {'a': 1, 1: 2} | dictsort }}", "{{ {1: 2}.1 }} {{ {1: 2}['x'] }}|",
    # Filters.
    "{{ text | trim }}| {{ word | upper }}", "{{ word | upper }} {{ 'A B' | lower }} {{ 'a-b c(d' | title }} {{ 'aB' | capitalize }}", "{{ word | length }} {{ text | length }} {{ pairs | length }} {{ list | count }} {{ undef | length }}", "{{ n | length }}",
    "{{ list | join }} {{ list | join(', ') }} {{ messages | join('/', attribute='role') }}", "{{ undef | default('d') }} {{ '' | default('d') }} {{ '' | default('d', true) }} {{ none | default('d') }} {{ undef | d(1) }} {{ undef | default }}|",
    "{{ list | first }} {{ list | last }} {{ word | first }} {{ empty | first }}|{{ empty | last }}|", "{{ word | list }} {{ pairs | list }}", "{{ pairs | dictsort }} {{ {'b': 1, 'A': 2} | dictsort(true) }} {{ {'a': 2, 'b': 1} | dictsort(by='value') }} {{ {'a': 2, 'b': 1} | dictsort(reverse=true) }}", "{{ ['b', 'A', 'a', 'C'] | sort }} {{ ['b', 'A', 'a'] | sort(case_sensitive=true) }} {{ [3, 1, 2] | sort(reverse=true) }} {{ [{'t': 'b', 'n': 1}, {'t': 'a', 'n': 2}, {'t': 'b', 'n': 3}] | sort(attribute='t') | map(attribute='n') | list }}",
    "{{ pairs | items | list }}", "{{ messages | map(attribute='role') | list }} {{ ['a', 'b'] | map('upper') | join }} {{ messages | map(attribute='q', default='z') | list }} {{ messages | map(attribute='content.0') | list }}",
    "{{ messages | selectattr('role', 'equalto', 'user') | list | length }} {{ messages | selectattr('content') | list | length }} {{ messages | rejectattr('role', 'eq', 'user') | map(attribute='content') | list }} {{ messages | selectattr('tool', 'defined') | list }} {{ messages | selectattr('role', 'in', ['user']) | list | length }}",
    "{{ [1, 2, 3, 4] | select('odd') | list }} {{ [0, 1, ''] | select | list }} {{ [1, 2] | reject('equalto', 1) | list }} {{ [-3, -2] | select('odd') | list }}", "{{ 'a-b' | replace('-', '+') }} {{ 12 | replace('1', '2') }} {{ 'aaa' | replace('a', 'b', 1) }}",
    "{{ 1 | string + 'a' }} {{ none | string }} {{ [1] | string }} {{ x | string }}", "{{ '12' | int }} {{ 'q' | int }} {{ 'q' | int(4) }} {{ 3.9 | int }} {{ ' 5 ' | int }} {{ '3.7' | int }} {{ none | int }} {{ yes | int }} {{ '-4' | int }}",
    "{{ pairs | tojson }} {{ list | tojson }} {{ text | tojson }} {{ '\\x01\\x7f/\"\\\\' | tojson }} {{ [] | tojson }} {{ (1, 2) | tojson }} {{ 1e22 | tojson }}", "{{ pairs | tojson(indent=2) }} {{ [] | tojson(indent=2) }} {{ {} | tojson(indent=1) }}",
    "{{ pairs | tojson(separators=(',', ':')) }} {{ {'b': 1, 'a': 2} | tojson(sort_keys=true) }} {{ pairs | tojson(indent=0) }} {{ [1] | tojson(indent='--') }}", "{{ undef | tojson }}", "{{ (messages | map(attribute='role')) | tojson }}",
    "{{ 'a\nb\n\nc' | indent }} {{ 'a\nb' | indent(2, true) }} {{ 'a\n\nb' | indent(1, blank=true) }} {{ 'a\nb' | indent('> ') }}", "{{ '<' | safe }} {{ ('<' | safe) + '&' }} {{ 'a\"' + ('<' | safe) }} {{ ('<' | safe) ~ '&' }} {{ pairs | tojson | safe }}",
    "{{ undef | trim }}|{{ undef | upper }}|{{ undef | list }}|{{ undef | join }}|{{ undef | string }}|{{ undef | first }}|", "{{ n | trim }} {{ 'xaxx' | trim('x') }} {{ none | upper }}", "{{ [1, 2] | first | string ~ 'a' }}",
    "{% if messages | selectattr('role', 'equalto', 'nobody') %}a generator is true{% endif %}", "{% set g = messages | map(attribute='role') %}{{ g | list }}{{ g | list }}", "{{ messages | map(attribute='role') | length }}", "{{ messages | map(attribute='role') | last }}", "{{ (messages | map(attribute='role'))[0] }}|",
    # Tests.
    "{{ undef is defined }} {{ n is defined }} {{ none is none }} {{ n is not none }} {{ undef is undefined }} {{ undef is none }}", "{{ 'a' is string }} {{ pairs is mapping }} {{ list is sequence }} {{ 'a' is sequence }} {{ pairs is sequence }} {{ n is sequence }} {{ undef is sequence }}",
    "{{ list is iterable }} {{ n is iterable }} {{ undef is iterable }} {{ 'a' is iterable }} {{ (list | map('string')) is sequence }} {{ range(3) is sequence }}", "{{ yes is true }} {{ 1 is true }} {{ no is false }} {{ 0 is false }} {{ yes is boolean }} {{ 1 is boolean }}",
    "{{ 1 is number }} {{ 1.5 is number }} {{ true is number }} {{ true is integer }} {{ 1 is integer }} {{ 1.0 is float }}", "{{ 3 is odd }} {{ 3 is even }} {{ 3 is eq 3 }} {{ 3 is ne 3 }} {{ 3 is in [3] }} {{ 3 is equalto(4) }} {{ 'a' is in 'abc' }}", "{{ not undef is defined }} {{ n is defined and yes }}",
    # Scopes.
    "{% set a = 1 %}{% for i in [1, 2] %}{{ a }}{% set a = a + 1 %}{{ a }}{% endfor %}{{ a }}", "{% for i in [1, 2] %}{% if i == 1 %}{% set q = 5 %}{% endif %}[{{ q }}]{% endfor %}[{{ q }}]", "{% if yes %}{% set a = 3 %}{% endif %}{{ a }}",
    "{% set ns = namespace(c=0) %}{% for i in [1, 2, 3] %}{% set ns.c = ns.c + i %}{% endfor %}{{ ns.c }} {{ ns.q }}|{{ ns['c'] }}", "{% set n = n + 1 %}{{ n }}", "{% set word.x = 1 %}", "{% set undef.x = 1 %}", "{% set a, b = 1, 2 %}{{ b }}{{ a }}", "{% set a, b = [1] %}",
    "{% set a %}<{{ n }}>{% endset %}{{ a }}{{ a | length }}", "{% set a | upper | replace('X', 'y') %}ax{{ n }}{% endset %}{{ a }}", "{% set t %}{% set inner = 1 %}{% endset %}{{ inner }}|", "{% generation %}{% set g = 1 %}a{{ g }}{% endgeneration %}{{ g }}|",
    "{% macro m(a, b='d', c=a) %}{{ a }}{{ b }}{{ c }};{% endmacro %}{{ m(1) }}{{ m(1, 2) }}{{ m(b=3, a=4) }}{{ m() }}{{ m(1, c=2) | upper }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(z=2) }}", "{% macro f(k) %}{{ k }}{% if k > 0 %}{{ f(k - 1) }}{% endif %}{% endmacro %}{{ f(3) }}",
    "{% macro m() %}{{ later }}{% endmacro %}{% set later = 4 %}{{ m() }}", "{% macro m() %}{% set w = 1 %}{% endmacro %}{{ m() }}{{ w }}|", "{{ undef() }}", "{{ word() }}", "{% macro m(x) %}{{ x is defined }}{% endmacro %}{{ m() }}{{ m(none) }}",
    # Loops.
    "{% for m in messages %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.previtem.role }}{{ loop.nextitem is defined }} {% endfor %}", "{% for i in empty %}x{% else %}none{% endfor %}", "{% for i in undef %}x{% else %}none{% endfor %}", "{% for i in n %}{% endfor %}", "{% for i in none %}{% endfor %}",
    "{% for i in [1, 2, 3, 4] if i is even %}{{ i }}/{{ loop.length }}{{ loop.last }} {% else %}q{% endfor %}", "{% for k, v in pairs.items() %}{{ k }}={{ v }};{% endfor %}", "{% for k in pairs %}{{ k }}{% endfor %}", "{% for c in word %}{{ c }}.{% endfor %}", "{% for a, b in [[1, 2], 'xy', (3, 4)] %}{{ a }}{{ b }} {% endfor %}", "{% for a, b in [1] %}{% endfor %}",
    "{% for i in range(3) %}{{ i }}{% endfor %}{% for i in range(5, 1, -2) %}{{ i }}{% endfor %}{{ range(4) | length }}{{ range(2, 5)[1] }}{{ range(3) | list }}", "{% for i in [1, 2, 3] %}{% if i == 2 %}{% continue %}{% endif %}{{ i }}{% endfor %}{% for i in [1, 2, 3] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% else %}e{% endfor %}",
    "{% for i in [1, 2] %}{% for j in [3, 4] %}{{ loop.index }}{{ i }}{{ j }} {% endfor %}{{ loop.index }}{% endfor %}", "{% for m in messages if m.role == 'user' %}{{ loop.previtem is defined }}{% endfor %}", "{% for i in [1, 2] %}{% set outer = loop %}{% for j in [1] %}{{ outer.index }}{% endfor %}{% endfor %}", "{% for x in list[1:] + [9] %}{{ x }}{% endfor %}{{ x }}",
    "{% for i in range(100001) %}{% endfor %}", "{{ raise_exception('no') }}", "{% if raise_exception is defined and strftime_now is defined and namespace %}f{% endif %}", "{{ strftime_now('') }}|{{ strftime_now('100%%') }}",
    # Syntax that Jinja refuses.
    "{% if yes %}", "{{ 1 + }}", "{% endif %}", "{{ 'a }}", "{{ (1 }}", "{{ [1) }}", "{{ a b }}", "{% for i in %}{% endfor %}", "{{ 1 | nofilter }}", "{{ 1 is notest }}", "{% break %}", "{# a", "{{ m(a=1, 2) }}", "{% set 1 = 2 %}", "{{ & }}", "{{ 1 is string is string }}", "{% set loop = 1 %}{% for loop in [1] %}{% endfor %}",
]


def main():
    templates = {}
    for path in sorted((HERE / "chat").glob("*.jinja")):
        text = path.read_text(encoding="utf-8")
        templates[path.name] = {name: script.expected(text, variables)[0]
                                for name, variables in script.CONVERSATIONS.items() if name in KEPT}
    conversations = {name: variables for name, variables in script.CONVERSATIONS.items() if name in KEPT}
    short = [{"template": text, "text": script.expected(text, VALUES)[0]} for text in SHORT]
    result = {"special": script.SPECIAL, "conversations": conversations, "templates": templates, "values": VALUES, "short": short}
    with open(HERE / "chat/expected.json", "w") as file:
        json.dump(result, file, ensure_ascii=True, indent=1)
        file.write("\n")


# A date must be given where a template writes one, or the text would change every day.
KEPT = ["one turn", "no generation prompt", "three turns", "system, three turns", "thinking", "thinking is off", "two users",
        "assistant first", "system last", "parts", "tools in the first message", "tools, system", "call", "call, reply", "two results"]
for conversation in script.CONVERSATIONS.values():
    conversation.setdefault("date_string", "2 Feb 2026")

if __name__ == "__main__":
    main()
