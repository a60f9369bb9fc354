/* Integer operators of a quantized network, each element by itself: short, not fast. */
#include "qrun_reference.h"

static int64_t power(int n) { return (int64_t)1 << n; }

/* value / 2^n rounded down; C leaves the right shift of negative numbers to the compiler. */
static int64_t floor_shift(int64_t value, int n) {
    return value >= 0 ? value >> n : -((-value + power(n) - 1) >> n);
}

static int64_t half_up(int64_t value, int n) { return floor_shift(value + power(n - 1), n); }

static int64_t half_down(int64_t value, int n) { return -half_up(-value, n); }

static int64_t round_shift(int64_t value, int n, int ties) {
    int64_t size = value < 0 ? -value : value, sign = value < 0 ? -1 : 1, near;
    if (n == 0) return value;
    switch (ties) {
    case QRUN_UP: return half_up(value, n);
    case QRUN_DOWN: return half_down(value, n);
    case QRUN_AWAY: return sign * half_up(size, n);
    case QRUN_ZERO: return sign * half_down(size, n);
    case QRUN_FLOOR: return floor_shift(value, n);
    case QRUN_CUT: return sign * floor_shift(size, n);
    default: near = half_up(value, n); return near % 2 ? half_down(value, n) : near;
    }
}

/* value / divisor rounded to nearest, ties to even. */
static int64_t round_ratio(int64_t value, int64_t divisor) {
    int64_t whole = value / divisor, rest = value % divisor;
    if (rest < 0) {
        rest += divisor;
        whole -= 1;
    }
    if (rest > divisor - rest || (rest == divisor - rest && whole % 2)) whole += 1;
    return whole;
}

/* value / divisor rounded to nearest, ties away from zero. */
static int64_t round_away(int64_t value, int64_t divisor) {
    int64_t size = value < 0 ? -value : value;
    int64_t near = (size + divisor / 2) / divisor;
    return value < 0 ? -near : near;
}

static int64_t wrap32(int64_t value) {
    uint32_t bits = (uint32_t)((uint64_t)value & 0xFFFFFFFFu);
    return bits < 0x80000000u ? (int64_t)bits : (int64_t)bits - INT64_C(4294967296);
}

int64_t qrun_apply(const qrun_rescale *rescale, int channel, int64_t value) {
    int at = rescale->count > 1 ? channel : 0;
    int64_t product;
    if (rescale->rule == LAYER_RATIO) return round_ratio(value * rescale->multiplier[at], rescale->divisor[at]);
    if (rescale->rule == LAYER_SHIFT) {
        product = value * rescale->multiplier[at] * power(rescale->left[at]);
        return round_shift(product, rescale->right[at], rescale->ties);
    }
    product = floor_shift(wrap32(value * power(rescale->left[at])) * rescale->multiplier[at] + power(30), 31);
    if (product > INT32_MAX) product = INT32_MAX;
    return round_shift(product, rescale->right[at], rescale->ties);
}

/* A 4-bit number without sign. */
static int32_t half_byte(const uint8_t *packed, size_t at) { return (packed[at / 2] >> (at % 2 ? 4 : 0)) & 15; }

static int32_t code(const qrun_tensor *tensor, int sample, size_t place) {
    size_t at = (size_t)sample * tensor->stride + place;
    switch (tensor->type) {
    case QRUN_UINT8: return ((const uint8_t *)tensor->codes)[at];
    case QRUN_INT8: return ((const int8_t *)tensor->codes)[at];
    case QRUN_UINT16: return ((const uint16_t *)tensor->codes)[at];
    case QRUN_UINT4: return half_byte(tensor->codes, at);
    case QRUN_INT4: return (half_byte(tensor->codes, at) ^ 8) - 8;
    default: return ((const int16_t *)tensor->codes)[at];
    }
}

static int32_t zero_of(const qrun_tensor *tensor, int at) { return tensor->zero[tensor->zeros > 1 ? at : 0]; }

/* The place of [a, b, h, w] in an array whose axes after the first have these sizes; b is its axis of channels. */
static size_t place_of(const qrun_layer *layer, int a, int b, int h, int w, int channels, int height, int width) {
    size_t first = (size_t)a, channel = (size_t)b, row = (size_t)h, column = (size_t)w;
    if (layer->channels_last)
        return ((first * (size_t)height + row) * (size_t)width + column) * (size_t)channels + channel;
    return ((first * (size_t)channels + channel) * (size_t)height + row) * (size_t)width + column;
}

static size_t input_place(const qrun_layer *layer, int n, int c, int h, int w) {
    return place_of(layer, n, c, h, w, layer->channels, layer->height, layer->width);
}

static int64_t conv_sum(const qrun_layer *l, int sample, int n, int m, int oh, int ow) {
    int depth = l->channels / l->groups, first = m / (l->channels_out / l->groups) * depth;
    int64_t sum = l->bias ? l->bias[m] : 0, x_zero = zero_of(l->input, sample), w_zero = zero_of(l->weights, m);
    int c, i, j;
    for (i = 0; i < l->kernel_h; i++) {
        int h = oh * l->stride_h - l->pad_top + i * l->dilation_h;
        if (h < 0 || h >= l->height) continue;
        for (j = 0; j < l->kernel_w; j++) {
            int w = ow * l->stride_w - l->pad_left + j * l->dilation_w;
            if (w < 0 || w >= l->width) continue;
            for (c = 0; c < depth; c++)
                sum += (code(l->input, sample, input_place(l, n, first + c, h, w)) - x_zero) *
                       (code(l->weights, 0, place_of(l, m, c, i, j, depth, l->kernel_h, l->kernel_w)) - w_zero);
        }
    }
    return sum;
}

static int64_t matmul_sum(const qrun_layer *l, int sample, int batch, int row, int column) {
    size_t depth = (size_t)l->depth, columns = (size_t)l->columns, k, matrix = l->several ? (size_t)batch : 0;
    size_t start = ((size_t)batch * (size_t)l->rows + (size_t)row) * depth;
    int64_t sum = l->bias ? l->bias[column] : 0, x_zero = zero_of(l->input, sample);
    int64_t w_zero = zero_of(l->weights, l->weights->stride ? sample : column);
    for (k = 0; k < depth; k++) {
        size_t at = l->transposed ? (size_t)column * depth + k : (matrix * depth + k) * columns + (size_t)column;
        sum += (code(l->input, sample, start + k) - x_zero) * (code(l->weights, sample, at) - w_zero);
    }
    return sum;
}

/* The sum of a window's codes without zero point, or its largest code; the average of codes or of real values. */
static int64_t window(const qrun_layer *l, int sample, int n, int c, int oh, int ow) {
    int64_t sum = 0, count = 0, largest = l->low, zero = l->input->zero ? zero_of(l->input, sample) : 0;
    int i, j;
    for (i = 0; i < l->kernel_h; i++)
        for (j = 0; j < l->kernel_w; j++) {
            int h = oh * l->stride_h - l->pad_top + i * l->dilation_h;
            int w = ow * l->stride_w - l->pad_left + j * l->dilation_w;
            int inside = h >= 0 && h < l->height && w >= 0 && w < l->width;
            if (inside) {
                int64_t value = code(l->input, sample, input_place(l, n, c, h, w));
                sum += value - zero;
                if (value > largest) largest = value;
            }
            count += inside || (l->count_padding && h >= -l->pad_top && h < l->height + l->pad_bottom &&
                                w >= -l->pad_left && w < l->width + l->pad_right);
        }
    if (l->kind == QRUN_MAXIMUM) return largest;
    if (l->average_codes) return round_away(sum + count * zero, count) - zero;
    return round_ratio(sum * l->rescale->multiplier[0], l->rescale->divisor[0] * count);
}

/* The place in an operand of a place in the output; axes of size 1 are repeated. */
static size_t broadcast(const qrun_tensor *operand, const qrun_tensor *output, size_t place) {
    size_t at = 0, step = 1;
    int axis;
    for (axis = output->rank - 1; axis >= 0; axis--) {
        size_t index = place % (size_t)output->shape[axis];
        place /= (size_t)output->shape[axis];
        if (operand->shape[axis] > 1) at += index * step;
        step *= (size_t)operand->shape[axis];
    }
    return at;
}

static int64_t pair(const qrun_layer *l, int sample, size_t place) {
    const qrun_tensor *a = &l->input[0], *b = &l->input[1];
    int64_t left = code(a, sample, broadcast(a, l->output, place)) - zero_of(a, sample);
    int64_t right = code(b, sample, broadcast(b, l->output, place)) - zero_of(b, sample);
    if (l->kind == QRUN_MULTIPLY) return qrun_apply(l->rescale, 0, left * right);
    left = qrun_apply(l->before[0], 0, left * power(l->shift));
    right = qrun_apply(l->before[1], 0, right * power(l->shift));
    return qrun_apply(l->rescale, 0, left + right);
}

static int64_t joined(const qrun_layer *l, int sample, size_t place) {
    size_t inner = 1, length = (size_t)l->output->shape[l->axis], index, outer;
    int axis, part = 0;
    for (axis = l->axis + 1; axis < l->output->rank; axis++) inner *= (size_t)l->output->shape[axis];
    index = place / inner % length;
    outer = place / inner / length;
    while (index >= (size_t)l->input[part].shape[l->axis]) index -= (size_t)l->input[part++].shape[l->axis];
    place = (outer * (size_t)l->input[part].shape[l->axis] + index) * inner + place % inner;
    return qrun_apply(l->before[part], 0, code(&l->input[part], sample, place) - zero_of(&l->input[part], sample));
}

static int64_t looked_up(const qrun_layer *l, int sample, size_t place) {
    return code(l->table, 0, (size_t)(code(l->input, sample, place) - l->lowest)) - l->zero;
}

/* Sums differ in the first place that is not as the vector says. */
static int differs(qrun_difference *first, int sum, int sample, size_t place, int64_t computed, int64_t expected) {
    first->sum = sum;
    first->sample = sample;
    first->place = place;
    first->computed = computed;
    first->expected = expected;
    return computed != expected;
}

static int64_t limited(const qrun_layer *layer, int64_t value) {
    value += layer->zero;
    return value < layer->low ? layer->low : value > layer->high ? layer->high : value;
}

/* Compare a sum, and the code that it becomes. */
static int check_sum(const qrun_layer *l, qrun_difference *first, int sample, size_t place, int channel, int64_t sum) {
    if (differs(first, 1, sample, place, sum, l->accumulators[(size_t)sample * l->sums + place])) return 0;
    if (!l->rescale) return 1;
    sum = limited(l, qrun_apply(l->rescale, channel, sum));
    return !differs(first, 0, sample, place, sum, code(l->output, sample, place));
}

static int check_images(const qrun_layer *l, qrun_difference *first, int sample) {
    int n, c, h, w, count = l->kind == QRUN_CONV ? l->channels_out : l->channels;
    for (n = 0; n < l->batch; n++)
        for (c = 0; c < count; c++)
            for (h = 0; h < l->height_out; h++)
                for (w = 0; w < l->width_out; w++) {
                    size_t place = place_of(l, n, c, h, w, count, l->height_out, l->width_out);
                    int64_t value;
                    if (l->kind == QRUN_CONV) {
                        if (!check_sum(l, first, sample, place, c, conv_sum(l, sample, n, c, h, w))) return 0;
                        continue;
                    }
                    value = limited(l, window(l, sample, n, c, h, w));
                    if (differs(first, 0, sample, place, value, code(l->output, sample, place))) return 0;
                }
    return 1;
}

static int check_matrices(const qrun_layer *l, qrun_difference *first, int sample) {
    int batch, row, column;
    size_t place = 0;
    for (batch = 0; batch < l->batch; batch++)
        for (row = 0; row < l->rows; row++)
            for (column = 0; column < l->columns; column++, place++)
                if (!check_sum(l, first, sample, place, column, matmul_sum(l, sample, batch, row, column))) return 0;
    return 1;
}

static int check_elements(const qrun_layer *l, qrun_difference *first, int sample) {
    size_t place;
    for (place = 0; place < l->output->stride; place++) {
        int64_t value = l->kind == QRUN_CONCAT  ? joined(l, sample, place)
                        : l->kind == QRUN_CLIP  ? code(l->input, sample, place)
                        : l->kind == QRUN_TABLE ? looked_up(l, sample, place)
                                                : pair(l, sample, place);
        value = limited(l, value);
        if (differs(first, 0, sample, place, value, code(l->output, sample, place))) return 0;
    }
    return 1;
}

int qrun_check(const qrun_layer *layer, qrun_difference *first) {
    int sample, same = 1;
    for (sample = 0; same && sample < layer->samples; sample++) {
        if (layer->kind == QRUN_CONV || layer->kind == QRUN_AVERAGE || layer->kind == QRUN_MAXIMUM)
            same = check_images(layer, first, sample);
        else if (layer->kind == QRUN_MATMUL)
            same = check_matrices(layer, first, sample);
        else
            same = check_elements(layer, first, sample);
    }
    return same;
}
