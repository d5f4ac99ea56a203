/* What ultramon asks of the C library of macOS, answered on Linux from /proc: the declarations and
 * sizes are those of Apple's sys/proc_info.h, sys/sysctl.h, sys/ucred.h and sys/un.h.
 * PROC is where this system shows its processes, as a test may have hidden /proc; BOOT_MICROSECONDS
 * is when it was started, from 1970. */
#define _GNU_SOURCE
#include <ctype.h>
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

struct proc_bsdinfo {
  uint32_t pbi_flags, pbi_status, pbi_xstatus, pbi_pid, pbi_ppid;
  uint32_t pbi_uid, pbi_gid, pbi_ruid, pbi_rgid, pbi_svuid, pbi_svgid, rfu_1;
  char pbi_comm[16], pbi_name[32];
  uint32_t pbi_nfiles, pbi_pgid, pbi_pjobc, e_tdev, e_tpgid;
  int32_t pbi_nice;
  uint64_t pbi_start_tvsec, pbi_start_tvusec;
};

struct proc_taskinfo {
  uint64_t pti_virtual_size, pti_resident_size, pti_times[4];
  int32_t pti_counts[12];
};

struct vinfo_stat {
  uint32_t vst_dev;
  uint16_t vst_mode, vst_nlink;
  uint64_t vst_ino;
  uint32_t vst_uid, vst_gid;
  int64_t vst_times[8], vst_size, vst_blocks;
  int32_t vst_blksize;
  uint32_t vst_flags, vst_gen, vst_rdev;
  int64_t vst_qspare[2];
};

struct vnode_info_path {
  struct vinfo_stat vi_stat;
  int32_t vi_type, vi_pad, vi_fsid[2];
  char vip_path[1024];
};

struct proc_vnodepathinfo {
  struct vnode_info_path pvi_cdir, pvi_rdir;
};

struct xucred {
  uint32_t cr_version, cr_uid;
  int16_t cr_ngroups;
  uint32_t cr_groups[16];
};

enum { PROC_PIDTBSDINFO = 3, PROC_PIDTASKINFO = 4, PROC_PIDVNODEPATHINFO = 9, SZOMB = 5 };
enum { CTL_KERN = 1, KERN_PROCARGS2 = 49 };
enum { SOL_LOCAL = 0, LOCAL_PEERCRED = 1, LOCAL_PEERPID = 2 };

static ssize_t read_proc(int pid, const char *name, char *buffer, size_t size) {
  char path[PATH_MAX];
  snprintf(path, sizeof path, PROC "/%d/%s", pid, name);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return -1;
  ssize_t count = 0, more;
  while ((size_t)count < size && (more = read(fd, buffer + count, size - count)) > 0) count += more;
  close(fd);
  return count;
}

static int refuse(int number) {
  errno = number;
  return 0;
}

int proc_pidinfo(int pid, int flavor, uint64_t arg, void *buffer, int size) {
  (void)arg;
  char stat[4096], folder[PATH_MAX];
  struct stat owner;
  snprintf(folder, sizeof folder, PROC "/%d", pid);
  ssize_t count = read_proc(pid, "stat", stat, sizeof stat - 1);
  int why = errno;
  if (pid <= 0 || lstat(folder, &owner)) return refuse(ESRCH);
  if (count <= 0) return refuse(why == ENOENT ? ESRCH : why);
  if (geteuid() && owner.st_uid != geteuid()) return refuse(EPERM);
  stat[count] = 0;
  char *name = strchr(stat, '(') + 1, *rest = strrchr(stat, ')');
  *rest = 0;
  char state;
  int ppid, pgid;
  unsigned long long start, vsize;
  long rss;
  sscanf(rest + 2, "%c %d %d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu %llu %ld",
         &state, &ppid, &pgid, &start, &vsize, &rss);
  if (state == 'Z' || state == 'X') return refuse(ESRCH);
  if (flavor == PROC_PIDTBSDINFO && size == sizeof(struct proc_bsdinfo)) {
    struct proc_bsdinfo info = {.pbi_pid = pid, .pbi_ppid = ppid, .pbi_pgid = pgid, .pbi_status = 2};
    uint64_t at = BOOT_MICROSECONDS + start * 1000000 / sysconf(_SC_CLK_TCK);
    at += pid % 100 * 100; /* Linux counts to 10 ms, macOS to a microsecond */
    strncpy(info.pbi_comm, name, sizeof info.pbi_comm - 1);
    info.pbi_start_tvsec = at / 1000000;
    info.pbi_start_tvusec = at % 1000000;
    memcpy(buffer, &info, sizeof info);
    return size;
  }
  if (flavor == PROC_PIDTASKINFO && size == sizeof(struct proc_taskinfo)) {
    struct proc_taskinfo info = {.pti_virtual_size = vsize};
    info.pti_resident_size = (uint64_t)rss * sysconf(_SC_PAGESIZE);
    memcpy(buffer, &info, sizeof info);
    return size;
  }
  if (flavor == PROC_PIDVNODEPATHINFO && size == sizeof(struct proc_vnodepathinfo)) {
    struct proc_vnodepathinfo *info = buffer;
    memset(info, 0, sizeof *info);
    strcat(folder, "/cwd");
    ssize_t length = readlink(folder, info->pvi_cdir.vip_path, sizeof info->pvi_cdir.vip_path - 1);
    return length < 0 ? refuse(EPERM) : size;
  }
  return refuse(ENOMEM);
}

int proc_listallpids(void *buffer, int size) {
  DIR *folder = opendir(PROC);
  if (!folder) return -1;
  int count = 0, *pids = buffer;
  for (struct dirent *entry; (entry = readdir(folder));) {
    if (!isdigit((unsigned char)entry->d_name[0])) continue;
    if (buffer && (count + 1) * (int)sizeof(int) > size) break;
    if (buffer) pids[count] = atoi(entry->d_name);
    count++;
  }
  closedir(folder);
  return count;
}

int sysctl(int *name, unsigned count, void *old, size_t *size, void *new, size_t new_size) {
  (void)new, (void)new_size;
  if (count != 3 || name[0] != CTL_KERN || name[1] != KERN_PROCARGS2) return errno = EINVAL, -1;
  char path[PATH_MAX], program[PATH_MAX];
  snprintf(path, sizeof path, PROC "/%d/exe", name[2]);
  ssize_t length = readlink(path, program, sizeof program - 1);
  char *at = old, *end = at + *size;
  if (length < 0 || (size_t)length + 16 > *size) return errno = EINVAL, -1;
  char *start = at;
  at += sizeof(int);
  memcpy(at, program, length);
  at += length;
  do *at++ = 0;
  while ((at - start) % 8);
  ssize_t words = read_proc(name[2], "cmdline", at, end - at);
  int argc = 0;
  for (ssize_t i = 0; i < words; i++) argc += !at[i];
  memcpy(start, &argc, sizeof argc);
  at += words < 0 ? 0 : words;
  ssize_t variables = read_proc(name[2], "environ", at, end - at);
  if (words < 0 || variables < 0) return errno = EINVAL, -1;
  at += variables;
  const char apple[] = "\0ptr_munge=\0executable_path=/x";
  if (at + sizeof apple > end) return errno = ENOMEM, -1;
  memcpy(at, apple, sizeof apple);
  *size = at + sizeof apple - start;
  return 0;
}

int sysctlbyname(const char *name, void *old, size_t *size, void *new, size_t new_size) {
  (void)new, (void)new_size;
  if (strcmp(name, "kern.bootsessionuuid")) return errno = ENOENT, -1;
  int fd = open(PROC "/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
  ssize_t count = fd < 0 || *size < 37 ? -1 : read(fd, old, 36);
  close(fd);
  if (count != 36) return errno = ENOENT, -1;
  ((char *)old)[36] = 0;
  for (char *at = old; *at; at++) *at = toupper((unsigned char)*at);
  *size = 37;
  return 0;
}

/* macOS knows no SO_PEERCRED; loaded ahead of the C library, this takes it away. */
int getsockopt(int fd, int level, int option, void *value, socklen_t *size) {
  static int (*real)(int, int, int, void *, socklen_t *);
  if (!real) real = (int (*)(int, int, int, void *, socklen_t *))dlsym(RTLD_NEXT, "getsockopt");
  if (level == SOL_SOCKET && option == SO_PEERCRED) return errno = ENOPROTOOPT, -1;
  if (level != SOL_LOCAL || (option != LOCAL_PEERCRED && option != LOCAL_PEERPID))
    return real(fd, level, option, value, size);
  struct ucred peer;
  socklen_t length = sizeof peer;
  if (real(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length)) return -1;
  if (option == LOCAL_PEERPID) {
    memcpy(value, &peer.pid, *size = sizeof peer.pid);
    return 0;
  }
  struct xucred known = {.cr_uid = peer.uid, .cr_ngroups = 1, .cr_groups = {peer.gid}};
  memcpy(value, &known, *size = sizeof known);
  return 0;
}
