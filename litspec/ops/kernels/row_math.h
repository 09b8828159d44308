// Sums, products and exponentials of lanes along a row, for one instruction set.
#pragma once

#include <cmath>

#include "lanes.h"

namespace LITSPEC_ISA {

#if defined(LITSPEC_ISA_AVX512)

inline Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
inline Floats mul(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
inline Floats div(Floats a, Floats b) { return _mm512_div_ps(a, b); }
inline Floats max(Floats a, Floats b) { return _mm512_max_ps(a, b); }
inline Floats min(Floats a, Floats b) { return _mm512_min_ps(a, b); }
inline Floats round_off(Floats a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline Floats power_of_two(Floats n) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtps_epi32(add(n, spread(127.0f))), 23));
}

#elif defined(LITSPEC_ISA_AVX2)

inline Floats add(Floats a, Floats b) { return _mm256_add_ps(a, b); }
inline Floats mul(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
inline Floats div(Floats a, Floats b) { return _mm256_div_ps(a, b); }
inline Floats max(Floats a, Floats b) { return _mm256_max_ps(a, b); }
inline Floats min(Floats a, Floats b) { return _mm256_min_ps(a, b); }
inline Floats round_off(Floats a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline Floats power_of_two(Floats n) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtps_epi32(add(n, spread(127.0f))), 23));
}

#else

#define LITSPEC_EACH(name, expression)          \
  inline Floats name(Floats a, Floats b) {      \
    for (int i = 0; i < LANES; ++i) {           \
      const float x = a.at[i], y = b.at[i];     \
      a.at[i] = expression;                     \
    }                                           \
    return a;                                   \
  }
LITSPEC_EACH(add, x + y)
LITSPEC_EACH(mul, x* y)
LITSPEC_EACH(div, x / y)
LITSPEC_EACH(max, x > y ? x : y)
LITSPEC_EACH(min, x < y ? x : y)
#undef LITSPEC_EACH
inline Floats round_off(Floats a) {
  for (int i = 0; i < LANES; ++i) a.at[i] = std::nearbyint(a.at[i]);
  return a;
}
inline Floats power_of_two(Floats n) {
  for (int i = 0; i < LANES; ++i) {
    const uint32_t bits = uint32_t(int32_t(n.at[i]) + 127) << 23;
    std::memcpy(&n.at[i], &bits, sizeof bits);
  }
  return n;
}

#endif

// The sum of all lanes, in the order of halves.
inline float sum(Floats a) {
  float at[LANES];
  store(at, a);
  for (int half = LANES / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) at[i] += at[i + half];
  return at[0];
}

// The sum of each of LANES vectors, one a lane; what is not a number stays in its own.
inline Floats sums(const Floats* a) {
#if defined(LITSPEC_ISA_AVX2)
  const Floats ab = _mm256_hadd_ps(_mm256_hadd_ps(a[0], a[1]), _mm256_hadd_ps(a[2], a[3]));
  const Floats cd = _mm256_hadd_ps(_mm256_hadd_ps(a[4], a[5]), _mm256_hadd_ps(a[6], a[7]));
  return add(_mm256_permute2f128_ps(ab, cd, 0x20), _mm256_permute2f128_ps(ab, cd, 0x31));
#else
  float at[LANES];
  for (int i = 0; i < LANES; ++i) at[i] = sum(a[i]);
  return load(at);
#endif
}

// e to the power of x, within 2 units in the last place; below -87 it is 0, and above 88 no larger than there.
inline Floats exponential(Floats x) {
  x = max(spread(-104.0f), min(spread(88.0f), x));  // in this order what is not a number stays so
  const Floats n = max(spread(-127.0f), round_off(mul(x, spread(1.44269504f))));
  Floats r = fma(n, spread(-0.693359375f), x);
  r = fma(n, spread(2.12194440e-4f), r);
  Floats p = spread(1.9875691500e-4f);  // the minimax polynomial of Cephes' expf (Moshier)
  p = fma(p, r, spread(1.3981999507e-3f));
  p = fma(p, r, spread(8.3334519073e-3f));
  p = fma(p, r, spread(4.1665795894e-2f));
  p = fma(p, r, spread(1.6666665459e-1f));
  p = fma(p, r, spread(5.0000001201e-1f));
  p = add(fma(mul(p, r), r, r), spread(1.0f));
  return mul(p, power_of_two(n));
}

}  // namespace LITSPEC_ISA
