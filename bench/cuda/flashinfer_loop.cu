// FlashInfer's BF16 paged decode for decode_loop.py: a shared library of three functions. A nonzero
// return is an error; its sentence is on stderr.
#include <cstdio>
#include <exception>

#include "../bench/cuda/flashinfer_decode.cuh"

namespace {

template <typename Action>
int guarded(Action action) noexcept {
  try {
    action();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}
oscar::bench::FlashInferDecode& decode_of(void* handle) {
  return *static_cast<oscar::bench::FlashInferDecode*>(handle);
}

}  // namespace

extern "C" {

// *num_pages: pages of a layer; last_pages: [batch] page of each sequence's last token.
int flashinfer_decode_create(int num_q_heads, int batch, int context, void** handle,
                             long long* num_pages, int* last_pages) {
  return guarded([&] {
    auto* decode = new oscar::bench::FlashInferDecode(num_q_heads, batch, context);
    *handle = decode;
    *num_pages = static_cast<long long>(decode->num_pages());
    for (int seq = 0; seq < batch; ++seq) {
      last_pages[seq] = decode->page_of(seq, (context - 1) / oscar::bench::kPage);
    }
  });
}

void flashinfer_decode_destroy(void* handle) { delete &decode_of(handle); }

int flashinfer_decode_run(void* handle, const void* q, long long q_stride, void* k, void* v,
                          void* out, void* stream) {
  using oscar::bench::bf16;
  return guarded([&] {
    decode_of(handle).launch(static_cast<const bf16*>(q), q_stride, static_cast<bf16*>(k),
                             static_cast<bf16*>(v), static_cast<bf16*>(out), false,
                             static_cast<cudaStream_t>(stream));
  });
}

}  // extern "C"
