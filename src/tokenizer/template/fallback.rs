//! Templates for files that carry none, chosen by the turn markers in the vocabulary.

use crate::tokenizer::Tokenizer;

const CHATML: &str = "{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}";

const GEMMA: &str = "{{- bos_token }}
{%- set ns = namespace(prefix='') %}
{%- for message in messages %}
{%- if message.role == 'system' %}
{%- set ns.prefix = message.content + '\\n\\n' %}
{%- else %}
{{- '<start_of_turn>' + ('model' if message.role == 'assistant' else 'user') + '\\n' }}
{{- ns.prefix + message.content | trim + '<end_of_turn>\\n' }}
{%- set ns.prefix = '' %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<start_of_turn>model\\n' }}{%- endif %}";

const LLAMA3: &str = "{{- bos_token }}
{%- for message in messages %}
{{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' + message.content | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}";

/// A marker, the format that uses it, and a template.
const TABLE: &[(&str, &str, &str)] =
    &[("<|im_start|>", "ChatML", CHATML), ("<start_of_turn>", "Gemma", GEMMA), ("<|start_header_id|>", "Llama 3", LLAMA3)];

/// Name and source; ChatML where the vocabulary has none of the markers.
pub(super) fn choose(tokenizer: &Tokenizer) -> (&'static str, &'static str) {
    let fits = TABLE.iter().find(|(marker, ..)| tokenizer.special_id(marker).is_some());
    fits.map_or(("ChatML", CHATML), |(_, name, source)| (name, source))
}
