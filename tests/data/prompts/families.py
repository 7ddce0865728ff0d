"""Chat templates of families that call tools: small reproductions of what the real ones write for tools.

Each writes its calls, results and refusals as the family's own template does; TRL's copies of real ones are read where
it is installed.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

_SPECIAL = [
    "<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
    "<|python_tag|>", "<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]",
    "<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|call|>", "<|return|>", "<|constrain|>",
    "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>",
]  # fmt: skip
_ADDED = [
    "<｜User｜>", "<｜Assistant｜>", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>", "<｜tool▁sep｜>", "<tool_call>", "</tool_call>", "<think>", "</think>",
]  # fmt: skip

_QWEN = """\
{%- if tools %}{{ '<|im_start|>system\n<tools>' }}{% for t in tools %}{{ '\n' + t | tojson }}{% endfor %}
{{- '\n</tools>\n<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call><|im_end|>\n' }}
{%- endif %}
{%- for m in messages %}
  {%- if m.role == 'tool' %}
    {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
    {{- '\n<tool_response>\n' + m.content + '\n</tool_response>' }}
    {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\n' }}{% endif %}
  {%- else %}
    {{- '<|im_start|>' + m.role + '\n' }}
    {%- if m.role == 'assistant' and loop.last %}{{ '<think>\n\n</think>\n\n' }}{% endif %}
    {{- m.content }}
    {%- for c in m.tool_calls or [] %}
      {%- if m.content or not loop.first %}{{ '\n' }}{% endif %}
      {{- '<tool_call>\n{"name": "' + c.function.name + '", "arguments": ' + c.function.arguments | tojson }}
      {{- '}\n</tool_call>' }}
    {%- endfor %}{{ '<|im_end|>\n' }}
  {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""

_HERMES = """\
{%- if tools %}{{ '<tools> ' + tools | tojson + ' </tools><|im_end|>' }}{% endif %}
{%- for m in messages %}
  {%- if m.role == 'tool' %}
    {%- if m.name is not defined %}{{ raise_exception("Tool response dicts require a 'name' key") }}{% endif %}
    {{- '<|im_start|>tool\n<tool_response>\n{"name": "' + m.name + '", "content": ' + m.content | tojson }}
    {{- '}\n</tool_response> <|im_end|>\n' }}
  {%- elif m.tool_calls is defined %}
    {{- '<|im_start|>assistant' }}
    {%- for c in m.tool_calls %}
      {{- '\n<tool_call>\n{ "arguments": ' + c.function.arguments | tojson + ', "name": "' + c.function.name }}
      {{- '"}\n</tool_call> ' }}
    {%- endfor %}{{ '<|im_end|>\n' }}
  {%- else %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""

_LLAMA = """\
{{- bos_token }}
{%- if tools %}
  {%- set first = messages[0].content | trim %}{% set messages = messages[1:] %}
  {{- '<|start_header_id|>user<|end_header_id|>\n\n{"name": function name, "parameters": dictionary}\n' }}
  {{- tools | tojson + first + '<|eot_id|>' }}
{%- endif %}
{%- for m in messages %}
  {%- if 'tool_calls' in m %}
    {%- if m.tool_calls | length != 1 %}{{ raise_exception('This model only supports single tool-calls!') }}{% endif %}
    {%- set c = m.tool_calls[0].function %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n{"name": "' + c.name + '", ' }}
    {{- '"parameters": ' + c.arguments | tojson + '}<|eot_id|>' }}
  {%- elif m.role == 'tool' %}
    {{- '<|start_header_id|>ipython<|end_header_id|>\n\n' + m.content | tojson + '<|eot_id|>' }}
  {%- else %}
    {{- '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + m.content | trim + '<|eot_id|>' }}
  {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"""

_MISTRAL = """\
{%- for m in messages | rejectattr('role', 'equalto', 'tool') | selectattr('tool_calls', 'undefined') %}
  {%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}
{%- endfor %}
{{- bos_token }}
{%- for m in messages %}
  {%- if m.role == 'user' %}
    {%- if tools %}{{ '[AVAILABLE_TOOLS] ' + tools | tojson + '[/AVAILABLE_TOOLS]' }}{% endif %}
    {{- '[INST] ' + m.content + '[/INST]' }}
  {%- elif m.tool_calls is defined %}
    {{- '[TOOL_CALLS] [' }}
    {%- for c in m.tool_calls %}
      {%- if c.id is not defined or c.id | length != 9 %}{{ raise_exception('ids of length 9!') }}{% endif %}
      {{- (c.function | tojson)[:-1] + ', "id": "' + c.id + '"}' + (']' + eos_token if loop.last else ', ') }}
    {%- endfor %}
  {%- elif m.role == 'tool' %}
    {%- if m.tool_call_id is not defined or m.tool_call_id | length != 9 %}
      {{- raise_exception('ids of length 9!') }}
    {%- endif %}
    {{- '[TOOL_RESULTS] {"content": ' + m.content + ', "call_id": "' + m.tool_call_id + '"}[/TOOL_RESULTS]' }}
  {%- else %}{{ ' ' + m.content + eos_token }}{% endif %}
{%- endfor %}"""

_DEEPSEEK = """\
{{- bos_token }}{% if tools %}{{ tools | tojson }}{% endif %}
{%- set ns = namespace(tool=false) %}
{%- for m in messages %}
  {%- if m.role == 'user' %}{% set ns.tool = false %}{{ '<｜User｜>' + m.content }}
  {%- elif m.role == 'tool' %}{% set ns.tool = true %}
    {{- '<｜tool▁output▁begin｜>' + m.content + '<｜tool▁output▁end｜>' }}
  {%- elif 'tool_calls' in m %}
    {{- '<｜Assistant｜>' + m.content + '<｜tool▁calls▁begin｜>' }}
    {%- for c in m.tool_calls %}
      {{- ('' if loop.first else '\n') + '<｜tool▁call▁begin｜>' + c.type + '<｜tool▁sep｜>' + c.function.name }}
      {{- '\n```json\n' + c.function.arguments + '\n```<｜tool▁call▁end｜>' }}
    {%- endfor %}{{ '<｜tool▁calls▁end｜>' + eos_token }}
  {%- else %}{{ ('' if ns.tool else '<｜Assistant｜>') + m.content + eos_token }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt and not ns.tool %}{{ '<｜Assistant｜>' }}{% endif %}"""

_GPT_OSS = """\
{%- if tools %}{{ '<|start|>developer<|message|># Tools ' + tools | tojson + '<|end|>' }}{% endif %}
{%- set last = namespace(name=none) %}
{%- for m in messages %}
  {%- if m.role == 'assistant' and 'tool_calls' in m %}
    {%- set c = m.tool_calls[0].function %}{% set last.name = c.name %}
    {{- '<|start|>assistant to=functions.' + c.name + '<|channel|>commentary json<|message|>' }}
    {{- c.arguments | tojson + '<|call|>' }}
  {%- elif m.role == 'assistant' %}
    {{- '<|start|>assistant<|channel|>final<|message|>' + m.content }}
    {{- '<|return|>' if loop.last and not add_generation_prompt else '<|end|>' }}
  {%- elif m.role == 'tool' %}
    {%- if last.name is none %}{{ raise_exception('there was no previous assistant message with a tool call!') }}
    {%- endif %}
    {{- '<|start|>functions.' + last.name + ' to=assistant<|channel|>commentary<|message|>' + m.content | tojson }}
    {{- '<|end|>' }}
  {%- else %}{{ '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}"""


@dataclass(frozen=True)
class Family:
    """A chat template, its end and begin tokens, what ends a turn with a call, and the calls that a turn may have."""

    template: str
    end: str
    begin: str | None = None
    end_of_call: str = ""
    calls: int = 2

    def tokenizer(self) -> PreTrainedTokenizerFast:
        """Every byte is a token, and so is every special word of the families."""
        letters = sorted(pre_tokenizers.ByteLevel.alphabet())
        tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.add_special_tokens(_SPECIAL)
        tokenizer.add_tokens(_ADDED)
        return PreTrainedTokenizerFast(
            tokenizer_object=tokenizer, eos_token=self.end, bos_token=self.begin, chat_template=self.template
        )


FAMILIES = {
    "qwen": Family(_QWEN, "<|im_end|>"),
    "hermes": Family(_HERMES, "<|im_end|>"),
    "llama": Family(_LLAMA, "<|eot_id|>", "<|begin_of_text|>", calls=1),
    "mistral": Family(_MISTRAL, "</s>", "<s>"),
    "deepseek": Family(_DEEPSEEK, "<｜end▁of▁sentence｜>", "<｜begin▁of▁sentence｜>"),
    "gpt-oss": Family(_GPT_OSS, "<|return|>", end_of_call="<|call|>", calls=1),
}
_REAL = {
    "qwen2_5": Family("", "<|im_end|>"),
    "qwen3": Family("", "<|im_end|>"),
    "qwen3_instruct_2507": Family("", "<|im_end|>"),
    "qwen3_5_think": Family("", "<|im_end|>"),
    "llama3_1": Family("", "<|eot_id|>", "<|begin_of_text|>", calls=1),
    "llama3_2": Family("", "<|eot_id|>", "<|begin_of_text|>", calls=1),
    "gptoss": Family("", "<|return|>", end_of_call="<|call|>", calls=1),
}


def real_families() -> dict[str, Family]:
    """Return the families' own templates as TRL ships them; none without TRL."""
    found = importlib.util.find_spec("trl")
    if found is None or found.origin is None:
        return {}
    folder = Path(found.origin).parent / "chat_templates"
    return {
        name: Family((folder / f"{name}.jinja").read_text(encoding="utf-8"), f.end, f.begin, f.end_of_call, f.calls)
        for name, f in _REAL.items()
    }
