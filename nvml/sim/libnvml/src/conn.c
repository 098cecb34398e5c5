/*
 * Connections to the simulator: a pool, because threads call at the same time
 * and a held call must not stop the others.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "sim.h"

#define MAX_LINE (256 << 10)
#define MAX_IDLE 16
#define MAX_ARGS 256

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int idle[MAX_IDLE];
static int idle_count;
static pid_t owner; /* a forked child must not use its parent's connections */

/* Sends all of a buffer; 0 when it went out. */
static int send_all(int fd, const char *buf, size_t n)
{
	while (n > 0) {
		ssize_t w = send(fd, buf, n, MSG_NOSIGNAL);
		if (w < 0 && errno == EINTR)
			continue;
		if (w <= 0)
			return -1;
		buf += w;
		n -= (size_t)w;
	}
	return 0;
}

/* Reads one line without its newline; NULL when the connection broke. */
static char *read_line(int fd)
{
	size_t size = 1024, have = 0;
	char *buf = malloc(size);

	while (buf != NULL) {
		ssize_t got = recv(fd, buf + have, size - have, 0);
		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			break;
		have += (size_t)got;
		if (buf[have - 1] == '\n') { /* the server sends one line at a time */
			buf[have - 1] = '\0';
			return buf;
		}
		if (have == size) {
			char *bigger = size < MAX_LINE ? realloc(buf, size * 2) : NULL;
			if (bigger == NULL)
				break;
			buf = bigger;
			size *= 2;
		}
	}
	free(buf);
	return NULL;
}

/* Connects to the socket; its directory is opened first when its path is too
 * long for a socket address. */
static int connect_path(int fd)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	char dir[4096];
	int n, dirfd = -1, ret;

	n = snprintf(addr.sun_path, sizeof addr.sun_path, "%s/run/nvidia-persistenced/socket", sim_root());
	if (n < 0)
		return -1;
	if ((size_t)n >= sizeof addr.sun_path) {
		n = snprintf(dir, sizeof dir, "%s/run/nvidia-persistenced", sim_root());
		if (n < 0 || (size_t)n >= sizeof dir)
			return -1;
		dirfd = open(dir, O_PATH | O_CLOEXEC);
		if (dirfd < 0)
			return -1;
		snprintf(addr.sun_path, sizeof addr.sun_path, "/proc/self/fd/%d/socket", dirfd);
	}
	do
		ret = connect(fd, (struct sockaddr *)&addr, sizeof addr);
	while (ret < 0 && errno == EINTR);
	if (dirfd >= 0)
		close(dirfd);
	return ret;
}

static int connect_new(void)
{
	static const char hello[] = "hello\t1\n";
	char *line;
	int fd, ok;

	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -1;
	if (connect_path(fd) < 0) {
		close(fd);
		return -1;
	}
	line = send_all(fd, hello, sizeof hello - 1) == 0 ? read_line(fd) : NULL;
	ok = line != NULL && strncmp(line, "0\t", 2) == 0;
	free(line);
	if (!ok) {
		close(fd);
		return -1;
	}
	return fd;
}

/* A connection that waits for nothing and has not been closed by the server. */
static int take(void)
{
	for (;;) {
		struct pollfd p = { .fd = -1, .events = POLLIN };
		pthread_mutex_lock(&lock);
		if (owner != getpid()) {
			/* Closing our copies does not disturb the parent. */
			while (idle_count > 0)
				close(idle[--idle_count]);
			owner = getpid();
		}
		if (idle_count > 0)
			p.fd = idle[--idle_count];
		pthread_mutex_unlock(&lock);
		if (p.fd < 0)
			return connect_new();
		if (poll(&p, 1, 0) == 0)
			return p.fd;
		close(p.fd); /* the simulator has been restarted */
	}
}

static void give_back(int fd)
{
	pthread_mutex_lock(&lock);
	if (idle_count < MAX_IDLE) {
		idle[idle_count++] = fd;
		fd = -1;
	}
	pthread_mutex_unlock(&lock);
	if (fd >= 0)
		close(fd);
}

void sim_disconnect(void)
{
	pthread_mutex_lock(&lock);
	while (idle_count > 0)
		close(idle[--idle_count]);
	pthread_mutex_unlock(&lock);
}

/* Appends a field with its tab; escapes what the protocol wants escaped. */
static int append(char **buf, size_t *have, size_t *size, const char *field)
{
	size_t need = *have + 2 * strlen(field) + 2;

	if (need > *size) {
		char *bigger = realloc(*buf, need * 2);
		if (bigger == NULL)
			return -1;
		*buf = bigger;
		*size = need * 2;
	}
	if (*have > 0)
		(*buf)[(*have)++] = '\t';
	for (; *field != '\0'; field++) {
		char c = *field;
		if (c == '\\' || c == '\t' || c == '\n') {
			(*buf)[(*have)++] = '\\';
			c = c == '\t' ? 't' : c == '\n' ? 'n' : c;
		}
		(*buf)[(*have)++] = c;
	}
	return 0;
}

/* Takes the escapes out of a field, in place. */
static void unescape(char *s)
{
	char *to = s;

	for (; *s != '\0'; s++) {
		if (*s == '\\' && s[1] != '\0') {
			s++;
			*to++ = *s == 't' ? '\t' : *s == 'n' ? '\n' : *s;
		} else {
			*to++ = *s;
		}
	}
	*to = '\0';
}

/*
 * Reads a decimal number. Not strtoull: newer C libraries give that a new symbol
 * version, and this library must load with old ones.
 */
static unsigned long long decimal(const char *s, const char **end)
{
	unsigned long long n = 0;

	for (; *s >= '0' && *s <= '9'; s++)
		n = n * 10 + (unsigned long long)(*s - '0');
	*end = s;
	return n;
}

/* Takes the line of an answer apart. It owns the line afterwards. */
static nvmlReturn_t parse(struct reply *r, char *line)
{
	size_t n = 1;
	const char *after;
	unsigned long long code = decimal(line, &after);
	char *s, *end = line + (after - line);

	if (end == line || (*end != '\t' && *end != '\0')) {
		free(line);
		return NVML_ERROR_UNKNOWN;
	}
	if (code != 0 || r == NULL) {
		free(line);
		return (nvmlReturn_t)code;
	}
	for (s = line; *s != '\0'; s++)
		n += *s == '\t';
	r->field = calloc(n, sizeof *r->field);
	if (r->field == NULL) {
		free(line);
		return NVML_ERROR_MEMORY;
	}
	r->line = line;
	r->fields = 0;
	for (s = end; *s == '\t'; s = end) {
		*s++ = '\0';
		end = s + strcspn(s, "\t");
		r->field[r->fields++] = s;
	}
	for (n = 0; n < r->fields; n++)
		unescape(r->field[n]);
	return NVML_SUCCESS;
}

nvmlReturn_t sim_call_list(struct reply *r, const char *session, const char *name, const char *const *args)
{
	size_t have = 0, size = 512;
	char *buf = malloc(size), *line;
	int fd, bad;

	if (buf == NULL)
		return NVML_ERROR_MEMORY;
	bad = append(&buf, &have, &size, "call") || append(&buf, &have, &size, session) || append(&buf, &have, &size, name);
	for (; !bad && *args != NULL; args++)
		bad = append(&buf, &have, &size, *args);
	if (bad) {
		free(buf);
		return NVML_ERROR_MEMORY;
	}
	buf[have++] = '\n'; /* append keeps room for it */
	fd = take();
	if (fd < 0) {
		free(buf);
		return NVML_ERROR_DRIVER_NOT_LOADED;
	}
	if (send_all(fd, buf, have) != 0) {
		/* Nothing has been done: the server needs the whole line. */
		free(buf);
		close(fd);
		return NVML_ERROR_DRIVER_NOT_LOADED;
	}
	free(buf);
	line = read_line(fd);
	if (line == NULL) {
		/* The call may have been done or not. */
		close(fd);
		return NVML_ERROR_UNKNOWN;
	}
	give_back(fd);
	return parse(r, line);
}

nvmlReturn_t sim_call(struct reply *r, const char *name, ...)
{
	const char *args[MAX_ARGS + 1];
	char session[128];
	size_t n = 0;
	va_list ap;
	nvmlReturn_t ret = sim_session(session, sizeof session);

	if (ret != NVML_SUCCESS)
		return ret;
	va_start(ap, name);
	while (n < MAX_ARGS && (args[n] = va_arg(ap, const char *)) != NULL)
		n++;
	args[n] = NULL;
	va_end(ap);
	return sim_call_list(r, session, name, args);
}

void sim_reply_free(struct reply *r)
{
	free(r->field);
	free(r->line);
	r->field = NULL;
	r->line = NULL;
	r->fields = 0;
}

const char *sim_text(const struct reply *r, size_t i)
{
	return i < r->fields ? r->field[i] : "";
}

unsigned long long sim_number(const struct reply *r, size_t i)
{
	const char *end;

	return decimal(sim_text(r, i), &end);
}

const char *sim_decimal(struct decimal *d, unsigned long long n)
{
	snprintf(d->text, sizeof d->text, "%llu", n);
	return d->text;
}
