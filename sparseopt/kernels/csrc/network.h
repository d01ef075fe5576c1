// A frozen region as an object that Python keeps: built once from tables, called with images alone, because for a single sample
// the time to hand over arguments counts.
#pragma once
#include <mutex>

#include "inference.h"
#include "parallel.h"

namespace sparseopt {

// What leaves the region: an image, a mean over all positions, or a linear layer of that mean.
struct Output {
  int slot;
  bool mean;
  const float *weight, *bias;  // weight [channel][feature]; null: no linear layer
  int64_t features;

  // Floats of one sample.
  int64_t size(const Slot& from) const {
    if (weight) return features;
    return mean ? from.channels : int64_t(from.channels) * from.height * from.width;
  }

  void write(const View& x, const Bands& bands, int samples, float* to) const {
    if (!mean) return write_images(x, bands, samples, to);
    if (!weight) return write_means(x, bands, samples, to);
    float* means = scratch<Use::means>().get<float>(size_t(samples) * x.channels);
    write_means(x, bands, samples, means);
    for (int sample = 0; sample < samples; ++sample)
      write_linear(means + sample * x.channels, x.channels, to + sample * features);
  }

 private:
  void write_linear(const float* x, int channels, float* y) const {
    std::copy_n(bias, features, y);
    const float* w = weight;
    for (int c = 0; c < channels; ++c, w += features)
      for (int64_t i = 0; i < features; ++i) y[i] += w[i] * x[c];
  }
};

// slots [slot][offset, channels, height, width, border, rows]; layers [layer][input, output, shortcut, stride, shortcut's stride and
// offset, relu, its first list, its first bias]; all layers' weights are one list; outputs as above.
struct Tables {
  int64_t bands, floats;  // of an arena
  int64_t slot_count, layer_count, input_count, output_count;
  const int64_t *slots, *layers;
  Pattern weights;
  const float* bias;
  const int64_t* inputs;  // slots
  const Output* outputs;
};

// Keeps no copy of the lists and weights it is made from.
class Network {
 public:
  explicit Network(const Tables& t)
      : program_{int(t.bands), {}, {}}, floats_(t.floats), inputs_(t.inputs, t.inputs + t.input_count),
        outputs_(t.outputs, t.outputs + t.output_count) {
    for (int64_t i = 0; i < t.slot_count; ++i) {
      const int64_t* s = t.slots + 6 * i;
      program_.slots.push_back({s[0], int(s[1]), int(s[2]), int(s[3]), int(s[4]), int(s[5])});
    }
    for (int64_t i = 0; i < t.layer_count; ++i) {
      const int64_t* f = t.layers + 9 * i;
      program_.layers.push_back({{t.weights.start + f[7], t.weights.offset, t.weights.value, t.weights.size}, t.bias + f[8],
                                 int(f[0]), int(f[1]), int(f[2]), int(f[3]), int(f[4]), int(f[5]), f[6] != 0});
    }
    largest_team_ = program_.largest_team();
  }

  // images [input][sample][channel][row][column] -> results, one an output
  void run(int64_t samples, const float* const* images, float* const* results) {
    const std::lock_guard<std::mutex> one_caller(arenas_in_use_);
    const int64_t together = kLanes / program_.bands, groups = (samples + together - 1) / together, threads = num_threads();
    float* arenas = zeroed_arenas(threads);
    const auto run_group = [&](int64_t group, int arena, const Member& member) {
      const int64_t first = group * together;
      run_together(images, first, int(std::min(together, samples - first)), arenas + arena * floats_, results, member);
    };
    if (4 * groups <= 3 * threads) {  // too few to go round: all threads on one group after the other
      const int team = int(std::min<int64_t>(threads, largest_team_));
      for (int64_t group = 0; group < groups; ++group)
        as_team(team, [&](const Member& member) { run_group(group, 0, member); });
    } else {
      parallel_for(0, groups, 1, [&](int64_t begin, int64_t end) {
        for (int64_t group = begin; group < end; ++group) run_group(group, thread_num(), Member{});
      });
    }
  }

 private:
  // One a thread. Borders stay zero from run to run.
  float* zeroed_arenas(int64_t threads) {
    float* arenas = arenas_.get<float>(size_t(threads * floats_));
    if (threads > zeroed_) std::fill_n(arenas, threads * floats_, 0.f), zeroed_ = threads;
    return arenas;
  }

  void run_together(const float* const* images, int64_t first, int samples, float* arena, float* const* results,
                    const Member& member) const {
    if (member.number == 0) {
      for (size_t i = 0; i < inputs_.size(); ++i) {
        const Slot& slot = program_.slots[inputs_[i]];
        const View x = slot.view(arena);
        const Bands bands = program_.bands_of(inputs_[i]);
        read_images(images[i] + first * slot.channels * slot.height * slot.width, samples, bands, x);
        fill_halo(x, bands, whole(x));
      }
    }
    member.wait();
    run_layers(program_, arena, member);
    if (member.number > 0) return;
    for (size_t i = 0; i < outputs_.size(); ++i) {
      const int slot = outputs_[i].slot;
      outputs_[i].write(program_.slots[slot].view(arena), program_.bands_of(slot), samples,
                        results[i] + first * outputs_[i].size(program_.slots[slot]));
    }
  }

  Program program_;
  int64_t floats_;  // of one thread's arena
  int largest_team_;
  std::vector<int64_t> inputs_;  // slots
  std::vector<Output> outputs_;
  Scratch arenas_;  // [thread][floats]
  int64_t zeroed_ = 0;
  std::mutex arenas_in_use_;
};

}  // namespace sparseopt
