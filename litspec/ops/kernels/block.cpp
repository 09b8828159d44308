// The small operations of a block for one instruction set: attention, RMSNorm, SiLU·mul and RoPE, in float32.
//
// Each row is computed in one fixed order: lanes along the row, keys in blocks counted from position 0. So a token's
// result depends on that token and its own slot alone.
#include <algorithm>

#include "kernels.h"
#include "row_math.h"

namespace LITSPEC_ISA {

void linear_blocks(const uint8_t*, int, int64_t, int64_t, const litspec::Activations&, float*, int64_t);

namespace {

constexpr int KEYS = 64;      // of a block
constexpr int MOST_SIZE = 256;  // of a head

// One query over the keys at positions 0 to its own: an online softmax (Milakov and Gimelshein, arXiv 1805.02867).
void attend(const float* q, const float* keys, const float* values, int64_t num_keys, int64_t size, float scale,
            float* out) {
  alignas(64) float scores[KEYS];
  alignas(64) float total[MOST_SIZE] = {};
  float top = -INFINITY, mass = 0.0f;
  for (int64_t start = 0; start < num_keys; start += KEYS) {
    const int count = int(std::min<int64_t>(KEYS, num_keys - start));
    const int filled = (count + LANES - 1) / LANES * LANES;
    float highest = -INFINITY;
    for (int i = 0; i < filled; i += LANES) {
      const float* key[LANES];
      // Beyond the last key the last one is read again: what lies there is not this query's to see.
      for (int j = 0; j < LANES; ++j) key[j] = keys + (start + std::min(i + j, count - 1)) * size;
      Floats dots[LANES];
      for (int j = 0; j < LANES; ++j) dots[j] = zero();
      for (int64_t c = 0; c < size; c += LANES) {
        const Floats part = load(q + c);
        for (int j = 0; j < LANES; ++j) dots[j] = fma(part, load(key[j] + c), dots[j]);
      }
      store(scores + i, mul(sums(dots), spread(scale)));
    }
    for (int i = 0; i < count; ++i) highest = std::max(highest, scores[i]);
    for (int i = count; i < filled; ++i) scores[i] = -INFINITY;
    const float now = std::max(top, highest);
    const float kept = std::isinf(top) ? 0.0f : std::exp(top - now);
    for (int i = 0; i < filled; i += LANES) store(scores + i, exponential(add(load(scores + i), spread(-now))));
    float added = 0.0f;
    for (int i = 0; i < count; ++i) added += scores[i];
    mass = mass * kept + added;
    top = now;
    constexpr int WIDE = 4;
    int64_t c = 0;
    for (; c + WIDE * LANES <= size; c += WIDE * LANES) {
      Floats sum[WIDE];
      for (int w = 0; w < WIDE; ++w) sum[w] = mul(load(total + c + w * LANES), spread(kept));
      for (int i = 0; i < count; ++i) {
        const float* value = values + (start + i) * size + c;
        const Floats share = spread(scores[i]);
        for (int w = 0; w < WIDE; ++w) sum[w] = fma(share, load(value + w * LANES), sum[w]);
      }
      for (int w = 0; w < WIDE; ++w) store(total + c + w * LANES, sum[w]);
    }
    for (; c < size; c += LANES) {
      Floats sum = mul(load(total + c), spread(kept));
      for (int i = 0; i < count; ++i) sum = fma(spread(scores[i]), load(values + (start + i) * size + c), sum);
      store(total + c, sum);
    }
  }
  for (int64_t c = 0; c < size; c += LANES) store(out + c, div(load(total + c), spread(mass)));
}

void attention_units(const litspec::Attention& a, int64_t first, int64_t last) {
  const int64_t size = a.head_size, heads = a.num_groups * a.heads_in_group;
  for (int64_t unit = first; unit < last; ++unit) {
    const int64_t group = unit % a.num_groups, token = unit / a.num_groups;  // token counts rows * T
    const int64_t row = token / a.num_tokens;
    const int64_t offset = (a.slots[row] * a.num_groups + group) * a.max_positions * size;
    for (int64_t h = 0; h < a.heads_in_group; ++h) {
      const int64_t at = (token * heads + group * a.heads_in_group + h) * size;
      attend(a.q + at, a.keys + offset, a.values + offset, a.positions[token] + 1, size, a.scale, a.out + at);
    }
  }
}

void norm_rows(const float* x, const float* weight, float eps, int64_t size, float* y, int64_t first, int64_t last) {
  const int64_t whole = size / LANES * LANES;
  for (int64_t row = first; row < last; ++row) {
    const float* from = x + row * size;
    float* to = y + row * size;
    Floats squares = zero();
    for (int64_t c = 0; c < whole; c += LANES) squares = fma(load(from + c), load(from + c), squares);
    float total = sum(squares);
    for (int64_t c = whole; c < size; ++c) total += from[c] * from[c];
    const float factor = 1.0f / std::sqrt(total / float(size) + eps);
    for (int64_t c = 0; c < whole; c += LANES) store(to + c, mul(mul(load(from + c), spread(factor)), load(weight + c)));
    for (int64_t c = whole; c < size; ++c) to[c] = from[c] * factor * weight[c];
  }
}

void silu_mul_range(const float* gate, const float* up, float* y, int64_t first, int64_t last) {
  int64_t i = first;
  for (; i + LANES <= last; i += LANES) {
    const Floats g = load(gate + i), one = spread(1.0f);
    store(y + i, mul(div(g, add(one, exponential(mul(g, spread(-1.0f))))), load(up + i)));
  }
  if (i < last) {  // through lanes as well: a number must not depend on where a range ends
    float gates[LANES] = {}, ups[LANES] = {}, ys[LANES];
    std::copy(gate + i, gate + last, gates);
    std::copy(up + i, up + last, ups);
    const Floats g = load(gates), one = spread(1.0f);
    store(ys, mul(div(g, add(one, exponential(mul(g, spread(-1.0f))))), load(ups)));
    std::copy(ys, ys + (last - i), y + i);
  }
}

void rope_tokens(const float* x, const float* cos, const float* sin, int64_t heads, int64_t size, float* y,
                 int64_t first, int64_t last) {
  const int64_t half = size / 2;
  for (int64_t token = first; token < last; ++token) {
    const float *c = cos + token * size, *s = sin + token * size;
    for (int64_t h = 0; h < heads; ++h) {
      const float* from = x + (token * heads + h) * size;
      float* to = y + (token * heads + h) * size;
      for (int64_t i = 0; i < half; i += LANES) {
        const Floats a = load(from + i), b = load(from + half + i);
        store(to + i, fma(a, load(c + i), mul(mul(b, spread(-1.0f)), load(s + i))));
        store(to + half + i, fma(b, load(c + half + i), mul(a, load(s + half + i))));
      }
    }
  }
}

}  // namespace

extern const litspec::Kernels kernels;
const litspec::Kernels kernels = {linear_blocks, attention_units, norm_rows, silu_mul_range, rope_tokens, LANES};

}  // namespace LITSPEC_ISA
