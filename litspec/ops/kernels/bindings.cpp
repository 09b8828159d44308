// The kernels as torch operators. Threads share the output rows of a call, never the inputs of a row.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <algorithm>
#include <string>
#include <vector>

#include "kernels.h"
#include "sample.h"

namespace portable {
extern const litspec::Kernels kernels;
}
#ifdef LITSPEC_X86
namespace avx2 {
extern const litspec::Kernels kernels;
}
namespace avx512 {
extern const litspec::Kernels kernels;
}
#endif

namespace {

using at::Tensor;

struct InstructionSet {
  const char* name;
  bool is_here;
  const litspec::Kernels* kernels;
};

const std::vector<InstructionSet>& instruction_sets() {
  static const std::vector<InstructionSet> all = {
#ifdef LITSPEC_X86
      {"avx512",
       __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512dq"),
       &avx512::kernels},
      {"avx2", __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"), &avx2::kernels},
#endif
      {"portable", true, &portable::kernels},
  };
  return all;
}

const litspec::Kernels& find(const std::string& name) {
  for (const InstructionSet& set : instruction_sets())
    if (set.is_here && (name.empty() || name == set.name)) return *set.kernels;
  TORCH_CHECK(false, "instruction set '", name, "' is not one of this processor's");
}

std::vector<std::string> names() {
  std::vector<std::string> here;
  for (const InstructionSet& set : instruction_sets())
    if (set.is_here) here.emplace_back(set.name);
  return here;
}

// Scales the activations of one token for the format, and sums its groups.
void prepare(const float* x, int64_t num_groups, int bytes, float* scaled, float* sums) {
  float factor[8];
  for (int j = 0; j < 8; ++j) factor[j] = litspec::scale_of(bytes, j);
  for (int64_t g = 0; g < num_groups; ++g, x += litspec::GROUP, scaled += litspec::GROUP) {
    float sum = 0.0f;
    for (int i = 0; i < litspec::GROUP; ++i) {
      sum += x[i];
      scaled[i] = x[i] * factor[i % 8];
    }
    sums[g] = sum;
  }
}

Tensor packed_linear(const Tensor& x, const Tensor& weight, const std::string& isa) {
  TORCH_CHECK(x.dim() == 2 && x.scalar_type() == at::kFloat && x.is_contiguous(), "x must be float32 (tokens, in)");
  TORCH_CHECK(weight.dim() == 3 && weight.scalar_type() == at::kByte && weight.is_contiguous(), "weight is not packed");
  const int64_t num_tokens = x.size(0), num_groups = weight.size(1), num_blocks = weight.size(0);
  const int64_t out = num_blocks * litspec::BLOCK_ROWS, in = num_groups * litspec::GROUP;
  const int bytes = int(weight.size(2));
  TORCH_CHECK(litspec::is_known(bytes), "unknown packed format");
  TORCH_CHECK(x.size(1) == in, "x has ", x.size(1), " inputs, the weight ", in);
  const litspec::Kernels& kernels = find(isa);
  Tensor scaled = at::empty({num_tokens, in}, x.options()), sums = at::empty({num_tokens, num_groups}, x.options());
  Tensor y = at::empty({num_tokens, out}, x.options());
  const float* from = x.const_data_ptr<float>();
  float* to = scaled.mutable_data_ptr<float>();
  float* sums_to = sums.mutable_data_ptr<float>();
  at::parallel_for(0, num_tokens, 32, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) prepare(from + t * in, num_groups, bytes, to + t * in, sums_to + t * num_groups);
  });
  const litspec::Activations activations{to, sums_to, num_tokens, num_groups};
  const uint8_t* packed = weight.const_data_ptr<uint8_t>();
  float* result = y.mutable_data_ptr<float>();
  const int64_t grain = std::max<int64_t>(4, 65536 / (litspec::BLOCK_ROWS * in * std::max<int64_t>(1, num_tokens)));
  at::parallel_for(0, num_blocks, grain, [&](int64_t begin, int64_t end) {
    kernels.linear_blocks(packed, bytes, begin, end, activations, result, out);
  });
  return y;
}

void check_floats(const Tensor& t, const char* name) {
  TORCH_CHECK(t.scalar_type() == at::kFloat && t.is_contiguous(), name, " must be float32 and contiguous");
}

const float* floats(const Tensor& t) { return t.const_data_ptr<float>(); }

// Work for one thread at least: so many units that they do about this many multiplications.
int64_t grain_for(int64_t work_of_unit) { return std::max<int64_t>(1, 32768 / std::max<int64_t>(1, work_of_unit)); }

// Writes keys and values (rows, T, groups, D) at their positions, then attends.
Tensor cached_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& k_cache, const Tensor& v_cache,
                        const Tensor& slots, const Tensor& positions, double scale, const std::string& isa) {
  for (const Tensor* t : {&q, &k, &v, &k_cache, &v_cache}) check_floats(*t, "queries, keys, values and caches");
  TORCH_CHECK(q.dim() == 4 && k.dim() == 4 && v.sizes() == k.sizes() && k_cache.dim() == 4, "wrong dimensions");
  TORCH_CHECK(v_cache.sizes() == k_cache.sizes() && k.size(2) == k_cache.size(1) && k.size(3) == k_cache.size(3),
              "keys and cache differ");
  const int64_t B = q.size(0), T = q.size(1), H = q.size(2), D = q.size(3), K = k.size(2), M = k_cache.size(2);
  TORCH_CHECK(k.size(0) == B && k.size(1) == T && k.size(3) == D && H % K == 0, "queries and keys differ");
  TORCH_CHECK(slots.scalar_type() == at::kLong && slots.is_contiguous() && slots.numel() == B, "slots must be int64 (B)");
  TORCH_CHECK(positions.scalar_type() == at::kLong && positions.is_contiguous() && positions.numel() == B * T,
              "positions must be int64 (B, T)");
  const litspec::Kernels& kernels = find(isa);
  TORCH_CHECK(D % kernels.lanes == 0 && D <= 256, "head size ", D, " has no kernel");
  const int64_t* slot = slots.const_data_ptr<int64_t>();
  const int64_t* position = positions.const_data_ptr<int64_t>();
  float* keys = k_cache.mutable_data_ptr<float>();
  float* values = v_cache.mutable_data_ptr<float>();
  const float *new_keys = floats(k), *new_values = floats(v);
  int64_t num_keys = 0;
  for (int64_t b = 0; b < B; ++b) {
    TORCH_CHECK_INDEX(slot[b] >= 0 && slot[b] < k_cache.size(0), "slot ", slot[b], " of ", k_cache.size(0));
    for (int64_t t = 0; t < T; ++t) {
      const int64_t at = position[b * T + t];
      TORCH_CHECK_INDEX(at >= 0 && at < M, "position ", at, " of ", M);
      num_keys += at + 1;
      for (int64_t g = 0; g < K; ++g) {
        const int64_t from = ((b * T + t) * K + g) * D, to = ((slot[b] * K + g) * M + at) * D;
        std::copy_n(new_keys + from, D, keys + to);
        std::copy_n(new_values + from, D, values + to);
      }
    }
  }
  Tensor out = at::empty_like(q);
  const litspec::Attention attention{floats(q), keys, values, slot,  position, out.mutable_data_ptr<float>(),
                                     T,         K,    H / K,  D,     M,        float(scale)};
  const int64_t units = B * T * K;
  at::parallel_for(0, units, grain_for(units ? num_keys * H * D / units : 1), [&](int64_t begin, int64_t end) {
    kernels.attention_units(attention, begin, end);
  });
  return out;
}

Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps, const std::string& isa) {
  check_floats(x, "x");
  check_floats(weight, "weight");
  TORCH_CHECK(x.dim() > 0 && weight.numel() == x.size(-1), "x and weight differ");
  const litspec::Kernels& kernels = find(isa);
  Tensor y = at::empty_like(x);
  const int64_t size = x.size(-1), rows = size ? x.numel() / size : 0;
  float* to = y.mutable_data_ptr<float>();
  at::parallel_for(0, rows, grain_for(size), [&](int64_t begin, int64_t end) {
    kernels.norm_rows(floats(x), floats(weight), float(eps), size, to, begin, end);
  });
  return y;
}

Tensor silu_mul(const Tensor& gate, const Tensor& up, const std::string& isa) {
  check_floats(gate, "gate");
  check_floats(up, "up");
  TORCH_CHECK(gate.sizes() == up.sizes(), "gate and up differ");
  const litspec::Kernels& kernels = find(isa);
  Tensor y = at::empty_like(gate);
  float* to = y.mutable_data_ptr<float>();
  at::parallel_for(0, gate.numel(), 8192, [&](int64_t begin, int64_t end) {
    kernels.silu_mul_range(floats(gate), floats(up), to, begin, end);
  });
  return y;
}

Tensor apply_rope(const Tensor& x, const Tensor& cos, const Tensor& sin, const std::string& isa) {
  for (const Tensor* t : {&x, &cos, &sin}) check_floats(*t, "x, cos and sin");
  TORCH_CHECK(x.dim() == 4 && cos.sizes() == sin.sizes() && cos.numel() == x.size(0) * x.size(1) * x.size(3),
              "x and cos differ");
  const litspec::Kernels& kernels = find(isa);
  TORCH_CHECK(x.size(3) % (2 * kernels.lanes) == 0, "head size ", x.size(3), " has no kernel");
  Tensor y = at::empty_like(x);
  float* to = y.mutable_data_ptr<float>();
  const int64_t heads = x.size(2), size = x.size(3);
  at::parallel_for(0, x.size(0) * x.size(1), grain_for(4 * heads * size), [&](int64_t begin, int64_t end) {
    kernels.rope_tokens(floats(x), floats(cos), floats(sin), heads, size, to, begin, end);
  });
  return y;
}

// Draws a token of the whole vocabulary for every row and position; logits (rows, T, vocabulary).
Tensor draw_token(const Tensor& logits, const Tensor& temperature, const Tensor& floor, const Tensor& seeds,
                  const Tensor& positions) {
  check_floats(logits, "logits");
  TORCH_CHECK(logits.dim() == 3, "logits must be (rows, T, vocabulary)");
  const int64_t B = logits.size(0), T = logits.size(1), V = logits.size(2);
  for (const Tensor* t : {&temperature, &floor})
    TORCH_CHECK(t->scalar_type() == at::kDouble && t->is_contiguous() && t->numel() == B, "parameters must be float64");
  TORCH_CHECK(seeds.scalar_type() == at::kLong && seeds.is_contiguous() && seeds.numel() == B, "seeds must be int64");
  TORCH_CHECK(positions.scalar_type() == at::kLong && positions.is_contiguous() && positions.numel() == B * T,
              "positions must be int64 (rows, T)");
  Tensor tokens = at::empty({B, T}, seeds.options());
  int64_t* to = tokens.mutable_data_ptr<int64_t>();
  at::parallel_for(0, B * T, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t b = i / T;
      to[i] = litspec::draw(floats(logits) + i * V, V, temperature.const_data_ptr<double>()[b],
                            floor.const_data_ptr<double>()[b], seeds.const_data_ptr<int64_t>()[b],
                            positions.const_data_ptr<int64_t>()[i]);
    }
  });
  return tokens;
}

}  // namespace

TORCH_LIBRARY(litspec, library) {
  library.def("packed_linear(Tensor x, Tensor weight, str isa) -> Tensor");
  library.def(
      "cached_attention(Tensor q, Tensor k, Tensor v, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor slots, "
      "Tensor positions, float scale, str isa) -> Tensor");
  library.def("rms_norm(Tensor x, Tensor weight, float eps, str isa) -> Tensor");
  library.def("silu_mul(Tensor gate, Tensor up, str isa) -> Tensor");
  library.def("apply_rope(Tensor x, Tensor cos, Tensor sin, str isa) -> Tensor");
  library.def("draw_token(Tensor logits, Tensor temperature, Tensor floor, Tensor seeds, Tensor positions) -> Tensor");
  library.def("instruction_sets() -> str[]", names);
}

TORCH_LIBRARY_IMPL(litspec, CPU, library) {
  library.impl("packed_linear", packed_linear);
  library.impl("cached_attention", cached_attention);
  library.impl("rms_norm", rms_norm);
  library.impl("silu_mul", silu_mul);
  library.impl("apply_rope", apply_rope);
  library.impl("draw_token", draw_token);
}
