/* Starts programs for the slots of a supervisor, and stays with those that live for a moment only (decision 0061).
 *
 * Each slot has a thread of the supervisor's that stands in the slot's groups and has a table of descriptors of its own. It spends its life
 * in serve(): here it waits for a program, makes its pipes, starts it, and waits with it for PATIENCE_MS. A program that ends meanwhile
 * is told with its status, what it used and what it printed; one that lives longer is handed over with the reading ends of its pipes.
 * None of this needs the interpreter, so programs begin and end on all cores while the supervisor's one thread decides.
 *
 * Plain C without Python's headers, called through ctypes by starter.py, which says what the fields mean to the supervisor. Where it cannot
 * be compiled, or the kernel lacks what it needs, the supervisor's Python starts programs.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <poll.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef __x86_64__
#error "only x86_64 has been tried"
#endif

#define VERSION 2        /* of what is called from starter.py */
#define PATIENCE_MS 20   /* as QUIET_S of executables.py */
#define HEARD 65536      /* what a pipe holds */
#define STACK 16384      /* of a new process until it becomes the program */
#define PROMPT (-10)     /* nice value of a thread in here: the program's own children are in its group, and it shall not wait behind them */

enum { WAITED = 1, HANDED_OVER = 2 };

/* What the supervisor reads; the same in starter.py. */
struct told {
    int32_t slot, pid, error, flags, status, heard[2], unused;
    int64_t user_us, system_us, max_rss, in_blocks, out_blocks;
};

/* Where the slots of one supervisor hand in what is done. The numbers are those of the threads' tables: an empty input, two eventfds and a
 * socket of the supervisor's. */
struct desk {
    int nothing, bell, hurry, handing;
    int usual;                    /* nice value of programs */
    _Atomic(struct slot *) done;
    _Atomic int waiting, wanted;  /* how many are done, and how many make the bell ring */
    struct slot *rest;            /* taken from there and not told yet */
};

struct slot {
    struct told told;
    struct desk *desk;
    struct slot *next;               /* in the list of those that are done */
    sem_t there;
    _Atomic int given;               /* a program waits to be started; otherwise whoever posts wants the thread back in Python */
    char *text, **vector;            /* words, variables, folder, group; and pointers to the first two */
    size_t text_room, vector_room;
    char **argv, **env, *folder, *group;
    int pipes[4];                    /* of its output and of its errors: to read from, to write to */
    char heard[2][HEARD];
    _Alignas(16) char stack[STACK];
};

/* 0: the kernel has no clone3, or a filter forbids it (it is asked with nothing, which is wrong in another way). */
int version(void)
{
    return syscall(SYS_clone3, NULL, 0) < 0 && errno == EINVAL ? VERSION : 0;
}

struct desk *open_desk(int nothing, int bell, int hurry, int handing, int usual)
{
    struct desk *desk = calloc(1, sizeof *desk);
    if (desk) {
        desk->nothing = nothing, desk->bell = bell, desk->hurry = hurry, desk->handing = handing, desk->usual = usual;
        atomic_store(&desk->wanted, 1);
    }
    return desk;
}

struct slot *make(struct desk *desk, int number)
{
    struct slot *slot = calloc(1, sizeof *slot);
    if (slot) {
        slot->told.slot = number;
        slot->desk = desk;
        sem_init(&slot->there, 0, 0);
    }
    return slot;
}

/* Its thread has ended. */
void discard(struct slot *slot)
{
    free(slot->text);
    free(slot->vector);
    free(slot);
}

static char **point(char **at, char **text, int count)
{
    for (int i = 0; i < count; i++) {
        *at++ = *text;
        *text += strlen(*text) + 1;
    }
    *at++ = NULL;
    return at;
}

static int has_room(struct slot *slot, size_t size, size_t pointers)
{
    if (slot->text_room < size) {
        free(slot->text);
        slot->text_room = (slot->text = malloc(size + 1024)) ? size + 1024 : 0;
    }
    if (slot->vector_room < pointers) {
        free(slot->vector);
        slot->vector_room = (slot->vector = malloc((pointers + 32) * sizeof *slot->vector)) ? pointers + 32 : 0;
    }
    return slot->text && slot->vector;
}

/* The text is argc words, envc variables, the folder and the group, each with a NUL behind it. Copied: the caller may forget it. */
int give(struct slot *slot, const char *text, size_t size, int argc, int envc)
{
    if (!has_room(slot, size, (size_t)argc + (size_t)envc + 2))
        return ENOMEM;
    char *at = memcpy(slot->text, text, size);
    slot->argv = slot->vector;
    slot->env = point(slot->argv, &at, argc);
    point(slot->env, &at, envc);
    slot->folder = at;
    slot->group = at + strlen(at) + 1;
    atomic_store(&slot->given, 1);
    sem_post(&slot->there);
    return 0;
}

void call_back(struct slot *slot) { sem_post(&slot->there); }

/* On a stack of its own in the memory of the thread that started it, which stands still until the program is loaded or this has ended. */
static void become(struct slot *slot)
{
    /* What somebody may ignore (spawn.py says who); handlers were cleared by CLONE_CLEAR_SIGHAND. */
    const int usually[] = {SIGHUP, SIGINT, SIGQUIT, SIGPIPE, SIGXFSZ};
    struct sigaction usual = {.sa_handler = SIG_DFL};
    sigset_t none;
    sigemptyset(&none);
    setpriority(PRIO_PROCESS, 0, slot->desk->usual);
    for (unsigned int at = 0; at < sizeof usually / sizeof *usually; at++)
        sigaction(usually[at], &usual, NULL);
    if (setsid() >= 0 && dup2(slot->desk->nothing, 0) == 0 && dup2(slot->pipes[1], 1) == 1 && dup2(slot->pipes[3], 2) == 2 &&
        chdir(slot->folder) == 0) {
        sigprocmask(SIG_SETMASK, &none, NULL);
        execve(slot->argv[0], slot->argv, slot->env);
    }
    slot->told.error = errno;
    _exit(127);
}

/* The C library has no clone3. Returns once, in the thread: the new process calls become() and never comes back. */
static long start(struct clone_args *how, struct slot *slot)
{
    long result;
    __asm__ volatile(
        "syscall\n\t"
        "test %%rax, %%rax\n\t"
        "jnz 1f\n\t"
        "mov %[slot], %%rdi\n\t"
        "call *%[become]\n\t"
        "ud2\n"
        "1:"
        : "=a"(result)
        : "a"((long)SYS_clone3), "D"(how), "S"(sizeof *how), [become] "r"(become), [slot] "r"(slot)
        : "rcx", "r11", "memory");
    return result;
}

static void close_all(const int *fds, int count)
{
    for (int i = 0; i < count; i++)
        if (fds[i] >= 0)
            close(fds[i]);
}

/* True when that is all there is now. */
static int read_all(int fd, char *into, int32_t *length)
{
    *length = 0;
    while (*length < HEARD) {
        ssize_t got = read(fd, into + *length, (size_t)(HEARD - *length));
        if (got > 0)
            *length += (int32_t)got;
        else if (got == 0 || errno != EINTR)
            return 1;
    }
    return 0;
}

/* False when the supervisor has no room for more just now. */
static int hand_over(struct slot *slot)
{
    char room[CMSG_SPACE(2 * sizeof(int))] = {0};
    struct iovec number = {&slot->told.slot, sizeof slot->told.slot};
    struct msghdr message = {.msg_iov = &number, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET, header->cmsg_type = SCM_RIGHTS, header->cmsg_len = CMSG_LEN(2 * sizeof(int));
    memcpy(CMSG_DATA(header), (int[]){slot->pipes[0], slot->pipes[2]}, 2 * sizeof(int));
    if (sendmsg(slot->desk->handing, &message, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
        return 0;
    slot->told.flags |= HANDED_OVER;
    return 1;
}

/* By its descriptor: its number may be another's by now. Returns 1 when it has ended and its end is told here, 0 when it is not to be had
 * yet (it is traced, and whoever traces it has not let it go), -1 when the supervisor was told already. */
static int end_of(struct slot *slot, int pidfd)
{
    struct told *told = &slot->told;
    struct rusage used;
    siginfo_t end = {0};
    if (syscall(SYS_waitid, P_PIDFD, pidfd, &end, WEXITED | WNOHANG, &used) < 0)
        return -1;
    if (!end.si_pid)
        return 0;
    told->status = end.si_code == CLD_EXITED ? end.si_status << 8 : end.si_status | (end.si_code == CLD_DUMPED ? 0x80 : 0);
    told->user_us = used.ru_utime.tv_sec * 1000000L + used.ru_utime.tv_usec;
    told->system_us = used.ru_stime.tv_sec * 1000000L + used.ru_stime.tv_usec;
    told->max_rss = used.ru_maxrss, told->in_blocks = used.ru_inblock, told->out_blocks = used.ru_oublock;
    told->flags |= WAITED;
    return 1;
}

/* A bounded wait: what lives longer is the supervisor's, and so is everything when it is in a hurry. */
static void stay_with(struct slot *slot, int pidfd)
{
    struct told *told = &slot->told;
    struct pollfd ends[2] = {{pidfd, POLLIN, 0}, {slot->desk->hurry, POLLIN, 0}};
    poll(ends, 2, PATIENCE_MS);
    while (!ends[0].revents || !end_of(slot, pidfd)) {
        if (hand_over(slot))
            return;
        poll(ends, 1, PATIENCE_MS);
    }
    int whole = read_all(slot->pipes[0], slot->heard[0], &told->heard[0]);
    whole &= read_all(slot->pipes[2], slot->heard[1], &told->heard[1]);
    while (!whole && !hand_over(slot))  /* it has made a pipe larger, or somebody it left behind goes on writing */
        poll(NULL, 0, PATIENCE_MS);
}

static void run(struct slot *slot)
{
    struct told *told = &slot->told;
    int *pipes = slot->pipes, group = -1, pidfd = -1;
    struct clone_args how = {
        .flags = CLONE_VM | CLONE_VFORK | CLONE_CLEAR_SIGHAND | CLONE_PIDFD,
        .pidfd = (uint64_t)(uintptr_t)&pidfd,
        .exit_signal = SIGCHLD,
        .stack = (uint64_t)(uintptr_t)slot->stack,
        .stack_size = STACK,
    };
    told->pid = -1, told->error = told->flags = told->status = told->heard[0] = told->heard[1] = 0;
    pipes[0] = pipes[1] = pipes[2] = pipes[3] = -1;
    if (pipe2(pipes, O_CLOEXEC) < 0 || pipe2(pipes + 2, O_CLOEXEC) < 0 || fcntl(pipes[0], F_SETFL, O_NONBLOCK) < 0 ||
        fcntl(pipes[2], F_SETFL, O_NONBLOCK) < 0 ||
        (slot->group[0] && (group = open(slot->group, O_PATH | O_DIRECTORY | O_CLOEXEC)) < 0)) {
        told->error = errno;
    } else {
        if (group >= 0)
            how.flags |= CLONE_INTO_CGROUP, how.cgroup = (uint64_t)group;
        long pid = start(&how, slot);
        close(pipes[1]), close(pipes[3]);
        pipes[1] = pipes[3] = -1;
        if (pid < 0)
            told->error = (int)-pid;
        else if (told->error)  /* it could not become the program, and is about to be gone */
            syscall(SYS_waitid, P_PIDFD, pidfd, NULL, WEXITED, NULL);
        else
            told->pid = (int32_t)pid, stay_with(slot, pidfd);
    }
    close_all(pipes, 4);
    close_all((int[]){group, pidfd}, 2);
}

static void tell(struct slot *slot)
{
    struct desk *desk = slot->desk;  /* once it is in the list the slot is the supervisor's */
    slot->next = atomic_load(&desk->done);
    while (!atomic_compare_exchange_weak(&desk->done, &slot->next, slot))
        ;
    if (atomic_fetch_add(&desk->waiting, 1) + 1 >= atomic_load(&desk->wanted)) {
        atomic_store(&desk->wanted, INT32_MAX);  /* rung once; the supervisor says when it wants to hear it again */
        uint64_t one = 1;
        ssize_t rung = write(desk->bell, &one, sizeof one);
        (void)rung;  /* it can only be full, and is heard then */
    }
}

/* By the slot's thread; returns when something else shall be done by it. */
void serve(struct slot *slot)
{
    setpriority(PRIO_PROCESS, 0, PROMPT);  /* of this thread alone; who may not goes on as it is */
    for (;;) {
        while (sem_wait(&slot->there) != 0)
            ;
        if (!atomic_exchange(&slot->given, 0))
            break;
        run(slot);
        tell(slot);
    }
    setpriority(PRIO_PROCESS, 0, slot->desk->usual);
}

/* From how many on the bell rings. Returns how many wait already: it does not ring for these. */
int listen_for(struct desk *desk, int count)
{
    atomic_store(&desk->wanted, count);
    return atomic_load(&desk->waiting);
}

/* Those that are done, at most so many; the rest the next time. Returns how many. By the supervisor's own thread only. */
int take(struct desk *desk, struct told *into, struct slot **slots, int most)
{
    int count = 0;
    for (; count < most; count++) {
        if (!desk->rest)
            desk->rest = atomic_exchange(&desk->done, NULL);
        if (!desk->rest)
            break;
        struct slot *slot = desk->rest;
        desk->rest = slot->next;
        into[count] = slot->told;
        slots[count] = slot;
    }
    atomic_fetch_sub(&desk->waiting, count);
    return count;
}

const char *heard(struct slot *slot, int stream) { return slot->heard[stream]; }
