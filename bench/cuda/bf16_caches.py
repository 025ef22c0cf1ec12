"""What decode_loop.py compares with: attention over caches in BF16, by FlashAttention 3 and by
FlashInfer. A cache holds as many layers as fit."""

import ctypes

import torch

HEAD_DIM = 128
MOST_CACHE_BYTES = 30e9


def pointer(tensor):
    return ctypes.c_void_p(tensor.data_ptr())


def stream_pointer():
    return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)


class Bf16Cache:
    """Contiguous BF16 keys and values, FlashAttention 3; the new token is written too."""

    def __init__(self, model, batch, context):
        import fa3_fwd_interface

        self.fa3, self.model, self.batch = fa3_fwd_interface, model, batch
        layer_bytes = batch * context * model["kv_heads"] * 4 * HEAD_DIM
        self.buffers = max(1, min(model["layers"], int(MOST_CACHE_BYTES / layer_bytes)))
        self.kv = torch.empty(
            self.buffers,
            2,
            batch,
            context,
            model["kv_heads"],
            HEAD_DIM,
            dtype=torch.bfloat16,
            device="cuda",
        )
        for part in self.kv.view(-1, context, model["kv_heads"], HEAD_DIM):
            part.normal_()

    def attend(self, layer, qkv, out):
        model, kv = self.model, self.kv[layer % self.buffers]
        q_width, kv_width = model["q_heads"] * HEAD_DIM, model["kv_heads"] * HEAD_DIM
        for side in range(2):
            new = qkv[:, q_width + side * kv_width : q_width + (side + 1) * kv_width]
            kv[side, :, -1].copy_(new.view(self.batch, model["kv_heads"], HEAD_DIM))
        q = qkv[:, :q_width].view(self.batch, 1, model["q_heads"], HEAD_DIM)
        result = self.fa3.flash_attn_with_kvcache(q, kv[0], kv[1], num_splits=0, pack_gqa=True)
        result = result[0] if isinstance(result, tuple) else result
        out.copy_(result.reshape(self.batch, q_width))


class FlashInferCache:
    """BF16 pages of 64 tokens in random order, FlashInfer; the new token is written too."""

    def __init__(self, library, model, batch, context):
        self.library, self.model, self.batch = library, model, batch
        handle, num_pages = ctypes.c_void_p(), ctypes.c_longlong()
        last = (ctypes.c_int * batch)()
        created = library.flashinfer_decode_create(
            model["q_heads"], batch, context, ctypes.byref(handle), ctypes.byref(num_pages), last
        )
        if created != 0:
            raise RuntimeError("FlashInfer: no plan")
        self.handle = handle
        self.last_pages = torch.tensor(list(last), dtype=torch.int64, device="cuda")
        self.last_row = (context - 1) % 64
        heads = model["kv_heads"]
        layer_bytes = num_pages.value * heads * 64 * 4 * HEAD_DIM
        self.buffers = max(1, min(model["layers"], int(MOST_CACHE_BYTES / layer_bytes)))
        self.kv = torch.empty(
            (self.buffers, 2, num_pages.value, heads, 64, HEAD_DIM),
            dtype=torch.bfloat16,
            device="cuda",
        )
        for part in self.kv.view(-1, num_pages.value, heads, 64, HEAD_DIM):
            part.normal_()

    def __del__(self):
        self.library.flashinfer_decode_destroy(self.handle)

    def attend(self, layer, qkv, out):
        model, kv = self.model, self.kv[layer % self.buffers]
        q_width, kv_width = model["q_heads"] * HEAD_DIM, model["kv_heads"] * HEAD_DIM
        for side in range(2):
            new = qkv[:, q_width + side * kv_width : q_width + (side + 1) * kv_width]
            rows = kv[side, :, :, self.last_row]
            rows.index_copy_(0, self.last_pages, new.view(self.batch, model["kv_heads"], HEAD_DIM))
        status = self.library.flashinfer_decode_run(
            self.handle,
            pointer(qkv),
            ctypes.c_longlong(qkv.shape[1]),
            pointer(kv[0]),
            pointer(kv[1]),
            pointer(out),
            stream_pointer(),
        )
        if status != 0:
            raise RuntimeError("FlashInfer: launch failed")
