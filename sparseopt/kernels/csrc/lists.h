// The weights of frozen layers as their kernels walk them.
#pragma once
#include <cstdint>
#include <stdexcept>
#include <vector>

namespace sparseopt {

// The entries of a weight [out][in][height][width] that are not zero, in the order of memory.
struct Weights {
  const int* position;
  const float* value;
  int64_t size;
  int64_t out, in, height, width;
};

// A list a channel and block.
struct Lists {
  std::vector<int> start, offset;
  std::vector<float> value;
};

// Lists by (block, output channel); f(in, row, column) is where a weight reads. The order within a list is that of memory.
template <class F>
Lists make_lists(const Weights& w, int block, const F& f) {
  const int64_t blocks = (w.in + block - 1) / block, window = w.height * w.width;
  Lists lists;
  lists.start.assign(blocks * w.out + 1, 0);
  const auto list = [&](int64_t at) { return at / window % w.in / block * w.out + at / (window * w.in); };
  for (int64_t k = 0; k < w.size; ++k) ++lists.start[list(w.position[k]) + 1];
  for (size_t i = 1; i < lists.start.size(); ++i) lists.start[i] += lists.start[i - 1];
  std::vector<int> next(lists.start.begin(), lists.start.end() - 1);
  lists.offset.resize(w.size), lists.value.resize(w.size);
  for (int64_t k = 0; k < w.size; ++k) {
    const int64_t at = w.position[k];
    const int to = next[list(at)]++;
    const int64_t offset = f(at / window % w.in, at % window / w.width, at % w.width);
    if (offset != int(offset)) throw std::length_error("images of this size take offsets that the kernels have no room for");
    lists.offset[to] = int(offset);
    lists.value[to] = w.value[k];
  }
  return lists;
}

}  // namespace sparseopt
