"""OSCAR as an SGLang plugin: `sglang serve --attention-backend oscar` (docs/sglang.md).

SGLang finds `plugin.register` by the entry point `sglang.srt.plugins`. Only `backend`, `hooks` and
`pool` import SGLang, and only when SGLang itself calls them.
"""
