/* What the C programs that test the interface share. */
#ifndef OSCAR_CAPI_TEST_SUPPORT_H_
#define OSCAR_CAPI_TEST_SUPPORT_H_

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oscar/oscar.h"

static int num_failures = 0;

#define EXPECT(condition)                                                         \
  do {                                                                            \
    if (!(condition)) {                                                           \
      ++num_failures;                                                             \
      printf("%s:%d: %s fails; last error: %s\n", __FILE__, __LINE__, #condition, \
             oscar_last_error());                                                 \
    }                                                                             \
  } while (0)

#define EXPECT_REFUSED(call, status, words)              \
  do {                                                   \
    EXPECT((call) == (status));                          \
    EXPECT(strstr(oscar_last_error(), (words)) != NULL); \
    EXPECT(strchr(oscar_last_error(), '\n') == NULL);    \
  } while (0)

/* Sums of uniform numbers: near enough to a Gaussian for codes. */
static float next_value(uint64_t* state) {
  float sum = 0;
  for (int i = 0; i < 4; ++i) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    sum += (float)(*state >> 40) / (float)(1 << 24) - 0.5f;
  }
  return sum * 1.7f;
}

static float* make_rows(int64_t count, uint64_t seed) {
  float* rows = malloc((size_t)count * sizeof *rows);
  if (rows == NULL) exit(2);
  for (int64_t i = 0; i < count; ++i) rows[i] = next_value(&seed);
  return rows;
}

#endif /* OSCAR_CAPI_TEST_SUPPORT_H_ */
