// The kernels of each instruction set, as the bindings call them. Every one does a range of independent rows.
#pragma once

#include <cstdint>

#include "packed_linear.h"

namespace litspec {

// Attention of queries at absolute positions over slots of a cache: q and out (rows, T, heads, D), cache (slots, groups,
// M, D). A unit is one row's token and one group of heads.
struct Attention {
  const float* q;
  const float* keys;
  const float* values;
  const int64_t* slots;
  const int64_t* positions;
  float* out;
  int64_t num_tokens, num_groups, heads_in_group, head_size, max_positions;
  float scale;
};

struct Kernels {
  void (*linear_blocks)(const uint8_t* weight, int bytes, int64_t first_block, int64_t last_block, const Activations&,
                        float* y, int64_t out);
  void (*attention_units)(const Attention&, int64_t first, int64_t last);
  void (*norm_rows)(const float* x, const float* weight, float eps, int64_t size, float* y, int64_t first,
                    int64_t last);
  void (*silu_mul_range)(const float* gate, const float* up, float* y, int64_t first, int64_t last);
  // x (tokens, heads, D), cos and sin (tokens, D).
  void (*rope_tokens)(const float* x, const float* cos, const float* sin, int64_t heads, int64_t size, float* y,
                      int64_t first, int64_t last);
  int lanes;
};

}  // namespace litspec
