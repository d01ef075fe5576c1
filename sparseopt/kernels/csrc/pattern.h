// The active weights of a layer, as the kernels walk them: one list a channel. `offset` is where a weight reads, relative to
// the position being computed; `position` is where it lives in the dense weight. Shape, padding and dilation are all inside the
// offsets, so one kernel serves every kernel size.
#pragma once
#include <ATen/core/Tensor.h>

#include "scratch.h"
#include "vec.h"

namespace sparseopt {

struct Pattern {
  const int* start;  // list of channel c: start[c] .. start[c + 1] - 1
  const int* offset;
  const int* position;
  const float* value;  // gathered from the dense weight at every call
  int64_t size;
};

inline Pattern gather_pattern(const at::Tensor& weight, const at::Tensor& start, const at::Tensor& offset,
                              const at::Tensor& position) {
  TORCH_CHECK(weight.is_contiguous() && weight.scalar_type() == at::kFloat, "weight must be a contiguous float tensor");
  Pattern p{start.data_ptr<int>(), offset.data_ptr<int>(), position.data_ptr<int>(), nullptr, position.numel()};
  const float* dense = weight.data_ptr<float>();
  float* value = scratch<Use::weights>().get<float>(p.size + 1);
  for (int64_t k = 0; k < p.size; ++k) value[k] = dense[p.position[k]];
  p.value = value;
  return p;
}

}  // namespace sparseopt
