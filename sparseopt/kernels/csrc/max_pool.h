// Max pooling of images [plane][row][column], which torch computes at a fraction of the memory's speed: the maximum of the rows of a
// window first, in whole vectors, then of its columns. What is not a number stays so.
#pragma once
#include <limits>

#include "parallel.h"
#include "scratch.h"
#include "vec.h"

namespace sparseopt {

struct Pool {
  int64_t planes, height, width, out_height, out_width;
  int64_t kernel_rows, kernel_columns, stride_rows, stride_columns, padding_rows, padding_columns;
};

SPARSEOPT_INLINE float larger(float a, float b) { return a >= b || a != a ? a : b; }

inline void max_pool(const Pool& pool, const float* x, float* y) {
  parallel_for(0, pool.planes, 1, [&](int64_t begin, int64_t end) {
    const int64_t padded = pool.width + 2 * pool.padding_columns;
    float* rows = scratch<Use::input_rows>().get<float>(size_t(padded));
    for (int64_t plane = begin; plane < end; ++plane)
      for (int64_t h = 0; h < pool.out_height; ++h) {
        std::fill_n(rows, padded, -std::numeric_limits<float>::infinity());
        float* row = rows + pool.padding_columns;
        const int64_t top = h * pool.stride_rows - pool.padding_rows;
        for (int64_t r = std::max<int64_t>(0, top); r < std::min(pool.height, top + pool.kernel_rows); ++r) {
          const float* from = x + (plane * pool.height + r) * pool.width;
          for (int64_t w = 0; w < pool.width; ++w) row[w] = larger(row[w], from[w]);
        }
        float* to = y + (plane * pool.out_height + h) * pool.out_width;
        for (int64_t w = 0; w < pool.out_width; ++w) {
          const float* from = rows + w * pool.stride_columns;
          float most = from[0];
          for (int64_t c = 1; c < pool.kernel_columns; ++c) most = larger(most, from[c]);
          to[w] = most;
        }
      }
  });
}

}  // namespace sparseopt
