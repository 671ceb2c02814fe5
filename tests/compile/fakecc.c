/* A stand-in for a compiler, for memory pressure: like nvcc it starts a part of itself, which takes memory for a time.
 *
 *   fakecc -c SOURCE -o OUTPUT      the source's first line says:  // mb=200 ms=500 [tail_gate=FILE] [fail=1] [gate=FILE]
 *
 * With tail_gate, it then runs on with next to nothing until that file exists, as nvcc does past its peak.
 * With gate, it holds its memory until FILE exists (at most ten minutes), so that tests wait on a condition and not on a clock.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

int main(int count, char **arguments)
{
    const char *source = NULL, *output = NULL;
    for (int i = 1; i < count; i++) {
        if (!strcmp(arguments[i], "--version")) {
            puts("fakecc 1.0");
            return 0;
        }
        if (!strcmp(arguments[i], "-o"))
            output = arguments[++i];
        else if (arguments[i][0] != '-')
            source = arguments[i];
    }
    FILE *file = source ? fopen(source, "r") : NULL;
    char line[4096] = "", gate[2048] = "", tail_gate[2048] = "";
    if (!file || !fgets(line, sizeof line, file)) {
        fprintf(stderr, "fakecc: no source\n");
        return 2;
    }
    long mb = 1, ms = 0, fail = 0;
    for (char *word = strtok(line, " \n"); word; word = strtok(NULL, " \n")) {
        sscanf(word, "mb=%ld", &mb);
        sscanf(word, "ms=%ld", &ms);
        sscanf(word, "fail=%ld", &fail);
        sscanf(word, "gate=%2047s", gate);
        sscanf(word, "tail_gate=%2047s", tail_gate);
    }
    pid_t part = fork();
    if (part == 0) {
        char *memory = malloc((size_t)mb << 20);
        struct timespec wait = {0, 10000000};
        for (long done = 0; done < mb; done++)
            memset(memory + (done << 20), 1 + (int)(done % 100), 1 << 20);
        for (int i = 0; *gate && i < 60000 && access(gate, F_OK) != 0; i++)
            nanosleep(&wait, NULL);
        wait.tv_sec = ms / 1000;
        wait.tv_nsec = ms % 1000 * 1000000;
        nanosleep(&wait, NULL);
        int intact = memory[0] == 1;
        free(memory); /* large: it goes back to the kernel */
        wait.tv_sec = 0;
        wait.tv_nsec = 10000000;
        for (int i = 0; *tail_gate && i < 60000 && access(tail_gate, F_OK) != 0; i++)
            nanosleep(&wait, NULL);
        _exit(intact ? 0 : 3);
    }
    int status = 0;
    waitpid(part, &status, 0);
    if (WIFSIGNALED(status)) {
        fprintf(stderr, "Killed\n");
        return 128 + WTERMSIG(status);
    }
    if (fail) {
        fprintf(stderr, "%s:1: error: as asked\n", source);
        return (int)fail;
    }
    FILE *object = fopen(output, "w");
    if (!object)
        return 2;
    fprintf(object, "object of %s\n", source);
    return fclose(object) == 0 ? 0 : 2;
}
