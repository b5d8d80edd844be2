/* Standard normals from AES-256 in counter mode, added to an array: the compiled twin of normals.py.

   Same words, positions and formula as there. It needs a processor with AES, AVX2 and FMA instructions; elsewhere the
   import fails and normals.py does the work.

   Threads take small pieces from a common counter, so a busy core delays a call by one piece at most. They are those of
   the OpenMP library that torch has loaded: these wait actively after each of torch's own calls, and a thread of ours
   would get no core beside them. In a forked process, where OpenMP's threads are missing, and without OpenMP, threads
   live for one call only and block all signals. All run without the interpreter lock. */

#define _GNU_SOURCE /* RTLD_DEFAULT */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#if !(defined(__x86_64__) && defined(__GNUC__) && defined(__unix__))
PyMODINIT_FUNC PyInit__normals(void) {
    PyErr_SetString(PyExc_ImportError, "compiled noise needs an x86-64 processor, and gcc or clang");
    return NULL;
}
#else

#include <dlfcn.h>
#include <immintrin.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#define INLINE static inline __attribute__((always_inline))
#define PI 3.14159265358979323846
#define GROUP 32    /* normals made at once: 16 blocks */
#define PIECE 16384 /* normals that a thread takes at a time: a multiple of PART */
#define PART 2048   /* normals between cipher and target: they fit the fastest cache */
#define ROUNDS 14
#define MOST_THREADS 64

typedef struct {
    __m128i rounds[ROUNDS + 1];
} Key;

typedef struct {
    const char *name;
    void (*draw)(const Key *, uint64_t lane, uint64_t first, size_t groups, double *out);
    void (*transform)(const uint64_t *words, size_t groups, double *out);
} Kernel;

#define KIND vaes512
#define BYTES 64
#define CIPHER 64
#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,vaes,fma,prefer-vector-width=512")))
#include "_normals_lanes.h"
#define KIND vaes256
#define BYTES 32
#define CIPHER 32
#define TARGET __attribute__((target("aes,vaes,avx2,fma")))
#include "_normals_lanes.h"
#define KIND aes512
#define BYTES 64
#define CIPHER 16
#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,aes,fma,prefer-vector-width=512")))
#include "_normals_lanes.h"
#define KIND aes256
#define BYTES 32
#define CIPHER 16
#define TARGET __attribute__((target("aes,avx2,fma")))
#include "_normals_lanes.h"

static const Kernel *kernel; /* the fastest that the processor has */

/* The key schedule ----------------------------------------------------------------------------------------------- */

__attribute__((target("aes"))) INLINE __m128i next_key(__m128i key, __m128i assist) {
    key = _mm_xor_si128(key, _mm_slli_si128(key, 4));
    key = _mm_xor_si128(key, _mm_slli_si128(key, 8));
    return _mm_xor_si128(key, assist);
}

#define EXPAND(r, constant)                                                                              \
    k[r] = next_key(k[(r) - 2], _mm_shuffle_epi32(_mm_aeskeygenassist_si128(k[(r) - 1], constant), 0xff)); \
    if ((r) < ROUNDS)                                                                                    \
        k[(r) + 1] = next_key(k[(r) - 1], _mm_shuffle_epi32(_mm_aeskeygenassist_si128(k[r], 0), 0xaa));

__attribute__((target("aes"))) static void expand(const char bytes[32], Key *key) {
    __m128i k[ROUNDS + 2];
    memcpy(k, bytes, 32);
    EXPAND(2, 0x01)
    EXPAND(4, 0x02)
    EXPAND(6, 0x04)
    EXPAND(8, 0x08)
    EXPAND(10, 0x10)
    EXPAND(12, 0x20)
    EXPAND(14, 0x40)
    memcpy(key->rounds, k, sizeof key->rounds);
}

/* The work of one call ------------------------------------------------------------------------------------------- */

typedef struct {
    Key key;
    uint64_t lane, first;
    void *target;
    size_t count, taken, made; /* shared by threads: the values that some thread has begun or done, and those done */
    double std;
    int is_double, is_new; /* whether the normals themselves are written, in place of what the target holds */
} Job;

/* target[start .. stop-1] = normals. Whole groups are made where they stay. */
static void write_part(const Job *job, size_t start, size_t stop) {
    double *out = (double *)job->target + start, rest[GROUP] __attribute__((aligned(64)));
    size_t groups = (stop - start) / GROUP, left = (stop - start) % GROUP;
    uint64_t block = job->first + start / 2;
    kernel->draw(&job->key, job->lane, block, groups, out);
    if (!left) return;
    kernel->draw(&job->key, job->lane, block + groups * (GROUP / 2), 1, rest);
    memcpy(out + groups * GROUP, rest, left * sizeof *rest);
}

/* target[start .. stop-1] += std * normals: product and sum in double as in normals.py, so without FMA; rounded once. */
__attribute__((target("avx2"))) static void add_part(const Job *job, size_t start, size_t stop) {
    double noise[PART] __attribute__((aligned(64)));
    kernel->draw(&job->key, job->lane, job->first + start / 2, (stop - start + GROUP - 1) / GROUP, noise);
    if (job->is_double) {
        double *out = (double *)job->target + start;
        for (size_t i = 0; i < stop - start; i++) out[i] += job->std * noise[i];
    } else {
        float *out = (float *)job->target + start;
        for (size_t i = 0; i < stop - start; i++) out[i] = (float)(out[i] + job->std * noise[i]);
    }
}

/* The same for normals that were drawn before. */
__attribute__((target("avx2"))) static void add_given(double std, const double *noise, size_t count, float *out) {
    for (size_t i = 0; i < count; i++) out[i] = (float)(out[i] + std * noise[i]);
}

static void *work(void *given) {
    Job *job = given;
    for (;;) {
        size_t start = __atomic_fetch_add(&job->taken, PIECE, __ATOMIC_RELAXED);
        if (start >= job->count) return NULL;
        size_t stop = job->count - start < PIECE ? job->count : start + PIECE;
        if (job->is_new) write_part(job, start, stop);
        else
            for (size_t at = start; at < stop; at += PART) add_part(job, at, stop - at < PART ? stop : at + PART);
        __atomic_fetch_add(&job->made, stop - start, __ATOMIC_RELEASE);
    }
}

/* GOMP_parallel of the OpenMP library that torch has loaded, which the common names of the process include. */
typedef void (*Parallel)(void (*work)(void *), void *data, unsigned threads, unsigned flags);
static Parallel openmp;

static void forget_openmp(void) { openmp = NULL; }

static void work_in_team(void *given) { work(given); }

/* Whether a thread for the job could be had. It takes no signals: Python handles them in its own threads. */
static int start_thread(pthread_t *thread, Job *job) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(thread, NULL, work, job);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return !failed;
}

/* This thread works too, so a thread that cannot be had costs time only. */
static void share_out(Job *job, long threads) {
    if (openmp && threads > 1) {
        openmp(work_in_team, job, (unsigned)threads, 0);
        return;
    }
    pthread_t others[MOST_THREADS];
    long begun = 0;
    while (begun < threads - 1 && start_thread(&others[begun], job)) begun++;
    work(job);
    while (begun) pthread_join(others[--begun], NULL);
}

/* Python --------------------------------------------------------------------------------------------------------- */

static PyObject *add(PyObject *module, PyObject *args) {
    const char *key;
    Py_ssize_t key_bytes;
    unsigned long long lane, first;
    PyObject *array;
    double std;
    long threads;
    Job job = {0};
    Py_buffer view;
    if (!PyArg_ParseTuple(args, "y#KKOdl", &key, &key_bytes, &lane, &first, &array, &std, &threads)) return NULL;
    if (PyObject_GetBuffer(array, &view, PyBUF_WRITABLE | PyBUF_FORMAT | PyBUF_C_CONTIGUOUS) != 0) return NULL;
    job.is_double = strcmp(view.format, "d") == 0;
    if (key_bytes != 32 || !(job.is_double || strcmp(view.format, "f") == 0)) {
        PyBuffer_Release(&view);
        PyErr_SetString(PyExc_ValueError, "add takes a key of 32 bytes and an array of float32 or float64");
        return NULL;
    }
    job.lane = lane, job.first = first, job.std = std;
    job.target = view.buf, job.count = (size_t)(view.len / view.itemsize);
    Py_BEGIN_ALLOW_THREADS
    expand(key, &job.key);
    long useful = (long)((job.count + PIECE - 1) / PIECE);
    /* OpenMP ends threads that a smaller team leaves over, and torch would start them again: all or none. */
    if (!openmp || useful == 1) threads = threads < useful ? threads : useful;
    share_out(&job, threads < MOST_THREADS ? threads : MOST_THREADS);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&view);
    Py_RETURN_NONE;
}

static PyObject *add_scaled(PyObject *module, PyObject *args) {
    PyObject *array, *given;
    double std;
    Py_buffer target, noise;
    if (!PyArg_ParseTuple(args, "OOd", &array, &given, &std)) return NULL;
    if (PyObject_GetBuffer(array, &target, PyBUF_WRITABLE | PyBUF_FORMAT | PyBUF_C_CONTIGUOUS) != 0) return NULL;
    if (PyObject_GetBuffer(given, &noise, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS) != 0) {
        PyBuffer_Release(&target);
        return NULL;
    }
    int fits = strcmp(target.format, "f") == 0 && strcmp(noise.format, "d") == 0 && 2 * target.len == noise.len;
    Py_BEGIN_ALLOW_THREADS
    if (fits) add_given(std, noise.buf, (size_t)noise.len / sizeof(double), target.buf);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&target);
    PyBuffer_Release(&noise);
    if (fits) Py_RETURN_NONE;
    PyErr_SetString(PyExc_ValueError, "add_scaled takes an array of float32, and as many normals in float64");
    return NULL;
}

/* A draw beside other work: a thread of its own writes normals, without the interpreter lock, until `finish`, which
   takes over what the thread has not begun. The capsule holds the array, so its memory stays as long as the thread. */

typedef struct {
    Job job;
    Py_buffer view;
    pthread_t thread;
    pid_t process; /* that has the thread: a forked one has the memory alone */
    int is_running;
} Ahead;

static const char *const AHEAD = "discreet.core.generators._normals.ahead";

static void join(Ahead *ahead) {
    if (ahead->is_running && ahead->process == getpid()) pthread_join(ahead->thread, NULL);
    ahead->is_running = 0;
}

static void drop(PyObject *capsule) {
    Ahead *ahead = PyCapsule_GetPointer(capsule, AHEAD);
    __atomic_store_n(&ahead->job.taken, ahead->job.count, __ATOMIC_RELAXED); /* the thread ends after its piece */
    Py_BEGIN_ALLOW_THREADS
    join(ahead);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&ahead->view);
    PyMem_Free(ahead);
}

static PyObject *begin(PyObject *module, PyObject *args) {
    const char *key;
    Py_ssize_t key_bytes;
    unsigned long long lane, first;
    PyObject *array;
    int beside;
    if (!PyArg_ParseTuple(args, "y#KKOp", &key, &key_bytes, &lane, &first, &array, &beside)) return NULL;
    Ahead *ahead = PyMem_Calloc(1, sizeof *ahead);
    if (!ahead) return PyErr_NoMemory();
    if (PyObject_GetBuffer(array, &ahead->view, PyBUF_WRITABLE | PyBUF_FORMAT | PyBUF_C_CONTIGUOUS) != 0) {
        PyMem_Free(ahead);
        return NULL;
    }
    PyObject *capsule = NULL;
    if (key_bytes != 32 || strcmp(ahead->view.format, "d") != 0)
        PyErr_SetString(PyExc_ValueError, "begin takes a key of 32 bytes and an array of float64");
    else
        capsule = PyCapsule_New(ahead, AHEAD, drop);
    if (!capsule) {
        PyBuffer_Release(&ahead->view);
        PyMem_Free(ahead);
        return NULL;
    }
    Job *job = &ahead->job;
    expand(key, &job->key);
    job->lane = lane, job->first = first, job->is_new = 1;
    job->target = ahead->view.buf, job->count = (size_t)ahead->view.len / sizeof(double);
    ahead->process = getpid();
    if (beside) ahead->is_running = start_thread(&ahead->thread, job);
    return capsule;
}

static PyObject *finish(PyObject *module, PyObject *capsule) {
    Ahead *ahead = PyCapsule_GetPointer(capsule, AHEAD);
    if (!ahead) return NULL;
    Job *job = &ahead->job;
    Py_BEGIN_ALLOW_THREADS
    work(job);
    join(ahead);
    if (job->made != job->count) { /* a process that was forked in between has begun pieces that nobody ends */
        job->taken = job->made = 0;
        work(job);
    }
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* For tests: the transform of chosen words, other threads, and slower kernels on a processor that has several. */

static PyObject *transform(PyObject *module, PyObject *args) {
    PyObject *given, *made;
    Py_buffer words, normals;
    if (!PyArg_ParseTuple(args, "OO", &given, &made)) return NULL;
    if (PyObject_GetBuffer(given, &words, PyBUF_C_CONTIGUOUS) != 0) return NULL;
    if (PyObject_GetBuffer(made, &normals, PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS) != 0) {
        PyBuffer_Release(&words);
        return NULL;
    }
    int fits = words.len == normals.len && words.len % (8 * GROUP) == 0;
    if (fits) kernel->transform(words.buf, (size_t)words.len / (8 * GROUP), normals.buf);
    PyBuffer_Release(&words);
    PyBuffer_Release(&normals);
    if (fits) Py_RETURN_NONE;
    PyErr_SetString(PyExc_ValueError, "transform takes arrays of 64-bit words and float64, a multiple of 32 each");
    return NULL;
}

/* The kernels that this processor has, the fastest first, and NULL. */
static const Kernel *const *kernels(void) {
    static const Kernel *own[5];
    int count = 0, wide = __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                          __builtin_cpu_supports("avx512vl");
    int narrow = __builtin_cpu_supports("aes") && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (narrow && wide && __builtin_cpu_supports("vaes")) own[count++] = &kernel_vaes512;
    if (narrow && __builtin_cpu_supports("vaes")) own[count++] = &kernel_vaes256;
    if (narrow && wide) own[count++] = &kernel_aes512;
    if (narrow) own[count++] = &kernel_aes256;
    own[count] = NULL;
    return own;
}

static PyObject *use_kernel(PyObject *module, PyObject *args) {
    const char *name;
    if (!PyArg_ParseTuple(args, "s", &name)) return NULL;
    for (const Kernel *const *own = kernels(); *own; own++)
        if (!*name || strcmp((*own)->name, name) == 0) {
            kernel = *own;
            Py_RETURN_TRUE;
        }
    Py_RETURN_FALSE;
}

static PyObject *use_openmp(PyObject *module, PyObject *args) {
    int wanted;
    if (!PyArg_ParseTuple(args, "p", &wanted)) return NULL;
    openmp = wanted ? (Parallel)dlsym(RTLD_DEFAULT, "GOMP_parallel") : NULL;
    return PyBool_FromLong(openmp != NULL);
}

static PyMethodDef methods[] = {
    {"add", add, METH_VARARGS,
     "add(key, lane, first, array, std, threads): array += std * the normals from pair `first` on."},
    {"begin", begin, METH_VARARGS,
     "begin(key, lane, first, array, beside): write the normals from pair `first` on, on a thread if `beside`; for finish."},
    {"finish", finish, METH_O, "finish(begun): draw what is left, and wait for the thread. It may be called again."},
    {"add_scaled", add_scaled, METH_VARARGS, "add_scaled(array, normals, std): array += std * normals."},
    {"transform", transform, METH_VARARGS, "transform(words, normals): Box-Muller, pair by pair."},
    {"use_openmp", use_openmp, METH_VARARGS, "use_openmp(wanted): whether torch's threads do the work from now on."},
    {"use_kernel", use_kernel, METH_VARARGS, "use_kernel(name): use this kernel, or the fastest for ''; whether there is one."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_normals", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__normals(void) {
    __builtin_cpu_init();
    kernel = *kernels();
    openmp = (Parallel)dlsym(RTLD_DEFAULT, "GOMP_parallel");
    pthread_atfork(NULL, NULL, forget_openmp);
    if (kernel) return PyModule_Create(&definition);
    PyErr_SetString(PyExc_ImportError, "compiled noise needs a processor with AES, AVX2 and FMA instructions");
    return NULL;
}
#endif
