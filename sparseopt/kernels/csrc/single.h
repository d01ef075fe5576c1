// A linear layer of a single sample. There are no vectors of samples: a vector is the sums of four outputs, each in its order: bias,
// weights in the order of memory. What limits it is the number of loads: the weights of the four lie interleaved, one load for all of
// them, and outputs are grouped by their number of weights, so that little is left over in a group.
#pragma once
#include <algorithm>
#include <numeric>

#include "lists.h"
#include "simd.h"

namespace sparseopt {

// As the vectors' multiply-adds are: fused where the machine can. Said outright, because a compiler that vectorises a sum of products
// would round them first.
SPARSEOPT_INLINE float multiply_add(float a, float b, float sum) {
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
  return __builtin_fmaf(a, b, sum);
#else
  return a * b + sum;
#endif
}

class SingleLinear {
 public:
  // Without outputs it is an empty one.
  SingleLinear(const Weights& w, const float* bias) {
    if (!w.out) return;
    const Lists lists = make_lists(w, int(w.in), [](int64_t in, int64_t, int64_t) { return in; });
    const auto length = [&](int o) { return o < 0 ? 0 : lists.start[o + 1] - lists.start[o]; };
    // From the shortest list to the longest; what the first group lacks are outputs without a number and without weights.
    const int missing = int((kTogether - w.out % kTogether) % kTogether);
    output_.assign(w.out + missing, -1);
    std::iota(output_.begin() + missing, output_.end(), 0);
    std::stable_sort(output_.begin() + missing, output_.end(), [&](int a, int b) { return length(a) < length(b); });
    for (const int o : output_) bias_.push_back(o < 0 ? 0.f : bias[o]);
    offset_.reserve(w.size), value_.reserve(w.size);
    const auto take = [&](int k) { offset_.push_back(lists.offset[k]), value_.push_back(lists.value[k]); };
    for (size_t first = 0; first < output_.size(); first += kTogether) {
      const int* group = &output_[first];
      const int common = length(group[0]);
      common_.push_back(common), start_.push_back(int(value_.size()));
      for (int k = 0; k < common; ++k)
        for (int i = 0; i < kTogether; ++i) take(lists.start[group[i]] + k);
      for (int i = 0; i < kTogether; ++i) {
        for (int k = common; k < length(group[i]); ++k) take(lists.start[group[i]] + k);
        rest_.push_back(length(group[i]) - common);
      }
    }
  }

  int groups() const { return int(common_.size()); }

  // The outputs of groups from first to last - 1.
  void run(int first, int last, bool relu, const float* x, float* y) const {
    for (int g = first; g < last; ++g) {
      const int *output = &output_[g * kTogether], *rest = &rest_[g * kTogether];
      const int* at = offset_.data() + start_[g];
      const float* weight = value_.data() + start_[g];
      using V = Simd<kTogether>;
      V::Vec sums = V::load_unaligned(&bias_[g * kTogether]);
      for (int k = 0; k < common_[g]; ++k, at += kTogether, weight += kTogether) {
        const V::Vec read{x[at[0]], x[at[1]], x[at[2]], x[at[3]]};
        sums += V::load_unaligned(weight) * read;
      }
      for (int i = 0; i < kTogether; ++i) {
        float sum = sums[i];
        for (int k = 0; k < rest[i]; ++k) sum = multiply_add(*weight++, x[*at++], sum);
        if (output[i] >= 0) y[output[i]] = relu && 0.f > sum ? 0.f : sum;
      }
    }
  }

 private:
  static constexpr int kTogether = 4;
  std::vector<int> output_, rest_;   // of every list: whose it is, and how many weights it has beyond those its group has in common
  std::vector<int> start_, common_;  // of every group
  std::vector<int> offset_;
  std::vector<float> value_, bias_;
};

}  // namespace sparseopt
