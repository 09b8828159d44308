from __future__ import annotations

import pytest

from litspec.model.chat_template import ChatTemplate, ChatTemplateError, encode_chat
from litspec.model.tokenizer import load_tokenizer
from tests.model import tiny_tokenizers as tiny

HELLO = [{"role": "user", "content": "hello"}]
CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def render(source: str, messages=HELLO, **options) -> str:
    return ChatTemplate(source, bos_token="<s>", eos_token="</s>").render(messages, **options)


def test_a_template_renders_messages():
    assert render(CHATML) == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    assert render(CHATML, add_generation_prompt=False) == "<|im_start|>user\nhello<|im_end|>\n"


def test_rendering_equals_transformers():
    rendered = pytest.importorskip("transformers.utils.chat_template_utils").render_jinja_template
    sources = [
        CHATML,
        "{{ bos_token }}\n  {% for m in messages %}\n  {%- if loop.first %}{% continue %}{% endif %}\n"
        "{{ m.content | trim }}\n{% endfor %}\n",
        "{% for m in messages %}{{ m | tojson }}{{ {'é': '<&>'} | tojson(indent=2) }}{% endfor %}",
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% if ns.n > 1 %}{% break %}"
        "{% endif %}{{ m['role'].upper() }}{% endfor %}{{ ns.n }}{{ tools is none }}{{ unknown }}",
        "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}\n{% endfor %}",
        "{% if add_generation_prompt is defined and add_generation_prompt %}{{ eos_token }}{% endif %}",
    ]
    messages = [*HELLO, {"role": "assistant", "content": " hi ü "}, {"role": "user", "content": "a\nb"}]
    for source in sources:
        texts, _ = rendered(
            conversations=[messages],
            chat_template=source,
            add_generation_prompt=True,
            bos_token="<s>",
            eos_token="</s>",
        )
        assert render(source, messages) == texts[0], source


def test_variables_reach_the_template_but_do_not_replace_the_messages():
    source = "{{ enable_thinking }}{{ messages[0].content }}"
    assert render(source, variables={"enable_thinking": False, "messages": "mine"}) == "Falsehello"


# OA-15, the template's half
def test_a_template_that_refuses_says_so_in_its_own_words():
    source = (
        "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
        "{{ messages[0].content }}"
    )
    template = ChatTemplate(source)
    with pytest.raises(ChatTemplateError, match=r"^System role not supported$"):
        template.render([{"role": "system", "content": "x"}, *HELLO])
    assert template.render(HELLO) == "hello"


@pytest.mark.parametrize(
    "source", ["{{ messages[9].content.x }}", "{{ 1 / 0 }}", "{{ messages | nofilter }}", "{% for %}"]
)
def test_a_template_that_fails_is_a_template_error(source):
    with pytest.raises(ChatTemplateError, match="chat template"):
        render(source)


@pytest.mark.parametrize(
    "attack",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__class__ }}{{ messages.__class__.__base__ }}",
        "{{ raise_exception.__globals__['sys'] }}",
        "{{ strftime_now.__globals__ }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ self.__init__.__globals__ }}",
        "{{ '{0.__class__.__base__}'.format(messages) }}",
        "{{ ''['__class__'] ~ (''|attr('__class__')) }}",
        "{% set _ = messages.append({'role': 'x', 'content': 'y'}) %}",
        "{% set _ = messages[0].update({'content': 'changed'}) %}",
    ],
)
def test_a_hostile_template_reaches_nothing(attack):
    messages = [dict(HELLO[0])]
    try:
        text = render(attack, messages)
    except ChatTemplateError:
        text = ""
    assert "class" not in text
    assert "module" not in text
    assert messages == HELLO


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ("hello", "messages were str"),
        ({"role": "user", "content": "x"}, "messages were dict"),
        ([], "at least one"),
        (["hello"], "message 0 was str"),
        ([*HELLO, {"role": "user"}], "message 1 has no 'content'"),
        ([{"content": "x"}], "message 0 has no 'role'"),
        ([{"role": "user", "content": 7}], "'content' of type int"),
        ([{"role": None, "content": "x"}], "'role' of type NoneType"),
    ],
)
def test_malformed_messages_are_refused(messages, reason):
    with pytest.raises(ChatTemplateError, match=reason):
        render(CHATML, messages)


def test_an_empty_message_is_allowed():
    assert "user\n<|im_end|>" in render(CHATML, [{"role": "user", "content": ""}])


# TK-01
@pytest.mark.parametrize("source", ["{{ bos_token }}{{ messages[0].content }}", "{{ messages[0].content }}"])
@pytest.mark.parametrize("kind", ["json", "model"])
def test_there_is_one_bos_whoever_puts_it(source, kind, tmp_path):
    config = {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True}
    save = tiny.save_sentencepiece if kind == "model" else lambda folder, c: tiny.save(folder, tiny.llama2_like(), c)
    tokenizer = load_tokenizer(save(tmp_path, config))
    ids = encode_chat(tokenizer, ChatTemplate.for_tokenizer(source, tokenizer), HELLO)
    assert ids.count(tokenizer.bos_token_id) == 1
    assert ids[0] == tokenizer.bos_token_id
    assert tokenizer.decode(ids) == "hello"
