// Vectors of any number of lanes. Inference is compiled for 4, 8 and 16 of them in every library: which is fastest depends on the
// machine and on the images, and is measured. More lanes than a register has are several registers.
#pragma once
#include <bit>
#include <cstdint>
#include <cstring>
#include <utility>

#include "vec.h"

#if defined(__clang__) || __GNUC__ >= 12  // older ones have none for vectors whose type is a template's
#define SPARSEOPT_SHUFFLES
#endif

namespace sparseopt {

template <int L>
struct Simd {
  typedef float Vec __attribute__((vector_size(L * sizeof(float))));

  static SPARSEOPT_INLINE Vec load(const float* p) { return *reinterpret_cast<const Vec*>(p); }
  static SPARSEOPT_INLINE void store(float* p, Vec v) { *reinterpret_cast<Vec*>(p) = v; }
  static SPARSEOPT_INLINE Vec broadcast(float f) { return f - Vec{}; }
  // Two numbers that lie side by side, by one load.
  struct Two {
    Vec first, second;
  };
  static SPARSEOPT_INLINE Two broadcast_two(const float* p) {
#ifdef SPARSEOPT_SHUFFLES
    typedef double Doubles __attribute__((vector_size(L * sizeof(float))));
    double both;
    __builtin_memcpy(&both, p, sizeof both);
    const Vec in_turn = (Vec)(both - Doubles{});
    return {every_other<0>(in_turn, std::make_integer_sequence<int, L>{}), every_other<1>(in_turn, std::make_integer_sequence<int, L>{})};
#else
    return {broadcast(p[0]), broadcast(p[1])};
#endif
  }
  // As in torch, what is not a number stays so.
  static SPARSEOPT_INLINE Vec relu(Vec v) { return Vec{} > v ? Vec{} : v; }

  static SPARSEOPT_INLINE Vec larger(Vec a, Vec b) { return (a >= b) | (a != a) ? a : b; }

  static SPARSEOPT_INLINE Vec load_unaligned(const float* p) {
    Vec v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
  }
  static SPARSEOPT_INLINE void store_unaligned(float* p, Vec v) { __builtin_memcpy(p, &v, sizeof v); }

  // The lanes First, First + Step, ... side by side.
  template <int Step, int First>
  static SPARSEOPT_INLINE void store_every(float* p, Vec v) {
    gather_lanes<Step, First>(p, v, std::make_integer_sequence<int, L / Step>{});
  }

  // A square of L vectors: afterwards lane n of vector m is what was lane m of vector n.
  static SPARSEOPT_INLINE void transpose(Vec* square) { exchange_bits<1>(square); }

 private:
  template <int Step, int First, int... Lane>
  static SPARSEOPT_INLINE void gather_lanes(float* p, Vec v, std::integer_sequence<int, Lane...>) {
    if constexpr (sizeof...(Lane) == 1) {
      float lanes[L];
      __builtin_memcpy(lanes, &v, sizeof v);
      *p = lanes[First];
    } else {
#ifdef SPARSEOPT_SHUFFLES
      const auto part = __builtin_shufflevector(v, v, (First + Step * Lane)...);
#else
      float lanes[L];
      __builtin_memcpy(lanes, &v, sizeof v);
      const float part[] = {lanes[First + Step * Lane]...};
#endif
      __builtin_memcpy(p, &part, sizeof part);
    }
  }

#ifdef SPARSEOPT_SHUFFLES
  template <int First, int... Lane>
  static SPARSEOPT_INLINE Vec every_other(Vec v, std::integer_sequence<int, Lane...>) {
    return __builtin_shufflevector(v, v, (Lane / 2 * 2 + First)...);
  }
#endif

  template <int... Index>
  static SPARSEOPT_INLINE Vec shuffle(Vec a, Vec b) {
#ifdef SPARSEOPT_SHUFFLES
    return __builtin_shufflevector(a, b, Index...);
#else
    float from[2 * L];
    store_unaligned(from, a), store_unaligned(from + L, b);
    const float lanes[] = {from[Index]...};
    return load_unaligned(lanes);
#endif
  }

  // Lanes whose numbers differ in one bit change places between two vectors.
  template <int Bit, int... Lane>
  static SPARSEOPT_INLINE void exchange(Vec& a, Vec& b, std::integer_sequence<int, Lane...>) {
    const Vec first = shuffle<(Lane & Bit ? L : 0) + (Lane & ~Bit)...>(a, b);
    b = shuffle<(Lane & Bit ? L : 0) + (Lane | Bit)...>(a, b);
    a = first;
  }

  template <int Bit>
  static SPARSEOPT_INLINE void exchange_bits(Vec* square) {
    if constexpr (Bit < L) {
#pragma GCC unroll 16
      for (int n = 0; n < L; ++n)
        if (!(n & Bit)) exchange<Bit>(square[n], square[n + Bit], std::make_integer_sequence<int, L>{});
      exchange_bits<2 * Bit>(square);
    }
  }
};

// The weights of a list, from first to last - 1: f(k, weight, offset). In pairs, for which one load of weights and one of offsets do:
// loads are what such loops wait for. It takes a register more.
template <int L, class F>
SPARSEOPT_INLINE void in_pairs(const float* value, const int* offset, int first, int last, F f) {
  static_assert(std::endian::native == std::endian::little);
  using V = Simd<L>;
  int k = first;
  if ((last - k) % 2) f(k, V::broadcast(value[k]), int64_t(offset[k])), ++k;
  for (; k < last; k += 2) {
    const auto weights = V::broadcast_two(value + k);
    int64_t offsets;  // the first in the lower half
    __builtin_memcpy(&offsets, offset + k, sizeof offsets);
    f(k, weights.first, int64_t(int32_t(offsets))), f(k + 1, weights.second, offsets >> 32);
  }
}

}  // namespace sparseopt
