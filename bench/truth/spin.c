/* Work of a known amount: spin UNITS [THREADS [ONE_IN]] runs UNITS rounds of integer arithmetic that each need the one
   before, divided among THREADS; one start in ONE_IN, drawn from the kernel's random numbers, runs twice as many. */
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/random.h>

static void *work(void *rounds) {
    uint64_t state = 88172645463325252u;
    for (uint64_t left = (uintptr_t)rounds; left; left--) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        __asm__ volatile("" : "+r"(state)); /* nothing is worked out beforehand or left out */
    }
    return (void *)(uintptr_t)state;
}

int main(int count, char **arguments) {
    uint64_t units = count > 1 ? strtoull(arguments[1], 0, 10) : 0;
    int threads = count > 2 ? atoi(arguments[2]) : 1;
    unsigned one_in = count > 3 ? (unsigned)atoi(arguments[3]) : 0, drawn = 0;
    pthread_t others[64];
    if (threads < 1 || threads > 64)
        return 2;
    if (one_in && (getrandom(&drawn, sizeof drawn, 0) != sizeof drawn || drawn % one_in == 0))
        units *= 2;
    void *share = (void *)(uintptr_t)(units / threads);
    for (int i = 1; i < threads; i++)
        if (pthread_create(&others[i], 0, work, share))
            return 1;
    work(share);
    for (int i = 1; i < threads; i++)
        pthread_join(others[i], 0);
    return 0;
}
