// A frozen region as an object that Python keeps: built once from tables, called with images alone, because for a single sample
// the time to hand over arguments counts. Any number of threads may call it at once.
#pragma once
#include <ctime>
#include <memory>

#include "arenas.h"
#include "inference.h"
#include "single.h"

namespace sparseopt {

// What leaves the region: an image, a mean over all positions, or a linear layer of that mean.
struct Output {
  int64_t slot, mean;
  Weights weights;    // of the linear layer; out is 0 if there is none
  const float* bias;

  // Floats of one sample.
  int64_t size(const Slot& from) const {
    if (weights.out) return weights.out;
    return mean ? from.channels : from.channels * from.height * from.width;
  }
};

// Layers that run with images cut in one way, up to `end`; `bands` is the number of lanes a sample has there. Coarse images are cut into
// fewer bands: what the last layer of a segment makes of several groups of samples it writes together, cut as the next one reads it.
struct Segment {
  int64_t end, bands;
};

struct Tables {
  int64_t lanes;
  int64_t floats;  // of an arena
  int64_t segment_count, slot_count, layer_count, input_count, output_count;
  const Segment* segments;
  const Slot* slots;
  const Conv* layers;
  const int64_t* inputs;  // slots
  const Output* outputs;
};

// Seconds that the calling thread has computed: on a busy machine, the clock on the wall measures the others.
inline double seconds_computed() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

// Keeps no copy of the weights it is made from.
class Network {
 public:
  virtual ~Network() = default;
  virtual void choose(int64_t layer, const Way& way) = 0;
  // The shortest of several runs of one layer, in seconds, on one thread.
  virtual double time(int64_t layer, int64_t runs) const = 0;
  // images [input][sample][channel][row][column] -> results, one an output
  virtual void run(int64_t samples, const float* const* images, float* const* results) const = 0;
};

template <int L>
class NetworkOf : public Network {
 public:
  explicit NetworkOf(const Tables& t)
      : floats_(t.floats), segments_(t.segments, t.segments + t.segment_count), slots_(t.slots, t.slots + t.slot_count),
        inputs_(t.inputs, t.inputs + t.input_count), outputs_(t.outputs, t.outputs + t.output_count), owner_(arenas().new_owner()) {
    for (const Slot& each : slots_) bands_.emplace_back(int(each.bands), int(each.strips), int(each.height), int(each.width));
    for (int64_t i = 0; i < t.layer_count; ++i) layers_.emplace_back(t.layers[i]);
    ratios_.assign(layers_.size(), 1);
    for (size_t i = 1; i < segments_.size(); ++i) ratios_[segments_[i - 1].end - 1] = int(segments_[i - 1].bands / segments_[i].bands);
    for (size_t i = 0; i < layers_.size(); ++i) choose(i, Way{});
    for (const Output& each : outputs_) heads_.emplace_back(each.weights, each.bias);
    slack_ = slack();
    team_ = largest_team();
  }

  ~NetworkOf() override { arenas().forget(owner_); }

  void choose(int64_t layer, const Way& way) override { layers_[layer].choose(way, plane(layers_[layer].conv.input, nullptr)); }

  double time(int64_t layer, int64_t runs) const override {
    const Arenas::Lease arena = lease();
    double best = 1e9;
    for (int64_t i = 0; i < runs; ++i) {
      const double start = seconds_computed();
      run_layer(layer, arena.get(), Member{}, 0);
      best = std::min(best, seconds_computed() - start);
    }
    return best;
  }

  void run(int64_t samples, const float* const* images, float* const* results) const override {
    const int64_t together = samples_of(segments_.size() - 1), groups = (samples + together - 1) / together, threads = num_threads();
    const auto run_group = [&](int64_t group, float* arena, const Member& member) {
      const int64_t first = group * together;
      run_segment(segments_.size() - 1, images, first, int(std::min(together, samples - first)), arena, member, 0);
      if (member.number == 0) write_all(first, int(std::min(together, samples - first)), arena, results);
    };
    if (4 * groups <= 3 * threads) {  // too few to go round: all threads on one group after the other
      const Arenas::Lease arena = lease();
      for (int64_t group = 0; group < groups; ++group)
        as_team(int(std::min<int64_t>(threads, team_)), [&](const Member& member) { run_group(group, arena.get(), member); });
    } else {
      parallel_for(0, groups, 1, [&](int64_t begin, int64_t end) {
        const Arenas::Lease arena = lease();
        for (int64_t group = begin; group < end; ++group) run_group(group, arena.get(), Member{});
      });
    }
  }

 private:
  Arenas::Lease lease() const { return Arenas::Lease(arenas(), owner_, size_t(floats_ + 2 * slack_)); }
  Plane<L> plane(int64_t slot, float* arena) const {
    return slot < 0 ? Plane<L>{} : slots_[slot].template plane<L>(arena ? arena + slack_ : nullptr);
  }
  const Bands& bands_of(int64_t slot) const { return bands_[slot]; }
  int64_t samples_of(size_t segment) const { return L / segments_[segment].bands; }

  // Floats around the slots: a tile that reaches beyond its image reads what is there, to no effect.
  int64_t slack() const {
    int64_t most = 0, largest_tile = 0;
    for (const TileSize& each : kTiles) largest_tile = std::max<int64_t>({largest_tile, each.rows, each.columns});
    for (const Layer<L>& each : layers_) {
      const Plane<L> x = plane(each.conv.input, nullptr);
      most = std::max(most, (largest_tile * each.conv.stride + each.conv.weights.height) * x.row);
    }
    return (most + 15) / 16 * 16;
  }

  // Threads that are worth their waiting for one another, which costs about as much as kWorth multiply-adds of vectors.
  int largest_team() const {
    constexpr int64_t kWorth = 20'000;
    int64_t work = 0;
    for (const Layer<L>& each : layers_) {
      const Slot& y = slots_[each.conv.output];
      work += each.conv.weights.size * y.rows * y.columns;
    }
    return int(std::max<int64_t>(1, work / (kWorth * std::max<int64_t>(1, layers_.size()))));
  }

  // `share`: the samples' number among those that lie together behind the next cut.
  void run_layer(int64_t number, float* arena, const Member& member, int share) const {
    const Layer<L>& layer = layers_[number];
    const Conv& conv = layer.conv;
    const Plane<L> y = plane(conv.output, arena);
    const Bands& bands = bands_of(conv.output);
    const Part part = layer.part(y, bands.strips == 1, member);
    const int ratio = ratios_[number];
    const Recut recut = ratio == 1 ? Recut{} : Recut{ratio, share, y.rows / ratio * y.row};
    layer.run(plane(conv.input, arena), y, plane(conv.shortcut, arena), part, recut);
    if (ratio == 1) finish(y, bands, part);
  }

  static void finish(const Plane<L>& y, const Bands& bands, const Part& part) {
    clear_beyond(y, bands, part);
    surround(y, bands, part);
  }

  // All layers up to the segment's last, for as many samples as it takes together, or fewer.
  void run_segment(size_t segment, const float* const* images, int64_t first, int samples, float* arena, const Member& member,
                   int share) const {
    int64_t begin = 0;
    if (segment == 0) {
      read(images, first, samples, arena, member);
    } else {
      const int each = int(samples_of(segment - 1));
      for (int i = 0; i * each < samples; ++i)
        run_segment(segment - 1, images, first + i * each, std::min(each, samples - i * each), arena, member, i);
      begin = segments_[segment - 1].end;
      const int64_t joined = layers_[begin - 1].conv.output;
      const Plane<L> x = plane(joined, arena);
      finish(x, bands_of(joined), part_of(x.width, x.channels, 1, true, member, [](int c) { return c; }));
      member.wait();
    }
    for (int64_t i = begin; i < segments_[segment].end; ++i) {
      run_layer(i, arena, member, share);
      member.wait();
    }
  }

  void read(const float* const* images, int64_t first, int samples, float* arena, const Member& member) const {
    if (member.number == 0) {
      for (size_t i = 0; i < inputs_.size(); ++i) {
        const Slot& slot = slots_[inputs_[i]];
        const Plane<L> x = plane(inputs_[i], arena);
        read_images(images[i] + first * slot.channels * slot.height * slot.width, samples, bands_of(inputs_[i]), x);
        surround(x, bands_of(inputs_[i]), x.whole());
      }
    }
    member.wait();
  }

  void write_all(int64_t first, int samples, float* arena, float* const* results) const {
    for (size_t i = 0; i < outputs_.size(); ++i) {
      const Slot& slot = slots_[outputs_[i].slot];
      write(i, plane(outputs_[i].slot, arena), bands_of(outputs_[i].slot), samples, results[i] + first * outputs_[i].size(slot));
    }
  }

  void write(size_t index, const Plane<L>& x, const Bands& bands, int samples, float* to) const {
    const Output& output = outputs_[index];
    if (!output.mean) return write_images(x, bands, samples, to);
    if (!output.weights.out) return write_means(x, bands, samples, to);
    float* means = scratch<Use::means>().get<float>(size_t(samples) * x.channels);
    write_means(x, bands, samples, means);
    const SingleLinear& head = heads_[index];
    for (int sample = 0; sample < samples; ++sample)
      head.run(0, head.groups(), false, means + int64_t(sample) * x.channels, to + sample * output.weights.out);
  }

  int64_t floats_, slack_ = 0;
  std::vector<Segment> segments_;
  std::vector<Slot> slots_;
  std::vector<Bands> bands_;  // of the slots
  std::vector<Layer<L>> layers_;
  std::vector<int> ratios_;      // of the layers: to how many times fewer bands their output is cut
  std::vector<int64_t> inputs_;  // slots
  std::vector<Output> outputs_;
  std::vector<SingleLinear> heads_;  // one an output, empty where there is none
  int team_ = 1;
  uint64_t owner_;
};

inline std::unique_ptr<Network> make_network(const Tables& t) {
  if (t.lanes == 4) return std::make_unique<NetworkOf<4>>(t);
  if (t.lanes == 8) return std::make_unique<NetworkOf<8>>(t);
  return std::make_unique<NetworkOf<16>>(t);
}

}  // namespace sparseopt
