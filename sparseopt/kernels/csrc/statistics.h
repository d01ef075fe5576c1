// Sums over samples and positions, gathered where the values are still in registers.
//
// A kernel adds up one tile in single precision and hands over the tile's sums; everything beyond is double precision: lane by
// lane for the block a thread is working on, then the valid lanes for the thread. The threads' totals are added up in their order:
// the same thread count gives the same bits.
#pragma once
#include <vector>

#include "parallel.h"
#include "scratch.h"
#include "vec.h"

namespace sparseopt {

// Two sums a channel, for the block a thread is working on.
class BlockSums {
 public:
  explicit BlockSums(int channels) : size_(size_t(channels) * 2 * kLanes) {
    block_ = scratch<Use::block_sums>().get<double>(size_);
    std::fill_n(block_, size_, 0.0);
  }

  SPARSEOPT_INLINE void add(int channel, Vec first, Vec second) {
    double* sums = block_ + channel * 2 * kLanes;
    add_to(sums, first);
    add_to(sums + kLanes, second);
  }

  // The sums of the valid lanes, added to totals [channel][2].
  void end_block(int valid, double* totals) {
    for (size_t i = 0; i < size_ / kLanes; ++i)
      for (int lane = 0; lane < valid; ++lane) totals[i] += block_[i * kLanes + lane];
    std::fill_n(block_, size_, 0.0);
  }

 private:
  size_t size_;
  double* block_;
};

class Statistics {
 public:
  Statistics(int channels, int threads) : channels_(channels), totals_(size_t(threads) * channels * 2, 0.0) {}

  double* of_thread() { return totals_.data() + size_t(thread_num()) * channels_ * 2; }

  // out [2][channel]
  void reduce(double* out) const {
    std::fill_n(out, size_t(channels_) * 2, 0.0);
    for (size_t i = 0; i < totals_.size(); ++i) {
      const size_t entry = i % (size_t(channels_) * 2);
      out[entry % 2 * channels_ + entry / 2] += totals_[i];
    }
  }

 private:
  int channels_;
  std::vector<double> totals_;
};

}  // namespace sparseopt
