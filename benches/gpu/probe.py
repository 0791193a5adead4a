"""Measure on a real GPU the facts that Baton's interposer and arbiter depend on.

What it measures, one part after the other:

  device      driver version, memory before and after the context, attributes that the swap back ends need
  identity    whether cuGetProcAddress returns the same address as dlsym for the functions we wrap,
              for several versions and for both default-stream flags (decides how look-ups are mapped)
  vmm         granularity, and the time of create, map, set access, unmap and release from 2 MiB up to --max-gib
  bandwidth   pinned allocation; device <-> host copies from pinned, pageable (huge pages) and registered memory,
              each way alone and both ways at once
  checkpoint  lock and unlock alone (could the driver's lock serve as a gate?), then lock, checkpoint, restore,
              unlock of a child process at three sizes, with a check of its data

Only plain allocations are used, never managed memory.
Sizes are cut to 80 % of the free GPU memory and to a quarter of the available RAM.
It takes three to six minutes with the default size.

Needs: Linux, an NVIDIA driver, Python 3.9 or newer, the package cuda-bindings (13 or newer).

Usage:
  probe.py [--max-gib 32] [--parts device,identity,vmm,bandwidth,checkpoint]

Output: one JSON object per part on standard output, one line each; a part that fails says so and the next one runs.
With a host-memory libcuda.so.1 first in LD_LIBRARY_PATH the program runs without a GPU; the times then mean nothing.
"""

import argparse
import ctypes
import itertools
import json
import mmap
import subprocess
import sys
import time

from cuda.bindings import driver

GIB = 1 << 30
MIB = 1 << 20

FLAG_LEGACY_STREAM = 0
FLAG_PER_THREAD_STREAM = 2
LOOKUP_VERSIONS = (8000, 12000, 13000, 13040, 13050)
SUFFIXES = ("", "_v2", "_v3", "_v4", "_ptsz", "_ptds", "_v2_ptsz", "_v2_ptds", "_v3_ptsz")
LOOKUP_NAMES = """
    cuMemAlloc cuMemFree cuMemAllocPitch cuMemAllocManaged cuMemAllocAsync cuMemFreeAsync cuMemAllocFromPoolAsync
    cuMemCreate cuMemRelease cuMemMap cuMemUnmap cuMemSetAccess cuMemGetInfo
    cuLaunchKernel cuLaunchKernelEx cuLaunchCooperativeKernel cuGraphLaunch
    cuMemcpyAsync cuMemcpyHtoDAsync cuMemcpyDtoHAsync cuMemcpyDtoDAsync cuMemcpy3DAsync cuMemcpyBatchAsync
    cuMemsetD8Async cuMemsetD32Async cuMemPrefetchAsync cuStreamSynchronize cuCtxSynchronize cuCtxCreate
    cuArray3DCreate cuIpcGetMemHandle cuGetProcAddress cuCheckpointProcessLock cuCheckpointOperationComplete
""".split()
ATTRIBUTES = (
    "VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED",
    "HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED",
    "MEMORY_POOLS_SUPPORTED",
    "COMPUTE_PREEMPTION_SUPPORTED",
    "ASYNC_ENGINE_COUNT",
    "CONCURRENT_MANAGED_ACCESS",
)


def check(result):
    """Unwrap what cuda-bindings returns: (code, values...)."""
    if result[0] != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(str(result[0]))
    if len(result) == 2:
        return result[1]
    return result[1:] or None


def seconds(action):
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def open_device():
    """Initialise the driver and make the primary context of device 0 current."""
    check(driver.cuInit(0))
    device = check(driver.cuDeviceGet(0))
    check(driver.cuCtxSetCurrent(check(driver.cuDevicePrimaryCtxRetain(device))))
    return device


def available_ram_bytes():
    with open("/proc/meminfo", encoding="ascii") as lines:
        for line in lines:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    raise RuntimeError("no MemAvailable in /proc/meminfo")


def usable_bytes(gib):
    """The asked size, cut to what the GPU has free; a multiple of 2 MiB."""
    free_bytes, _total_bytes = check(driver.cuMemGetInfo())
    return int(min(gib * GIB, 0.8 * free_bytes)) // (2 * MIB) * (2 * MIB)


def host_bytes(gib):
    """As usable_bytes, and also cut to a quarter of the available RAM."""
    return min(usable_bytes(gib), int(0.25 * available_ram_bytes())) // (2 * MIB) * (2 * MIB)


def measure_device(device, _max_gib):
    free_bytes, total_bytes = check(driver.cuMemGetInfo())
    attributes = {
        name: int(
            check(
                driver.cuDeviceGetAttribute(getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}"), device)
            )
        )
        for name in ATTRIBUTES
    }
    return {
        "driver": check(driver.cuDriverGetVersion()),
        "total_mib": total_bytes // MIB,
        "free_mib": free_bytes // MIB,
        "context_and_driver_mib": (total_bytes - free_bytes) // MIB,
        "attributes": attributes,
    }


def export_address(library, name):
    try:
        return ctypes.cast(getattr(library, name), ctypes.c_void_p).value
    except AttributeError:
        return None


def measure_identity(_device, _max_gib):
    """For each look-up: which exported symbol has the returned address; None where no export has it."""
    library = ctypes.CDLL("libcuda.so.1")
    look_up = library.cuGetProcAddress_v2
    look_up.argtypes = [
        ctypes.c_char_p,
        ctypes.POINTER(ctypes.c_void_p),
        ctypes.c_int,
        ctypes.c_uint64,
        ctypes.c_void_p,
    ]
    found = {}
    for name in LOOKUP_NAMES:
        exports = {export_address(library, name + suffix): name + suffix for suffix in SUFFIXES}
        exports.pop(None, None)
        for version in LOOKUP_VERSIONS:
            for flags in (FLAG_LEGACY_STREAM, FLAG_PER_THREAD_STREAM):
                address, status = ctypes.c_void_p(), ctypes.c_int()
                code = look_up(name.encode(), ctypes.byref(address), version, flags, ctypes.byref(status))
                key = f"{name}@{version}/{flags}"
                found[key] = exports.get(address.value) if address.value else f"absent ({code}, {status.value})"
    return {"found": found, "without_identity": [key for key, export in found.items() if export is None]}


def measure_vmm(device, max_gib):
    properties = driver.CUmemAllocationProp()
    properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    properties.location.id = int(device)
    access = driver.CUmemAccessDesc()
    access.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    access.location.id = int(device)
    access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    minimum = driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
    granularity = int(check(driver.cuMemGetAllocationGranularity(properties, minimum)))

    rows = []
    for size in sorted(
        {min(size, usable_bytes(max_gib)) for size in (2 * MIB, 64 * MIB, 256 * MIB, GIB, 8 * GIB, int(max_gib * GIB))}
    ):
        address = check(driver.cuMemAddressReserve(size, 0, 0, 0))
        best = None
        for _ in range(3):
            marks = [time.perf_counter()]
            handle = check(driver.cuMemCreate(size, properties, 0))
            marks.append(time.perf_counter())
            check(driver.cuMemMap(address, size, 0, handle, 0))
            marks.append(time.perf_counter())
            check(driver.cuMemSetAccess(address, size, [access], 1))
            marks.append(time.perf_counter())
            check(driver.cuMemUnmap(address, size))
            marks.append(time.perf_counter())
            check(driver.cuMemRelease(handle))
            marks.append(time.perf_counter())
            times = [round((after - before) * 1e6, 1) for before, after in itertools.pairwise(marks)]
            if best is None or sum(times) < sum(best):
                best = times
        check(driver.cuMemAddressFree(address, size))
        rows.append(
            {
                "bytes": size,
                **dict(zip(("create_us", "map_us", "set_access_us", "unmap_us", "release_us"), best, strict=True)),
            }
        )
    return {"granularity": granularity, "rows": rows}


def measure_bandwidth(_device, max_gib):
    size = host_bytes(min(max_gib, 16)) // 2
    device_a, device_b = check(driver.cuMemAlloc(size)), check(driver.cuMemAlloc(size))
    non_blocking = 1
    stream_a, stream_b = check(driver.cuStreamCreate(non_blocking)), check(driver.cuStreamCreate(non_blocking))

    def out_of_device(host, device_memory, stream):
        check(driver.cuMemcpyDtoHAsync(host, device_memory, size, stream))

    def into_device(host, device_memory, stream):
        check(driver.cuMemcpyHtoDAsync(device_memory, host, size, stream))

    def gb_per_s(*copies, repeats=3):
        def once():
            for copy, host, device_memory, stream in copies:
                copy(host, device_memory, stream)
            check(driver.cuStreamSynchronize(stream_a))
            check(driver.cuStreamSynchronize(stream_b))

        return round(size * len(copies) / min(seconds(once) for _ in range(repeats)) / 1e9, 2)

    result = {"bytes": size}
    start = time.perf_counter()
    pinned_a = check(driver.cuMemHostAlloc(size, 0))
    result["pinned_alloc_s_per_gib"] = round((time.perf_counter() - start) / (size / GIB), 3)
    pinned_b = check(driver.cuMemHostAlloc(size, 0))
    host_a, host_b = int(pinned_a), int(pinned_b)
    ctypes.memset(host_a, 1, size)
    ctypes.memset(host_b, 1, size)
    out_a, in_b = (out_of_device, host_a, device_a, stream_a), (into_device, host_b, device_b, stream_b)
    result["pinned_out_gb_s"] = gb_per_s(out_a)
    result["pinned_in_gb_s"] = gb_per_s(in_b)
    result["pinned_both_ways_sum_gb_s"] = gb_per_s(out_a, in_b)
    check(driver.cuMemFreeHost(pinned_a))
    check(driver.cuMemFreeHost(pinned_b))

    pages = mmap.mmap(-1, size)
    pages.madvise(mmap.MADV_HUGEPAGE)
    view = ctypes.c_char.from_buffer(pages)
    host = ctypes.addressof(view)
    ctypes.memset(host, 1, size)
    result["pageable_out_gb_s"] = gb_per_s((out_of_device, host, device_a, stream_a), repeats=2)
    result["pageable_in_gb_s"] = gb_per_s((into_device, host, device_a, stream_a), repeats=2)
    start = time.perf_counter()
    code = driver.cuMemHostRegister(host, size, 0)[0]
    if code == driver.CUresult.CUDA_SUCCESS:
        result["register_s_per_gib"] = round((time.perf_counter() - start) / (size / GIB), 3)
        result["registered_out_gb_s"] = gb_per_s((out_of_device, host, device_a, stream_a))
        result["registered_in_gb_s"] = gb_per_s((into_device, host, device_a, stream_a))
        check(driver.cuMemHostUnregister(host))
    else:
        result["register_error"] = str(code)
    check(driver.cuMemFree(device_a))
    check(driver.cuMemFree(device_b))
    return result


def run_child(size):
    """The target of the checkpoint part: hold `size` bytes of a known pattern, answer each line with a check of it."""
    open_device()
    memory = check(driver.cuMemAlloc(size))
    check(driver.cuMemsetD8(memory, 0x5A, size))
    check(driver.cuCtxSynchronize())
    print("ready", flush=True)
    for _ in sys.stdin:
        tail = ctypes.create_string_buffer(16)
        check(driver.cuMemcpyDtoH(ctypes.addressof(tail), int(memory) + size - 16, 16))
        print("ok" if tail.raw == b"\x5a" * 16 else "damaged", flush=True)


def measure_checkpoint(_device, max_gib):
    sizes = {host_bytes(min(gib, max_gib)) for gib in (0.25, 4, 16)}
    return {"rows": [checkpoint_child(size) for size in sorted(sizes)]}


def checkpoint_child(size):
    child = subprocess.Popen(
        [sys.executable, __file__, "--child", str(size)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    row = {"bytes": size}
    try:
        if child.stdout.readline().strip() != "ready":
            raise RuntimeError("the child did not start")
        lock = driver.CUcheckpointLockArgs()
        lock.timeoutMs = 10_000
        steps = {
            "lock_alone_s": lambda: driver.cuCheckpointProcessLock(child.pid, lock),
            "unlock_alone_s": lambda: driver.cuCheckpointProcessUnlock(child.pid, None),
            "lock_s": lambda: driver.cuCheckpointProcessLock(child.pid, lock),
            "checkpoint_s": lambda: driver.cuCheckpointProcessCheckpoint(child.pid, None),
            "restore_s": lambda: driver.cuCheckpointProcessRestore(child.pid, None),
            "unlock_s": lambda: driver.cuCheckpointProcessUnlock(child.pid, None),
        }
        for name, step in steps.items():
            free_before = check(driver.cuMemGetInfo())[0]
            start = time.perf_counter()
            check(step())
            row[name] = round(time.perf_counter() - start, 3)
            if name == "checkpoint_s":
                row["freed_mib"] = (check(driver.cuMemGetInfo())[0] - free_before) // MIB
        child.stdin.write("check\n")
        child.stdin.flush()
        row["data"] = child.stdout.readline().strip()
    except Exception as error:  # a missing function or a refusal is a result, not a failure of the probe
        row["error"] = repr(error)
    finally:
        child.kill()
        child.wait()
    return row


PARTS = {
    "device": measure_device,
    "identity": measure_identity,
    "vmm": measure_vmm,
    "bandwidth": measure_bandwidth,
    "checkpoint": measure_checkpoint,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--max-gib", type=float, default=32, help="largest allocation, in GiB")
    parser.add_argument("--parts", default=",".join(PARTS), help="comma-separated parts to measure")
    parser.add_argument("--child", type=int, metavar="BYTES", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        run_child(options.child)
        return
    device = open_device()
    for name in options.parts.split(","):
        try:
            result = PARTS[name](device, options.max_gib)
        except Exception as error:
            result = {"error": repr(error)}
        print(json.dumps({"part": name, **result}), flush=True)


if __name__ == "__main__":
    main()
