// The few vector operations that kernels are written in, for one instruction set, chosen by LITSPEC_ISA_*.
//
// Every lane is one output row, so that no operation ever adds across lanes: a result depends on the order in which the
// kernel adds and on nothing else. AVX-512 has 16 lanes, the others 8.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(LITSPEC_ISA_AVX512) || defined(LITSPEC_ISA_AVX2)
#include <immintrin.h>
#endif

namespace LITSPEC_ISA {

#if defined(LITSPEC_ISA_AVX512)

constexpr int LANES = 16;
constexpr int ACCUMULATORS = 24;
using Floats = __m512;
using Ints = __m512i;

inline Floats zero() { return _mm512_setzero_ps(); }
inline Floats spread(float x) { return _mm512_set1_ps(x); }
inline Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
inline Floats load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, Floats a) { _mm512_storeu_ps(p, a); }
inline Ints load_ints(const uint8_t* p) { return _mm512_loadu_si512(p); }
inline Floats masked(Ints a, int mask) { return _mm512_cvtepi32_ps(_mm512_and_si512(a, _mm512_set1_epi32(mask))); }
inline Floats top_nibble(Ints a) { return _mm512_cvtepi32_ps(_mm512_srli_epi32(a, 28)); }
inline Floats load_int8(const uint8_t* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
inline Floats load_half(const uint8_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}

#elif defined(LITSPEC_ISA_AVX2)

constexpr int LANES = 8;
constexpr int ACCUMULATORS = 12;
using Floats = __m256;
using Ints = __m256i;

inline Floats zero() { return _mm256_setzero_ps(); }
inline Floats spread(float x) { return _mm256_set1_ps(x); }
inline Floats fma(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
inline Floats load(const float* p) { return _mm256_loadu_ps(p); }
inline void store(float* p, Floats a) { _mm256_storeu_ps(p, a); }
inline Ints load_ints(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
inline Floats masked(Ints a, int mask) { return _mm256_cvtepi32_ps(_mm256_and_si256(a, _mm256_set1_epi32(mask))); }
inline Floats top_nibble(Ints a) { return _mm256_cvtepi32_ps(_mm256_srli_epi32(a, 28)); }
inline Floats load_int8(const uint8_t* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
inline Floats load_half(const uint8_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

#else

constexpr int LANES = 8;
constexpr int ACCUMULATORS = 8;
struct Floats {
  float at[LANES];
};
struct Ints {
  uint32_t at[LANES];
};

inline Floats zero() { return Floats{}; }
inline Floats spread(float x) {
  Floats y;
  for (int i = 0; i < LANES; ++i) y.at[i] = x;
  return y;
}
inline Floats fma(Floats a, Floats b, Floats c) {  // rounded twice: few machines without AVX2 have a fast fused one
  for (int i = 0; i < LANES; ++i) c.at[i] += a.at[i] * b.at[i];
  return c;
}
inline Floats load(const float* p) {
  Floats y;
  std::memcpy(&y, p, sizeof y);
  return y;
}
inline void store(float* p, Floats a) { std::memcpy(p, &a, sizeof a); }
inline Ints load_ints(const uint8_t* p) {
  Ints y;
  std::memcpy(&y, p, sizeof y);
  return y;
}
inline Floats masked(Ints a, int mask) {
  Floats y;
  for (int i = 0; i < LANES; ++i) y.at[i] = static_cast<float>(static_cast<int32_t>(a.at[i] & uint32_t(mask)));
  return y;
}
inline Floats top_nibble(Ints a) {
  Floats y;
  for (int i = 0; i < LANES; ++i) y.at[i] = static_cast<float>(static_cast<int32_t>(a.at[i] >> 28));
  return y;
}
inline Floats load_int8(const uint8_t* p) {
  Floats y;
  for (int i = 0; i < LANES; ++i) y.at[i] = static_cast<float>(static_cast<int8_t>(p[i]));
  return y;
}
inline float half_to_float(uint16_t half) {
  const uint32_t sign = uint32_t(half & 0x8000u) << 16, magnitude = half & 0x7fffu;
  uint32_t bits;
  float y;
  if (magnitude >= 0x7c00u) {  // infinite, or not a number
    bits = 0x7f800000u | (magnitude & 0x3ffu) << 13;
  } else if (magnitude >= 0x400u) {
    bits = (magnitude << 13) + (112u << 23);
  } else {  // below the normal ones: a multiple of 2^-24
    y = static_cast<float>(magnitude) * 0x1p-24f;
    std::memcpy(&bits, &y, sizeof bits);
  }
  bits |= sign;
  std::memcpy(&y, &bits, sizeof y);
  return y;
}
inline Floats load_half(const uint8_t* p) {
  Floats y;
  for (int i = 0; i < LANES; ++i) {
    uint16_t half;
    std::memcpy(&half, p + 2 * i, sizeof half);
    y.at[i] = half_to_float(half);
  }
  return y;
}

#endif

inline Floats load_single(const uint8_t* p) { return load(reinterpret_cast<const float*>(p)); }

}  // namespace LITSPEC_ISA
