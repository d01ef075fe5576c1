// The kernels as torch operators: tensors in, views out. All operators write into tensors the caller made, so that their fake
// implementations are trivial and buffers can be reused from step to step.
#include <torch/library.h>

#include "batch_norm.h"
#include "conv_backward.h"
#include "conv_forward.h"
#include "lanes.h"
#include "linear.h"
#include "linear_norm.h"
#include "network.h"

namespace sparseopt {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

float* data(const OptionalTensor& t) { return t ? t->data_ptr<float>() : nullptr; }

Activation activation(const OptionalTensor& z, const OptionalTensor& norm, const OptionalTensor& shortcut,
                      int64_t shortcut_border, const OptionalTensor& shortcut_norm, int64_t shortcut_stride,
                      int64_t shortcut_offset, bool relu) {
  Activation a;
  a.z = view(z, 0);
  a.norm = affine(norm);
  a.shortcut = {view(shortcut, shortcut_border), affine(shortcut_norm), int(shortcut_stride), int(shortcut_offset)};
  a.relu = relu;
  return a;
}


// x: the input's rows, complete if there is no z to make them from. Without `keep` it only gives their shape.
void conv_forward_op(const Tensor& x, int64_t border, bool keep, const OptionalTensor& z, const OptionalTensor& norm,
                     const OptionalTensor& shortcut, int64_t shortcut_border, const OptionalTensor& shortcut_norm,
                     int64_t shortcut_stride, int64_t shortcut_offset, bool relu, const Tensor& values, const Tensor& start,
                     const Tensor& offset, int64_t stride, int64_t reach, int64_t samples,
                     const Tensor& out, const Tensor& shift, const OptionalTensor& sums) {
  const Activation source = activation(z, norm, shortcut, shortcut_border, shortcut_norm, shortcut_stride, shortcut_offset, relu);
  ForwardLayer layer{forward_pattern(start, offset, values), view(out, 0), int(stride),
                     int(reach), nullptr};
  conv_forward(layer, z ? &source : nullptr, view(x, border), !keep, samples, shift.data_ptr<float>(),
               sums ? sums->data_ptr<double>() : nullptr);
}

void make_activation_op(const Tensor& z, const Tensor& norm, const OptionalTensor& shortcut, int64_t shortcut_border,
                        const OptionalTensor& shortcut_norm, int64_t shortcut_stride, int64_t shortcut_offset, bool relu,
                        const Tensor& x, int64_t border) {
  make_activation(activation(z, norm, shortcut, shortcut_border, shortcut_norm, shortcut_stride, shortcut_offset, relu),
                  view(x, border));
}

void conv_backward_op(const Tensor& g, int64_t g_border, const Tensor& z, const Tensor& coefficients, const Tensor& input,
                      int64_t input_border, const OptionalTensor& input_norm, bool input_relu, const OptionalTensor& to,
                      int64_t to_border, bool accumulate, const OptionalTensor& shortcut, int64_t shortcut_border,
                      int64_t shortcut_offset, bool mask, const OptionalTensor& input_z,
                      const OptionalTensor& input_z_norm, const Tensor& values,
                      const Tensor& start, const Tensor& offset, const Tensor& order, int64_t stride, int64_t reach,
                      int64_t dz_border, int64_t samples, const Tensor& weight_gradient, const OptionalTensor& sums) {
  const float* coefficient = coefficients.data_ptr<float>();
  const int64_t channels = coefficients.size(1);
  const OutputGradient output{view(g, g_border), view(z, 0), coefficient, coefficient + channels, coefficient + 2 * channels,
                              coefficient + 3 * channels};
  BackwardLayer layer{backward_pattern(start, offset, order, values),
                      int(stride),
                      int(reach),
                      int(dz_border),
                      {view(input, input_border), affine(input_norm), input_relu},
                      {view(to, to_border), accumulate, view(shortcut, shortcut_border), int(shortcut_offset), mask,
                       view(input_z, 0), data(input_z_norm)}};
  conv_backward(layer, output, samples, order.data_ptr<int>(), weight_gradient.data_ptr<float>(),
                sums ? sums->data_ptr<double>() : nullptr);
}

void batch_norm_forward_op(const Tensor& sums, const Tensor& shift, int64_t count, const OptionalTensor& gamma,
                           const OptionalTensor& beta, double eps, const OptionalTensor& running_mean,
                           const OptionalTensor& running_var, double factor, const Tensor& moments, const Tensor& affine) {
  batch_norm_forward(shift.numel(), count, sums.data_ptr<double>(), shift.data_ptr<float>(), data(gamma), data(beta), eps,
                     {data(running_mean), data(running_var), factor}, moments.data_ptr<double>(), affine.data_ptr<float>());
}

void batch_norm_backward_op(const Tensor& sums, int64_t count, const Tensor& moments, const OptionalTensor& gamma,
                            const Tensor& coefficients, const Tensor& gradients) {
  batch_norm_backward(coefficients.size(1), count, sums.data_ptr<double>(), moments.data_ptr<double>(), data(gamma),
                      coefficients.data_ptr<float>(), gradients.data_ptr<float>());
}

void pack_op(const Tensor& image, const Tensor& x, int64_t border) {
  pack(image.data_ptr<float>(), image.size(0), view(x, border));
}

void unpack_op(const Tensor& x, int64_t border, const Tensor& image) {
  unpack(view(x, border), image.size(0), image.data_ptr<float>());
}

void pool_forward_op(const Tensor& x, int64_t border, const Tensor& pooled) {
  pool_forward(view(x, border), pooled.size(0), pooled.data_ptr<float>());
}

void pool_backward_op(const Tensor& gradient, const Tensor& g, int64_t border, bool accumulate) {
  (accumulate ? pool_backward<true> : pool_backward<false>)(gradient.data_ptr<float>(), gradient.size(0), view(g, border));
}

void shortcut_backward_op(const Tensor& g, int64_t g_border, int64_t stride, int64_t offset, const Tensor& to,
                          int64_t to_border, bool accumulate) {
  (accumulate ? shortcut_backward<true> : shortcut_backward<false>)(view(g, g_border), stride, offset, view(to, to_border));
}

void finish_gradient_op(const Tensor& g, int64_t g_border, const OptionalTensor& x, int64_t x_border, const Tensor& z,
                        const Tensor& norm, int64_t samples, const Tensor& sums) {
  finish_gradient(view(g, g_border), view(x, x_border), view(z, 0), norm.data_ptr<float>(), samples, sums.data_ptr<double>());
}

// Tiles of samples as a tensor: [vectors of samples, 1, features, 1, lanes]. It has their size and nothing of their order.
int64_t features(const Tensor& tiles) { return tiles.size(2); }
int64_t padded(const Tensor& tiles) { return tiles.size(0) * kLanes; }

void tile_samples_op(const Tensor& x, const Tensor& tiles) {
  tile_samples(x.data_ptr<float>(), x.size(0), x.size(1), padded(tiles), tiles.data_ptr<float>());
}

void untile_samples_op(const Tensor& tiles, const Tensor& x) {
  untile_samples(tiles.data_ptr<float>(), x.size(0), x.size(1), padded(tiles), x.data_ptr<float>());
}

LinearLayer linear_layer(const Pattern& weights, const Tensor& x, const Tensor& y) {
  return {weights, features(x), features(y), padded(x)};
}

// Layers that follow one another. `tiles`: the input and the outputs of all of them.
void chain_forward_op(at::TensorList values, at::TensorList start, at::TensorList offset, at::IntArrayRef relu,
                      at::TensorList bias, at::TensorList tiles) {
  for (size_t i = 0; i < values.size(); ++i) {
    const LinearLayer layer = linear_layer(forward_pattern(start[i], offset[i], values[i]), tiles[i], tiles[i + 1]);
    const float* biases = bias[i].numel() ? bias[i].data_ptr<float>() : nullptr;
    (relu[i] ? linear_forward<true> : linear_forward<false>)(layer, tiles[i].data_ptr<float>(), biases,
                                                             tiles[i + 1].data_ptr<float>());
  }
}

// `gradient`: of the last output; it is overwritten. `input_gradient`: where that of the input goes, if anywhere.
void chain_backward_op(const Tensor& gradient, at::TensorList values, at::TensorList start, at::TensorList offset,
                       at::TensorList order, at::IntArrayRef relu, at::TensorList tiles, const OptionalTensor& input_gradient,
                       at::TensorList weight_gradient, at::TensorList bias_gradient) {
  size_t widest = 0;
  for (const Tensor& each : tiles) widest = std::max(widest, size_t(each.numel()));
  float *dy = gradient.data_ptr<float>(), *spare = scratch<Use::input_gradient>().get<float>(widest);
  float* other = scratch<Use::output_gradient>().get<float>(widest);
  if (relu.back()) mask_gradient(tiles.back().data_ptr<float>(), tiles.back().numel(), dy);
  for (size_t i = values.size(); i-- > 0;) {
    float* dx = i > 0 ? spare : data(input_gradient);
    const LinearLayer layer =
        linear_layer(backward_pattern(start[i], offset[i], order[i], values[i]), tiles[i], tiles[i + 1]);
    (dx ? linear_backward<true> : linear_backward<false>)(layer, tiles[i].data_ptr<float>(), dy, {dx, i > 0 && relu[i - 1]},
                                                          order[i].data_ptr<int>(), weight_gradient[i].data_ptr<float>());
    if (bias_gradient[i].numel()) linear_bias_gradient(layer, dy, bias_gradient[i].data_ptr<float>());
    dy = spare;
    std::swap(spare, other);
  }
}

void sum_features_op(const Tensor& z, int64_t samples, const Tensor& sums) {
  sum_features(z.data_ptr<float>(), features(z), samples, padded(z), sums.data_ptr<double>());
}

void normalise_op(const Tensor& z, const Tensor& affine, bool relu, const Tensor& y) {
  normalise(z.data_ptr<float>(), affine.data_ptr<float>(), relu, features(z), padded(z), y.data_ptr<float>());
}

void sum_gradients_op(const OptionalTensor& y, const Tensor& z, const Tensor& mean, const Tensor& gradient, const Tensor& sums) {
  sum_gradients(data(y), z.data_ptr<float>(), mean.data_ptr<float>(), features(z), padded(z), gradient.data_ptr<float>(),
                sums.data_ptr<double>());
}

void normalise_backward_op(const Tensor& z, const Tensor& coefficients, int64_t samples, const Tensor& gradient) {
  normalise_backward(z.data_ptr<float>(), coefficients.data_ptr<float>(), features(z), samples, padded(z),
                     gradient.data_ptr<float>());
}

// Of several tensors: their active values, and which of them are those before, where `before` is not empty.
c10::List<bool> gather_op(at::TensorList dense, at::TensorList position, at::TensorList before, at::TensorList values) {
  c10::List<bool> same;
  for (size_t i = 0; i < dense.size(); ++i) {
    TORCH_CHECK(dense[i].is_contiguous() && dense[i].scalar_type() == at::kFloat, "expected a contiguous float tensor");
    const bool known = before[i].numel() == position[i].numel() && position[i].numel() > 0;
    same.push_back(gather(dense[i].data_ptr<float>(), position[i].data_ptr<int>(), position[i].numel(),
                          known ? before[i].data_ptr<float>() : nullptr, values[i].data_ptr<float>()));
  }
  return same;
}

void scatter_op(at::TensorList values, at::TensorList position, at::TensorList dense) {
  for (size_t i = 0; i < dense.size(); ++i) {
    TORCH_CHECK(dense[i].is_contiguous() && dense[i].scalar_type() == at::kFloat, "expected a contiguous float tensor");
    scatter(values[i].data_ptr<float>(), position[i].data_ptr<int>(), position[i].numel(), dense[i].data_ptr<float>());
  }
}

int64_t lanes_op() { return kLanes; }

}  // namespace

TORCH_LIBRARY(sparseopt, m) {
  m.def("lanes() -> int", lanes_op);
  m.class_<Network>("Network")
      .def(torch::init<int64_t, int64_t, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, std::vector<Tensor>>())
      .def("run", &Network::run);
  m.def(
      "conv_forward(Tensor(a!) x, int border, bool keep, Tensor? z, Tensor? norm, Tensor? shortcut, int shortcut_border, "
      "Tensor? shortcut_norm, int shortcut_stride, int shortcut_offset, bool relu, Tensor values, Tensor start, Tensor offset, "
      "int stride, int reach, int samples, Tensor(b!) out, Tensor(c!) shift, Tensor(d!)? sums) -> ()");
  m.def(
      "make_activation(Tensor z, Tensor norm, Tensor? shortcut, int shortcut_border, Tensor? shortcut_norm, "
      "int shortcut_stride, int shortcut_offset, bool relu, Tensor(a!) x, int border) -> ()");
  m.def(
      "conv_backward(Tensor g, int g_border, Tensor z, Tensor coefficients, Tensor input, int input_border, "
      "Tensor? input_norm, bool input_relu, Tensor(a!)? to, int to_border, bool accumulate, Tensor? shortcut, "
      "int shortcut_border, int shortcut_offset, bool mask, Tensor? input_z, Tensor? input_z_norm, Tensor values, Tensor start, Tensor offset, "
      "Tensor order, int stride, int reach, int dz_border, int samples, Tensor(b!) weight_gradient, Tensor(c!)? sums) -> ()");
  m.def(
      "batch_norm_forward(Tensor sums, Tensor shift, int count, Tensor? gamma, Tensor? beta, float eps, "
      "Tensor(a!)? running_mean, Tensor(b!)? running_var, float factor, Tensor(c!) moments, Tensor(d!) affine) -> ()");
  m.def(
      "batch_norm_backward(Tensor sums, int count, Tensor moments, Tensor? gamma, Tensor(a!) coefficients, "
      "Tensor(b!) gradients) -> ()");
  m.def("gather(Tensor[] dense, Tensor[] position, Tensor[] before, Tensor(a!)[] values) -> bool[]");
  m.def("scatter(Tensor[] values, Tensor[] position, Tensor(a!)[] dense) -> ()");
  m.def("pack(Tensor image, Tensor(a!) x, int border) -> ()");
  m.def("unpack(Tensor x, int border, Tensor(a!) image) -> ()");
  m.def("pool_forward(Tensor x, int border, Tensor(a!) pooled) -> ()");
  m.def("pool_backward(Tensor gradient, Tensor(a!) g, int border, bool accumulate) -> ()");
  m.def(
      "shortcut_backward(Tensor g, int g_border, int stride, int offset, Tensor(a!) to, int to_border, bool accumulate) -> ()");
  m.def(
      "finish_gradient(Tensor(a!) g, int g_border, Tensor? x, int x_border, Tensor z, Tensor norm, int samples, Tensor(b!) sums) -> ()");
  m.def("tile_samples(Tensor x, Tensor(a!) tiles) -> ()");
  m.def("untile_samples(Tensor tiles, Tensor(a!) x) -> ()");
  m.def(
      "chain_forward(Tensor[] values, Tensor[] start, Tensor[] offset, int[] relu, Tensor[] bias, Tensor(a!)[] tiles) -> ()");
  m.def(
      "chain_backward(Tensor(a!) gradient, Tensor[] values, Tensor[] start, Tensor[] offset, Tensor[] order, int[] relu, "
      "Tensor[] tiles, Tensor(b!)? input_gradient, Tensor(c!)[] weight_gradient, Tensor(d!)[] bias_gradient) -> ()");
  m.def("sum_features(Tensor z, int samples, Tensor(a!) sums) -> ()");
  m.def("normalise(Tensor z, Tensor affine, bool relu, Tensor(a!) y) -> ()");
  m.def("sum_gradients(Tensor? y, Tensor z, Tensor mean, Tensor(a!) gradient, Tensor(b!) sums) -> ()");
  m.def("normalise_backward(Tensor z, Tensor coefficients, int samples, Tensor(a!) gradient) -> ()");
}

TORCH_LIBRARY_IMPL(sparseopt, CPU, m) {
  m.impl("conv_forward", conv_forward_op);
  m.impl("make_activation", make_activation_op);
  m.impl("conv_backward", conv_backward_op);
  m.impl("batch_norm_forward", batch_norm_forward_op);
  m.impl("batch_norm_backward", batch_norm_backward_op);
  m.impl("gather", gather_op);
  m.impl("scatter", scatter_op);
  m.impl("pack", pack_op);
  m.impl("unpack", unpack_op);
  m.impl("pool_forward", pool_forward_op);
  m.impl("pool_backward", pool_backward_op);
  m.impl("shortcut_backward", shortcut_backward_op);
  m.impl("finish_gradient", finish_gradient_op);
  m.impl("tile_samples", tile_samples_op);
  m.impl("untile_samples", untile_samples_op);
  m.impl("chain_forward", chain_forward_op);
  m.impl("chain_backward", chain_backward_op);
  m.impl("sum_features", sum_features_op);
  m.impl("normalise", normalise_op);
  m.impl("sum_gradients", sum_gradients_op);
  m.impl("normalise_backward", normalise_backward_op);
}

}  // namespace sparseopt
