// The kernels as torch operators. Threads share the output rows of a call, never the inputs of a row.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "packed_linear.h"

#define LITSPEC_DECLARE(isa)                                                                              \
  namespace isa {                                                                                         \
  void linear_blocks(const uint8_t*, int, int64_t, int64_t, const litspec::Activations&, float*, int64_t); \
  }
LITSPEC_DECLARE(portable)
#ifdef LITSPEC_X86
LITSPEC_DECLARE(avx2)
LITSPEC_DECLARE(avx512)
#endif

namespace {

using at::Tensor;

struct InstructionSet {
  const char* name;
  bool is_here;
  litspec::LinearBlocks linear_blocks;
};

const std::vector<InstructionSet>& instruction_sets() {
  static const std::vector<InstructionSet> all = {
#ifdef LITSPEC_X86
      {"avx512", __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw"), avx512::linear_blocks},
      {"avx2", __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"), avx2::linear_blocks},
#endif
      {"portable", true, portable::linear_blocks},
  };
  return all;
}

const InstructionSet& find(const std::string& name) {
  for (const InstructionSet& set : instruction_sets())
    if (set.is_here && (name.empty() || name == set.name)) return set;
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
  TORCH_CHECK(bytes == litspec::Q4_0 || bytes == litspec::Q4_1 || bytes == litspec::Q8_0, "unknown packed format");
  TORCH_CHECK(x.size(1) == in, "x has ", x.size(1), " inputs, the weight ", in);
  const litspec::LinearBlocks linear_blocks = find(isa).linear_blocks;
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
    linear_blocks(packed, bytes, begin, end, activations, result, out);
  });
  return y;
}

}  // namespace

TORCH_LIBRARY(litspec, library) {
  library.def("packed_linear(Tensor x, Tensor weight, str isa) -> Tensor");
  library.def("instruction_sets() -> str[]", names);
}

TORCH_LIBRARY_IMPL(litspec, CPU, library) { library.impl("packed_linear", packed_linear); }
