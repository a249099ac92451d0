/* SPDX-License-Identifier: Apache-2.0
 *
 * libsac: a shared, crash-safe store of KV pages and a gather of single rows.
 *
 * This is the whole C interface. Conventions:
 *  - A function returns SAC_OK or a sac_status. After a failure sac_last_error()
 *    of the same thread says what failed, on which object, why, and what to do.
 *  - Nothing here throws. Handles (sac_pool, sac_ns, ...) are closed by the
 *    caller, in any order: a handle keeps alive what it needs.
 *  - Calls on one handle may come from several threads, except close, which
 *    must be the last call on that handle.
 *  - After fork() a child gets SAC_E_FORKED from every handle of its parent.
 *  - All sizes and offsets are bytes in 64 bits unless a name says otherwise.
 *  - Structs with struct_size: set it to sizeof the struct; zero the rest.
 */
#ifndef SAC_H
#define SAC_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define SAC_API __attribute__((visibility("default")))
#else
#define SAC_API
#endif

#define SAC_VERSION "0.1.0"
#define SAC_KEY_BYTES 32
#define SAC_MAX_LAYERS 512
#define SAC_MAX_PLANES 64
#define SAC_NAME_BYTES 64 /* of a namespace, terminating zero included */

typedef enum sac_status {
    SAC_OK = 0,
    SAC_E_ARG = 1,         /* an argument is malformed */
    SAC_E_RANGE = 2,       /* a token, row, layer, head or page that is not there */
    SAC_E_NOT_FOUND = 3,   /* no pool, namespace or plane of that name */
    SAC_E_EXISTS = 4,      /* there already, with another specification */
    SAC_E_LAYOUT = 5,      /* the layout is invalid, or not the namespace's */
    SAC_E_NO_SPACE = 6,    /* nothing free and nothing that may be evicted */
    SAC_E_BUSY = 7,        /* in use: by another process, or pinned */
    SAC_E_STALE = 8,       /* the page has left since it was looked up */
    SAC_E_RESERVATION = 9, /* the reservation expired or was ended */
    SAC_E_INCOMPLETE = 10, /* commit with rows missing */
    SAC_E_CORRUPT = 11,    /* memory does not hold what the format demands */
    SAC_E_VERSION = 12,    /* a format version this library does not know */
    SAC_E_MEDIA = 13,      /* memory is dead, out of use, or gone with its device */
    SAC_E_FORKED = 14,     /* a handle of the parent process */
    SAC_E_CLOSED = 15,     /* the handle was closed */
    SAC_E_SYSTEM = 16,     /* a system call failed: see sys_errno */
    SAC_E_NO_MEMORY = 17,  /* the process is out of memory */
    SAC_E_NO_DAEMON = 18,  /* the daemon is not there, or went away */
    SAC_E_ACCESS = 19,     /* the namespace's access list, or the daemon, does not allow it */
    SAC_E_GPU = 20 /* CUDA, its driver or NVRTC: sys_errno has their result (sac_gpu.h) */
} sac_status;

typedef struct sac_error {
    sac_status status;
    int sys_errno;     /* of the system call that failed, or 0 */
    uint64_t offset;   /* SAC_E_MEDIA, SAC_E_CORRUPT: byte in the extent */
    char object[128];  /* what it failed on: a path, namespace, plane ... */
    char message[640]; /* one or two sentences for a person */
} sac_error;

SAC_API const char *sac_version(void);
/* The last failure of this thread; valid until its next failure. */
SAC_API const sac_error *sac_last_error(void);
/* "SAC_E_RANGE" for SAC_E_RANGE; "SAC_E_?" for a number that is no status. */
SAC_API const char *sac_status_name(int status);

/* ------------------------------------------------------------------ layout */

typedef enum sac_plane_kind {
    SAC_PLANE_ROWS = 0,   /* rows of every page */
    SAC_PLANE_WINDOW = 1, /* rows needed for the last window_tokens of a prefix only */
    SAC_PLANE_STATE = 2   /* one row a page, needed for the last page only */
} sac_plane_kind;

/* One kind of row. A page holds, for every layer of the plane, heads x rows rows
 * of row_bytes, row_pitch apart; rows = page_tokens / tokens_per_row (STATE: 1). */
typedef struct sac_plane {
    char name[32];
    uint64_t layers[SAC_MAX_LAYERS / 64]; /* bit l: model layer l has this plane */
    uint32_t kind;                        /* sac_plane_kind */
    uint32_t group;                       /* planes selected together share a number */
    uint32_t heads;                       /* 1 where selection is not per head */
    uint32_t tokens_per_row;              /* compression: 1, 4, 128 ... */
    uint32_t row_bytes;
    uint32_t row_pitch;     /* 0: row_bytes */
    uint32_t window_tokens; /* WINDOW only */
    char dtype[20];         /* for people: "bf16", "fp8+scale", ... */
} sac_plane;

typedef struct sac_layout {
    uint32_t struct_size;
    uint32_t page_tokens;
    uint32_t plane_count;
    const sac_plane *planes;
} sac_layout;

/* What a layout comes to. */
typedef struct sac_geometry {
    uint64_t body_bytes; /* one page: the planes of kind ROWS */
    uint64_t tail_bytes; /* WINDOW and STATE planes; 0 where there are none */
    uint32_t tail_pages; /* how many last pages of a prefix need their tail */
    uint8_t hash[32];    /* of the canonical encoding, docs/format.md */
} sac_geometry;

/* Checks a layout and computes its geometry. SAC_E_LAYOUT says what is wrong. */
SAC_API int sac_layout_check(const sac_layout *layout, sac_geometry *out);

/* -------------------------------------------------------------------- pool */

typedef struct sac_pool sac_pool;
typedef struct sac_ns sac_ns;
typedef struct sac_put sac_put;
typedef struct sac_prefix sac_prefix;
typedef struct sac_seq sac_seq;

enum {
    SAC_POOL_PREFAULT = 1, /* touch all memory now: later writes are fast */
    SAC_POOL_OPEN = 2,     /* open what is there, never create (sac_pool_embedded) */
    SAC_POOL_SHARED = 4,   /* other processes will map its indexes (sac_pool_open_fds) */
    SAC_POOL_FORMAT = 8    /* write a new pool over the extents (sac_pool_open_fds) */
};

typedef struct sac_pool_options {
    uint32_t struct_size;
    uint32_t flags;
    uint64_t bytes;   /* of data, over all extents; 0 with SAC_POOL_OPEN */
    uint32_t extents; /* data extents; 0: 1 */
    uint32_t reserved;
    const char *path;        /* a directory for the pool's files; NULL: memory of this
                                process, gone with it */
    uint64_t metadata_bytes; /* 0: derived from bytes */
} sac_pool_options;

typedef struct sac_pool_info {
    uint8_t uuid[16];
    uint64_t data_bytes; /* that namespaces can be given */
    uint64_t free_bytes;
    uint64_t metadata_bytes;
    uint64_t slab_bytes;
    uint64_t incarnation; /* how many times the pool has been opened to write */
    uint32_t extents;
    uint32_t namespaces;
    uint64_t page_size_obtained; /* bytes of the kernel's pages behind the data */
    uint32_t recovered;          /* 1: the last owner died without closing */
    uint32_t rebooted;           /* 1: the last owner ran before a reboot */
    uint64_t dead_blocks;        /* 2 MiB blocks that are dead, lost or out of use */
} sac_pool_info;

/* Opens the pool under options->path, or creates it; without a path, creates one
 * in this process. SAC_E_BUSY while another process has it open. */
SAC_API int sac_pool_embedded(const sac_pool_options *options, sac_pool **out);

enum {
    SAC_EXTENT_DIRTY = 1 /* its memory had another owner. A new pool clears what it holds before
                            anybody gets it. DAX devices always count as that */
};

/* An extent that is open already: a file, a memfd, or a DAX device (/dev/daxX.Y) that is bound
 * to device_dax. The library works on an fd of its own. */
typedef struct sac_extent_fd {
    int32_t fd;
    uint16_t flags;   /* SAC_EXTENT_... */
    uint16_t weight;  /* of what is placed over several data extents; 0: 1 */
    const char *name; /* for messages: its path */
} sac_extent_fd;

typedef struct sac_open_options {
    uint32_t struct_size;
    uint32_t flags; /* SAC_POOL_PREFAULT, SAC_POOL_SHARED, SAC_POOL_FORMAT */
    uint32_t data_count;
    uint32_t reserved;
    sac_extent_fd meta;
    const sac_extent_fd *data;
} sac_open_options;

/* Opens a pool whose extents are these, or formats them. SAC_E_BUSY while another process
 * has one of them locked. */
SAC_API int sac_pool_open_fds(const sac_open_options *options, sac_pool **out);

typedef struct sac_connect_options {
    uint32_t struct_size;
    uint32_t reserved;
    const char *socket;    /* of the daemon */
    const char *pool;      /* NULL: the only pool there is */
    const char *name;      /* how this client is called in lists; NULL: as its process */
    uint64_t timeout_ms;   /* how long to wait for the daemon now; 0: not */
    uint64_t reconnect_ms; /* how long a call waits for a daemon that went away */
} sac_connect_options;

/* A pool that the daemon serves, with the same calls as one of this process. Lookups, pins,
 * views and gathers do not need the daemon. SAC_E_NO_DAEMON, SAC_E_NOT_FOUND, SAC_E_ACCESS,
 * SAC_E_VERSION. */
SAC_API int sac_pool_connect(const sac_connect_options *options, sac_pool **out);

SAC_API int sac_pool_get_info(sac_pool *pool, sac_pool_info *out);
/* Names of the namespaces, each SAC_NAME_BYTES apart; *count in: room, out: number. */
SAC_API int sac_pool_list(sac_pool *pool, char *names, uint64_t *count);
/* Gives a namespace's slabs back. SAC_E_BUSY while any page is pinned or reserved. */
SAC_API int sac_pool_drop(sac_pool *pool, const char *name);
/* Changes a namespace's quota (0: none). Smaller: gives memory back by evicting;
 * SAC_E_BUSY, and nothing but evictions done, where pins keep it from that. Owner only. */
SAC_API int sac_pool_resize(sac_pool *pool, const char *name, uint64_t max_bytes);
/* Adds a data extent at the end, of zeros or SAC_EXTENT_DIRTY. Owner only. */
SAC_API int sac_pool_extend(sac_pool *pool, const sac_extent_fd *extent);
/* Marks the pool clean. Handles opened from it get SAC_E_CLOSED from then on; memory
 * stays mapped until the last of them is closed. */
SAC_API int sac_pool_close(sac_pool *pool);

/* --------------------------------------------------------------- namespace */

enum {
    SAC_NS_DATA_CHECKSUM = 1, /* checksum of the rows at commit: survives a reboot */
    SAC_NS_TOKEN_IDS = 2      /* keep each page's token ids in its header */
};

typedef enum sac_key_scheme {
    SAC_KEYS_SAC = 0,   /* sac_keys() */
    SAC_KEYS_ENGINE = 1 /* the engine's own hash, with its parent */
} sac_key_scheme;

typedef struct sac_ns_options {
    uint32_t struct_size;
    uint32_t flags;
    uint32_t key_scheme;
    uint32_t mode;            /* who may use it, as of a file: 0600 ..; 0: 0600 */
    uint64_t max_bytes;       /* quota, counted in slabs; 0: the pool's free space */
    const char *model;        /* enters the keys; NULL: "" */
    const sac_layout *layout; /* NULL: open only */
} sac_ns_options;

typedef struct sac_ns_info {
    char name[SAC_NAME_BYTES];
    char model[128];
    uint32_t flags;
    uint32_t key_scheme;
    uint32_t page_tokens;
    uint32_t plane_count;
    sac_geometry geometry;
    uint64_t max_bytes;
    uint64_t assigned_bytes; /* slabs held, but for those on dead memory */
    uint64_t index_bytes;    /* of memory of its index */
    uint64_t capacity_pages; /* that fit under the quota, were the pool its alone */
    uint32_t uid, gid, mode; /* owner, group, permission bits */
    uint32_t policy;         /* of eviction; 0: least recently used */
} sac_ns_info;

typedef struct sac_ns_stats {
    uint64_t pages;       /* bodies committed now */
    uint64_t tails;       /* tails committed now */
    uint64_t reserved;    /* parts being written, expired ones included */
    uint64_t quarantined; /* parts of expired reservations and of dead blocks */
    uint64_t pinned;      /* parts with at least one pin */
    uint64_t lookups;     /* keys asked */
    uint64_t hits;
    uint64_t commits;    /* parts */
    uint64_t duplicates; /* commits that another writer of the key won */
    uint64_t aborts;
    uint64_t evictions;
    uint64_t rows_gathered;
    uint64_t bytes_gathered; /* row bytes copied out by gather */
    uint64_t bytes_written;  /* row bytes copied in by put and sequence */
    uint64_t checks_failed;  /* pages dropped at recovery for their checksum */
} sac_ns_stats;

/* Opens a namespace, or creates it from options. If it is there with another layout,
 * model, key scheme or flags: SAC_E_LAYOUT or SAC_E_EXISTS, naming the difference. */
SAC_API int sac_ns_open(sac_pool *pool, const char *name, const sac_ns_options *options,
                        sac_ns **out);
SAC_API int sac_ns_get_info(sac_ns *ns, sac_ns_info *out);
/* Copies plane number i of the namespace's layout. */
SAC_API int sac_ns_plane(sac_ns *ns, uint32_t i, sac_plane *out);
SAC_API int sac_ns_get_stats(sac_ns *ns, sac_ns_stats *out);
SAC_API int sac_ns_close(sac_ns *ns);

/* -------------------------------------------------------------------- keys */

/* One key for each full page of tokens; out has room for tokens/page_tokens keys.
 * parent: the key of the page before (32 bytes), or NULL at a sequence's start, where
 * namespace, model, layout and salt enter. Users who share a salt share hits. */
SAC_API int sac_keys(sac_ns *ns, const uint32_t *tokens, uint64_t count, const void *salt,
                     uint64_t salt_bytes, const uint8_t *parent, uint8_t *out);

/* The parent that sac_keys uses for a sequence's first page; 32 bytes. */
SAC_API int sac_root(sac_ns *ns, const void *salt, uint64_t salt_bytes, uint8_t *out);

/* ------------------------------------------------------------ lookup, pins */

typedef struct sac_handle {
    uint64_t generation; /* 0: not there */
    uint32_t slot;
    uint32_t part; /* 0 body, 1 tail */
} sac_handle;

/* Looks up bodies key by key; keys are 32 bytes each. handles may be NULL; *hits (may
 * be NULL) counts those found. Without locks, without a system call. */
SAC_API int sac_lookup(sac_ns *ns, const uint8_t *keys, uint64_t count, sac_handle *handles,
                       uint64_t *hits);
/* Pages of the longest prefix of keys whose planes are all there; pins nothing. */
SAC_API int sac_longest(sac_ns *ns, const uint8_t *keys, uint64_t count, uint64_t *pages);

/* Pins the longest prefix of keys that has all planes (window and state planes for its
 * last pages only). A prefix of 0 pages is no error. */
SAC_API int sac_pin(sac_ns *ns, const uint8_t *keys, uint64_t count, sac_prefix **out);
SAC_API int sac_prefix_pages(const sac_prefix *prefix, uint64_t *pages);
/* Tokens that can be gathered; for a sequence's view, appended ones included. */
SAC_API int sac_prefix_tokens(const sac_prefix *prefix, uint64_t *tokens);
/* The bodies' handles. *count in: room, out: number of pages. */
SAC_API int sac_prefix_handles(const sac_prefix *prefix, sac_handle *out, uint64_t *count);
/* Rows 0 .. rows-1 of a plane and layer can be gathered (window and state planes: those of
 * the last pages only). */
SAC_API int sac_prefix_rows(const sac_prefix *prefix, uint32_t plane, uint32_t layer,
                            uint64_t *rows);
/* Address of one page's rows of a plane and layer, to read in place: heads x rows rows,
 * row_pitch apart. Valid while the prefix is open. */
SAC_API int sac_prefix_view(const sac_prefix *prefix, uint64_t page, uint32_t plane,
                            uint32_t layer, const void **rows, uint64_t *bytes);
/* Ends the pins. */
SAC_API int sac_prefix_close(sac_prefix *prefix);

/* ------------------------------------------------------------------ gather */

typedef struct sac_gather_req {
    const sac_prefix *prefix;
    uint32_t plane;
    uint32_t layer; /* model layer */
    uint32_t head;
    uint32_t index_bytes; /* 4: int32_t, 8: int64_t */
    const void *index;    /* row numbers: token / tokens_per_row. -1: a row of zeros.
                             NULL: rows 0 .. count-1 */
    uint64_t count;
    void *dst;
    uint64_t dst_pitch; /* bytes from row to row; 0: row_bytes */
} sac_gather_req;

enum {
    SAC_GATHER_STREAM = 1 /* streaming stores: the CPU will not read dst soon */
};

/* Copies rows of several requests. All requests are checked before any byte is
 * written. threads: 0 chooses by size; else at most that many, the caller included.
 * SAC_E_MEDIA: a row's memory died; the other rows are copied, and *failed (may be
 * NULL) is the first request hit. */
SAC_API int sac_gather(sac_ns *ns, const sac_gather_req *reqs, uint64_t count, uint32_t flags,
                       uint32_t threads, uint64_t *failed);

/* --------------------------------------------------------------------- put */

typedef struct sac_put_options {
    uint32_t struct_size;
    uint32_t reserved;
    uint64_t deadline_ms;        /* of the reservations; 0: 60,000 */
    uint64_t timeout_ms;         /* how long to wait for pins to end; 0: not */
    const uint8_t *parents;      /* parent key of each key (ENGINE scheme), or NULL: the
                                    key before it, and first_parent for the first */
    const uint8_t *first_parent; /* 32 bytes, or NULL: none */
    const uint32_t *tokens;      /* token ids, count x page_tokens, or NULL */
    uint64_t first_tail;         /* pages from here on get a tail too; UINT64_MAX: the last
                                    tail_pages of keys */
} sac_put_options;

/* Reserves room for the keys that are not there, and pins those that are until the put
 * ends. SAC_E_NO_SPACE says who holds the space. */
SAC_API int sac_put_begin(sac_ns *ns, const uint8_t *keys, uint64_t count,
                          const sac_put_options *options, sac_put **out);
/* Positions in keys of the bodies (part 0) or tails (part 1) to be written. *count in:
 * room, out: number; indices may be NULL. */
SAC_API int sac_put_missing(sac_put *put, uint32_t part, uint64_t *indices, uint64_t *count);

typedef struct sac_scatter_req {
    uint32_t plane;
    uint32_t layer;
    uint64_t first; /* put: position among the missing pages of the plane's part;
                       sequence: row number */
    uint64_t count; /* put: pages; sequence: rows */
    const void *src;
    uint64_t page_stride; /* bytes from page to page of src (put); needed where count > 1 */
    uint64_t head_stride; /* from head to head; needed where heads > 1 */
    uint64_t row_stride;  /* from row to row; 0: row_bytes */
} sac_scatter_req;

/* Writes whole pages (all heads and rows) of a plane and layer. */
SAC_API int sac_put_write(sac_put *put, const sac_scatter_req *reqs, uint64_t count,
                          uint32_t threads);
/* Address of a missing page's rows, to write in place (heads x rows, row_pitch apart);
 * counts as written. Valid until commit or abort. */
SAC_API int sac_put_view(sac_put *put, uint64_t missing, uint32_t plane, uint32_t layer,
                         void **rows, uint64_t *bytes);
/* Makes all pages visible, first page first; *committed (may be NULL) counts the bodies
 * that are there now by this put (a page that another writer committed first is kept and
 * not counted). SAC_E_INCOMPLETE before anything is visible if a row was not written. */
SAC_API int sac_put_commit(sac_put *put, uint64_t *committed);
/* Gives up now what is not committed, except pages that sac_put_view gave out: those at
 * close, for somebody may still be writing to them. Only close may follow. */
SAC_API int sac_put_abort(sac_put *put);
/* Gives up what is not committed. Commit or not, the last call. */
SAC_API int sac_put_close(sac_put *put);

/* ---------------------------------------------------------------- sequence */

/* A growing sequence: pins the longest prefix of the first count tokens, then takes new
 * tokens' rows into pages it reserves; each page is committed when it is full. */
SAC_API int sac_seq_open(sac_ns *ns, const uint32_t *tokens, uint64_t count, const void *salt,
                         uint64_t salt_bytes, sac_seq **out);
/* Appends tokens; their rows are then written with sac_seq_write. Pages complete by now
 * are committed first. SAC_E_INCOMPLETE: an earlier page is full of tokens but not of
 * rows. Nothing is appended on an error. */
SAC_API int sac_seq_extend(sac_seq *seq, const uint32_t *tokens, uint64_t count,
                           uint64_t timeout_ms);
/* Writes rows of a plane and layer at row numbers first .. first+count-1, in pages that
 * are not yet committed. */
SAC_API int sac_seq_write(sac_seq *seq, const sac_scatter_req *reqs, uint64_t count,
                          uint32_t threads);
/* Commits pages that are full of tokens and rows. */
SAC_API int sac_seq_flush(sac_seq *seq, uint64_t *committed);
/* The rows as a prefix for sac_gather; owned by the sequence. */
SAC_API const sac_prefix *sac_seq_view(sac_seq *seq);
/* Drops an unfinished page, ends the pins. */
SAC_API int sac_seq_close(sac_seq *seq);

/* ------------------------------------------------------------------ events */

typedef enum sac_event_kind { SAC_EVENT_STORED = 0, SAC_EVENT_REMOVED = 1 } sac_event_kind;

typedef struct sac_event {
    uint64_t sequence; /* counts all events of the namespace since it was opened */
    uint32_t kind;
    uint32_t part;
    sac_handle handle;
    uint8_t key[SAC_KEY_BYTES];
    uint8_t parent[SAC_KEY_BYTES];
} sac_event;

/* Copies events from sequence number *next on, at most *count, and moves *next past
 * them; UINT64_MAX: from now on. Events older than the ring are lost: *lost (may be NULL)
 * counts them. The ring starts with the first call. */
SAC_API int sac_events(sac_ns *ns, uint64_t *next, sac_event *out, uint64_t *count,
                       uint64_t *lost);

/* -------------------------------------------------------------- maintenance */

/* Evicts up to count parts by the namespace's policy; *evicted counts them. A body takes its
 * tail along, which is not counted. */
SAC_API int sac_evict(sac_ns *ns, uint64_t count, uint64_t *evicted);
/* Checks headers against the index, and data checksums where kept; drops pages that
 * fail and counts them. */
SAC_API int sac_verify(sac_ns *ns, uint64_t *checked, uint64_t *dropped);

#ifdef __cplusplus
}
#endif
#endif
