"""The entry point: makes the backend OSCAR known to vLLM, in each of its processes."""

import copyreg
import logging
from typing import Any

from oscar_kv.serving.registration import never_raises

NAME = "OSCAR"
OLD_NAME = "CUSTOM"  # before 0.26, whose registry takes no new names
BACKEND = "oscar_kv.vllm.backend.OscarBackend"

logger = logging.getLogger("vllm.oscar_kv")


@never_raises(NAME, logger)
def register() -> None:
    """Registers the backend. May be called again; never raises, whatever this vLLM is."""
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    name = registered_name()
    member = AttentionBackendEnum.__members__.get(name)
    if member is None:
        register_backend(name, BACKEND)
    elif name == OLD_NAME and not member.is_overridden():
        register_backend(member, BACKEND)
    elif member.get_path() != BACKEND:
        logger.warning(
            "oscar-kv: this vLLM has an attention backend %s of its own (%s); it is left as it is",
            name,
            member.get_path(),
        )
        return
    if name == NAME:
        copyreg.pickle(AttentionBackendEnum, _reduce)
    _let_cpu_platform_choose(name)


def _reduce(member: Any) -> Any:
    """vLLM sends its configuration to new processes, which read it before they load plugins."""
    return (registered_member, ()) if member.name == NAME else member.__reduce_ex__(2)


def registered_member() -> Any:
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    register()
    return AttentionBackendEnum[NAME]


def registered_name() -> str:
    """What --attention-backend calls ours in this vLLM."""
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    return NAME if hasattr(AttentionBackendEnum, "register") else OLD_NAME


def _let_cpu_platform_choose(name: str) -> None:
    """On CPUs vLLM knows one backend and passes over the one that the user names."""
    from vllm.platforms.cpu import CpuPlatform

    original = CpuPlatform.__dict__["get_attn_backend_cls"].__func__
    if getattr(original, "oscar_kv", False):
        return

    def get_attn_backend_cls(cls, selected_backend, attn_selector_config, num_heads=None):
        if getattr(selected_backend, "name", None) != name:
            return original(cls, selected_backend, attn_selector_config, num_heads)
        from oscar_kv.vllm.backend import OscarBackend

        reasons = OscarBackend.validate_configuration(
            device_capability=None, **attn_selector_config._asdict()
        )
        if reasons:
            raise ValueError(f"attention backend {name}: {', '.join(reasons)}")
        return BACKEND

    get_attn_backend_cls.oscar_kv = True
    CpuPlatform.get_attn_backend_cls = classmethod(get_attn_backend_cls)
