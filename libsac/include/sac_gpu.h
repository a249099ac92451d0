/* SPDX-License-Identifier: Apache-2.0
 *
 * libsac on the GPU: devices, a pool's memory registered with CUDA, kernels compiled at
 * run time. Conventions are those of sac.h. The CUDA driver and NVRTC are looked for when
 * they are first needed; without them these calls fail with SAC_E_GPU and nothing else of
 * the library does. Streams are numbers: a CUstream cast to uintptr_t, of the primary
 * context of the device. docs/gpu.md.
 */
#ifndef SAC_GPU_H
#define SAC_GPU_H

#include "sac.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------ device */

typedef struct sac_gpu sac_gpu;

typedef struct sac_gpu_info {
    int32_t ordinal;
    int32_t major, minor; /* compute capability: 9, 0 is sm_90 */
    int32_t numa_node;    /* of the host, nearest to the GPU; -1: not known */
    int32_t multiprocessors;
    int32_t driver_version; /* of CUDA that the driver knows: 13000 for 13.0 */
    uint32_t can_register;  /* 1: memory of the host can be registered, and is seen at the
                               host's own addresses */
    uint32_t can_register_read_only;
    uint64_t memory_bytes;
    uint64_t free_bytes; /* now */
    char name[128];
    char pci[32]; /* "0000:17:00.0" */
} sac_gpu_info;

/* Takes the primary context of a GPU, by CUDA's number of it. SAC_E_GPU, SAC_E_RANGE. */
SAC_API int sac_gpu_open(int32_t ordinal, sac_gpu **out);
SAC_API int sac_gpu_get_info(sac_gpu *gpu, sac_gpu_info *out);
SAC_API int sac_gpu_close(sac_gpu *gpu);

/* ------------------------------------------------------------ registration */

typedef struct sac_gpu_registration sac_gpu_registration;

typedef enum sac_registration_state {
    SAC_REGISTRATION_RUNNING = 0,    /* some of it is not registered yet */
    SAC_REGISTRATION_REGISTERED = 1, /* all of it, but for dead memory */
    SAC_REGISTRATION_REFUSED = 2,    /* not all of it, and nothing more is tried: reason */
    SAC_REGISTRATION_ENDED = 3       /* it is not registered any more */
} sac_registration_state;

typedef struct sac_registration_info {
    uint32_t state; /* sac_registration_state */
    uint32_t chunks, chunks_done;
    int32_t result;         /* of the driver's call that was refused; 0: none */
    uint64_t bytes;         /* of the pool's memory in this process */
    uint64_t bytes_done;    /* that the GPU can read now */
    uint64_t bytes_foreign; /* of these, registered by somebody else in the process */
    char reason[512];       /* of a refusal: a sentence */
} sac_registration_info;

/* Begins to register the memory of the namespace's pool with CUDA, in a thread in the
 * background, chunk_bytes at once (0: 64 GiB; a multiple of 4096). Once a process and pool:
 * a second call, also for another namespace or GPU, gets what there is. It stays, whatever
 * handles are closed, until the pool's memory is unmapped. Memory that the engine registered
 * already counts, and stays the engine's. */
SAC_API int sac_gpu_register(sac_gpu *gpu, sac_ns *ns, uint64_t chunk_bytes,
                             sac_gpu_registration **out);
/* Waits until all is registered. SAC_E_GPU: refused, with the reason; SAC_E_BUSY: not after
 * timeout_ms. */
SAC_API int sac_gpu_registration_wait(sac_gpu_registration *registration, uint64_t timeout_ms);
SAC_API int sac_gpu_registration_get_info(sac_gpu_registration *registration,
                                          sac_registration_info *out);
/* Unregisters now what sac_gpu_register registered, for an orderly end before the pool is
 * closed. No kernel of the caller's may be reading it. */
SAC_API int sac_gpu_unregister(sac_gpu_registration *registration);
/* Ends the handle, not the registration. */
SAC_API int sac_gpu_registration_close(sac_gpu_registration *registration);

/* ----------------------------------------------------------------- kernels */

/* A path of libnvrtc.so to try before the system's; SAC_NVRTC in the environment goes first.
 * No effect once a kernel was compiled. */
SAC_API int sac_gpu_set_nvrtc(const char *path);

typedef struct sac_gpu_source {
    const char *name; /* "args.h" */
    const char *text;
    uint64_t bytes;
} sac_gpu_source;

/* Source i of those in the library; SAC_E_RANGE behind the last. */
SAC_API int sac_gpu_get_source(uint32_t i, sac_gpu_source *out);

typedef struct sac_gpu_macro {
    const char *name;
    const char *value;
} sac_gpu_macro;

typedef struct sac_gpu_compiled {
    uint64_t cubin_bytes;
    uint32_t cached;    /* 1: it was in the cache on disk */
    uint32_t nvrtc;     /* 13000 for 13.0 */
    uint64_t log_bytes; /* of the compiler's log, which says what each kernel uses */
    char arch[16];      /* that it was compiled for */
    char not_kept[256]; /* why the cache could not be used; "" where it was */
} sac_gpu_compiled;

/* Compiles one of the library's sources for an architecture ("sm_90"), or takes it from the
 * cache; needs NVRTC, no GPU. log (may be NULL) has room for log_room bytes, zero included.
 * Meant for tests, and to fill the cache before an engine starts. SAC_E_NOT_FOUND, SAC_E_ARG,
 * SAC_E_GPU (no NVRTC; or the compiler's log). */
SAC_API int sac_gpu_compile(const char *source, const char *arch, const sac_gpu_macro *macros,
                            uint32_t count, sac_gpu_compiled *out, char *log,
                            uint64_t log_room);

/* -------------------------------------------------------------- hot buffer */

/* Rows of the pool in GPU memory: for each request (and head, where a plane has heads: a
 * lane) and layer so many slots, an exact cache that sac_hot_resolve fills by one kernel,
 * straight from the pool. docs/hot-buffer.md.
 *
 * A unit is what a selection names and a slot holds: `block` rows one after another of every
 * plane of a group. A row is a token, or tokens_per_row of them.
 *
 * All of what follows goes into a stream and waits for nothing. What changes a request (bind,
 * extend, truncate, written, release, refresh) must not be captured into a graph; what a step
 * launches (resolve, prefetch, replay, append) can, and the graph sees what was changed before
 * its replay. Calls for one request go into one stream, or into streams ordered by events; with
 * SAC_HOT_CPU, whose threads stage one step's rows at a time, those of all requests. */
typedef struct sac_hot sac_hot;

typedef enum sac_hot_policy { /* which unit leaves first */
                              SAC_HOT_LRU = 0,
                              SAC_HOT_FIFO = 1,
                              SAC_HOT_RANDOM = 2,
                              SAC_HOT_CLOCK = 3,
                              SAC_HOT_LRU_SCORE = 4 /* least recently used; of one step, that of
                                                       the lowest score */
} sac_hot_policy;

enum {
    SAC_HOT_PADDED = 1,    /* options: slots at multiples of 128 bytes */
    SAC_HOT_CPU = 2,       /* options: CPU threads gather the rows and copy them; else the GPU
                              reads the pool, which must be registered */
    SAC_HOT_NO_BYPASS = 1, /* bind: contexts that fit into the slots are cached all the same */
    SAC_HOT_PLAN_ONLY = 1  /* call: no rows are copied; for measurements */
};

typedef struct sac_hot_share {
    uint32_t layer, leader; /* layer takes the leader's selections */
} sac_hot_share;

typedef struct sac_hot_options {
    uint32_t struct_size;
    uint32_t flags;         /* SAC_HOT_PADDED, SAC_HOT_CPU */
    uint32_t requests;      /* that can be bound at once, 1 .. 65,535 */
    uint32_t slots;         /* a lane and layer, 1 .. 8,192 */
    uint32_t top_k;         /* most entries of a selection, 1 .. slots */
    uint32_t block;         /* rows of a unit, 1 .. 128, dividing a page's rows; 0: 1 */
    uint32_t policy;        /* sac_hot_policy */
    uint32_t threads;       /* of the CPU, with SAC_HOT_CPU; 0: chosen */
    uint64_t max_tokens;    /* of a context; 0: 131,072 */
    uint64_t timeout_ms;    /* how long to wait for the registration; 0: 10 minutes */
    const uint32_t *groups; /* numbers of groups of kind ROWS; NULL: the first plane's */
    const sac_hot_share *share;
    uint32_t group_count, share_count;
} sac_hot_options;

typedef struct sac_hot_info {
    uint64_t rows_bytes;   /* of GPU memory: the slots; */
    uint64_t state_bytes;  /* what each lane and layer has in them, in which order; */
    uint64_t table_bytes;  /* the requests' pages, counters */
    uint64_t memory_bytes; /* all of these */
    uint64_t max_tokens;
    uint32_t requests, slots, top_k, block;
    uint32_t threads; /* of a thread block of the kernels */
    uint32_t flags;   /* as the options' */
} sac_hot_info;

/* Where a plane's rows of a layer lie: slot s of lane l at rows + (l * slots + s) * slot_pitch,
 * its rows row_pitch apart. Lane: request * heads + head. */
typedef struct sac_hot_plane {
    uint64_t rows; /* address */
    uint32_t group;
    uint32_t heads, lanes;
    uint32_t slot_pitch, row_pitch, row_bytes;
} sac_hot_plane;

/* Takes the GPU memory, compiles the kernels, registers the namespace's pool where that was
 * not done. SAC_E_ARG says which option does not go; SAC_E_GPU, SAC_E_BUSY (registration). */
SAC_API int sac_hot_open(sac_gpu *gpu, sac_ns *ns, const sac_hot_options *options,
                         sac_hot **out);
/* Looks at options without a GPU: SAC_E_ARG and SAC_E_NOT_FOUND as sac_hot_open gives them, but
 * for the shared memory that the GPU has. */
SAC_API int sac_hot_check(sac_ns *ns, const sac_hot_options *options);
SAC_API int sac_hot_get_info(sac_hot *hot, sac_hot_info *out);
SAC_API int sac_hot_get_plane(sac_hot *hot, uint32_t plane, uint32_t layer, sac_hot_plane *out);

/* Request joins, with a prefix or a sequence's view, whose pages stay pinned until the GPU is
 * done with them after release, whatever is closed before. Its slots are empty, its error bits
 * clear; a context that fits into the slots is loaded now, whole, and later steps copy nothing
 * (but see SAC_HOT_NO_BYPASS). SAC_E_BUSY: it is bound. */
SAC_API int sac_hot_bind(sac_hot *hot, uint32_t request, const sac_prefix *prefix,
                         uint32_t flags, uintptr_t stream);
/* The requests have now what their sequences have: tokens, and pages. Rows of new tokens must
 * be written before a step selects them: by sac_seq_write before this call, or by
 * sac_hot_append after it. */
SAC_API int sac_hot_extend(sac_hot *hot, const uint32_t *requests, uint32_t count,
                           uintptr_t stream);
/* Takes the bound sequence's tokens from number `tokens` on back (those in committed pages
 * cannot be), here and in the sequence: drafts that were not accepted. */
SAC_API int sac_hot_truncate(sac_hot *hot, uint32_t request, uint64_t tokens, uintptr_t stream);
/* What the stream was given so far writes all rows of the buffer's planes up to the tokens of
 * the last extend: behind it their pages may be committed, which the sequence does by itself
 * when it is extended or flushed. */
SAC_API int sac_hot_written(sac_hot *hot, const uint32_t *requests, uint32_t count,
                            uintptr_t stream);
SAC_API int sac_hot_release(sac_hot *hot, uint32_t request, uintptr_t stream);
/* Looks for pages whose memory died; steps after this take them for missing. *dead (may be
 * NULL): how many there are, of all bound requests. bind and extend look as well. */
SAC_API int sac_hot_refresh(sac_hot *hot, uintptr_t stream, uint64_t *dead);

typedef struct sac_hot_call {
    uint32_t struct_size;
    uint32_t flags; /* SAC_HOT_PLAN_ONLY */
    uint32_t group, layer;
    uint32_t batch;  /* requests named */
    uint32_t top_k;  /* entries of each selection now */
    uint32_t blocks; /* thread blocks a lane, up to 65,535; 0: chosen */
    uint32_t reserved;
    /* Addresses of GPU memory. */
    uint64_t requests;  /* i32[batch]: numbers of bound requests, each once */
    uint64_t selection; /* i32[batch][heads][top_k]: numbers of units, -1: none */
    uint64_t scores;    /* f32, as selection; SAC_HOT_LRU_SCORE only, else 0 */
    uint64_t out;       /* i32, as selection: lane * slots + slot, or -1 */
    uintptr_t stream;
} sac_hot_call;

/* Every unit selected has a slot, and its rows lie there. Wrong input gives -1 for the entry
 * and an error bit of the request; it never touches another's slots. */
SAC_API int sac_hot_resolve(sac_hot *hot, const sac_hot_call *call);
/* As resolve without out, for a step to come: takes no slot that the last resolve of the layer
 * used, and drops units for which there is no other. In another stream than resolve, the two
 * must be ordered by events. */
SAC_API int sac_hot_prefetch(sac_hot *hot, const sac_hot_call *call);
/* Brings to a layer that shares a leader's selections what the leader's last resolve brought;
 * the slots are the same. */
SAC_API int sac_hot_replay(sac_hot *hot, const sac_hot_call *call);

typedef struct sac_hot_rows {
    uint32_t plane;
    uint32_t reserved;
    uint64_t rows;                                     /* address of GPU memory */
    int64_t request_stride, token_stride, head_stride; /* bytes */
} sac_hot_rows;

enum { SAC_HOT_APPEND_MAX = 16 };

/* New rows of `count` tokens (1 .. 16) of each request, of all planes of the group, into their
 * pages in the pool and into slots. first: address of i32[batch], the number of each request's
 * first new row, -1: none; 0: the last rows of each request. Rows of committed pages, and of
 * those that were full at the last extend or written, are left out: SAC_HOT_E_RANGE of the
 * request. Extend comes before. With
 * SAC_HOT_CPU SAC_E_ARG: there sac_seq_write takes them, before extend. */
SAC_API int sac_hot_append(sac_hot *hot, const sac_hot_call *call, uint64_t first,
                           uint32_t count, const sac_hot_rows *planes, uint32_t plane_count);

enum {                        /* bits of a request's errors, since it was bound */
       SAC_HOT_E_RANGE = 1,   /* a unit below -1, past the request's end, or without rows; a
                               * new row past the end, or in a page that is full */
       SAC_HOT_E_UNBOUND = 2, /* the request is not bound; without a request: no such number */
       SAC_HOT_E_PAGE = 4,    /* a unit of a page whose memory died */
       SAC_HOT_E_TWICE = 8    /* a request named twice in one call */
};

typedef struct sac_hot_stats {
    uint64_t hits;       /* distinct units found */
    uint64_t misses;     /* distinct units fetched by resolve */
    uint64_t bytes;      /* read from the pool */
    uint64_t evictions;  /* units that gave their slot to another */
    uint64_t kept;       /* units in slots now */
    uint64_t prefetched; /* units */
    uint64_t appended;   /* rows */
    uint64_t reserved;
} sac_hot_stats;

/* Read by a stream of the library's own: no other stream waits for it. errors (may be NULL):
 * room for requests + 1 words, the last one's of no request. */
SAC_API int sac_hot_get_stats(sac_hot *hot, sac_hot_stats *out, uint32_t *errors);
/* Waits for the GPU, then ends all requests. */
SAC_API int sac_hot_close(sac_hot *hot);

/* --------------------------------------------------------------- transfers */

/* What goes between a namespace's pages and a GPU's memory: whole pages in after prefill,
 * single rows out. docs/gpu-transfer.md. */
typedef struct sac_gpu_mover sac_gpu_mover;

typedef enum sac_gpu_path {
    SAC_GPU_PATH_AUTO = 0, /* a short measurement at the first gather decides */
    SAC_GPU_PATH_GPU = 1,  /* kernels read the pool's memory in place */
    SAC_GPU_PATH_CPU = 2   /* threads gather into pinned memory, which is copied to the GPU */
} sac_gpu_path;

enum {
    SAC_GPU_PLAIN_STORES = 1 /* CPU path: threads write pinned memory through their caches,
                                not by streaming stores */
};

typedef struct sac_gpu_mover_options {
    uint32_t struct_size;
    uint32_t path;          /* sac_gpu_path */
    uint32_t threads;       /* of the CPU path, the caller included; 0: 8. At most all cores
                               of the GPU's NUMA node but one */
    uint32_t flags;         /* SAC_GPU_PLAIN_STORES */
    uint64_t staging_bytes; /* of pinned memory of the CPU path; 0: 64 MiB */
    uint64_t chunk_bytes;   /* that one copy to the GPU has there; 0: chosen by size */
    uint64_t timeout_ms;    /* how long to wait for the pool's registration; 0: 10 minutes */
} sac_gpu_mover_options;

typedef struct sac_gpu_mover_info {
    uint32_t path;      /* SAC_GPU_PATH_AUTO: not measured yet */
    uint32_t forced;    /* 1: by the options, or because there is no other */
    uint32_t threads;   /* of the CPU path */
    int32_t numa_node;  /* whose cores and memory they use; -1: not known */
    uint32_t cores;     /* that they may run on */
    uint32_t row_bytes; /* of the measurement */
    uint64_t rows;      /* of the measurement; 0: none was made */
    double gpu_us, cpu_us;
    uint64_t staging_bytes; /* pinned by now */
    char why[512];          /* a sentence */
} sac_gpu_mover_info;

/* options may be NULL. Registers the pool with CUDA, in the background, where that was not done
 * and the path is not forced to be the CPU's. SAC_E_ARG, SAC_E_GPU, SAC_E_NO_MEMORY. */
SAC_API int sac_gpu_mover_open(sac_gpu *gpu, sac_ns *ns, const sac_gpu_mover_options *options,
                               sac_gpu_mover **out);
SAC_API int sac_gpu_mover_get_info(sac_gpu_mover *mover, sac_gpu_mover_info *out);
/* Waits for what it gave to the GPU. */
SAC_API int sac_gpu_mover_close(sac_gpu_mover *mover);

/* Rows of one plane in GPU memory, in any order of the dimensions. Row i of a layer and head is
 * at source + (s / block_rows) * block_stride + (s % block_rows) * row_stride
 * + head * head_stride, where s = slots[i], or i. */
typedef struct sac_gpu_rows {
    uint32_t plane;
    uint32_t layer_count;
    const uint32_t *layers;  /* model layers */
    const uint64_t *sources; /* address of each layer's slot 0, head 0 */
    const int64_t *slots;    /* one a row; NULL: slots 0, 1, ... */
    uint32_t slots_on_gpu;   /* 1: slots is an address of the GPU, read in the order of the
                                stream */
    uint32_t block_rows;     /* slots of a block, of the engine's page; 0: no blocks, slots
                                are row_stride apart */
    int64_t block_stride;    /* bytes */
    int64_t row_stride;
    int64_t head_stride;  /* needed where the plane has heads */
    uint64_t source_rows; /* slots that a source has */
    uint64_t first;       /* put: position among the missing pages of the plane's part;
                             sequence: row number */
    uint64_t count;       /* put: pages; sequence: rows */
} sac_gpu_rows;

/* Writes missing pages of a put from GPU memory, in the order of the stream. Returns at once:
 * sources and slots on the GPU must stay until the work has ended. sac_put_commit() waits for
 * it and for nothing else, sac_put_close() too. Several planes, or some layers of one, may be
 * given, in as many calls as is convenient; those before one that fails are written. A slot
 * that is not in the source makes the commit fail with SAC_E_RANGE. SAC_E_ARG, SAC_E_RANGE,
 * SAC_E_GPU (also: the pool's memory is not registered), SAC_E_BUSY. */
SAC_API int sac_gpu_put(sac_gpu_mover *mover, sac_put *put, const sac_gpu_rows *rows,
                        uint64_t count, uintptr_t stream);
/* *quiet: 1 where sac_put_commit() would not wait. Does not wait itself. */
SAC_API int sac_gpu_put_quiet(sac_put *put, uint32_t *quiet);
/* Writes rows of a sequence that are not committed, all layers of each plane at once. Its pages
 * are committed by sac_seq_flush() and sac_seq_extend() once the work has ended; neither waits.
 * A page with a slot that was not in the source is never committed. */
SAC_API int sac_gpu_put_sequence(sac_gpu_mover *mover, sac_seq *seq, const sac_gpu_rows *rows,
                                 uint64_t count, uintptr_t stream);

typedef struct sac_gpu_gather_req {
    const sac_prefix *const *prefixes; /* batch of them */
    uint64_t batch;
    uint32_t plane;
    uint32_t layer;
    uint32_t first_head; /* heads from here on */
    uint32_t heads;
    const int32_t *rows;  /* [batch][heads][count] row numbers, -1: a row of zeros; NULL: rows
                             0 .. count-1 */
    uint32_t rows_on_gpu; /* 1: an address of the GPU, read in the order of the stream */
    uint32_t path;        /* sac_gpu_path; AUTO: the mover's */
    uint64_t count;
    uint64_t out; /* address of the GPU: [batch][heads][count] rows without padding */
} sac_gpu_gather_req;

/* Copies rows to GPU memory, in the order of the stream. Rows given in the host's memory are
 * checked before anything is copied (SAC_E_RANGE). Rows on the GPU are not seen here: wrong
 * ones and those of dead pages become zeros, and sac_gpu_mover_faults() tells of them. On the
 * CPU path with rows in the host's memory the rows are gathered before the call returns, and
 * SAC_E_MEDIA and SAC_E_STALE are its own; else they are faults as well. Prefixes may be closed
 * as soon as this returns. *number (may be NULL) counts the calls, from 1. */
SAC_API int sac_gpu_gather(sac_gpu_mover *mover, const sac_gpu_gather_req *req,
                           uintptr_t stream, uint64_t *number);

enum {
    SAC_GPU_FAULT_RANGE = 1, /* a row that is not there */
    SAC_GPU_FAULT_PAGE = 4,  /* a page that died or was forced out */
    SAC_GPU_FAULT_GPU = 16   /* the GPU failed */
};
typedef struct sac_gpu_fault {
    uint64_t number;  /* of the gather */
    uint32_t request; /* position in its batch */
    uint32_t bits;    /* SAC_GPU_FAULT_... */
} sac_gpu_fault;

/* Faults of gathers that have ended, oldest first, each told once; of more than 1024 the oldest
 * are lost. Does not wait. *count in: room, out: number. */
SAC_API int sac_gpu_mover_faults(sac_gpu_mover *mover, sac_gpu_fault *out, uint64_t *count);

#ifdef __cplusplus
}
#endif
#endif
