// Where images become coarse they are cut into fewer bands (see bands.h): what was made of `ratio` groups of samples, one share of it each,
// is then a value of all their samples. The layer before such a cut writes its share straight to where that value lies: what was a
// band is a part of one there, and the lanes of one part lie side by side.
//
//   8 lanes, ratio 2         made      row r          band  0  1  2  3  4  5  6  7
//                            written   row r          band  0  2  4  6  in lanes 4 * share ...
//                                      row rows + r         1  3  5  7
#pragma once
#include "simd.h"

namespace sparseopt {

struct Recut {
  int ratio = 1;     // 1: bands stay as they are
  int share = 0;     // which
  int64_t part = 0;  // floats from one part of a band to the next

  // Where a share begins in a vector.
  template <int L>
  int64_t first_lane() const {
    return share * (L / ratio);
  }
};

template <int L, int Ratio, int Part = 0>
SPARSEOPT_INLINE void store_parts(float* to, typename Simd<L>::Vec v, int64_t part) {
  if constexpr (Part < Ratio) {
    Simd<L>::template store_every<Ratio, Part>(to + Part * part, v);
    store_parts<L, Ratio, Part + 1>(to, v, part);
  }
}

// `columns` vectors side by side, in each of so many rows that are `from_row` and `to_row` floats apart.
template <int L, int Ratio = 2>
void store_recut(const Recut& recut, const float* from, int64_t from_row, float* to, int64_t to_row, int rows, int columns) {
  if constexpr (Ratio <= L) {
    if (recut.ratio != Ratio) return store_recut<L, 2 * Ratio>(recut, from, from_row, to, to_row, rows, columns);
    for (int i = 0; i < rows; ++i)
      for (int j = 0; j < columns; ++j)
        store_parts<L, Ratio>(to + i * to_row + j * L, Simd<L>::load(from + i * from_row + j * L), recut.part);
  }
}

}  // namespace sparseopt
