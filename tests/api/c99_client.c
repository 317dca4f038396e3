/* A complete client in C99: constant V must come out of every recipe as that constant. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vcattn/vcattn.h>

enum { kSeqlenQ = 33, kSeqlenKv = 131, kNumHeads = 2, kHeadDim = 64 };

static float q[kSeqlenQ * kNumHeads * kHeadDim];
static float k[kSeqlenKv * kNumHeads * kHeadDim];
static float v[kSeqlenKv * kNumHeads * kHeadDim];
static float o[kSeqlenQ * kNumHeads * kHeadDim];

static void check(vcattn_status status, char const* what) {
  if (status != VCATTN_OK) {
    fprintf(stderr, "%s: %s\n", what, vcattn_last_error());
    exit(EXIT_FAILURE);
  }
}

static void set_nhd(int64_t shape[4], int64_t stride[4], int64_t seqlen) {
  shape[0] = 1;
  shape[1] = seqlen;
  shape[2] = kNumHeads;
  shape[3] = kHeadDim;
  stride[0] = seqlen * kNumHeads * kHeadDim;
  stride[1] = kNumHeads * kHeadDim;
  stride[2] = kHeadDim;
  stride[3] = 1;
}

static vcattn_tensor nhd_tensor(float const* data, int64_t seqlen) {
  vcattn_tensor tensor;
  memset(&tensor, 0, sizeof(tensor));
  tensor.data = data;
  tensor.dtype = VCATTN_F32;
  set_nhd(tensor.shape, tensor.stride, seqlen);
  return tensor;
}

static void attend_constant(char const* recipe, float constant) {
  vcattn_options options = {.struct_size = sizeof(options)};
  vcattn_problem problem = {.struct_size = sizeof(problem)};
  vcattn_output output = {.struct_size = sizeof(output)};
  size_t i;

  check(vcattn_options_init(&options, recipe), recipe);
  problem.q = nhd_tensor(q, kSeqlenQ);
  problem.k = nhd_tensor(k, kSeqlenKv);
  problem.v = nhd_tensor(v, kSeqlenKv);
  output.o.data = o;
  output.o.dtype = VCATTN_F32;
  set_nhd(output.o.shape, output.o.stride, kSeqlenQ);
  check(vcattn_attend(&problem, &options, &output, NULL), recipe);

  for (i = 0; i < sizeof(o) / sizeof(o[0]); ++i) {
    /* half a step of E2M1 at its coarsest, 4 to 6, bounds every format's error */
    if (!(fabsf(o[i] - constant) <= fabsf(constant) / 6.0f)) {
      fprintf(stderr, "%s: o[%zu] = %g, required about %g\n", recipe, i, (double)o[i], (double)constant);
      exit(EXIT_FAILURE);
    }
  }
}

int main(void) {
  char const* const recipes[] = {"exact", "bf16",      "fp8",  "sage2", "vsmooth8", "vc8-paper",
                                 "vc8",   "vsmooth8s", "vc8s", "nvfp4", "sage3",    "vsmooth4"};
  float const constant = 3.25f;
  size_t i;

  if (vcattn_abi_version() != VCATTN_ABI_VERSION) {
    fprintf(stderr, "ABI %u required, got %u\n", VCATTN_ABI_VERSION, vcattn_abi_version());
    return EXIT_FAILURE;
  }
  for (i = 0; i < sizeof(q) / sizeof(q[0]); ++i) q[i] = sinf((float)i);
  for (i = 0; i < sizeof(k) / sizeof(k[0]); ++i) k[i] = cosf(1.7f * (float)i);
  for (i = 0; i < sizeof(v) / sizeof(v[0]); ++i) v[i] = constant;
  for (i = 0; i < sizeof(recipes) / sizeof(recipes[0]); ++i) attend_constant(recipes[i], constant);
  printf("vcattn %s: %zu recipes\n", vcattn_version(), sizeof(recipes) / sizeof(recipes[0]));
  return EXIT_SUCCESS;
}
