/* SPDX-License-Identifier: Apache-2.0
 *
 * The daemon's side of libsac: serves pools of this process to other processes by
 * docs/protocol.md. Conventions are those of sac.h. One server a process.
 */
#ifndef SAC_SERVER_H
#define SAC_SERVER_H

#include "sac.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sac_server sac_server;

typedef struct sac_server_options {
    uint32_t struct_size;
    uint32_t socket_mode;    /* permission bits of the socket, e.g. 0660 */
    uint32_t socket_gid;     /* its group; UINT32_MAX: leave */
    uint32_t creators_gid;   /* who may create namespaces: members of this group (and the
                                daemon's user and root); UINT32_MAX: everybody who connects */
    const char *socket_path; /* ignored with listen_fd */
    const char *run_dir;     /* roster and tables; exists, 0700, ours */
    int32_t listen_fd;       /* a listening socket from the service manager; -1: make one */
    uint32_t max_clients;    /* 0: 1024 */
} sac_server_options;

/* Reads the roster; serves nobody yet. SAC_E_BUSY: another daemon has this run_dir. */
SAC_API int sac_server_open(const sac_server_options *options, sac_server **out);
/* Adopts the tables that living processes have in the pool, then serves it under this name.
 * The pool was opened with SAC_POOL_SHARED. */
SAC_API int sac_server_add_pool(sac_server *server, const char *name, sac_pool *pool);
/* SAC_E_BUSY while a client is attached to a namespace of it, naming one. */
SAC_API int sac_server_remove_pool(sac_server *server, const char *name);
/* The pool's memory is lost: serves it no more, whoever is attached. What they have in it is
 * void: their calls get SAC_E_MEDIA until a pool is added under this name (or it is removed),
 * and then they map that one. Close the old pool before its extents are opened again. */
SAC_API int sac_server_lose_pool(sac_server *server, const char *name);
/* Begins to accept. Threads: one for clients, two for operations that take longer. */
SAC_API int sac_server_serve(sac_server *server);
/* Ends serving. Tables and roster stay for the next daemon. Last call but close. */
SAC_API int sac_server_stop(sac_server *server);
SAC_API int sac_server_close(sac_server *server);
/* Turns of the serving thread; stands still when it hangs. */
SAC_API int sac_server_heartbeat(sac_server *server, uint64_t *turns);

/* ----------------------------------------------------------- pools of this process */

/* As sac_ns_open, for another user: a namespace that is new belongs to uid and gid. */
SAC_API int sac_ns_open_for(sac_pool *pool, const char *name, const sac_ns_options *options,
                            uint32_t uid, uint32_t gid, sac_ns **out);

typedef struct sac_extent_info {
    char name[128];             /* its path */
    uint64_t bytes, free_bytes; /* for namespaces, and not yet given to one */
    uint64_t bad_bytes;         /* out of use for good */
    uint64_t align;             /* of a DAX device; a file: 0 */
    uint32_t weight, lost;      /* lost 1: its memory has gone, see sac_pool_lose */
} sac_extent_info;
/* The data extents in order, then the metadata extent. *count in: room, out: number; out may
 * be NULL. */
SAC_API int sac_pool_extents(sac_pool *pool, sac_extent_info *out, uint64_t *count);

/* How much of what is placed each data extent gets: by its weight times its size. One each, 1
 * to 65535; what is there already stays where it is. */
SAC_API int sac_pool_set_weights(sac_pool *pool, const uint32_t *weights, uint64_t count);

enum {
    SAC_EXTENT_META = -1, /* for the number of an extent: the metadata */
    SAC_EXTENT_ALL = -2
};

/* Takes bad memory out of use: every block of 2 MiB that touches the range, for as long as the
 * pool exists. Pages that lie there leave; who has one pinned gets SAC_E_MEDIA from the next
 * call that copies or looks, who writes one from commit. *pages (may be NULL): how many left.
 * Metadata that is in use cannot be spared: the pool takes no more writes then. */
SAC_API int sac_pool_quarantine(sac_pool *pool, int32_t extent, uint64_t offset, uint64_t bytes,
                                uint64_t *pages);
/* The device behind an extent has gone. As if all of it were quarantined, but until the pool is
 * opened again only, and without touching it. Without its metadata a pool takes no more writes.
 * extent: also SAC_EXTENT_ALL. */
SAC_API int sac_pool_lose(sac_pool *pool, int32_t extent, uint64_t *pages);
/* SAC_E_MEDIA, saying where and what to do, once metadata is dead: pages are read on, and
 * nothing can be changed. */
SAC_API int sac_pool_check_writable(sac_pool *pool);

/* Clears a range of an extent that no pool has open, on several cores. go_on (may be NULL) is
 * told the bytes done after each 64 MiB and at the end; 0: stop. What is cleared stays so:
 * begun again, it may go on from there. SAC_E_BUSY: somebody has it open. SAC_E_MEDIA: memory
 * that could not be written. SAC_E_INCOMPLETE: stopped. */
SAC_API int sac_scrub(const sac_extent_fd *extent, uint64_t offset, uint64_t bytes,
                      int (*go_on)(void *arg, uint64_t done), void *arg);

/* -------------------------------------------------------- administration requests */

typedef struct sac_admin_request {
    uint64_t id; /* for the answer; 0: none came in time */
    uint32_t pid, uid, gid;
    uint32_t group_count; /* supplementary groups, the first 64 */
    uint32_t groups[64];
    uint32_t fd_count;
    int32_t fds[66];  /* the caller closes them */
    const char *json; /* valid until the answer */
    uint64_t json_bytes;
} sac_admin_request;

/* Waits up to timeout_ms for a request. Several threads may wait. SAC_E_CLOSED after stop. */
SAC_API int sac_server_admin(sac_server *server, uint64_t timeout_ms, sac_admin_request *out);
SAC_API int sac_server_answer(sac_server *server, uint64_t id, const char *json,
                              uint64_t json_bytes);

/* ------------------------------------------------------------------------- who is there */

typedef struct sac_client_info {
    uint8_t id[16];
    uint32_t pid, uid, gid;
    uint32_t connected; /* 0: alive, but its connection is lost or not back yet */
    uint32_t tables;
    uint32_t evicted;    /* 1: its tables are revoked for good */
    uint64_t start_time; /* of the process, clock ticks since boot */
    uint64_t since_ms;   /* HELLO, milliseconds since the epoch */
    uint64_t requests;
    char name[64]; /* as it calls itself, or the process's name */
} sac_client_info;

#define SAC_LATENCY_BUCKETS 128 /* bucket 4e+f: 2^e (1 + f/4) ns up to the next */

typedef struct sac_table_info {
    uint8_t client[16];
    char pool[64], name[64];
    uint32_t table;
    uint32_t writable, revoked, reserved;
    uint64_t pinned;       /* slots with a pin that are no reservations */
    uint64_t reservations; /* slots being written */
    uint64_t lookups, hits, rows_gathered, bytes_gathered, bytes_written, puts, gathers, pins;
    uint64_t latency[4][SAC_LATENCY_BUCKETS]; /* lookup, pin, gather, put */
} sac_table_info;

typedef struct sac_op_info {
    uint32_t op, reserved; /* number of docs/protocol.md */
    uint64_t count, errors;
    uint64_t latency[SAC_LATENCY_BUCKETS]; /* from the whole frame to the reply's last byte
                                              handed to the kernel */
} sac_op_info;

/* *count in: room, out: number. out may be NULL. */
SAC_API int sac_server_clients(sac_server *server, sac_client_info *out, uint64_t *count);
SAC_API int sac_server_tables(sac_server *server, sac_table_info *out, uint64_t *count);
SAC_API int sac_server_ops(sac_server *server, sac_op_info *out, uint64_t *count);
/* Revokes a client's tables for good: its next calls fail, its reservations end, its pins go
 * as it closes them. kill: SIGKILL to the process instead. */
SAC_API int sac_server_evict(sac_server *server, const uint8_t *id, int kill);

#ifdef __cplusplus
}
#endif
#endif
