/* What the files of this library share. Nothing here is exported. */
#ifndef SIM_H
#define SIM_H

#include <stddef.h>

#include "abi.h"

#define EXPORT __attribute__((visibility("default")))

/* An answer of the simulated driver. */
struct reply {
	char *line;     /* owns the text of the fields */
	char **field;   /* field[0] is the first after the code */
	size_t fields;
};

/*
 * Asks the driver to do an NVML call; the arguments are strings and end with
 * NULL. When it answers NVML_SUCCESS the reply must be freed. A reply may be
 * NULL when nothing is asked of it.
 */
nvmlReturn_t sim_call(struct reply *r, const char *name, ...) __attribute__((sentinel));
nvmlReturn_t sim_call_list(struct reply *r, const char *session, const char *name, const char *const *args);
void sim_reply_free(struct reply *r);
/* A field as text or number; "" and 0 when the reply is too short. */
const char *sim_text(const struct reply *r, size_t i);
unsigned long long sim_number(const struct reply *r, size_t i);
/* Drops idle connections. */
void sim_disconnect(void);

/* A number as an argument. */
struct decimal { char text[24]; };
const char *sim_decimal(struct decimal *d, unsigned long long n);

/* Where the library was loaded from: "" when the root is /. */
const char *sim_root(void);

/* Whether this process may use a GPU, a capability; see visible.c. */
int sim_gpu_visible(unsigned long minor);
int sim_cap_visible(unsigned long minor);

/* What a handle stands for. */
enum kind { KIND_GPU, KIND_MIG, KIND_GI, KIND_CI, KIND_EVENTS };
struct handle;
/* The handle for a name; the same each time. NULL when memory is out. */
struct handle *sim_handle(enum kind kind, const char *name);
/* The name a handle stands for, or NULL when it is none of that kind. */
const char *sim_handle_name(const void *handle, enum kind kind);
/* The name of a GPU or MIG device. */
const char *sim_device_name(nvmlDevice_t device);
void sim_handles_free(void);

/* The session: see session.c. */
nvmlReturn_t sim_session(char *text, size_t size);
/* The GPUs this process sees. Returns 0 when there is none with that index. */
int sim_session_gpu(unsigned int index, char *uuid, size_t size);
/* The index of a GPU this process sees, or -1. */
int sim_session_index(const char *uuid);

/* Copies text into a caller's buffer. */
nvmlReturn_t sim_copy(char *to, unsigned int length, const char *text);

#endif
