/* The compiler launcher: waits for the broker's leave, runs the compiler, reports what it took.
 *
 *   sm120-launch COMPILER ARGUMENT...
 *   sm120-launch --start-broker          ends with 0 when a broker answers, started now if there was none
 *
 * It is C because one stands in front of every compile and most of them wait: it starts in about a millisecond and
 * holds about a third of a megabyte. It decides nothing; policy, prediction and sampling are the broker's.
 *
 * Conversation, over a SOCK_SEQPACKET unix socket, one packet a message, fields "name=value" ended by NUL:
 *   launcher: state=waiting|running|ended attempt=N uid=UNIQUE cwd=... session=... arg=... arg=...
 *             (running adds held= and elapsed_ms=; ended adds the measurements)
 *   broker:   "go BYTES" (run, this much is reserved), "done" (exit now), "retry" (wait for another go), "ping" (I live),
 *             "stop" (another file of this build failed: exit without compiling).
 * When the broker dies, the launcher starts another one and says its state again, so nothing that runs is forgotten.
 * When no broker can be had, compiles take turns on a lock file, and the first one says so.
 *
 * The compiler's stderr (and its stdout, where both are the same file, as under ninja) is held in memory until it ends, so that
 * the output of a killed try never reaches the build tool. Exit status and signals pass through.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define EXIT_STOPPED 75 /* EX_TEMPFAIL of sysexits.h */

#ifndef SM120_SOCKET
#define SM120_SOCKET ""
#endif
#ifndef SM120_PYTHON
#define SM120_PYTHON ""
#endif

enum { MESSAGE_MAX = 120 * 1024, HINT_TAIL = 64 * 1024 };
static const int START_WAIT_MS = 20000;   /* how long a new broker may take to answer */
static const int SILENCE_MS = 120000;     /* a broker that says nothing for so long to a waiting launcher has failed */
static const int GIVE_UP_S = 60;          /* after a broker could not be started, nobody tries for so long */

static volatile sig_atomic_t caught;      /* the last signal that asked us to end */
static volatile pid_t child;
static int wake[2];                       /* self-pipe: signal handlers make poll() return */
static const char *socket_path;
static char **command;
static char identity[64];
static int attempt;
static long long granted;                 /* bytes, from the last go */
static long long waited_ms;

static const int watched[] = {SIGCHLD, SIGTERM, SIGINT, SIGHUP, SIGQUIT};
static int taken[sizeof watched / sizeof *watched]; /* those not ignored by our parent (nohup) */

static long long now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000LL + t.tv_nsec / 1000000;
}

static void on_signal(int number)
{
    int saved = errno;
    if (number != SIGCHLD) {
        caught = number;
        if (child > 0)
            kill(child, number);
    }
    if (write(wake[1], "", 1) < 0) { /* the pipe is full: poll() returns anyway */ }
    errno = saved;
}

static const char *setting(const char *name, const char *otherwise)
{
    const char *value = getenv(name);
    return value && *value ? value : otherwise;
}

/* socket_path with another ending, in a static buffer */
static const char *beside(const char *ending)
{
    static char path[4200];
    snprintf(path, sizeof path, "%s.%s", socket_path, ending);
    return path;
}

static int try_connect(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(socket_path) >= sizeof address.sun_path)
        return -1;
    strcpy(address.sun_path, socket_path);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0)
        return fd;
    close(fd);
    return -1;
}

static void pause_ms(int ms)
{
    struct pollfd p = {wake[0], POLLIN, 0};
    char sink[64];
    if (poll(&p, 1, ms) > 0 && read(wake[0], sink, sizeof sink) < 0) { /* nothing to read is fine */ }
}

static int recently_failed(void)
{
    struct stat s;
    return stat(beside("failed"), &s) == 0 && time(NULL) - s.st_mtime < GIVE_UP_S;
}

/* Start a broker of its own session, its output to a log; the double fork leaves no zombie behind. Returns the reading end
 * of a pipe that the broker holds open for as long as it lives. */
static int start_broker(int lock)
{
    const char *python = setting("SM120_PYTHON", SM120_PYTHON);
    int life[2];
    if (pipe2(life, O_CLOEXEC) < 0)
        return -1;
    pid_t helper = fork();
    if (helper == 0) {
        setsid();
        if (fork() != 0)
            _exit(0);
        close(lock);
        int log = open(beside("log"), O_WRONLY | O_CREAT | O_APPEND, 0600);
        int null = open("/dev/null", O_RDWR);
        dup2(null, 0);
        dup2(log < 0 ? null : log, 1);
        dup2(log < 0 ? null : log, 2);
        for (int fd = 3; fd < 256; fd++)
            if (fd != life[1])
                close(fd);
        fcntl(life[1], F_SETFD, 0);
        if (chdir("/") < 0) { /* any folder will do */ }
        sigset_t none;
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        execl(python, python, "-I", "-m", "sm120_wheels.compile.broker", socket_path, (char *)NULL);
        _exit(127);
    }
    if (helper > 0)
        while (waitpid(helper, NULL, 0) < 0 && errno == EINTR) {}
    close(life[1]);
    return life[0];
}

static int has_ended(int life)
{
    struct pollfd p = {life, POLLIN, 0};
    return life >= 0 && poll(&p, 1, 0) > 0 && (p.revents & POLLHUP);
}

/* A connection to the broker, which is started if none answers; -1 when none can be had (or a signal came). */
static int connect_or_start(void)
{
    int fd = try_connect();
    if (fd >= 0 || recently_failed())
        return fd;
    int lock = open(beside("start"), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    long long limit = now_ms() + START_WAIT_MS;
    int mine = 0, life = -1;
    unsigned int step = 0;
    while (!caught && now_ms() < limit) {
        if (lock >= 0 && !mine && flock(lock, LOCK_EX | LOCK_NB) == 0) {
            mine = 1;
            if ((fd = try_connect()) >= 0)
                break;
            life = start_broker(lock);
        }
        if ((fd = try_connect()) >= 0)
            break;
        if (recently_failed())
            break;
        if (has_ended(life)) { /* it failed, or another one was first and is about to answer */
            close(life);
            life = -1;
            limit = now_ms() + 2000;
        }
        pause_ms(step < 10 ? 20 : 100);
        step++;
    }
    if (fd < 0 && mine && !caught) {
        int mark = open(beside("failed"), O_WRONLY | O_CREAT | O_TRUNC, 0600);
        if (mark >= 0) {
            futimens(mark, NULL);
            close(mark);
        }
    }
    if (life >= 0)
        close(life);
    if (lock >= 0)
        close(lock);
    return fd;
}

static char message[MESSAGE_MAX];
static size_t used;

static void add(const char *format, ...)
{
    va_list values;
    va_start(values, format);
    int length = vsnprintf(message + used, sizeof message - used, format, values);
    va_end(values);
    if (length >= 0 && used + (size_t)length + 1 < sizeof message)
        used += (size_t)length + 1; /* with its NUL; a field that does not fit is left out */
}

static void describe(const char *state)
{
    static char folder[4096];
    used = 0;
    add("state=%s", state);
    add("uid=%s", identity);
    add("attempt=%d", attempt);
    add("held=%lld", granted);
    add("waited_ms=%lld", waited_ms);
    add("cwd=%s", getcwd(folder, sizeof folder) ? folder : "/");
    static const char *const passed[] = {"SM120_SESSION", "SM120_PACKAGE", "SM120_PROFILE", "SM120_STORE",
                                         "SM120_MEMORY",  "SM120_CORES",   "SM120_RECORDS", "SM120_OWNER"};
    for (size_t i = 0; i < sizeof passed / sizeof *passed; i++)
        add("%s=%s", passed[i], setting(passed[i], ""));
    for (char **a = command; *a; a++)
        add("arg=%s", *a);
}

static int send_message(int fd)
{
    return send(fd, message, used, MSG_NOSIGNAL) == (ssize_t)used ? 0 : -1;
}

/* One answer of the broker. 1: text holds it; 0: a signal or the child woke us; -1: the broker is gone or silent. */
static int answer(int fd, char *text, size_t size, int timeout_ms)
{
    struct pollfd p[2] = {{fd, POLLIN, 0}, {wake[0], POLLIN, 0}};
    int ready = poll(p, 2, timeout_ms);
    if (ready == 0)
        return -1;
    if (ready < 0)
        return errno == EINTR ? 0 : -1;
    if (p[0].revents) {
        ssize_t length = recv(fd, text, size - 1, 0);
        if (length <= 0)
            return -1;
        text[length] = 0;
        return 1;
    }
    char sink[64];
    if (read(wake[0], sink, sizeof sink) < 0) { /* nothing to read is fine */ }
    return 0;
}

/* Without a broker: one compile at a time, and one note about it. Returns the lock, held. */
static int take_turns(void)
{
    int lock = open(beside("turn"), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (lock < 0)
        return -1;
    while (!caught && flock(lock, LOCK_EX | LOCK_NB) != 0)
        pause_ms(200);
    static char noted[4300];
    snprintf(noted, sizeof noted, "%s.noted-%s", socket_path, setting("SM120_SESSION", "none"));
    int note = open(noted, O_WRONLY | O_CREAT | O_EXCL, 0600);
    if (note >= 0) {
        close(note);
        dprintf(2, "sm120: no compile broker can be started (see %s): compiling one file at a time\n", beside("log"));
    }
    return lock;
}

static void die_by(int number)
{
    signal(number, SIG_DFL);
    sigset_t only;
    sigemptyset(&only);
    sigaddset(&only, number);
    sigprocmask(SIG_UNBLOCK, &only, NULL);
    struct rlimit no_core = {0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    raise(number);
    _exit(128 + number);
}

/* Wait for leave. Returns the connection, or -1 with *turn held when there is no broker. */
static int wait_for_go(int fd, int *turn)
{
    long long since = now_ms();
    int silences = 0;
    char text[128];
    describe("waiting");
    if (fd >= 0 && send_message(fd) < 0) {
        close(fd);
        fd = -1;
    }
    for (;;) {
        if (caught)
            die_by(caught);
        if (fd < 0) {
            fd = silences < 2 ? connect_or_start() : -1;
            if (caught)
                die_by(caught);
            if (fd < 0) {
                granted = 0;
                *turn = take_turns();
                if (caught)
                    die_by(caught);
                waited_ms += now_ms() - since;
                return -1;
            }
            describe("waiting");
            if (send_message(fd) < 0) {
                close(fd);
                fd = -1;
                pause_ms(50);
                continue;
            }
        }
        long long asked = now_ms();
        int got = answer(fd, text, sizeof text, SILENCE_MS);
        if (got < 0) {
            silences += now_ms() - asked >= SILENCE_MS;
            close(fd);
            fd = -1;
        } else if (got > 0 && strncmp(text, "go ", 3) == 0) {
            if (caught)
                die_by(caught);
            granted = atoll(text + 3);
            waited_ms += now_ms() - since;
            return fd;
        } else if (got > 0 && strcmp(text, "stop") == 0) {
            /* The build tool has started as many as may wait, and would have each of them compiled before it gives up. */
            fprintf(stderr, "sm120-launch: not compiled, because another file of this build failed\n");
            exit(EXIT_STOPPED);
        }
    }
}

static int same_file(int a, int b)
{
    struct stat x, y;
    return fstat(a, &x) == 0 && fstat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

static void run_child(int held_output, pid_t parent, const sigset_t *mask)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) /* it died before the line above */
        _exit(128 + SIGKILL);
    if (held_output >= 0) {
        int both = same_file(1, 2);
        dup2(held_output, 2);
        if (both)
            dup2(held_output, 1);
    }
    for (size_t i = 0; i < sizeof watched / sizeof *watched; i++)
        if (taken[i])
            signal(watched[i], SIG_DFL);
    sigprocmask(SIG_SETMASK, mask, NULL);
    int score = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (score >= 0) { /* rather a compiler, which is tried again, than anything else */
        if (write(score, "500", 3) < 0) { /* then not */ }
        close(score);
    }
    execvp(command[0], command);
    dprintf(2, "sm120-launch: cannot run %s: %s\n", command[0], strerror(errno));
    _exit(errno == ENOENT ? 127 : 126);
}

/* Whether what the compiler said tells of a part of it that was killed, or of memory that it did not get. */
static int says_killed(int fd)
{
    static char tail[HINT_TAIL + 1];
    off_t size = lseek(fd, 0, SEEK_END);
    off_t from = size > HINT_TAIL ? size - HINT_TAIL : 0;
    ssize_t length = pread(fd, tail, HINT_TAIL, from);
    if (length <= 0)
        return 0;
    tail[length] = 0;
    static const char *const signs[] = {"Killed\n", "Killed signal terminated program", "died due to signal 9",
                                        "std::bad_alloc", "virtual memory exhausted", "Cannot allocate memory",
                                        "out of memory allocating"};
    for (size_t i = 0; i < sizeof signs / sizeof *signs; i++)
        if (memmem(tail, (size_t)length, signs[i], strlen(signs[i])))
            return 1;
    return 0;
}

static void pass_on(int fd)
{
    static char block[1 << 16];
    off_t at = 0;
    ssize_t length;
    while ((length = pread(fd, block, sizeof block, at)) > 0) {
        for (ssize_t done = 0; done < length;) {
            ssize_t wrote = write(2, block + done, (size_t)(length - done));
            if (wrote < 0 && errno != EINTR && errno != EAGAIN)
                return;
            done += wrote > 0 ? wrote : 0;
        }
        at += length;
    }
}

/* Run the compiler once, staying registered with a broker meanwhile. Returns the wait status. */
static int run_once(int *fd, int output, struct rusage *usage, long long *wall_ms)
{
    long long began = now_ms(), next_try = 0;
    int status = 0;
    char text[128];
    sigset_t ours, before;
    sigemptyset(&ours);
    for (size_t i = 0; i < sizeof watched / sizeof *watched; i++)
        sigaddset(&ours, watched[i]);
    /* A signal between the fork and the child's exec must reach the compiler, not our handler in the child. */
    sigprocmask(SIG_BLOCK, &ours, &before);
    pid_t parent = getpid();
    pid_t pid = fork();
    if (pid == 0)
        run_child(output, parent, &before);
    child = pid > 0 ? pid : 0;
    if (caught && pid > 0)
        kill(pid, caught); /* it came before the mask */
    sigprocmask(SIG_SETMASK, &before, NULL);
    if (pid < 0)
        return 126 << 8;
    for (;;) {
        pid_t ended = wait4(pid, &status, WNOHANG, usage);
        if (ended == pid || (ended < 0 && errno == ECHILD))
            break;
        if (*fd >= 0) {
            if (answer(*fd, text, sizeof text, -1) < 0) {
                close(*fd);
                *fd = -1;
                next_try = now_ms();
            }
        } else if (granted > 0 && now_ms() >= next_try) {
            *fd = connect_or_start(); /* a new broker must know what runs */
            next_try = now_ms() + 5000;
            if (*fd >= 0) {
                describe("running");
                add("elapsed_ms=%lld", now_ms() - began);
                if (send_message(*fd) < 0) {
                    close(*fd);
                    *fd = -1;
                }
            }
        } else {
            pause_ms(1000);
        }
    }
    child = 0;
    *wall_ms = now_ms() - began;
    return status;
}

/* Report the end and learn whether to try again. */
static int report(int *fd, int status, int killed, const struct rusage *usage, long long wall_ms)
{
    char text[128];
    for (int round = 0; round < 3; round++) {
        if (*fd < 0)
            *fd = connect_or_start();
        if (*fd < 0)
            return 0;
        describe("ended");
        add("exit=%d", WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
        add("killed=%d", killed);
        add("wall_ms=%lld", wall_ms);
        add("cpu_ms=%lld", (usage->ru_utime.tv_sec + usage->ru_stime.tv_sec) * 1000LL +
                               (usage->ru_utime.tv_usec + usage->ru_stime.tv_usec) / 1000);
        add("maxrss=%lld", usage->ru_maxrss * 1024LL);
        if (send_message(*fd) == 0) {
            int got;
            while ((got = answer(*fd, text, sizeof text, 30000)) >= 0) {
                if (caught)
                    return 0;
                if (got > 0 && strcmp(text, "done") == 0)
                    return 0;
                if (got > 0 && strcmp(text, "retry") == 0)
                    return 1;
            }
        }
        close(*fd);
        *fd = -1;
    }
    return 0;
}

/* A line for the summary about a compile that no broker saw. */
static void record_turn(int status, const struct rusage *usage, long long wall_ms)
{
    const char *path = setting("SM120_RECORDS", ""), *source = "?";
    if (!*path)
        return;
    for (char **a = command; *a; a++) {
        const char *dot = strrchr(*a, '.');
        if (dot && **a != '-' && (!strcmp(dot, ".cu") || !strncmp(dot, ".c", 2)) && !strpbrk(*a, "\"\\"))
            source = *a;
    }
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd < 0)
        return;
    struct timespec clock;
    clock_gettime(CLOCK_REALTIME, &clock);
    dprintf(fd, "{\"kind\":\"turn\",\"uid\":\"%s\",\"source\":\"%s\",\"ended\":%lld.%03ld,\"wall_s\":%.3f,\"waited_s\":%.3f,"
                "\"cpu_s\":%.3f,\"peak\":%lld,\"exit\":%d}\n",
            identity, source, (long long)clock.tv_sec, clock.tv_nsec / 1000000, wall_ms / 1e3, waited_ms / 1e3,
            (usage->ru_utime.tv_sec + usage->ru_stime.tv_sec) +
                (usage->ru_utime.tv_usec + usage->ru_stime.tv_usec) / 1e6,
            usage->ru_maxrss * 1024LL, WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
    close(fd);
}

int main(int count, char **arguments)
{
    if (count < 2) {
        fprintf(stderr, "usage: sm120-launch COMPILER ARGUMENT...\n");
        return 2;
    }
    command = arguments + 1;
    socket_path = setting("SM120_SOCKET", SM120_SOCKET);
    struct timespec clock;
    clock_gettime(CLOCK_REALTIME, &clock);
    snprintf(identity, sizeof identity, "%lld.%09ld.%d", (long long)clock.tv_sec, clock.tv_nsec, (int)getpid());
    if (pipe2(wake, O_CLOEXEC | O_NONBLOCK) < 0)
        return 126;
    struct sigaction action = {.sa_handler = on_signal};
    for (size_t i = 0; i < sizeof watched / sizeof *watched; i++) {
        struct sigaction before;
        sigaction(watched[i], NULL, &before);
        taken[i] = watched[i] == SIGCHLD || before.sa_handler != SIG_IGN;
        if (taken[i])
            sigaction(watched[i], &action, NULL);
    }

    int fd = connect_or_start();
    if (strcmp(command[0], "--start-broker") == 0)
        return fd < 0;
    for (;;) {
        struct rusage usage = {0};
        long long wall_ms = 0;
        int turn = -1;
        fd = wait_for_go(fd, &turn);
        int output = memfd_create("sm120-output", MFD_CLOEXEC);
        if (output >= 0)
            fcntl(output, F_SETFL, O_APPEND);
        int status = run_once(&fd, output, &usage, &wall_ms);
        if (granted == 0)
            record_turn(status, &usage, wall_ms);
        if (turn >= 0)
            close(turn);
        int failed = !WIFEXITED(status) || WEXITSTATUS(status) != 0;
        int killed = failed && !caught &&
                     ((WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) ||
                      (WIFEXITED(status) && WEXITSTATUS(status) == 128 + SIGKILL) ||
                      (output >= 0 && says_killed(output)));
        if (granted > 0 && report(&fd, status, killed, &usage, wall_ms)) {
            close(output);
            attempt++;
            continue;
        }
        if (output >= 0)
            pass_on(output);
        if (caught)
            die_by(caught);
        if (WIFSIGNALED(status))
            die_by(WTERMSIG(status));
        return WEXITSTATUS(status);
    }
}
