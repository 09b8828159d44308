// Drawing from the whole vocabulary: noise and argmax in one pass, with few logarithms.
//
// A token wins where its score and its noise together are the highest. Noise -log(-log(u)) is at most -log(1 - u), and
// that is at most (n + 1) log 2 where the binary digits of u begin with n ones. So most tokens are out of the race by
// their score and by the digits of their hash alone; the noise of the others is computed exactly.
#include "sample.h"

#include <cmath>
#include <limits>

namespace litspec {

namespace {

constexpr uint64_t GOLDEN = 0x9E3779B97F4A7C15u;

uint64_t mix(uint64_t x) {  // SplitMix64 (Steele, Lea and Flood, OOPSLA 2014)
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

double gumbel(uint64_t hash) {
  const double uniform = (double(hash >> 11) + 0.5) * 0x1p-53;
  return -std::log(-std::log(uniform < 1.0 - 0x1p-53 ? uniform : 1.0 - 0x1p-53));
}

}  // namespace

int64_t draw(const float* logits, int64_t num_tokens, double temperature, double floor, int64_t seed,
             int64_t position) {
  float top = -std::numeric_limits<float>::infinity();
  int64_t top_id = 0;
  for (int64_t id = 0; id < num_tokens; ++id)
    if (logits[id] > top) top = logits[id], top_id = id;
  if (std::isinf(top) && top < 0.0f) return 0;
  const uint64_t stream = mix(mix(uint64_t(seed) + GOLDEN) + uint64_t(position + 1) * GOLDEN);
  const auto hash_of = [&](int64_t id) { return mix(stream + uint64_t(id + 1) * GOLDEN); };
  double best = gumbel(hash_of(top_id));  // its score is 0
  int64_t best_id = top_id;
  const double step = std::log(2.0) * temperature;
  // A token of this logit needs noise of 0; what lies n steps below needs n leading ones.
  double level = double(top) + best * temperature;
  for (int64_t id = 0; id < num_tokens; ++id) {
    const double missing = (level - double(logits[id])) - 1e-6;
    if (missing > 55.0 * step) continue;
    const uint64_t hash = hash_of(id);
    if (missing > 0.0) {
      const int ones = ~hash == 0 ? 64 : __builtin_clzll(~hash);
      if (missing > double(ones + 1) * step) continue;
    }
    const double score = (double(logits[id]) - double(top)) / temperature;
    if (score < floor) continue;
    const double value = score + gumbel(hash);
    if (value > best || (value == best && id < best_id)) {
      best = value, best_id = id;
      level = double(top) + best * temperature;
    }
  }
  return best_id;
}

}  // namespace litspec
