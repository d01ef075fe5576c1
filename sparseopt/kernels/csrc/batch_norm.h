// Batch norm, as the few numbers a channel that the convolutions apply.
//
//   forward   x = (z - mean) * scale + bias            scale = gamma / std, bias = beta
//   backward  dz = a * g + b * (z - mean) + c          from sum g and sum g (z - mean) over the batch
//
// The numbers are rounded to single precision; what that costs is put into bias and c. So dz adds up to zero over the batch, as it
// should, with the a and b that are applied: gradients below are sums in which little else is left.
//
// z is stored minus a shift near its mean (see conv_forward.h); `mean` here is the mean of what is stored.
#pragma once
#include <cmath>
#include <cstdint>

namespace sparseopt {

struct RunningStatistics {
  float *mean, *variance;  // null: not tracked
  double factor;           // weight of this batch
};

// moments [2][channel]: mean and 1 / std of the batch
inline void batch_norm_forward(int channels, int64_t count, const double* sums, const float* shift, const float* gamma,
                               const float* beta, double eps, const RunningStatistics& running, double* moments, float* affine) {
  for (int c = 0; c < channels; ++c) {
    const double mean = sums[c] / count;
    const double difference = sums[channels + c] / count - mean * mean;
    const double variance = difference < 0 ? 0.0 : difference;  // what is not a number stays so
    const double inverse = 1 / std::sqrt(variance + eps), scale = (gamma ? gamma[c] : 1.0) * inverse;
    moments[c] = mean;
    moments[channels + c] = inverse;
    affine[c] = float(mean);
    affine[channels + c] = float(scale);
    affine[2 * channels + c] = float((beta ? beta[c] : 0.0) + (affine[c] - mean) * scale);
    if (!running.mean) continue;
    const double unbiased = variance * count / (count - 1);
    running.mean[c] = float((1 - running.factor) * running.mean[c] + running.factor * (mean + shift[c]));
    running.variance[c] = float((1 - running.factor) * running.variance[c] + running.factor * unbiased);
  }
}

// coefficients [4][channel]: a, b, c, mean. gradients [2][channel]: of gamma and of beta.
inline void batch_norm_backward(int channels, int64_t count, const double* sums, const double* moments, const float* gamma,
                                float* coefficients, float* gradients) {
  for (int c = 0; c < channels; ++c) {
    const double mean = moments[c], inverse = moments[channels + c], scale = (gamma ? gamma[c] : 1.0) * inverse;
    const float rounded = float(mean);  // what the sums were taken with
    const double sum = sums[c], product = (sums[channels + c] + (rounded - mean) * sum) * inverse;
    const double slope = -scale * product * inverse / count;
    coefficients[c] = float(scale);
    coefficients[channels + c] = float(slope);
    coefficients[3 * channels + c] = rounded;
    coefficients[2 * channels + c] =
        float(-coefficients[c] * sum / count + coefficients[channels + c] * (rounded - mean));
    gradients[c] = float(product);
    gradients[channels + c] = float(sum);
  }
}

}  // namespace sparseopt
