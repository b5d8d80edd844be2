/* Box-Muller on the lanes of one vector width. _normals.c includes this file once for each kind of processor.

   KIND    its name
   BYTES   size of a vector (64 or 32)
   CIPHER  size of a vector of cipher blocks (64, 32 or 16)
   TARGET  the instructions that the kind needs

   No branch and no address depends on a word: every pair takes the same work. */

#define JOIN_(name, kind) name##_##kind
#define JOIN(name, kind) JOIN_(name, kind)
#define OF(name) JOIN(name, KIND)
#define LANES (BYTES / 8)
#define words OF(words)
#define reals OF(reals)

typedef uint64_t words __attribute__((vector_size(BYTES)));
typedef double reals __attribute__((vector_size(BYTES)));

/* The even (or odd) lanes of a and b in turns. Applied twice, it is the identity on both results. */
#if BYTES == 64
#define EVEN(a, b) __builtin_shufflevector(a, b, 0, 8, 2, 10, 4, 12, 6, 14)
#define ODD(a, b) __builtin_shufflevector(a, b, 1, 9, 3, 11, 5, 13, 7, 15)
#else
#define EVEN(a, b) __builtin_shufflevector(a, b, 0, 4, 2, 6)
#define ODD(a, b) __builtin_shufflevector(a, b, 1, 5, 3, 7)
#endif

/* Signed words to the nearest doubles. Both halves are exact; the sum is rounded once. */
TARGET INLINE reals OF(to_real)(words w) {
    reals low = (reals)((w & 0xffffffffu) | 0x4330000000000000u) - 0x1p52;
    reals high = (reals)((w >> 32 ^ 0x80000000u) | 0x4530000000000000u) - (0x1p84 + 0x1p63);
    return high + low;
}

TARGET INLINE reals OF(magnitude)(reals x) { return (reals)((words)x & 0x7fffffffffffffffu); }

/* ln u for u in [2^-64, 1]: u = 2^e m with m in [sqrt(1/2), sqrt(2)), s = (m - 1) / (m + 1), ln m = 2 atanh s.
   The series ends at s^19: the next term is below 2.4e-17 of the sum. */
TARGET INLINE reals OF(logarithm)(reals u) {
    words bits = (words)u;
    words e = (bits - 0x3fe6a09e667f3bcdu + 0x4000000000000000u) >> 52; /* the exponent + 1024 */
    reals m = (reals)(bits + 0x4000000000000000u - (e << 52));
    reals exponent = (reals)(e | 0x4330000000000000u) - (0x1p52 + 1024);
    reals s = (m - 1.0) / (m + 1.0), z = s * s;
    reals tail = 1.0 / 17 + z * (1.0 / 19);
    tail = 1.0 / 11 + z * (1.0 / 13 + z * (1.0 / 15 + z * tail));
    tail = z * (1.0 / 3 + z * (1.0 / 5 + z * (1.0 / 7 + z * (1.0 / 9 + z * tail))));
    return exponent * 0x1.62e42fefa39efp-1 + 2.0 * (s + s * tail);
}

/* Cosine and sine of pi w / 2^63. The quarter turn is taken off in integers, so it is exact; what is left lies in
   [-pi/4, pi/4], where the series end below 7e-17 of the sums. */
TARGET INLINE void OF(cosine_and_sine)(words w, reals *cosine, reals *sine) {
    words quarter = (w + 0x2000000000000000u) >> 62;
    reals t = OF(to_real)(w - (quarter << 62)) * (PI * 0x1p-63), z = t * t;
    reals c = 1.0 / 479001600 - z * (1.0 / 87178291200 - z * (1.0 / 20922789888000));
    c = 1.0 / 24 - z * (1.0 / 720 - z * (1.0 / 40320 - z * (1.0 / 3628800 - z * c)));
    c = 1.0 - z * (0.5 - z * c);
    reals s = 1.0 / 39916800 - z * (1.0 / 6227020800 - z * (1.0 / 1307674368000));
    s = 1.0 / 120 - z * (1.0 / 5040 - z * (1.0 / 362880 - z * s));
    s = t - t * z * (1.0 / 6 - z * s);
    words odd = -(quarter & 1); /* an odd quarter swaps the two */
    *cosine = (reals)(((odd & (words)s) | (~odd & (words)c)) ^ ((quarter + 1) >> 1) << 63);
    *sine = (reals)(((odd & (words)c) | (~odd & (words)s)) ^ (quarter >> 1) << 63);
}

/* Two vectors of cipher blocks, which are pairs of words, to the normals at the same places. */
TARGET INLINE void OF(box_muller)(const words blocks[2], reals normals[2]) {
    words first = EVEN(blocks[0], blocks[1]), second = ODD(blocks[0], blocks[1]);
    reals u = OF(magnitude)(OF(to_real)(first) + 0.5) * 0x1p-63, cosine, sine;
    reals squares = OF(magnitude)(-2.0 * OF(logarithm)(u)), radius; /* no -0.0 below the root */
    double roots[LANES] __attribute__((aligned(BYTES)));
    memcpy(roots, &squares, BYTES);
    for (int lane = 0; lane < LANES; lane++) roots[lane] = __builtin_sqrt(roots[lane]);
    memcpy(&radius, roots, BYTES);
    OF(cosine_and_sine)(second, &cosine, &sine);
    cosine *= radius, sine *= radius;
    normals[0] = EVEN(cosine, sine), normals[1] = ODD(cosine, sine);
}

/* Key stream blocks first, first + 1, ... of the lane: AES-256 of the counters lane || block, both big-endian. */
TARGET INLINE void OF(encrypt)(const Key *key, uint64_t lane, uint64_t first, words blocks[GROUP / LANES]) {
#if CIPHER == 64
    const __m512i swap = _mm512_set4_epi32(0x08090a0b, 0x0c0d0e0f, 0x00010203, 0x04050607);
    const __m512i steps = _mm512_set_epi64(3, 0, 2, 0, 1, 0, 0, 0);
    __m512i state[4], round = _mm512_broadcast_i32x4(key->rounds[0]);
    for (int i = 0; i < 4; i++) {
        __m512i start = _mm512_broadcast_i32x4(_mm_set_epi64x((int64_t)(first + 4 * i), (int64_t)lane));
        state[i] = _mm512_xor_si512(_mm512_shuffle_epi8(_mm512_add_epi64(start, steps), swap), round);
    }
    for (int r = 1; r < ROUNDS; r++) {
        round = _mm512_broadcast_i32x4(key->rounds[r]);
        for (int i = 0; i < 4; i++) state[i] = _mm512_aesenc_epi128(state[i], round);
    }
    round = _mm512_broadcast_i32x4(key->rounds[ROUNDS]);
    for (int i = 0; i < 4; i++) blocks[i] = (words)_mm512_aesenclast_epi128(state[i], round);
#elif CIPHER == 32
    const __m256i swap = _mm256_broadcastsi128_si256(_mm_set_epi32(0x08090a0b, 0x0c0d0e0f, 0x00010203, 0x04050607));
    __m256i state[8], round = _mm256_broadcastsi128_si256(key->rounds[0]);
    for (int i = 0; i < 8; i++) {
        uint64_t block = first + 2 * (uint64_t)i;
        __m256i start = _mm256_set_epi64x((int64_t)(block + 1), (int64_t)lane, (int64_t)block, (int64_t)lane);
        state[i] = _mm256_xor_si256(_mm256_shuffle_epi8(start, swap), round);
    }
    for (int r = 1; r < ROUNDS; r++) {
        round = _mm256_broadcastsi128_si256(key->rounds[r]);
        for (int i = 0; i < 8; i++) state[i] = _mm256_aesenc_epi128(state[i], round);
    }
    round = _mm256_broadcastsi128_si256(key->rounds[ROUNDS]);
    for (int i = 0; i < 8; i++) blocks[i] = (words)_mm256_aesenclast_epi128(state[i], round);
#else
    const __m128i swap = _mm_set_epi32(0x08090a0b, 0x0c0d0e0f, 0x00010203, 0x04050607);
    for (int half = 0; half < GROUP / 2; half += 8) {
        __m128i state[8];
        for (int i = 0; i < 8; i++) {
            __m128i start = _mm_set_epi64x((int64_t)(first + half + i), (int64_t)lane);
            state[i] = _mm_xor_si128(_mm_shuffle_epi8(start, swap), key->rounds[0]);
        }
        for (int r = 1; r < ROUNDS; r++)
            for (int i = 0; i < 8; i++) state[i] = _mm_aesenc_si128(state[i], key->rounds[r]);
        for (int i = 0; i < 8; i++) state[i] = _mm_aesenclast_si128(state[i], key->rounds[ROUNDS]);
        memcpy((char *)blocks + 16 * half, state, sizeof state);
    }
#endif
}

/* Words to normals, and block numbers to normals: `groups` times GROUP of them. */
TARGET static void OF(transform)(const uint64_t *given, size_t groups, double *out) {
    for (size_t group = 0; group < groups; group++, given += GROUP, out += GROUP) {
        words blocks[GROUP / LANES];
        reals normals[GROUP / LANES];
        memcpy(blocks, given, sizeof blocks);
        for (int at = 0; at < GROUP / LANES; at += 2) OF(box_muller)(blocks + at, normals + at);
        memcpy(out, normals, sizeof normals);
    }
}

TARGET static void OF(draw)(const Key *key, uint64_t lane, uint64_t first, size_t groups, double *out) {
    for (size_t group = 0; group < groups; group++, out += GROUP) {
        words blocks[GROUP / LANES];
        reals normals[GROUP / LANES];
        OF(encrypt)(key, lane, first + group * (GROUP / 2), blocks);
        for (int at = 0; at < GROUP / LANES; at += 2) OF(box_muller)(blocks + at, normals + at);
        memcpy(out, normals, sizeof normals);
    }
}

#define QUOTE_(kind) #kind
#define QUOTE(kind) QUOTE_(kind)
static const Kernel OF(kernel) = {QUOTE(KIND), OF(draw), OF(transform)};

#undef QUOTE_
#undef QUOTE
#undef JOIN_
#undef JOIN
#undef OF
#undef LANES
#undef words
#undef reals
#undef EVEN
#undef ODD
#undef BYTES
#undef CIPHER
#undef KIND
#undef TARGET
