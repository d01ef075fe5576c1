// A frozen region as an object that Python keeps: built once from tables, called with images alone, because for a single sample
// the time to hand over arguments counts.
#pragma once
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/custom_class.h>

#include <mutex>

#include "inference.h"

namespace sparseopt {

// What leaves the region: an image, a mean over all positions, or a linear layer of that mean.
struct Output {
  int slot;
  bool mean;
  at::Tensor weight, bias;  // weight [channel][feature]; undefined: no linear layer

  std::vector<int64_t> sizes(int64_t samples, const Slot& from) const {
    if (weight.defined()) return {samples, weight.size(1)};
    if (mean) return {samples, from.channels};
    return {samples, from.channels, from.height, from.width};
  }

  void write(const View& x, const Bands& bands, int samples, float* to) const {
    if (!mean) return write_images(x, bands, samples, to);
    if (!weight.defined()) return write_means(x, bands, samples, to);
    float* means = scratch<Use::means>().get<float>(size_t(samples) * x.channels);
    write_means(x, bands, samples, means);
    for (int sample = 0; sample < samples; ++sample)
      write_linear(means + sample * x.channels, x.channels, to + sample * weight.size(1));
  }

 private:
  void write_linear(const float* x, int channels, float* y) const {
    const int64_t features = weight.size(1);
    std::copy_n(bias.data_ptr<float>(), features, y);
    const float* w = weight.data_ptr<float>();
    for (int c = 0; c < channels; ++c, w += features)
      for (int64_t i = 0; i < features; ++i) y[i] += w[i] * x[c];
  }
};

class Network : public torch::CustomClassHolder {
 public:
  // slots [slot][offset, channels, height, width, border, rows]; layers [layer][9 fields, see below]; all layers' weights are one
  // list, and a layer knows where its own begin; ends [output][slot, mean, linear layer or -1]; linear: weight, bias, weight, ...
  Network(int64_t bands, int64_t floats, at::Tensor slots, at::Tensor layers, at::Tensor start, at::Tensor offset,
          at::Tensor values, at::Tensor bias, at::Tensor inputs, at::Tensor ends, std::vector<at::Tensor> linear)
      : program_{int(bands), {}, {}}, floats_(floats), kept_{start, offset, values, bias} {
    const auto row = [](const at::Tensor& table, int64_t i) { return table.data_ptr<int64_t>() + i * table.size(1); };
    for (int64_t i = 0; i < slots.size(0); ++i) {
      const int64_t* s = row(slots, i);
      program_.slots.push_back({s[0], int(s[1]), int(s[2]), int(s[3]), int(s[4]), int(s[5])});
    }
    const Pattern all = forward_pattern(start, offset, values);
    for (int64_t i = 0; i < layers.size(0); ++i) {
      const int64_t* f = row(layers, i);
      program_.layers.push_back({{all.start + f[7], all.offset, all.value, all.size}, bias.data_ptr<float>() + f[8], int(f[0]),
                                 int(f[1]), int(f[2]), int(f[3]), int(f[4]), int(f[5]), f[6] != 0});
    }
    largest_team_ = program_.largest_team();
    for (int64_t i = 0; i < inputs.numel(); ++i) inputs_.push_back(inputs.data_ptr<int64_t>()[i]);
    for (int64_t i = 0; i < ends.size(0); ++i) {
      const int64_t* e = row(ends, i);
      outputs_.push_back({int(e[0]), e[1] != 0, {}, {}});
      if (e[2] >= 0) outputs_.back().weight = linear[2 * e[2]], outputs_.back().bias = linear[2 * e[2] + 1];
    }
  }

  std::vector<at::Tensor> run(std::vector<at::Tensor> images) {
    const std::lock_guard<std::mutex> one_caller(arenas_in_use_);
    const int64_t samples = images[0].size(0), together = kLanes / program_.bands;
    for (at::Tensor& image : images) image = image.to(at::kFloat).contiguous();
    std::vector<at::Tensor> results;
    for (const Output& output : outputs_)
      results.push_back(at::empty(output.sizes(samples, program_.slots[output.slot]), at::kFloat));
    if (!arenas_.defined() || arenas_.size(0) < at::get_num_threads())
      arenas_ = at::zeros({at::get_num_threads(), floats_}, at::kFloat);
    const int64_t groups = (samples + together - 1) / together, threads = at::get_num_threads();
    const auto run_group = [&](int64_t group, int arena, const Member& member) {
      const int64_t first = group * together;
      run_together(images, first, int(std::min(together, samples - first)), arenas_.data_ptr<float>() + arena * floats_, results,
                   member);
    };
    if (4 * groups <= 3 * threads) {  // too few to go round: all threads on one group after the other
      const int team = int(std::min<int64_t>(threads, largest_team_));
      for (int64_t group = 0; group < groups; ++group)
        as_team(team, [&](const Member& member) { run_group(group, 0, member); });
    } else {
      at::parallel_for(0, groups, 1, [&](int64_t begin, int64_t end) {
        for (int64_t group = begin; group < end; ++group) run_group(group, at::get_thread_num(), Member{});
      });
    }
    return results;
  }

 private:
  void run_together(const std::vector<at::Tensor>& images, int64_t first, int samples, float* arena,
                    const std::vector<at::Tensor>& results, const Member& member) const {
    if (member.number == 0) {
      for (size_t i = 0; i < images.size(); ++i) {
        const View x = program_.slots[inputs_[i]].view(arena);
        const Bands bands = program_.bands_of(inputs_[i]);
        read_images(images[i].data_ptr<float>() + first * (images[i].numel() / images[i].size(0)), samples, bands, x);
        fill_halo(x, bands, whole(x));
      }
    }
    member.wait();
    run_layers(program_, arena, member);
    if (member.number > 0) return;
    for (size_t i = 0; i < results.size(); ++i) {
      float* to = results[i].data_ptr<float>() + first * (results[i].numel() / results[i].size(0));
      const int slot = outputs_[i].slot;
      outputs_[i].write(program_.slots[slot].view(arena), program_.bands_of(slot), samples, to);
    }
  }

  Program program_;
  int64_t floats_;                // of one thread's arena
  int largest_team_;
  std::vector<at::Tensor> kept_;  // the lists that the program points into
  std::vector<int64_t> inputs_;   // slots
  std::vector<Output> outputs_;
  at::Tensor arenas_;             // [thread][floats]
  std::mutex arenas_in_use_;
};

}  // namespace sparseopt
