/* The C interface from C11: what is refused, with the reason, and a plan where a card is there. */
#include <stdio.h>
#include <string.h>

#include "oscar/oscar_cuda.h"

static int failures = 0;

static void expect(int condition, const char* what) {
  if (condition) return;
  printf("FAILED: %s (last error: %s)\n", what, oscar_cuda_last_error());
  ++failures;
}

int main(void) {
  oscar_cuda_shape shape = {0};
  oscar_cuda_plan* plan = NULL;
  oscar_cuda_plan_info info;
  oscar_cuda_attend_args attend = {0};
  oscar_cuda_encode_args encode = {0};
  const oscar_cuda_quant quant = {2, 128, 1, 0};
  oscar_status status;

  expect(oscar_cuda_abi_version() == OSCAR_CUDA_ABI_VERSION, "version");
  expect(strncmp(oscar_cuda_build(), "CUDA: sm_", 9) == 0, "what it was built for");
  printf("%s\n", oscar_cuda_build());
  expect(oscar_cuda_check_device(-1) == OSCAR_UNSUPPORTED, "device -1");
  expect(oscar_cuda_check_device(1000) == OSCAR_UNSUPPORTED, "device 1000");
  expect(oscar_cuda_last_error()[0] != '\0', "the reason for device 1000");
  status = oscar_cuda_check_device(0);
  expect(status == OSCAR_OK || status == OSCAR_UNSUPPORTED, "device 0");
  if (status == OSCAR_UNSUPPORTED) printf("device 0: %s\n", oscar_cuda_last_error());
  expect(oscar_cuda_plan_create(NULL, 0, &plan) == OSCAR_INVALID_ARGUMENT, "null shape");
  shape.num_seqs = 2;
  shape.num_queries = 1;
  shape.num_q_heads = 32;
  shape.num_kv_heads = 8;
  shape.head_dim = 128;
  shape.key = shape.value = quant;
  shape.max_seq_len = 1000;
  shape.key.bits = 5;
  expect(oscar_cuda_plan_create(&shape, 0, &plan) != OSCAR_OK, "5 bits");
  expect(strstr(oscar_cuda_last_error(), "5") != NULL, "5 bits are named");
  shape.key = quant;
  shape.key.affine = 3;
  expect(oscar_cuda_plan_create(&shape, 0, &plan) != OSCAR_OK, "an unknown codebook");
  expect(strstr(oscar_cuda_last_error(), "affine 3 must be 0, 1 or 2") != NULL, "which is named");
  shape.key.affine = 2; /* trellis codes */
  shape.key.bits = 3;
  expect(oscar_cuda_plan_create(&shape, 0, &plan) != OSCAR_OK, "trellis codes of 3 bits");
  expect(strstr(oscar_cuda_last_error(), "trellis codes have 2 bits") != NULL, "which are named");
  shape.key.bits = 2;
  shape.value = shape.key;
  expect(oscar_cuda_plan_create(&shape, 0, &plan) == status, "a plan of trellis codes");
  if (status == OSCAR_OK) {
    expect(oscar_cuda_plan_describe(plan, &info) == OSCAR_OK, "describe trellis codes");
    expect(info.key_plane_bytes == 64 * 34, "as many bytes as symmetric codes");
    printf("kernel of trellis codes %s\n", info.kernel);
    oscar_cuda_plan_free(plan);
    plan = NULL;
  }
  shape.key = shape.value = quant;

  expect(oscar_cuda_plan_create(&shape, 0, &plan) == status, "a plan, where the device serves");
  if (status == OSCAR_OK) {
    expect(oscar_cuda_plan_describe(plan, &info) == OSCAR_OK, "describe");
    expect(info.key_plane_bytes == 64 * 36 && info.workspace_bytes > 0, "sizes");
    expect(oscar_cuda_attend(plan, &attend, &info, info.workspace_bytes, NULL) ==
               OSCAR_INVALID_ARGUMENT,
           "null pointers");
    printf("kernel %s\n", info.kernel);
  } else {
    printf("no card: %s\n", oscar_cuda_last_error());
  }
  oscar_cuda_plan_free(plan);

  encode.key.quant = encode.value.quant = quant;
  encode.head_dim = 128;
  encode.num_tokens = -1;
  expect(oscar_cuda_encode(&encode, NULL) == OSCAR_INVALID_ARGUMENT, "negative tokens");
  expect(strstr(oscar_cuda_last_error(), "-1") != NULL, "the count is named");
  expect(oscar_cuda_transform_image(NULL, 8, 128, NULL, NULL) == OSCAR_INVALID_ARGUMENT, "image");
  printf(failures == 0 ? "PASSED\n" : "FAILED\n");
  return failures != 0;
}
