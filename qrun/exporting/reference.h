/* Integer operators of a quantized network: portable C99, integers only, no library but <stdint.h> and <stddef.h>. */
#ifndef QRUN_REFERENCE_H
#define QRUN_REFERENCE_H

#include <stddef.h>
#include <stdint.h>

enum { QRUN_UINT8, QRUN_INT8, QRUN_UINT16, QRUN_INT16, QRUN_UINT4, QRUN_INT4 };
enum {
    QRUN_CONV, QRUN_MATMUL, QRUN_ADD, QRUN_MULTIPLY, QRUN_CONCAT, QRUN_AVERAGE, QRUN_MAXIMUM, QRUN_CLIP, QRUN_TABLE
};
enum { LAYER_SHIFT, LAYER_HIGH_HALF, LAYER_RATIO };
enum { QRUN_EVEN, QRUN_UP, QRUN_DOWN, QRUN_AWAY, QRUN_ZERO, QRUN_FLOOR, QRUN_CUT };

/* How an integer gets another scale.
   LAYER_SHIFT:     value * multiplier * 2^left / 2^right, rounded once.
   LAYER_HIGH_HALF: (value * 2^left, in 32 bits) * multiplier / 2^31, ties up; then / 2^right.
   LAYER_RATIO:     value * multiplier / divisor, ties to even.
   count: 1, or the number of channels. */
typedef struct {
    int rule, ties, count;
    const int64_t *multiplier, *divisor;
    const uint8_t *left, *right;
} qrun_rescale;

/* Codes in C order, without or with a sample axis. stride: elements of a sample, 0 for a constant.
   QRUN_UINT4, QRUN_INT4: two in a byte, the first in its low half.
   zero: one zero point, one for each channel, or one for each sample. */
typedef struct {
    const void *codes;
    int type, zeros, rank;
    const int32_t *zero, *shape;
    size_t stride;
} qrun_tensor;

typedef struct {
    const char *name;
    int kind, samples, inputs;
    const qrun_tensor *input, *weights, *output;
    const qrun_tensor *table; /* output codes of all input codes; its first entry is that of the code `lowest` */
    const int32_t *bias, *accumulators;
    size_t sums;
    const qrun_rescale *rescale;       /* to the output */
    const qrun_rescale *const *before; /* of each input */
    int32_t low, high, zero, lowest;
    /* Geometry; channels_last: images are NHWC and weights OHWI, otherwise NCHW and OIHW. */
    int channels_last, batch, channels, height, width, channels_out, height_out, width_out;
    int kernel_h, kernel_w, stride_h, stride_w, dilation_h, dilation_w, groups;
    int pad_top, pad_left, pad_bottom, pad_right, count_padding, average_codes;
    int rows, depth, columns, transposed, several, axis, shift;
} qrun_layer;

/* A difference: the place in C order, what was computed, and what the vector says. sum: whether it is an accumulator. */
typedef struct {
    int sample, sum;
    size_t place;
    int64_t computed, expected;
} qrun_difference;

int64_t qrun_apply(const qrun_rescale *rescale, int channel, int64_t value);

/* Recompute a layer from its input vector. Returns 1 if sums and codes are those of the vectors, else 0. */
int qrun_check(const qrun_layer *layer, qrun_difference *first);

#endif
