/* byte-groups: group the bytes of numbers by their place in the number, and ungroup them; estimate whether grouping pays.
 *
 * Sign and exponent of floats repeat, their other bits are noise. zstd finds the repetitions only if the bytes of each place are
 * stored apart. `width` is 2, 4 or 8; a group is all bytes of one place. The other side is grouping.py.
 */
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

typedef unsigned char byte;

#ifdef __SSE2__
#define AT(p) _mm_loadu_si128((const __m128i *)(p))
#define PUT(p, v) _mm_storeu_si128((__m128i *)(p), v)

/* Return byte `place` of 16 numbers of four bytes. */
static inline __m128i pick4(const __m128i *v, int place) {
    const __m128i low = _mm_set1_epi32(255);
    __m128i a = _mm_and_si128(_mm_srli_epi32(v[0], 8 * place), low), b = _mm_and_si128(_mm_srli_epi32(v[1], 8 * place), low);
    __m128i c = _mm_and_si128(_mm_srli_epi32(v[2], 8 * place), low), d = _mm_and_si128(_mm_srli_epi32(v[3], 8 * place), low);
    return _mm_packus_epi16(_mm_packs_epi32(a, b), _mm_packs_epi32(c, d));
}

/* Join 16 numbers of four bytes from their bytes. */
static inline void join4(const __m128i *p, __m128i *v) {
    __m128i a = _mm_unpacklo_epi8(p[0], p[1]), b = _mm_unpackhi_epi8(p[0], p[1]);
    __m128i c = _mm_unpacklo_epi8(p[2], p[3]), d = _mm_unpackhi_epi8(p[2], p[3]);
    v[0] = _mm_unpacklo_epi16(a, c), v[1] = _mm_unpackhi_epi16(a, c);
    v[2] = _mm_unpacklo_epi16(b, d), v[3] = _mm_unpackhi_epi16(b, d);
}

static inline __m128i dwords(__m128i a, __m128i b, int high) {
    __m128 x = _mm_castsi128_ps(a), y = _mm_castsi128_ps(b);
    return _mm_castps_si128(high ? _mm_shuffle_ps(x, y, 0xdd) : _mm_shuffle_ps(x, y, 0x88));
}

/* Group as many numbers as vector instructions can; return their count, a multiple of 16. */
static size_t group_fast(int width, const byte *from, byte *to, size_t count) {
    size_t i = 0;
    for (; i + 16 <= count; i += 16) {
        const byte *in = from + i * width;
        byte *out = to + i;
        if (width == 2) {
            const __m128i low = _mm_set1_epi16(255);
            __m128i a = AT(in), b = AT(in + 16);
            PUT(out, _mm_packus_epi16(_mm_and_si128(a, low), _mm_and_si128(b, low)));
            PUT(out + count, _mm_packus_epi16(_mm_srli_epi16(a, 8), _mm_srli_epi16(b, 8)));
        } else if (width == 4) {
            __m128i v[4] = {AT(in), AT(in + 16), AT(in + 32), AT(in + 48)};
            for (int place = 0; place < 4; place++) PUT(out + place * count, pick4(v, place));
        } else {
            for (int high = 0; high < 2; high++) {
                __m128i v[4];
                for (int j = 0; j < 4; j++) v[j] = dwords(AT(in + 32 * j), AT(in + 32 * j + 16), high);
                for (int place = 0; place < 4; place++) PUT(out + (4 * high + place) * count, pick4(v, place));
            }
        }
    }
    return i;
}

static size_t ungroup_fast(int width, const byte *const *groups, byte *to, size_t count) {
    size_t i = 0;
    for (; i + 16 <= count; i += 16) {
        byte *out = to + i * width;
        if (width == 2) {
            __m128i a = AT(groups[0] + i), b = AT(groups[1] + i);
            PUT(out, _mm_unpacklo_epi8(a, b));
            PUT(out + 16, _mm_unpackhi_epi8(a, b));
            continue;
        }
        __m128i low[4], high[4], p[4];
        for (int place = 0; place < 4; place++) p[place] = AT(groups[place] + i);
        join4(p, low);
        if (width == 4) {
            for (int j = 0; j < 4; j++) PUT(out + 16 * j, low[j]);
            continue;
        }
        for (int place = 0; place < 4; place++) p[place] = AT(groups[4 + place] + i);
        join4(p, high);
        for (int j = 0; j < 4; j++) {
            PUT(out + 32 * j, _mm_unpacklo_epi32(low[j], high[j]));
            PUT(out + 32 * j + 16, _mm_unpackhi_epi32(low[j], high[j]));
        }
    }
    return i;
}
#else
static size_t group_fast(int width, const byte *from, byte *to, size_t count) { return 0; }
static size_t ungroup_fast(int width, const byte *const *groups, byte *to, size_t count) { return 0; }
#endif

/* Write the groups one after the other, then the bytes after the last whole number. */
void group_bytes(int width, const byte *from, byte *to, size_t length) {
    size_t count = length / width;
    for (size_t i = group_fast(width, from, to, count); i < count; i++)
        for (int place = 0; place < width; place++) to[place * count + i] = from[i * width + place];
    memcpy(to + count * width, from + count * width, length - count * width);
}

/* Undo `group_bytes`. The groups whose bit is set in `mask` lie in `these`, one after the other, followed by the bytes after the
 * last whole number; the other groups lie in `those`. */
void ungroup_bytes(int width, int mask, const byte *these, const byte *those, byte *to, size_t length) {
    size_t count = length / width;
    const byte *groups[8];
    for (int place = 0; place < width; place++) {
        const byte **from = mask >> place & 1 ? &these : &those;
        groups[place] = *from;
        *from += count;
    }
    for (size_t i = ungroup_fast(width, groups, to, count); i < count; i++)
        for (int place = 0; place < width; place++) to[i * width + place] = groups[place][i];
    memcpy(to + count * width, these, length - count * width);
}

/* Return log2 of a number of at least 1, accurate to 1%: the exponent, and a parabola for the fraction. */
static inline float log2_of(float x) {
    union { float f; unsigned u; } bits = {x};
    float exponent = (float)((int)(bits.u >> 23) - 127);
    bits.u = (bits.u & 0x7fffff) | 0x3f800000;
    return exponent + (-0.33333333f * bits.f + 2.0f) * bits.f - 1.66666667f;
}

/* Estimate the size in bits of `total` bytes with these counts after entropy coding. */
static float coded_bits(const unsigned short *counts, unsigned total) {
    float sum = 0, kinds = -1;
    for (int i = 0; i < 256; i++) {
        float count = (float)(int)counts[i];
        sum += count * log2_of(count < 1 ? 1 : count);
        kinds += count < 1 ? 0 : 1;
    }
    /* A small sample underestimates the entropy (correction of Miller and Madow). */
    float bits = (float)total * log2_of((float)total) - sum + kinds * 0.7213f, most = (float)total * 8;
    return bits > most ? most : bits;
}

enum { PIECE = 2048 };
#define NOISE 0.985f /* the compressed share above which numbers have nothing in common */
#define MIXED 0.5f

/* Count bytes by value, and by place in numbers of eight bytes, in pieces spread over the data; return how many were counted. */
static unsigned count_places(const byte *data, size_t length, size_t pieces, unsigned short (*counts)[256]) {
    size_t step = length > pieces * PIECE ? (length - PIECE) / (pieces - 1) / 64 * 64 : PIECE;
    unsigned sample = 0;
    memset(counts, 0, 8 * sizeof *counts);
    for (size_t piece = 0; piece < pieces; piece++) {
        size_t start = piece * step, end = start + PIECE < length ? start + PIECE : length;
        for (size_t at = start; at + 8 <= end; at += 8, sample += 8)
            for (int place = 0; place < 8; place++) counts[place][data[at + place]]++;
    }
    return sample;
}

/* Return the share that remains when an entropy coder gets the bytes of each place apart, for numbers of this width. */
static float size_of(int width, unsigned short (*counts)[256], unsigned sample) {
    unsigned short sums[256];
    float bits = 0;
    for (int place = 0; place < width; place++) {
        if (width < 8)
            for (int value = 0; value < 256; value++) {
                unsigned sum = 0;
                for (int more = place; more < 8; more += width) sum += counts[more][value];
                sums[value] = (unsigned short)sum;
            }
        bits += coded_bits(width < 8 ? sums : counts[place], sample / (unsigned)width);
    }
    return bits / 8 / (float)sample;
}

/* Estimate the shares that remain after entropy coding: of the data as they are, and with the bytes of numbers of 2, 4 and 8 bytes
 * apart. Return 0 if the last share is more than `enough` of the first: a small sample shows that nothing can be gained. */
int grouped_sizes(const byte *data, size_t length, float enough, float *sizes) {
    unsigned short counts[8][256];
    unsigned sample = count_places(data, length, 2, counts);
    if (!sample) return 0;
    float plain = size_of(1, counts, sample);
    /* If the data are mostly zeros, a small sample contains too few of the other bytes. */
    if (plain > NOISE || (plain > MIXED && size_of(8, counts, sample) > enough * plain)) return 0;
    sample = count_places(data, length, 4, counts);
    sizes[0] = size_of(1, counts, sample), sizes[3] = size_of(8, counts, sample);
    if (sizes[3] > enough * sizes[0]) return 0;
    sizes[1] = size_of(2, counts, sample), sizes[2] = size_of(4, counts, sample);
    return 1;
}
