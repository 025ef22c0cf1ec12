"""OSCAR as a vLLM plugin: `vllm serve MODEL --attention-backend OSCAR` (docs/vllm.md).

vLLM finds `plugin.register` by the entry point `vllm.general_plugins`. Only `backend`, `builder`
and `compat_0_25` import vLLM.
"""
