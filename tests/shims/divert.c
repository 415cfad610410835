// Connections of one process go where a test wants them, without root and without a network of its own.
//
// Loaded with LD_PRELOAD, this shim sends each connection to an address that DIVERT names to another one, say to a relay
// that the test can cut. The process itself sees the address that it asked for: a driver that learns the addresses of a
// cluster from the cluster is diverted too.
//
// Environment:
//   DIVERT   IP:PORT=IP:PORT,…   what to divert, and where to; IPv4
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define MOST 16

static struct { struct sockaddr_in from, to; } diverted[MOST];
static int count;
static int (*real_connect)(int, const struct sockaddr *, socklen_t);

// What cannot be read ends the process: a fault that is not injected would prove nothing.
static void read_address(const char *text, struct sockaddr_in *address) {
    char ip[64];
    unsigned port;
    address->sin_family = AF_INET;
    if (sscanf(text, "%63[0-9.]:%u", ip, &port) != 2 || inet_pton(AF_INET, ip, &address->sin_addr) != 1) {
        fprintf(stderr, "divert: not IP:PORT: %s\n", text);
        _exit(98);
    }
    address->sin_port = htons((unsigned short)port);
}

__attribute__((constructor)) static void init(void) {
    real_connect = (int (*)(int, const struct sockaddr *, socklen_t))dlsym(RTLD_NEXT, "connect");
    const char *set = getenv("DIVERT");
    char *all = strdup(set ? set : ""), *rest = all;
    for (char *pair; (pair = strsep(&rest, ",")) != NULL && *pair != 0 && count < MOST; count++) {
        char *to = strchr(pair, '=');
        read_address(pair, &diverted[count].from);
        read_address(to ? to + 1 : "", &diverted[count].to);
    }
    free(all);
}

int connect(int socket, const struct sockaddr *address, socklen_t length) {
    const struct sockaddr_in *wanted = (const struct sockaddr_in *)address;
    if (address->sa_family == AF_INET && length >= sizeof *wanted) {
        for (int i = 0; i < count; i++) {
            const struct sockaddr_in *from = &diverted[i].from;
            if (from->sin_addr.s_addr == wanted->sin_addr.s_addr && from->sin_port == wanted->sin_port)
                return real_connect(socket, (const struct sockaddr *)&diverted[i].to, sizeof diverted[i].to);
        }
    }
    return real_connect(socket, address, length);
}
