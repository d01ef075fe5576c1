// The kernels as C functions: pointers and sizes in, nothing of torch. `native/operators.py` and its parts are their only callers and check
// what they hand over; here everything is trusted. All write into memory the caller made, so that buffers can be reused from step to step.
#include <exception>
#include <string>

#include "batch_norm.h"
#include "conv_backward.h"
#include "conv_dense.h"
#include "conv_forward.h"
#include "frozen_chain.h"
#include "lanes.h"
#include "linear.h"
#include "linear_norm.h"
#include "max_pool.h"
#include "network.h"

#define SPARSEOPT_EXPORT extern "C" __attribute__((visibility("default")))

namespace sparseopt {
namespace {

// Structs are rows of 64-bit words, which their callers fill in this order. A null pointer says that there is none.

// An activation in the lane layout, its sizes without the border.
struct Image {
  float* data;
  int64_t blocks, height, channels, width, border, half;
};

View view(const Image& image) {
  return make_view(image.data, int(image.blocks), int(image.height), int(image.channels), int(image.width), int(image.border), kLanes,
                   image.half != 0);
}

View optional_view(const Image& image) { return image.data ? view(image) : View{}; }

// What an activation is made from.
struct Source {
  Image z;
  const float* norm;
  Image shortcut;
  const float* shortcut_norm;
  int64_t shortcut_stride, shortcut_offset, relu;
  Image copy;  // where the activation is kept in half precision
};

Activation activation(const Source& source) {
  Activation a;
  a.z = view(source.z);
  a.norm = affine(source.norm, a.z.channels);
  const View shortcut = optional_view(source.shortcut);
  a.shortcut = {shortcut, affine(source.shortcut_norm, shortcut.channels), int(source.shortcut_stride),
                int(source.shortcut_offset)};
  a.relu = source.relu;
  a.copy = optional_view(source.copy);
  return a;
}

// What the backward pass of a convolution reads.
struct Gradients {
  Image g, z;
  const float* coefficients;
  Image input;
  const float* input_norm;
  int64_t input_relu;

  OutputGradient of_output() const {
    const View v = view(g);
    return {v, view(z), coefficients, coefficients + v.channels, coefficients + 2 * v.channels, coefficients + 3 * v.channels};
  }

  Input of_input() const {
    const View v = view(input);
    return {v, affine(input_norm, v.channels), input_relu != 0};
  }
};

// The same, and where it writes.
struct Backward {
  Gradients read;
  Image to;
  int64_t accumulate;
  Image shortcut;
  int64_t shortcut_offset, mask;
  Image input_z;
  const float* input_z_norm;
};

// A layer of a chain; the gradients and `order` are the backward pass's.
struct Linear {
  Pattern weights;
  const int* order;
  const float* bias;
  int64_t relu, inputs, outputs;
  float *weight_gradient, *bias_gradient;

  LinearLayer layer(const Pattern& pattern, int64_t samples) const { return {pattern, inputs, outputs, samples}; }
};

// Runs f on as many threads. Returns what went wrong, or null; the text is the thread's until its next call.
template <class F>
const char* guarded(int64_t threads, const F& f) {
  static thread_local std::string message;
  threads_wanted = int(threads);
  try {
    f();
    return nullptr;
  } catch (const std::exception& error) {
    message = error.what();
  } catch (...) {
    message = "unknown error";
  }
  return message.c_str();
}

}  // namespace
}  // namespace sparseopt

using namespace sparseopt;

SPARSEOPT_EXPORT int64_t sparseopt_lanes() { return kLanes; }

// In how many ways a convolution of a training step can run, forward and backward.
SPARSEOPT_EXPORT int64_t sparseopt_training_tiles(int64_t backward) { return backward ? kBackwardTileCount : kForwardTileCount; }

SPARSEOPT_EXPORT void sparseopt_use(const OpenMP* runtime) { openmp = *runtime; }

// x: the input's rows, complete if there is no source to make them from. Without `keep` it only gives their shape. dense: all weights
// are active, and `tile` says nothing.
SPARSEOPT_EXPORT const char* sparseopt_conv_forward(int64_t threads, const Image* x, int64_t keep, const Source* source,
                                                    const Pattern* weights, int64_t stride, int64_t reach, int64_t samples,
                                                    const Image* out, float* shift, double* sums, int64_t tile, int64_t dense) {
  return guarded(threads, [&] {
    const Activation made = source ? activation(*source) : Activation{};
    const ForwardLayer layer{*weights, view(*out), int(stride), int(reach), nullptr, int(tile), dense != 0};
    conv_forward(layer, source ? &made : nullptr, view(*x), !keep, samples, shift, sums);
  });
}

SPARSEOPT_EXPORT const char* sparseopt_make_activation(int64_t threads, const Source* source, const Image* x) {
  return guarded(threads, [&] { make_activation(activation(*source), view(*x)); });
}

// dense: the kernel of a layer whose weights are all active, which says that they are; `tile` says nothing then.
SPARSEOPT_EXPORT const char* sparseopt_conv_backward(int64_t threads, const Backward* pass, const Pattern* weights,
                                                     const int* order, int64_t stride, int64_t reach, int64_t dz_border,
                                                     int64_t samples, float* weight_gradient, double* sums, int64_t tile,
                                                     const Window* dense) {
  return guarded(threads, [&] {
    const BackwardLayer layer{ordered(*weights, order),
                              int(stride),
                              int(reach),
                              int(dz_border),
                              pass->read.of_input(),
                              {optional_view(pass->to), pass->accumulate != 0, optional_view(pass->shortcut), int(pass->shortcut_offset),
                               pass->mask != 0, optional_view(pass->input_z), pass->input_z_norm},
                              int(tile)};
    if (dense) conv_dense_backward(layer, *dense, pass->read.of_output(), samples, weight_gradient, sums);
    else conv_backward(layer, pass->read.of_output(), samples, order, weight_gradient, sums);
  });
}

SPARSEOPT_EXPORT const char* sparseopt_conv_dense_gradient(int64_t threads, const Gradients* read, int64_t stride,
                                                           const Window* window, int64_t samples, float* gradient) {
  return guarded(threads, [&] {
    const int all_rows = int(read->g.height);
    const BackwardLayer layer{{}, int(stride), all_rows, 0, read->of_input(), {}};
    conv_dense_backward(layer, *window, read->of_output(), samples, gradient, nullptr);
  });
}

SPARSEOPT_EXPORT const char* sparseopt_batch_norm_forward(int64_t threads, int64_t channels, int64_t count, const double* sums,
                                                          const float* shift, const float* gamma, const float* beta, double eps,
                                                          float* running_mean, float* running_var, double factor,
                                                          double* moments, float* affine) {
  return guarded(threads, [&] {
    batch_norm_forward(int(channels), count, sums, shift, gamma, beta, eps, {running_mean, running_var, factor}, moments, affine);
  });
}

SPARSEOPT_EXPORT const char* sparseopt_batch_norm_backward(int64_t threads, int64_t channels, int64_t count, const double* sums,
                                                           const double* moments, const float* gamma, float* coefficients,
                                                           float* gradients) {
  return guarded(threads, [&] { batch_norm_backward(int(channels), count, sums, moments, gamma, coefficients, gradients); });
}

SPARSEOPT_EXPORT const char* sparseopt_pack(int64_t threads, const float* image, int64_t samples, int64_t repeat, const Image* x) {
  return guarded(threads, [&] { pack(image, samples, repeat, view(*x)); });
}

SPARSEOPT_EXPORT const char* sparseopt_unpack(int64_t threads, const Image* x, int64_t samples, float* image) {
  return guarded(threads, [&] { unpack(view(*x), samples, image); });
}

SPARSEOPT_EXPORT const char* sparseopt_pool_forward(int64_t threads, const Image* x, int64_t samples, float* pooled) {
  return guarded(threads, [&] { pool_forward(view(*x), samples, pooled); });
}

SPARSEOPT_EXPORT const char* sparseopt_pool_backward(int64_t threads, const float* gradient, int64_t samples, const Image* g,
                                                     int64_t accumulate) {
  return guarded(threads, [&] { (accumulate ? pool_backward<true> : pool_backward<false>)(gradient, samples, view(*g)); });
}

SPARSEOPT_EXPORT const char* sparseopt_shortcut_backward(int64_t threads, const Image* g, int64_t stride, int64_t offset,
                                                         const Image* to, int64_t accumulate) {
  return guarded(threads, [&] {
    (accumulate ? shortcut_backward<true> : shortcut_backward<false>)(view(*g), int(stride), int(offset), view(*to));
  });
}

SPARSEOPT_EXPORT const char* sparseopt_finish_gradient(int64_t threads, const Image* g, const Image* x, const Image* z,
                                                       const float* means, int64_t samples, double* sums) {
  return guarded(threads, [&] {
    const View of_z = view(*z);
    (of_z.half ? finish_gradient<Half> : finish_gradient<float>)(view(*g), x ? view(*x) : View{}, of_z, means, samples, sums);
  });
}

SPARSEOPT_EXPORT const char* sparseopt_tile_samples(int64_t threads, const float* x, int64_t samples, int64_t repeat,
                                                    int64_t features, int64_t padded, float* tiles) {
  return guarded(threads, [&] { tile_samples(x, samples, repeat, features, padded, tiles); });
}

SPARSEOPT_EXPORT const char* sparseopt_untile_samples(int64_t threads, const float* tiles, int64_t samples, int64_t features,
                                                      int64_t padded, float* x) {
  return guarded(threads, [&] { untile_samples(tiles, samples, features, padded, x); });
}

// Layers that follow one another. `tiles`: the input and the outputs of all of them.
SPARSEOPT_EXPORT const char* sparseopt_chain_forward(int64_t threads, int64_t layers, const Linear* layer, int64_t padded,
                                                     float* const* tiles) {
  return guarded(threads, [&] {
    for (int64_t i = 0; i < layers; ++i)
      (layer[i].relu ? linear_forward<true> : linear_forward<false>)(layer[i].layer(layer[i].weights, padded), tiles[i],
                                                                     layer[i].bias, tiles[i + 1]);
  });
}

// `gradient`: of the last output; it is overwritten. `input_gradient`: where that of the input goes, if anywhere.
SPARSEOPT_EXPORT const char* sparseopt_chain_backward(int64_t threads, int64_t layers, const Linear* layer, int64_t padded,
                                                      float* const* tiles, float* gradient, float* input_gradient) {
  return guarded(threads, [&] {
    int64_t widest = 0;
    for (int64_t i = 0; i < layers; ++i) widest = std::max({widest, layer[i].inputs, layer[i].outputs});
    float *dy = gradient, *spare = scratch<Use::input_gradient>().get<float>(widest * padded);
    float* other = scratch<Use::output_gradient>().get<float>(widest * padded);
    const Linear& last = layer[layers - 1];
    if (last.relu) mask_gradient(tiles[layers], last.outputs * padded, dy);
    for (int64_t i = layers; i-- > 0;) {
      float* dx = i > 0 ? spare : input_gradient;
      const LinearLayer at = layer[i].layer(ordered(layer[i].weights, layer[i].order), padded);
      (dx ? linear_backward<true> : linear_backward<false>)(at, tiles[i], dy, {dx, i > 0 && layer[i - 1].relu}, layer[i].order,
                                                            layer[i].weight_gradient);
      if (layer[i].bias_gradient) linear_bias_gradient(at, dy, layer[i].bias_gradient);
      dy = spare;
      std::swap(spare, other);
    }
  });
}

SPARSEOPT_EXPORT const char* sparseopt_sum_features(int64_t threads, const float* z, int64_t features, int64_t samples,
                                                    int64_t padded, double* sums) {
  return guarded(threads, [&] { sum_features(z, features, samples, padded, sums); });
}

SPARSEOPT_EXPORT const char* sparseopt_normalise(int64_t threads, const float* z, const float* affine, int64_t relu,
                                                 int64_t features, int64_t padded, float* y) {
  return guarded(threads, [&] { normalise(z, affine, relu != 0, features, padded, y); });
}

SPARSEOPT_EXPORT const char* sparseopt_sum_gradients(int64_t threads, const float* y, const float* z, const float* mean,
                                                     int64_t features, int64_t padded, float* gradient, double* sums) {
  return guarded(threads, [&] { sum_gradients(y, z, mean, features, padded, gradient, sums); });
}

SPARSEOPT_EXPORT const char* sparseopt_normalise_backward(int64_t threads, const float* z, const float* coefficients,
                                                          int64_t features, int64_t samples, int64_t padded, float* gradient) {
  return guarded(threads, [&] { normalise_backward(z, coefficients, features, samples, padded, gradient); });
}

// Between a dense tensor and its active values; the values before, where they are known.
struct Copy {
  float* dense;
  const int* position;
  int64_t size;
  const float* before;
  float* values;
};

// same: which values are those before
SPARSEOPT_EXPORT const char* sparseopt_gather(int64_t threads, int64_t count, const Copy* copies, char* same) {
  return guarded(threads, [&] {
    for (int64_t i = 0; i < count; ++i)
      same[i] = gather(copies[i].dense, copies[i].position, copies[i].size, copies[i].before, copies[i].values);
  });
}

SPARSEOPT_EXPORT const char* sparseopt_nonzeros(int64_t threads, const float* x, int64_t size, int64_t* found) {
  return guarded(threads, [&] { *found = nonzeros(x, size); });
}

SPARSEOPT_EXPORT const char* sparseopt_scatter(int64_t threads, int64_t count, const Copy* copies) {
  return guarded(threads, [&] {
    for (int64_t i = 0; i < count; ++i) scatter(copies[i].values, copies[i].position, copies[i].size, copies[i].dense);
  });
}

SPARSEOPT_EXPORT const char* sparseopt_network_new(int64_t threads, const Tables* tables, Network** network) {
  return guarded(threads, [&] { *network = make_network(*tables).release(); });
}

SPARSEOPT_EXPORT const char* sparseopt_network_choose(int64_t threads, Network* network, int64_t layer, int64_t tile,
                                                      int64_t block, int64_t copies) {
  return guarded(threads, [&] { network->choose(layer, {int(tile), int(block), copies != 0}); });
}

SPARSEOPT_EXPORT const char* sparseopt_network_time(int64_t threads, const Network* network, int64_t layer, int64_t runs,
                                                    double* seconds) {
  return guarded(threads, [&] { *seconds = network->time(layer, runs); });
}

SPARSEOPT_EXPORT const char* sparseopt_network_run(int64_t threads, const Network* network, int64_t samples,
                                                   const float* const* images, float* const* results) {
  return guarded(threads, [&] { network->run(samples, images, results); });
}

SPARSEOPT_EXPORT void sparseopt_network_free(Network* network) { delete network; }

SPARSEOPT_EXPORT const char* sparseopt_chain_new(int64_t threads, int64_t lanes, int64_t count, const FrozenLinear* layers,
                                                 FrozenChain** chain) {
  return guarded(threads, [&] { *chain = make_chain(lanes, count, layers).release(); });
}

SPARSEOPT_EXPORT const char* sparseopt_chain_choose(int64_t threads, FrozenChain* chain, int64_t vectors, int64_t block) {
  return guarded(threads, [&] { chain->choose(vectors, block); });
}

SPARSEOPT_EXPORT const char* sparseopt_chain_run(int64_t threads, const FrozenChain* chain, int64_t samples, const float* x,
                                                 float* y) {
  return guarded(threads, [&] { chain->run(samples, x, y); });
}

SPARSEOPT_EXPORT void sparseopt_chain_free(FrozenChain* chain) { delete chain; }

SPARSEOPT_EXPORT const char* sparseopt_max_pool(int64_t threads, const Pool* pool, const float* x, float* y) {
  return guarded(threads, [&] { max_pool(*pool, x, y); });
}

// The sizes of tile number `tile`, and whether there is a kernel for it that reads its input where it is, at strides 1 and 2.
// Returns whether there are as many tiles.
SPARSEOPT_EXPORT int64_t sparseopt_tile(int64_t lanes, int64_t tile, int64_t* rows, int64_t* columns, int64_t* kernels) {
  if (tile < 0 || tile >= kTileCount) return 0;
  *rows = kTiles[tile].rows, *columns = kTiles[tile].columns;
  const auto kernel = lanes == 4 ? conv_kernel<4> : lanes == 8 ? conv_kernel<8> : conv_kernel<16>;
  for (int stride = 1; stride <= 2; ++stride) kernels[stride - 1] = kernel(int(tile), stride) != nullptr;
  return 1;
}
