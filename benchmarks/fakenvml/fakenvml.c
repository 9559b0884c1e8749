/* A libnvidia-ml.so.1 without a driver: answers what gputui, nvitop, nvtop and gpustat ask, for any number of GPUs and
 * processes, counts the calls, and can be made to fail in the ways of a real one. For tests and benchmarks only.
 *
 * Layouts and numbers are those of the public nvml.h (as in nvidia-ml-py); nothing here is NVIDIA's code.
 *
 * FAKE_NVML_CONFIG names a text file, read again when it changes (looked at every 20 ms at most, or before each call
 * where FAKE_NVML_EAGER is set). Lines:
 *   gpus N | memory_mib N | driver TEXT | latency_us N | pcie_blocks_ms N | load PERCENT
 *   process GPU PID MIB KIND SM_PERCENT     KIND is C, G or M; repeat the line for several
 *   unsupported FUNCTION [GPU]              answers "not supported"
 *   missing FUNCTION                        answers "function not found", as an old driver's library
 *   fails FUNCTION CODE [GPU]               answers any other nvmlReturn_t
 *   field_unsupported ID                    one field value is "not supported"
 *   hang FUNCTION SECONDS                   blocks; "*" for every function; ends early when the line goes
 *   garbled_name GPU                        its name is not UTF-8
 *   lost GPU | absent GPU                   "GPU is lost"; not enumerated at all (seen at the next nvmlInit)
 *   init_error CODE                         what nvmlInit answers
 *   scramble                                process lists with rows laid out otherwise, as some drivers did
 *   v1_memory                               no second version of the memory call
 *   xid GPU CODE SERIAL                     one event each time SERIAL is new
 *   path GPU GPU LEVEL                      nvmlGpuTopologyLevel_t between two GPUs, 10 (one switch) to 50 (two CPUs);
 *                                           50 where no line says so
 *   nvlink GPU GPU                          joined by NVLink | no_p2p: no PCIe peer access at all
 *
 * FAKE_NVML_COUNTERS names a directory: each process keeps <pid>.calls there, mapped, as records of
 * { char name[56]; uint64 calls; }, ended by an empty name.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MAX_GPUS 64
#define MAX_PROCESSES 512
#define MAX_RULES 64
#define MAX_COUNTERS 160
#define NAME_BYTES 56

enum {
    OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
    TIMEOUT = 10, FUNCTION_NOT_FOUND = 13, GPU_IS_LOST = 15
};

typedef struct { int index; } Device;
typedef struct { unsigned pid, gpu; unsigned long long bytes; char kind; unsigned sm; } Process;
typedef struct { char function[NAME_BYTES]; int code, gpu; double seconds; } Rule;
typedef struct { char name[NAME_BYTES]; uint64_t calls; } Counter;

static struct {
    int gpus, latency_us, pcie_blocks_ms, init_error, scramble, v1_memory, process_count, rule_count, hang_count;
    int field_count, fields_unsupported[MAX_RULES];
    int load;
    unsigned long long memory_bytes;
    char driver[80], lost[MAX_GPUS], absent[MAX_GPUS], garbled[MAX_GPUS];
    Process processes[MAX_PROCESSES];
    Rule rules[MAX_RULES], hangs[MAX_RULES];
    struct { int code; unsigned serial; } xid[MAX_GPUS];
    unsigned char path[MAX_GPUS][MAX_GPUS], nvlink[MAX_GPUS][MAX_GPUS];
    int no_p2p;
} config;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Device devices[MAX_GPUS];
static char enumerated[MAX_GPUS], registered[MAX_GPUS];
static unsigned serials_seen[MAX_GPUS];
static int initialised;
static Counter own_counters[MAX_COUNTERS];
static Counter *counters = own_counters;
static int counter_count;
static double looked_at = -1;
static struct timespec config_mtime;
static off_t config_size = -1;

static double now_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static uint64_t now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000u;
}

static void add_rule(Rule *rules, int *count, const char *function, int code, int gpu, double seconds)
{
    if (*count >= MAX_RULES) return;
    Rule *rule = &rules[(*count)++];
    snprintf(rule->function, sizeof rule->function, "%s", function);
    rule->code = code;
    rule->gpu = gpu;
    rule->seconds = seconds;
}

static void read_line(const char *line)
{
    char word[64] = "", text[80] = "", kind = 'C';
    unsigned a = 0, b = 0, c = 0, d = 0;
    double seconds = 0;
    if (sscanf(line, "%63s", word) != 1 || word[0] == '#') return;
    if (sscanf(line, "gpus %u", &a) == 1) config.gpus = a > MAX_GPUS ? MAX_GPUS : (int)a;
    else if (sscanf(line, "memory_mib %u", &a) == 1) config.memory_bytes = (unsigned long long)a << 20;
    else if (sscanf(line, "driver %79s", text) == 1) snprintf(config.driver, sizeof config.driver, "%s", text);
    else if (sscanf(line, "latency_us %u", &a) == 1) config.latency_us = (int)a;
    else if (sscanf(line, "pcie_blocks_ms %u", &a) == 1) config.pcie_blocks_ms = (int)a;
    else if (sscanf(line, "load %u", &a) == 1) config.load = (int)a;
    else if (sscanf(line, "init_error %u", &a) == 1) config.init_error = (int)a;
    else if (sscanf(line, "process %u %u %u %c %u", &a, &b, &c, &kind, &d) == 5) {
        if (config.process_count < MAX_PROCESSES)
            config.processes[config.process_count++] =
                (Process){ .gpu = a, .pid = b, .bytes = (unsigned long long)c << 20, .kind = kind, .sm = d };
    }
    else if (sscanf(line, "hang %63s %lf", text, &seconds) == 2) add_rule(config.hangs, &config.hang_count, text, 0, -1, seconds);
    else if (sscanf(line, "unsupported %63s %u", text, &a) == 2) add_rule(config.rules, &config.rule_count, text, NOT_SUPPORTED, (int)a, 0);
    else if (sscanf(line, "unsupported %63s", text) == 1) add_rule(config.rules, &config.rule_count, text, NOT_SUPPORTED, -1, 0);
    else if (sscanf(line, "missing %63s", text) == 1) add_rule(config.rules, &config.rule_count, text, FUNCTION_NOT_FOUND, -1, 0);
    else if (sscanf(line, "fails %63s %u %u", text, &a, &b) == 3) add_rule(config.rules, &config.rule_count, text, (int)a, (int)b, 0);
    else if (sscanf(line, "fails %63s %u", text, &a) == 2) add_rule(config.rules, &config.rule_count, text, (int)a, -1, 0);
    else if (sscanf(line, "field_unsupported %u", &a) == 1) {
        if (config.field_count < MAX_RULES) config.fields_unsupported[config.field_count++] = (int)a;
    }
    else if (sscanf(line, "lost %u", &a) == 1 && a < MAX_GPUS) config.lost[a] = 1;
    else if (sscanf(line, "garbled_name %u", &a) == 1 && a < MAX_GPUS) config.garbled[a] = 1;
    else if (sscanf(line, "absent %u", &a) == 1 && a < MAX_GPUS) config.absent[a] = 1;
    else if (sscanf(line, "xid %u %u %u", &a, &b, &c) == 3 && a < MAX_GPUS) { config.xid[a].code = (int)b; config.xid[a].serial = c; }
    else if (sscanf(line, "path %u %u %u", &a, &b, &c) == 3 && a < MAX_GPUS && b < MAX_GPUS)
        config.path[a][b] = config.path[b][a] = (unsigned char)c;
    else if (sscanf(line, "nvlink %u %u", &a, &b) == 2 && a < MAX_GPUS && b < MAX_GPUS)
        config.nvlink[a][b] = config.nvlink[b][a] = 1;
    else if (!strcmp(word, "no_p2p")) config.no_p2p = 1;
    else if (!strcmp(word, "scramble")) config.scramble = 1;
    else if (!strcmp(word, "v1_memory")) config.v1_memory = 1;
}

/* Called with the lock held. */
static void refresh_config(void)
{
    double now = now_seconds();
    static int eager = -1;
    if (eager < 0) eager = getenv("FAKE_NVML_EAGER") != NULL;
    if (!eager && looked_at >= 0 && now - looked_at < 0.02) return;
    int first = looked_at < 0;
    looked_at = now;
    const char *path = getenv("FAKE_NVML_CONFIG");
    struct stat found;
    if (path && stat(path, &found) == 0) {
        if (!first && found.st_mtim.tv_sec == config_mtime.tv_sec && found.st_mtim.tv_nsec == config_mtime.tv_nsec &&
            found.st_size == config_size)
            return;
        config_mtime = found.st_mtim;
        config_size = found.st_size;
    } else if (!first) {
        return;
    }
    memset(&config, 0, sizeof config);
    config.gpus = 8;
    config.memory_bytes = 80ull << 30;
    config.load = 90;
    snprintf(config.driver, sizeof config.driver, "%s", "580.95.05");
    FILE *file = path ? fopen(path, "r") : NULL;
    if (!file) return;
    char line[256];
    while (fgets(line, sizeof line, file)) read_line(line);
    fclose(file);
}

__attribute__((constructor)) static void open_counters(void)
{
    for (int i = 0; i < MAX_GPUS; i++) devices[i].index = i;
    const char *directory = getenv("FAKE_NVML_COUNTERS");
    if (!directory) return;
    char path[512];
    snprintf(path, sizeof path, "%s/%d.calls", directory, (int)getpid());
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0) return;
    if (ftruncate(fd, sizeof own_counters) == 0) {
        void *shared = mmap(NULL, sizeof own_counters, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (shared != MAP_FAILED) counters = shared;
    }
    close(fd);
}

/* Called with the lock held. */
static int rule_for(const char *function, int gpu)
{
    for (int i = 0; i < config.rule_count; i++) {
        Rule *rule = &config.rules[i];
        if (!strcmp(rule->function, function) && (rule->gpu < 0 || rule->gpu == gpu)) return rule->code;
    }
    return OK;
}

static double hang_for(const char *function)
{
    pthread_mutex_lock(&lock);
    refresh_config();
    double seconds = 0;
    for (int i = 0; i < config.hang_count; i++)
        if (!strcmp(config.hangs[i].function, "*") || !strcmp(config.hangs[i].function, function))
            seconds = config.hangs[i].seconds;
    pthread_mutex_unlock(&lock);
    return seconds;
}

/* Every call passes here: counts it, plays the planned faults, and says whether to go on. */
static int enter(int *slot, const char *function, Device *device)
{
    int gpu = device ? device->index : -1;
    pthread_mutex_lock(&lock);
    refresh_config();
    if (*slot < 0) {
        *slot = counter_count < MAX_COUNTERS - 1 ? counter_count++ : MAX_COUNTERS - 2;
        snprintf(counters[*slot].name, NAME_BYTES, "%s", function);
    }
    counters[*slot].calls++;
    int latency = config.latency_us;
    pthread_mutex_unlock(&lock);
    if (latency) usleep((useconds_t)latency);
    double began = now_seconds(), seconds;
    while ((seconds = hang_for(function)) > 0 && now_seconds() - began < seconds) usleep(20000);
    pthread_mutex_lock(&lock);
    int code = rule_for(function, gpu);
    if (code == OK && !initialised && strncmp(function, "nvmlInit", 8) && strcmp(function, "nvmlErrorString")) code = UNINITIALIZED;
    if (code == OK && device && config.lost[gpu]) code = GPU_IS_LOST;
    pthread_mutex_unlock(&lock);
    return code;
}

#define ENTER_AS(name, device)                              \
    do {                                                    \
        static int slot = -1;                               \
        int code = enter(&slot, name, (Device *)(device));  \
        if (code) return code;                              \
    } while (0)
#define ENTER(device) ENTER_AS(__func__, device)

/* A slow, reproducible movement of each GPU's load, so that screens have something to draw. */
static unsigned load_of(Device *device)
{
    double phase = now_seconds() / 7.0 + device->index;
    int load = config.load + (int)(8.0 * sin(phase));
    return load < 0 ? 0 : load > 100 ? 100 : (unsigned)load;
}

static unsigned long long used_by(Device *device)
{
    unsigned long long sum = 0;
    for (int i = 0; i < config.process_count; i++)
        if ((int)config.processes[i].gpu == device->index) sum += config.processes[i].bytes;
    return sum;
}

#define RESERVED (600ull << 20)

/* ---- library ---- */

static int initialise(void)
{
    pthread_mutex_lock(&lock);
    looked_at = looked_at < 0 ? looked_at : 0;
    refresh_config();
    int code = config.init_error;
    if (!code) {
        initialised++;
        for (int i = 0; i < MAX_GPUS; i++) enumerated[i] = i < config.gpus && !config.absent[i];
        memset(registered, 0, sizeof registered);
    }
    pthread_mutex_unlock(&lock);
    return code;
}
int nvmlInitWithFlags(unsigned flags) { (void)flags; ENTER(NULL); return initialise(); }
int nvmlInit_v2(void) { ENTER(NULL); return initialise(); }
int nvmlInit(void) { ENTER(NULL); return initialise(); }
int nvmlShutdown(void) { ENTER(NULL); if (initialised > 0) initialised--; return OK; }

const char *nvmlErrorString(int code)
{
    switch (code) {
    case OK: return "Success";
    case UNINITIALIZED: return "Uninitialized";
    case NOT_SUPPORTED: return "Not Supported";
    case NOT_FOUND: return "Not Found";
    case GPU_IS_LOST: return "GPU is lost";
    default: return "Unknown Error";
    }
}

static int put(char *out, unsigned room, const char *text)
{
    if (strlen(text) + 1 > room) return INSUFFICIENT_SIZE;
    strcpy(out, text);
    return OK;
}
int nvmlSystemGetDriverVersion(char *out, unsigned room) { ENTER(NULL); return put(out, room, config.driver); }
int nvmlSystemGetNVMLVersion(char *out, unsigned room) { ENTER(NULL); return put(out, room, "13.580.95.05"); }
int nvmlSystemGetCudaDriverVersion(int *out) { ENTER(NULL); *out = 13000; return OK; }
int nvmlSystemGetCudaDriverVersion_v2(int *out) { ENTER(NULL); *out = 13000; return OK; }

static unsigned enumerated_count(void)
{
    unsigned count = 0;
    for (int i = 0; i < MAX_GPUS; i++) count += (unsigned)enumerated[i];
    return count;
}
int nvmlDeviceGetCount_v2(unsigned *out) { ENTER(NULL); *out = enumerated_count(); return OK; }
int nvmlDeviceGetCount(unsigned *out) { ENTER(NULL); *out = enumerated_count(); return OK; }

static int by_index(unsigned index, Device **out)
{
    for (int i = 0; i < MAX_GPUS; i++)
        if (enumerated[i] && index-- == 0) { *out = &devices[i]; return config.lost[i] ? GPU_IS_LOST : OK; }
    return INVALID_ARGUMENT;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **out) { ENTER(NULL); return by_index(index, out); }
int nvmlDeviceGetHandleByIndex(unsigned index, Device **out) { ENTER(NULL); return by_index(index, out); }

static void bus_id(Device *device, char *out, unsigned room) { snprintf(out, room, "00000000:%02X:00.0", 0x10 + device->index); }
static void uuid_of(Device *device, char *out, unsigned room) { snprintf(out, room, "GPU-fa4ef00d-0000-4000-8000-%012x", device->index); }

int nvmlDeviceGetHandleByUUID(const char *uuid, Device **out)
{
    ENTER(NULL);
    char text[96];
    for (int i = 0; i < MAX_GPUS; i++) {
        uuid_of(&devices[i], text, sizeof text);
        if (enumerated[i] && !strcmp(text, uuid)) { *out = &devices[i]; return OK; }
    }
    return NOT_FOUND;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char *id, Device **out)
{
    ENTER(NULL);
    char text[32];
    for (int i = 0; i < MAX_GPUS; i++) {
        bus_id(&devices[i], text, sizeof text);
        if (enumerated[i] && !strcmp(text, id)) { *out = &devices[i]; return OK; }
    }
    return NOT_FOUND;
}

/* ---- what does not change ---- */

int nvmlDeviceGetName(Device *d, char *out, unsigned room) { ENTER(d); return put(out, room, config.garbled[d->index] ? "\xf8\xff NVIDIA" : "NVIDIA Fake 80GB"); }
int nvmlDeviceGetUUID(Device *d, char *out, unsigned room)
{
    ENTER(d);
    char text[96];
    uuid_of(d, text, sizeof text);
    return put(out, room, text);
}
int nvmlDeviceGetSerial(Device *d, char *out, unsigned room) { ENTER(d); return put(out, room, "0000000000000"); }
int nvmlDeviceGetVbiosVersion(Device *d, char *out, unsigned room) { ENTER(d); return put(out, room, "00.00.00.00.00"); }
int nvmlDeviceGetIndex(Device *d, unsigned *out) { ENTER(d); *out = (unsigned)d->index; return OK; }
int nvmlDeviceGetMinorNumber(Device *d, unsigned *out) { ENTER(d); *out = (unsigned)d->index; return OK; }

typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } PciInfo;
static int pci_info(Device *d, PciInfo *out)
{
    memset(out, 0, sizeof *out);
    out->bus = 0x10u + (unsigned)d->index;
    out->id = 0x233010deu;
    snprintf(out->legacy, sizeof out->legacy, "0000:%02X:00.0", out->bus);
    bus_id(d, out->bus_id, sizeof out->bus_id);
    return OK;
}
int nvmlDeviceGetPciInfo_v3(Device *d, PciInfo *out) { ENTER(d); return pci_info(d, out); }
int nvmlDeviceGetPciInfo_v2(Device *d, PciInfo *out) { ENTER(d); return pci_info(d, out); }
int nvmlDeviceGetPciInfo(Device *d, PciInfo *out) { ENTER(d); return pci_info(d, out); }
int nvmlDeviceGetMaxPcieLinkGeneration(Device *d, unsigned *out) { ENTER(d); *out = 5; return OK; }
int nvmlDeviceGetMaxPcieLinkWidth(Device *d, unsigned *out) { ENTER(d); *out = 16; return OK; }
int nvmlDeviceGetCudaComputeCapability(Device *d, int *major, int *minor) { ENTER(d); *major = 9; *minor = 0; return OK; }
int nvmlDeviceGetPersistenceMode(Device *d, unsigned *out) { ENTER(d); *out = 1; return OK; }
int nvmlDeviceGetComputeMode(Device *d, unsigned *out) { ENTER(d); *out = 0; return OK; }
int nvmlDeviceGetDisplayMode(Device *d, unsigned *out) { ENTER(d); *out = 0; return OK; }
int nvmlDeviceGetDisplayActive(Device *d, unsigned *out) { ENTER(d); *out = 0; return OK; }
int nvmlDeviceGetMigMode(Device *d, unsigned *current, unsigned *pending) { ENTER(d); *current = *pending = 0; return OK; }
int nvmlDeviceGetMaxMigDeviceCount(Device *d, unsigned *out) { ENTER(d); *out = 0; return OK; }
int nvmlDeviceIsMigDeviceHandle(Device *d, unsigned *out) { ENTER(d); *out = 0; return OK; }
int nvmlDeviceGetTemperatureThreshold(Device *d, unsigned which, unsigned *out)
{
    ENTER(d);
    if (which > 3) return NOT_SUPPORTED;
    *out = which == 0 ? 92 : which == 1 ? 87 : 95;
    return OK;
}
int nvmlDeviceGetPowerManagementDefaultLimit(Device *d, unsigned *out) { ENTER(d); *out = 700000; return OK; }
int nvmlDeviceGetPowerManagementLimitConstraints(Device *d, unsigned *low, unsigned *high) { ENTER(d); *low = 200000; *high = 700000; return OK; }
int nvmlDeviceGetPowerManagementLimit(Device *d, unsigned *out) { ENTER(d); *out = 700000; return OK; }
int nvmlDeviceGetEnforcedPowerLimit(Device *d, unsigned *out) { ENTER(d); *out = 700000; return OK; }
int nvmlDeviceGetMaxClockInfo(Device *d, unsigned type, unsigned *out) { ENTER(d); *out = type == 2 ? 2619 : 1980; return OK; }
int nvmlDeviceGetNumGpuCores(Device *d, unsigned *out) { ENTER(d); *out = 16896; return OK; }

/* ---- what does ---- */

typedef struct { unsigned gpu, memory; } Utilization;
int nvmlDeviceGetUtilizationRates(Device *d, Utilization *out) { ENTER(d); out->gpu = load_of(d); out->memory = out->gpu / 2; return OK; }

typedef struct { unsigned long long total, free, used; } MemoryV1;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } MemoryV2;
int nvmlDeviceGetMemoryInfo(Device *d, MemoryV1 *out)
{
    ENTER(d);
    out->total = config.memory_bytes;
    out->used = used_by(d) + RESERVED;
    out->free = out->total - out->used;
    return OK;
}
int nvmlDeviceGetMemoryInfo_v2(Device *d, MemoryV2 *out)
{
    ENTER(d);
    if (config.v1_memory) return FUNCTION_NOT_FOUND;
    out->total = config.memory_bytes;
    out->reserved = RESERVED;
    out->used = used_by(d);
    out->free = out->total - out->used - RESERVED;
    return OK;
}
int nvmlDeviceGetBAR1MemoryInfo(Device *d, MemoryV1 *out) { ENTER(d); out->total = 1ull << 37; out->used = 1u << 20; out->free = out->total - out->used; return OK; }

int nvmlDeviceGetTemperature(Device *d, unsigned sensor, unsigned *out) { ENTER(d); (void)sensor; *out = 35 + load_of(d) / 3; return OK; }
typedef struct { unsigned version, sensor; int celsius; } TemperatureV1;
int nvmlDeviceGetTemperatureV(Device *d, TemperatureV1 *out) { ENTER(d); out->celsius = (int)(35 + load_of(d) / 3); return OK; }
static unsigned milliwatts(Device *d) { return 80000 + 6000 * load_of(d); }
int nvmlDeviceGetPowerUsage(Device *d, unsigned *out) { ENTER(d); *out = milliwatts(d); return OK; }
int nvmlDeviceGetTotalEnergyConsumption(Device *d, unsigned long long *out) { ENTER(d); *out = (unsigned long long)(now_seconds() * 500000.0); return OK; }
int nvmlDeviceGetClockInfo(Device *d, unsigned type, unsigned *out) { ENTER(d); *out = type == 2 ? 2619 : 1500 + 4 * load_of(d); return OK; }
int nvmlDeviceGetPerformanceState(Device *d, unsigned *out) { ENTER(d); *out = 0; return OK; }
int nvmlDeviceGetFanSpeed(Device *d, unsigned *out) { ENTER(d); *out = 40; return OK; }
int nvmlDeviceGetFanSpeed_v2(Device *d, unsigned fan, unsigned *out) { ENTER(d); (void)fan; *out = 40; return OK; }
int nvmlDeviceGetEncoderUtilization(Device *d, unsigned *out, unsigned *period) { ENTER(d); *out = 5; *period = 166667; return OK; }
int nvmlDeviceGetDecoderUtilization(Device *d, unsigned *out, unsigned *period) { ENTER(d); *out = 7; *period = 166667; return OK; }
int nvmlDeviceGetNumFans(Device *d, unsigned *out) { ENTER(d); *out = 1; return OK; }
int nvmlDeviceGetCurrPcieLinkGeneration(Device *d, unsigned *out) { ENTER(d); *out = 5; return OK; }
int nvmlDeviceGetCurrPcieLinkWidth(Device *d, unsigned *out) { ENTER(d); *out = 16; return OK; }
int nvmlDeviceGetPcieThroughput(Device *d, unsigned direction, unsigned *out)
{
    ENTER(d);
    if (config.pcie_blocks_ms) usleep((useconds_t)config.pcie_blocks_ms * 1000);
    *out = (direction ? 3000u : 1000u) * load_of(d);
    return OK;
}
int nvmlDeviceGetTotalEccErrors(Device *d, unsigned type, unsigned counter, unsigned long long *out) { ENTER(d); (void)type; (void)counter; *out = 0; return OK; }
static unsigned long long reasons(Device *d) { return load_of(d) > 92 ? 0x4 : load_of(d) == 0 ? 0x1 : 0; }
int nvmlDeviceGetCurrentClocksEventReasons(Device *d, unsigned long long *out) { ENTER(d); *out = reasons(d); return OK; }
int nvmlDeviceGetCurrentClocksThrottleReasons(Device *d, unsigned long long *out) { ENTER(d); *out = reasons(d); return OK; }

typedef union { double d; unsigned ui; unsigned long ul; unsigned long long ull; long long sll; } Value;
typedef struct { unsigned id, scope; long long timestamp, latency; unsigned type; int code; Value value; } Field;
enum { TYPE_UINT = 1, TYPE_ULL = 3 };
int nvmlDeviceGetFieldValues(Device *d, int count, Field *fields)
{
    ENTER(d);
    for (int i = 0; i < count; i++) {
        Field *field = &fields[i];
        field->timestamp = (long long)now_us();
        field->latency = 0;
        field->type = TYPE_UINT;
        field->code = OK;
        field->value.ull = 0;
        for (int j = 0; j < config.field_count; j++)
            if (config.fields_unsupported[j] == (int)field->id) field->code = NOT_SUPPORTED;
        if (field->code) continue;
        switch (field->id) {
        case 1: field->value.ui = 1; break;
        case 3: case 4: case 5: case 6: field->type = TYPE_ULL; break;
        case 82: field->value.ui = 45 + load_of(d) / 3; break;
        case 83: field->type = TYPE_ULL; field->value.ull = (unsigned long long)(now_seconds() * 500000.0); break;
        case 138: case 139: field->type = TYPE_ULL; field->value.ull = (unsigned long long)(now_seconds() * 1e6); break;
        case 94: case 142: case 143: case 144: case 145: break;
        case 185: case 186: field->value.ui = milliwatts(d); break;
        case 190: field->value.ui = 700000; break;
        default: field->code = NOT_SUPPORTED;
        }
    }
    return OK;
}

/* ---- topology ---- */

int nvmlDeviceGetTopologyCommonAncestor(Device *d, Device *other, unsigned *out)
{
    ENTER(d);
    *out = config.path[d->index][other->index] ? config.path[d->index][other->index] : 50;
    return OK;
}
int nvmlDeviceGetP2PStatus(Device *d, Device *other, unsigned kind, unsigned *out)
{
    ENTER(d);
    int linked = config.nvlink[d->index][other->index]; /* kind 2 asks for NVLink; 0 is OK, 1 "chipset not supported" */
    *out = kind == 2 ? !linked : !(linked || !config.no_p2p);
    return OK;
}
int nvmlDeviceGetNvLinkState(Device *d, unsigned link, unsigned *out)
{
    ENTER(d);
    unsigned links = 0;
    for (int i = 0; i < MAX_GPUS; i++) links += config.nvlink[d->index][i];
    if (link >= links) return NOT_SUPPORTED;
    *out = 1;
    return OK;
}

/* ---- processes ---- */

typedef struct { unsigned pid; unsigned long long bytes; } ProcessV1;
typedef struct { unsigned pid; unsigned long long bytes; unsigned gpu_instance, compute_instance; } ProcessV2;

static int list(Device *d, char kind, unsigned *count, void *out, int version)
{
    unsigned room = *count, found = 0;
    for (int i = 0; i < config.process_count; i++) {
        Process *process = &config.processes[i];
        if ((int)process->gpu != d->index || process->kind != kind) continue;
        if (out && found < room) {
            if (version == 1) {
                ((ProcessV1 *)out)[found] = (ProcessV1){ process->pid, process->bytes };
            } else {
                ProcessV2 row = { process->pid, process->bytes, 0xFFFFFFFFu, 0xFFFFFFFFu };
                if (config.scramble) row = (ProcessV2){ 0xFFFFFFFFu, (unsigned long long)process->pid << 40, process->pid, 0 };
                ((ProcessV2 *)out)[found] = row;
            }
        }
        found++;
    }
    *count = found;
    return found > room || (found && !out) ? INSUFFICIENT_SIZE : OK;
}
#define LISTS(name, kind)                                                                                     \
    int name##_v3(Device *d, unsigned *count, void *out) { ENTER(d); return list(d, kind, count, out, 3); }   \
    int name##_v2(Device *d, unsigned *count, void *out) { ENTER(d); return list(d, kind, count, out, 2); }   \
    int name(Device *d, unsigned *count, void *out) { ENTER(d); return list(d, kind, count, out, 1); }
LISTS(nvmlDeviceGetComputeRunningProcesses, 'C')
LISTS(nvmlDeviceGetGraphicsRunningProcesses, 'G')
LISTS(nvmlDeviceGetMPSComputeRunningProcesses, 'M')

typedef struct { unsigned pid; unsigned long long timestamp; unsigned sm, memory, encoder, decoder; } ProcessSample;
int nvmlDeviceGetProcessUtilization(Device *d, ProcessSample *out, unsigned *count, unsigned long long since)
{
    ENTER(d);
    unsigned room = *count, found = 0;
    for (int i = 0; i < config.process_count; i++) {
        Process *process = &config.processes[i];
        if ((int)process->gpu != d->index || !process->sm) continue;
        if (out && found < room) out[found] = (ProcessSample){ process->pid, now_us(), process->sm, process->sm / 2, 0, 0 };
        found++;
    }
    (void)since;
    *count = found;
    if (!found) return NOT_FOUND;
    return found > room || !out ? INSUFFICIENT_SIZE : OK;
}

/* ---- events ---- */

typedef struct { Device *device; unsigned long long type, data; unsigned gpu_instance, compute_instance; } EventData;
static int the_set;
int nvmlEventSetCreate(void **out) { ENTER(NULL); *out = &the_set; return OK; }
int nvmlEventSetFree(void *set) { ENTER(NULL); (void)set; memset(registered, 0, sizeof registered); return OK; }
int nvmlDeviceRegisterEvents(Device *d, unsigned long long types, void *set)
{
    ENTER(d);
    (void)types;
    (void)set;
    registered[d->index] = 1;
    serials_seen[d->index] = config.xid[d->index].serial; /* no history before the registration */
    return OK;
}
static int wait_event(EventData *out)
{
    for (int i = 0; i < MAX_GPUS; i++)
        if (registered[i] && config.xid[i].serial != serials_seen[i]) {
            serials_seen[i] = config.xid[i].serial;
            *out = (EventData){ &devices[i], 0x8, (unsigned long long)config.xid[i].code, 0xFFFFFFFFu, 0xFFFFFFFFu };
            return OK;
        }
    return TIMEOUT;
}
int nvmlEventSetWait_v2(void *set, EventData *out, unsigned timeout_ms)
{
    ENTER(NULL);
    (void)set;
    double began = now_seconds();
    int code;
    while ((code = wait_event(out)) == TIMEOUT && now_seconds() - began < timeout_ms / 1000.0) {
        usleep(5000);
        pthread_mutex_lock(&lock);
        refresh_config();
        pthread_mutex_unlock(&lock);
    }
    return code;
}
