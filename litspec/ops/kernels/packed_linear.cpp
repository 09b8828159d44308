// y = x · Wᵀ for packed weights, for one instruction set; compiled once for each (see build.py).
//
// A row of y is computed in one fixed order whatever stands beside it: the inputs that share a scale one after another,
// then their sum times the scale, then the group's minimum times the sum of the activations. How many tokens and rows are
// taken together changes only which of these run side by side.
#include "packed_linear.h"

#include "lanes.h"

namespace LITSPEC_ISA {

using litspec::Activations;
using litspec::BLOCK_ROWS;
using litspec::GROUP;
using litspec::HALVES;
using litspec::NIBBLES;
using litspec::SINGLES;

constexpr int STRIPS = BLOCK_ROWS / LANES;  // of a block

// Scales or minima of LANES rows from row `part` of a block on.
template <int BYTES>
Floats load_factors(const uint8_t* factors, int part) {
  if constexpr (litspec::has_halves(BYTES)) return load_half(factors + 2 * part);
  else return load_single(factors + 4 * part);
}

// T tokens by S strips of LANES rows.
template <int BYTES, int T, int S>
void tile(const uint8_t* weight, int64_t first_strip, const float* x, const float* sums, int64_t num_groups, float* y,
          int64_t out) {
  const int64_t in = num_groups * GROUP;
  const uint8_t* strips[S];
  int parts[S];
  for (int s = 0; s < S; ++s) {
    strips[s] = weight + (first_strip + s) / STRIPS * num_groups * BYTES;
    parts[s] = int((first_strip + s) % STRIPS) * LANES;
  }
  Floats total[T][S];
  for (int t = 0; t < T; ++t)
    for (int s = 0; s < S; ++s) total[t][s] = zero();
  for (int64_t g = 0; g < num_groups; ++g, x += GROUP) {
    Floats part[T][S];
    for (int t = 0; t < T; ++t)
      for (int s = 0; s < S; ++s) part[t][s] = zero();
    constexpr int QUANTS = litspec::has_nibbles(BYTES) ? NIBBLES : 2 * NIBBLES;
    constexpr int FACTORS = litspec::has_halves(BYTES) ? HALVES : SINGLES;
    if constexpr (!litspec::has_nibbles(BYTES)) {
      for (int i = 0; i < GROUP; ++i) {
        if constexpr (BYTES == litspec::Q6_K) {
          if (i == GROUP / 2)
            for (int s = 0; s < S; ++s) {
              const Floats scale = load_factors<BYTES>(strips[s] + QUANTS, parts[s]);
              for (int t = 0; t < T; ++t) total[t][s] = fma(scale, part[t][s], total[t][s]), part[t][s] = zero();
            }
        }
        for (int s = 0; s < S; ++s) {
          const Floats w = load_int8(strips[s] + i * BLOCK_ROWS + parts[s]);
          for (int t = 0; t < T; ++t) part[t][s] = fma(w, spread(x[t * in + i]), part[t][s]);
        }
      }
    } else {
      for (int c = 0; c < GROUP / 8; ++c) {
        Ints words[S];
        for (int s = 0; s < S; ++s) words[s] = load_ints(strips[s] + (c * BLOCK_ROWS + parts[s]) * 4);
#pragma GCC unroll 8
        for (int j = 0; j < 8; ++j)
          for (int s = 0; s < S; ++s) {
            const Floats w = j < 7 ? masked(words[s], 15 << 4 * j) : top_nibble(words[s]);
            for (int t = 0; t < T; ++t) part[t][s] = fma(w, spread(x[t * in + c * 8 + j]), part[t][s]);
          }
      }
    }
    constexpr int LAST_SCALE = QUANTS + (BYTES == litspec::Q6_K ? FACTORS : 0);
    for (int s = 0; s < S; ++s) {
      const Floats scale = load_factors<BYTES>(strips[s] + LAST_SCALE, parts[s]);
      for (int t = 0; t < T; ++t) total[t][s] = fma(scale, part[t][s], total[t][s]);
      if constexpr (litspec::has_minimum(BYTES)) {
        const Floats minimum = load_factors<BYTES>(strips[s] + QUANTS + FACTORS, parts[s]);
        for (int t = 0; t < T; ++t) total[t][s] = fma(minimum, spread(sums[t * num_groups + g]), total[t][s]);
      }
      if constexpr (BYTES == litspec::Q4_0) {  // the numbers are 0 to 15 and mean -8 to 7
        for (int t = 0; t < T; ++t) total[t][s] = fma(scale, spread(-8.0f * sums[t * num_groups + g]), total[t][s]);
      }
      strips[s] += BYTES;
    }
  }
  for (int t = 0; t < T; ++t)
    for (int s = 0; s < S; ++s) store(y + t * out + (first_strip + s) * LANES, total[t][s]);
}

// All strips of a range for T tokens, as many side by side as there are registers for.
template <int BYTES, int T, int S = ACCUMULATORS / T>
void strips(const uint8_t* weight, int64_t& strip, int64_t last_strip, const float* x, const float* sums,
            int64_t num_groups, float* y, int64_t out) {
  for (; strip + S <= last_strip; strip += S) tile<BYTES, T, S>(weight, strip, x, sums, num_groups, y, out);
  if constexpr (S > 1) strips<BYTES, T, S / 2>(weight, strip, last_strip, x, sums, num_groups, y, out);
}

template <int BYTES, int T>
void tokens(const uint8_t* weight, int64_t first, int64_t last, const Activations& a, int64_t token, float* y,
            int64_t out) {
  strips<BYTES, T>(weight, first, last, a.x + token * a.num_groups * GROUP, a.sums + token * a.num_groups, a.num_groups,
                   y + token * out, out);
}

template <int BYTES>
void blocks(const uint8_t* weight, int64_t first_block, int64_t last_block, const Activations& a, float* y,
            int64_t out) {
  constexpr int MOST = 3;  // tokens at once: three by ACCUMULATORS / 3 strips was the fastest tile
  // Many tokens: so few blocks at a time that their weights stay in the cache while all tokens pass.
  constexpr int64_t FEW = ACCUMULATORS / MOST > STRIPS ? ACCUMULATORS / MOST / STRIPS : 1;
  const int64_t step = a.num_tokens <= MOST ? last_block - first_block : FEW;
  for (int64_t block = first_block; block < last_block; block += step) {
    const int64_t first = block * STRIPS;
    const int64_t last = (block + step < last_block ? block + step : last_block) * STRIPS;
    int64_t token = 0, left = a.num_tokens;
    for (; left >= 5 || left == 3; token += 3, left -= 3) tokens<BYTES, 3>(weight, first, last, a, token, y, out);
    for (; left >= 2; token += 2, left -= 2) tokens<BYTES, 2>(weight, first, last, a, token, y, out);
    if (left == 1) tokens<BYTES, 1>(weight, first, last, a, token, y, out);
  }
}

void linear_blocks(const uint8_t* weight, int bytes, int64_t first_block, int64_t last_block, const Activations& a,
                   float* y, int64_t out) {
  switch (bytes) {
    case litspec::Q4_0: blocks<litspec::Q4_0>(weight, first_block, last_block, a, y, out); break;
    case litspec::Q4_1: blocks<litspec::Q4_1>(weight, first_block, last_block, a, y, out); break;
    case litspec::Q8_0: blocks<litspec::Q8_0>(weight, first_block, last_block, a, y, out); break;
    case litspec::Q4_K: blocks<litspec::Q4_K>(weight, first_block, last_block, a, y, out); break;
    case litspec::Q5_K: blocks<litspec::Q5_K>(weight, first_block, last_block, a, y, out); break;
    case litspec::Q6_K: blocks<litspec::Q6_K>(weight, first_block, last_block, a, y, out); break;
  }
}

}  // namespace LITSPEC_ISA
