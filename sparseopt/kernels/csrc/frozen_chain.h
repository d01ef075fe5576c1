// A frozen chain of linear layers. Samples pass through all layers in groups that stay in the cache, a lane a sample:
//
//   [feature][sample]      T vectors of L samples, T 1, 2, 4 or 8
//
// A single sample has no vectors: it is read as it is. Any number of threads may call it at once.
#pragma once
#include "gelu.h"
#include "inference.h"
#include "network.h"

namespace sparseopt {

enum class LinearActivation : int64_t { nothing, relu, gelu };

// activation(weights * x + bias)
struct FrozenLinear {
  Weights weights;
  const float* bias;
  LinearActivation activation;
};

class FrozenChain {
 public:
  virtual ~FrozenChain() = default;
  // Vectors of samples that pass together, at most 8; 0: single samples. block: features whose weights pass together, 0: all.
  virtual void choose(int64_t vectors, int64_t block) = 0;
  virtual void run(int64_t samples, const float* x, float* y) const = 0;
};

template <int L>
class FrozenChainOf : public FrozenChain {
 public:
  FrozenChainOf(int64_t count, const FrozenLinear* layers) : layers_(layers, layers + count) {
    widest_ = layers_[0].weights.in;
    for (const FrozenLinear& each : layers_) widest_ = std::max(widest_, each.weights.out);
    choose(4, 256);
  }

  void choose(int64_t vectors, int64_t block) override {
    vectors_ = int(vectors);
    lists_.clear(), blocks_.clear(), single_.clear();
    for (const FrozenLinear& each : layers_) {
      if (!vectors_) {
        single_.emplace_back(each.weights, each.bias);
        continue;
      }
      const int own = int(block ? std::min(block, each.weights.in) : each.weights.in);
      blocks_.push_back(int((each.weights.in + own - 1) / own));
      lists_.push_back(make_lists(each.weights, own, [](int64_t in, int64_t, int64_t) { return in; }));
    }
  }

  void run(int64_t samples, const float* x, float* y) const override {
    const int64_t group = vectors_ ? vectors_ * L : 1, groups = (samples + group - 1) / group, threads = num_threads();
    const auto run_group = [&](int64_t number, const Member& member, float* memory) {
      const int64_t first = number * group, count = std::min(group, samples - first);
      const float* from = x + first * layers_[0].weights.in;
      float* to = y + first * layers_.back().weights.out;
      if (!vectors_) return single(from, to, member, memory);
      if (vectors_ <= 1 || count <= L) return together<1>(int(count), from, to, member, memory);
      if (vectors_ <= 2 || count <= 2 * L) return together<2>(int(count), from, to, member, memory);
      if (vectors_ <= 4 || count <= 4 * L) return together<4>(int(count), from, to, member, memory);
      return together<8>(int(count), from, to, member, memory);
    };
    if (4 * groups <= 3 * threads) {
      float* memory = scratch<Use::input_gradient>().get<float>(floats());
      for (int64_t number = 0; number < groups; ++number)
        as_team(largest_team(threads), [&](const Member& member) { run_group(number, member, memory); });
    } else {
      parallel_for(0, groups, 1, [&](int64_t begin, int64_t end) {
        float* memory = scratch<Use::input_gradient>().get<float>(floats());
        for (int64_t number = begin; number < end; ++number) run_group(number, Member{}, memory);
      });
    }
  }

 private:
  size_t floats() const { return 2 * size_t(widest_) * std::max(1, vectors_ * L); }

  int largest_team(int64_t threads) const {
    constexpr int64_t kWorth = 20'000;
    int64_t work = 0;
    for (const FrozenLinear& each : layers_) work += each.weights.size * std::max(1, vectors_);
    return int(std::clamp<int64_t>(work / (kWorth * int64_t(layers_.size())), 1, threads));
  }

  // Outputs of one member.
  std::pair<int, int> outputs(const FrozenLinear& layer, const Member& member) const {
    const int64_t out = layer.weights.out;
    return {int(out * member.number / member.of), int(out * (member.number + 1) / member.of)};
  }

  void single(const float* x, float* y, const Member& member, float* memory) const {
    for (size_t i = 0; i < layers_.size(); ++i) {
      float* to = i + 1 < layers_.size() ? memory + i % 2 * widest_ : y;
      const SingleLinear& layer = single_[i];
      const int first = layer.groups() * member.number / member.of, last = layer.groups() * (member.number + 1) / member.of;
      layer.run(first, last, layers_[i].activation == LinearActivation::relu, x, to);
      member.wait();
      if (layers_[i].activation == LinearActivation::gelu) {
        const auto [begin, end] = outputs(layers_[i], member);
        gelu(to + begin, end - begin);
        member.wait();
      }
      x = to;
    }
  }

  template <int T>
  void together(int count, const float* x, float* y, const Member& member, float* memory) const {
    constexpr int kSamples = T * L;
    float *from = memory, *to = memory + widest_ * kSamples;
    if (member.number == 0) enter<T>(x, count, layers_[0].weights.in, from);
    member.wait();
    for (size_t i = 0; i < layers_.size(); ++i) {
      run_layer<T>(i, from, to, member);
      member.wait();
      std::swap(from, to);
    }
    if (member.number == 0) leave<T>(from, count, layers_.back().weights.out, y);
    member.wait();
  }

  template <int T>
  void run_layer(size_t i, const float* x, float* y, const Member& member) const {
    const auto [first, last] = outputs(layers_[i], member);
    Tile t{};
    t.offset = lists_[i].offset.data(), t.value = lists_[i].value.data(), t.bias = layers_[i].bias;
    t.first_channel = first, t.last_channel = last, t.relu = layers_[i].activation == LinearActivation::relu;
    t.x = x, t.y = t.partial = y, t.y_channel = T * L, t.rows = 1, t.columns = T;
    for (int b = 0; b < blocks_[i]; ++b) {
      t.start = lists_[i].start.data() + int64_t(b) * layers_[i].weights.out;
      t.first_block = b == 0, t.last_block = b == blocks_[i] - 1;
      convolve<L, 1, T, 1, T * L>(t);
    }
    if (layers_[i].activation == LinearActivation::gelu) gelu(y + int64_t(first) * T * L, int64_t(last - first) * T * L);
  }

  // x [sample][feature] -> [feature][sample]; samples that fill the last vector are zero.
  template <int T>
  static void enter(const float* x, int count, int64_t features, float* to) {
    using V = Simd<L>;
    for (int j = 0; j < T; ++j) {
      const int valid = std::clamp(count - j * L, 0, L);
      const float* rows = x + int64_t(j) * L * features;
      int64_t f = 0;
      for (; f + L <= features; f += L) {
        typename V::Vec square[L]{};
        for (int lane = 0; lane < valid; ++lane) square[lane] = V::load_unaligned(rows + lane * features + f);
        V::transpose(square);
        for (int i = 0; i < L; ++i) V::store(to + ((f + i) * T + j) * L, square[i]);
      }
      for (; f < features; ++f)
        for (int lane = 0; lane < L; ++lane) to[(f * T + j) * L + lane] = lane < valid ? rows[lane * features + f] : 0.f;
    }
  }

  template <int T>
  static void leave(const float* from, int count, int64_t features, float* y) {
    using V = Simd<L>;
    for (int j = 0; j < T; ++j) {
      const int valid = std::clamp(count - j * L, 0, L);
      float* rows = y + int64_t(j) * L * features;
      int64_t f = 0;
      for (; f + L <= features; f += L) {
        typename V::Vec square[L];
        for (int i = 0; i < L; ++i) square[i] = V::load(from + ((f + i) * T + j) * L);
        V::transpose(square);
        for (int lane = 0; lane < valid; ++lane) V::store_unaligned(rows + lane * features + f, square[lane]);
      }
      for (; f < features; ++f)
        for (int lane = 0; lane < valid; ++lane) rows[lane * features + f] = from[(f * T + j) * L + lane];
    }
  }

  std::vector<FrozenLinear> layers_;
  std::vector<SingleLinear> single_;  // for single samples; for vectors of them:
  std::vector<Lists> lists_;
  std::vector<int> blocks_;
  int64_t widest_ = 0;
  int vectors_ = 4;
};

inline std::unique_ptr<FrozenChain> make_chain(int64_t lanes, int64_t count, const FrozenLinear* layers) {
  if (lanes == 4) return std::make_unique<FrozenChainOf<4>>(count, layers);
  if (lanes == 8) return std::make_unique<FrozenChainOf<8>>(count, layers);
  return std::make_unique<FrozenChainOf<16>>(count, layers);
}

}  // namespace sparseopt
