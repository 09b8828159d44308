#pragma once

#include <cstdint>

namespace litspec {

// The id whose (logit - highest) / temperature + noise is highest, among the scores from `floor` on; 0 if all are banned.
int64_t draw(const float* logits, int64_t num_tokens, double temperature, double floor, int64_t seed, int64_t position);

}  // namespace litspec
