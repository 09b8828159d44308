// What the instruction sets' versions of the packed linear have in common: the layout, and the call.
//
// A packed weight is (out / 16, in / 32, BYTES): a block of 16 output rows and 32 inputs lies together.
//   4 bits: for each 8 inputs 16 words, one a row, with input j of the 8 in bits 4j to 4j + 3;
//   8 bits: for each input 16 signed bytes, one a row;
// then 16 scales, and with a minimum 16 of these: in half precision, or in single precision for the K types, whose scales
// are products. Q6_K has a scale for each half of the 32 inputs, and is filled up so that its size is its own.
#pragma once

#include <cstdint>

namespace litspec {

constexpr int BLOCK_ROWS = 16, GROUP = 32;
constexpr int NIBBLES = BLOCK_ROWS * GROUP / 2, HALVES = 2 * BLOCK_ROWS, SINGLES = 4 * BLOCK_ROWS;
constexpr int Q4_0 = NIBBLES + HALVES, Q4_1 = NIBBLES + 2 * HALVES, Q8_0 = 2 * NIBBLES + HALVES;
constexpr int Q4_K = NIBBLES + 2 * SINGLES, Q5_K = 2 * NIBBLES + 2 * SINGLES, Q6_K = Q5_K + 16;

constexpr bool is_known(int bytes) {
  return bytes == Q4_0 || bytes == Q4_1 || bytes == Q8_0 || bytes == Q4_K || bytes == Q5_K || bytes == Q6_K;
}
constexpr bool has_nibbles(int bytes) { return bytes == Q4_0 || bytes == Q4_1 || bytes == Q4_K; }
constexpr bool has_minimum(int bytes) { return bytes == Q4_1 || bytes == Q4_K || bytes == Q5_K; }
constexpr bool has_halves(int bytes) { return bytes == Q4_0 || bytes == Q4_1 || bytes == Q8_0; }

// Activations of a call: x as the format wants it, scaled by a power of two for each place in a word (see `scale_of`),
// and the sum of each group of 32 as it was.
struct Activations {
  const float* x;
  const float* sums;
  int64_t num_tokens;
  int64_t num_groups;
};

// A nibble at bits 4j of a word is masked and not shifted, so it counts 2^4j times; the activation makes up for it. The
// highest one would reach the sign and is shifted down.
inline float scale_of(int bytes, int64_t input) {
  const int j = int(input % 8);
  return !has_nibbles(bytes) || j == 7 ? 1.0f : 1.0f / float(1 << 4 * j);
}

}  // namespace litspec
