// The active weights of a layer, as the kernels walk them: one list a channel. `offset` is where a weight reads, relative to
// the position being computed. Shape and padding are all inside the offsets, so one kernel serves every kernel size.
//
// The dense weight is read and its gradient written once a pass, in the order of memory; between the two, the values travel
// packed in forward order. The backward pass walks them in another order, given by `order`.
#pragma once
#include <ATen/core/Tensor.h>

#include "scratch.h"
#include "vec.h"

namespace sparseopt {

struct Pattern {
  const int* start;  // list of channel c: start[c] .. start[c + 1] - 1
  const int* offset;
  const float* value;
  int64_t size;
};

inline Pattern forward_pattern(const at::Tensor& start, const at::Tensor& offset, const at::Tensor& values) {
  return {start.data_ptr<int>(), offset.data_ptr<int>(), values.data_ptr<float>(), values.numel()};
}

inline Pattern backward_pattern(const at::Tensor& start, const at::Tensor& offset, const at::Tensor& order,
                                const at::Tensor& values) {
  const int* from = order.data_ptr<int>();
  const float* packed = values.data_ptr<float>();
  float* value = scratch<Use::weights>().get<float>(values.numel());
  for (int64_t k = 0; k < values.numel(); ++k) value[k] = packed[from[k]];
  return {start.data_ptr<int>(), offset.data_ptr<int>(), value, values.numel()};
}

inline void gather(const float* dense, const int* position, int64_t size, float* values) {
  for (int64_t k = 0; k < size; ++k) values[k] = dense[position[k]];
}

inline void scatter(const float* values, const int* position, int64_t size, float* dense) {
  for (int64_t k = 0; k < size; ++k) dense[position[k]] = values[k];
}

}  // namespace sparseopt
