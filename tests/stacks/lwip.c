/* A server on lwIP's stack, over the tap device that PRECONFIGURED_TAPIF names, at 10.9.0.2: `lwip PORT THINK_MS REPLY`
   answers every 64 bytes with REPLY bytes after THINK_MS. Debian's package liblwip-dev has the stack and its port. */
#include <lwip/netif.h>
#include <lwip/sockets.h>
#include <lwip/tcpip.h>
#include <netif/tapif.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int receive_all(int peer, char *into, size_t wanted) {
    size_t got = 0;
    while (got < wanted) {
        ssize_t more = lwip_recv(peer, into + got, wanted - got, 0);
        if (more <= 0) return 0;
        got += (size_t)more;
    }
    return 1;
}

int main(int count, char **words) {
    if (count != 4) return 2;
    useconds_t think = (useconds_t)atoi(words[2]) * 1000;
    size_t length = (size_t)atol(words[3]);
    char question[64], *reply = malloc(length);
    memset(reply, 'a', length);

    tcpip_init(NULL, NULL);
    struct netif card;
    ip4_addr_t address, mask, gateway;
    IP4_ADDR(&address, 10, 9, 0, 2);
    IP4_ADDR(&mask, 255, 255, 255, 0);
    IP4_ADDR(&gateway, 10, 9, 0, 1);
    LOCK_TCPIP_CORE();
    netif_add(&card, &address, &mask, &gateway, NULL, tapif_init, tcpip_input);
    netif_set_default(&card);
    netif_set_link_up(&card);
    netif_set_up(&card);
    UNLOCK_TCPIP_CORE();

    struct sockaddr_in here;
    memset(&here, 0, sizeof here);
    here.sin_family = AF_INET;
    here.sin_port = lwip_htons((u16_t)atoi(words[1]));
    int listener = lwip_socket(AF_INET, SOCK_STREAM, 0);
    if (lwip_bind(listener, (struct sockaddr *)&here, sizeof here) || lwip_listen(listener, 5)) return 1;
    puts("ready");
    fflush(stdout);
    for (;;) {
        int peer = lwip_accept(listener, NULL, NULL);
        while (receive_all(peer, question, sizeof question)) {
            usleep(think);
            size_t sent = 0;
            while (sent < length) {
                ssize_t more = lwip_send(peer, reply + sent, length - sent, 0);
                if (more <= 0) break;
                sent += (size_t)more;
            }
        }
        lwip_close(peer);
    }
}
